"""What the models need to know of a GPU: multiprocessors, registers, shared memory, bandwidths.

Values are queried from the device or measured; files for known GPUs are in `known/gpu/`. What
follows from the compute capability of NVIDIA's alone is in machine/nvidia.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Any

from tilewright.errors import InputError, ScheduleError

# The matrix instruction that an intrinsic of a schedule is made of; others need none.
NEEDED = {
    'mma_tf32x3': 'mma_tf32', 'wgmma_tf32x3': 'wgmma_tf32', 'wgmma_tf32_bf16': 'wgmma_tf32',
    'mma_half': 'mma_half', 'wgmma_half': 'wgmma_half_f16',
    'mma_int8': 'mma_int8', 'wgmma_int8': 'wgmma_int8_u8_i8',
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A GPU. Bandwidths are of the whole device, in 10^9 bytes a second.

    instructions   matrix instructions that kernels may use there: the GPU has them, and so has the
                   language that it is programmed in
    assumed        figures of this description that were neither queried nor measured
    """

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
    instructions: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def has(self, intrinsic: str) -> bool:
        """Whether schedules may multiply by an intrinsic here."""
        return intrinsic not in NEEDED or NEEDED[intrinsic] in self.instructions

    @property
    def peak_gflops(self) -> float:
        return 2 * self.multiprocessors * self.fp32_lanes * self.clock_ghz

    def to_json(self) -> dict:
        return asdict(self) | {name: list(getattr(self, name)) for name in _TUPLES}

    @classmethod
    def from_json(cls, data: Mapping) -> GpuMachine:
        names = {f.name for f in fields(cls)}
        optional = set(_TUPLES)
        if not isinstance(data, Mapping) or set(data) - names or names - set(data) - optional:
            raise InputError(f'a GPU machine file has the keys {sorted(names)}')
        values: dict[str, Any] = dict(data)
        values |= {name: tuple(data[name]) for name in optional if name in data}
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


_TUPLES = ('capability', 'instructions', 'assumed')


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


def known_by(label: str) -> GpuMachine | None:
    """The known GPU that a device's name means: 'Tesla V100-SXM2-16GB' is v100, 'GH200' none."""
    words = re.findall(r'[a-z0-9]+', label.lower())
    runs = {''.join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    found = [name for name in known_gpus() if name in runs]
    return known_gpu(found[0]) if found else None
