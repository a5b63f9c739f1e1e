"""GPU schedules -> machine code, many at once, by NVRTC in processes of their own.

Goes in: a group, a schedule, an architecture. Comes out: a `Pending` with its `Built`: files of a
module's kernels, in their order, or one sentence that says why there are none. Nothing here needs a
GPU. Files live as long as the `Compiler`; kernels with the same source are compiled once.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tilewright import knobs
from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel, lower
from tilewright.ops.group import Group
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.gpu.cuda import compile_cubin
from tilewright.runtime.pool import LostError, Pool
from tilewright.schedule.gpu import GpuSchedule


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


class Compiler:
    """Processes that compile; use it in a `with` statement.

    One that dies or does not end in time is a `Built` with an error, as any other refusal is.
    """

    def __init__(
        self, architecture: str, processes: int | None = None, limit: float | None = None
    ) -> None:
        self.architecture = architecture
        seconds = knobs.get('time_limit') if limit is None else limit
        self._pool = Pool(processes or os.cpu_count() or 1, limit=seconds)
        self._folder = tempfile.TemporaryDirectory(prefix='tilewright-gpu-')

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        self._folder.cleanup()

    def submit(
        self, group: Group, schedule: GpuSchedule, work: Callable[..., Built] = build
    ) -> Pending:
        """`work` is what a process does; another one is for tests."""
        future = self._pool.submit(
            work, group.to_json(), schedule.to_json(), self.architecture, self._folder.name
        )
        return Pending(future)


@dataclass(frozen=True, slots=True)
class Pending:
    """A compilation under way."""

    future: Future

    def result(self) -> Built:
        """What came of it; waits for it, as long as the compiler's limit allows."""
        try:
            return self.future.result()
        except LostError as error:
            return Built(error=f'the compilation was lost: {error}')
