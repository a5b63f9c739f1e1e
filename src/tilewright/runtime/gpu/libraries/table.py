"""The vendors' libraries by name: which there are, their versions, and what they propose.

Goes in: a name, a stream, a group. Comes out: an open library; schedules that it would compute the
group by (kernels/gpu/schemas/library), the one first that it expects to be the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tilewright.errors import InputError, MissingError
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.schemas.library import calls_for
from tilewright.kernels.gpu.schemas.library.calls import (
    CUBLASLT,
    CUDNN,
    TITLES,
    call_of,
    version_text,
)
from tilewright.ops.group import Group
from tilewright.runtime.gpu.libraries import cublaslt, cudnn
from tilewright.runtime.gpu.libraries.loading import declared, loaded
from tilewright.schedule.gpu import GpuSchedule

MODES = ('none', 'auto', 'only')
NAMES = (CUDNN, CUBLASLT)
_WANTED = {CUDNN: cudnn.WANTED, CUBLASLT: cublaslt.WANTED}


class Ready(Protocol):
    """A call with its descriptors filled."""

    def run(self, memory: Mapping[str, int]) -> None: ...

    def close(self) -> None: ...


class Library(Protocol):
    """A library on one device."""

    @property
    def version(self) -> int: ...

    def algorithms(self, call: Any) -> list[tuple[int, int]]: ...

    def prepare(self, call: Any) -> Ready: ...


def check_mode(mode: str, target: str) -> None:
    """Refuse words that are not known, and targets that no library serves."""
    if mode not in MODES:
        raise InputError(f'libraries is {mode!r}; choose one of {", ".join(MODES)}')
    if mode == 'none' or target == 'cuda':
        return
    if target == 'cpu':
        raise InputError(
            f"libraries={mode!r} needs target='cuda': there is no library for the CPU yet, since "
            f'ONNX Runtime does not expose its kernels one by one; leave it out'
        )
    raise InputError(
        f"libraries={mode!r} needs target='cuda', whose {' and '.join(TITLES.values())} it means; "
        f'leave it out with target={target!r}'
    )


def available() -> tuple[dict[str, int], list[str]]:
    """(name -> version of every library that is here, why the others are not)."""
    versions, missing = {}, []
    for name in NAMES:
        try:
            versions[name] = loaded(_WANTED[name])[1]
        except MissingError as error:
            missing.append(str(error))
    return versions, missing


def opened(name: str, stream: int) -> Library:
    """A library on the current device; raises MissingError where it is not here."""
    if name == CUDNN:
        # cuDNN's engines link cuBLASLt, which lies in another wheel: the loader finds it by name.
        available()
        api, version = loaded(cudnn.WANTED)
        return cudnn.Cudnn(declared(api, cudnn.SIGNATURES), version, stream)
    api, version = loaded(cublaslt.WANTED)
    return cublaslt.CublasLt(declared(api, cublaslt.SIGNATURES), version, stream)


def ready(library: Library, kernel: Kernel) -> Ready:
    """The call that a kernel holds; raises MissingError for that of another major version."""
    call = call_of(kernel)
    if call.version // 10000 != library.version // 10000:
        raise MissingError(
            f'{TITLES[kernel.language]} {version_text(call.version)} was chosen, but here is '
            f'{version_text(library.version)}; compile the model again'
        )
    return library.prepare(call)


def proposals(library: Library, name: str, group: Group) -> list[GpuSchedule]:
    """What a library would compute a group by; ScheduleError where it cannot.

    What is behind the sums is part of the call where some algorithm can do it.
    """
    found: dict[int, GpuSchedule] = {}
    for prepared in calls_for(name, group):
        for algorithm, workspace in library.algorithms(prepared.call):
            found.setdefault(
                algorithm,
                GpuSchedule.of(
                    name, version=library.version, algorithm=algorithm, workspace=workspace,
                    fused=int(prepared.fused),
                ),
            )  # fmt: skip
    return list(found.values())
