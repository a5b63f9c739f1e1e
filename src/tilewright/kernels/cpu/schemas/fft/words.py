"""The FFT schema in words: its loops are Winograd's."""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.fft.plan import product
from tilewright.kernels.cpu.schemas.winograd.plan import tile
from tilewright.kernels.cpu.schemas.winograd.words import points_lines
from tilewright.ops.fft import geometry
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def fft_title(group: Group, schedule: Schedule) -> str:
    """'FFT of 16x16 tiles'"""
    shape = geometry(group, tile(schedule))
    return f'FFT of {shape.down.length}x{shape.across.length} tiles'


def fft_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks of tiles, transformed, multiplied point by point, and transformed back."""
    return points_lines(group, schedule, product(group, schedule), geometry(group, tile(schedule)))
