"""Why a schedule is what it is: `tilewright explain` and `Plan.explain`.

Goes in: a plan. Comes out: text, or the values behind it for JSON: what each resource is busy with,
the loops in words, the runner-up and where it loses, lower bounds and what lies above them, and the
error that is expected of an algorithm such as Winograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tilewright.kernels.cpu.schema import SCHEMAS, CpuSchema
from tilewright.machine.machine import Machine, bytes_text
from tilewright.model.cpu.prediction import Prediction, bound_times
from tilewright.ops.tiles import algorithm_title
from tilewright.report.machine_page import aligned, boundary_names
from tilewright.report.tables import COUNTED, figures
from tilewright.report.words import loop_lines
from tilewright.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tilewright.targets.plan import Plan


@dataclass(frozen=True, slots=True)
class Use:
    """What one resource does during a call. `share` is of the predicted time.

    Shares add up to the whole; of traffic they count what nothing hides.
    """

    name: str
    bytes: float | None
    time_ms: float
    share: float
    note: str = ''


@dataclass(frozen=True, slots=True)
class Bound:
    """A time that nothing of what it holds for can beat."""

    name: str
    time_ms: float
    holds_for: str


@dataclass(frozen=True, slots=True)
class Error:
    """Largest error over largest output: what the model expects, and what was allowed."""

    predicted: float
    budget: float | None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The second candidate: how it differs from the best, and where it takes longer."""

    digest: str
    predicted_ms: float
    measured_ms: float | None
    differences: tuple[str, ...]
    losses: tuple[str, ...]


def uses(prediction: Prediction, machine: Machine) -> tuple[Use, ...]:
    """Compute, every boundary, and the work around the micro-kernel."""

    def use(name: str, count: float | None, seconds: float, note: str = '') -> Use:
        return Use(name, count, 1e3 * seconds, seconds / prediction.seconds, note)

    found = [use('compute', None, prediction.compute_s, 'micro-kernels, tails included')]
    for number, (name, boundary) in enumerate(
        zip(boundary_names(machine), prediction.boundaries, strict=True)
    ):
        note = 'part of compute' if number == 0 else 'time not hidden'
        found.append(use(name, boundary.bytes, boundary.seconds, note))
    for name, seconds in (
        (prediction.labels[0], prediction.pack_s),
        (prediction.labels[1], prediction.store_s),
        ('fork and join', prediction.fork_s),
    ):
        found.append(use(name, None, seconds))
    return tuple(found)


def limit_name(prediction: Prediction, machine: Machine) -> str:
    """The binding resource under the name that the tables use."""
    names = dict(zip(machine.boundaries, boundary_names(machine), strict=True))
    return names.get(prediction.limit, prediction.limit)


def best_schema(plan: Plan) -> CpuSchema:
    """The schema of the best candidate."""
    return SCHEMAS[plan.best.schedule.schema]


def _is_direct(plan: Plan) -> bool:
    return best_schema(plan).algorithm == 'direct'


def bounds(plan: Plan) -> tuple[Bound, ...]:
    """Arithmetic at peak and compulsory traffic over each boundary; largest first.

    They hold for every kernel of the algorithm that was chosen, which moves its constants as it
    reads them. What the caches inside a boundary may still hold from the call before is not
    compulsory (model/cpu/prediction.py).
    """
    machine, prediction = plan.machine, plan.best.prediction
    names = dict(zip(machine.boundaries, boundary_names(machine), strict=True))
    name = algorithm_title(best_schema(plan).algorithm)
    kernels = 'every kernel' if _is_direct(plan) else f'every {name} kernel with these tiles'
    found = []
    seen = machine.multiplying(plan.group.half)
    times = bound_times(prediction.flops_done, prediction.moved, seen, plan.threads)
    for resource, seconds in times.items():
        traffic = resource in names
        name = f'compulsory traffic {names[resource]}' if traffic else 'arithmetic at peak'
        direct = not traffic and _is_direct(plan)
        found.append(Bound(name, 1e3 * seconds, 'every direct kernel' if direct else kernels))
    return tuple(sorted(found, key=lambda b: -b.time_ms))


def other_bounds(plan: Plan) -> tuple[Bound, ...]:
    """Bounds on something else, which the chosen kernel may be below.

    The solver's dual is about all data that loops move with nothing left in the caches by the call
    before; kernels of another algorithm are below what every direct one takes.
    """
    if not _is_direct(plan):
        return (Bound('all products or their traffic', plan.bound_ms, 'every direct kernel'),)
    if plan.solver_bound_s <= 0:
        return ()
    tiles = 'all data moved, any tile sizes with the register tiles and loop orders solved for'
    return (Bound("solver's dual", 1e3 * plan.solver_bound_s, tiles),)


def breakdown(plan: Plan) -> tuple[tuple[str, float], ...]:
    """(part, milliseconds) that add up to the best candidate's predicted time."""
    return _parts(plan.best.prediction, plan)


def _parts(p: Prediction, plan: Plan) -> tuple[tuple[str, float], ...]:
    peak_s = p.flops_done / (1e9 * plan.machine.peak_gflops(plan.threads))
    around_s = p.pack_s + p.store_s + p.fork_s
    return tuple(
        (name, 1e3 * seconds)
        for name, seconds in (
            ('arithmetic at peak', peak_s),
            ('calls, tails and imbalance of the micro-kernels', p.compute_s - peak_s),
            ('traffic that compute does not hide', p.seconds - p.compute_s - around_s),
            (p.labels[0], p.pack_s),
            (p.labels[1], p.store_s),
            ('fork and join', p.fork_s),
        )
    )


def expected_error(plan: Plan) -> Error | None:
    """What an algorithm costs in accuracy; None for the direct one, which sets the standard."""
    error = best_schema(plan).error
    if error is None:
        return None
    return Error(error(plan.group, plan.best.schedule), plan.max_rel_err)


def runner_up(plan: Plan) -> RunnerUp | None:
    """The second candidate against the first; None when there is only one."""
    if len(plan.candidates) < 2:
        return None
    best, other = plan.candidates[:2]
    return RunnerUp(
        other.schedule.digest,
        1e3 * other.prediction.seconds,
        other.time_ms,
        tuple(_differences(best.schedule, other.schedule)),
        tuple(_losses(best.prediction, other.prediction, plan)),
    )


def _differences(best: Schedule, other: Schedule) -> list[str]:
    """What the other schedule decides differently, in words."""
    found = []
    if best.schema != other.schema:
        found.append(f'{other.schema} schema instead of {best.schema}')
    if best.options != other.options:
        found.append(f'options {dict(other.options)} instead of {dict(best.options)}')
    for mine, its in zip(best.levels, other.levels, strict=False):
        if best.schema != other.schema:
            break
        changed = [
            f'{d}={its.tile.get(d)} instead of {size}'
            for d, size in mine.tile.items()
            if its.tile.get(d) != size
        ]
        if changed:
            found.append(f'{mine.name} tile {", ".join(changed)}')
        if mine.order != its.order:
            found.append(
                f'{mine.name} order {" ".join(its.order)} instead of {" ".join(mine.order)}'
            )
    if best.parallel != other.parallel:
        found.append(f'threads cut {_cut(other)} instead of {_cut(best)}')
    if best.pack != other.pack:
        found.append(f'input copied at {other.pack or "no level"} instead of {best.pack or "none"}')
    return found


def _cut(schedule: Schedule) -> str:
    return ' '.join(f'{d}/{ways}' for d, ways in schedule.parallel) or 'nothing'


def _losses(best: Prediction, other: Prediction, plan: Plan) -> list[str]:
    """Resources on which the other is predicted to be busier, largest first.

    Two algorithms are compared by the parts that add up, since only these mean the same in both.
    """
    rows = []
    if best.labels != other.labels:
        spent = dict(_parts(best, plan))
        for name, its_ms in _parts(other, plan):
            extra = its_ms - spent.get(name, 0.0)
            if extra > 1e-6:
                rows.append((extra, f'{name} +{_ms(extra)}'))
        return [text for _, text in sorted(rows, reverse=True)]
    machine = plan.machine
    for mine, its in zip(uses(best, machine), uses(other, machine), strict=True):
        extra = its.time_ms - mine.time_ms
        if extra > 1e-6 and mine.note != 'part of compute':
            text = f'{mine.name} +{_ms(extra)}'
            if mine.bytes is not None and its.bytes is not None and its.bytes > mine.bytes:
                text += f' ({bytes_text(mine.bytes)} -> {bytes_text(its.bytes)})'
            rows.append((extra, text))
    return [text for _, text in sorted(rows, reverse=True)]


def explanation(plan: Plan) -> dict:
    """Everything that `explain_plan` says, for JSON."""
    second, error = runner_up(plan), expected_error(plan)
    return {
        'loops': loop_lines(plan.group, plan.best.schedule),
        'uses': [asdict(use) for use in uses(plan.best.prediction, plan.machine)],
        'limit': limit_name(plan.best.prediction, plan.machine),
        'runner_up': asdict(second) if second else None,
        'bounds': [asdict(bound) for bound in bounds(plan)],
        'other_bounds': [asdict(bound) for bound in other_bounds(plan)],
        'breakdown_ms': dict(breakdown(plan)),
        'error': asdict(error) if error else None,
    }


def explain_plan(plan: Plan) -> str:
    """[Plan] -> [text]"""
    machine, best = plan.machine, plan.best
    how = 'measured figures' if machine.measured else 'nominal figures'
    lines = [
        plan.group.label,
        f'on {machine.name} ({machine.isa}, {how}), threads: {plan.threads}',
        *(f'warning: {warning}' for warning in plan.warnings),
        '',
        f'Schedule {best.schedule.digest} ({best.schedule.schema} schema)',
        *('  ' + line for line in loop_lines(plan.group, best.schedule)),
        *_error_lines(plan),
        '',
        *_use_lines(plan),
        '',
        *runner_up_lines(plan),
        '',
        *_bound_lines(plan),
    ]
    return '\n'.join(lines)


def _error_lines(plan: Plan) -> list[str]:
    error = expected_error(plan)
    if error is None:
        return []
    budget = '' if error.budget is None else f'; the budget is {error.budget:.1e}'
    return [f'  Expected error: {error.predicted:.1e} of the largest output{budget}.']


def _use_lines(plan: Plan) -> list[str]:
    prediction = plan.best.prediction
    shown = figures(plan)
    head = f'Predicted time {_ms(shown.predicted_ms)}'
    if shown.measured_ms is not None:
        head += f', measured {_ms(shown.measured_ms)}'
    head += (
        f': {shown.gflops:.1f} GFLOP/s, {shown.percent_of_peak:.1f}% of the peak of '
        f'{shown.peak_gflops:.1f}'
    )
    rows, notes = [['resource', 'bytes', 'time', 'share']], ['']
    for use in uses(prediction, plan.machine):
        size = '' if use.bytes is None else bytes_text(use.bytes)
        rows.append([use.name, size, _ms(use.time_ms), f'{use.share:.1%}'])
        notes.append(use.note)
    limit = limit_name(prediction, plan.machine)
    if prediction.bound_by:
        limit += ', its compulsory traffic'
    how = 'Times add up; of traffic only what compute does not hide is counted.'
    return [
        head,
        *([f'  {COUNTED}.'] if not _is_direct(plan) else []),
        *_noted(rows, notes),
        f'  Binding limit: {limit}. {how}',
    ]


def runner_up_lines(plan: Plan) -> list[str]:
    second = runner_up(plan)
    if second is None:
        return ['Runner-up: none, there is one candidate']
    best = plan.best
    slower = second.predicted_ms / (1e3 * best.prediction.seconds) - 1
    head = f'Runner-up {second.digest}: predicted {_ms(second.predicted_ms)} ({slower:+.1%})'
    if second.measured_ms is not None and best.time_ms is not None:
        more = second.measured_ms / best.time_ms - 1
        head += f', measured {_ms(second.measured_ms)} ({more:+.1%})'
    lines = [head, f'  It has {"; ".join(second.differences) or "the same decisions"}.']
    if slower < 0:
        lines.append('  The model preferred it; the measurement did not.')
    elif second.losses:
        lines.append(f'  It loses on {"; ".join(second.losses[:3])}.')
    else:
        lines.append('  The model sees no difference between the two.')
    return lines


def _bound_lines(plan: Plan) -> list[str]:
    shown, others = figures(plan), other_bounds(plan)
    above = shown.time_ms / shown.algorithm_bound_ms - 1
    # Only a measured time can be below: the figures of the machine are then too low.
    where = f'{above:.1%} above' if above > -5e-4 else f'{-above:.1%} below'
    lines = ['Lower bounds on the time', *_held(bounds(plan))]
    lines.append(
        f'  The {"measured" if shown.measured_ms is not None else "predicted"} time is '
        f'{where} the bound of {_ms(shown.algorithm_bound_ms)}.'
    )
    parts = ', '.join(f'{_ms(ms)} {name}' for name, ms in breakdown(plan) if ms >= 5e-4)
    lines.append(f'  The predicted time is made of {parts}.')
    if others:
        return [*lines, 'Bounds on something else', *_held(others)]
    return [*lines, "  The solver's dual does not apply: no tile problem was solved."]


def _held(found: Sequence[Bound]) -> list[str]:
    rows = [[b.name, _ms(b.time_ms)] for b in found]
    return _noted(rows, [f'for {b.holds_for}' for b in found])


def _noted(rows: list[list[str]], notes: list[str]) -> list[str]:
    """Aligned rows, each with a note behind it."""
    lines = aligned(rows)
    width = max(map(len, lines))
    return [f'{line.ljust(width)}  {n}'.rstrip() for line, n in zip(lines, notes, strict=True)]


def _ms(milliseconds: float) -> str:
    return f'{milliseconds:.3f} ms'
