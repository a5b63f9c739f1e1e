"""A CPU schedule: a few small frozen decisions about one group. Only this is cached and stored.

`levels` go from the inside out: 'reg', then one for each cache. A level is a *tile* (how much of
every dimension is resident there) and an *order* (outermost loop first) in which the tiles of this
level are visited inside one tile of the next level, MOpt's permutation at that level. The tile
around the outermost level is the part of the problem that one thread owns.

    for k3 .. n3 ..            l3 band: tiles of l3 inside the thread's part
      for k2 .. h2 .. c2       l2 band: tiles of l2 inside an l3 tile
        for ...                l1 band
          for k h w | c r s    reg band: register tiles, the reduction inside the micro-kernel
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.errors import ScheduleError


@dataclass(frozen=True)
class Level:
    """A tile size for every dimension, and the order in which such tiles are visited."""

    name: str
    order: tuple[str, ...]
    tiles: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(name for name, _ in self.tiles):
            raise ScheduleError(f'level {self.name} orders {self.order} but tiles {self.tiles}')
        for name, size in self.tiles:
            if size < 1:
                raise ScheduleError(f'level {self.name}: tile {name}={size} must be at least 1')

    @classmethod
    def of(cls, name: str, order: tuple[str, ...], tiles: Mapping[str, int]) -> Level:
        """Tiles are kept in alphabetical order, so that equal levels are equal values."""
        return cls(name, tuple(order), tuple(sorted((k, int(v)) for k, v in tiles.items())))

    @property
    def tile(self) -> dict[str, int]:
        """Shared by all who ask: not to be changed."""
        return self._tile

    @cached_property
    def _tile(self) -> dict[str, int]:
        return dict(self.tiles)


@dataclass(frozen=True)
class Schedule:
    """The decisions that determine generated code, together with the group and nothing else.

    schema    name of a schema in kernels/cpu/schema.py, which is looked up when code is generated.
    isa       name of an instruction set in machine/isa.py.
    vector    the dimension that lies across vector lanes ('' leaves that to the compiler).
    levels    from 'reg' outwards.
    parallel  (dimension, ways): how the problem is cut between threads; product = threads used.
    pack      the level whose tile of the broadcast operand is copied, padded, into a buffer of its
              own ('' reads the operand in place: legal where no index leaves the tensor).
    options   (name, number): further decisions of one schema, such as Winograd's tile size m.
    dtype, accumulation   of what is multiplied, and of the sums. Stored where they are not f32.
    """

    schema: str
    isa: str
    vector: str
    levels: tuple[Level, ...]
    parallel: tuple[tuple[str, int], ...] = ()
    pack: str = ''
    options: tuple[tuple[str, int], ...] = ()
    dtype: str = 'f32'
    accumulation: str = 'f32'

    def __post_init__(self) -> None:
        if not self.levels or self.levels[0].name != 'reg':
            raise ScheduleError('the innermost level of a schedule must be called reg')
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            small, large = inner.tile, outer.tile
            if small.keys() != large.keys():
                raise ScheduleError(f'levels {inner.name} and {outer.name} tile other dimensions')
            for name, size in small.items():
                if size > large[name]:
                    raise ScheduleError(
                        f'tile {name}={size} of {inner.name} exceeds {name}={large[name]} of '
                        f'{outer.name}; tiles must not shrink outwards'
                    )
        if self.pack and self.pack not in [level.name for level in self.levels]:
            raise ScheduleError(f'pack={self.pack!r} is not a level of this schedule')
        if any(ways < 1 for _, ways in self.parallel):
            raise ScheduleError(f'parallel ways must be at least 1: {self.parallel}')

    @property
    def threads(self) -> int:
        product = 1
        for _, ways in self.parallel:
            product *= ways
        return product

    @property
    def reg(self) -> Level:
        return self.levels[0]

    def to_json(self) -> dict:
        return {
            'schema': self.schema,
            'isa': self.isa,
            'vector': self.vector,
            'levels': [[v.name, list(v.order), [list(t) for t in v.tiles]] for v in self.levels],
            'parallel': [list(p) for p in self.parallel],
            'pack': self.pack,
            **({'options': [list(o) for o in self.options]} if self.options else {}),
            **({'dtype': self.dtype} if self.dtype != 'f32' else {}),
            **({'accumulation': self.accumulation} if self.accumulation != 'f32' else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Schedule:
        try:
            levels = tuple(
                Level(name, tuple(order), tuple((d, int(s)) for d, s in tiles))
                for name, order, tiles in data['levels']
            )
            parallel = tuple((d, int(w)) for d, w in data['parallel'])
            options = tuple((name, int(value)) for name, value in data.get('options', ()))
            return cls(
                data['schema'], data['isa'], data['vector'], levels, parallel, data['pack'],
                options, data.get('dtype', 'f32'), data.get('accumulation', 'f32'),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ScheduleError(f'a stored schedule cannot be read: {error}') from None

    @cached_property
    def digest(self) -> str:
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
