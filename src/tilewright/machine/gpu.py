"""What the models need to know of a GPU: multiprocessors, registers, shared memory, bandwidths.

Values are queried from the device or measured; files for known GPUs are in `known/gpu/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Any

from tilewright.errors import InputError, ScheduleError


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A GPU. Bandwidths are of the whole device, in 10^9 bytes a second."""

    name: str
    multiprocessors: int
    warp: int
    clock_ghz: float
    fp32_lanes: int  # multiply-adds that a multiprocessor starts in a cycle
    registers: int  # of a multiprocessor, 32 bits each
    registers_per_thread: int
    shared_bytes: int  # of a multiprocessor
    shared_bytes_per_block: int
    threads: int  # of a multiprocessor
    threads_per_block: int
    blocks: int  # of a multiprocessor
    l2_bytes: int
    global_gbps: float
    l2_gbps: float
    shared_gbps: float
    capability: tuple[int, int] = (0, 0)

    @property
    def peak_gflops(self) -> float:
        return 2 * self.multiprocessors * self.fp32_lanes * self.clock_ghz

    def to_json(self) -> dict:
        return asdict(self) | {'capability': list(self.capability)}

    @classmethod
    def from_json(cls, data: Mapping) -> GpuMachine:
        names = {f.name for f in fields(cls)}
        if not isinstance(data, Mapping) or set(data) - names or names - set(data) - {'capability'}:
            raise InputError(f'a GPU machine file has the keys {sorted(names)}')
        values: dict[str, Any] = dict(data)
        values['capability'] = tuple(data.get('capability', (0, 0)))
        return cls(**values)

    def fits(
        self, name: str, threads: int, shared_bytes: int, registers: int | None = None
    ) -> None:
        """Raise ScheduleError where a block of such a kernel cannot run here."""
        for what, need, limit in (
            ('threads a block', threads, self.threads_per_block),
            ('bytes of shared memory a block', shared_bytes, self.shared_bytes_per_block),
            ('registers a block', (registers or 0) * threads, self.registers),
        ):
            if need > limit:
                raise ScheduleError(
                    f'kernel {name} needs {need} {what}, and {self.name} has {limit}; choose '
                    f'smaller tiles'
                )


def known_gpus() -> list[str]:
    folder = resources.files('tilewright.machine') / 'known' / 'gpu'
    return sorted(
        f.name.removesuffix('.json') for f in folder.iterdir() if f.name.endswith('.json')
    )


def known_gpu(name: str) -> GpuMachine:
    """A GPU by the name of its file."""
    if name not in known_gpus():
        raise InputError(f'GPU {name!r} is not known; known: {", ".join(known_gpus())}')
    folder = resources.files('tilewright.machine') / 'known' / 'gpu'
    return GpuMachine.from_json(json.loads((folder / f'{name}.json').read_text()))
