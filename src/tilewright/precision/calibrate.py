"""ONNX Runtime's tools for quantisation: a float model and samples become ranges, then integers.

Goes in: an ONNX model whose sizes are settled, samples, options. Comes out: a `Calibrated` model,
of which any choice of nodes can be quantised (QDQ) without running it again. onnxruntime is an
optional package and imported here, when somebody quantises.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import InputError, MissingError, ModelError
from tilewright.graph.graph import fresh_name
from tilewright.precision.entropy import threshold
from tilewright.precision.samples import Sample

if TYPE_CHECKING:
    from onnx import ModelProto

RANGES = ('minmax', 'percentile', 'entropy')
ACTIVATIONS = ('u8', 'i8')
BINS = 2048  # of a histogram


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """How numbers of 8 bits stand for floats.

    ranges       what is kept of the values that were seen: 'minmax' all of them, 'percentile' that
                 share of them, 'entropy' as many as lose the least information
    activations  'u8' or 'i8'; weights are i8 around 0
    symmetric    ranges of activations are the same on both sides of 0
    per_channel  a scale for each output channel of weights, else one for all
    exclude      nodes that stay as they are, by name
    """

    ranges: str = 'minmax'
    percentile: float = 99.99
    activations: str = 'u8'
    symmetric: bool = False
    per_channel: bool = True
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (('ranges', RANGES), ('activations', ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f'{name} is {getattr(self, name)!r}; choose one of {", ".join(known)}'
                )
        if not 50 <= self.percentile <= 100:  # false for nan
            raise InputError(f'percentile is {self.percentile}; give one from 50 to 100')


@dataclass(frozen=True)
class Calibrated:
    """A model of floats with the range of every value that was seen.

    model   constants folded, batch normalisations in their convolutions, every node named
    ranges  value -> its least and largest number, as ONNX Runtime's calibration gives them
    """

    model: ModelProto
    ranges: Any
    options: QuantizeOptions

    def range_of(self, value: str) -> tuple[float, float] | None:
        if value not in self.ranges:
            return None
        low, high = self.ranges[value].range_value
        return float(np.asarray(low).reshape(-1)[0]), float(np.asarray(high).reshape(-1)[0])

    def quantised(self, floats: Collection[str] = ()) -> ModelProto:
        """The model with QuantizeLinear and DequantizeLinear around its nodes, but these."""
        from onnx import ModelProto

        tools = quantisation()
        types = {'u8': tools.QuantType.QUInt8, 'i8': tools.QuantType.QInt8}
        registry = tools.registry
        operators = sorted({*registry.QLinearOpsRegistry, *registry.QDQRegistry})
        copy = ModelProto()
        copy.CopyFrom(self.model)
        with _quiet():
            quantiser = tools.qdq_quantizer.QDQQuantizer(
                copy, self.options.per_channel, False, tools.QuantType.QInt8,
                types[self.options.activations], self.ranges, [],
                [*self.options.exclude, *floats, *self._without_tools()], operators,
                {'ActivationSymmetric': self.options.symmetric, 'WeightSymmetric': True},
            )  # fmt: skip
            quantiser.quantize_model()
        return quantiser.model.model

    def _without_tools(self) -> list[str]:
        """Nodes for whose scales of channels the tools have no place: channels of a grouped
        transposed convolution's weights are those of one group, its biases those of all; and a
        constant on the left of a product has them along its rows, for which no kernel is.
        """
        constants = {tensor.name for tensor in self.model.graph.initializer}
        return [
            node.name
            for node in self.model.graph.node
            if self.options.per_channel
            and (
                (node.op_type == 'MatMul' and node.input[0] in constants)
                or (
                    node.op_type == 'ConvTranspose'
                    and len(node.input) > 2
                    and any(a.name == 'group' and a.i > 1 for a in node.attribute)
                )
            )
        ]


def calibrate(model: ModelProto, samples: Sequence[Sample], options: QuantizeOptions) -> Calibrated:
    """[ModelProto, samples] -> [Calibrated]"""
    if any(node.op_type == 'QuantizeLinear' for node in model.graph.node):
        raise InputError(
            f'{model.graph.name} holds quantised values already; give the model of floats that it '
            f'was made from'
        )
    tools = quantisation()
    with tempfile.TemporaryDirectory(prefix='tilewright-') as scratch, _quiet():
        prepared = _prepared(tools, model, Path(scratch))
        names = {node.name for node in prepared.graph.node}
        unknown = [name for name in options.exclude if name not in names]
        if unknown:
            raise InputError(f'node {unknown[0]!r} is not in the model; leave it out of exclude')
        path = Path(scratch) / 'calibrated.onnx'
        _save(prepared, path)
        bounds = _collected(tools, path, samples, None, QuantizeOptions())
        made = Calibrated(prepared, bounds, options)
        _check_ranges(made, len(samples))
        if options.ranges != 'minmax' or options.symmetric:
            made = Calibrated(
                prepared, _collected(tools, path, samples, bounds, options), options
            )  # fmt: skip
    return made


def quantisation() -> Any:
    """onnxruntime.quantization."""
    try:
        import onnxruntime.quantization.shape_inference
    except ImportError:
        raise MissingError(
            'quantising needs onnxruntime, which is not installed; '
            "pip install 'tilewright[bench]' brings it"
        ) from None
    return onnxruntime.quantization


def _prepared(tools: Any, model: ModelProto, scratch: Path) -> ModelProto:
    """The model as the tools want it: folded, sizes inferred, every node with a name."""
    import onnx
    from onnx import ModelProto

    named = ModelProto()
    named.CopyFrom(model)
    taken = {node.name for node in named.graph.node if node.name}
    for node in named.graph.node:
        node.name = node.name or fresh_name(node.output[0] or node.op_type, taken)
    source, path = scratch / 'source.onnx', scratch / 'prepared.onnx'
    _save(named, source)
    try:
        tools.shape_inference.quant_pre_process(source, path, skip_symbolic_shape=True)
        return onnx.load(path)
    except Exception as error:  # of kinds that onnxruntime keeps to itself
        said = str(error).split('\n', 1)[0][:200]
        raise ModelError(f'ONNX Runtime cannot prepare {model.graph.name}: {said}') from error


def _save(model: ModelProto, path: Path) -> None:
    import onnx

    if model.ByteSize() >= 2**31 - 2**20:
        raise InputError(
            f'{model.graph.name} has {model.ByteSize() / 2**30:.1f} GiB of weights; models of up '
            f'to 2 GiB can be quantised'
        )
    onnx.save(model, path)


def _collected(tools: Any, path: Path, samples: Sequence[Sample], bounds: Any,
               options: QuantizeOptions) -> Any:  # fmt: skip
    """The range of every float that a node reads or gives; `bounds` are the extremes of them."""
    method, entropy = tools.CalibrationMethod, options.ranges == 'entropy'
    more: dict[str, Any] = {'symmetric': options.symmetric}
    kind = method.MinMax
    if options.ranges != 'minmax':
        # Entropy is ours (entropy.py): ONNX Runtime's takes seconds for a tensor, and with its own
        # number of bins has a single threshold to choose from. Histograms are of magnitudes.
        kind = method.Percentile
        more = {'symmetric': options.symmetric or entropy, 'num_bins': BINS,
                'percentile': options.percentile}  # fmt: skip
    made = path.with_name(f'{options.ranges}-calibrated.onnx')
    calibrator = tools.create_calibrator(path, None, str(made), kind, extra_options=more)
    for sample in samples:  # one at a time: it keeps all values of what it is given
        calibrator.collect_data(_Reader(sample))
    if not entropy:
        return calibrator.compute_data()
    found = {}
    for name, (counts, edges, *_) in calibrator.collector.histogram_dict.items():
        low, high = (np.asarray(end).reshape(()) for end in bounds[name].range_value)
        levels = 255 if low >= 0 and not options.symmetric else 127
        most = np.float32(threshold(counts, edges, levels))
        ends = (-most, most) if options.symmetric else (max(low, -most), min(high, most))
        found[name] = tuple(np.array(end, np.float32) for end in ends)
    return tools.calibrate.TensorsData(method.MinMax, found)


class _Reader:
    """One sample, as calibration asks for it."""

    def __init__(self, sample: Sample) -> None:
        self._left: list[Mapping[str, np.ndarray]] = [sample]

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def _check_ranges(calibrated: Calibrated, count: int) -> None:
    """Refuse values that are infinite, and those of which nothing was seen but zeros."""
    excluded = set(calibrated.options.exclude)
    nodes = [node for node in calibrated.model.graph.node if node.name not in excluded]
    for value in dict.fromkeys(name for n in nodes for name in (*n.input, *n.output)):
        found = calibrated.range_of(value)
        if found is None:
            continue
        where = next(n.name for n in nodes if value in (*n.input, *n.output))
        if not np.isfinite(found).all():
            raise InputError(
                f'value {value!r} at node {where!r} ranges from {found[0]:g} to {found[1]:g} over '
                f'{count} samples; leave out the samples that overflow, or exclude the node'
            )
        if found[0] == found[1] == 0:
            raise InputError(
                f'value {value!r} at node {where!r} is 0 in all of {count} samples, so that its '
                f'range is empty; give samples that reach it, or exclude the node'
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the tools print, log and warn of as they go."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')
            yield
    finally:
        root.setLevel(level)
