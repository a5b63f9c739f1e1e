"""Schedules for the sizes between, and how far each size may be from a plan of its own.

Goes in: a family of programs, the schedules that were searched at its largest point. Comes out: a
few further anchors, and a certificate: the largest predicted loss

    loss(s) = sum of P(g, s) / sum of N(g, s) - 1        over the tasks' groups g

at the points that were looked at, and beside it a share for what the model does not see. P is the
prediction for the schedule that the point s has, N that for the best schedule found at s by a
search of its own: register tiles and cuts between threads as for any network, cache tiles by
descent from those of the anchors instead of from the solver.

Which points are looked at: where several sizes vary the smallest, which most tiles do not suit, and
then always that with the largest ratio of P to an estimate of what it could be,

    max( T * work(g, s) / work(g, b),  roofline(g, s) )        T: the best prediction, at point b

until a search there gains less than `GAIN`; its schedules are an anchor from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.graph.family import ProgramFamily, task_forms
from tilewright.graph.ranges import Point, count, spread
from tilewright.kernels.cpu.schema import SCHEMAS, is_extended
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import lower_bound
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.runtime.pool import each
from tilewright.schedule.choice import Choice
from tilewright.search.cpu.rank import Candidate, rank_schema
from tilewright.search.cpu.rank_outer import rank_near
from tilewright.store.ranges_file import Anchor, Certificate, PlannedFamily
from tilewright.targets.cpu.choose import choose_all, is_legal
from tilewright.targets.cpu.ranged import best_choice, best_moved, for_sizes, of_every_size

COMPARED = 9  # points of a box at which schedules are compared with the bound
MOST_ANCHORS = 3  # of a family, the largest point included
GAIN = 0.03  # a smaller predicted gain is not worth kernels of its own
MANY = 24  # groups that are searched in processes beside this one, whose start takes a second
WORTH = 0.01  # the same for the kernel of one group, as a share of the network's time
# What the model does not see: loops whose bounds are no constants, and tiles of equal price. The
# largest share by which a size was measured to be slower than predicted; docs/ranges.md has it.
UNSEEN = 0.10


def with_anchors(
    family: PlannedFamily, machine: Machine, threads: int, max_rel_err: float
) -> PlannedFamily:
    """Anchors added where the model finds schedules wanting, and the certificate."""
    one, losses, looked = family, [(0.0, family.anchors[0].point)], {family.anchors[0].point}
    points = spread(one.family.box, COMPARED)
    several = sum(len(sizes) > 1 for sizes in one.family.box) > 1
    least = tuple(sizes[0] for sizes in one.family.box) if several else ()
    while len(looked) <= MOST_ANCHORS:
        left = [point for point in points if point not in looked]
        if not left:
            break
        point = max(left, key=lambda p: (p == least, _ratio(one, p, machine, threads)))
        looked.add(point)
        found = _searched(one, point, machine, threads, max_rel_err)
        if found.loss > GAIN and len({a.point for a in one.anchors}) < MOST_ANCHORS:
            one = replace(one, anchors=(*one.anchors, found.anchor))
            losses.append((found.left, point))
        else:
            losses.append((found.loss, point))
            if found.loss <= GAIN and point != least:
                break
    loss, at = max(losses)
    unseen = UNSEEN if count(one.family.box) > 1 else 0.0
    return replace(one, certificate=Certificate(loss, at, len(looked), unseen))


def anchor_like(
    one: PlannedFamily, family: ProgramFamily, machine: Machine, threads: int, max_rel_err: float,
    algorithm: str,
) -> tuple[Anchor, ...]:  # fmt: skip
    """Schedules for the largest point of a family, from those of another with the same tasks but
    for their sizes; groups that none of them fits are searched. None where tasks differ.
    """
    if task_forms(one.family.at(one.family.largest)) != task_forms(family.at(family.largest)):
        return ()
    pairs = zip(family.body['tasks'], one.family.body['tasks'], strict=True)
    same = {ours['group']: theirs['group'] for ours, theirs in pairs}
    anchors = tuple(
        replace(anchor, choices=tuple(anchor.choices[same[n]] for n in range(len(same))))
        for anchor in one.anchors
    )
    groups = family.groups_at(family.largest)
    odd = {
        n: g
        for n, g in enumerate(groups)
        if not _fits(PlannedFamily(family, anchors), n, g, machine)
    }
    found = choose_all(list(odd.values()), machine, threads, 1, max_rel_err, algorithm=algorithm)
    own = dict(zip(odd, (best for best, *_ in found), strict=True))
    anchors = tuple(
        replace(anchor, choices=tuple(own.get(n, c) for n, c in enumerate(anchor.choices)))
        for anchor in anchors
    )
    near = PlannedFamily(family, tuple(a for a in anchors if not is_selective(a)))
    found = _searched(near, family.largest, machine, threads, max_rel_err).anchor
    return (found, *(a for a in anchors if is_selective(a)))


def is_selective(anchor: Anchor) -> bool:
    """Whether some of its schedules are for large sizes alone."""
    return any(SCHEMAS[choice.schedule.schema].selective for choice in anchor.choices)


def _fits(one: PlannedFamily, number: int, group: Group, machine: Machine) -> bool:
    """Whether some schedule of the anchors computes a group."""
    try:
        best_choice(one, number, group, machine)
    except ScheduleError:
        return False
    return True


def widest(certificates: Iterable[Certificate]) -> Certificate:
    """One certificate for all families."""
    known = list(certificates)
    worst = max(known, key=lambda certificate: certificate.loss)
    return replace(worst, points=sum(certificate.points for certificate in known))


def _counts(one: PlannedFamily) -> Counter[int]:
    """How many tasks have each group."""
    return Counter(entry['group'] for entry in one.family.body['tasks'])


def _ratio(one: PlannedFamily, point: Point, machine: Machine, threads: int) -> float:
    """Predicted seconds over a bound of them."""
    groups = one.family.groups_at(point)
    anchor = one.anchors[0]
    there = one.family.groups_at(anchor.point)
    counts = _counts(one)
    took = sum(
        count * best_choice(one, n, groups[n], machine).predicted_s for n, count in counts.items()
    )
    least = sum(
        count
        * max(
            anchor.choices[n].predicted_s * _work(groups[n]) / _work(there[n]),
            lower_bound(core(groups[n]), machine, threads),
        )
        for n, count in counts.items()
    )
    return took / least if least else 1.0


def _work(group: Group) -> float:
    return float(group.flops or group.compulsory_bytes)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search at a point found.

    loss    how much longer the schedules take that the point had
    left    the same for those of the anchor, which takes over only what is worth a kernel
    """

    anchor: Anchor
    loss: float
    left: float


def _searched(
    one: PlannedFamily, point: Point, machine: Machine, threads: int, max_rel_err: float
) -> _Found:
    """The best schedules that are found at a point from those of the anchors."""
    groups, counts = one.family.groups_at(point), _counts(one)
    had = [best_moved(one, number, group, machine) for number, group in enumerate(groups)]
    whole = sum(counts[number] * choice.predicted_s for number, (choice, _) in enumerate(had))
    taken, best, left = [], 0.0, 0.0
    pieces = [
        (core(group), machine, threads, max_rel_err, like)
        for group, like in zip(groups, one.anchors[0].choices, strict=True)
    ]
    alone = len(pieces) < MANY or is_extended()
    found = each(_ranked, pieces, 1 if alone else None)
    for number, ((choice, origin), ranked) in enumerate(zip(had, found, strict=True)):
        group = groups[number]
        better = next((c for c in ranked if is_legal(group, c.schedule)), None)
        seconds = choice.predicted_s
        if better is not None:
            seconds = min(seconds, better.prediction.seconds)
        gained = counts[number] * (choice.predicted_s - seconds)
        best += counts[number] * seconds
        if better is not None and gained > WORTH * whole:
            taken.append(Choice(better.schedule, seconds, choice.bound_s, better.prediction.limit))
        else:
            taken.append(replace(choice, schedule=origin))
            left += gained
    anchor = anchor_of(one.family, point, taken, machine, max_rel_err)
    return _Found(anchor, whole / best - 1, left / best)


def anchor_of(
    family: ProgramFamily, point: Point, choices: Sequence[Choice], machine: Machine,
    max_rel_err: float,
) -> Anchor:  # fmt: skip
    """Choices at a point, made ready for the other sizes of their family."""
    if family.largest == tuple(sizes[0] for sizes in family.box):
        return Anchor(point, tuple(choices))
    served = of_every_size(choices, family.groups_at(point), machine, max_rel_err)
    ends = [
        family.groups_at(corner)
        for corner in (tuple(sizes[0] for sizes in family.box), family.largest)
    ]
    return Anchor(point, tuple(map(for_sizes, served, *ends)))


def _ranked(
    group: Group, machine: Machine, threads: int, max_rel_err: float, like: Choice
) -> Sequence[Candidate]:
    """Candidates of the schema that was chosen, where finding them takes no solver."""
    schema = SCHEMAS[like.schedule.schema]
    try:
        if schema.name == 'outer':
            return rank_near(group, machine, threads, like.schedule)
        if not schema.rank or schema.name == 'winograd':
            return rank_schema(schema, group, machine, threads, 2, max_rel_err)
    except ScheduleError:
        return ()
    return ()
