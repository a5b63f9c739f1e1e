"""NVIDIA's OpenCL beyond the standard: attributes of its devices, and code for their own target.

Goes in: an open device. Comes out: a `Route`, the way in which this driver takes code for sm_90a,
or the sentences that say why it does not. Two ways are tried on a small kernel, which is run:

    option      the compiler is told the target by an option that it has but does not document
    uncovered   the compiler's PTX, instructions of the target hidden in it as comments, is changed
                and handed back as the program's binary (kernels/gpu/dialects/nvidia.py)

A driver that runs neither runs kernels of the plain target only: the search is told so, and a
schedule that needs more is refused with a sentence. Since nothing of this is documented, it is
tried in a process of its own: `python -m tilewright.runtime.gpu.opencl_probe DEVICE`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.dialects.nvidia import LATER, STATIC_SHARED_BYTES, uncovered
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.occupancy import occupancy
from tilewright.runtime.gpu import opencl_api as cl
from tilewright.runtime.gpu.opencl_api import Api, Handle

OWN_TARGETS = {(9, 0): 'sm_90a'}
# Of a block on Hopper (CUDA Programming Guide, compute capability 9.0: 227 KiB), less what NVIDIA's
# OpenCL takes for itself, which is 16 bytes.
OWN_SHARED_BYTES = (227 << 10) - 1024
PROBED_BYTES = (OWN_SHARED_BYTES, 99 << 10, STATIC_SHARED_BYTES // 2)
PROBE_LIMIT_S = 120.0
VERBOSE = '-cl-nv-verbose'  # the assembler's report comes with the build log
REGISTERS = '-cl-nv-maxrregcount'

Build = Callable[[str, str], Handle]  # (source, options) -> a program
Rebuild = Callable[[bytes, str], Handle]  # (binary, options) -> a program


@dataclass(frozen=True, slots=True)
class Route:
    """How code for a device's own target gets to it.

    name           'option' or 'uncovered'; '' where there is no way
    shared_bytes   of a block, as far as it was seen to work
    notes          what was tried, a sentence each
    """

    name: str = ''
    shared_bytes: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict:
        return asdict(self) | {'notes': list(self.notes)}


@cache
def asked(device: str) -> Route:
    """The route of a device, found out by a process that may crash or hang."""
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))]
    command = [sys.executable, '-P', '-m', 'tilewright.runtime.gpu.opencl_probe', device]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROBE_LIMIT_S,
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(paths)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Route(notes=(f'the probe had not ended after {PROBE_LIMIT_S:.0f} s',))
    try:
        said = json.loads(answer.stdout.splitlines()[-1])
        return Route(said['name'], said['shared_bytes'], tuple(said['notes']))
    except (ValueError, KeyError, IndexError):
        last = (answer.stderr.strip().splitlines() or ['no message'])[-1]
        return Route(notes=(f'the probe ended with status {answer.returncode}: {last}',))


def capability(api: Api, device: int) -> tuple[int, int]:
    """Compute capability; (0, 0) where the driver does not tell."""
    try:
        return tuple(
            api.number('GetDeviceInfo', device, what)
            for what in (cl.NV_CAPABILITY_MAJOR, cl.NV_CAPABILITY_MINOR)
        )  # pyright: ignore[reportReturnType]
    except cl.OpenCLError:
        return 0, 0


def own_program(
    route: str, source: str, target: str, api: Api, build: Build, rebuild: Rebuild,
    options: str = VERBOSE,
) -> Handle:  # fmt: skip
    """A program for the device's own target, by one of the two ways."""
    if route == 'option':
        return build(source, f'{options} -cl-nv-arch {target}')
    first = build(source, f'-D {LATER}')
    text = api.binary(first.value).rstrip(b'\0').decode(errors='replace')
    return rebuild(uncovered(text, target).encode() + b'\0', options)


def register_limit(kernel: Kernel, registers: int | None, machine: GpuMachine) -> int | None:
    """Registers of a thread with which a multiprocessor would hold more of a kernel's blocks.

    This compiler keeps more addresses in registers than CUDA's does: pointers to shared memory have
    64 bits. None where it is not registers that limit the blocks, or where the grid has no more.
    """
    if registers is None:
        return None
    wanted = min(
        occupancy(machine, kernel.threads, 1, kernel.shared_bytes).blocks,
        math.ceil(math.prod(kernel.grid) / machine.multiprocessors),
    )
    if occupancy(machine, kernel.threads, registers, kernel.shared_bytes).blocks >= wanted:
        return None
    return machine.registers // (wanted * kernel.threads) // 8 * 8 or None


def probe(shared_bytes: int) -> Kernel:
    """A kernel with instructions of a warpgroup, whose threads exchange numbers through memory."""
    threads, floats = 128, shared_bytes // 4
    step = floats // threads
    body = f"""\
memory[THREAD * {step}] = (float)THREAD;
BARRIER;
MATRIX_BEGIN;
MATRIX_COMMIT;
MATRIX_WAIT(0);
@Out[i=THREAD] = memory[({threads - 1} - THREAD) * {step}];"""
    out = Array('Out', ('i',), (threads,), written=True)
    needs = frozenset({'wgmma_tf32/16'})
    return Kernel('probe', (out,), body, (1, 1, 1), threads, (('memory', floats),), needs=needs)


def find_route(run: Callable[[Kernel, str], np.ndarray]) -> Route:
    """`run(kernel, route)` builds and runs a kernel; comes out: the way that can do most."""
    notes: list[str] = []
    for shared in PROBED_BYTES:
        for name in ('option', 'uncovered'):
            kernel = probe(shared)
            try:
                right = (run(kernel, name) == np.arange(kernel.threads)[::-1]).all()
            except TilewrightError as error:
                notes.append(f'{name}, {shared} bytes of shared memory: {error}')
                continue
            notes.append(f'{name}, {shared} bytes: {"works" if right else "a wrong answer"}')
            if right:
                limit = shared if shared > STATIC_SHARED_BYTES else STATIC_SHARED_BYTES
                return Route(name, limit, tuple(notes))
    return Route(notes=tuple(notes))
