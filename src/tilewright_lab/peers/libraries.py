"""How the libraries are set up that we are compared with, for layers and for networks alike.

Goes in: a model, the thread count, settings. Comes out: sessions of ONNX Runtime, compiled models
of OpenVINO, calls of PyTorch; and the settings of each that may matter, of which a contestant tries
all (layers.py, networks.py). A library is imported in the functions that use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

SPINNING = 'session.intra_op.allow_spinning'
# Of our own threads. Longer than evicting the caches takes: they are awake then, as those of
# libraries are.
SPIN_US = 20_000


def onnxruntime_settings() -> Iterator[dict[str, Any]]:
    for spinning in ('1', '0'):
        yield {SPINNING: spinning, 'io_binding': True}


def onnxruntime_session(
    model: bytes | str, threads: int, entries: Mapping[str, str],
    level: str = 'ORT_ENABLE_ALL', optimized_to: str = '',
) -> Any:  # fmt: skip
    """A session on a model (a file's path or its bytes); what it optimised is written if asked."""
    ort: Any = import_module('onnxruntime')

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = optimized_to
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(model, options, providers=['CPUExecutionProvider'])


def openvino_settings(precision: str = 'f32') -> Iterator[dict[str, Any]]:
    """Settings to try; `precision` '' leaves its own default, which is fp16 or bf16 where the
    processor has it.
    """
    # openvino imports its telemetry for model conversion, which is not used here; it does without
    # the package, and then sends nothing.
    sys.modules['openvino_telemetry'] = None  # pyright: ignore[reportArgumentType]
    for pinning in (True, False):
        yield {
            'PERFORMANCE_HINT': 'LATENCY',
            **({'INFERENCE_PRECISION_HINT': precision} if precision else {}),
            'ENABLE_CPU_PINNING': pinning,
        }


def openvino_compiled(
    model: bytes | str, threads: int, settings: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Any:  # fmt: skip
    """A compiled model, given other shapes of its inputs first; refused where it is not float32."""
    ov: Any = import_module('openvino')

    core = ov.Core()
    read = core.read_model(model)
    if shapes is not None:
        read.reshape({name: list(shape) for name, shape in shapes.items()})
    compiled = core.compile_model(
        read, 'CPU', {**settings, 'INFERENCE_NUM_THREADS': threads, 'NUM_STREAMS': 1}
    )
    precision = compiled.get_property('INFERENCE_PRECISION_HINT')
    if 'INFERENCE_PRECISION_HINT' in settings and precision != ov.Type.f32:
        raise RuntimeError(f'openvino runs in {precision}, f32 was asked for')
    return compiled


def openvino_primitives(compiled: Any) -> Iterator[str]:
    """What OpenVINO says that each convolution is computed by, in their order."""
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        if 'Convolution' in str(info['layerType'].astype(str)):
            yield str(info['primitiveType'].astype(str))


def openvino_run(request: Any) -> Callable[[], None]:
    def run() -> None:
        # Without sharing, the result would be copied once more for the caller.
        request.infer(share_inputs=True, share_outputs=True)

    return run


def torch_run(call: Callable[[], Any]) -> tuple[Callable[[], None], Callable[[], Any]]:
    """(run, last result as an array) of a call that gives a tensor; a tuple of several."""
    kept: list[Any] = [None]

    def run() -> None:
        # PyTorch has no call into a given buffer. Its result is freed before the next call, and
        # the allocator is told to keep the pages (peers.py), so no call pays for fresh memory.
        kept[0] = None
        found = call()
        several = isinstance(found, tuple)
        kept[0] = tuple(t.contiguous() for t in found) if several else found.contiguous()

    def result() -> Any:
        found = kept[0]
        return tuple(t.numpy() for t in found) if isinstance(found, tuple) else found.numpy()

    return run, result
