"""Calls into a vendor's library as values: what a step of a module holds in the place of code.

A call is a `Kernel` whose `language` is the name of the library and whose body is the JSON of one
of these values; memory planning, proofs and graphs see arrays that are read and written, as of any
kernel. runtime/gpu/libraries reads the body and fills the library's descriptors from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Buffer, Step
from tilewright.ops.group import Tensor
from tilewright.schedule.gpu import GpuSchedule

CUDNN, CUBLASLT = 'cudnn', 'cublaslt'
TITLES = {CUDNN: 'cuDNN', CUBLASLT: 'cuBLASLt'}
WORKSPACE, ZEROS = 'Workspace', 'Zeros'


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    """What all calls have.

    version     of the library that proposed the algorithm, as it numbers itself
    algorithm   a number of cuDNN's, or the place among what cuBLASLt's heuristics name
    workspace   bytes that the algorithm may use
    bias, residual, relu   what the library does behind its sums, in this order
    """

    version: int = 0
    algorithm: int = 0
    workspace: int = 0
    bias: bool = False
    residual: bool = False
    relu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall(LibraryCall):
    """A convolution of an image NCHW by filters KCRS; (height, width) each. c is of all groups."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    out_h: int
    out_w: int
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCall(LibraryCall):
    """D[m, n] = A[m, k] B[k, n] `batch` times, columns contiguous as BLAS has them.

    dtype        of A and B: f32, f16 or bf16; products are added in float32
    result       of D, and of what is added to it
    transposed   whether A and B lie as [k, m] and [n, k]
    leading      elements between columns of A, B and D as they lie
    steps        elements between one A, B and D of a batch and the next
    """

    m: int
    n: int
    k: int
    transposed: tuple[bool, bool]
    leading: tuple[int, int, int]
    batch: int = 1
    steps: tuple[int, int, int] = (0, 0, 0)
    dtype: str = 'f32'
    result: str = 'f32'


AnyCall = ConvolutionCall | ProductCall
_KINDS: Mapping[str, type[AnyCall]] = {CUDNN: ConvolutionCall, CUBLASLT: ProductCall}


def is_library(kernel: Kernel) -> bool:
    """Whether a kernel is a call into a library."""
    return kernel.language in _KINDS


def decided(call: AnyCall, schedule: GpuSchedule) -> AnyCall:
    """The call with what a schedule decides."""
    return replace(
        call, version=schedule['version'], algorithm=schedule['algorithm'],
        workspace=schedule['workspace'],
    )  # fmt: skip


def step_of(
    library: str, call: AnyCall, operands: Mapping[str, Tensor], result: Tensor
) -> tuple[Step, tuple[Buffer, ...]]:
    """(the step, buffers it needs beside tensors). `operands`: what the call reads, by its words.

    A library that adds a bias with every activation is given zeros where there is none.
    """
    arrays = [_array(word, tensor) for word, tensor in operands.items()]
    buffers = [(word, tensor.name) for word, tensor in operands.items()]
    made: list[Buffer] = []
    if library == CUDNN and (call.relu or call.residual) and not call.bias:
        assert isinstance(call, ConvolutionCall)
        made.append(Buffer(ZEROS, ('k',), (call.k,), zeroed=True))
        arrays.append(Array('bias', ('k',), (call.k,)))
        buffers.append(('bias', ZEROS))
    if call.workspace:
        floats = -(-call.workspace // 4)
        made.append(Buffer(WORKSPACE, ('i',), (floats,)))
        arrays.append(Array('workspace', ('i',), (floats,), written=True))
        buffers.append(('workspace', WORKSPACE))
    arrays.append(_array('out', result, written=True))
    buffers.append(('out', result.name))
    body = json.dumps(asdict(call), sort_keys=True)
    kernel = Kernel(f'{library}_call', tuple(arrays), body, (1, 1, 1), 1, language=library)
    return Step(kernel, tuple(buffers)), tuple(made)


def _array(name: str, tensor: Tensor, written: bool = False) -> Array:
    return Array(name, tensor.dims, tensor.shape, tensor.dtype, written)


def call_of(kernel: Kernel) -> AnyCall:
    """The call that a kernel holds."""
    try:
        data: dict[str, Any] = json.loads(kernel.body)
        pairs: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return _KINDS[kernel.language](**pairs)
    except (KeyError, TypeError, ValueError) as error:
        raise ScheduleError(f'{kernel.name} holds no call of a library: {error!r}') from None


def version_text(version: int) -> str:
    """91900 -> '9.19.0'"""
    return f'{version // 10000}.{version // 100 % 100}.{version % 100}'


def call_text(kernel: Kernel) -> str:
    """One line of source for people: the library, its version and what it is asked for."""
    call = call_of(kernel)
    words = ', '.join(
        f'{name} {value}' for name, value in asdict(call).items() if name != 'version'
    )
    return f'// {TITLES[kernel.language]} {version_text(call.version)}: {words}'
