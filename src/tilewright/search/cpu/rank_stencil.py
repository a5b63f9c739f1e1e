"""From a group to ranked stencil schedules, by modelling alone.

    lanes of a vector x rows x vectors of a register tile x cuts between threads

All of them are few, so each is priced by the full model (`model.stencil_time`). Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.errors import InputError
from tilewright.kernels.cpu.schemas.stencil.cover import Stencil, fits, stencil, why_not
from tilewright.kernels.cpu.space import stencil_schedule, thread_cuts
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.stencil_time import predict_stencil
from tilewright.ops.group import Group
from tilewright.search.cpu.rank import Candidate

CUTS = 2  # cuts between threads that are priced
HELD = 9  # weights that a compiler keeps in registers where it has many
SPARE = 3  # registers for what is loaded

Cut = tuple[tuple[str, int], ...]


def rank_stencil(group: Group, machine: Machine, threads: int, top: int) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; none where the schema does not apply."""
    if top < 1:
        raise InputError(f'top={top}; ask for at least one candidate')
    if why_not(group):
        return ()
    shape, isa = stencil(group), ISAS[machine.isa]
    found = []
    for cut in cuts(shape, threads):
        for lanes, rows, vectors in register_tiles(shape, isa):
            ways = dict(cut).get(shape.down.name, 1)
            if -(-shape.down.size // rows) < ways:
                continue
            schedule = stencil_schedule(group, machine.isa, lanes, rows, vectors, cut)
            found.append(Candidate(schedule, predict_stencil(group, schedule, machine)))
    found.sort(key=lambda c: (c.prediction.seconds, c.schedule.digest))
    return tuple(found[:top])


def cuts(shape: Stencil, threads: int) -> list[Cut]:
    """The cuts that divide the work best; fewer threads where there is not enough to cut."""
    stage = shape.stage
    whole: list[Cut] = []
    while not whole:
        whole = [
            cut
            for cut in thread_cuts(stage, threads)
            if all(d in (*shape.outer, shape.down.name) for d, _ in cut)
        ]
        threads -= 1

    def share(cut: Cut) -> tuple[float, int]:
        sizes = stage.sizes
        return math.prod(-(-sizes[d] // ways) / sizes[d] for d, ways in cut), len(cut)

    return sorted(whole, key=lambda c: (share(c), c))[:CUTS]


def register_tiles(shape: Stencil, isa: Isa) -> Iterator[tuple[int, int, int]]:
    """(lanes, rows, vectors) whose accumulators and weights fit the registers."""
    held = min(shape.taps, HELD) if isa.arch == 'aarch64' else 1
    room = isa.registers - held - SPARE
    lanes = isa.lanes
    while lanes >= min(4, isa.lanes):
        for vectors in _even(-(-shape.across.size // lanes), room):
            for rows in _even(shape.down.size, room // vectors):
                if fits(shape, lanes, rows, vectors):
                    yield lanes, rows, vectors
        lanes //= 2


def _even(size: int, most: int) -> list[int]:
    """Extents up to `most` that cut `size` into pieces as equal as they can be, largest first."""
    pieces = {-(-size // count) for count in range(1, size + 1)}
    return sorted((extent for extent in pieces if extent <= most), reverse=True)
