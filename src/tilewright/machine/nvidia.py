"""What follows from an NVIDIA GPU's compute capability, and its description from what was queried.

Goes in: a name, a capability, the attributes that a driver told. Comes out: a `GpuMachine`. A GPU
that has a file in `known/gpu/` gets its bandwidths from there; another one gets what its attributes
imply, and `assumed` names the figures that still are guesses. Figures: CUDA Programming Guide,
technical specifications by compute capability, and arithmetic instructions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.machine.gpu import GpuMachine, known_by

# fp32 multiply-adds that a multiprocessor starts in a cycle; others start 128.
_LANES = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_LISTED = ((5, 0), (12, 1))  # capabilities that this table speaks of
# Of a multiprocessor: threads, blocks, KiB of shared memory; then KiB of it for one block.
_LIMITS = {
    (6, 0): (2048, 32, 64, 48), (6, 1): (2048, 32, 96, 48), (7, 0): (2048, 32, 96, 96),
    (7, 5): (1024, 16, 64, 64), (8, 0): (2048, 32, 164, 163), (8, 6): (1536, 16, 100, 99),
    (8, 9): (1536, 24, 100, 99), (9, 0): (2048, 32, 228, 227), (10, 0): (2048, 32, 228, 227),
    (12, 0): (1536, 24, 100, 99),
}  # fmt: skip
_LEAST = (1024, 16, 64, 48)  # what every one since 6.0 has
# An L2 cache delivers some 0.3 of the 64 bytes that each multiprocessor can take in a cycle, and
# memory half of that, on the GPUs whose bandwidths were measured.
_L2_SHARE, _L2_BYTES, _MEMORY_SHARE = 0.3, 64, 0.5


def instructions_of(capability: tuple[int, int]) -> frozenset[str]:
    """Matrix instructions that schedules need and a GPU has; those of warpgroups are Hopper's.

    resident_grid: blocks of a kernel may wait for each other, if CUDA starts all of them together.
    """
    found = {'resident_grid'} if capability >= (7, 0) else set()
    found |= {'mma_half', 'mma_int8', 'mma_tf32'} if capability >= (8, 0) else set()
    hopper = {'wgmma_half_bf16', 'wgmma_half_f16', 'wgmma_tf32'}
    hopper |= {f'wgmma_int8_{a}_{b}' for a in ('u8', 'i8') for b in ('u8', 'i8')}
    return frozenset(found | (hopper if capability == (9, 0) else set()))


def nvidia_gpu(
    name: str, capability: tuple[int, int], multiprocessors: int, clock_ghz: float, **told: Any
) -> GpuMachine:
    """The description of a GPU; `told` are further fields of it that the driver answered."""
    threads, blocks, shared, of_block = _LIMITS.get(capability, _LEAST)
    l2_gbps = _L2_SHARE * _L2_BYTES * multiprocessors * clock_ghz
    assumed = {'global_gbps', 'l2_gbps', 'l2_bytes'} - set(told)
    if not _LISTED[0] <= capability <= _LISTED[1]:
        assumed.add('fp32_lanes')
    if capability not in _LIMITS:
        assumed |= {'threads', 'blocks', 'shared_bytes', 'shared_bytes_per_block'} - set(told)
    values: dict[str, Any] = {
        'warp': 32,
        'fp32_lanes': _LANES.get(capability, 128),
        'registers': 65536,
        'registers_per_thread': 255,
        'shared_bytes': shared << 10,
        'shared_bytes_per_block': of_block << 10,
        'threads': threads,
        'threads_per_block': 1024,
        'blocks': blocks,
        'l2_bytes': 4 << 20,
        'global_gbps': _MEMORY_SHARE * l2_gbps,
        'l2_gbps': l2_gbps,
        'shared_gbps': 128.0 * multiprocessors * clock_ghz,
        'instructions': tuple(sorted(instructions_of(capability))),
    }
    made = GpuMachine(
        name=name, multiprocessors=multiprocessors, clock_ghz=clock_ghz, capability=capability,
        assumed=tuple(sorted(assumed)), **(values | told),
    )  # fmt: skip
    known = known_by(name)
    if known is None:
        return made
    rest = {n: getattr(known, n) for n in ('global_gbps', 'l2_gbps', *assumed)}
    return replace(made, **rest, assumed=())
