"""How PyTorch, torch.compile, ONNX Runtime, OpenVINO and we ourselves run a network on a CPU.

Goes in: a `NetworkJob` (the model, its inputs, the output buffers, the thread count). Comes out:
`NetworkVariant`, which can be called; contestants.py has the table. Each library is imported only
here and in libraries.py, only in a process of its own. mobile.py has ncnn and MNN.

PyTorch cannot read ONNX files, so it takes part in networks of the zoo alone, by the module that is
made from the same layers and weights.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tilewright import zoo
from tilewright.errors import InputError
from tilewright.fallback.sessions import Session
from tilewright.runtime.cpu.kernel import pool
from tilewright.runtime.measure import Progress
from tilewright_lab.peers import libraries
from tilewright_lab.peers.contestants import Arrays, NetworkJob, NetworkVariant, NetworkVariants
from tilewright_lab.peers.libraries import SPIN_US

WHOLE = ('QLinearConv', 'QLinearMatMul', 'ConvInteger', 'MatMulInteger')


def torch_variants() -> NetworkVariants:
    torch: Any = import_module('torch')

    torch.set_num_interop_threads(1)
    for mode in ('eager', 'traced, frozen', 'traced, frozen, optimize_for_inference'):
        for layout in ('contiguous', 'channels_last'):
            settings = {'mode': mode, 'memory_format': layout, 'inference_mode': True}
            yield settings, lambda job, settings=settings: _torch(job, settings)


def torch_compile_variants() -> NetworkVariants:
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
    given = tuple(map(torch.from_numpy, job.inputs.values()))

    def laid_out() -> tuple[Any, ...]:
        return tuple(x.contiguous(memory_format=layout) if x.ndim == 4 else x for x in given)

    call = _torch_call(torch, module, laid_out(), settings)

    def infer() -> Any:
        with torch.inference_mode():
            return call(*laid_out())

    run, result = libraries.torch_run(infer)

    def answers() -> Arrays:
        found = result()
        several = found if isinstance(found, tuple) else (found,)
        return dict(zip(job.outputs, several, strict=True))

    return NetworkVariant(job, run, answers, lambda: 'oneDNN and ATen')


@functools.lru_cache(1)
def _module(arguments: tuple[tuple[str, Any], ...]) -> Any:
    """The module of a network of the zoo, whose weights take seconds to draw, for all settings."""
    return zoo.torch_module(**dict(arguments))


def _torch_call(
    torch: Any, module: Any, given: tuple[Any, ...], settings: Mapping[str, Any]
) -> Any:
    if 'backend' in settings:
        torch._dynamo.reset()
        inductor: Any = import_module('torch._inductor.config')
        inductor.freezing = settings['freezing']
        # Recurrent layers are calls that it leaves as they are, between the graphs around them.
        whole = not any(isinstance(part, torch.nn.RNNBase) for part in module.modules())
        return torch.compile(module, mode=settings['mode'], dynamic=False, fullgraph=whole)
    if settings['mode'] == 'eager':
        return module
    frozen = torch.jit.freeze(torch.jit.trace(module, given, check_trace=False))
    if 'optimize_for_inference' in settings['mode']:
        frozen = torch.jit.optimize_for_inference(frozen)
    return frozen


def onnxruntime_variants() -> NetworkVariants:
    for settings in libraries.onnxruntime_settings():
        yield settings, lambda job, settings=settings: _onnxruntime(job, settings)


def _onnxruntime(job: NetworkJob, settings: Mapping[str, Any]) -> NetworkVariant:
    entries = {libraries.SPINNING: settings[libraries.SPINNING]}
    session = libraries.onnxruntime_session(str(job.model), job.threads, entries)
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, job.inputs), (binding.bind_output, job.outputs)):
        for name, array in arrays.items():
            bind(name, 'cpu', 0, array.dtype.type, array.shape, array.ctypes.data)
    return NetworkVariant(
        job, lambda: session.run_with_iobinding(binding), lambda: job.outputs, lambda: 'MLAS'
    )


def oracle_variants() -> NetworkVariants:
    """What is right: ONNX Runtime without its optimisations, into arrays of its own; where nodes
    multiply integers, with those that make their sums exact (fallback/sessions.py).
    """
    yield {'optimizations': False}, _oracle


def _oracle(job: NetworkJob) -> NetworkVariant:
    onnx: Any = import_module('onnx')

    model = onnx.load(str(job.model))
    if any(node.op_type in WHOLE for node in model.graph.node):
        exact, found = Session(model, job.threads, str(job.model)), {}
        return NetworkVariant(
            job, lambda: found.update(exact.run(job.inputs)), lambda: found, lambda: 'MLAS'
        )
    session = libraries.onnxruntime_session(str(job.model), job.threads, {}, 'ORT_DISABLE_ALL')
    names = [output.name for output in session.get_outputs()]
    kept: list[Arrays] = [{}]

    def run() -> None:
        kept[0] = dict(zip(names, session.run(names, job.inputs), strict=True))

    return NetworkVariant(job, run, lambda: kept[0])


def openvino_variants() -> NetworkVariants:
    for settings in libraries.openvino_settings():
        yield settings, lambda job, settings=settings: _openvino(job, settings)


def openvino_low_variants() -> NetworkVariants:
    """In whatever precision it takes by itself."""
    for settings in libraries.openvino_settings(''):
        yield settings, lambda job, settings=settings: _openvino(job, settings)


def _openvino(job: NetworkJob, settings: dict[str, Any]) -> NetworkVariant:
    ov: Any = import_module('openvino')

    shapes = {name: array.shape for name, array in job.inputs.items()}
    compiled = libraries.openvino_compiled(str(job.model), job.threads, settings, shapes)
    request = compiled.create_infer_request()
    for name, array in job.inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    own = []  # results whose shape it only knows behind a call, which lie in memory of its own
    for name, array in job.outputs.items():
        try:
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        except RuntimeError:
            own.append(name)

    def answers() -> Arrays:
        return job.outputs | {
            name: request.get_tensor(name).data.reshape(job.outputs[name].shape) for name in own
        }

    def algorithm() -> str:
        """The primitives of the convolutions, the most frequent one first."""
        found = Counter(libraries.openvino_primitives(compiled))
        ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        return ', '.join(f'{count} x {primitive}' for primitive, count in ranked)

    run = libraries.openvino_run(request)
    return NetworkVariant(job, run, answers, algorithm)


def tilewright_variants() -> NetworkVariants:
    """Ours: compiled in the process that is timed, as the peers are."""
    yield {'TILEWRIGHT_SPIN_US': SPIN_US}, _tilewright


def _tilewright(job: NetworkJob) -> NetworkVariant:
    """`options` of the job are those of `tilewright.compile`: tune, trials, max_rel_err; `shapes`
    as the command line has them, where one network serves several sizes.
    """
    from tilewright.cli.compile import read_shapes
    from tilewright.network.compile import compile as compile_network

    def tell(state: Progress) -> None:
        job.progress(state.stage, state.done, state.total)

    pool().tw_pool_spin(SPIN_US)
    options = dict(job.options)
    ranged = read_shapes(options.pop('shapes', ()))
    network = compile_network(
        job.zoo['name'] if job.zoo and ranged else job.model,
        threads=options.pop('threads', job.threads),
        shapes=ranged or {name: array.shape for name, array in job.inputs.items()},
        check=False,  # answers are compared with the peers'
        progress=tell,
        **options,
    )
    at = network.for_arrays(job.inputs) if ranged else network
    schemas = Counter(at.kernels[task.digest].schedule.schema for task in at.tasks)
    said = ', '.join(f'{count} x {schema}' for schema, count in sorted(schemas.items()))
    return NetworkVariant(
        job, lambda: network.run(job.inputs, job.outputs), lambda: job.outputs, lambda: said
    )
