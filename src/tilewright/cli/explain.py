"""`tilewright explain`: where the time goes, why this schedule, what is left above the bound.

Dispatches on what it is given: layers here, networks and .tw files in explain_network.py, each on a
CPU or, where --machine names one, on a GPU. Nothing is measured or compiled unless --measure asks
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.cli.optimize import check_early, layer_json, machine_of
from tilewright.cli.output import Bar, Output
from tilewright.cli.zoo import networks_of
from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine, known_gpu, known_gpus
from tilewright.machine.machine import Machine
from tilewright.ops.suites import expand
from tilewright.pipeline import optimize
from tilewright.report.dfg_picture import check_suffix, write_dfg
from tilewright.report.explain import explain_plan, explanation
from tilewright.report.gpu_explain import explain_gpu, explanation_text

CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What is asked, as the command line has it.

    layers   a network's name means its layers
    dfg      where to draw the data-flow graph of one kernel of a GPU: in a network that of `group`,
             a task's name, a label, or the row of the table
    """

    spec: str
    algorithm: str
    max_rel_err: float
    layers: bool
    measure: bool
    shapes: tuple[str, ...]
    machine: str | None
    threads: int | None
    seed: int | None
    fuse: str | None = None
    dfg: Path | None = None
    group: str | None = None

    @property
    def on_gpu(self) -> bool:
        return self.machine in known_gpus()


@dataclass(frozen=True, slots=True)
class Explained:
    """What is to be explained, one by one: `explain` gives the text and the JSON of a number."""

    names: Sequence[str]
    machine: Machine | GpuMachine
    explain: Callable[[int, Bar], tuple[str, dict]]


def run(options: ExplainOptions, out: Output) -> int:
    """Explain everything that `spec` names; comes out: the exit code."""
    networks = None if options.layers else networks_of(options.spec, ('.onnx', '.tw'))
    _check_dfg(options, networks)
    if networks is None:
        _check_layers(options)
        asked = _gpu_layers(options, out) if options.on_gpu else _cpu_layers(options, out)
    else:
        from tilewright.cli import explain_network

        if options.algorithm != 'auto':
            raise InputError(
                f'--algorithm {options.algorithm} is for layers; a network takes what is fastest '
                f'within --max-rel-err'
            )
        on = explain_network.on_gpu if options.on_gpu else explain_network.on_cpu
        asked = on(networks, options, out)
    if options.dfg is not None and len(asked.names) > 1:
        raise InputError(
            f'--dfg {options.dfg} draws one kernel, and {options.spec} names {len(asked.names)} '
            f'layers or networks; name one'
        )
    found = []
    with Bar(len(asked.names)) as bar:
        for number, name in enumerate(asked.names):
            bar.begin(name)
            text, said = asked.explain(number, bar)
            bar.finish()
            with bar.paused():
                out.say(('\n' if number else '') + text)
            found.append(said)
    out.write(
        {
            'spec': options.spec if networks is None else ','.join(networks),
            'seed': options.seed,
            'measured': options.measure,
            'machine': asked.machine.to_json(),
            'layers' if networks is None else 'networks': found,
        }
    )
    return 0


def _check_dfg(options: ExplainOptions, networks: Sequence[str] | None) -> None:
    if options.group is not None and (options.dfg is None or networks is None):
        raise InputError(
            f'--group {options.group} says which kernel of a network --dfg draws; leave it out'
        )
    if options.dfg is None:
        return
    check_suffix(options.dfg)
    if not options.on_gpu:
        raise InputError(
            f'--dfg {options.dfg} draws a kernel of a GPU; name one by --machine, such as '
            f'{known_gpus()[0]}'
        )


def _check_layers(options: ExplainOptions) -> None:
    if options.shapes:
        raise InputError(
            f'--shape {options.shapes[0]} is for networks; leave it out for {options.spec}'
        )
    if options.fuse is not None:
        raise InputError(f'--fuse {options.fuse} is for networks; leave it out for {options.spec}')
    if options.measure:
        raise InputError(f'--measure is for networks; time {options.spec} with tilewright optimize')


def _cpu_layers(options: ExplainOptions, out: Output) -> Explained:
    check_early(
        options.machine, options.threads, algorithm=options.algorithm,
        max_rel_err=options.max_rel_err, seed=options.seed,
    )  # fmt: skip
    layers = expand(options.spec)
    machine = machine_of(options.machine, False, out)

    def explain(number: int, bar: Bar) -> tuple[str, dict]:
        name, group, count = layers[number]
        plan = optimize(
            group, machine, CANDIDATES, False, options.threads, algorithm=options.algorithm,
            max_rel_err=options.max_rel_err,
        )  # fmt: skip
        text = explain_plan(plan)
        said = layer_json(name, count, plan) | {'explanation': explanation(plan)}
        return text if name == group.label else f'{name}: {text}', said

    return Explained([name for name, _, _ in layers], machine, explain)


def _gpu_layers(options: ExplainOptions, out: Output) -> Explained:
    layers = expand(options.spec)
    machine = known_gpu(str(options.machine))

    def explain(number: int, bar: Bar) -> tuple[str, dict]:
        name, group, _ = layers[number]
        explained = explain_gpu(name, group, machine, algorithm=options.algorithm)
        text, said = explanation_text(explained), explained.to_json()
        if options.dfg is not None:
            write_dfg(group, machine, options.dfg)
            text += f'\nwrote the data-flow graph to {options.dfg}'
            said['dfg'] = str(options.dfg)
        return text, said

    return Explained([name for name, _, _ in layers], machine, explain)
