"""The contestants on whole networks: PyTorch, torch.compile, ONNX Runtime and OpenVINO.

Goes in: a `NetworkJob` (the model, its inputs, the output buffers, the thread count). Comes out:
`NetworkVariant`, which can be called. As with layers (contestants.py), a contestant yields several:
its documented settings that may matter; network_process.py times them and keeps the fastest. Each
library is imported only here, only in a process of its own.

PyTorch cannot read ONNX files, so it takes part in networks of the zoo alone, by the module that is
made from the same layers and weights.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.errors import InputError

Arrays = dict[str, np.ndarray]
ORACLE = 'oracle'


@dataclass(frozen=True, slots=True)
class NetworkJob:
    """One network to prepare.

    model    the ONNX file
    zoo      the arguments of `zoo.torch_module`, where the network is one of the zoo
    outputs  buffers to write results into, by name; those of the oracle are empty
    options  what our own contestant is told; `progress` is told what is done
    """

    model: Path
    zoo: Mapping[str, Any] | None
    inputs: Arrays
    outputs: Arrays
    threads: int
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str, int, int], object] = lambda what, done, total: None


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """A contestant with one choice of settings. `run` computes the network once, `result` gives
    the answers of the last run, `algorithm` what the library says it does."""

    job: NetworkJob
    run: Callable[[], object]
    result: Callable[[], Arrays]
    algorithm: Callable[[], str] = lambda: ''


Make = Callable[[NetworkJob], NetworkVariant]
Variants = Iterator[tuple[dict[str, Any], Make]]


def torch_variants() -> Variants:
    torch: Any = import_module('torch')

    torch.set_num_interop_threads(1)
    for mode in ('eager', 'traced, frozen', 'traced, frozen, optimize_for_inference'):
        for layout in ('contiguous', 'channels_last'):
            settings = {'mode': mode, 'memory_format': layout, 'inference_mode': True}
            yield settings, lambda job, settings=settings: _torch(job, settings)


def torch_compile_variants() -> Variants:
    for mode in ('default', 'max-autotune'):
        settings = {
            'backend': 'inductor', 'mode': mode, 'freezing': True, 'memory_format': 'contiguous'
        }  # fmt: skip
        yield settings, lambda job, settings=settings: _torch(job, settings)


def _torch(job: NetworkJob, settings: Mapping[str, Any]) -> NetworkVariant:
    """Eager, traced or compiled; a conversion to channels_last is inside the time."""
    torch: Any = import_module('torch')

    if job.zoo is None:
        raise InputError('PyTorch cannot read ONNX files; only networks of the zoo have a module')
    torch.set_num_threads(job.threads)
    torch.set_grad_enabled(False)
    layout = {
        'contiguous': torch.contiguous_format,
        'channels_last': torch.channels_last,
    }[settings['memory_format']]
    module = copy.deepcopy(_module(tuple(job.zoo.items()))).to(memory_format=layout)
    (given,) = job.inputs.values()
    (name,) = job.outputs
    image = torch.from_numpy(given)
    call = _torch_call(torch, module, image.contiguous(memory_format=layout), settings)
    kept: list[Any] = [None]

    def run() -> None:
        # PyTorch has no call into a given buffer. Its result is freed before the next call, and
        # the allocator is told to keep the pages (peers.py), so no call pays for fresh memory.
        kept[0] = None
        with torch.inference_mode():
            kept[0] = call(image.contiguous(memory_format=layout)).contiguous()

    return NetworkVariant(job, run, lambda: {name: kept[0].numpy()}, lambda: 'oneDNN and ATen')


@functools.lru_cache(1)
def _module(arguments: tuple[tuple[str, Any], ...]) -> Any:
    """The module of a network of the zoo, whose weights take seconds to draw, for all settings."""
    return zoo.torch_module(**dict(arguments))


def _torch_call(torch: Any, module: Any, image: Any, settings: Mapping[str, Any]) -> Any:
    if 'backend' in settings:
        torch._dynamo.reset()
        inductor: Any = import_module('torch._inductor.config')
        inductor.freezing = settings['freezing']
        return torch.compile(module, mode=settings['mode'], dynamic=False, fullgraph=True)
    if settings['mode'] == 'eager':
        return module
    frozen = torch.jit.freeze(torch.jit.trace(module, image, check_trace=False))
    if 'optimize_for_inference' in settings['mode']:
        frozen = torch.jit.optimize_for_inference(frozen)
    return frozen


def onnxruntime_variants() -> Variants:
    for spinning in ('1', '0'):
        settings = {'session.intra_op.allow_spinning': spinning, 'io_binding': True}
        yield settings, lambda job, spinning=spinning: _onnxruntime(job, spinning)


def _session(job: NetworkJob, level: str, entries: Mapping[str, str]) -> Any:
    ort: Any = import_module('onnxruntime')

    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(job.model), options, providers=['CPUExecutionProvider'])


def _onnxruntime(job: NetworkJob, spinning: str) -> NetworkVariant:
    session = _session(job, 'ORT_ENABLE_ALL', {'session.intra_op.allow_spinning': spinning})
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, job.inputs), (binding.bind_output, job.outputs)):
        for name, array in arrays.items():
            bind(name, 'cpu', 0, array.dtype.type, array.shape, array.ctypes.data)
    return NetworkVariant(
        job, lambda: session.run_with_iobinding(binding), lambda: job.outputs, lambda: 'MLAS'
    )


def oracle_variants() -> Variants:
    """What is right: ONNX Runtime without its optimisations, into arrays of its own."""
    yield {'optimizations': False}, _oracle


def _oracle(job: NetworkJob) -> NetworkVariant:
    session = _session(job, 'ORT_DISABLE_ALL', {})
    names = [output.name for output in session.get_outputs()]
    kept: list[Arrays] = [{}]

    def run() -> None:
        kept[0] = dict(zip(names, session.run(names, job.inputs), strict=True))

    return NetworkVariant(job, run, lambda: kept[0])


def openvino_variants() -> Variants:
    # openvino imports its telemetry for model conversion, which is not used here; it does without
    # the package, and then sends nothing.
    sys.modules['openvino_telemetry'] = None  # pyright: ignore[reportArgumentType]
    for pinning in (True, False):
        settings = {
            'PERFORMANCE_HINT': 'LATENCY',
            'INFERENCE_PRECISION_HINT': 'f32',
            'ENABLE_CPU_PINNING': pinning,
        }
        yield settings, lambda job, settings=settings: _openvino(job, settings)


def _openvino(job: NetworkJob, settings: dict[str, Any]) -> NetworkVariant:
    ov: Any = import_module('openvino')

    core = ov.Core()
    model = core.read_model(str(job.model))
    model.reshape({name: list(array.shape) for name, array in job.inputs.items()})
    compiled = core.compile_model(
        model, 'CPU', {**settings, 'INFERENCE_NUM_THREADS': job.threads, 'NUM_STREAMS': 1}
    )
    precision = compiled.get_property('INFERENCE_PRECISION_HINT')
    if precision != ov.Type.f32:
        raise RuntimeError(f'openvino runs in {precision}, f32 was asked for')
    request = compiled.create_infer_request()
    for name, array in (*job.inputs.items(), *job.outputs.items()):
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def algorithm() -> str:
        """The primitives of the convolutions, the most frequent one first."""
        found: dict[str, int] = {}
        for node in compiled.get_runtime_model().get_ordered_ops():
            info = node.get_rt_info()
            if 'Convolution' in str(info['layerType'].astype(str)):
                primitive = str(info['primitiveType'].astype(str))
                found[primitive] = found.get(primitive, 0) + 1
        ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        return ', '.join(f'{count} x {primitive}' for primitive, count in ranked)

    def run() -> None:
        # Without sharing, the result would be copied once more for the caller.
        request.infer(share_inputs=True, share_outputs=True)

    return NetworkVariant(job, run, lambda: job.outputs, algorithm)


Contestants = Mapping[str, tuple[Callable[[], Variants], tuple[str, ...]]]
CONTESTANTS: Contestants = {
    'torch': (torch_variants, ('torch',)),
    'torch-compile': (torch_compile_variants, ('torch',)),
    'onnxruntime': (onnxruntime_variants, ('onnxruntime',)),
    'openvino': (openvino_variants, ('openvino',)),
    ORACLE: (oracle_variants, ('onnxruntime',)),
}
PEERS = tuple(name for name in CONTESTANTS if name != ORACLE)
FROM_FILES = ('onnxruntime', 'openvino')  # those that read ONNX files
_EXTRA = {'torch': 'torch', 'onnxruntime': 'bench', 'openvino': 'bench'}


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names in order, each known; the same name twice is once."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in PEERS:
            raise InputError(
                f'peer {name!r} is not known on networks; choose from {", ".join(PEERS)}'
            )
    return chosen


def absence(name: str) -> str:
    """A sentence that says what is missing for a peer, '' when it is installed."""
    _, packages = CONTESTANTS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return (
                f'peer {name} needs the package {package}, which is not installed; '
                f"pip install 'tilewright[{_EXTRA[package]}]'"
            )
    return ''
