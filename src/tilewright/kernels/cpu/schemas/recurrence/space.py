"""The space of the recurrence schema: register tiles, and how many threads share the units.

Goes in: a group, an instruction set, threads. Comes out: schedules that are worth pricing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.isa.micro import rows_fit
from tilewright.kernels.cpu.schemas.recurrence.plan import plan_recurrence
from tilewright.kernels.cpu.space import CACHE_LEVELS
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.phases import step_plan
from tilewright.schedule.schedule import Level, Schedule

IN_FLIGHT = 8  # sums of one k that hide the latency of multiply-adds
LEFT_FREE = 6  # registers for weights and broadcasts
AGAIN = 0.05  # what it costs to read weights once more


def why_no_recurrence(group: Group) -> str:
    """Why it cannot compute a group; '' where it can."""
    if not group.is_sequential:
        return f'{group.label} has no steps that follow each other'
    try:
        step_plan(group)
    except ScheduleError as error:
        return str(error)
    return ''


def recurrence_choices(group: Group, isa: str, threads: int, levels: int) -> Iterator[Schedule]:
    """One register tile, with one thread and with all of them, directions together or apart.

    Where they are apart, blocks are as small as a vector, so that they can be dealt out evenly,
    unless larger ones can be, too: the functions behind each of them wait for one another.
    """
    row, stage = ISAS[isa], group.main
    lanes, sizes = row.vector_bytes // DTYPES[group.output.dtype], stage.sizes
    gates, batch = min(_tiles(sizes, row), key=lambda t: _cycles(sizes, *t))
    vectors = max(1, min(-(-sizes['h'] // lanes), IN_FLIGHT // (gates * batch)))
    reg = dict.fromkeys(sizes, 1) | {'g': gates, 'n': batch, 'h': vectors * lanes, 'k': sizes['k']}
    order = tuple(sizes)
    kinds = [(reg, sizes['d'])]
    if sizes['d'] > 1:
        even = not -(-sizes['h'] // reg['h']) % threads
        kinds.append((reg if even else reg | {'h': lanes}, 1))
    for tile, directions in kinds:
        whole = {d: max(1, -(-size // tile[d])) * tile[d] for d, size in sizes.items()}
        whole['d'] = directions
        outer = tuple(Level.of(name, order, whole) for name in CACHE_LEVELS[:levels])
        blocks = directions * -(-sizes['h'] // tile['h'])
        for count in dict.fromkeys((1, min(threads, blocks))):
            cut = (('h', count),) if count > 1 else ()
            yield Schedule('recurrence', isa, 'h', (Level.of('reg', order, tile), *outer), cut)


def _tiles(sizes: Mapping[str, int], isa: Isa) -> Iterator[tuple[int, int]]:
    """(gates, sequences) whose sums fit registers, sequences dealt out as evenly as can be. Where
    states are multiplied by lanes, each sequence needs a register beside its sums.
    """
    for gates in range(1, sizes['g'] + 1):
        if sizes['g'] % gates:
            continue
        most = (isa.registers - LEFT_FREE) // gates
        if isa.by_lane:
            most = max((n for n in range(1, most + 1) if rows_fit(isa, n, gates)), default=0)
        if most:
            turns = -(-sizes['n'] // most)
            yield gates, -(-sizes['n'] // turns)


def _cycles(sizes: Mapping[str, int], gates: int, batch: int) -> float:
    """Cycles for one k of a vector of units: multiply-adds, or loads, of two in a cycle each.

    Weights that several turns read come from a cache for all but the first.
    """
    turns = -(-sizes['n'] // batch)
    one = max(gates * batch, gates + batch, IN_FLIGHT if sizes['n'] > 1 else 0) / 2
    return sizes['g'] / gates * turns * one * (1 + AGAIN * (turns - 1))


def recurrence_lines(group: Group, schedule: Schedule) -> list[str]:
    """The loops in words, outermost first."""
    plan = plan_recurrence(group, schedule)
    steps, tile = plan.steps, schedule.reg.tile
    shared = f', shared by {schedule.threads} threads in step' if schedule.threads > 1 else ''
    first = f'for each of {steps.directions} directions, ' if plan.apart else ''
    lines = [f'{first}for each of {steps.steps} steps{shared}:']
    for number, phase in enumerate(steps.phases):
        blocks = f'{plan.blocks(phase)} blocks'
        if not plan.apart:
            blocks = f'{steps.directions} x {blocks}'
        lines.append(f'  phase {number}: for each of {blocks} of {plan.unit} units:')
        for product in phase.products:
            lines.append(
                f'    {plan.gate_tile(product)} of {product.gates} gates x {tile["n"]} of '
                f'{steps.batch} sequences in registers, {product.units} products each, weights '
                f'{product.weights} packed'
            )
        lines.append(f'    {", ".join(s.name for s in phase.points)} of the block, in vectors')
    return lines
