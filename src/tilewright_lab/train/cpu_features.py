"""Features of CPU schedules, and what a learned model starts from: the analytical prediction.

Goes in: a group, schedules of its direct algorithm, a `Machine`. Comes out: what `features.py` has
for a GPU: a matrix with a row for each schedule and a column for each line of `CPU_FEATURES`, and
the logarithm of the analytical seconds. Groups of features are the same: *problem*, sizes of the
convolution (the same function); *tiles*, at registers and each cache, along k, pixels and channels;
*analytical*, times and bytes of the parts that the time models add up, with their ratios, and
the share of each cache that a tile fills. Times and bytes are logarithms (base 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.traffic import footprint
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.rank.counts import Array
from tilewright.rank.features import problem_of
from tilewright.schedule.schedule import Schedule

LEVELS = ('reg', 'l1', 'l2', 'l3')
CACHES = LEVELS[1:]
LEAST_S = 1e-9  # parts that take nothing


@dataclass(frozen=True)
class CpuView:
    """One schedule, as the formulas of features see it."""

    group: Group
    schedule: Schedule
    machine: Machine
    said: Prediction

    @cached_property
    def problem(self) -> dict[str, int]:
        return problem_of(self.group)

    @cached_property
    def tiled(self) -> Group:
        """The description that the schedule tiles (1x1: pixels joined)."""
        return tiled_form(self.group, self.schedule.reg.tile)

    @cached_property
    def tiles(self) -> dict[str, dict[str, int]]:
        sizes = self.tiled.main.sizes
        found = {level.name: level.tile for level in self.schedule.levels}
        return {name: found.get(name, dict(sizes)) for name in LEVELS}

    def along(self, level: str, kind: str) -> float:
        """Elements of a tile along output channels, pixels, channels or the window."""
        stage = self.tiled.main
        tile = self.tiles[level]
        weights = {name for read in stage.reads[1:] for e in read.index for name in e.names}
        names = {
            'k': [d for d in stage.parallel if d in weights],
            'pixels': [d for d in stage.parallel if d not in weights],
            'c': [d for d in stage.reduction if d not in ('r', 's')],
            'window': [d for d in stage.reduction if d in ('r', 's')],
        }[kind]
        return float(math.prod(min(tile[d], stage.sizes[d]) for d in names))

    def filled(self, level: str) -> float:
        """Bytes that a tile of a cache touches, over those of the cache."""
        stage, tile = self.tiled.main, self.tiles[level]
        inside = {d: min(tile[d], stage.sizes[d]) for d in stage.sizes}
        place = min(CACHES.index(level), len(self.machine.caches) - 1)
        room = self.machine.capacity_bytes(place, self.schedule.threads)
        return 4.0 * sum(footprint(access, inside) for access in stage.accesses) / room

    def innermost(self, level: str) -> float:
        """Which operand stays while a band turns: 0 none, 1 input, 2 weights, 3 results."""
        at = [v.name for v in self.schedule.levels]
        if level not in at:
            return 0.0
        number = at.index(level)
        band, stage = self.schedule.levels[number], self.tiled.main
        around = (
            self.schedule.levels[number + 1].tile if number + 1 < len(at) else dict(stage.sizes)
        )
        turning = [d for d in band.order if around[d] > band.tile[d]]
        if not turning:
            return 0.0
        reads = [{name for e in read.index for name in e.names} for read in stage.reads]
        if turning[-1] in stage.reduction:
            return 3.0
        return 1.0 if turning[-1] not in reads[0] else 2.0

    def boundary(self, number: int, what: str) -> float:
        found = self.said.boundaries
        return float(getattr(found[number], what)) if number < len(found) else 0.0


@dataclass(frozen=True)
class CpuFeature:
    """A column: its name, its formula in words, and the function of a view that computes it."""

    name: str
    group: str
    formula: str
    of: Callable[[CpuView], float]


def _log(value: float) -> float:
    return math.log2(max(value, LEAST_S))


def _problem(name: str) -> CpuFeature:
    return CpuFeature(name, 'problem', f'log2 of {name}', lambda v: _log(v.problem[name]))


def _tile(level: str, kind: str) -> CpuFeature:
    text = f'log2 of elements of a tile of {level} along {kind}'
    return CpuFeature(f'{level}_{kind}', 'tiles', text, lambda v: _log(v.along(level, kind)))


def _seconds(name: str) -> CpuFeature:
    text = f'log2 us of {name}'
    return CpuFeature(
        f'{name}_us', 'analytical', text, lambda v: _log(1e6 * getattr(v.said, f'{name}_s'))
    )


def _crossing(number: int) -> tuple[CpuFeature, ...]:
    level = LEVELS[number]
    return (
        CpuFeature(f'{level}_bytes', 'analytical', f'log2 of bytes into {level}',
                   lambda v: _log(v.boundary(number, 'bytes'))),
        CpuFeature(f'{level}_us', 'analytical', 'log2 us of them',
                   lambda v: _log(1e6 * v.boundary(number, 'seconds'))),
        CpuFeature(f'{level}_share', 'analytical', 'their time over the whole',
                   lambda v: v.boundary(number, 'seconds') / v.said.seconds),
    )  # fmt: skip


CPU_FEATURES: tuple[CpuFeature, ...] = (
    *(_problem(name) for name in ('n', 'k', 'h', 'w', 'c', 'r', 'stride')),
    *(_tile(level, kind) for level in LEVELS for kind in ('k', 'pixels', 'c', 'window')),
    *(CpuFeature(f'{level}_stays', 'tiles', 'operand that stays while its band turns: 1 input, '
                 '2 weights, 3 results', lambda v, level=level: v.innermost(level))
      for level in LEVELS),
    CpuFeature('pack', 'tiles', 'level whose tile is copied, 0: none',
               lambda v: float(LEVELS.index(v.schedule.pack or 'reg'))),
    CpuFeature('threads', 'tiles', 'threads', lambda v: float(v.schedule.threads)),
    CpuFeature('stencil', 'tiles', '1 for windows that slide along rows',
               lambda v: float(v.schedule.schema == 'stencil')),
    *(CpuFeature(f'{level}_filled', 'analytical', f'log2 of the bytes of a tile over {level}',
                 lambda v, level=level: _log(v.filled(level))) for level in CACHES),
    *(_seconds(name) for name in ('compute', 'pack', 'store', 'bound')),
    *(feature for number in range(len(LEVELS)) for feature in _crossing(number)),
    CpuFeature('analytical_us', 'analytical', 'log2 us of the whole prediction',
               lambda v: _log(1e6 * v.said.seconds)),
    CpuFeature('compute_share', 'analytical', 'time of computing over the whole',
               lambda v: v.said.compute_s / v.said.seconds),
    CpuFeature('pack_share', 'analytical', 'time of copying over the whole',
               lambda v: v.said.pack_s / v.said.seconds),
    CpuFeature('store_share', 'analytical', 'time of storing over the whole',
               lambda v: v.said.store_s / v.said.seconds),
    CpuFeature('over_bound', 'analytical', 'the whole over the bound',
               lambda v: v.said.seconds / v.said.bound_s),
    CpuFeature('per_product', 'analytical', 'time of computing over flop at peak',
               lambda v: v.said.compute_s * 1e9 * v.machine.peak_gflops(v.schedule.threads)
               / v.group.flops),
)  # fmt: skip
CPU_NAMES = tuple(f.name for f in CPU_FEATURES)


def cpu_matrix(
    group: Group, schedules: Sequence[Schedule], machine: Machine
) -> tuple[Array, Array]:
    """[schedules of a group] -> [rows x features as float32, log of analytical seconds]"""
    views = [CpuView(group, s, machine, predict(group, s, machine)) for s in schedules]
    rows = [[feature.of(view) for feature in CPU_FEATURES] for view in views]
    return np.array(rows, np.float32), np.log([view.said.seconds for view in views])
