"""Kernels of a network into programs: CUDA's in many processes, and kept on disk.

Goes in: kernels, a device. Comes out: a program for each. NVRTC takes about a second for a kernel,
on one core; what it made lies in `gpu/` of the cache directory under the hash of architecture,
compiler and source, and may be deleted at any time. Other backends have caches of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel, lower
from tilewright.kernels.gpu.schemas.library.calls import is_library
from tilewright.machine.compiler import cache_dir, prune_files
from tilewright.machine.private import make_private, seal, why_open
from tilewright.ops.group import Group
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.gpu.cuda import CudaDevice, compile_cubin, nvrtc_version
from tilewright.runtime.gpu.device import Device, Program, Resources
from tilewright.runtime.pool import LostError, Pool, usable_cores
from tilewright.schedule.gpu import GpuSchedule

MOST_FILES = 20_000
LONGEST_S = 60.0  # of one kernel
OPTIMISED = ('-O1', '-O0')  # levels of the assembler that are tried where it dies

Report = Callable[[str, int, int], object]
Code = tuple[bytes, Resources]


def programs(
    device: Device, kernels: Iterable[Kernel], report: Report | None = None
) -> dict[Kernel, Program]:
    """A program for every distinct kernel."""
    wanted = list(dict.fromkeys(kernels))
    if isinstance(device, CudaDevice):
        ours = [kernel for kernel in wanted if not is_library(kernel)]
        codes = cubins(ours, device.architecture, report)
        found = {
            kernel: device.load(kernel, binary, '', resources)
            for kernel, (binary, resources) in codes.items()
        }
        return found | {k: device.compile(k) for k in wanted if is_library(k)}
    made = {}
    for done, kernel in enumerate(wanted, 1):
        made[kernel] = device.compile(kernel)
        if report is not None:
            report(kernel.name, done, len(wanted))
    return made


def cubins(
    kernels: Iterable[Kernel], architecture: str, report: Report | None = None
) -> dict[Kernel, Code]:
    """Machine code of every kernel: from disk, or from NVRTC in processes."""
    keys = {kernel: _key(kernel, architecture) for kernel in kernels}
    found = {kernel: code for kernel, key in keys.items() if (code := _read(key)) is not None}
    left = {keys[kernel]: kernel for kernel in keys if kernel not in found}
    if left:
        made = _compiled(left, architecture, report)
        found |= {kernel: made[key] for kernel, key in keys.items() if key in made}
    return {kernel: found[kernel] for kernel in keys}


def _compiled(
    left: Mapping[str, Kernel], architecture: str, report: Report | None
) -> dict[str, Code]:
    """In processes, even one alone: assemblers of CUDA die of some kernels, or do not end, which
    are compiled again with fewer optimisations.
    """
    made: dict[str, Code] = {}
    with Pool(min(usable_cores(), len(left)), limit=LONGEST_S) as pool:
        waiting = {key: pool.submit(_compile, kernel, architecture) for key, kernel in left.items()}
        for key, future in waiting.items():
            for level in OPTIMISED:
                try:
                    made[key] = future.result()
                    break
                except LostError:
                    future = pool.submit(_compile, left[key], architecture, level)
            else:
                made[key] = future.result()
            _keep(key, made[key])
            if report is not None:
                report(left[key].name, len(made), len(left))
    return made


def _compile(kernel: Kernel, architecture: str, level: str = '') -> Code:
    """The work of one process."""
    binary, _, resources = compile_cubin(kernel, architecture, level)
    return binary, resources


def build(group: Group, schedule: GpuSchedule, architecture: str) -> Built:
    """All kernels of a schedule as files that runtime/gpu/worker.py takes, or why there are none.

    The work of one process: what is kept is not compiled again.
    """
    try:
        files = []
        for kernel in generate(group, schedule).kernels:
            key = _key(kernel, architecture)
            code = _read(key)
            if code is None:
                code = _compile(kernel, architecture)
                _keep(key, code)
            files.append((str(_path(key)), code[1].registers, code[1].spill_bytes))
        return Built(tuple(files))
    except TilewrightError as error:
        return Built(error=str(error))


def _key(kernel: Kernel, architecture: str) -> str:
    said = json.dumps([architecture, nvrtc_version()])
    return hashlib.sha256(f'{said}\0{lower(kernel, CUDA)}'.encode()).hexdigest()[:32]


def _path(key: str) -> Path:
    return cache_dir() / 'gpu' / key[:2] / f'{key}.cubin'


def _read(key: str) -> Code | None:
    """What is kept, if it is whole."""
    path = _path(key)
    try:
        said = json.loads(path.with_suffix('.json').read_text())
        binary = path.read_bytes()
        if not why_open(path) and said['seal'] == seal(cache_dir(), binary):
            return binary, Resources(said['registers'], said['spill_bytes'])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _keep(key: str, code: Code) -> None:
    """Keep machine code, and beside it its checksum and what it takes; each whole or not at all."""
    binary, resources = code
    path = _path(key)
    said = {
        'seal': seal(cache_dir(), binary),
        'registers': resources.registers,
        'spill_bytes': resources.spill_bytes,
    }
    with contextlib.suppress(OSError):
        make_private(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix='tmp') as scratch:
            for place, data in ((path, binary), (path.with_suffix('.json'), json.dumps(said))):
                made = Path(scratch) / place.name
                made.write_bytes(data if isinstance(data, bytes) else data.encode())
                os.replace(made, place)
        prune_files(path.parents[1].glob('*/*'), 2 * MOST_FILES)
