"""A schedule as the cache simulator replays it: the nest of generated code, operands as packed.

Goes in: a group, a schedule, a machine. Comes out: `Traffic`, simulated.

The outer schema reads weights from panels of V * lanes channels, in the order in which a
micro-kernel uses them. The simulator knows affine accesses only, so the vector dimension is split,

    k  ->  k_panel * width + k_lane,        Ker[k, c, r, s]  ->  Ker[k_panel, c, r, s, k_lane]

which is that memory, word by word (a last panel that is not full counts as full). Accumulators that
are kept between calls lie channels innermost, as in generated code; other results go to the output
where it is. The stencil schema loads a row of input once for every tap across, which is a level of
its own inside the register tile. The input is its zero-padded copy, whole. One call is replayed,
from empty caches. Not replayed: copying input tiles, the transposition on the way out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernels.cpu.contraction import Contraction, contract
from tilewright.kernels.cpu.schemas.stencil.cover import stencil
from tilewright.machine.machine import Machine
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Dim, Stage, var
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.simulate.cachesim import Layout, SimCache, simulate


@dataclass(frozen=True, slots=True)
class Traffic:
    """Simulated traffic of one call: words in and out of registers, bytes behind each cache."""

    register_words: int
    cache_bytes: tuple[int, ...]


def traffic(group: Group, schedule: Schedule, machine: Machine) -> Traffic:
    """Replay one call of a schedule on the caches of a machine, with their ways."""
    stage, levels, layout = replayed(group, schedule)
    caches = [SimCache.of(cache) for cache in machine.caches]
    line_words = machine.caches[0].line_bytes // 4
    found = simulate(stage, levels, caches, line_words=line_words, layout=layout)
    registers = sum(found.loads.values()) + sum(found.stores.values())
    return Traffic(registers, tuple(4 * sum(found.words(i).values()) for i in range(len(caches))))


def replayed(
    group: Group, schedule: Schedule
) -> tuple[Stage, list[Level], dict[str, int | Layout]]:
    """(stage, levels from the inside out, layout) for the simulator."""
    group = tiled_form(group, schedule.reg.tile)
    if schedule.schema == 'stencil':
        reg = schedule.reg
        taps = dict.fromkeys(stencil(group).across.windows, 1)
        return group.main, [Level.of('tap', reg.order, reg.tile | taps), *schedule.levels], {}
    if schedule.schema != 'outer':
        return group.main, list(schedule.levels), {}
    contraction = contract(group, schedule.vector)
    stage = group.main
    names = (f'{schedule.vector}_panel', f'{schedule.vector}_lane')
    width = schedule.reg.tile[schedule.vector]
    levels = [_split_level(level, schedule.vector, names, width) for level in schedule.levels]
    levels[0] = replace(levels[0], order=_micro_order(levels[0].order, contraction))
    kept = any(schedule.levels[1].tile[d] < stage.sizes[d] for d in stage.reduction)
    layout: dict[str, int | Layout] = {}
    if kept:
        places = [schedule.vector in expression.names for expression in stage.write.index]
        layout[stage.write.tensor] = places.index(True)
    return _split_stage(contraction, names, width), levels, layout


def _split_stage(contraction: Contraction, names: tuple[str, str], width: int) -> Stage:
    """The stage with its vector dimension as panels of lanes, and the packed operand in order."""
    stage, vector = contraction.stage, contraction.vector
    panel, lane = names
    dims = []
    for dim in stage.dims:
        if dim.name == vector:
            dims += [Dim(panel, -(-dim.size // width), dim.kind), Dim(lane, width, dim.kind)]
        else:
            dims.append(dim)
    order = (*contraction.batch, *contraction.columns, panel, *contraction.reduction, lane)
    packed = Access(contraction.b.tensor, tuple(var(d) for d in order))
    reads = tuple(packed if access == contraction.b else access for access in stage.reads)
    write = Access(
        stage.write.tensor,
        tuple(_split_index(expression, vector, names, width) for expression in stage.write.index),
    )
    return replace(stage, dims=tuple(dims), write=write, reads=reads)


def _split_index(expression: Affine, vector: str, names: tuple[str, str], width: int) -> Affine:
    terms = []
    for name, coefficient in expression.terms:
        if name == vector:
            terms += [(names[0], coefficient * width), (names[1], coefficient)]
        else:
            terms.append((name, coefficient))
    return Affine(tuple(terms), expression.const)


def _split_level(level: Level, vector: str, names: tuple[str, str], width: int) -> Level:
    tile = level.tile
    panels = -(-tile.pop(vector) // width)
    order = []
    for name in level.order:
        order += names if name == vector else (name,)
    return Level.of(level.name, tuple(order), {**tile, names[0]: panels, names[1]: width})


def _micro_order(order: tuple[str, ...], contraction: Contraction) -> tuple[str, ...]:
    """Register tiles as scheduled; inside, reductions as the micro-kernel runs through them."""
    reduction = contraction.reduction
    return (*(d for d in order if d not in reduction), *reduction)
