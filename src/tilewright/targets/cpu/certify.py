"""Schedules for the sizes between, and how far each size may be from a plan of its own.

Goes in: a family of programs, the schedules that were searched at its largest point. Comes out: a
few further anchors, and a certificate: the largest predicted loss

    loss(s) = sum of P(g, s) / sum of N(g, s) - 1        over the tasks' groups g

at the points that were looked at. P is the prediction for the schedule that the point s has, N that
for the best schedule found at s by a search of its own: register tiles and cuts between threads as
for any network, cache tiles by descent from those of the anchors instead of from the solver.

Which points are looked at: always that with the largest ratio of P to a bound of what it could be,

    max( T * work(g, s) / work(g, b),  roofline(g, s) )        T: the best prediction, at point b

until a search there gains less than `GAIN`; its schedules are an anchor from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.graph.family import ProgramFamily, task_forms
from tilewright.graph.ranges import Point, spread
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import lower_bound
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.schedule.choice import Choice
from tilewright.search.cpu.rank import Candidate, rank_schema
from tilewright.search.cpu.rank_outer import rank_near
from tilewright.store.ranges_file import Anchor, Certificate, PlannedFamily
from tilewright.targets.cpu.choose import is_legal
from tilewright.targets.cpu.ranged import best_choice, for_sizes

COMPARED = 9  # points of a box at which schedules are compared with the bound
MOST_ANCHORS = 3  # of a family, the largest point included
GAIN = 0.03  # a smaller predicted gain is not worth kernels of its own


def with_anchors(
    family: PlannedFamily, machine: Machine, threads: int, max_rel_err: float
) -> PlannedFamily:
    """Anchors added where the model finds schedules wanting, and the certificate."""
    one, losses, looked = family, [(0.0, family.anchors[0].point)], {family.anchors[0].point}
    points = spread(one.family.box, COMPARED)
    while len(looked) <= MOST_ANCHORS:
        left = [point for point in points if point not in looked]
        if not left:
            break
        point = max(left, key=lambda p: _ratio(one, p, machine, threads))
        looked.add(point)
        found = _searched(one, point, machine, threads, max_rel_err)
        before = _seconds(one, point, _choices(one, point, machine))
        loss = before / _seconds(one, point, found.choices) - 1
        if loss > GAIN and len(one.anchors) < MOST_ANCHORS:
            one = replace(one, anchors=(*one.anchors, found))
        else:
            losses.append((max(loss, 0.0), point))
            if loss <= GAIN:
                break
    loss, at = max(losses)
    return replace(one, certificate=Certificate(loss, at, len(looked)))


def anchor_like(
    one: PlannedFamily, family: ProgramFamily, machine: Machine, threads: int, max_rel_err: float
) -> Anchor | None:
    """Schedules for the largest point of a family, from those of another with the same tasks but
    for their sizes; None where they do not fit.
    """
    if task_forms(one.family.at(one.family.largest)) != task_forms(family.at(family.largest)):
        return None
    pairs = zip(family.body['tasks'], one.family.body['tasks'], strict=True)
    same = {ours['group']: theirs['group'] for ours, theirs in pairs}
    anchors = tuple(
        replace(anchor, choices=tuple(anchor.choices[same[n]] for n in range(len(same))))
        for anchor in one.anchors
    )
    try:
        near = PlannedFamily(family, anchors)
        return _searched(near, family.largest, machine, threads, max_rel_err)
    except ScheduleError:
        return None


def widest(certificates: Iterable[Certificate]) -> Certificate:
    """One certificate for all families."""
    known = list(certificates)
    worst = max(known, key=lambda certificate: certificate.loss)
    return replace(worst, points=sum(certificate.points for certificate in known))


def _choices(one: PlannedFamily, point: Point, machine: Machine) -> list[Choice]:
    groups = one.groups(one.family.at(point))
    return [best_choice(one, number, groups[number], machine) for number in range(len(groups))]


def _seconds(one: PlannedFamily, point: Point, choices: Sequence[Choice]) -> float:
    """Of all tasks, one after the other."""
    counts = Counter(entry['group'] for entry in one.family.body['tasks'])
    return sum(count * choices[number].predicted_s for number, count in counts.items())


def _ratio(one: PlannedFamily, point: Point, machine: Machine, threads: int) -> float:
    """Predicted seconds over a bound of them."""
    groups, choices = one.groups(one.family.at(point)), _choices(one, point, machine)
    anchor = one.anchors[0]
    there = one.groups(one.family.at(anchor.point))
    counts = Counter(entry['group'] for entry in one.family.body['tasks'])
    least = sum(
        count
        * max(
            anchor.choices[n].predicted_s * _work(groups[n]) / _work(there[n]),
            lower_bound(core(groups[n]), machine, threads),
        )
        for n, count in counts.items()
    )
    return _seconds(one, point, choices) / least if least else 1.0


def _work(group: Group) -> float:
    return float(group.flops or group.compulsory_bytes)


def _searched(
    one: PlannedFamily, point: Point, machine: Machine, threads: int, max_rel_err: float
) -> Anchor:
    """The best schedules that are found at a point from those of the anchors."""
    groups = one.groups(one.family.at(point))
    found = []
    for number, choice in enumerate(_choices(one, point, machine)):
        group, like = groups[number], one.anchors[0].choices[number]
        ranked = _ranked(core(group), machine, threads, max_rel_err, like)
        better = next((c for c in ranked if is_legal(group, c.schedule)), None)
        if better is not None and better.prediction.seconds < choice.predicted_s:
            said = better.prediction
            choice = Choice(better.schedule, said.seconds, choice.bound_s, said.limit)
        found.append(choice)
    return anchor_of(one.family, point, found)


def anchor_of(family: ProgramFamily, point: Point, choices: Sequence[Choice]) -> Anchor:
    """Choices at a point, made ready for the other sizes of their family."""
    if family.largest == tuple(sizes[0] for sizes in family.box):
        return Anchor(point, tuple(choices))
    ends = [
        PlannedFamily(family, ()).groups(family.at(corner))
        for corner in (tuple(sizes[0] for sizes in family.box), family.largest)
    ]
    return Anchor(point, tuple(for_sizes(c, ends[0][n], ends[1][n]) for n, c in enumerate(choices)))


def _ranked(
    group: Group, machine: Machine, threads: int, max_rel_err: float, like: Choice
) -> Sequence[Candidate]:
    """Candidates of the schema that was chosen, where finding them is a matter of pricing."""
    schema = SCHEMAS[like.schedule.schema]
    try:
        if schema.name == 'outer':
            return rank_near(group, machine, threads, like.schedule)
        if not schema.rank:
            return rank_schema(schema, group, machine, threads, 2, max_rel_err)
    except ScheduleError:
        return ()
    return ()
