"""GPU schedules -> machine code, many at once, by NVRTC in processes of their own.

Goes in: a group, a schedule, an architecture. Comes out: a future of `Built`: the files of a
module's kernels, in their order, or one sentence that says why there are none. Nothing here needs a
GPU. Files live as long as the `Compiler`; kernels with the same source are compiled once.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tilewright.codegen.gpu.dialect_cuda import CUDA
from tilewright.codegen.gpu.generate import generate
from tilewright.codegen.gpu.language import Kernel, lower
from tilewright.errors import TilewrightError
from tilewright.ops.group import Group
from tilewright.runtime.cuda import compile_cubin
from tilewright.runtime.device import Resources
from tilewright.schedule.gpu import GpuSchedule


@dataclass(frozen=True, slots=True)
class Built:
    """Files of a module's kernels, (path, registers, spilled bytes) each; or an error."""

    files: tuple[tuple[str, int | None, int | None], ...] = ()
    error: str = ''

    def to_json(self) -> list:
        return [list(file) for file in self.files]


def build(group: Mapping, schedule: Mapping, architecture: str, folder: str) -> Built:
    """The work of one process: all kernels of one module."""
    try:
        module = generate(Group.from_json(group), GpuSchedule.from_json(schedule))
        return Built(tuple(_kernel(k, architecture, Path(folder)) for k in module.kernels))
    except TilewrightError as error:
        return Built(error=str(error))


def _kernel(
    kernel: Kernel, architecture: str, folder: Path
) -> tuple[str, int | None, int | None]:  # fmt: skip
    key = hashlib.sha256(f'{architecture}\0{lower(kernel, CUDA)}'.encode()).hexdigest()[:32]
    path = folder / f'{key}.cubin'
    said = path.with_suffix('.json')
    if not said.exists():
        binary, _, resources = compile_cubin(kernel, architecture)
        _write(path, binary)
        _write(said, json.dumps([resources.registers, resources.spill_bytes]).encode())
    registers, spilled = json.loads(said.read_text())
    return str(path), registers, spilled


def _write(path: Path, data: bytes) -> None:
    """Under its name only when complete: two processes may compile the same kernel."""
    scratch = path.with_suffix(f'.{os.getpid()}')
    scratch.write_bytes(data)
    os.replace(scratch, path)


def read(file: tuple[str, int | None, int | None]) -> tuple[bytes, Resources]:
    """(machine code, resources) of one file of a `Built`."""
    path, registers, spilled = file
    return Path(path).read_bytes(), Resources(registers, spilled)


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that asked; it ends the compilers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Compiler:
    """Processes that compile; use it in a `with` statement."""

    def __init__(self, architecture: str, processes: int | None = None) -> None:
        self.architecture = architecture
        # Not forked: a process that has a CUDA context or threads does not survive that.
        spawn = multiprocessing.get_context('spawn')
        self._pool = ProcessPoolExecutor(
            processes or os.cpu_count() or 1, spawn, initializer=_leave_interrupts
        )
        self._folder = tempfile.TemporaryDirectory(prefix='tilewright-gpu-')

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def submit(self, group: Group, schedule: GpuSchedule) -> Future[Built]:
        return self._pool.submit(
            build, group.to_json(), schedule.to_json(), self.architecture, self._folder.name
        )
