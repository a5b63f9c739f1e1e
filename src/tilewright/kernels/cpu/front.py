"""What comes before a sum of products, in C: applied to the image as its tiles are copied.

Goes in: a group with stages before its main one (ops/front.py). Comes out: which tensor is copied
instead, a C expression over each of its elements, `value`, and over numbers `f0`, `f1` .. that are
the same along a row; and the same over vectors, for strips, whose loops are so short that compilers
unroll them before they look for vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.expression import Typed
from tilewright.kernels.cpu.pointwise import typed_text
from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    VectorTexts,
    broadcast,
    renamed,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr

Text = Callable[[Typed, Expr, list[str]], str]


@dataclass(frozen=True, slots=True)
class Number:
    """An element of `tensor`: strides by axis of the image, and where it begins."""

    name: str
    tensor: str
    strides: tuple[tuple[int, int], ...]
    const: int

    @property
    def argument(self) -> str:
        """What a function takes the tensor as."""
        return f'{self.name}_of'

    def place(self, positions: Mapping[int, str]) -> str:
        """Where it is in its tensor, by the positions along the axes of the image."""
        terms = [scaled(positions[axis], stride) for axis, stride in self.strides]
        return total([*terms, str(self.const) if self.const else ''])


@dataclass(frozen=True, slots=True)
class Front:
    """`source` is read instead of `image`; `functions` are what the expression calls.

    `vectors` is the expression over vectors, where the target has them.
    """

    source: str
    image: str
    expression: str
    numbers: tuple[Number, ...]
    functions: tuple[str, ...]
    vectors: VectorEpilogue | None = None

    @property
    def parameters(self) -> str:
        """Further parameters of a function that copies a row."""
        return ''.join(f', float {n.name}' for n in self.numbers)

    @property
    def arguments(self) -> str:
        return ''.join(f', {n.name}' for n in self.numbers)

    @property
    def pointers(self) -> str:
        """Further parameters of a function that copies a tile."""
        return ''.join(f', const float *{n.argument}' for n in self.numbers)

    def element(self, text: str) -> str:
        return f'front({text}{self.arguments})'

    def write_function(self, writer: Writer) -> None:
        writer.line('/* What comes before the products. */')
        writer.open(
            f'static inline __attribute__((always_inline)) float front(float value'
            f'{self.parameters})'
        )
        writer.line(f'return {self.expression};')
        writer.close()
        writer.line()

    def write_strip(self, writer: Writer, strip: int, most: int) -> str:
        """A function for a strip of neighbours, in vectors of at most `most` lanes; how it is
        called. The last vector ends where the strip does, whatever was written there before.
        """
        lanes = 1 << (min(strip, most).bit_length() - 1)
        if self.vectors is None or lanes < 2:
            return ''
        own = Writer()
        own.lines += vector_type(lanes)
        write_functions(own, self.vectors, lanes)
        inline = 'static inline __attribute__((always_inline))'
        numbers = ''.join(f', row_v {n.name}' for n in self.numbers)
        own.open(f'{inline} row_v front_lanes(row_v value{numbers})')
        own.line(f'return {self.vectors.expression};')
        own.close()
        own.open(f'{inline} void front_strip(const float *s, float *buffer{self.parameters})')
        values = ''.join(f', {broadcast(n.name)}' for n in self.numbers)
        for start in range(0, strip, lanes):
            at = min(start, strip - lanes)
            own.line(
                f'*(row_v *)(buffer + {at}) = front_lanes(*(const row_v *)(s + {at}){values});'
            )
        own.close()
        own.line()
        writer.lines += renamed(own.lines, 'front')
        return f'front_strip(s, buffer{self.arguments});'

    def write_numbers(self, writer: Writer, positions: Mapping[int, str]) -> None:
        """The numbers of one row; `positions` has the place along every axis but the row's own."""
        for number in self.numbers:
            element = f'{number.argument}[{number.place(positions)}]'
            writer.line(f'const float {number.name} = inside ? {element} : 0.0f;')


def plan_cpu_front(group: Group) -> Front | None:
    """[Group] -> [Front] with vectors; None where the main stage is the first."""
    front, made = plan_front(group), VectorTexts()
    over = plan_front(group, text=lambda _, expr, reads: made.text(expr, reads))
    if front is None or over is None:
        return None
    # What helpers call, the plain expression calls as well.
    return replace(front, vectors=replace(made.epilogue(over.expression), functions=()))


def plan_front(
    group: Group, typed: Typed | None = None, text: Text = typed_text
) -> Front | None:  # fmt: skip
    """[Group] -> [Front]; None where the main stage is the first.

    `text` writes an expression over the C texts of what it reads, with the functions of `typed`.
    """
    before = group.stages[: group.stages.index(group.main)]
    if not before:
        return None
    if not has_front(group):
        raise ScheduleError(f'{group.label}: stages before {group.main.name} cannot be generated')
    typed, numbers = typed or Typed(), []
    values: dict[str, str] = {}
    source = ''
    for stage in before:
        axis_of = {d.name: axis for axis, d in enumerate(stage.dims)}
        texts = []
        for access in stage.reads:
            tensor = group.tensor(access.tensor)
            if tensor.role == 'input':
                source = tensor.name
                texts.append('value')
            elif access.tensor in values:
                texts.append(values[access.tensor])
            else:
                strides: dict[int, int] = {}
                const = 0
                for expression, step in zip(access.index, tensor.strides, strict=True):
                    const += step * expression.const
                    for name, coefficient in expression.terms:
                        if stage.sizes[name] > 1:
                            axis = axis_of[name]
                            strides[axis] = strides.get(axis, 0) + step * coefficient
                name = f'f{len(numbers)}'
                numbers.append(Number(name, tensor.name, tuple(strides.items()), const))
                texts.append(name)
        values[stage.write.tensor] = text(typed, stage.expr, texts)
    image = before[-1].write.tensor
    return Front(source, image, values[image], tuple(numbers), tuple(typed.functions))
