"""cuBLASLt: products of matrices with sums in float32, without TF32, through its C interface.

Goes in: a `ProductCall`. Comes out: the algorithms that its heuristics name, or the call with its
descriptors filled, which can be run and captured. An algorithm goes by its place among those, since
what it is lies in bytes that only the library reads; the same version names the same ones. Numbers
of enumerations are those of cublasLt.h, cublas_api.h and library_types.h.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from tilewright.errors import ScheduleError, StoreError, TilewrightError
from tilewright.kernels.gpu.schemas.library.calls import ProductCall, version_text
from tilewright.runtime.gpu.libraries.loading import Signatures, Wanted

WANTED = Wanted(
    'cuBLASLt', ('cu13/lib/libcublasLt.so.13', 'cublas/lib/libcublasLt.so.12'),
    'cublasLtGetVersion', 120000, 'nvidia-cublas',
)  # fmt: skip
COMPUTE_32F = 68  # cublasComputeType_t: sums and products in float32
R_32F = 0  # cudaDataType_t: CUDA_R_32F
TYPES = {'f32': R_32F, 'f16': 2, 'bf16': 14}  # cudaDataType_t
OP_N, OP_T = 0, 1  # cublasOperation_t
# cublasLtMatmulDescAttributes_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, BIAS_DATA_TYPE = 3, 4, 7, 8, 26
# cublasLtEpilogue_t: nothing, relu, bias, both
DEFAULT, RELU, BIAS, RELU_BIAS = 1, 2, 4, 6
# cublasLtMatrixLayoutAttribute_t
BATCH_COUNT, STRIDED_BATCH_OFFSET = 5, 6
# cublasLtMatmulPreferenceAttributes_t; the last are those of A, B, C and D
MAX_WORKSPACE_BYTES, MIN_ALIGNMENTS = 1, (5, 6, 7, 8)
ALIGNMENT = 16  # bytes: where values of a network begin at least
NOT_SUPPORTED, INVALID_VALUE = 15, 7  # cublasStatus_t
ALGORITHMS = 8
MOST_WORKSPACE = 32 << 20  # what NVIDIA advises for Hopper
STATUS = {
    1: 'NOT_INITIALIZED', 3: 'ALLOC_FAILED', 7: 'INVALID_VALUE', 8: 'ARCH_MISMATCH',
    11: 'MAPPING_ERROR', 13: 'EXECUTION_FAILED', 14: 'INTERNAL_ERROR', 15: 'NOT_SUPPORTED',
}  # fmt: skip


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t"""

    _fields_ = (('data', c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ('algo', Algorithm), ('workspaceSize', c_size_t), ('state', c_int), ('wavesCount', c_float),
        ('reserved', c_int * 4),
    )  # fmt: skip


_P, _I, _Z = c_void_p, c_int, c_size_t
SIGNATURES: Signatures = {
    'cublasLtCreate': (_I, (_P,)),
    'cublasLtDestroy': (_I, (_P,)),
    # descriptor, how products are computed, type of factors
    'cublasLtMatmulDescCreate': (_I, (_P, _I, _I)),
    'cublasLtMatmulDescDestroy': (_I, (_P,)),
    'cublasLtMatmulDescSetAttribute': (_I, (_P, _I, _P, _Z)),
    # layout, type, rows, columns, elements between columns
    'cublasLtMatrixLayoutCreate': (_I, (_P, _I, c_uint64, c_uint64, c_int64)),
    'cublasLtMatrixLayoutDestroy': (_I, (_P,)),
    'cublasLtMatrixLayoutSetAttribute': (_I, (_P, _I, _P, _Z)),
    'cublasLtMatmulPreferenceCreate': (_I, (_P,)),
    'cublasLtMatmulPreferenceDestroy': (_I, (_P,)),
    'cublasLtMatmulPreferenceSetAttribute': (_I, (_P, _I, _P, _Z)),
    # handle, product, layouts of A, B, C and D, preference, asked for, what they are, how many
    'cublasLtMatmulAlgoGetHeuristic': (_I, (_P, _P, _P, _P, _P, _P, _P, _I, _P, _P)),
    # handle, product, alpha, A, B, beta, C, D with a layout behind each, algorithm, workspace and
    # its bytes, stream
    'cublasLtMatmul': (_I, (_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _Z, _P)),
}


class CublasLt:
    """One handle, for one stream of one device; `api` are cuBLASLt's functions by their names."""

    def __init__(self, api: Any, version: int, stream: int) -> None:
        self.api, self.version, self.stream = api, version, stream
        self.handle = c_void_p()
        self.check(api.cublasLtCreate(byref(self.handle)), 'starting')

    def check(self, status: int, doing: str) -> None:
        """Raise for what cuBLASLt refuses, and for what went wrong in it."""
        if not status:
            return
        message = (
            f'cuBLASLt {version_text(self.version)} failed at {doing}: '
            f'{STATUS.get(status, f"status {status}")}'
        )
        refused = status in (NOT_SUPPORTED, INVALID_VALUE)
        raise (ScheduleError if refused else StoreError)(message)

    def algorithms(self, call: ProductCall) -> list[tuple[int, int]]:
        """(place among the heuristics' answers, bytes of workspace), the best first."""
        with contextlib.closing(Product(self, call)) as made:
            try:
                found = made.heuristics(MOST_WORKSPACE)
            except ScheduleError:  # it has no kernel that ends in this way
                return []
            return [(number, int(one.workspaceSize)) for number, one in enumerate(found)]

    def prepare(self, call: ProductCall) -> Product:
        """A call that can be run; raises where the heuristics name no such algorithm any more."""
        made = Product(self, call)
        try:
            found = made.heuristics(MOST_WORKSPACE)
            if call.algorithm >= len(found):
                raise ScheduleError(
                    f'cuBLASLt {version_text(self.version)} names {len(found)} algorithms, not '
                    f'{call.algorithm + 1}; compile the model again'
                )
            chosen = found[call.algorithm]
            if chosen.workspaceSize > call.workspace:
                raise ScheduleError(
                    f'algorithm {call.algorithm} of cuBLASLt {version_text(self.version)} needs '
                    f'{chosen.workspaceSize} bytes of workspace, but {call.workspace} were '
                    f'planned; compile the model again'
                )
            made.algorithm = chosen.algo
        except TilewrightError:
            made.close()
            raise
        return made


class Product:
    """Descriptors of one call."""

    def __init__(self, library: CublasLt, call: ProductCall) -> None:
        self.library, self.call = library, call
        self._made: list[tuple[str, c_void_p]] = []
        self.one, self.beta = c_float(1.0), c_float(1.0 if call.residual else 0.0)
        self.algorithm: Algorithm | None = None
        try:
            self._fill(call)
        except TilewrightError:
            self.close()
            raise

    def _fill(self, call: ProductCall) -> None:
        self.product = self._create('MatmulDesc', COMPUTE_32F, R_32F)
        for attribute, transposed in zip((TRANSA, TRANSB), call.transposed, strict=True):
            self._set('MatmulDesc', self.product, attribute, c_int32(OP_T if transposed else OP_N))
        ends = {(False, False): DEFAULT, (False, True): RELU, (True, False): BIAS}
        epilogue = ends.get((call.bias, call.relu), RELU_BIAS)
        self._set('MatmulDesc', self.product, EPILOGUE, c_uint32(epilogue))
        if call.bias:  # heuristics ask for its alignment
            self._point(ALIGNMENT)
            self._set('MatmulDesc', self.product, BIAS_DATA_TYPE, c_int32(TYPES[call.result]))
        shapes = [(call.m, call.k), (call.k, call.n), (call.m, call.n)]
        flipped = (*call.transposed, False)
        self.layouts = [
            self._layout(TYPES[kind], (width, height) if turn else (height, width), lead, step)
            for kind, (height, width), turn, lead, step in zip(
                (call.dtype, call.dtype, call.result),
                shapes,
                flipped,
                call.leading,
                call.steps,
                strict=True,
            )
        ]

    def _create(self, kind: str, *words: int) -> c_void_p:
        made = c_void_p()
        create = getattr(self.library.api, f'cublasLt{kind}Create')
        self.library.check(create(byref(made), *words), f'making a {kind}')
        self._made.append((kind, made))
        return made

    def _set(self, kind: str, what: c_void_p, attribute: int, value: Any) -> None:
        change = getattr(self.library.api, f'cublasLt{kind}SetAttribute')
        status = change(what, attribute, byref(value), ctypes.sizeof(value))
        self.library.check(status, f'setting attribute {attribute} of a {kind}')

    def _point(self, bias: int) -> None:
        self._set('MatmulDesc', self.product, BIAS_POINTER, c_void_p(bias))

    def _layout(self, kind: int, shape: tuple[int, int], lead: int, step: int) -> c_void_p:
        layout = self._create('MatrixLayout', kind, *shape, lead)
        if self.call.batch > 1:
            self._set('MatrixLayout', layout, BATCH_COUNT, c_int32(self.call.batch))
            self._set('MatrixLayout', layout, STRIDED_BATCH_OFFSET, c_int64(step))
        return layout

    def heuristics(self, most: int) -> list[Heuristic]:
        """What the library would take, the best first, with at most so many bytes."""
        preference = self._create('MatmulPreference')
        self._set('MatmulPreference', preference, MAX_WORKSPACE_BYTES, c_size_t(most))
        for attribute in MIN_ALIGNMENTS:
            self._set('MatmulPreference', preference, attribute, c_uint32(ALIGNMENT))
        a, b, d = self.layouts
        found, count = (Heuristic * ALGORITHMS)(), c_int()
        status = self.library.api.cublasLtMatmulAlgoGetHeuristic(
            self.library.handle, self.product, a, b, d, d, preference, ALGORITHMS, found,
            byref(count),
        )  # fmt: skip
        self.library.check(status, 'its heuristics')
        return [one for one in found[: count.value] if one.state == 0]

    def run(self, memory: Mapping[str, int]) -> None:
        """Start it on the stream; `memory`: addresses by the words of the call."""
        call, library = self.call, self.library
        assert self.algorithm is not None, 'it was not prepared'
        if call.bias:
            self._point(memory['bias'])
        a, b, d = self.layouts
        out = memory['out']
        status = library.api.cublasLtMatmul(
            library.handle, self.product, byref(self.one), memory['a'], a, memory['b'], b,
            byref(self.beta), memory.get('c', out), d, out, d, byref(self.algorithm),
            memory.get('workspace'), call.workspace, library.stream,
        )  # fmt: skip
        library.check(status, f'a product by algorithm {call.algorithm}')

    def close(self) -> None:
        """Give the descriptors back."""
        while self._made:
            kind, made = self._made.pop()
            getattr(self.library.api, f'cublasLt{kind}Destroy')(made)
