"""The machine a schedule is made for: cores, caches, peaks, bandwidths. A value; JSON both ways.

Boundaries are numbered from the inside: boundary 0 moves data between L1 and the registers,
boundary i between cache i and cache i+1, the last between the outermost cache and memory. So there
are `len(caches) + 1` boundaries, named by the level that receives: 'reg', 'l1', 'l2', 'l3'.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from tilewright.errors import InputError


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
        if min(self.bytes, self.line_bytes, self.ways, self.shared_by, self.usable_bytes) < 1:
            raise InputError(f'cache {self.name} has a figure below 1: {self}')


@dataclass(frozen=True, slots=True)
class Machine:
    """What the models need to know. Bandwidths in GB/s, peaks in GFLOP/s of fp32 FMA."""

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

    def __post_init__(self) -> None:
        for name in ('bandwidth_one_gbps', 'bandwidth_all_gbps'):
            values = getattr(self, name)
            if len(values) != len(self.caches) + 1 or min(values) <= 0:
                raise InputError(
                    f'machine {self.name}: {name} is {values}; it needs {len(self.caches) + 1} '
                    f'positive figures, one for each boundary'
                )
        if self.cores < 1 or self.peak_one_gflops <= 0 or self.peak_all_gflops <= 0:
            raise InputError(f'machine {self.name}: cores and peaks must be positive')

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Names of the boundaries, by receiving level: reg, l1, l2, ..."""
        return ('reg', *(c.name for c in self.caches))

    def peak_gflops(self, threads: int) -> float:
        """FMA peak of `threads` cores."""
        if threads <= 1:
            return self.peak_one_gflops
        return self.peak_all_gflops * min(threads, self.cores) / self.cores

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
            return cls(**{**rest, 'caches': caches})
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

    def renamed(self, name: str) -> Machine:
        return replace(self, name=name)
