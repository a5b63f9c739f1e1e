"""What a graph computes, by others: every node alone, by ONNX Runtime or ONNX's own reference.

Goes in: nodes and arrays. Comes out: the array of every value. ONNX Runtime runs with its graph
optimisations off; an element type that it lacks is replaced by another that holds the same numbers
(float64 by float32), and what is left is computed by ONNX's reference in Python. Neither shares
code with this project.

`noisy` computes the same with an error put on every float that arithmetic made, of the size that
another order of summation has: elements that move by it (a floor at a whole number, an ArgMax of
equals, a difference that cancels) are no measure of right and wrong.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterable

import numpy as np
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from tilewright.fallback.sessions import EXACT_INTEGERS

from .graphs import Arrays, Net, Node, model_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What moves, chooses or compares elements adds no error of its own.
EXACT = _names(
    'Abs And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil CenterCropPad '
    'Clip Concat ConstantOfShape DepthToSpace Dropout Equal Expand EyeLike Flatten Floor Gather '
    'GatherElements GatherND GlobalMaxPool Greater GreaterOrEqual Hardmax Identity IsInf IsNaN '
    'Less LessOrEqual Max MaxPool Min Neg Not OneHot Or Pad Range ReduceMax ReduceMin Relu '
    'Reshape Round Shape Sign Size Slice SpaceToDepth Split Squeeze ThresholdedRelu Tile '
    'Transpose Trilu Unsqueeze Where Xor ArgMax ArgMin TopK'
)
# Sums, whose error is a share of their largest result. Winograd and TF32 may take 1e-4 of it.
SUMS = _names(
    'Conv ConvTranspose MatMul Gemm Einsum AveragePool GlobalAveragePool LpPool GlobalLpPool '
    'BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization '
    'LpNormalization MeanVarianceNormalization RMSNormalization ReduceSum ReduceMean ReduceL1 '
    'ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp ReduceProd CumSum CumProd Softmax '
    'LogSoftmax Resize LSTM GRU RNN Attention RotaryEmbedding STFT ScatterElements'
)
PRODUCTS = _names('ReduceProd CumProd ReduceSumSquare')
# Computed in float32 whatever their elements are: statistics (attribute stash_type), attributes.
SINGLE = _names(
    'LayerNormalization GroupNormalization RMSNormalization Shrink Gelu HardSigmoid HardSwish Selu '
    'LeakyRelu Swish'
)
# Their results are int64, whatever they look at.
PLACES = _names('ArgMax ArgMin TopK MaxPool Shape Size OneHot Cast CastLike EyeLike')
NOISE = {'float32': 1e-6, 'float64': 1e-13}
NOISE_OF_SUMS = {'float32': 2e-5, 'float64': 1e-12}


class OracleError(Exception):
    """The node is not legal, or nobody can compute it."""


def _session(node: Node, inputs: Arrays, constants: Arrays) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry(*EXACT_INTEGERS)
    model = model_of([node], inputs, constants, [o for o in node.outputs if o])
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )


def _by_reference(node: Node, inputs: Arrays, constants: Arrays) -> list[np.ndarray]:
    model = model_of([node], inputs, constants, [o for o in node.outputs if o])
    with warnings.catch_warnings(), np.errstate(all='ignore'):
        warnings.simplefilter('ignore')
        found = ReferenceEvaluator(model).run(None, dict(inputs))
    return [np.asarray(array) for array in found]  # type: ignore[union-attr]


def compute(node: Node, inputs: Arrays, constants: Arrays) -> tuple[dict[str, np.ndarray], str]:
    """The outputs of one node, and who computed them."""
    if node.op in PRODUCTS and _huge({**inputs, **constants}[node.inputs[0]]):
        raise OracleError(f'{node}: ONNX Runtime multiplies whole numbers as floats')
    wanted = [o for o in node.outputs if o]
    try:
        made = _session(node, inputs, constants).run(None, dict(inputs))
        return dict(zip(wanted, map(np.asarray, made), strict=True)), 'onnxruntime'
    except Exception as error:
        if 'NOT_IMPLEMENTED' not in str(error) and 'INVALID_GRAPH' not in str(error):
            raise OracleError(f'{node}: {error}') from error
    for other in _substitutes(node, inputs, constants):
        with contextlib.suppress(Exception):
            return dict(zip(wanted, _as(other, node, inputs, constants), strict=True)), other
    try:
        made = _by_reference(node, inputs, constants)
    except Exception as error:
        raise OracleError(f'{node}: {error}') from error
    return dict(zip(wanted, made, strict=True)), 'reference'


def _holds(made: np.ndarray, array: np.ndarray) -> bool:
    """Whether an array in another element type has the same numbers; sums of them in floats too."""
    back = made.astype(array.dtype)
    exact = made.dtype.kind != 'f' or np.abs(made).max(initial=0) < 2**16
    return bool((back == array).all() and ((made < 0) == (array < 0)).all() and exact)


def _huge(array: np.ndarray) -> bool:
    """Whether a product of whole numbers may be more than a float64 holds exactly."""
    if array.dtype.kind == 'f':
        return False
    size = np.maximum(np.abs(array.astype(np.float64)), 1)
    return float(np.prod(size)) > 2**53 or float(size.max(initial=1)) > 2**15


def _kind(node: Node, inputs: Arrays, constants: Arrays) -> str:
    """The element type of the first input."""
    both = {**inputs, **constants}
    return str(both[node.inputs[0]].dtype) if node.inputs and node.inputs[0] in both else ''


def _substitutes(node: Node, inputs: Arrays, constants: Arrays) -> tuple[str, ...]:
    """Element types that hold the same numbers, for which there may be a kernel."""
    kind = _kind(node, inputs, constants)
    if kind == 'float64':
        return ('float32',)
    if kind[:3] not in ('int', 'uin'):
        return ()
    # Sums of 64 bits, cut to fewer, wrap around as sums of fewer do; places are int64 themselves.
    return ('float32', 'int32') if node.op in PLACES else ('int64', 'int32', 'float32')


def _as(other: str, node: Node, inputs: Arrays, constants: Arrays) -> list[np.ndarray]:
    """Computed by ONNX Runtime in another element type, and brought back."""
    kind = _kind(node, inputs, constants)

    def turned(arrays: Arrays) -> dict[str, np.ndarray]:
        made = {n: a.astype(other) if a.dtype == kind else a for n, a in arrays.items()}
        if kind != 'float64' and not all(_holds(made[n], arrays[n]) for n in made):
            raise OracleError(f'{other} does not hold the numbers of {kind}')
        return made

    given = turned(inputs)
    made = map(np.asarray, _session(node, given, turned(constants)).run(None, given))
    if node.op in ('Cast', 'CastLike', 'OneHot') or 'dtype' in node.attributes:
        return list(made)
    return [a.astype(kind) if a.dtype == other else a for a in made]


def step(node: Node, values: Arrays, constants: Iterable[str]) -> tuple[dict[str, np.ndarray], str]:
    """The outputs of a node out of the values known so far."""
    names = {name for name in node.inputs if name}
    fixed = set(constants) & names
    return compute(
        node, {n: values[n] for n in names - fixed}, {n: values[n] for n in fixed}
    )  # fmt: skip


def values_of(nodes: Iterable[Node], inputs: Arrays, constants: Arrays) -> dict[str, np.ndarray]:
    """The array of every value of a graph."""
    values = {**inputs, **constants}
    for node in nodes:
        values |= step(node, values, constants)[0]
    return values


def noisy(net: Net, seed: int) -> dict[str, np.ndarray]:
    """The outputs, with errors put on whatever arithmetic makes."""
    rng = np.random.default_rng(seed)
    values = {**net.inputs, **net.constants}
    for node in net.nodes:
        made, by = step(node, values, net.constants)
        rough = by == 'float32' or node.op in SINGLE
        if rough or node.op not in EXACT:
            made = {name: _disturbed(array, node.op, rng, rough) for name, array in made.items()}
        values |= made
    return {name: values[name] for name in net.outputs}


def _disturbed(array: np.ndarray, op: str, rng: np.random.Generator, rough: bool) -> np.ndarray:
    kind = str(array.dtype)
    if kind not in NOISE or not array.size:
        return array
    if rough:
        kind = 'float32'
    with np.errstate(all='ignore'):
        size = np.abs(array)
        largest = np.max(size, where=np.isfinite(size), initial=0)
        # What is small beside the others may be the end of a series, or what a difference left.
        share = NOISE[kind] * np.maximum(size, 0.1 * largest)
        if op in SUMS:
            share = np.maximum(share, NOISE_OF_SUMS[kind] * largest)
        return np.asarray(array + share * rng.uniform(-1, 1, array.shape)).astype(array.dtype)


@functools.lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    import onnx

    return {'onnxruntime': ort.__version__, 'onnx': onnx.__version__, 'numpy': np.__version__}
