"""Bandwidths of a GPU that has no file: measured once, then kept in the cache.

Goes in: an open device. Comes out: its description, where what `assumed` names of bandwidths was
measured: bytes that all multiprocessors read in a second from memory (an array several times as
large as L2) and from L2 (one that fits it, read by another block in every turn, so that no first
cache has it). Shared memory's follows from the architecture, 128 bytes a cycle.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.machine.compiler import cache_dir
from tilewright.machine.gpu import GpuMachine
from tilewright.runtime.gpu.device import Call, Device

MEASURED = ('global_gbps', 'l2_gbps')
THREADS, BLOCKS = 256, 8  # of a block; of a multiprocessor
TIMES_L2, LARGEST_BYTES = 8, 2 << 30
SHARE_OF_L2, TURNS = 0.25, 16
REPEATS = 5
APART = 97  # blocks between the readers of a piece in two turns

BODY = """\
float4 sum = FLOAT4(0.0f, 0.0f, 0.0f, 0.0f);
for (int turn = 0; turn < {turns}; turn++) {{
    const int reader = (BLOCK_X + turn * {apart}) % {blocks};
    for (int i = reader * {threads} + THREAD; i < {fours}; i += {step}) {{
        const float4 v = LOAD4(GLOBAL, @In + 4 * i);
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
    }}
}}
@Out[i=BLOCK_X * {threads} + THREAD] = (sum.x + sum.y) + (sum.z + sum.w);"""


def reading(floats: int, blocks: int, turns: int) -> Kernel:
    """A kernel whose blocks together read an array `turns` times; each thread adds what it read."""
    body = BODY.format(
        turns=turns, apart=APART, blocks=blocks, threads=THREADS, fours=floats // 4,
        step=blocks * THREADS,
    )  # fmt: skip
    args = (
        Array('In', ('i',), (floats,)),
        Array('Out', ('i',), (blocks * THREADS,), written=True),
    )
    return Kernel('reading', args, body, (blocks, 1, 1), THREADS)


def read_gbps(device: Device, size: int, turns: int) -> float:
    """10^9 bytes a second that are read of an array of `size` bytes."""
    blocks = BLOCKS * device.machine.multiprocessors
    floats = size // 16 * 4
    program = device.compile(reading(floats, blocks, turns))
    data = device.upload(np.zeros(floats, np.float32), ('i',))
    out = device.empty(('i',), (blocks * THREADS,))
    try:
        seconds = min(device.time([Call(program, {'In': data, 'Out': out})], REPEATS))
    finally:
        device.free(data)
        device.free(out)
        device.unload(program)
    return 4 * floats * turns / seconds / 1e9


def measured(device: Device) -> dict[str, float]:
    """Both bandwidths."""
    l2 = device.machine.l2_bytes
    return {
        'global_gbps': read_gbps(device, min(TIMES_L2 * l2, LARGEST_BYTES), 1),
        'l2_gbps': read_gbps(device, int(SHARE_OF_L2 * l2), TURNS),
    }


def described(device: Device) -> GpuMachine:
    """The machine of a device, no bandwidth of an NVIDIA GPU a guess.

    What runs on a CPU (no compute capability) is left as it is: its models are for testing only.
    """
    machine = device.machine
    missing = [name for name in MEASURED if name in machine.assumed]
    if not missing or not any(machine.capability):
        return machine
    path = _file(machine)
    found = _read(path)
    if found is None:
        found = measured(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({'name': machine.name, **found}) + '\n')
    left = tuple(name for name in machine.assumed if name not in missing)
    return replace(machine, **{name: found[name] for name in missing}, assumed=left)


def _file(machine: GpuMachine) -> Path:
    """By what a measurement depends on."""
    key = json.dumps([machine.name, machine.multiprocessors, machine.clock_ghz, machine.l2_bytes])
    return cache_dir() / 'machine' / f'gpu-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json'


def _read(path: Path) -> dict[str, float] | None:
    """Stored figures; None where there are none that can be read."""
    try:
        data = json.loads(path.read_text())
        found = {name: float(data[name]) for name in MEASURED}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if min(found.values()) > 0 else None
