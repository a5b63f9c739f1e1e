"""The machine a schedule is made for: cores, caches, peaks, bandwidths. A value; JSON both ways.

Boundaries are numbered from the inside: boundary 0 moves data between L1 and the registers,
boundary i between cache i and cache i+1, the last between the outermost cache and memory. So there
are `len(caches) + 1` boundaries, named by the level that receives: 'reg', 'l1', 'l2', 'l3'.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from tilewright.errors import InputError
from tilewright.machine.constants import TimeConstants, default_constants
from tilewright.machine.isa import ISAS, Dot, half_isa, tile_isa, word_isa


def bytes_text(count: float) -> str:
    """1048576 -> '1 MiB', 786432 -> '768 KiB'."""
    for unit in ('B', 'KiB', 'MiB'):
        if count < 1024:
            return f'{count:.4g} {unit}'
        count /= 1024
    return f'{count:.4g} GiB'


MOST_CORES = 1 << 16
MOST_BYTES = 1 << 50


def _whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _figure(value: Any) -> bool:
    """Whether it is a finite number, 0 or more."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= sys.float_info.max


@dataclass(frozen=True, slots=True)
class Cache:
    """One data cache: `bytes` as reported, `usable_bytes` what the measured curve says is ours."""

    name: str
    bytes: int
    line_bytes: int
    ways: int
    shared_by: int
    usable_bytes: int

    def __post_init__(self) -> None:
        for name in ('bytes', 'line_bytes', 'ways', 'shared_by', 'usable_bytes'):
            value = getattr(self, name)
            if not _whole(value, MOST_BYTES):
                raise InputError(
                    f'cache {self.name}: {name} is {value!r}; it must be a whole number, at least '
                    f'1 and at most 2^50'
                )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the models need to know. Bandwidths in GB/s, peaks in GFLOP/s of fp32 FMA.

    `dot_dtype` is what its products of small whole numbers multiply ('' for what every machine with
    its instruction set has), their peaks are in G operations/s, two for each product; 0 where they
    were not measured. `half_one_gflops` and `half_all_gflops` are peaks of f16 multiply-adds, 0
    where it has none. `tile_one_gops` and `bf16_one_gflops`, and those of all cores, are peaks of
    bytes and of bf16 in tiles, 0 where it has none. `constants` are those of the time model that
    were fitted on it, None where it was not calibrated (`time_constants`).
    """

    name: str
    isa: str
    cores: int
    clock_ghz: float
    caches: tuple[Cache, ...]
    peak_one_gflops: float
    peak_all_gflops: float
    bandwidth_one_gbps: tuple[float, ...]
    bandwidth_all_gbps: tuple[float, ...]
    fork_join_us: float = 5.0
    measured: bool = False
    fingerprint: str = ''
    dot_dtype: str = ''
    dot_one_gops: float = 0.0
    dot_all_gops: float = 0.0
    half_one_gflops: float = 0.0
    half_all_gflops: float = 0.0
    tile_one_gops: float = 0.0
    tile_all_gops: float = 0.0
    bf16_one_gflops: float = 0.0
    bf16_all_gflops: float = 0.0
    constants: TimeConstants | None = None

    def __post_init__(self) -> None:
        for name in ('name', 'fingerprint'):
            if not isinstance(getattr(self, name), str):
                raise InputError(f'machine {name} is {getattr(self, name)!r}; it must be text')
        if not isinstance(self.isa, str) or self.isa not in ISAS:
            self._refuse('isa', f'choose one of {", ".join(ISAS)}')
        if not _whole(self.cores, MOST_CORES):
            self._refuse('cores', f'it must be a whole number, 1 to {MOST_CORES}')
        caches = self.caches
        if not isinstance(caches, tuple) or not caches or not all(type(c) is Cache for c in caches):
            self._refuse('caches', 'at least one cache is needed, the innermost first')
        may_be_zero = ('fork_join_us', 'dot_one_gops', 'dot_all_gops')
        may_be_zero = (*may_be_zero, 'half_one_gflops', 'half_all_gflops')
        in_tiles = ('tile_one_gops', 'tile_all_gops', 'bf16_one_gflops', 'bf16_all_gflops')
        may_be_zero = (*may_be_zero, *in_tiles)
        for name in ('clock_ghz', 'peak_one_gflops', 'peak_all_gflops', *may_be_zero):
            value = getattr(self, name)
            if not _figure(value) or (value == 0 and name not in may_be_zero):
                self._refuse(name, 'it must be a positive finite number')
        known = [dot.dtype for dot in ISAS[self.isa].dots]
        if self.dot_dtype not in ('', *known):
            self._refuse('dot_dtype', f'{self.isa} has {", ".join(known) or "none"}')
        if self.half_one_gflops and not ISAS[self.isa].half:
            self._refuse('half_one_gflops', f'{self.isa} has no arithmetic of f16: leave it out')
        for name in in_tiles:
            if getattr(self, name) and not ISAS[self.isa].tiles:
                self._refuse(name, f'{self.isa} has no tiles: leave it out')
        for name in ('bandwidth_one_gbps', 'bandwidth_all_gbps'):
            values, count = getattr(self, name), len(caches) + 1
            right = isinstance(values, tuple) and len(values) == count
            if not right or not all(_figure(v) and v > 0 for v in values):
                self._refuse(name, f'it needs {count} positive figures, one for each boundary')

    def _refuse(self, field: str, limit: str) -> NoReturn:
        raise InputError(f'machine {self.name}: {field} is {getattr(self, field)!r}; {limit}')

    @property
    def time_constants(self) -> TimeConstants:
        return self.constants or default_constants(self.isa)

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Names of the boundaries, by receiving level: reg, l1, l2, ..."""
        return ('reg', *(c.name for c in self.caches))

    def peak_gflops(self, threads: int) -> float:
        """FMA peak of `threads` cores."""
        if threads <= 1:
            return self.peak_one_gflops
        return self.peak_all_gflops * min(threads, self.cores) / self.cores

    @property
    def dot(self) -> Dot | None:
        """How it multiplies small whole numbers."""
        isa = ISAS[self.isa]
        return isa.dot(self.dot_dtype) or next(iter(reversed(isa.dots)), None)

    def in_words(self) -> Machine:
        """The machine as products of words see it: a multiply-add of words is one of floats."""
        dot = self.dot
        if dot is None or not self.dot_one_gops:
            return self
        one, every = self.dot_one_gops / dot.products, self.dot_all_gops / dot.products
        return replace(
            self, isa=word_isa(self.isa, dot.dtype), peak_one_gflops=one,
            peak_all_gflops=max(one, every), constants=self.time_constants,
        )  # fmt: skip

    @property
    def half(self) -> bool:
        """Whether it multiplies f16."""
        return self.half_one_gflops > 0

    @property
    def tiles(self) -> bool:
        """Whether it multiplies bytes in tiles."""
        return self.tile_one_gops > 0

    @property
    def bf16(self) -> bool:
        """Whether it multiplies bf16, in tiles."""
        return self.bf16_one_gflops > 0

    def computes(self, dtype: str) -> bool:
        """Whether networks are computed in a type of 16 bits on it."""
        return {'f16': self.half, 'bf16': self.bf16}.get(dtype, False)

    def in_tiles(self, dtype: str) -> Machine:
        """The machine as products of words in tiles see it, of bytes or of bf16."""
        one, every = self.tile_one_gops / 4, self.tile_all_gops / 4
        if dtype == 'bf16':
            one, every = self.bf16_one_gflops / 2, self.bf16_all_gflops / 2
        return replace(
            self, isa=tile_isa(self.isa), peak_one_gflops=one, peak_all_gflops=max(one, every),
            dot_dtype='', dot_one_gops=0.0, dot_all_gops=0.0, half_one_gflops=0.0,
            half_all_gflops=0.0, tile_one_gops=0.0, tile_all_gops=0.0, bf16_one_gflops=0.0,
            bf16_all_gflops=0.0, constants=self.time_constants,
        )  # fmt: skip

    def multiplying(self, dtype: str) -> Machine:
        """The machine with the peak of a dtype's multiply-adds, where it has them: what bounds
        products of it.
        """
        if dtype == 'bf16' and self.bf16:
            return replace(
                self, peak_one_gflops=self.bf16_one_gflops, peak_all_gflops=self.bf16_all_gflops
            )
        if dtype != 'f16' or not self.half:
            return self
        return replace(
            self, peak_one_gflops=self.half_one_gflops, peak_all_gflops=self.half_all_gflops
        )

    def in_halves(self) -> Machine:
        """The machine as products of f16 see it: a word, two of them, stands where a float does,
        and a multiply-add of words is one of floats.
        """
        one, every = self.half_one_gflops / 2, self.half_all_gflops / 2
        return replace(
            self, isa=half_isa(self.isa), peak_one_gflops=one, peak_all_gflops=max(one, every),
            dot_dtype='', dot_one_gops=0.0, dot_all_gops=0.0, half_one_gflops=0.0,
            half_all_gflops=0.0, constants=self.time_constants,
        )  # fmt: skip

    def bandwidth_gbps(self, boundary: int, threads: int) -> float:
        """Bandwidth over one boundary for `threads` cores together."""
        one, together = self.bandwidth_one_gbps[boundary], self.bandwidth_all_gbps[boundary]
        if threads <= 1 or self.cores == 1:
            return one
        share = (min(threads, self.cores) - 1) / (self.cores - 1)
        return one + (together - one) * share

    def capacity_bytes(self, level: int, threads: int) -> int:
        """What one of `threads` threads may fill of cache `level` (0 = L1)."""
        cache = self.caches[level]
        return cache.usable_bytes // min(max(threads, 1), cache.shared_by)

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Machine:
        try:
            caches = tuple(Cache(**c) for c in data['caches'])
            rest = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            fitted = data.get('constants')
            constants = None if fitted is None else TimeConstants.from_json(fitted)
            return cls(**{**rest, 'caches': caches, 'constants': constants})
        except (KeyError, TypeError) as error:
            raise InputError(
                f'a machine file is incomplete or has an unknown field: {error}'
            ) from None

    @classmethod
    def loads(cls, text: str) -> Machine:
        try:
            return cls.from_json(json.loads(text))
        except ValueError as error:
            raise InputError(f'a machine file is not JSON: {error}') from None
