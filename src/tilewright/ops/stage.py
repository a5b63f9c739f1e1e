"""The description of an operator's stage: dimensions, affine accesses, an expression, a combiner.

    conv2d:  n k h w parallel, c r s reduction
      Out[n, k, h, w] += In[n, c, h*sh + r*dh - ph, w*sw + s*dw - pw] * Ker[k, c, r, s]

comes in as

    Stage(dims=(Dim('n', 1), ..., Dim('c', 64, 'reduction'), ...),
          write=Access('Out', (var('n'), var('k'), var('h'), var('w'))),
          reads=(Access('In', ...), Access('Ker', ...)),
          expr=Expr('mul', (Read(0), Read(1))), combiner='sum')

and everything else in this package (reference, traffic, loop orders, design space, code) is derived
from it. Nothing here knows what a convolution is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.errors import SpecError

KINDS = ('parallel', 'reduction', 'sequential')
COMBINERS = ('sum', 'max')


@dataclass(frozen=True, slots=True)
class Dim:
    """One named dimension of an iteration domain."""

    name: str
    size: int
    kind: str = 'parallel'

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1:
            raise SpecError(
                f'dimension {self.name} has size {self.size!r}; give a whole number, 1 or more'
            )
        if self.kind not in KINDS:
            raise SpecError(f'dimension {self.name} is {self.kind!r}; it must be one of {KINDS}')


@dataclass(frozen=True, slots=True)
class Affine:
    """An affine index: sum(coefficient * iterator) + const, with positive coefficients."""

    terms: tuple[tuple[str, int], ...]
    const: int = 0

    def __post_init__(self) -> None:
        for name, coefficient in self.terms:
            if coefficient < 1:
                raise SpecError(
                    f'index coefficient of {name} is {coefficient}; it must be positive'
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        return next((c for n, c in self.terms if n == name), 0)

    def extent(self, sizes: Mapping[str, int]) -> int:
        """How far a tile of these sizes reaches: largest index - smallest index + 1."""
        return sum(c * (sizes[n] - 1) for n, c in self.terms) + 1

    def at(self, point: Mapping[str, int]) -> int:
        return sum(c * point.get(n, 0) for n, c in self.terms) + self.const


def var(name: str, coefficient: int = 1) -> Affine:
    """The index expression `coefficient * name`."""
    return Affine(((name, coefficient),))


def affine(*terms: tuple[str, int], const: int = 0) -> Affine:
    """The index expression `sum(coefficient * name) + const`."""
    return Affine(tuple(terms), const)


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor read or written at affine indices, one per tensor dimension."""

    tensor: str
    index: tuple[Affine, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Iterators that occur in the access, in order of first occurrence."""
        seen: dict[str, None] = {}
        for expression in self.index:
            seen.update(dict.fromkeys(expression.names))
        return tuple(seen)

    def extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(expression.extent(sizes) for expression in self.index)


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar expression over the values read at one point.

    `op` is 'read' (operand number in `value`), 'const' (number in `value`) or a function of `args`:
    see `FUNCTIONS` for the names and what each means.
    """

    op: str
    args: tuple[Expr, ...] = ()
    value: float = 0.0

    def __post_init__(self) -> None:
        if self.op not in ('read', 'const') and self.op not in FUNCTIONS:
            raise SpecError(f'unknown function {self.op!r}; known: {", ".join(FUNCTIONS)}')
        if self.op in FUNCTIONS and len(self.args) != FUNCTIONS[self.op]:
            raise SpecError(f'{self.op} takes {FUNCTIONS[self.op]} arguments, got {len(self.args)}')

    def reads(self) -> Iterable[int]:
        if self.op == 'read':
            yield int(self.value)
        for arg in self.args:
            yield from arg.reads()

    def to_json(self) -> list:
        return [self.op, self.value, [a.to_json() for a in self.args]]

    @classmethod
    def from_json(cls, data: list) -> Expr:
        op, value, args = data
        return cls(op, tuple(cls.from_json(a) for a in args), value)


# name -> number of arguments. The meaning of each name is given once per back end:
# ops/reference.py (numpy, float64) and codegen/cpu/pointwise.py (C).
FUNCTIONS = {
    'add': 2,
    'sub': 2,
    'mul': 2,
    'div': 2,
    'max': 2,
    'min': 2,
    'neg': 1,
    'exp': 1,
    'tanh': 1,
    'sigmoid': 1,
    'sqrt': 1,
    'abs': 1,
    'pow': 2,
}


def read(number: int) -> Expr:
    return Expr('read', value=number)


def const(value: float) -> Expr:
    return Expr('const', value=float(value))


def call(op: str, *args: Expr) -> Expr:
    return Expr(op, args)


@dataclass(frozen=True)
class Stage:
    """`write[...] combiner= expr(reads...)` over an iteration domain.

    With `combiner=None` the stage is pointwise: it has no reduction dimension and assigns.
    Indices outside a tensor read `pad_value` (0 for sums, -inf for max).
    """

    name: str
    dims: tuple[Dim, ...]
    write: Access
    reads: tuple[Access, ...]
    expr: Expr
    combiner: str | None = None
    pad_value: float = field(default=0.0)

    def __post_init__(self) -> None:
        names = [d.name for d in self.dims]
        if len(set(names)) != len(names):
            raise SpecError(f'stage {self.name} names a dimension twice: {names}')
        if self.combiner not in (None, *COMBINERS):
            raise SpecError(
                f'stage {self.name}: combiner {self.combiner!r} is not one of {COMBINERS}'
            )
        reductions = [d.name for d in self.dims if d.kind == 'reduction']
        if self.combiner is None and reductions:
            raise SpecError(f'stage {self.name} reduces over {reductions} but has no combiner')
        known = set(names)
        for access in (self.write, *self.reads):
            unknown = set(access.names) - known
            if unknown:
                raise SpecError(
                    f'stage {self.name}: {access.tensor} is indexed by unknown {unknown}'
                )
        written = set(self.write.names)
        parallel = {d.name for d in self.dims if d.kind == 'parallel'}
        if written != parallel:
            raise SpecError(
                f'stage {self.name} writes {sorted(written)}, but its parallel dimensions are '
                f'{sorted(parallel)}: every parallel dimension must index the result exactly once'
            )
        used = set(self.expr.reads())
        if used != set(range(len(self.reads))):
            raise SpecError(
                f'stage {self.name} has {len(self.reads)} reads, its expression uses {used}'
            )

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {d.name: d.size for d in self.dims}

    @cached_property
    def parallel(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims if d.kind == 'parallel')

    @cached_property
    def reduction(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims if d.kind == 'reduction')

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every access, the written one first."""
        return (self.write, *self.reads)

    @property
    def points(self) -> int:
        """Size of the iteration domain."""
        return math.prod(d.size for d in self.dims)

    @property
    def is_product_sum(self) -> bool:
        """True for sum-of-products of two operands: what FMA micro-kernels compute."""
        return (
            self.combiner == 'sum'
            and len(self.reads) == 2
            and self.expr == call('mul', read(0), read(1))
        )

    @property
    def flops(self) -> int:
        """Arithmetic operations: one for each function of the expression, one for the combiner."""

        def count(e: Expr) -> int:
            return (e.op in FUNCTIONS) + sum(count(a) for a in e.args)

        return self.points * (count(self.expr) + (self.combiner is not None))
