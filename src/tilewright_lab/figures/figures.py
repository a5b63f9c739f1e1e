"""The table of what can be reproduced, and what every figure is given.

A figure is a module of this package with

    run(options) -> dict        measure, or evaluate data that are given; comes out: JSON
    plot(data, path) -> None    draw what `run` returned
    text(data) -> str           the same for people, over several lines (optional)

It is imported when it is asked for. A new figure is a module and a row of `FIGURES`.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: where the module is, and what holds when an option is not given.

    layers   what is measured (docs/specs.md); '': the figure has layers of its own
    samples  schedules drawn for each layer; 0: the figure draws none
    threads  None: all usable cores
    gpu      evaluates data of a GPU, which --machine names
    trains   trains networks, for as many epochs as --epochs says
    isa      instruction set of the paper's machine, which is taken where this host has it
    networks compiles networks of the zoo on a GPU: those that --networks names, on --target, with
             --samples trials a group
    """

    name: str
    module: str
    about: str
    layers: str = ''
    samples: int = 0
    threads: int | None = None
    gpu: bool = False
    trains: bool = False
    networks: str = ''
    isa: str = ''

    def load(self) -> ModuleType:
        return importlib.import_module(f'tilewright_lab.figures.{self.module}')


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            'mopt-fig5', 'mopt_fig5', 'loss of the best predicted schedules, rank correlation',
            'mopt', 100, 1,
        ),
        Figure(
            'mopt-fig6', 'mopt_fig6', 'time and simulated traffic in predicted order',
            'mopt/R9,mopt/M2,mopt/Y5', 24, 1,
        ),
        Figure(
            'mopt-fig7', 'mopt_fig7', 'comparison with other libraries, AVX2', 'mopt', isa='avx2'
        ),
        Figure('mopt-fig8', 'mopt_fig7', 'the same with AVX-512', 'mopt', isa='avx512'),
        Figure('scaling', 'scaling', 'time against batch, channels and image size'),
        Figure('cnnopt-table8', 'cnnopt_table8', 'trials to the best configuration', gpu=True),
        Figure('cnnopt-table9', 'cnnopt_table9', 'loss of learned and analytical models', gpu=True),
        Figure('gtuner-table1', 'gtuner_table1', 'graph layers compared', gpu=True, trains=True),
        Figure(
            'gtuner-table2', 'gtuner_table2', 'without the graph, without attention', gpu=True,
            trains=True,
        ),
        Figure('gtuner-fig7', 'gtuner_fig7', 'best time against trials', gpu=True, trains=True),
        Figure('gtuner-fig8', 'gtuner_fig8', 'the same by subgraph', gpu=True, trains=True),
        Figure(
            'gtuner-table3', 'gtuner_table3', 'latency and tuning of networks, Tables 3 and 4',
            samples=80, networks='alexnet,mobilenet_v1,squeezenet,resnet18,resnet34',
        ),
        Figure(
            'deepcuts-speedup', 'deepcuts_speedup', 'networks in three versions, and libraries',
            gpu=True,
        ),
        Figure(
            'deepcuts-generation-time', 'deepcuts_generation', 'seconds of compiling them',
            gpu=True,
        ),
        Figure('cpu-ranker', 'cpu_ranker', 'a learned ranking of CPU schedules, samples of fig5'),
    )
}  # fmt: skip


def figure_of(name: str) -> Figure:
    """The row of a name; one sentence for a name that is not in the table."""
    if name in FIGURES:
        return FIGURES[name]
    near = difflib.get_close_matches(name, FIGURES, 1)
    hint = f'did you mean {near[0]}?' if near else f'choose one of {", ".join(FIGURES)}'
    raise InputError(f'{name!r} is not a figure that can be reproduced; {hint}')


class Reporter(Protocol):
    """Whom a figure tells how far it is."""

    def plan(self, steps: int) -> None:
        """The number of layers, or of other steps of about equal length."""
        ...

    def begin(self, name: str) -> None:
        """A step is taken in hand."""
        ...

    def step(self, text: str, done: int, total: int, left_s: float) -> None:
        """Progress within it, with an estimate of the seconds that it still takes."""
        ...

    def finish(self) -> None:
        """It is done."""
        ...

    def say(self, text: str) -> None:
        """A line for people, now."""
        ...


class Silence:
    """A reporter that tells nobody."""

    def plan(self, steps: int) -> None: ...
    def begin(self, name: str) -> None: ...
    def step(self, text: str, done: int, total: int, left_s: float) -> None: ...
    def finish(self) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Options:
    """What a figure is asked for; the figure's own values are filled in already.

    machine   the one that is measured and modelled; with `data`, None stands for the machine that
              the data were taken on
    data      existing measurements to evaluate, a file or a directory: nothing is measured
    seed      decides the schedules that are drawn and the data that kernels are run on
    gpu       the GPU that the data of a figure of GPUs were taken on
    epochs    of a network's training; 0: as many as the figure has
    networks, target, seconds, small   of a figure that compiles networks: their names, where they
              run, when no new one is begun any more, and whether they are to be small
    fleet     workers that measure samples; None: this host does
    """

    name: str
    machine: Machine | None
    layers: str
    samples: int
    threads: int
    seed: int
    data: Path | None = None
    report: Reporter = Silence()  # noqa: RUF009 (it has no state)
    gpu: GpuMachine | None = None
    epochs: int = 0
    networks: str = ''
    target: str = 'cuda'
    seconds: float | None = None
    small: bool = False
    fleet: str | None = None


def place_of(path: Path) -> str:
    """A file as results name it, the same on every machine: below the cache directory by the way
    from there, any other by its name.
    """
    root = cache_dir()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
