"""Adjoints: from the description of a stage to that of its gradients.

    Out[w(p)] combine= f(A[a(p)], B[b(p)], ..)           over points p
    GradA[x]    sum=   Up[w(p)] * df/dA                   over the points p with a(p) = x

Goes in: a group of one stage and the number of a read. Comes out: the tensors to compute, each by
groups that write parts of it, the last one the gradient by what is read; `Up` is the gradient of
the stage's result. Nothing is scattered: every element of a gradient is written once, and the sum
in it has one order.

The sum over p with a(p) = x is found axis by axis of A, from its index and its extent:

    index                    elements x of the axis                      summed over
    c, g*4 + c, h*2 + r      the same iterators, where they reach        nothing
                             every x once (a mixed radix)
    h*s + r*d - p            x = s*h' + rest, one group for each rest    r', the taps of this class
                             (residue class of the stride)               alone, backwards
    values[j] (a table)      x                                           its places in the table
    whatever else, lookups   x                                           all p, where a(p) = x
                             (of many rows of a table: ops/scatter.py)

h' and r' replace h and r in every other index. Coefficients there are positive: taps run backwards
in the gradient, and a tensor that has them forwards (the weights) is read from a reversed copy. So
the data gradient of a convolution is again a convolution, and its weight gradient a sum of products
over images and pixels, whatever the strides.

A maximum passes its gradient on to the first point that reached it, which a stage of its own finds.
A product passes it on times the product of all other points, which a stage of its own computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import SpecError
from tilewright.ops.data_gradient import as_convolution
from tilewright.ops.derivative import derivative, product
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group, Tensor
from tilewright.ops.scatter import by_rows, looked_up
from tilewright.ops.stage import (
    MAX_TABLE,
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    call,
    const,
    index,
    read,
    substituted,
    var,
    whole,
)

UP, GRAD, PLACE, OTHERS = 'Up', 'Grad', 'Place', 'Others'
# Functions that may not be finite where padding is read, so that 0 times them may not be 0.
_UNSAFE = frozenset({'div', 'log', 'log1p', 'pow', 'mod', 'fmod', 'acosh', 'atanh', 'asin', 'acos'})


@dataclass(frozen=True, slots=True)
class MadeTensor:
    """A tensor, and the groups that write it: all of it between them."""

    tensor: str
    parts: tuple[Group, ...]

    @property
    def is_copy(self) -> bool:
        """Whether it is `Up` as it is."""
        stage = self.parts[0].stages[0]
        return (
            len(self.parts) == 1
            and stage.combiner is None
            and stage.expr == read(0)
            and stage.reads == (Access(UP, stage.write.index),)
            and self.parts[0].tensor(UP).shape == self.parts[0].output.shape
            and self.parts[0].tensor(UP).dtype == self.parts[0].output.dtype
        )


def adjoint(group: Group, number: int) -> tuple[MadeTensor, ...]:
    """The gradient by read `number` of a group's only stage; nothing where it is zero.

    The groups read the tensors of the given one, its result among them, `Up`, and what is made
    before them.
    """
    stage = _without_ones(group.stages[0])
    if stage.sequential:
        raise SpecError(f'{stage.name} takes steps one after the other')
    if not is_float(group.tensor(stage.reads[number].tensor).dtype):
        return ()
    slope = derivative(stage.expr, number)
    if slope is None:
        return ()
    reads = (*stage.reads, Access(UP, stage.write.index))
    if stage.combiner is None and stage.expr.args:
        # By the result where that says as much: then nobody else may need what it was made of.
        slope = _by_result(slope, stage.expr, read(len(reads)))
        reads = (*reads, Access(stage.write.tensor, stage.write.index))
    tensors = {t.name: t for t in group.tensors}
    tensors[UP] = replace(group.output, name=UP)
    rows = by_rows(stage, number, tensors, UP, GRAD)
    if rows:
        return tuple(MadeTensor(g.output.name, (g,)) for g in rows)
    value, made = product(read(len(stage.reads)), slope), []
    assert value is not None
    if stage.combiner in ('max', 'min'):
        place = _place(group, stage)
        made.append(MadeTensor(PLACE, (place,)))
        tensors[PLACE] = replace(place.output, role='input')
        reads = (*reads, Access(PLACE, stage.write.index))
        chosen = call('eq', read(len(reads) - 1), _flat(stage))
        value = call('where', chosen, value, const(0.0))
    if stage.combiner == 'prod':
        others = _others(group, stage)
        made.append(MadeTensor(OTHERS, (others,)))
        tensors[OTHERS] = replace(others.output, role='input')
        reads = (*reads, Access(OTHERS, others.stages[0].write.index))
        value = call('mul', value, read(len(reads) - 1))
    spread = _Spread(stage, reads, value, stage.reads[number], tensors)
    for by_masks in (False, True):
        found = spread.gathered(by_masks)
        if found is not None:
            return (*made, *_convolved(found))
    raise SpecError(f'{stage.name} reads {stage.reads[number].tensor} at indices with no inverse')


def _convolved(found: tuple[MadeTensor, ...]) -> tuple[MadeTensor, ...]:
    """A data gradient with stride 1 in the form of a convolution."""
    if [len(step.parts) for step in found] != [1, 1]:
        return found
    made = as_convolution(*(step.parts[0] for step in found))
    return found if made is None else tuple(
        replace(step, parts=(group,)) for step, group in zip(found, made, strict=True)
    )  # fmt: skip


def _without_ones(stage: Stage) -> Stage:
    """The stage without iterators of one point, which would look like dimensions of a product."""
    ones = {d.name for d in stage.dims if d.size == 1}
    kept = tuple(d for d in stage.dims if d.name not in ones)
    if not ones or not kept or stage.sequential:
        return stage

    def at(access: Access) -> Access:
        index_ = (Affine(tuple(t for t in e.terms if t[0] not in ones), e.const)
                  for e in access.index)  # fmt: skip
        return replace(access, index=tuple(index_))

    def counted(expr: Expr) -> Expr:
        if expr.op == 'index' and expr.name in ones:
            return whole(0)
        return replace(expr, args=tuple(map(counted, expr.args)))

    return replace(
        stage, dims=kept, write=at(stage.write), reads=tuple(map(at, stage.reads)),
        expr=counted(stage.expr),
        combiner=stage.combiner if any(d.kind == 'reduction' for d in kept) else None,
    )  # fmt: skip


def _by_result(slope: Expr, expr: Expr, result: Expr) -> Expr:
    """A slope whose function, or whose clipped element in comparisons, is read from the result."""
    inner, bounds = expr, {}
    while inner.op in ('max', 'min') and inner.args[1].op == 'const':
        bounds[inner.op] = inner.args[1]
        inner = inner.args[0]
    clipped = inner.op == 'read' and len(bounds) and _depth(expr) == len(bounds)

    def replaced(e: Expr) -> Expr:
        if e == expr:
            return result
        if clipped and e.op in ('gt', 'lt') and e.args[1] in bounds.values():
            return replace(e, args=(result, e.args[1]))
        return replace(e, args=tuple(map(replaced, e.args)))

    return replaced(slope)


def _depth(expr: Expr) -> int:
    return 1 + _depth(expr.args[0]) if expr.args else 0


def _flat(stage: Stage) -> Expr:
    """The number of a point of the reduction."""
    found: Expr = whole(0)
    for name in stage.reduction:
        found = call('add', call('mul', found, whole(stage.sizes[name])), index(name))
    return found


def _place(group: Group, stage: Stage) -> Group:
    """Where an extreme is reached first."""
    points = math.prod(stage.sizes[name] for name in stage.reduction)
    reached = call('eq', stage.expr, read(len(stage.reads)))
    expr = call('where', reached, _flat(stage), whole(points))
    reads = (*stage.reads, Access(stage.write.tensor, stage.write.index))
    found = Stage('place', stage.dims, Access(PLACE, stage.write.index), reads, expr, 'min',
                  stage.pad_value)  # fmt: skip
    tensors = [replace(t, role='input') for t in group.tensors]
    out = replace(group.output, name=PLACE, role='output', dtype='i32')
    return Group(f'{group.label}/place', (*tensors, out), (found,))


def _others(group: Group, stage: Stage) -> Group:
    """For every point of a product the product of all other points: exact where some are zero."""
    again = {name: f'other_{name}' for name in stage.reduction}

    def at(access: Access) -> Access:
        moved = (Affine(tuple((again.get(n, n), c) for n, c in e.terms), e.const)
                 for e in access.index)  # fmt: skip
        return replace(access, index=tuple(moved))

    def counted(expr: Expr) -> Expr:
        if expr.op == 'index' and expr.name in again:
            return index(again[expr.name])
        return replace(expr, args=tuple(map(counted, expr.args)))

    value = counted(stage.expr)
    same = [call('eq', index(name), index(other)) for name, other in again.items()]
    for more in same[1:]:
        same[0] = call('and', same[0], more)
    dims = (
        *(Dim(d.name, d.size) for d in stage.dims),
        *(Dim(other, stage.sizes[name], 'reduction') for name, other in again.items()),
    )
    write = Access(OTHERS, (*stage.write.index, *map(var, again)))
    found = Stage('others', dims, write, tuple(map(at, stage.reads)),
                  call('where', same[0], const(1.0), value), 'prod', stage.pad_value)  # fmt: skip
    tensors = [replace(t, role='input') for t in group.tensors if t.role != 'output']
    shape = (*group.output.shape, *(stage.sizes[name] for name in again))
    out = replace(group.output, name=OTHERS, dims=(*group.output.dims, *again), shape=shape)
    return Group(f'{group.label}/others', (*tensors, out), (found,))


@dataclass(frozen=True, slots=True)
class _Line:
    """sum(coefficient * iterator) + const, with coefficients of any sign."""

    terms: tuple[tuple[str, int], ...] = ()
    const: int = 0

    def plus(self, other: _Line, factor: int = 1) -> _Line:
        sums = dict(self.terms)
        for name, coefficient in other.terms:
            sums[name] = sums.get(name, 0) + factor * coefficient
        kept = tuple((name, c) for name, c in sums.items() if c)
        return _Line(kept, self.const + factor * other.const)

    @property
    def signs(self) -> set[bool]:
        return {c > 0 for _, c in self.terms}

    def expr(self) -> Expr:
        found: Expr = whole(self.const)
        for name, coefficient in self.terms:
            found = call('add', found, call('mul', index(name), whole(coefficient)))
        return found


@dataclass(frozen=True, slots=True)
class _Places:
    """An iterator that stands at values[line]: where a table holds an element."""

    values: tuple[int, ...]
    line: _Line


@dataclass
class _Part:
    """One way through all axes: new dimensions, and what the old iterators are in them."""

    parallel: list[Dim] = field(default_factory=list)
    reduced: dict[str, Dim] = field(default_factory=dict)
    write: list[Affine] = field(default_factory=list)
    now: dict[str, _Line | _Places] = field(default_factory=dict)
    masks: list[Expr] = field(default_factory=list)
    later: dict[int, Affine] = field(default_factory=dict)  # axes that are solved already
    empty: bool = False

    def copy(self) -> _Part:
        return _Part(
            list(self.parallel), dict(self.reduced), list(self.write), dict(self.now),
            list(self.masks), dict(self.later), self.empty,
        )  # fmt: skip


class _HardError(Exception):
    """Indices that have no positive form after substitution."""


@dataclass(frozen=True)
class _Spread:
    """A value at every point of a stage, to be added up at `target` of its tensor."""

    stage: Stage
    reads: tuple[Access, ...]
    value: Expr
    target: Access
    tensors: Mapping[str, Tensor]

    def gathered(self, by_masks: bool) -> tuple[MadeTensor, ...] | None:
        """The groups that compute every element's sum; None if they need masks, and may not."""
        ways = [_Part()]
        for axis in range(len(self.target.index)):
            ways = [next_part for part in ways for next_part in self._axis(part, axis, by_masks)]
        reversed_tensors: dict[str, MadeTensor] = {}
        try:
            parts = tuple(self._group(part, reversed_tensors) for part in ways)
        except _HardError:
            return None
        return (*reversed_tensors.values(), MadeTensor(GRAD, parts))

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.stage.sizes

    def _name(self, part: _Part, wish: str) -> str:
        taken = {d.name for d in part.parallel} | set(self.sizes)
        while wish in taken:
            wish += 'x'
        return wish

    def _axis(self, part: _Part, axis: int, by_masks: bool) -> Iterator[_Part]:
        at, extent = self.target.index[axis], self.tensors[self.target.tensor].shape[axis]
        table = dict(self.target.tables).get(axis)
        lookup = dict(self.target.lookups).get(axis)
        part = part.copy()
        names = at.names
        elsewhere = {n for i, e in enumerate(self.target.index) if i != axis for n in e.names}
        free = not set(names) & (set(part.now) | elsewhere)
        tabled = {n for i, _ in self.target.tables for n in self.target.index[i].names}
        if axis in part.later:
            part.write.append(part.later.pop(axis))
            yield part
        elif extent == 1 and lookup is None and table is None and not names and not at.const:
            part.write.append(Affine(()))
            yield part
        elif table is not None or set(names) & tabled:
            yield self._tabled(part, axis)
        elif lookup is None and free and self._is_radix(at, extent):
            part.parallel += [Dim(n, self.sizes[n]) for n in names]
            part.now |= {n: _Line(((n, 1),)) for n in names}
            part.write.append(at)
            yield part
        elif lookup is None and free and names and self._pivot(at) and not by_masks:
            yield from self._inverted(part, at, extent)
        else:
            name = self._name(part, f'x{axis}')
            part.parallel.append(Dim(name, extent))
            part.write.append(var(name))
            here = looked_up(read(lookup), extent) if lookup is not None else at
            part.masks.append(call('eq', here, index(name)) if isinstance(here, Expr)
                              else call('eq', self._at(part, here), index(name)))  # fmt: skip
            yield part

    def _at(self, part: _Part, at: Affine) -> Expr:
        line = _Line(const=at.const)
        for name, coefficient in at.terms:
            known = part.now.get(name, _Line(((name, 1),)))
            if isinstance(known, _Places):
                raise SpecError(f'{self.stage.name} counts along a table')
            line = line.plus(known, coefficient)
        return line.expr()

    def _is_radix(self, at: Affine, extent: int) -> bool:
        """Whether an index takes every value of the axis once."""
        reach = 1
        for name, coefficient in sorted(at.terms, key=lambda t: t[1]):
            if coefficient != reach and self.sizes[name] > 1:
                return False
            reach = coefficient * self.sizes[name] if self.sizes[name] > 1 else reach
        return at.const == 0 and reach == extent and bool(at.terms)

    def _pivot(self, at: Affine) -> tuple[str, int] | None:
        """The iterator that is solved for: one of the result's, the longest."""
        kept = [t for t in at.terms if t[0] in self.stage.parallel] or list(at.terms)
        name, coefficient = max(kept, key=lambda t: (self.sizes[t[0]], -t[1]))
        return (name, coefficient) if coefficient == 1 or len(at.terms) <= 2 else None

    def _inverted(self, part: _Part, at: Affine, extent: int) -> Iterator[_Part]:
        """x = step * pivot + (others) + const, for each rest of x by `step`."""
        pivot, step = self._pivot(at) or ('', 0)
        others = [(n, c) for n, c in at.terms if n != pivot]
        for rest in range(min(step, extent)):
            made = part.copy()
            count = -(-(extent - rest) // step)
            made.parallel.append(Dim(pivot, count))
            made.write.append(Affine(((pivot, step),), rest))
            value = _Line(((pivot, step),), rest - at.const)  # step * the old pivot, in the end
            for name, coefficient in others:
                first = next(
                    (v for v in range(step) if (rest - at.const - coefficient * v) % step == 0),
                    self.sizes[name],
                )
                every = step // math.gcd(step, coefficient)
                taps = len(range(first, self.sizes[name], every))
                if not taps:
                    made.empty = True
                    break
                line = _Line((), first)
                if taps > 1:
                    made.reduced[name] = Dim(name, taps, 'reduction')
                    line = _Line(((name, -every),), first + every * (taps - 1))
                made.now[name] = line
                value = value.plus(line, -coefficient)
            made.empty |= not others and (rest - at.const) % step != 0
            if not made.empty:
                old = _Line(tuple((n, c // step) for n, c in value.terms), value.const // step)
                made.now[pivot] = old
                if not self._is_zero_outside(pivot):
                    size, place = self.sizes[pivot], old.expr()
                    made.masks += [
                        call('ge', place, whole(0)), call('lt', place, whole(size))
                    ]  # fmt: skip
            yield made

    def _is_zero_outside(self, pivot: str) -> bool:
        """Whether `Up` is padding wherever the pivot leaves its range, and nothing else matters."""
        if set(self.value.functions()) & _UNSAFE or self.stage.pad_value != 0:
            return False
        shape = self.tensors[UP].shape
        for e, extent in zip(self.stage.write.index, shape, strict=True):
            step = e.coefficient(pivot)
            others = e.extent(self.sizes) - 1 - step * (self.sizes[pivot] - 1)
            if (
                step
                and e.const + others - step < 0
                and e.const + step * self.sizes[pivot] >= extent
            ):
                return True
        return False

    def _tabled(self, part: _Part, first: int) -> _Part:
        """Axes of the same iterators, tables among them: the points at which each element is."""
        names = self.target.index[first].names
        axes = [i for i, e in enumerate(self.target.index) if set(e.names) & set(names)]
        tables, shape = dict(self.target.tables), self.tensors[self.target.tensor].shape
        if any(set(self.target.index[i].names) != set(names) for i in axes):
            raise SpecError(f'{self.stage.name} reads {self.target.tensor} through a table')
        held: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for point in itertools.product(*(range(self.sizes[name]) for name in names)):
            at = [self.target.index[i].at(dict(zip(names, point, strict=True))) for i in axes]
            place = [tables[i][p] if i in tables else p for i, p in zip(axes, at, strict=True)]
            held.setdefault(tuple(place), []).append(point)
        extents = [shape[i] for i in axes]
        most = max(map(len, held.values()))
        if most * math.prod(extents) > MAX_TABLE:
            raise SpecError(f'{self.stage.name} has a table of {most * math.prod(extents)} places')
        points: list[tuple[int, ...]] = []
        for place in itertools.product(*map(range, extents)):
            own = held.get(place, [])
            points += [*own, *((-1,) * len(names),) * (most - len(own))]
        line, step = _Line(), most * math.prod(extents)
        for axis, extent in zip(axes, extents, strict=True):
            name, step = self._name(part, f'x{axis}'), step // extent
            part.parallel.append(Dim(name, extent))
            part.later[axis] = var(name)
            line = line.plus(_Line(((name, step),)))
        part.write.append(part.later.pop(first))
        if most > 1:
            part.reduced[names[0]] = Dim(names[0], most, 'reduction')
            line = line.plus(_Line(((names[0], 1),)))
        for number, old in enumerate(names):
            part.now[old] = _Places(tuple(p[number] for p in points), line)
        return part

    def _group(self, part: _Part, made: dict[str, MadeTensor]) -> Group:
        out = replace(self.tensors[self.target.tensor], name=GRAD, role='output')
        write = Access(GRAD, tuple(part.write))
        label = f'{self.stage.name}_grad-{self.target.tensor}-' + 'x'.join(map(str, out.shape))
        if part.empty:
            stage = Stage('zero', tuple(part.parallel), write, (), const(0.0))
            return Group(f'{label}/zero', (out,), (stage,))
        value = self._counted(self.value, part)
        for mask in part.masks[::-1]:
            value = call('where', mask, value, const(0.0))
        # Sums of products have their factors in the order of the reads.
        used = list(dict.fromkeys(value.reads()))
        queue = list(used)
        for number in queue:
            queue += [r for _, r in self.reads[number].lookups if r not in queue]
        used = queue
        reads = []
        for number in used:
            old = self.reads[number]
            found, copies = self._substituted(old, part)
            if copies is not None and copies.tensor not in made:
                made[copies.tensor] = copies
            lookups = tuple((axis, used.index(r)) for axis, r in found.lookups)
            reads.append(replace(found, lookups=lookups))
        known = {name: step.parts[0].output for name, step in made.items()}
        numbers = [read(used.index(n)) if n in used else const(0.0) for n in range(len(self.reads))]
        dims = list(part.parallel)
        for dim in self.stage.dims:
            if dim.name in part.reduced:
                dims.append(part.reduced[dim.name])
            elif dim.name not in part.now:
                dims.append(Dim(dim.name, dim.size, 'reduction'))
        combiner = 'sum' if any(d.kind == 'reduction' for d in dims) else None
        stage = Stage(
            f'{self.stage.name}_grad', tuple(dims), write, tuple(reads),
            substituted(value, numbers), combiner,
        )  # fmt: skip
        names = dict.fromkeys(a.tensor for a in reads)
        tensors = [replace({**self.tensors, **known}[n], role='input') for n in names]
        return Group(label, (*tensors, out), (stage,))

    def _counted(self, expr: Expr, part: _Part) -> Expr:
        """The expression with old iterators as they are now."""
        if expr.op == 'index' and expr.name in part.now:
            known = part.now[expr.name]
            if isinstance(known, _Places):
                raise SpecError(f'{self.stage.name} counts along a table')
            return known.expr()
        return replace(expr, args=tuple(self._counted(a, part) for a in expr.args))

    def _substituted(self, old: Access, part: _Part) -> tuple[Access, MadeTensor | None]:
        """An access in the new iterators; of a reversed copy where it would run backwards."""
        changed = {d.name: d.size for d in (*part.parallel, *part.reduced.values())}
        sizes = {**self.sizes, **changed}
        index_, tables, backwards = [], dict(old.tables), []
        shape = self.tensors[old.tensor].shape
        for axis, e in enumerate(old.index):
            line = _Line(const=e.const)
            for name, coefficient in e.terms:
                known = part.now.get(name, _Line(((name, 1),)))
                if isinstance(known, _Places):
                    if axis in tables or e != var(name):
                        raise SpecError(f'{self.stage.name} counts along a table')
                    tables[axis], known = known.values, known.line
                line = line.plus(known, coefficient)
            if line.signs == {False} and axis not in tables:
                backwards.append(axis)
                line = _Line((), shape[axis] - 1).plus(line, -1)
            if False in line.signs:
                raise _HardError
            index_.append(Affine(line.terms, line.const))
            if axis in tables:
                index_[-1], tables[axis] = _widened(index_[-1], tables[axis], sizes)
        if not backwards:
            found = Access(old.tensor, tuple(index_), tuple(sorted(tables.items())), old.lookups)
            return found, None
        copies = _reversed_copy(self.tensors[old.tensor], backwards)
        return Access(copies.tensor, tuple(index_), (), old.lookups), copies


def _widened(
    at: Affine, values: Sequence[int], sizes: Mapping[str, int]
) -> tuple[Affine, tuple[int, ...]]:
    """A table, and its index, with places outside the tensor where the index leaves the table."""
    before = max(0, -at.const)
    after = max(0, at.const + at.extent(sizes) - len(values))
    return (
        Affine(at.terms, at.const + before),
        (*(-1,) * before, *values, *(-1,) * after),
    )


def _reversed_copy(tensor: Tensor, axes: Sequence[int]) -> MadeTensor:
    name = f'{tensor.name}Back{"".join(map(str, axes))}'
    names = [f'd{i}' for i in range(len(tensor.shape))]
    dims = tuple(Dim(n, size) for n, size in zip(names, tensor.shape, strict=True))
    here = tuple(map(var, names))
    tables = tuple((axis, tuple(reversed(range(tensor.shape[axis])))) for axis in axes)
    stage = Stage(
        'reverse', dims, Access(name, here), (Access(tensor.name, here, tables),), read(0)
    )
    out = replace(tensor, name=name, role='output')
    label = f'reverse-{"x".join(map(str, tensor.shape))}@{"".join(map(str, axes))}'
    return MadeTensor(name, (Group(label, (replace(tensor, role='input'), out), (stage,)),))


def single_stages(group: Group) -> Iterator[Group]:
    """The stages of a group, each as a group of its own; inner tensors are read as inputs."""
    if len(group.stages) == 1:
        yield group
        return
    for stage in group.stages:
        touched = {a.tensor for a in stage.accesses}
        tensors = tuple(
            replace(t, role='output' if t.name == stage.write.tensor else 'input'
                    if t.role in ('inner', 'output') else t.role)
            for t in group.tensors if t.name in touched
        )  # fmt: skip
        yield Group(f'{group.label}/{stage.name}', tensors, (stage,))
