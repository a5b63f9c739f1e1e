"""cuDNN and cuBLASLt without a GPU: their functions in Python, on memory of the host.

Each does what NVIDIA's documentation says of it, from the descriptors and addresses it was given,
so that a wrong argument or a wrong place of one gives a wrong result.
"""

# ruff: noqa: N802 (functions have the names of the libraries)
from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.schemas.library.calls import is_library
from tilewright.ops.convolution import conv2d
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.device import Call, Program, Resources
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.libraries.cublaslt import CublasLt
from tilewright.runtime.gpu.libraries.cudnn import Cudnn
from tilewright.runtime.gpu.libraries.table import ready

VERSIONS = {'cudnn': 91900, 'cublaslt': 130100}
STREAM = 77
CUDA_TYPES = {0: 'f32', 2: 'f16', 14: 'bf16'}  # cudaDataType_t
NOT_SUPPORTED = 3000  # CUDNN_STATUS_NOT_SUPPORTED


def floats(address: int, *shape: int, kind: str = 'f32') -> np.ndarray:
    """The memory at an address, as an array that can be written."""
    dtype = np.dtype(NUMPY[kind])
    size = dtype.itemsize * int(np.prod(shape))
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


class Descriptors:
    """Handles that are made, filled and destroyed."""

    def __init__(self) -> None:
        self.alive: dict[int, dict] = {}
        self.count = 0

    def make(self, out, **values) -> int:
        self.count += 1
        out._obj.value = self.count
        self.alive[self.count] = values
        return 0

    def __getitem__(self, handle) -> dict:
        return self.alive[handle.value]

    def drop(self, handle) -> int:
        del self.alive[handle.value]
        return 0


class FakeCudnn:
    """`workspace`: bytes by algorithm; others are not supported. `status`: what a call returns."""

    def __init__(self, workspace: dict[int, int] | None = None, status: int = 0) -> None:
        self.made = Descriptors()
        self.space = workspace or {1: 64, 6: 0}
        self.status, self.calls = status, []

    def __getattr__(self, name: str):
        if name.startswith('cudnnCreate'):
            return lambda out: self.made.make(out)
        if name.startswith('cudnnDestroy'):
            return self.made.drop
        raise AttributeError(name)

    def cudnnGetErrorString(self, status):
        return f'CUDNN_STATUS_{status}'.encode()

    def cudnnSetStream(self, handle, stream):
        self.made[handle]['stream'] = stream
        return 0

    def cudnnSetTensor4dDescriptor(self, tensor, form, kind, n, c, h, w):
        assert (form, kind) == (0, 0), 'NCHW of floats'
        self.made[tensor]['shape'] = (n, c, h, w)
        return 0

    def cudnnSetFilter4dDescriptor(self, filters, kind, form, k, c, h, w):
        assert (form, kind) == (0, 0), 'NCHW of floats'
        self.made[filters]['shape'] = (k, c, h, w)
        return 0

    def cudnnSetConvolution2dDescriptor(self, conv, ph, pw, u, v, dh, dw, mode, kind):
        assert (mode, kind) == (1, 0), 'cross correlation in float'
        self.made[conv].update(pad=(ph, pw), stride=(u, v), dilation=(dh, dw))
        return 0

    def cudnnSetConvolutionGroupCount(self, conv, groups):
        self.made[conv]['groups'] = groups
        return 0

    def cudnnSetConvolutionMathType(self, conv, kind):
        self.made[conv]['math'] = kind
        return 0

    def cudnnSetActivationDescriptor(self, activation, mode, nan, coefficient):
        self.made[activation].update(mode=mode, nan=nan)
        return 0

    def cudnnGetConvolutionForwardAlgorithm_v7(self, handle, x, w, conv, y, asked, count, found):
        assert self.made[conv]['math'] == 3, 'CUDNN_FMA_MATH'
        for place, algorithm in enumerate([*self.space, 2]):
            found[place].algo = algorithm
            found[place].status = 0 if algorithm in self.space else NOT_SUPPORTED
        count._obj.value = len(self.space) + 1
        return 0

    def cudnnGetConvolutionForwardWorkspaceSize(self, handle, x, w, conv, y, algorithm, size):
        if algorithm not in self.space:
            return NOT_SUPPORTED
        size._obj.value = self.space[algorithm]
        return 0

    def _sums(self, xd, x, wd, w, cd, yd):
        n, c, height, width = self.made[xd]['shape']
        k, depth, r, s = self.made[wd]['shape']
        conv = self.made[cd]
        assert depth * conv['groups'] == c
        group = conv2d(
            n=n, c=c, h=height, w=width, k=k, r=r, s=s, stride=conv['stride'], pad=conv['pad'],
            dilation=conv['dilation'], groups=conv['groups'],
        )  # fmt: skip
        assert self.made[yd]['shape'] == group.output.shape
        arrays = {'In': floats(x, n, c, height, width), 'Ker': floats(w, k, depth, r, s)}
        return reference(group, arrays)

    def cudnnConvolutionForward(
        self, handle, alpha, xd, x, wd, w, cd, algorithm, space, size, beta, yd, y
    ):
        self.calls.append(('forward', algorithm, size))
        if self.status:
            return self.status
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        assert self.made[handle]['stream'] == STREAM
        floats(y, *self.made[yd]['shape'])[...] = self._sums(xd, x, wd, w, cd, yd)
        return 0

    def cudnnConvolutionBiasActivationForward(
        self, handle, alpha, xd, x, wd, w, cd, algorithm, space, size, factor, zd, z, bd, bias,
        ad, yd, y,
    ):  # fmt: skip
        self.calls.append(('fused', algorithm, size))
        if self.status:
            return self.status
        sums = alpha._obj.value * self._sums(xd, x, wd, w, cd, yd)
        sums += floats(bias, *self.made[bd]['shape'])
        if factor._obj.value:
            sums += factor._obj.value * floats(z, *self.made[zd]['shape'])
        mode = self.made[ad]['mode']
        assert mode == 1 or (mode, algorithm) == (5, 1), 'identity needs algorithm 1'
        floats(y, *self.made[yd]['shape'])[...] = np.maximum(sums, 0) if mode == 1 else sums
        return 0


class FakeCublasLt:
    """Products by numpy over the strides that layouts describe."""

    def __init__(self, answers: int = 3, status: int = 0) -> None:
        self.made = Descriptors()
        self.answers, self.status, self.calls = answers, status, []

    def __getattr__(self, name: str):
        if name.endswith('Destroy'):
            return self.made.drop
        if name.endswith('SetAttribute'):
            return self._set
        raise AttributeError(name)

    def cublasLtCreate(self, out):
        return self.made.make(out)

    def cublasLtMatmulDescCreate(self, out, compute, scale):
        assert (compute, scale) == (68, 0), 'CUBLAS_COMPUTE_32F and CUDA_R_32F'
        return self.made.make(out)

    def cublasLtMatrixLayoutCreate(self, out, kind, rows, columns, lead):
        assert lead >= rows
        return self.made.make(out, kind=CUDA_TYPES[kind], rows=rows, columns=columns, lead=lead)

    def cublasLtMatmulPreferenceCreate(self, out):
        return self.made.make(out)

    def _set(self, what, attribute, value, size):
        assert size == ctypes.sizeof(value._obj)
        self.made[what][attribute] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle, product, a, b, c, d, preference, asked, found, count
    ):
        assert self.made[preference][1] == 32 << 20
        assert [self.made[preference][n] for n in (5, 6, 7, 8)] == [16] * 4
        for place in range(self.answers):
            found[place].workspaceSize = 32 * place
            found[place].algo.data[0] = place
        count._obj.value = self.answers
        return 0

    def _matrices(self, layout, address):
        one = self.made[layout]
        batch, step = one.get(5, 1), one.get(6, 0)
        size = (batch - 1) * step + (one['columns'] - 1) * one['lead'] + one['rows']
        memory = floats(address, size, kind=one['kind'])
        width = memory.itemsize
        return np.lib.stride_tricks.as_strided(
            memory, (batch, one['rows'], one['columns']),
            (width * step, width, width * one['lead']),
        )  # fmt: skip

    def cublasLtMatmul(
        self, handle, product, alpha, a, ad, b, bd, beta, c, cd, d, dd, algorithm, space, size,
        stream,
    ):  # fmt: skip
        self.calls.append((algorithm._obj.data[0], size, stream))
        if self.status:
            return self.status
        desc = self.made[product]
        left, right = (
            m.swapaxes(1, 2) if desc.get(turn) else m
            for m, turn in ((self._matrices(ad, a), 3), (self._matrices(bd, b), 4))
        )
        assert self.made[ad]['kind'] == self.made[bd]['kind']
        sums = alpha._obj.value * (left.astype(float) @ right.astype(float))
        if beta._obj.value:
            sums += beta._obj.value * self._matrices(cd, c).astype(float)
        if desc[7] & 4:
            assert CUDA_TYPES[desc[26]] == self.made[dd]['kind'], 'a bias is of the type of D'
            bias = floats(desc[8], sums.shape[1], kind=self.made[dd]['kind'])
            sums += bias.astype(float)[:, None]
        self._matrices(dd, d)[...] = np.maximum(sums, 0) if desc[7] & 2 else sums
        return 0


class LibraryDevice(HostDevice):
    """The host with fake libraries; `missing` are not there."""

    def __init__(self, missing: Sequence[str] = (), versions: dict[str, int] = VERSIONS) -> None:
        super().__init__()
        self.missing, self.versions = missing, versions
        self.apis = {'cudnn': FakeCudnn(), 'cublaslt': FakeCublasLt()}

    def library(self, name: str):
        if name in self.missing:
            return super().library(name)
        kind = {'cudnn': Cudnn, 'cublaslt': CublasLt}[name]
        return kind(self.apis[name], self.versions[name], STREAM)

    def compile(self, kernel: Kernel) -> Program:
        if is_library(kernel):
            made = ready(self.library(kernel.language), kernel)
            return Program(kernel, '', Resources(), made)
        return super().compile(kernel)

    def unload(self, program: Program) -> None:
        if is_library(program.kernel):
            program.handle.close()

    def launch(self, call: Call) -> None:
        kernel = call.program.kernel
        if not is_library(kernel):
            super().launch(call)
            return
        addresses = [array.ctypes.data for array in self.check(call)]
        words = [argument.name for argument in kernel.args]
        call.program.handle.run(dict(zip(words, addresses, strict=True)))
