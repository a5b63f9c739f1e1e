"""The pass that joins tasks into groups of several reducing stages, with the prices of a site.

Goes in: a site and what was asked for. Comes out: the passes of the site, 'chain' among them. What
was tried is handed to `record`. With tune='measure' a group is kept only if it is also faster than
its tasks apart when both run here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tilewright.errors import TilewrightError
from tilewright.graph.chain import joined, links_of, with_joined
from tilewright.graph.family import task_forms
from tilewright.graph.fuse import Cost
from tilewright.graph.passes import ProgramPasses
from tilewright.graph.program import Program
from tilewright.knobs import debug
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.network_arrays import example
from tilewright.search.fusion import Measure, Prices, Tried, find_chains
from tilewright.targets.site import Asked, Site
from tilewright.targets.target import Report

Record = Callable[[tuple[Tried, ...]], object]
ROUNDS, CALLS, WARM_UP = 5, 8, 2


def with_chains(
    passes: ProgramPasses,
    prices: Prices,
    record: Record | None = None,
    measure: Measure | None = None,
) -> ProgramPasses:
    """Passes of a target, with one that joins tasks by these prices."""

    def chain(program: Program, _: Cost) -> Program:
        found = find_chains(program, prices, measure)
        for one in found.tried:
            debug(2, f'{"joined" if one.kept else "left apart"} {", ".join(one.tasks)}: {one.why}')
        if record is not None:
            record(found.tried)
        return found.program

    return {**passes, 'chain': chain}


def passes_at(
    site: Site, asked: Asked, record: Record | None = None, progress: Report | None = None
) -> ProgramPasses:
    """The passes of a site, for what was asked."""
    measure = measure_at(site, asked, progress) if asked.tune == 'measure' else None
    return with_chains(site.passes, site.prices(asked), record, measure)


def same_chains(site: Site, asked: Asked) -> ProgramPasses:
    """The passes of a site for the same network at several sizes: programs whose tasks differ by
    sizes alone are joined as the first of them, without a search of their own.
    """
    tried: list[Tried] = []
    passes = passes_at(site, asked, tried.extend)
    known: dict[tuple[str, ...], list[frozenset[int]]] = {}

    def chain(program: Program, cost: Cost) -> Program:
        forms, links = tuple(task_forms(program)), links_of(program)
        if forms in known and all(joined(links, numbers) for numbers in known[forms]):
            return with_joined(links, known[forms])
        tried.clear()
        made = passes['chain'](program, cost)
        numbers = {task.name: number for number, task in enumerate(program.tasks)}
        kept = (one.tasks for one in tried if one.kept)
        known.setdefault(forms, [frozenset(map(numbers.__getitem__, names)) for names in kept])
        return made

    return {**passes, 'chain': chain}


def measure_at(site: Site, asked: Asked, progress: Report | None = None) -> Measure:
    """Two programs timed where they will run, in turns; what cannot be built takes for ever.

    Kernels are chosen as those of a network are, and what was measured for them is remembered.
    Programs are told apart by their groups, so that a check of passes measures nothing again.
    """
    known: dict[tuple[str, ...], float] = {}

    def seconds(fused: Program, apart: Program) -> tuple[float, float]:
        keys = [tuple(task.group.digest for task in p.tasks) for p in (fused, apart)]
        if not all(key in known for key in keys):
            known.update(zip(keys, _in_turns(site, asked, (fused, apart), progress), strict=True))
        return known[keys[0]], known[keys[1]]

    return seconds


def _in_turns(
    site: Site, asked: Asked, programs: tuple[Program, Program], progress: Report | None
) -> tuple[float, float]:
    fused, apart = programs
    right = _network(site, asked, apart, progress)
    try:
        networks = _network(site, asked, fused, progress), right
    except TilewrightError as error:
        debug(1, f'{fused.name} is left apart: {error}')
        return float('inf'), 1.0
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for network, found in zip(networks, samples, strict=True):
            arrays = {value.name: example(value) for value in network.inputs}
            found.append(statistics.median(network.time(arrays, WARM_UP + CALLS)[WARM_UP:]))
    return statistics.median(samples[0]), statistics.median(samples[1])


def _network(site: Site, asked: Asked, program: Program, progress: Report | None) -> Network:
    program = site.ordered(program)
    chosen = site.choose(program, asked, progress)
    best = site.tune(program, chosen, asked, progress)
    return site.bind(program, best, asked.max_rel_err, progress)
