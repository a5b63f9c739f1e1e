"""From a convolution to ranked FFT schedules, by modelling alone, as in rank_winograd.py.

Tiles are rows x columns of outputs whose transforms exist (ops/fft.py), where the error model stays
below the limit and products are saved.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.fft.plan import fft_schedule
from tilewright.machine.machine import Machine
from tilewright.model.cpu.fft_time import FFT
from tilewright.ops.fft import geometry, tiles_of
from tilewright.ops.fft_error import predicted_error
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_winograd import rank_points


def rank_fft(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; none where FFT does not apply or pay."""
    shapes = [
        m
        for m in tiles_of(group)
        if geometry(group, m).saving > 1 and predicted_error(group, m) <= max_rel_err
    ]
    return rank_points(group, machine, threads, top, shapes, FFT, fft_schedule)
