"""From a group of f16 to ranked schedules: those of the outer products of its words.

Goes in: a group of f16 products, a machine, a thread count. Comes out: `Candidate`s, best first.
Where words lie in place, nothing is copied, as with integers (search/cpu/rank_dot.py).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.schemas.half.plan import RUN, run_of
from tilewright.kernels.cpu.schemas.half.words import PRODUCTS
from tilewright.kernels.cpu.space import CACHE_LEVELS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.half_time import predict_half
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import in_words
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_dot import ALIKE, fewest_passes
from tilewright.search.cpu.rank_outer import rank_tiled


def rank_half(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; none on a machine without f16."""
    flat = flatten(group)
    form = in_words(flat, PRODUCTS) if machine.half else None
    if form is None:
        return ()
    found = rank_tiled(form.group, machine.in_halves(), threads, max(top, ALIKE))
    made = []
    for candidate in found:
        vector = candidate.schedule.vector
        stays = form.in_place and not reads_outside(form.group, contract(form.group, vector))
        schedule = replace(
            candidate.schedule, schema='half', dtype='f16', accumulation='f32',
            pack='' if stays else CACHE_LEVELS[min(1, len(machine.caches) - 1)],
            options=((RUN, run_of(form.group, vector)),),
        )  # fmt: skip
        made.append(
            replace(candidate, schedule=schedule, prediction=predict_half(flat, schedule, machine))
        )
    return fewest_passes([(form, candidate) for candidate in made], machine, top)
