"""`tilewright optimize`: the best schedule of one layer or of every layer of a suite."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from tilewright import knobs
from tilewright.cli.output import Bar, Output
from tilewright.errors import InputError, MissingError
from tilewright.machine.detect import describe_host
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.ops.dtypes import PRECISIONS
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.pipeline import check_options, fleet_kinds, optimize, optimize_on_fleet
from tilewright.report.tables import OPTIMIZED, Columns, figures, optimized_row
from tilewright.store.records import Store, open_store
from tilewright.targets import target_of
from tilewright.targets.plan import Plan

INTERRUPTED = 130


def check_early(
    machine: str | None,
    threads: int | None,
    *,
    top: int = 1,
    algorithm: str = 'auto',
    max_rel_err: float = DEFAULT_LIMIT,
    seed: int | None = None,
) -> None:
    """Refuse bad options before the host is measured, which takes seconds."""
    wanted = threads if threads is not None else knobs.get('threads') or None
    check_options(top, wanted, algorithm, max_rel_err, seed)
    if machine is None and wanted is not None:
        facts = describe_host()
        # Measuring may find that SMT siblings are cores of their own (machine/measure.py).
        most = facts.cores if facts.quota is not None else len(facts.allowed)
        if wanted > most:
            raise InputError(
                f'threads is {wanted}; {facts.model} has {most} usable cores: ask for 1 to {most}'
            )


def check_model(name: str) -> None:
    """Refuse a learned model by name: none of them knows kernels of CPUs (docs/learned.md)."""
    if name not in ('analytical', 'auto'):
        raise InputError(
            f'--model {name} ranks GPU kernels; on CPUs choose analytical or auto, or name a GPU '
            f'by --machine'
        )


def machine_of(name: str | None, measure: bool, out: Output) -> Machine:
    """The machine to plan for; what there is to say about it goes to standard error."""
    machine, warning = load_machine(name, measure=measure)
    if warning:
        out.warn(warning)
    return machine


def run(
    spec: str,
    out: Output,
    *,
    top: int,
    measure: bool,
    machine: str | None,
    emit: Path | None,
    algorithm: str,
    max_rel_err: float,
    threads: int | None,
    seed: int | None,
    target: str = 'cpu',
    device: str = '',
    trials: int | None = None,
    model: str = 'auto',
    prune: str | None = None,
    precision: str = 'fp32',
    fleet: str | None = None,
) -> int:
    """Optimise every layer, print and record it; comes out: the exit code.

    On a fleet, for every kind of device that it has.
    """
    if fleet is not None and (machine is not None or not measure or device):
        raise InputError(
            f'--fleet {fleet} measures on the devices of its workers; leave out --machine, '
            f'--no-measure and --device'
        )
    place: Machine | GpuMachine | None
    if target == 'cpu':
        check_early(
            machine, threads, top=top, algorithm=algorithm, max_rel_err=max_rel_err, seed=seed
        )  # fmt: skip
        layers = expand(spec)
        place = None if fleet else machine_of(machine, measure, out)
        seed = secrets.randbits(32) if measure and seed is None else seed
    else:
        target_of(target)
        layers = expand(spec)
        place = None if machine is None else known_gpu(machine)
    shown = None if fleet else (place or _device(target, device))
    store = open_store() if measure else None
    found: list[dict] = []
    code = 0
    columns = Columns([name for name, _, _ in layers], OPTIMIZED)
    words = {
        'top': top, 'measure': measure, 'threads': threads, 'target': target, 'device': device,
        'trials': trials, 'model': model, 'prune': prune, 'algorithm': algorithm,
        'max_rel_err': max_rel_err, 'dtype': PRECISIONS[precision], 'seed': seed,
    }  # fmt: skip
    headed, ranked_by = None, ''
    total = len(layers)
    try:
        with Bar(total) as bar:
            if fleet is not None:
                groups = {name: group for name, group, _ in layers}
                kinds = fleet_kinds(fleet, target)
                total = bar.steps = len(layers) * len(kinds)
                source = optimize_on_fleet(
                    fleet, groups, kinds, store=store, progress=bar.report, **words
                )
            else:
                source = (
                    (name, optimize(group, place, store=store, progress=bar.report, **words))
                    for name, group, _ in layers
                    if not bar.begin(name)
                )
            counts = {name: count for name, _, count in layers}
            for name, plan in source:
                several = len(layers) > 1
                if several and plan.machine != headed:
                    headed = plan.machine
                    with bar.paused():
                        out.say(f'{_machine_text(headed)}; times in ms')
                        out.say(columns.head())
                folder = emit / plan.machine.name if emit and total > len(layers) else emit
                written = _emitted(plan, folder, name if several else '')
                built = _built(plan, sources_alone=bool(written))
                bar.finish()
                with bar.paused():
                    text = optimized_row(columns, name, plan)
                    out.say(text if several else layer_text(name, plan, built, written))
                    if plan.ranked_by and plan.ranked_by != ranked_by:
                        ranked_by = plan.ranked_by
                        out.say(f'candidates ordered by {ranked_by}')
                    for warning in plan.warnings:
                        out.warn(f'{name}: {warning}')
                one = layer_json(name, counts[name], plan)
                found.append(one | {'library': built, 'emitted': written})
                shown = shown or plan.machine
                code = max(code, not_working(plan))
    except KeyboardInterrupt:
        out.warn(interrupted(len(found), total, store))
        code = INTERRUPTED
    finally:
        if store is not None:
            store.close()
    out.write(
        {
            'spec': spec, 'measured': measure, 'seed': seed, 'target': target,
            'machine': shown and shown.to_json(), 'complete': len(found) == total, 'layers': found,
        }
    )  # fmt: skip
    return code


def _device(target: str, name: str) -> GpuMachine:
    from tilewright.runtime.gpu.session import open_device

    return open_device(target, name).machine


def _machine_text(machine: Machine | GpuMachine) -> str:
    return f'{machine.name}, {machine.isa}' if isinstance(machine, Machine) else machine.name


def _built(plan: Plan, sources_alone: bool) -> str | None:
    """Compile the best schedule of a CPU, so that it is ready; None for what this host cannot, and
    where sources are all that is asked for and there is no compiler.
    """
    if plan.target != 'cpu' or plan.machine.isa not in host_isas() or not_working(plan):
        return None
    try:
        return str(plan.library())
    except MissingError:
        if sources_alone:
            return None
        raise


def _emitted(plan: Plan, folder: Path | None, name: str) -> list[str]:
    if folder is None:
        return []
    where = folder / re.sub(r'[^\w.+#-]+', '-', name) if name else folder
    try:
        return [str(path) for path in plan.emit(where)]
    except OSError as error:
        raise InputError(f'--emit {where} cannot be written: {error.strerror}') from None


def not_working(plan: Plan) -> int:
    """1, a check failed, when candidates were measured and none of them worked."""
    return int(plan.best.measurement is not None and not plan.best.measurement.ok)


def no_candidate(name: str, plan: Plan) -> str:
    """The sentence for a layer of which `not_working` is true."""
    why = plan.best.measurement.message if plan.best.measurement else ''
    return f'no candidate for {name} worked, so there is nothing to compare: {why}'


def interrupted(done: int, of: int, store: Store | None) -> str:
    """The sentence after Ctrl-C."""
    sentence = f'interrupted after {done} of {of} layers'
    if store is None or store.path is None:
        return f'{sentence}; run the same command again'
    return (
        f'{sentence}; every measurement taken so far is in {store.path}, and running the same '
        f'command again goes on from there'
    )


def layer_json(name: str, count: int, plan: Plan) -> dict:
    """One layer for JSON: the plan complete, and the figures that the table shows."""
    return {
        'name': name,
        'count': count,
        'figures': figures(plan).to_json(),
        'plan': plan.to_json(),
    }


def layer_text(name: str, plan: Plan, built: str | None, written: Sequence[str]) -> str:
    """One layer for people, over several lines."""
    shown = figures(plan)
    lines = [
        f'{name} on {_place_text(plan)}',
        *_label(name, plan.group),
        f'schedule {plan.best.schedule.digest}:',
        *('  ' + line for line in plan.lines()),
        f'predicted {_ms(shown.predicted_ms)} ms, limited by {plan.best.prediction.limit}',
    ]
    if not_working(plan):
        message = plan.best.measurement.message if plan.best.measurement else ''
        return '\n'.join([*lines, f'no candidate worked; the first {shown.status}: {message}'])
    kind = 'predicted' if shown.measured_ms is None else 'measured'
    if shown.measured_ms is not None:
        lines.append(f'measured {_ms(shown.measured_ms)} ms, verified{_error(plan)}')
    lines.append(
        f'{shown.gflops:.1f} GFLOP/s, {shown.percent_of_peak:.1f}% of the peak of '
        f'{shown.peak_gflops:.1f}, {shown.percent_of_bound:.1f}% of the bound of '
        f'{_ms(shown.algorithm_bound_ms)} ms ({kind})'
    )
    if built is None and plan.target == 'cpu':
        runs = plan.machine.isa in host_isas()
        why = 'there is no C compiler' if runs else f'this host cannot run {plan.machine.isa}'
        lines.append(f'not compiled: {why}')
    lines += [f'next: {other}' for other in _others(plan)]
    lines += [f'wrote {path}' for path in written]
    return '\n'.join(lines)


def _place_text(plan: Plan) -> str:
    if plan.target == 'cpu':
        return f'{plan.machine.name} ({plan.machine.isa}), threads: {plan.threads}'
    return f'{plan.machine.name}, target {plan.target}'


def _ms(milliseconds: float) -> str:
    """Three digits behind the point; of what takes microseconds, three that say something."""
    return f'{milliseconds:.3f}' if milliseconds >= 0.1 else f'{milliseconds:.3g}'


def _others(plan: Plan) -> list[str]:
    """The other candidates of a GPU, a line each: their schedules are short."""
    if plan.target == 'cpu':
        return []
    return [
        f'{target_of(plan.target).summary(plan.group, c.schedule)}, predicted '
        f'{_ms(1e3 * c.prediction.seconds)} ms'
        + (f', measured {_ms(c.time_ms)} ms' if c.time_ms is not None else '')
        for c in plan.candidates[1:]
    ]


def _label(name: str, group: Group) -> list[str]:
    return [] if name == group.label else [f'  {group.label}']


def _error(plan: Plan) -> str:
    error = plan.best.measurement.max_rel_err if plan.best.measurement else None
    return '' if error is None else f' (largest error {error:.1e} of the largest output)'
