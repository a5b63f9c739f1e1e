"""The loop nest around a kernel body: thread parts and one band of tile loops per level.

Goes in: a stage and a schedule. Comes out: C loops, outermost first, written into a `Writer`.

    part ranges      k_part .. k_part_end          what this thread owns
    band l3          for (k_l3 = k_part; ...)       only dimensions that are really tiled get a loop
    band l2 ...

`Nest.at(d)` names the start and end of the innermost tile of `d` opened so far, so that code can be
placed anywhere between two loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

# Before the name of a dimension whose size varies, an option of schedules: its loops and the code
# of its remainders are there at every size, so that one kernel serves all of them. Its value is how
# many of them a buffer has room for, at least: places in it are then the same at every size.
EVERY = 'every_'


def every(schedule: Schedule) -> dict[str, int]:
    """The dimensions whose sizes vary, and the room for each."""
    return {
        name.removeprefix(EVERY): room for name, room in schedule.options if name.startswith(EVERY)
    }


class Nest:
    """State of a nest while it is written."""

    def __init__(self, stage: Stage, schedule: Schedule, writer: Writer) -> None:
        self.stage, self.schedule, self.writer = stage, schedule, writer
        self.ways = dict(schedule.parallel)
        self.part = part_extents(stage, schedule)
        self._at: dict[str, tuple[str, str]] = {}
        self._largest = dict(self.part)
        self._every = every(schedule)
        self.opened = 0

    def at(self, name: str) -> tuple[str, str]:
        return self._at[name]

    def start(self, name: str) -> str:
        return self._at[name][0]

    def extent(self, name: str) -> int:
        """The largest extent of the innermost tile of a dimension opened so far."""
        return self._largest[name]

    def starts(self) -> dict[str, str]:
        return {d.name: self._at[d.name][0] for d in self.stage.dims}

    def open_parts(self) -> None:
        """Ranges of this thread: whole register tiles, dealt out as evenly as they go."""
        rest = 'part'
        reg = self.schedule.reg.tile
        for dim in self.stage.dims:
            name, ways = dim.name, self.ways.get(dim.name, 1)
            if ways == 1:
                self._at[name] = ('0', str(dim.size))
                continue
            units = -(-dim.size // reg[name])
            low, high = f'{name}_part', f'{name}_part_end'
            index = f'({rest} % {ways})'
            unit = reg[name]
            self.writer.line(f'const long {low} = {units} * {index} / {ways} * {unit};')
            self.writer.line(
                f'const long {high} = '
                f'min_long({units} * ({index} + 1) / {ways} * {unit}, {dim.size});'
            )
            self._at[name] = (low, high)
            rest = f'({rest} / {ways})'

    def is_loop(self, level: Level, name: str) -> bool:
        """Whether tiling `name` at this level cuts anything."""
        return level.tile[name] < self._largest[name]

    def loops(self, level: Level) -> list[str]:
        """The dimensions that are tiled here, or at another size of the same kernel."""
        return [d for d in level.order if d in self._every or self.is_loop(level, d)]

    def open_loop(self, level: Level, name: str) -> None:
        low, high = self._at[name]
        var, size = f'{name}_{level.name}', level.tile[name]
        self.writer.open(f'for (long {var} = {low}; {var} < {high}; {var} += {size})')
        self.writer.line(f'const long {var}_end = min_long({var} + {size}, {high});')
        self._at[name] = (var, f'{var}_end')
        self._largest[name] = min(size, self._largest[name])
        self.opened += 1

    def close(self) -> None:
        self.writer.close(self.opened)
        self.opened = 0


def part_extents(stage: Stage, schedule: Schedule) -> dict[str, int]:
    """The largest extent of each dimension that one thread owns."""
    return {name: max(extents) for name, extents in part_sets(stage, schedule).items()}


def part_sets(stage: Stage, schedule: Schedule) -> dict[str, set[int]]:
    """Every extent that a thread may own of each dimension."""
    ways, reg = dict(schedule.parallel), schedule.reg.tile
    sets = {}
    for dim in stage.dims:
        count, unit = ways.get(dim.name, 1), reg[dim.name]
        units = -(-dim.size // unit)
        cuts = [min(units * i // count * unit, dim.size) for i in range(count + 1)]
        sets[dim.name] = {b - a for a, b in itertools.pairwise(cuts)} - {0}
    return sets


def tile_sets(stage: Stage, schedule: Schedule, down_to: int = 0) -> dict[str, set[int]]:
    """Every extent that a tile of level `down_to` may have, partial tiles included."""
    sets = part_sets(stage, schedule)
    for level in reversed(schedule.levels[down_to:]):
        tile: Mapping[str, int] = level.tile
        sets = {
            name: {e for extent in extents for e in _pieces(extent, tile[name])}
            for name, extents in sets.items()
        }
    return sets


def _pieces(extent: int, tile: int) -> set[int]:
    whole = {tile} if extent >= tile else set()
    rest = extent % tile
    return whole | ({rest} if rest else set())
