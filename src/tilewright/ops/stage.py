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

An index is affine. Two other kinds serve operators that move data about: a `Table` of positions
that are known now (resizing, reflected borders, steps backwards), and a `Lookup`, the value of
another read of the stage (gathering).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilewright.errors import SpecError
from tilewright.ops.dtypes import DTYPES, is_float

KINDS = ('parallel', 'reduction', 'sequential')
# combiner -> the value that changes nothing
COMBINERS = {'sum': 0.0, 'max': -math.inf, 'min': math.inf, 'prod': 1.0}
# Longer tables belong into a tensor that a `Lookup` reads.
MAX_TABLE = 1 << 16


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


@dataclass(frozen=True)
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

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.terms)

    def coefficient(self, name: str) -> int:
        return next((c for n, c in self.terms if n == name), 0)

    def extent(self, sizes: Mapping[str, int]) -> int:
        """How far a tile of these sizes reaches: largest index - smallest index + 1."""
        reach = 0
        for name, coefficient in self.terms:
            reach = reach + coefficient * (sizes[name] - 1)
        return reach + 1

    def at(self, point: Mapping[str, int]) -> int:
        return sum(c * point.get(n, 0) for n, c in self.terms) + self.const


def var(name: str, coefficient: int = 1) -> Affine:
    """The index expression `coefficient * name`."""
    return Affine(((name, coefficient),))


def affine(*terms: tuple[str, int], const: int = 0) -> Affine:
    """The index expression `sum(coefficient * name) + const`."""
    return Affine(tuple(terms), const)


@dataclass(frozen=True, slots=True)
class Table:
    """The index `values[of]`. Positions outside the tensor read the stage's pad value."""

    values: tuple[int, ...]
    of: Affine


@dataclass(frozen=True, slots=True)
class Lookup:
    """The index that read number `read` of the stage has as its value.

    Negative ones count from the end; whatever is outside then is brought to the nearest end, so
    that no data can lead a kernel out of its tensors.
    """

    read: int


@dataclass(frozen=True)
class Access:
    """A tensor read or written at affine indices, one per tensor dimension.

    tables   (axis, values): the index of that axis is values[affine], see `Table`
    lookups  (axis, read): the index of that axis is the value of another read, see `Lookup`; its
             affine index is 0

    Use `access` to write them as indices.
    """

    tensor: str
    index: tuple[Affine, ...]
    tables: tuple[tuple[int, tuple[int, ...]], ...] = ()
    lookups: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        axes = [axis for axis, _ in (*self.tables, *self.lookups)]
        if len(set(axes)) < len(axes) or any(not 0 <= a < len(self.index) for a in axes):
            raise SpecError(
                f'{self.tensor}: tables and lookups of axes {axes}; give each of the '
                f'{len(self.index)} axes one index'
            )
        for axis, values in self.tables:
            if not 1 <= len(values) <= MAX_TABLE:
                raise SpecError(
                    f'{self.tensor}: a table of {len(values)} positions for axis {axis}; the limit '
                    f'is {MAX_TABLE}: put them into a tensor and use a Lookup'
                )
        if any(self.index[axis] != Affine(()) for axis, _ in self.lookups):
            raise SpecError(f'{self.tensor}: an axis that is looked up has no affine index')

    @property
    def is_affine(self) -> bool:
        return not self.tables and not self.lookups

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Iterators that occur in the access, in order of first occurrence."""
        seen: dict[str, None] = {}
        for expression in self.index:
            seen.update(dict.fromkeys(expression.names))
        return tuple(seen)

    def extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([expression.extent(sizes) for expression in self.index])


def access(tensor: str, *index: Affine | Table | Lookup) -> Access:
    """A tensor at indices of any kind, one for each of its axes."""
    plain, tables, lookups = [], [], []
    for axis, item in enumerate(index):
        if isinstance(item, Table):
            tables.append((axis, tuple(map(int, item.values))))
        elif isinstance(item, Lookup):
            lookups.append((axis, item.read))
        plain.append(
            item.of if isinstance(item, Table) else item if isinstance(item, Affine) else Affine(())
        )
    return Access(tensor, tuple(plain), tuple(tables), tuple(lookups))


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar expression over the values read at one point.

    `op` is 'read' (operand number in `value`), 'const' (number in `value`), 'whole' (an integer,
    kept exactly), 'index' (the value of iterator `name`) or a function of `args`: see `FUNCTIONS`
    for the names and what each means. 'cast' names its dtype in `name`. Truth is 0 or 1.
    """

    op: str
    args: tuple[Expr, ...] = ()
    value: float = 0.0
    name: str = ''

    def __post_init__(self) -> None:
        if self.op not in LEAVES and self.op not in FUNCTIONS:
            raise SpecError(f'unknown function {self.op!r}; known: {", ".join(FUNCTIONS)}')
        if self.op in FUNCTIONS and len(self.args) != FUNCTIONS[self.op]:
            raise SpecError(f'{self.op} takes {FUNCTIONS[self.op]} arguments, got {len(self.args)}')
        if self.op == 'cast' and self.name not in DTYPES:
            raise SpecError(f'cast to {self.name!r}; it must be one of {", ".join(DTYPES)}')

    def reads(self) -> Iterable[int]:
        if self.op == 'read':
            yield int(self.value)
        for arg in self.args:
            yield from arg.reads()

    def iterators(self) -> Iterable[str]:
        """Iterators whose values it uses."""
        if self.op == 'index':
            yield self.name
        for arg in self.args:
            yield from arg.iterators()

    def functions(self) -> Iterable[str]:
        if self.op in FUNCTIONS:
            yield self.op
        for arg in self.args:
            yield from arg.functions()

    def to_json(self) -> list:
        return [self.op, self.name or self.value, [a.to_json() for a in self.args]]

    @classmethod
    def from_json(cls, data: list) -> Expr:
        op, value, args = data
        inner = tuple(cls.from_json(a) for a in args)
        return cls(op, inner, name=value) if isinstance(value, str) else cls(op, inner, value)


LEAVES = ('read', 'const', 'whole', 'index')
# name -> number of arguments. The meaning of each name is given once per back end:
# ops/reference.py (numpy) and kernels/cpu/expression.py (C). What is not obvious:
#   div        of whole numbers cuts towards zero; by zero it is 0
#   mod, fmod  the remainder with the sign of the divisor, of the dividend
#   max, min   NaN if one of them is
#   round      to even where two are equally near
#   pow        of whole numbers is whole, 0 for negative exponents
#   shl, shr   of whole numbers; bit_* too
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
    'floor': 1,
    'ceil': 1,
    'round': 1,
    'sign': 1,
    'log': 1,
    'log1p': 1,
    'expm1': 1,
    'erf': 1,
    'sin': 1,
    'cos': 1,
    'tan': 1,
    'asin': 1,
    'acos': 1,
    'atan': 1,
    'sinh': 1,
    'cosh': 1,
    'asinh': 1,
    'acosh': 1,
    'atanh': 1,
    'mod': 2,
    'fmod': 2,
    'eq': 2,
    'lt': 2,
    'le': 2,
    'gt': 2,
    'ge': 2,
    'and': 2,
    'or': 2,
    'xor': 2,
    'not': 1,
    'isnan': 1,
    'isinf': 1,
    'where': 3,
    'cast': 1,
    'bit_and': 2,
    'bit_or': 2,
    'bit_xor': 2,
    'bit_not': 1,
    'shl': 2,
    'shr': 2,
}


def read(number: int) -> Expr:
    return Expr('read', value=number)


def const(value: float) -> Expr:
    return Expr('const', value=float(value))


def whole(value: int) -> Expr:
    return Expr('whole', value=int(value))


def literal(value: float, dtype: str) -> Expr:
    """A number to be combined with values of a dtype, exactly."""
    return const(value) if is_float(dtype) else whole(int(value))


def index(name: str) -> Expr:
    """The value of an iterator."""
    return Expr('index', name=name)


def cast(expr: Expr, dtype: str) -> Expr:
    return Expr('cast', (expr,), name=dtype)


def call(op: str, *args: Expr) -> Expr:
    return Expr(op, args)


# Of floats as they are; of whole numbers in the type of the sum, which holds every product.
_PRODUCTS = (
    call('mul', read(0), read(1)),
    call('mul', cast(read(0), 'i32'), cast(read(1), 'i32')),
)


def substituted(expr: Expr, texts: Sequence[Expr]) -> Expr:
    """The expression with texts[i] in the place of read i."""
    if expr.op == 'read':
        return texts[int(expr.value)]
    return replace(expr, args=tuple(substituted(a, texts) for a in expr.args))


@dataclass(frozen=True)
class Stage:
    """`write[...] combiner= expr(reads...)` over an iteration domain.

    With `combiner=None` the stage is pointwise: it has no reduction dimension and assigns.
    Points of a sequential dimension are computed one after the other, and index the result like
    parallel ones: a stage may read what was written in earlier steps (ops/sequence.py).
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
                f'stage {self.name}: combiner {self.combiner!r} is not one of {tuple(COMBINERS)}'
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
        kept = {d.name for d in self.dims if d.kind != 'reduction'}
        if written != kept:
            raise SpecError(
                f'stage {self.name} writes {sorted(written)}, but its parallel dimensions are '
                f'{sorted(kept)}: every parallel dimension must index the result exactly once'
            )
        used = set(self.expr.reads()) | {read for a in self.reads for _, read in a.lookups}
        if used != set(range(len(self.reads))):
            raise SpecError(
                f'stage {self.name} has {len(self.reads)} reads, its expression uses {used}'
            )
        stray = set(self.expr.iterators()) - known
        if stray:
            raise SpecError(f'stage {self.name}: its expression uses unknown iterators {stray}')
        self._check_indirect()

    def _check_indirect(self) -> None:
        """Results are written in place; tables are long enough; what is looked up is plain."""
        if not self.write.is_affine:
            raise SpecError(f'stage {self.name} writes {self.write.tensor} through a table')
        for access in self.reads:
            for axis, values in access.tables:
                at = access.index[axis]
                if at.const < 0 or at.const + at.extent(self.sizes) > len(values):
                    raise SpecError(
                        f'stage {self.name}: the table of {access.tensor} has {len(values)} '
                        f'positions, axis {axis} needs {at.const} to '
                        f'{at.const + at.extent(self.sizes) - 1}'
                    )
            for _, read in access.lookups:
                if self.reads[read].lookups:
                    raise SpecError(
                        f'stage {self.name}: {access.tensor} is looked up through a lookup'
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

    @cached_property
    def sequential(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims if d.kind == 'sequential')

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Every access, the written one first."""
        return (self.write, *self.reads)

    @property
    def is_affine(self) -> bool:
        """Whether all that it touches is found by affine indices."""
        return all(a.is_affine for a in self.reads)

    @cached_property
    def points(self) -> int:
        """Size of the iteration domain."""
        return math.prod(d.size for d in self.dims)

    @cached_property
    def is_product_sum(self) -> bool:
        """True for sum-of-products of two operands: what FMA micro-kernels compute, and those of
        dot products where both are small whole numbers (ops/integer.py).
        """
        return (
            self.combiner == 'sum'
            and len(self.reads) == 2
            and self.expr in _PRODUCTS
            and self.is_affine
        )

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations: one for each function of the expression, one for the combiner."""

        def count(e: Expr) -> int:
            return (e.op in FUNCTIONS) + sum(count(a) for a in e.args)

        return self.points * (count(self.expr) + (self.combiner is not None))
