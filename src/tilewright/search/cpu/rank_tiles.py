"""From a group of bf16 to ranked schedules in tiles: those of the outer products of its words.

Goes in: a group of bf16 products, a machine, a thread count. Comes out: `Candidate`s, best first.
Where words lie in place, nothing is copied, as with integers (search/cpu/rank_dot.py); rows of a
product have schedules of their own (search/cpu/rank_tile_rows.py). Images that have to be copied
are left to strips, where those have enough to do: their copies lie in all sets of a cache, and
weights are read once.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.schemas.dot.plan import why_no_tiles
from tilewright.kernels.cpu.schemas.half.words import PRODUCTS
from tilewright.kernels.cpu.schemas.strip.plan import strip_choices
from tilewright.kernels.cpu.schemas.strip.plan import why_not as why_no_strip
from tilewright.kernels.cpu.space import CACHE_LEVELS
from tilewright.machine.isa import tile_isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.tile_time import predict_tiles
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import Words, in_words
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_dot import ALIKE, fewest_passes
from tilewright.search.cpu.rank_outer import rank_tiled
from tilewright.search.cpu.rank_tile_rows import rank_tile_rows


def rank_tiles(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; none on a machine without tiles."""
    flat = flatten(group)
    form = in_words(flat, PRODUCTS) if machine.bf16 else None
    if form is None or why_no_tiles(form):
        return ()
    seen, made = machine.in_tiles('bf16'), []
    rows = rank_tile_rows(form.group, seen, threads) if form.in_place else []
    for schedule in rows[:top]:
        schedule = replace(schedule, schema='tiles', dtype='bf16', accumulation='f32')
        made.append(Candidate(schedule, predict_tiles(flat, schedule, machine)))
    if made or _is_for_strips(flat, form, machine, threads):
        return tuple(made)
    for candidate in rank_tiled(form.group, seen, threads, max(top, ALIKE)):
        contraction = contract(form.group, candidate.schedule.vector)
        stays = form.in_place and not reads_outside(form.group, contraction)
        schedule = replace(
            candidate.schedule, schema='tiles', dtype='bf16', accumulation='f32',
            pack='' if stays else CACHE_LEVELS[min(1, len(machine.caches) - 1)],
        )  # fmt: skip
        prediction = predict_tiles(flat, schedule, machine)
        made.append(replace(candidate, schedule=schedule, prediction=prediction))
    return fewest_passes([(form, candidate) for candidate in made], machine, top)


def _is_for_strips(flat: Group, form: Words, machine: Machine, threads: int) -> bool:
    """Whether windows leave an image that strips are copied from."""
    contraction = contract(form.group, vector_candidates(form.group)[0])
    if not reads_outside(form.group, contraction) or why_no_strip(flat):
        return False
    return next(strip_choices(flat, tile_isa(machine.isa), 'bf16', threads), None) is not None
