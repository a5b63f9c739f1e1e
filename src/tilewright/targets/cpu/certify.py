"""How far a size may be from the plan that would be made for it alone: a certificate, by the model.

Goes in: a family with its anchors. Comes out: the largest predicted loss over points of its box,

    loss(s) = sum of P(g, s) / sum of E(g, s) - 1        over the tasks' groups g

P is the prediction for the schedule that the point s has. E is the best that a search at s could
find. For what is no product it is searched, which takes microseconds. For a product it is at least

    max( T(a) for searched points a <= s,  T(b) * work(g, s) / work(g, b) for searched b >= s )

with T the best prediction at a searched point: a larger problem takes no less time, and a smaller
one no less time for each operation. The second is what the certificate assumes; it holds but for
problems that leave a cache between s and b.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.graph.ranges import Point, spread
from tilewright.machine.machine import Machine
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.store.ranges_file import PlannedFamily
from tilewright.targets.cpu.choose import Question, search
from tilewright.targets.cpu.ranged import Certificate, best_choice

CERTIFIED = 24  # points of a box that are looked at


def certify(one: PlannedFamily, machine: Machine, threads: int) -> Certificate:
    """The certificate of one family."""
    family = one.family
    works = [
        {number: _work(g) for number, g in one.groups(family.at(a.point)).items()}
        for a in one.anchors
    ]
    counts: dict[int, int] = {}
    for entry in family.body['tasks']:
        counts[entry['group']] = counts.get(entry['group'], 0) + 1
    found = []
    points = spread(family.box, CERTIFIED)
    for point in points:
        have = best = 0.0
        for number, group in one.groups(family.at(point)).items():
            predicted = best_choice(one, number, group, machine).predicted_s
            have += counts[number] * predicted
            if group.main.is_product_sum:
                least = max(
                    _least(anchor.point, point, anchor.choices[number].predicted_s,
                           _work(group) / work[number])
                    for anchor, work in zip(one.anchors, works, strict=True)
                )  # fmt: skip
            else:
                question = Question(core(group), machine, threads, 1, 1e-3)
                least = search(question)[0].predicted_s
            best += counts[number] * min(predicted, least)
        found.append((have / best - 1 if best else 0.0, point))
    loss, at = max(found)
    return Certificate(loss, at, len(points))


def _least(anchor: Point, point: Point, seconds: float, share: float) -> float:
    if all(a <= p for a, p in zip(anchor, point, strict=True)):
        return seconds
    if all(a >= p for a, p in zip(anchor, point, strict=True)):
        return seconds * share
    return 0.0


def _work(group: Group) -> float:
    return float(group.flops or group.compulsory_bytes)


def widest(certificates: Iterable[Certificate]) -> Certificate:
    """One certificate for all families."""
    known = list(certificates)
    worst = max(known, key=lambda certificate: certificate.loss)
    return Certificate(worst.loss, worst.at, sum(certificate.points for certificate in known))
