"""`tilewright report`: one HTML page of a network, a .tw file, layers, or a file of plans.

Goes in: names, models, .tw files or JSON of optimize, explain and report; what to compare with.
Comes out: the page (report/page). Nothing is measured unless --measure asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.cli.output import Bar, Output, check_writable
from tilewright.errors import InputError
from tilewright.files import read_json, replacing
from tilewright.machine.gpu import GpuMachine, known_gpu, known_gpus
from tilewright.machine.machine import Machine, bytes_text
from tilewright.ops.group import Group
from tilewright.report.network import Kind
from tilewright.report.page.compare import Comparison, compare_bench, compare_pages
from tilewright.report.page.data import KIND, Page, measured, page_from_json
from tilewright.report.pictures import absence


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is asked, as the command line has it."""

    source: str
    output: Path
    compare: str | None
    trace: Path | None
    measure: bool
    shapes: tuple[str, ...]
    machine: str | None
    threads: int | None
    max_rel_err: float
    fuse: str | None
    seed: int | None


def run(options: ReportOptions, out: Output) -> int:
    """Write the page; comes out: the exit code."""
    if why := absence():
        from tilewright.errors import MissingError

        raise MissingError(why.replace('a picture', 'a report'))
    check_writable(options.output, '--output')
    from tilewright.report.page.compose import compose

    with Bar(1) as bar:
        bar.begin(options.source)
        page = page_for(options.source, options, out, bar)
        if options.trace is not None:
            page = measured(page, _traced(options.trace))
        other = None if options.compare is None else _other(page, options, out, bar)
        text = compose(page, other)
        bar.finish()
    try:
        with replacing(options.output) as made:
            made.write_text(text)
    except OSError as error:
        raise InputError(f'--output {options.output} cannot be written: {error.strerror}') from None
    out.say(f'wrote {options.output} ({bytes_text(len(text.encode()))}); open it in any browser')
    out.write(page.to_json() | {'file': str(options.output)})
    return 0


def page_for(source: str, options: ReportOptions, out: Output, bar: Bar) -> Page:
    """The page of a JSON file, a network or layers."""
    from tilewright.cli.zoo import networks_of

    if source.endswith('.json'):
        return _page_of_json(_json(source), source)
    models = networks_of(source, ('.onnx', '.tw'))
    if models is None:
        return _layers(source, options, out, bar)
    if len(models) != 1:
        raise InputError(f'{source} names {len(models)} networks; a page shows one: name one')
    (model,) = models
    return _network(model, options, out, bar)


def _other(page: Page, options: ReportOptions, out: Output, bar: Bar) -> Comparison:
    source = str(options.compare)
    if source.endswith('.json'):
        data = _json(source)
        if data.get('verb') == 'bench':
            return compare_bench(page, data, source)
        return compare_pages(page, _page_of_json(data, source))
    return compare_pages(page, page_for(source, replace(options, trace=None), out, bar))


def _json(path: str | Path) -> dict[str, Any]:
    remedy = 'write it by tilewright optimize, explain or report with --json'
    data = read_json(path, str(path), remedy)
    if not isinstance(data, dict):
        raise InputError(f'{path} holds a {type(data).__name__}, not what a verb writes by --json')
    return data


def _page_of_json(data: Mapping[str, Any], path: str) -> Page:
    if data.get('kind') == KIND:
        return page_from_json(data)
    layers = data.get('layers')
    if not isinstance(layers, list) or not layers or 'plan' not in layers[0]:
        raise InputError(
            f'{path} has no plans; write it by tilewright optimize --json, or by report --json'
        )
    from tilewright.report.page.gather import page_of

    try:
        kinds = [
            Kind(plan, plan.group.label, _names(one['name'], one['count']), _measured_ms(one, plan))
            for one, plan in ((one, _plan(one['plan'])) for one in layers)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f'{path} cannot be read: {error!r}; write it again') from None
    plan = kinds[0].plan
    return page_of(str(data.get('spec', Path(path).stem)), plan.machine, plan.threads, kinds)


def _names(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f'{name} #{n + 1}' for n in range(count))


def _measured_ms(one: Mapping[str, Any], plan: Any) -> float | None:
    time = plan.best.time_ms
    return None if time is None else time * one['count']


def _plan(data: Mapping[str, Any]) -> Any:
    """A plan from its JSON; predictions are those of the present model."""
    from tilewright.model.cpu.predict import predict
    from tilewright.runtime.measure import Measurement
    from tilewright.schedule.choice import schedule_from_json
    from tilewright.targets.gpu.choose import prediction_of
    from tilewright.targets.plan import Candidate, Plan

    target = data.get('target', 'cpu')
    group = Group.from_json(data['group'])
    machine = (Machine if target == 'cpu' else GpuMachine).from_json(data['machine'])
    said: Any = predict if target == 'cpu' else prediction_of
    candidates = []
    for one in data['candidates']:
        schedule = schedule_from_json(one['schedule'])
        timed = one['measured'] and Measurement.from_json(one['measured'])
        candidates.append(Candidate(schedule, said(group, schedule, machine), timed))
    return Plan(
        group, machine, data['threads'], tuple(candidates), max_rel_err=data.get('max_rel_err'),
        target=target,
    )  # fmt: skip


def _traced(path: Path) -> dict[str, float]:
    """task -> milliseconds, of a trace by `tilewright run --trace`."""
    try:
        return {event['name']: event['dur'] / 1e3 for event in _json(path)['traceEvents']}
    except (KeyError, TypeError) as error:
        raise InputError(
            f'--trace {path} is not a trace: {error!r}; write it by tilewright run --trace'
        ) from None


def _layers(spec: str, options: ReportOptions, out: Output, bar: Bar) -> Page:
    from tilewright.cli.optimize import check_early, machine_of
    from tilewright.ops.suites import expand
    from tilewright.pipeline import optimize
    from tilewright.report.page.gather import page_of

    on_gpu = options.machine in known_gpus()
    machine: Any = known_gpu(str(options.machine)) if on_gpu else None
    if not on_gpu:
        check_early(options.machine, options.threads, max_rel_err=options.max_rel_err)
        machine = machine_of(options.machine, options.measure, out)
    kinds = []
    for name, group, count in expand(spec):
        plan = optimize(
            group, machine, 3, options.measure, options.threads, progress=bar.report,
            max_rel_err=options.max_rel_err, target='cuda' if on_gpu else 'cpu', seed=options.seed,
        )  # fmt: skip
        time = plan.best.time_ms
        kinds.append(
            Kind(plan, group.label, _names(name, count), None if time is None else time * count)
        )
    return page_of(spec, machine, kinds[0].plan.threads, kinds)


def _network(model: str, options: ReportOptions, out: Output, bar: Bar) -> Page:
    from tilewright.cli import explain_network
    from tilewright.report.page.gather import edges_of, page_of

    asked = explain_network.planned(model, options, out, bar)
    title = Path(model).stem if Path(model).suffix in ('.onnx', '.tw') else model
    return page_of(
        title, asked.machine, asked.threads, asked.kinds, edges_of(asked.program), asked.total_ms
    )
