"""Dimensions that all parts of a group share: a point of them is computed without the others.

Goes in: the parts of a group, in the order in which they run. Comes out: for every dimension of the
result that is shared, what it is called in each part, and which axis of each part's result it is.

    softmax over w:   n, h are shared: Peak[n, h] and Total[n, h] are used at the same n, h alone
    LRN over c:       one part, nothing to share
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.pointwise import axes_of
from tilewright.ops.compose import placed
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine


@dataclass(frozen=True, slots=True)
class Shared:
    """One shared dimension: its iterator in every part, and its axis in every part's result."""

    names: tuple[str, ...]
    axes: tuple[int, ...]


def shared_dims(parts: Sequence[Group]) -> tuple[Shared, ...]:
    """[parts] -> shared dimensions of more than one point, in the order of the last part."""
    last = parts[-1].main
    found = []
    for axis, expression in enumerate(last.write.index):
        if len(expression.terms) == 1 and expression.terms[0][1] == 1:
            name = expression.names[0]
            made = _followed(parts, name, axis) if last.sizes[name] > 1 else None
            found += [made] if made else []
    return tuple(found)


def _followed(parts: Sequence[Group], name: str, axis: int) -> Shared | None:
    """The dimension `name` of the last part, traced back through all results it is read from."""
    names, axes = {len(parts) - 1: name}, {len(parts) - 1: axis}
    size = parts[-1].main.sizes[name]
    for number in range(len(parts) - 2, -1, -1):
        part = parts[number]
        places = {
            _axis(access, names[reader])
            for reader in range(number + 1, len(parts))
            for access in _reads(parts[reader], part.output.name)
        }
        place = places.pop() if len(places) == 1 else None
        if place is None:
            return None
        own = part.main.write.index[place]
        if own.const or len(own.terms) != 1 or own.terms[0][1] != 1:
            return None
        if part.main.sizes[own.names[0]] != size:
            return None
        names[number], axes[number] = own.names[0], place
    order = range(len(parts))
    if any(names[n] in _indirect(parts[n]) for n in order):
        return None
    return Shared(tuple(names[n] for n in order), tuple(axes[n] for n in order))


def _reads(part: Group, tensor: str) -> list[Access]:
    """Accesses of a part to a tensor, over the iterators of its main stage."""
    found = [a for a in part.main.reads if a.tensor == tensor]
    for stage in part.epilogue:
        place = axes_of(stage, part.main.write.index)
        for access in stage.reads:
            if access.tensor == tensor:
                index = tuple(placed(e, place) for e in access.index)
                found.append(Access(tensor, index, access.tables, access.lookups))
    return found


def _axis(access: Access, name: str) -> int | None:
    """The axis that `name`, and nothing else, walks from its beginning; None if there is none."""
    at = [axis for axis, e in enumerate(access.index) if name in e.names]
    indirect = {axis for axis, _ in (*access.tables, *access.lookups)}
    if len(at) != 1 or at[0] in indirect or access.index[at[0]] != Affine(((name, 1),)):
        return None
    return at[0]


def _indirect(part: Group) -> set[str]:
    """Iterators of the main stage that tables, expressions or borders depend on."""
    stage = part.main
    used = set(stage.expr.iterators())
    for behind in part.epilogue:
        place = axes_of(behind, stage.write.index)
        used |= {n for d in behind.expr.iterators() for n in place[d].names}
    accesses = [*stage.reads]
    for behind in part.epilogue:
        accesses += [a for t in {a.tensor for a in behind.reads} for a in _reads(part, t)]
    for access in accesses:
        tables = {axis for axis, _ in access.tables}
        shape = part.tensor(access.tensor).shape
        for axis, e in enumerate(access.index):
            leaves = e.const < 0 or e.const + e.extent(stage.sizes) > shape[axis]
            if axis in tables or leaves:
                used |= set(e.names)
    return used
