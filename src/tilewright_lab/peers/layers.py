"""How PyTorch, ONNX Runtime, OpenVINO, TVM and our own kernel compute one layer on a CPU.

Goes in: a `Job` (the problem, its float32 NCHW arrays, the output buffer, the thread count). Comes
out: `Variant`, which can be called; contestants.py has the table. Each library is imported only
here and in libraries.py, only in a process of its own, and only when it is a contestant.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.ops.convolution import Convolution
from tilewright.ops.pointwise import LEAKY_SLOPE
from tilewright.runtime.callable import BuiltGroup
from tilewright.runtime.cpu.kernel import Kernel, pool
from tilewright_lab.peers import libraries
from tilewright_lab.peers.contestants import Job, Variant, Variants
from tilewright_lab.peers.libraries import SPIN_US


def torch_variants() -> Variants:
    torch: Any = import_module('torch')

    torch.set_grad_enabled(False)
    torch.set_num_interop_threads(1)
    yield {'mode': 'plain'}, _torch_plain
    yield {'mode': 'channels_last'}, _torch_channels_last
    if torch.backends.mkldnn.is_available():
        yield {'mode': 'prepacked (mkldnn reordered weights)'}, _torch_prepacked
    yield {'mode': 'traced, frozen, optimize_for_inference'}, _torch_frozen


def _torch_parts(job: Job) -> tuple[Any, Any, Any, dict[str, Any], Callable[[Any], Any]]:
    """Tensors, convolution arguments and the epilogue; asymmetric padding is a step of its own."""
    torch: Any = import_module('torch')
    functional = torch.nn.functional

    torch.set_num_threads(job.threads)
    conv = job.conv
    x, weight = (torch.from_numpy(job.arrays[name]) for name in ('In', 'Ker'))
    bias = torch.from_numpy(job.arrays['Bias']) if conv.bias else None
    before, after = conv.pad[: conv.rank], conv.pad[conv.rank :]
    symmetric = before == after
    arguments: dict[str, Any] = {
        'stride': conv.stride,
        'padding': before if symmetric or conv.transposed else (0,) * conv.rank,
        'dilation': conv.dilation,
        'groups': conv.groups,
    }
    activate = {
        None: lambda y: y,
        'relu': torch.relu_,
        'relu6': lambda y: functional.hardtanh(y, 0.0, 6.0, inplace=True),
        'leaky_relu': lambda y: functional.leaky_relu(y, LEAKY_SLOPE, inplace=True),
        'sigmoid': torch.sigmoid_,
        'tanh': torch.tanh_,
        'silu': lambda y: functional.silu(y, inplace=True),
    }[conv.activation]
    if conv.transposed:
        arguments['output_padding'] = output_padding(conv)
    elif not symmetric:  # PyTorch names the last axis first
        arguments['pad'] = [p for pair in zip(before[::-1], after[::-1], strict=True) for p in pair]
    return x, weight, bias, arguments, activate


def output_padding(conv: Convolution) -> tuple[int, ...]:
    """What is added behind the output of a transposed convolution that both sides are cut off."""
    before, after = conv.pad[: conv.rank], conv.pad[conv.rank :]
    extra = tuple(b - a for b, a in zip(before, after, strict=True))
    if min(extra) < 0:
        raise InputError(
            f'{conv.label} cuts off {after} behind its output and {before} before it; PyTorch and '
            f'ONNX Runtime are given the same or less behind it'
        )
    return extra


def _convolve(conv: Convolution) -> Callable[..., Any]:
    """PyTorch's function."""
    functional: Any = import_module('torch.nn.functional')
    return getattr(functional, f'conv{"_transpose" * conv.transposed}{conv.rank}d')


def _torch_variant(job: Job, call: Callable[[], Any]) -> Variant:
    run, result = libraries.torch_run(call)
    return Variant(job, run, result, lambda: _onednn_says(run))


def _padded(arguments: dict[str, Any]) -> Callable[[Any], Any]:
    functional: Any = import_module('torch.nn.functional')

    pad = arguments.pop('pad', None)
    return (lambda x: x) if pad is None else (lambda x: functional.pad(x, pad))


def _torch_plain(job: Job) -> Variant:
    x, weight, bias, arguments, after = _torch_parts(job)
    pad, convolve = _padded(arguments), _convolve(job.conv)
    return _torch_variant(job, lambda: after(convolve(pad(x), weight, bias, **arguments)))


def _torch_channels_last(job: Job) -> Variant:
    torch: Any = import_module('torch')
    if job.conv.rank == 1:
        raise InputError(f'{job.conv.label}: PyTorch has channels_last for 2-D and 3-D images')

    x, weight, bias, arguments, after = _torch_parts(job)
    convolve, pad = _convolve(job.conv), _padded(arguments)
    layout = torch.channels_last if job.conv.rank == 2 else torch.channels_last_3d
    weight = weight.contiguous(memory_format=layout)

    def call() -> Any:
        blocked = pad(x).contiguous(memory_format=layout)
        return after(convolve(blocked, weight, bias, **arguments))

    return _torch_variant(job, call)


def _torch_prepacked(job: Job) -> Variant:
    torch: Any = import_module('torch')
    if job.conv.rank != 2 or job.conv.transposed:
        raise InputError(f'{job.conv.label}: PyTorch reorders weights of 2-D convolutions')

    x, weight, bias, arguments, after = _torch_parts(job)
    pad = _padded(arguments)
    padding, stride, dilation, groups = (
        list(arguments['padding']),
        list(arguments['stride']),
        list(arguments['dilation']),
        arguments['groups'],
    )
    packed = torch.ops.mkldnn._reorder_convolution_weight(
        weight, padding, stride, dilation, groups, list(pad(x).shape)
    )

    def call() -> Any:
        y = torch.ops.mkldnn._convolution_pointwise(
            pad(x), packed, bias, padding, stride, dilation, groups, 'none', [], ''
        )
        return after(y)

    return _torch_variant(job, call)


def _torch_frozen(job: Job) -> Variant:
    torch: Any = import_module('torch')

    x, weight, bias, arguments, after = _torch_parts(job)
    pad, convolve = _padded(arguments), _convolve(job.conv)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

        def forward(self, x: Any) -> Any:
            return after(convolve(pad(x), self.weight, self.bias, **arguments))

    traced = torch.jit.trace(Layer().eval(), x, check_trace=False)
    frozen: Any = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    return _torch_variant(job, lambda: frozen(x))


def _onednn_says(run: Callable[[], object]) -> str:
    """The implementation that oneDNN names for the convolution in one verbose call."""
    torch: Any = import_module('torch')

    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        saved = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                run()
        finally:
            os.dup2(saved, 1)
            os.close(saved)
        log.seek(0)
        lines = log.read().decode(errors='replace').splitlines()
    words = [line.split(',') for line in lines if ',exec,' in line and ',convolution,' in line]
    return words[0][words[0].index('convolution') + 1] if words else 'aten (no oneDNN call)'


def onnx_model(job: Job) -> bytes:
    """The layer as an ONNX model with constant weights."""
    onnx: Any = import_module('onnx')
    helper, numpy_helper = onnx.helper, onnx.numpy_helper

    conv = job.conv
    names = ['x', 'w', 'b'] if conv.bias else ['x', 'w']
    last = 'y' if conv.activation is None else 'acc'
    pads, more = list(conv.pad), {}
    if conv.transposed:
        pads, more = list(2 * conv.pad[: conv.rank]), {'output_padding': output_padding(conv)}
    nodes = [
        helper.make_node(
            'ConvTranspose' if conv.transposed else 'Conv', names, [last],
            kernel_shape=list(conv.taps), strides=list(conv.stride), pads=pads,
            dilations=list(conv.dilation), group=conv.groups, **more,
        )
    ]  # fmt: skip
    weights = [numpy_helper.from_array(job.arrays['Ker'], 'w')]
    if conv.bias:
        weights.append(numpy_helper.from_array(job.arrays['Bias'], 'b'))
    if conv.activation == 'relu6':
        for name, value in (('low', 0.0), ('high', 6.0)):
            weights.append(numpy_helper.from_array(np.float32(value), name))
        nodes.append(helper.make_node('Clip', ['acc', 'low', 'high'], ['y']))
    elif conv.activation == 'leaky_relu':
        nodes.append(helper.make_node('LeakyRelu', ['acc'], ['y'], alpha=LEAKY_SLOPE))
    elif conv.activation == 'silu':
        nodes.append(helper.make_node('Sigmoid', ['acc'], ['gate']))
        nodes.append(helper.make_node('Mul', ['acc', 'gate'], ['y']))
    elif conv.activation is not None:
        nodes.append(helper.make_node(conv.activation.capitalize(), ['acc'], ['y']))
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (('x', job.arrays['In'].shape), ('y', job.out.shape))
    )
    graph = helper.make_graph(nodes, 'layer', [x], [y], weights)
    opset = helper.make_opsetid('', 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()


def onnxruntime_variants() -> Variants:
    for settings in libraries.onnxruntime_settings():
        yield settings, lambda job, settings=settings: _onnxruntime(job, settings)


def _onnxruntime(job: Job, settings: Mapping[str, Any]) -> Variant:
    def session(path: str = '') -> Any:
        entries = {libraries.SPINNING: settings[libraries.SPINNING]}
        return libraries.onnxruntime_session(model, job.threads, entries, optimized_to=path)

    def algorithm() -> str:
        """MLAS does not say which kernel it takes, only the layout; none of them is Winograd's."""
        onnx: Any = import_module('onnx')

        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / 'optimized.onnx')
            session(path)
            nodes = onnx.load(path).graph.node
        blocked = any(n.op_type == 'Conv' and 'nchwc' in n.domain for n in nodes)
        return 'mlas_nchwc' if blocked else 'mlas_nchw'

    model = onnx_model(job)
    chosen = session()
    binding = chosen.io_binding()
    x, y = job.arrays['In'], job.out
    binding.bind_input('x', 'cpu', 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output('y', 'cpu', 0, np.float32, y.shape, y.ctypes.data)
    return Variant(job, lambda: chosen.run_with_iobinding(binding), lambda: job.out, algorithm)


def openvino_variants() -> Variants:
    for settings in libraries.openvino_settings():
        yield settings, lambda job, settings=settings: _openvino(job, settings)


def _openvino(job: Job, settings: dict[str, Any]) -> Variant:
    ov: Any = import_module('openvino')

    compiled = libraries.openvino_compiled(onnx_model(job), job.threads, settings)
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(job.arrays['In'], shared_memory=True))
    request.set_output_tensor(ov.Tensor(job.out, shared_memory=True))

    return Variant(
        job,
        libraries.openvino_run(request),
        lambda: job.out,
        lambda: next(libraries.openvino_primitives(compiled), ''),
    )


def tilewright_variants() -> Variants:
    yield {'TILEWRIGHT_SPIN_US': SPIN_US}, _tilewright


def _tilewright(job: Job) -> Variant:
    pool().tw_pool_spin(SPIN_US)
    built = BuiltGroup(Kernel.load(Path(job.library or ''), job.group), job.group, job.constants)
    inputs = tuple(job.inputs[t.name] for t in job.group.with_role('input'))
    return Variant(
        job,
        lambda: built(*inputs, out=job.out),
        lambda: job.out,
        lambda: f'tilewright_{job.algorithm}',
    )


def tvm_variants() -> Variants:
    from tilewright_lab.peers.tvm import tuned

    yield {'search': 'MetaSchedule', 'cost_model': 'xgb'}, tuned
