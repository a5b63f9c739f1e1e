"""What a sum of products looks like to an outer-product micro-kernel.

Goes in: a stage `Out += A * B`. Comes out: the role that every dimension plays.

    vector     indexes B and Out, not A: lies across vector lanes       conv2d: k      matmul: j
    columns    other dimensions of B and Out: loops
    pixels     index A and Out, not B: broadcast, blocked in registers          n h w          i
    batch      index A, B and Out: loops                                        g
    loop       the reduction that the micro-kernel loops over                   c              k
    unrolled   reductions unrolled inside that loop                             r s
    outer      reductions left over (large windows): loops around the micro-kernel

This is the classification of a tensor contraction; nothing in it is particular to convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tilewright.errors import ScheduleError
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access, Stage

# Unrolling more steps than this overflows the instruction cache and the offsets of a load.
MAX_UNROLLED = 128


@dataclass(frozen=True)
class Contraction:
    """Roles of the dimensions of `stage`, with `a` broadcast and `b` packed along `vector`."""

    stage: Stage
    a: Access
    b: Access
    vector: str
    columns: tuple[str, ...]
    pixels: tuple[str, ...]
    batch: tuple[str, ...]
    loop: str
    unrolled: tuple[str, ...]
    outer: tuple[str, ...]

    @cached_property
    def reduction(self) -> tuple[str, ...]:
        """Reductions in the order in which packed operands store them, innermost last."""
        return (*self.outer, *((self.loop,) if self.loop else ()), *self.unrolled)

    @cached_property
    def sliding_alone(self) -> tuple[str, ...]:
        """Pixels that share no index of `a` with another iterator of more than one point."""
        return tuple(name for name in self.pixels if self._slides_alone(name))

    def _slides_alone(self, name: str) -> bool:
        expressions = [e for e in self.a.index if name in e.names]
        return len(expressions) == 1 and all(
            n == name or self.stage.sizes[n] == 1 for n in expressions[0].names
        )


def why_no_products(group: Group) -> str:
    """Why a group is not one sum of products with an epilogue; '' where it is one."""
    if group.is_plain and group.main.is_product_sum and parts(group) == (group,):
        return ''
    return f'{group.label} is not one sum of products with what follows it'


def check_plain(group: Group, *, front: bool = False) -> None:
    """ScheduleError for what no schema of products can generate; `front`: stages may come first."""
    if not group.is_plain:
        raise ScheduleError(
            f'{group.label} has tables, lookups or iterators in its expressions; use the general '
            f'schema'
        )
    if not front and group.stages[0] is not group.main:
        raise ScheduleError(f'{group.label}: stages before {group.main.name} cannot be generated')


def vector_candidates(group: Group, *, moving: bool = False) -> tuple[str, ...]:
    """Dimensions that may lie across vector lanes: contiguous in the result first, then largest.

    Panels are packed ahead of time, so that one operand has to be constant; with `moving` they may
    be packed in every call.
    """
    stage = group.main
    if not stage.is_product_sum or stage.pad_value != 0:
        return ()
    a, b = _operands(group)
    if group.tensor(b.tensor).role != 'constant' and not moving:
        return ()
    if _leaves(group, b):
        return ()
    columns = [d for d in stage.parallel if d in b.names and d not in a.names]
    last = stage.write.index[-1]
    return tuple(sorted(columns, key=lambda d: (last.terms != ((d, 1),), -stage.sizes[d])))


def _operands(group: Group) -> tuple[Access, Access]:
    """(broadcast, packed): the constant operand is the one that is packed, else the second.

    Panels have no border: an operand that is read outside its tensor, a constant image with padding
    say, is broadcast, since copies of those are padded.
    """
    first, second = group.main.reads
    if _leaves(group, first) != _leaves(group, second):
        return (first, second) if _leaves(group, first) else (second, first)
    if group.tensor(first.tensor).role == 'constant' != group.tensor(second.tensor).role:
        return second, first
    return first, second


def _leaves(group: Group, access: Access) -> bool:
    """Whether some of its indices lie outside the tensor, where the pad value is read."""
    return any(
        e.const < 0 or e.const + e.extent(group.main.sizes) > size
        for e, size in zip(access.index, group.tensor(access.tensor).shape, strict=True)
    )


@lru_cache(maxsize=256)
def contract(group: Group, vector: str) -> Contraction:
    """[Group] -> [Contraction]; `vector` is one of `vector_candidates`."""
    stage = group.main
    a, b = _operands(group)
    in_a, in_b = set(a.names), set(b.names)
    unrolled, loop, outer = _split_reductions(stage, a, b)
    return Contraction(
        stage,
        a,
        b,
        vector,
        tuple(d for d in stage.parallel if d in in_b and d not in in_a and d != vector),
        tuple(d for d in stage.parallel if d not in in_b),
        tuple(d for d in stage.parallel if d in in_b and d in in_a),
        loop,
        unrolled,
        outer,
    )


def _split_reductions(
    stage: Stage, a: Access, b: Access
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Window reductions (sharing an index of `a` with a pixel) are unrolled, smallest first."""
    pixels = set(stage.parallel) - set(b.names)
    windows = {
        name
        for expression in a.index
        if pixels & set(expression.names)
        for name in expression.names
        if name in stage.reduction
    }
    plain = [d for d in stage.reduction if d not in windows]
    loop = max(plain, key=lambda d: stage.sizes[d]) if plain else ''
    rest = [d for d in stage.reduction if d != loop]
    steps, unrolled = 1, set()
    # Of windows of one size the last, whose points are neighbours in memory.
    place = {name: -number for number, name in enumerate(rest)}
    for name in sorted(rest, key=lambda d: (d not in windows, stage.sizes[d], place[d])):
        if steps * stage.sizes[name] <= MAX_UNROLLED:
            steps *= stage.sizes[name]
            unrolled.add(name)
    if not loop:
        loop = next((d for d in rest if d not in unrolled), '')
    outer = tuple(d for d in rest if d not in unrolled and d != loop)
    return tuple(d for d in rest if d in unrolled), loop, outer
