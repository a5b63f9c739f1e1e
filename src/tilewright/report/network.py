"""Why a network takes as long as it does: `tilewright explain model.onnx`.

Goes in: the plan of each distinct group, with the tasks that it computes and, where the network was
profiled, their times. Comes out: text, or the values behind it for JSON: for each group its time,
its bound, which algorithm it has and why, what its time is made of and what is left; and the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.machine import Machine
from tilewright.ops.winograd import applies
from tilewright.report.explain import best_schema, breakdown, limit_name
from tilewright.report.machine_page import aligned
from tilewright.schedule.schedule import Schedule
from tilewright.search.fusion import Tried

if TYPE_CHECKING:
    from tilewright.targets.plan import Candidate, Plan

_WIDEST = 32
_SHOWN_PARTS, _LEAST_MS = 4, 5e-4


@dataclass(frozen=True)
class Kind:
    """One distinct group of a network.

    plan   its candidates: the one that is used first, then others that were kept
    label  the whole group, of which the plan may be the part that decides
    tasks  the tasks that compute it
    measured_ms  the sum of their times in a profile; None: not measured
    """

    plan: Plan
    label: str
    tasks: tuple[str, ...]
    measured_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is said of one group. Times are those of all of its tasks together.

    share   of the network's time, measured where all of it was
    why     sentences: why this algorithm, and why this schedule of it
    parts   (what, milliseconds) that add up to the predicted time
    apart_ms  what its operators would take in kernels of their own, where that was looked at
    left_ms what lies above the bound: all that a better kernel of this algorithm can gain
    """

    label: str
    tasks: tuple[str, ...]
    algorithm: str
    schedule: str
    predicted_ms: float
    measured_ms: float | None
    bound_ms: float
    share: float
    limit: str
    why: tuple[str, ...]
    parts: tuple[tuple[str, float], ...]
    apart_ms: float | None = None

    @property
    def time_ms(self) -> float:
        return self.predicted_ms if self.measured_ms is None else self.measured_ms

    @property
    def of_bound(self) -> float:
        """1 means that no kernel of this algorithm can be faster."""
        return self.bound_ms / max(self.time_ms, 1e-12)

    @property
    def left_ms(self) -> float:
        return max(0.0, self.time_ms - self.bound_ms)

    def to_json(self) -> dict:
        return asdict(self) | {
            'tasks': list(self.tasks),
            'why': list(self.why),
            'parts': dict(self.parts),
            'time_ms': self.time_ms,
            'of_bound': self.of_bound,
            'left_ms': self.left_ms,
        }


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """All groups of a network, the one that takes most time first.

    total_ms  a whole call in the profile; None: not measured
    tried     groups of several tasks that reduce, and why they were kept or refused
    """

    name: str
    machine: Machine
    threads: int
    entries: tuple[Entry, ...]
    total_ms: float | None
    tried: tuple[Tried, ...] = ()

    @property
    def predicted_ms(self) -> float:
        return sum(entry.predicted_ms for entry in self.entries)

    @property
    def bound_ms(self) -> float:
        return sum(entry.bound_ms for entry in self.entries)

    @property
    def time_ms(self) -> float:
        return self.predicted_ms if self.total_ms is None else self.total_ms

    def to_json(self) -> dict:
        return {
            'name': self.name,
            'threads': self.threads,
            'predicted_ms': self.predicted_ms,
            'measured_ms': self.total_ms,
            'bound_ms': self.bound_ms,
            'groups': [entry.to_json() for entry in self.entries],
            'tried': [one.to_json() for one in self.tried],
        }

    def __str__(self) -> str:
        lines = [*_head(self), '', *_table(self), '', *_details(self), *tried_lines(self.tried)]
        return '\n'.join(lines).rstrip()


def network_report(
    name: str,
    machine: Machine,
    threads: int,
    kinds: Sequence[Kind],
    total_ms: float | None = None,
    tried: Sequence[Tried] = (),
) -> NetworkReport:
    """[Kind] -> [NetworkReport]"""
    whole = sum(_time(kind) for kind in kinds)
    kept = {one.digest: one for one in tried if one.kept}
    entries = [_entry(kind, whole, kept.get(kind.plan.group.digest)) for kind in kinds]
    entries.sort(key=lambda entry: -entry.time_ms)
    return NetworkReport(name, machine, threads, tuple(entries), total_ms, tuple(tried))


def _time(kind: Kind) -> float:
    predicted = len(kind.tasks) * 1e3 * kind.plan.best.prediction.seconds
    return predicted if kind.measured_ms is None else kind.measured_ms


def _entry(kind: Kind, whole_ms: float, kept: Tried | None) -> Entry:
    plan, count = kind.plan, len(kind.tasks)
    why, apart_ms = reasons(plan), None
    if kept is not None and kept.apart_s is not None:
        apart_ms = count * 1e3 * kept.apart_s
        why.append(
            f'Its {len(kept.tasks)} parts would take {_ms(apart_ms)} ms in their own kernels.'
        )
    parts = [(name, count * ms) for name, ms in predicted_parts(plan) if ms]
    return Entry(
        kind.label, kind.tasks, algorithm_name(plan, plan.best.schedule),
        plan.best.schedule.digest, count * 1e3 * plan.best.prediction.seconds, kind.measured_ms,
        count * plan.algorithm_bound_ms, _time(kind) / max(whole_ms, 1e-12),
        limit_name(plan.best.prediction, plan.machine), tuple(why),
        tuple(sorted(parts, key=lambda part: -part[1])), apart_ms,
    )  # fmt: skip


def predicted_parts(plan: Plan) -> tuple[tuple[str, float], ...]:
    """(part, milliseconds) that add up; plain loops have no micro-kernels."""
    if best_schema(plan).registers:
        return breakdown(plan)
    said = plan.best.prediction
    hidden = said.seconds - said.compute_s - said.fork_s
    return (
        ('loads, stores and arithmetic of the loops', 1e3 * said.compute_s),
        ('traffic that they do not hide', 1e3 * hidden),
        ('fork and join', 1e3 * said.fork_s),
    )


def algorithm_name(plan: Plan, schedule: Schedule) -> str:
    """How a schedule computes its group, in words."""
    return SCHEMAS[schedule.schema].title(plan.group, schedule)


def reasons(plan: Plan) -> list[str]:
    """Why the best candidate has its algorithm, and what the others would cost, in sentences."""
    best = plan.best
    schema = best_schema(plan)
    if schema.last_resort:
        return [schema.reason]
    said = [schema.reason] if schema.reason else []
    if schema.algorithm != 'direct':
        saved = plan.group.flops / max(best.prediction.flops_done, 1.0)
        said.append(f'It multiplies {saved:.2f} times less than the definition.')
    elif reason := _no_winograd(plan):
        said.append(f'Winograd does not apply: {reason}.')
    for other in _rivals(plan):
        more = other.prediction.seconds / best.prediction.seconds - 1
        name = algorithm_name(plan, other.schedule)
        said.append(
            f'The best with {name} is predicted to take {1e3 * other.prediction.seconds:.3f} ms, '
            f'{abs(more):.0%} {"more" if more >= 0 else "less"}'
            + ('.' if more >= 0 else '; its weights are larger, or it was slower when measured.')
        )
    return said


def _rivals(plan: Plan) -> list[Candidate]:
    """The best candidate of every other kind of algorithm."""
    seen, found = {plan.best.schedule.schema}, []
    for candidate in plan.candidates[1:]:
        if candidate.schedule.schema not in seen:
            seen.add(candidate.schedule.schema)
            found.append(candidate)
    return found


def _no_winograd(plan: Plan) -> str:
    """Why no tile of outputs of a convolution can be computed so; '' where one can."""
    if 'r' not in plan.group.main.sizes:
        return ''
    return applies(plan.group, 4).replace(f'{plan.group.label} ', 'it ')


def _head(report: NetworkReport) -> list[str]:
    count = sum(len(entry.tasks) for entry in report.entries)
    figures = 'measured figures' if report.machine.measured else 'nominal figures'
    took = '' if report.total_ms is None else f', measured {report.total_ms:.3f} ms'
    left = max(0.0, 1 - report.bound_ms / max(report.time_ms, 1e-12))
    return [
        f'{report.name} on {report.machine.name} ({report.machine.isa}, {figures}), threads: '
        f'{report.threads}',
        f'{count} tasks of {len(report.entries)} kinds: predicted {report.predicted_ms:.3f} ms'
        f'{took}; their bounds add up to {report.bound_ms:.3f} ms, so that at most {left:.0%} of '
        f'the time is left to gain with these algorithms.',
    ]


def _table(report: NetworkReport) -> list[str]:
    measured = report.total_ms is not None
    took = ['measured'] if measured else []
    rows = [
        ['first task', 'tasks', 'predicted', *took, 'share', 'bound', 'of bound', 'left', 'how']
    ]
    for entry in report.entries:
        took = [] if not measured else [_ms(entry.measured_ms)]
        rows.append(
            [_named(entry.tasks, 1), str(len(entry.tasks)), _ms(entry.predicted_ms), *took,
             f'{entry.share:.1%}', _ms(entry.bound_ms), f'{entry.of_bound:.0%}',
             _ms(entry.left_ms), entry.algorithm]
        )  # fmt: skip
    took = [] if not measured else [_ms(report.total_ms)]
    rows.append(
        ['all', str(sum(len(e.tasks) for e in report.entries)), _ms(report.predicted_ms), *took,
         '100.0%', _ms(report.bound_ms), f'{report.bound_ms / max(report.time_ms, 1e-12):.0%}',
         _ms(max(0.0, report.time_ms - report.bound_ms)), '']
    )  # fmt: skip
    return ['Times in ms, those of all tasks of a kind together', *aligned(rows)]


def _details(report: NetworkReport) -> list[str]:
    lines = []
    for entry in report.entries:
        shown = [(name, ms) for name, ms in entry.parts[:_SHOWN_PARTS] if ms >= _LEAST_MS]
        parts = ', '.join(f'{_ms(ms)} {name}' for name, ms in shown)
        lines += [
            f'{_named(entry.tasks, 3)}: {entry.label}',
            f'  {entry.algorithm}, limited by {entry.limit}. {" ".join(entry.why)}'.rstrip(),
            f'  Predicted: {parts}.' if parts else '',
            f'  Left above the bound: {_ms(entry.left_ms)} ms, '
            f'{entry.left_ms / max(report.time_ms, 1e-12):.1%} of the network.',
            '',
        ]
    return [line for number, line in enumerate(lines) if line or number % 5 == 4]


def tried_lines(tried: Sequence[Tried]) -> list[str]:
    """What was tried to join, in words; equal groups with one verdict once, the kept ones first."""
    if not tried:
        return []
    alike: dict[tuple, list[Tried]] = {}
    for one in tried:
        alike.setdefault((not one.kept, one.digest, one.why), []).append(one)
    kept = sum(one.kept for one in tried)
    lines = [f'Chains of tasks: {len(tried)} tried, {kept} kept.']
    for (refused, *_), same in sorted(alike.items(), key=lambda item: item[0][0]):
        one, more = same[0], f' and {len(same) - 1} more like it' if len(same) > 1 else ''
        times = [
            f'{_ms(1e3 * seconds)} ms {how}'
            for seconds, how in ((one.fused_s, 'joined'), (one.apart_s, 'apart'))
            if seconds is not None
        ]
        how = ' measured' if one.measured else ''
        figures = f' ({", ".join(times)}{how})' if times else ''
        lines += [
            f'{" >> ".join(name[:_WIDEST] for name in one.tasks)}{more}: {one.label}',
            f'  {"refused" if refused else "kept"}{figures}: {one.why}.',
        ]
    return lines


def _named(tasks: Sequence[str], most: int) -> str:
    shown = [name[:_WIDEST] for name in tasks[:most]]
    more = f' and {len(tasks) - most} more' if len(tasks) > most and most > 1 else ''
    return ', '.join(shown) + more


def _ms(milliseconds: float | None) -> str:
    return '-' if milliseconds is None else f'{milliseconds:.3f}'
