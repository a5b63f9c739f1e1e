"""`tilewright optimize`: the best schedule of one layer or of every layer of a suite."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from tilewright import knobs
from tilewright.cli.output import Bar, Output
from tilewright.errors import InputError
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.ops.group import Group
from tilewright.ops.suites import Expansion, expand_all
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.pipeline import check_options, optimize
from tilewright.report.tables import OPTIMIZED, Columns, figures, optimized_row
from tilewright.report.words import loop_lines
from tilewright.store.records import Store, open_store
from tilewright.targets.plan import Plan

INTERRUPTED = 130


def layers_of(spec: str, out: Output) -> Expansion:
    """The layers that a spec names; lines of shape lists that were left out are reported."""
    expansion = expand_all(spec)
    for skipped in expansion.skipped:
        out.warn(f'line {skipped.line} is left out: {skipped.reason}')
    return expansion


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
    out.warn_if_forgetful()
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
) -> int:
    """Optimise every layer, print and record it; comes out: the exit code."""
    check_early(machine, threads, top=top, algorithm=algorithm, max_rel_err=max_rel_err, seed=seed)
    layers = layers_of(spec, out).layers
    target = machine_of(machine, measure, out)
    seed = secrets.randbits(32) if measure and seed is None else seed
    data = {'spec': spec, 'measured': measure, 'seed': seed, 'machine': target.to_json()}
    store = open_store() if measure else None
    found: list[dict] = []
    code = 0
    columns = Columns([name for name, _, _ in layers], OPTIMIZED)
    if len(layers) > 1:
        out.say(f'{target.name}, {target.isa}; times in ms')
        out.say(columns.head())
    try:
        with Bar(len(layers)) as bar:
            for name, group, count in layers:
                bar.begin(name)
                plan = optimize(
                    group, target, top, measure, threads, algorithm=algorithm,
                    max_rel_err=max_rel_err, store=store, seed=seed, progress=bar.report,
                )  # fmt: skip
                built = _built(plan, target)
                written = _emitted(plan, emit, name if len(layers) > 1 else '')
                bar.finish()
                with bar.paused():
                    text = optimized_row(columns, name, plan)
                    out.say(text if len(layers) > 1 else layer_text(name, plan, built, written))
                    for warning in plan.warnings:
                        out.warn(f'{name}: {warning}')
                found.append(layer_json(name, count, plan) | {'library': built, 'emitted': written})
                code = max(code, not_working(plan))
    except KeyboardInterrupt:
        out.warn(interrupted(len(found), len(layers), store))
        code = INTERRUPTED
    finally:
        if store is not None:
            store.close()
    out.write(data | {'complete': len(found) == len(layers), 'layers': found})
    return code


def _built(plan: Plan, machine: Machine) -> str | None:
    """Compile the best schedule, so that it is ready; None for what this host cannot compile."""
    if machine.isa not in host_isas() or not_working(plan):
        return None
    return str(plan.library())


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
        f'{name} on {plan.machine.name} ({plan.machine.isa}), threads: {plan.threads}',
        *_label(name, plan.group),
        f'schedule {plan.best.schedule.digest}:',
        *('  ' + line for line in loop_lines(plan.group, plan.best.schedule)),
        f'predicted {shown.predicted_ms:.3f} ms, limited by {plan.best.prediction.limit}',
    ]
    if not_working(plan):
        message = plan.best.measurement.message if plan.best.measurement else ''
        return '\n'.join([*lines, f'no candidate worked; the first {shown.status}: {message}'])
    kind = 'predicted' if shown.measured_ms is None else 'measured'
    if shown.measured_ms is not None:
        lines.append(f'measured {shown.measured_ms:.3f} ms, verified{_error(plan)}')
    lines.append(
        f'{shown.gflops:.1f} GFLOP/s, {shown.percent_of_peak:.1f}% of the peak of '
        f'{shown.peak_gflops:.1f}, {shown.percent_of_bound:.1f}% of the bound of '
        f'{shown.algorithm_bound_ms:.3f} ms ({kind})'
    )
    if built is None:
        lines.append(f'not compiled: this host cannot run {plan.machine.isa}')
    lines += [f'wrote {path}' for path in written]
    return '\n'.join(lines)


def _label(name: str, group: Group) -> list[str]:
    return [] if name == group.label else [f'  {group.label}']


def _error(plan: Plan) -> str:
    error = plan.best.measurement.max_rel_err if plan.best.measurement else None
    return '' if error is None else f' (largest error {error:.1e} of the largest output)'
