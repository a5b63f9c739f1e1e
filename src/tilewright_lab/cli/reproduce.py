"""`tilewright reproduce`: a figure of a paper, on this machine or on data that exist."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.cli.optimize import INTERRUPTED, check_early, machine_of
from tilewright.cli.output import Bar, Output
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.isa import host_isas
from tilewright.machine.measure import load_machine
from tilewright.ops.suites import expand
from tilewright.pipeline import check_options
from tilewright.runtime.measure import Progress
from tilewright_lab.figures.figures import Figure, Options, figure_of
from tilewright_lab.figures.pictures import absence

PICTURE = '.png'


class _Reporter:
    """Progress of a figure on the bar of the command line, which begins when steps are known."""

    def __init__(self, out: Output, stack: contextlib.ExitStack) -> None:
        self._out, self._stack = out, stack
        self._bar = Bar(1)

    def plan(self, steps: int) -> None:
        self._bar = self._stack.enter_context(Bar(steps))

    def begin(self, name: str) -> None:
        self._bar.begin(name)

    def step(self, text: str, done: int, total: int, left_s: float) -> None:
        self._bar.report(Progress(text, '', done, total, left_s, None))

    def finish(self) -> None:
        self._bar.finish()

    def say(self, text: str) -> None:
        with self._bar.paused():
            self._out.say(text)


def run(
    name: str,
    out: Output,
    *,
    data: Path | None,
    machine: str | None,
    layers: str | None,
    samples: int | None,
    plot: Path | None,
    threads: int | None,
    seed: int | None,
    epochs: int | None = None,
    networks: str | None = None,
    target: str | None = None,
    seconds: float | None = None,
    small: bool = False,
    fleet: str | None = None,
    isa: str | None = None,
) -> int:
    """Make a figure: text, JSON and, if asked for, a picture; comes out: the exit code."""
    figure = figure_of(name)
    _check(figure, data, layers, samples, plot)
    isa = _isa(figure, data, isa)
    if epochs is not None and (not figure.trains or epochs < 1):
        raise InputError(
            f'--epochs {epochs}: '
            + ('ask for at least 1' if figure.trains else f'{figure.name} trains no network')
        )
    if fleet is not None and (data is not None or not figure.samples or figure.networks):
        raise InputError(f'--fleet {fleet} measures samples; {figure.name} measures none here')
    compiled = {'networks': networks, 'target': target, 'seconds': seconds, 'small': small or None}
    _check_networks(figure, compiled, machine)
    if data is None and not figure.gpu and not figure.networks:
        check_early(machine, threads, seed=seed)
    else:
        check_options(threads=threads, seed=seed)
    missing = absence() if plot is not None else ''
    if missing:
        out.warn(f'{missing}; the figures are written without it')
    with contextlib.ExitStack() as stack:
        if isa:
            stack.enter_context(knobs.held('isa', isa))
        options = _options(figure, out, stack, data, machine, layers, samples, threads, seed)
        options = replace(options, epochs=epochs or 0, fleet=fleet)
        options = replace(options, **{k: v for k, v in compiled.items() if v is not None})
        if figure.isa and data is None:
            options = replace(options, data=_bench(options, out))
        module = figure.load()
        found = module.run(options)
    if hasattr(module, 'text'):
        out.say('\n' + module.text(found))
    if found.get('interrupted'):
        out.warn(
            f'interrupted; every measurement taken so far is in {cache_dir()} ({found["data"]}), '
            f'and running the same command again goes on from there'
        )
    if plot is not None and not missing and found.get('layers', True):
        picture = plot / f'{figure.name}{PICTURE}'
        module.plot(found, picture)
        out.say(f'wrote {picture}')
    out.write(found)
    if found.get('interrupted'):
        return INTERRUPTED
    return MissingError.exit_code if missing else 0


def _isa(figure: Figure, data: Path | None, isa: str | None) -> str:
    """The instruction set to measure with: what is asked for, else the paper's, else the host's."""
    if isa is not None and (data is not None or not figure.isa):
        raise InputError(f'--isa {isa} is for what mopt-fig7 and -fig8 measure here; leave it out')
    given, there = isa or knobs.get('isa'), host_isas()
    if data is not None or not figure.isa or (given or figure.isa) in there:
        return '' if data is not None else given or figure.isa
    if figure.name == 'mopt-fig7' and not given:
        return ''  # another kind of processor, of which its own set is the figure
    raise InputError(
        f'{figure.name} with {given or figure.isa} cannot be measured on this host, which has '
        f'{", ".join(there)}; choose one by --isa, or give --data'
    )


def _check(
    figure: Figure, data: Path | None, layers: str | None, samples: int | None, plot: Path | None
) -> None:
    """Refuse what cannot be meant, before any work is done."""
    if data is not None and not data.exists():
        raise InputError(f'--data {data} does not exist; name a file or a directory of data')
    if layers is not None and not figure.layers:
        raise InputError(f'{figure.name} has layers of its own; leave out --layers {layers}')
    if layers is not None:
        expand(layers)
    if samples is not None and not figure.samples:
        raise InputError(f'{figure.name} draws no samples; leave out --samples {samples}')
    if samples is not None and samples < 1:
        raise InputError(f'samples is {samples}; ask for at least 1')
    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f'--plot {plot} is not a directory; name one for the pictures')


def _check_networks(figure: Figure, given: Mapping[str, Any], machine: str | None) -> None:
    """Refuse what only figures of compiled networks know, and a machine where a device decides."""
    wrong = [name for name, value in given.items() if value is not None]
    if wrong and not figure.networks:
        raise InputError(f'{figure.name} compiles no networks; leave out --{wrong[0]}')
    if machine is not None and figure.networks:
        raise InputError(
            f'{figure.name} measures on the device of --target; leave out --machine {machine}'
        )
    if given['seconds'] is not None and not given['seconds'] > 0:
        raise InputError(f'--seconds {given["seconds"]}; ask for more than 0')


def _options(
    figure: Figure, out: Output, stack: contextlib.ExitStack, data: Path | None,
    machine: str | None, layers: str | None, samples: int | None, threads: int | None,
    seed: int | None,
) -> Options:  # fmt: skip
    if figure.gpu:
        from tilewright_lab.figures.cnnopt import load_gpu

        return Options(
            figure.name, None, '', 0, 1, seed or 0, data, _Reporter(out, stack),
            None if machine is None else load_gpu(machine),
        )  # fmt: skip
    if figure.networks:
        return Options(
            figure.name, None, '', samples or figure.samples, 1, seed or 0, data,
            _Reporter(out, stack), networks=figure.networks,
        )  # fmt: skip
    if data is None:
        target = machine_of(machine, True, out)
    else:
        target = None if machine is None else load_machine(machine, measure=False)[0]
    wanted = threads if threads is not None else figure.threads
    if target is not None:
        wanted = target.cores if wanted is None else wanted
        if wanted > target.cores:
            raise InputError(
                f'threads is {wanted}; {target.name} has {target.cores} usable cores: ask for 1 '
                f'to {target.cores}'
            )
    return Options(
        figure.name, target, layers or figure.layers, samples or figure.samples, wanted or 1,
        seed or 0, data, _Reporter(out, stack),
    )  # fmt: skip


def _bench(options: Options, out: Output) -> Path:
    """Run the comparison with all peers that are installed; comes out: its JSON."""
    from tilewright.cli.main import invoke

    folder = cache_dir() / 'reproduce'
    folder.mkdir(parents=True, exist_ok=True)
    machine = options.machine.isa if options.machine is not None else ''
    path = folder / f'{options.name}-{machine}-{options.threads}t-seed{options.seed}.json'
    words = ['bench', options.layers, '--flush', '--threads', str(options.threads)]
    shown = sys.stderr if out.json_file == '-' else sys.stdout
    with contextlib.redirect_stdout(shown):
        code = invoke([*words, '--seed', str(options.seed), '--json', str(path)])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (0, MissingError.exit_code) or not path.exists():
        raise CheckError(
            f'the comparison of {options.layers} ended with exit code {code}, so there is nothing '
            f'to draw; give data of another run by --data'
        )
    return path
