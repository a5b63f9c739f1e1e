"""A GPU schedule: a kernel schema, its named decisions, and the innermost intrinsic.

What the decisions of a schema mean, and which are legal, is said where the schema is
(kernels/gpu/schemas/). Like a CPU schedule, it is a value, and the only thing that is stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class GpuSchedule:
    """`tiles` are (name, number) pairs; `intrinsic` is what multiplies: 'fma', 'mma_tf32x3', ..."""

    schema: str
    tiles: tuple[tuple[str, int], ...] = ()
    intrinsic: str = 'fma'

    def __post_init__(self) -> None:
        bad = [(n, v) for n, v in self.tiles if not isinstance(v, int) or v < 0]
        if bad:
            raise ScheduleError(f'schedule of {self.schema}: {bad} are not numbers from 0 on')

    @classmethod
    def of(cls, schema: str, intrinsic: str = 'fma', **tiles: int) -> GpuSchedule:
        return cls(schema, tuple(tiles.items()), intrinsic)

    def __getitem__(self, name: str) -> int:
        for known, value in self.tiles:
            if known == name:
                return value
        raise ScheduleError(f'a schedule of {self.schema} needs a value for {name!r}')

    def to_json(self) -> dict:
        return {
            'schema': self.schema,
            'tiles': [list(pair) for pair in self.tiles],
            'intrinsic': self.intrinsic,
        }

    @classmethod
    def from_json(cls, data: Mapping) -> GpuSchedule:
        try:
            tiles = tuple((str(name), int(value)) for name, value in data['tiles'])
            return cls(data['schema'], tiles, data['intrinsic'])
        except (KeyError, TypeError, ValueError) as error:
            raise ScheduleError(f'a stored GPU schedule cannot be read: {error}') from None

    @property
    def digest(self) -> str:
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
