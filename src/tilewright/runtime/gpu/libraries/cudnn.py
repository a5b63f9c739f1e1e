"""cuDNN 9: forward convolutions in float32 without TF32, through its C interface.

Goes in: a `ConvolutionCall`. Comes out: the algorithms that cuDNN's heuristics name for it, or the
call with its descriptors filled, which can be run and captured. Numbers of enumerations are those
of cudnn_graph_v9.h, cudnn_ops_v9.h and cudnn_cnn_v9.h.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_void_p
from typing import Any

from tilewright.errors import ScheduleError, StoreError, TilewrightError
from tilewright.kernels.gpu.schemas.library.calls import ConvolutionCall, version_text
from tilewright.runtime.gpu.libraries.loading import Signatures, Wanted

WANTED = Wanted(
    'cuDNN', ('cudnn/lib/libcudnn.so.9',), 'cudnnGetVersion', 90000, 'nvidia-cudnn-cu13'
)  # fmt: skip
FLOAT = 0  # cudnnDataType_t: CUDNN_DATA_FLOAT
NCHW = 0  # cudnnTensorFormat_t: CUDNN_TENSOR_NCHW
CROSS_CORRELATION = 1  # cudnnConvolutionMode_t: filters are not mirrored
FMA_MATH = 3  # cudnnMathType_t: CUDNN_FMA_MATH, no tensor cores and so no TF32
PRECOMP_GEMM = 1  # cudnnConvolutionFwdAlgo_t, the only one that ends without an activation
ALGORITHMS = 8  # CUDNN_CONVOLUTION_FWD_ALGO_COUNT
RELU, IDENTITY = 1, 5  # cudnnActivationMode_t
PROPAGATE_NAN = 1  # cudnnNanPropagation_t
REFUSED = (2, 3)  # thousands of cudnnStatus_t: CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED
MOST_WORKSPACE = 256 << 20


class Performance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t"""

    _fields_ = (
        ('algo', c_int), ('status', c_int), ('time', c_float), ('memory', c_size_t),
        ('determinism', c_int), ('mathType', c_int), ('reserved', c_int * 3),
    )  # fmt: skip


_P, _I, _Z = c_void_p, c_int, c_size_t
SIGNATURES: Signatures = {
    'cudnnGetErrorString': (ctypes.c_char_p, (_I,)),
    'cudnnCreate': (_I, (_P,)),
    'cudnnDestroy': (_I, (_P,)),
    'cudnnSetStream': (_I, (_P, _P)),
    'cudnnCreateTensorDescriptor': (_I, (_P,)),
    'cudnnDestroyTensorDescriptor': (_I, (_P,)),
    # descriptor, format, type, n, c, h, w
    'cudnnSetTensor4dDescriptor': (_I, (_P, _I, _I, _I, _I, _I, _I)),
    'cudnnCreateFilterDescriptor': (_I, (_P,)),
    'cudnnDestroyFilterDescriptor': (_I, (_P,)),
    # descriptor, type, format, k, c, h, w
    'cudnnSetFilter4dDescriptor': (_I, (_P, _I, _I, _I, _I, _I, _I)),
    'cudnnCreateConvolutionDescriptor': (_I, (_P,)),
    'cudnnDestroyConvolutionDescriptor': (_I, (_P,)),
    # descriptor, padding, strides, dilations of height and width, mode, type of sums
    'cudnnSetConvolution2dDescriptor': (_I, (_P, _I, _I, _I, _I, _I, _I, _I, _I)),
    'cudnnSetConvolutionGroupCount': (_I, (_P, _I)),
    'cudnnSetConvolutionMathType': (_I, (_P, _I)),
    'cudnnCreateActivationDescriptor': (_I, (_P,)),
    'cudnnDestroyActivationDescriptor': (_I, (_P,)),
    'cudnnSetActivationDescriptor': (_I, (_P, _I, _I, c_double)),
    # handle, x, w, convolution, y, asked for, how many there are, what they are
    'cudnnGetConvolutionForwardAlgorithm_v7': (_I, (_P, _P, _P, _P, _P, _I, _P, _P)),
    'cudnnGetConvolutionForwardWorkspaceSize': (_I, (_P, _P, _P, _P, _P, _I, _P)),
    # handle, 1, x, w, convolution, algorithm, workspace and its bytes, 0, y
    'cudnnConvolutionForward': (_I, (_P, _P, _P, _P, _P, _P, _P, _I, _P, _Z, _P, _P, _P)),
    # handle, 1, x, w, convolution, algorithm, workspace and its bytes, factor of z, z, bias,
    # activation, y
    'cudnnConvolutionBiasActivationForward': (
        _I, (_P, _P, _P, _P, _P, _P, _P, _I, _P, _Z, _P, _P, _P, _P, _P, _P, _P, _P)
    ),
}  # fmt: skip


class Cudnn:
    """One handle, for one stream of one device; `api` are cuDNN's functions by their names."""

    def __init__(self, api: Any, version: int, stream: int) -> None:
        self.api, self.version = api, version
        self.handle = c_void_p()
        self.check(api.cudnnCreate(byref(self.handle)), 'starting')
        self.check(api.cudnnSetStream(self.handle, stream), 'taking a stream')

    def check(self, status: int, doing: str) -> None:
        """Raise for what cuDNN refuses, and for what went wrong in it."""
        if not status:
            return
        said = self.api.cudnnGetErrorString(status)
        text = said.decode() if isinstance(said, bytes) else str(said)
        message = f'cuDNN {version_text(self.version)} failed at {doing}: {text}'
        raise (ScheduleError if status // 1000 in REFUSED else StoreError)(message)

    def algorithms(self, call: ConvolutionCall) -> list[tuple[int, int]]:
        """(algorithm, bytes of workspace), the one first that cuDNN expects to be the fastest."""
        with contextlib.closing(Convolution(self, call)) as made:
            found, count = (Performance * ALGORITHMS)(), c_int()
            self.check(
                self.api.cudnnGetConvolutionForwardAlgorithm_v7(
                    self.handle, *made.operands, ALGORITHMS, byref(count), found
                ),
                'its heuristics',
            )
            answers: dict[int, int] = {}
            for answer in found[: count.value]:
                fits = answer.status == 0 and answer.algo not in answers
                if not fits or not _ends(call, answer.algo):
                    continue
                with contextlib.suppress(ScheduleError):
                    answers[answer.algo] = made.workspace(answer.algo)
            return [(a, size) for a, size in answers.items() if size <= MOST_WORKSPACE]

    def prepare(self, call: ConvolutionCall) -> Convolution:
        """A call that can be run; raises where the algorithm needs more workspace than it has."""
        made = Convolution(self, call)
        try:
            needed = made.workspace(call.algorithm)
            if needed > call.workspace:
                raise ScheduleError(
                    f'algorithm {call.algorithm} of cuDNN {version_text(self.version)} needs '
                    f'{needed} bytes of workspace, but {call.workspace} were planned; compile the '
                    f'model again'
                )
        except TilewrightError:
            made.close()
            raise
        return made


def _ends(call: ConvolutionCall, algorithm: int) -> bool:
    """Whether an algorithm can do what the call wants behind the sums."""
    return call.relu or not (call.bias or call.residual) or algorithm == PRECOMP_GEMM


class Convolution:
    """Descriptors of one call."""

    def __init__(self, library: Cudnn, call: ConvolutionCall) -> None:
        self.library, self.call = library, call
        self._made: list[tuple[str, c_void_p]] = []
        self.one, self.zero = c_float(1.0), c_float(0.0)
        try:
            self._fill(call)
        except TilewrightError:
            self.close()
            raise

    def _fill(self, call: ConvolutionCall) -> None:
        api, check = self.library.api, self.library.check
        self.x = self._tensor(call.n, call.c, call.h, call.w)
        self.y = self._tensor(call.n, call.k, call.out_h, call.out_w)
        self.bias = self._tensor(1, call.k, 1, 1)
        self.w = self._create('Filter')
        depth = call.c // call.groups
        check(
            api.cudnnSetFilter4dDescriptor(self.w, FLOAT, NCHW, call.k, depth, call.r, call.s),
            'describing filters',
        )
        self.convolution = self._create('Convolution')
        check(
            api.cudnnSetConvolution2dDescriptor(
                self.convolution, *call.pad, *call.stride, *call.dilation, CROSS_CORRELATION, FLOAT
            ),
            'describing a convolution',
        )
        check(api.cudnnSetConvolutionGroupCount(self.convolution, call.groups), 'describing groups')
        check(
            api.cudnnSetConvolutionMathType(self.convolution, FMA_MATH), 'leaving tensor cores out'
        )
        self.activation = self._create('Activation')
        mode = RELU if call.relu else IDENTITY
        check(
            api.cudnnSetActivationDescriptor(self.activation, mode, PROPAGATE_NAN, 0.0),
            'describing an activation',
        )

    def _create(self, kind: str) -> c_void_p:
        descriptor = c_void_p()
        create = getattr(self.library.api, f'cudnnCreate{kind}Descriptor')
        self.library.check(create(byref(descriptor)), 'making a descriptor')
        self._made.append((kind, descriptor))
        return descriptor

    def _tensor(self, *sizes: int) -> c_void_p:
        descriptor = self._create('Tensor')
        self.library.check(
            self.library.api.cudnnSetTensor4dDescriptor(descriptor, NCHW, FLOAT, *sizes),
            'describing a tensor',
        )
        return descriptor

    @property
    def operands(self) -> tuple[c_void_p, c_void_p, c_void_p, c_void_p]:
        return self.x, self.w, self.convolution, self.y

    def workspace(self, algorithm: int) -> int:
        size = c_size_t()
        self.library.check(
            self.library.api.cudnnGetConvolutionForwardWorkspaceSize(
                self.library.handle, *self.operands, algorithm, byref(size)
            ),
            'asking for workspace',
        )
        return size.value

    def run(self, memory: Mapping[str, int]) -> None:
        """Start it on the handle's stream; `memory`: addresses by the words of the call."""
        call, api, handle = self.call, self.library.api, self.library.handle
        space = memory.get('workspace'), call.workspace
        read = (
            self.x, memory['x'], self.w, memory['w'], self.convolution, call.algorithm, *space
        )  # fmt: skip
        out, one, zero = memory['out'], byref(self.one), byref(self.zero)
        if not (call.bias or call.residual or call.relu):
            status = api.cudnnConvolutionForward(handle, one, *read, zero, self.y, out)
        else:
            factor = one if call.residual else zero
            status = api.cudnnConvolutionBiasActivationForward(
                handle, one, *read, factor, self.y, memory.get('z', out), self.bias,
                memory['bias'], self.activation, self.y, out,
            )  # fmt: skip
        self.library.check(status, f'a convolution by algorithm {call.algorithm}')

    def close(self) -> None:
        """Give the descriptors back."""
        while self._made:
            kind, descriptor = self._made.pop()
            getattr(self.library.api, f'cudnnDestroy{kind}Descriptor')(descriptor)
