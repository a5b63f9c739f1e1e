"""Attention as one group: two products with a softmax between them, and what stands in between.

    Scores[s.., i, j] += Q[.., i, .., d] * K[.., j, .., d]
    scale, mask, cap ..                          stages of one element each, any number of them
    Peak, Total, Weights                         softmax over j
    Out[.., i, .., v] += Weights[s.., i, j] * V[.., j, .., v]

Goes in: the groups that exporters write for it, one behind the other. Comes out: one group whose
iterators have fixed names (s0 s1 .. for what is stacked, i rows, j keys, d depth, v columns), and
back again what a schema has to know of such a group. Accesses are affine, so that heads that lie
inside rows, transposed keys, and keys that several heads share (they index Q by s0 * n + s1) are
nothing special. Scores are to be kept in a cache: nobody stores the square matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.errors import SpecError
from tilewright.ops.compose import fresh, placed
from tilewright.ops.group import Group, Tensor
from tilewright.ops.normalise import softmax
from tilewright.ops.stage import (
    Access,
    Dim,
    Expr,
    Stage,
    call,
    const,
    index,
    read,
    var,
    whole,
)

ROW, KEY, DEPTH, COLUMN = 'i', 'j', 'd', 'v'
X = read(0)


def causal(row: str, key: str, offset: int = 0) -> Expr:
    """What a row sees: the keys up to its own place, `offset` further on; -inf for the others."""
    seen = call('le', index(key), call('add', index(row), whole(offset)))
    return call('where', seen, X, const(-math.inf))


@dataclass(frozen=True, slots=True)
class Attention:
    """The stages of an attention group by what they do; `guarded`: a row that sees nothing is 0."""

    scores: Stage
    between: tuple[Stage, ...]
    values: Stage
    guarded: bool = False

    @property
    def stack(self) -> tuple[str, ...]:
        """Iterators of what is stacked: images, heads."""
        return tuple(d.name for d in self.scores.dims if d.name not in (ROW, KEY, DEPTH))

    @property
    def sizes(self) -> dict[str, int]:
        return self.scores.sizes | self.values.sizes

    @property
    def queries(self) -> Access:
        return next(a for a in self.scores.reads if ROW in a.names)

    @property
    def keys(self) -> Access:
        return next(a for a in self.scores.reads if ROW not in a.names)

    @property
    def columns(self) -> Access:
        return next(a for a in self.values.reads if COLUMN in a.names)

    @property
    def causal(self) -> int | None:
        """The offset of a causal mask, beyond which scores are -inf and need not be computed."""
        for stage in self.between:
            seen = stage.expr.args[0] if stage.expr.op == 'where' else None
            if seen is None or seen.op != 'le' or seen.args[1].op != 'add':
                continue
            offset = int(seen.args[1].args[1].value)
            if stage.expr == causal(ROW, KEY, offset):
                return offset
        return None


def why_no_attention(group: Group) -> str:
    """Why a group is not an attention; '' where it is one."""
    try:
        read_attention(group)
    except SpecError as error:
        return str(error)
    return ''


def attends(group: Group, rows: int) -> bool:
    """Whether a group is an attention of at least so many rows."""
    return not why_no_attention(group) and read_attention(group).sizes[ROW] >= rows


@lru_cache(maxsize=256)  # asked for by plans, models and words alike
def read_attention(group: Group) -> Attention:
    """[Group] -> [Attention]; SpecError for anything else."""
    if len(group.stages) < 5 or not group.stages[0].is_product_sum:
        raise SpecError(f'{group.label} is not two products with a softmax between them')
    first, last = group.stages[0], group.stages[-1]
    between, rest = group.stages[1:-4], group.stages[-4:-1]
    made = between[-1].write.tensor if between else first.write.tensor
    stack = tuple(d for d in first.dims if d.name not in (ROW, KEY, DEPTH))
    names = {ROW, KEY, DEPTH} <= set(first.sizes) and set(last.sizes) >= {ROW, KEY, COLUMN}
    weights = rest[-1].write.tensor
    found = [
        guarded
        for guarded in (False, True)
        if names and rest == softmax_stages(stack, first.sizes, made, weights, guarded)
    ]
    if not found:
        raise SpecError(f'{group.label} is not two products with a softmax between them')
    if any(s.combiner or not s.is_affine for s in between) or not last.is_product_sum:
        raise SpecError(f'{group.label}: what is between its products is not element by element')
    return Attention(first, between, last, found[0])


def softmax_stages(
    stack: Sequence[Dim], sizes: Mapping[str, int], given: str, made: str, guarded: bool = False
) -> tuple[Stage, ...]:
    """Peak, Total and what is `made`, of a tensor that is `given`, along its last axis."""
    shape = (*(d.size for d in stack), sizes[ROW], sizes[KEY])
    plain = softmax(shape, len(stack) + 1, guarded=guarded)
    names = [*(d.name for d in stack), ROW, KEY]
    tensors = {'In': given, 'Out': made}
    return tuple(_renamed(s, _by_axis(s, names), tensors) for s in plain.stages)


def join(
    scores: Group,
    between: Sequence[tuple[Group, str]],
    values: Group,
    weights: str,
    guarded: bool = False,
) -> tuple[Group, tuple[dict[str, str], ...]] | None:
    """One group of a product, the groups behind it, a softmax and a product with its result.

    between  element-wise groups, each with the tensor of it that is the result before it
    weights  the tensor of `values` that is what the softmax makes, guarded or not
    Comes out: the group and, for the product, those between and the last one, how their inputs are
    called in it; None where they are not an attention.
    """
    first, last = scores.stages[0], values.stages[0]
    shape = scores.output.shape
    if len(scores.stages) + len(values.stages) != 2 or len(shape) < 2:
        return None
    if not first.is_product_sum or not last.is_product_sum or len(first.reduction) != 1:
        return None
    if any(t.dtype != 'f32' for g in (scores, values) for t in g.tensors):
        return None
    axes = [*(f's{n}' for n in range(len(shape) - 2)), ROW, KEY]
    own = _single(first.write)
    if own is None or first.pad_value or last.pad_value:
        return None
    taken: set[str] = {'Peak', 'Total'}
    tensors: list[Tensor] = []
    inner = fresh('Scores', taken)
    held = [inner]
    names = {**dict(zip(own, axes, strict=True)), first.reduction[0]: DEPTH}
    stages, calls = [], []
    sides = _sides(first, own)
    if sides is None:
        return None
    calls.append(_taken(scores, dict(zip(sides, ('Q', 'K'), strict=True)), taken, tensors))
    stages.append(_renamed(first, names, {**calls[-1], scores.output.name: inner}))
    for group, tensor in between:
        (stage,) = group.stages
        found = _single(stage.write)
        if found is None or stage.combiner or not stage.is_affine or group.output.shape != shape:
            return None
        if any(a.tensor == tensor and a.index != stage.write.index for a in stage.reads):
            return None
        if group.output.dtype != 'f32':
            return None
        wishes = {t.name: 'Mask' for t in group.tensors}
        calls.append(_taken(group, wishes, taken, tensors, tensor))
        inner = fresh('Scores', taken)
        mapping = {**calls[-1], tensor: held[-1], group.output.name: inner}
        stages.append(_renamed(stage, dict(zip(found, axes, strict=True)), mapping))
        held.append(inner)
    dims = [Dim(name, size) for name, size in zip(axes, shape, strict=True)]
    made = fresh('Weights', taken)
    sizes = dict(zip(axes, shape, strict=True))
    stages += softmax_stages(dims[:-2], sizes, held[-1], made, guarded)
    final = _values(values, weights, axes, made, taken, tensors)
    if final is None:
        return None
    stages.append(final[0])
    calls.append(final[1])
    place = tuple(sizes.values())
    inside = [Tensor(name, tuple(axes), place, 'inner') for name in (*held, made)]
    inside += [Tensor(n, tuple(axes[:-1]), place[:-1], 'inner') for n in ('Peak', 'Total')]
    output = replace(values.output, name='Out')
    label = f'attention-{"x".join(map(str, place))}'
    label += f'd{stages[0].sizes[DEPTH]}v{stages[-1].sizes[COLUMN]}'
    storage = tuple((name, 'cache') for name in (*held, made, 'Peak', 'Total'))
    label += ''.join(f'+{stage.name}' for stage in stages[1 : 1 + len(between)])
    group = Group(label, (*tensors, *inside, output), _distinct(stages), storage)
    return None if why_no_attention(group) else (group, tuple(calls))


def _values(
    values: Group, weights: str, axes: Sequence[str], made: str, taken: set[str],
    tensors: list[Tensor],
) -> tuple[Stage, dict[str, str]] | None:  # fmt: skip
    """The last product under the common names."""
    stage = values.stages[0]
    given = next((a for a in stage.reads if a.tensor == weights), None)
    found = _single(given) if given else None
    if found is None or stage.reduction != (found[-1],):
        return None
    free = [d for d in stage.parallel if d not in found]
    if len(free) != 1 or sum(a.tensor == weights for a in stage.reads) != 1:
        return None
    names = {**dict(zip(found, axes, strict=True)), free[0]: COLUMN}
    other = next(a for a in stage.reads if a.tensor != weights)
    if found[-2] in other.names or free[0] not in other.names:
        return None
    call_names = _taken(values, {other.tensor: 'V'}, taken, tensors, weights)
    mapping = {**call_names, weights: made, values.output.name: 'Out'}
    return _renamed(stage, names, mapping), call_names


def _sides(first: Stage, own: Sequence[str]) -> tuple[str, str] | None:
    """The tensors of rows and of keys of a product; None where it has no such two."""
    row, key = own[-2:]
    rows = [a.tensor for a in first.reads if row in a.names and key not in a.names]
    keys = [a.tensor for a in first.reads if key in a.names and row not in a.names]
    if len(rows) != 1 or len(keys) != 1 or rows == keys:
        return None
    return rows[0], keys[0]


def _single(access: Access) -> list[str] | None:
    """The iterator of every axis; None where an axis has another index than a single one."""
    names = [e.names[0] if e.names and e == var(e.names[0]) else '' for e in access.index]
    distinct = len(set(names)) == len(names) and '' not in names
    return names if distinct and access.is_affine else None


def _taken(
    group: Group, wishes: Mapping[str, str], taken: set[str], tensors: list[Tensor], but: str = ''
) -> dict[str, str]:
    """Names for the inputs of a group, which are added to `tensors`."""
    names = {}
    for tensor in group.tensors:
        if tensor.role in ('input', 'constant') and tensor.name != but:
            names[tensor.name] = fresh(wishes.get(tensor.name, tensor.name), taken)
            tensors.append(replace(tensor, name=names[tensor.name]))
    return names


def _by_axis(stage: Stage, names: Sequence[str]) -> dict[str, str]:
    """Iterators of a stage of `softmax` -> those that the axes have here."""
    given = stage.reads[0]
    return {e.names[0]: name for e, name in zip(given.index, names, strict=True)}


def _renamed(stage: Stage, names: Mapping[str, str], tensors: Mapping[str, str]) -> Stage:
    place = {old: var(new) for old, new in names.items()}

    def access(given: Access) -> Access:
        at = tuple(placed(e, place) for e in given.index)
        return replace(given, tensor=tensors.get(given.tensor, given.tensor), index=at)

    def expr(given: Expr) -> Expr:
        if given.op == 'index':
            return replace(given, name=names[given.name])
        return replace(given, args=tuple(map(expr, given.args)))

    return replace(
        stage,
        dims=tuple(replace(d, name=names[d.name]) for d in stage.dims),
        write=access(stage.write),
        reads=tuple(map(access, stage.reads)),
        expr=expr(stage.expr),
    )


def _distinct(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, each under a name of its own; those of the softmax keep theirs."""
    softened = stages[-4:-1]
    used = {s.name for s in softened}
    return tuple(s if s in softened else replace(s, name=fresh(s.name, used)) for s in stages)
