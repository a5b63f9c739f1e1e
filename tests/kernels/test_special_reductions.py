"""NaN, infinities, subnormal numbers and signed zeros through every reduction, on every target.

Reductions are those of networks: nodes, lowered. What holds is written in docs/operators.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from special_values import NANS, TARGETS, marks, run

from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import lower
from tilewright.machine.isa import host_isas

# What a compiler's optimisations make of NaN is part of what is tested.
pytestmark = pytest.mark.usefixtures('optimised')
LENGTH = 37  # whole vectors, and a rest
INF = np.float32(np.inf)
TINY = np.float32(2.0**-149)


def lines() -> np.ndarray:
    """[cases, LENGTH]: each with special values in other places."""
    plain = np.random.default_rng(0).permutation(LENGTH).astype(np.float32) - LENGTH // 2
    found = [plain]
    for pattern, at in itertools.product(NANS, (0, 17, LENGTH - 1)):
        found.append(plain.copy())
        found[-1][at] = pattern
    for pattern in NANS:
        found.append(np.full(LENGTH, pattern))
    for first, second in itertools.product((NANS[3], INF, -INF, np.float32(-0.0)), repeat=2):
        found.append(plain.copy())
        found[-1][[5, 30]] = first, second
    found += [np.full(LENGTH, value, np.float32) for value in (INF, -INF, 0.0, -0.0, TINY, -TINY)]
    found.append(np.where(np.arange(LENGTH) % 2, INF, -INF))
    found.append(np.where(np.arange(LENGTH) % 2, np.float32(0.0), np.float32(-0.0)))
    found.append(plain * TINY)  # subnormal numbers: their sums are exact
    return np.stack(found)


@dataclass(frozen=True)
class Case:
    """A node on [1, 2, cases / 2, LENGTH]; `exact` in units of subnormal numbers too."""

    op: str
    attributes: dict
    inputs: tuple[np.ndarray, ...] = ()
    outputs: int = 1
    exact: bool = False
    oracle: Callable[[np.ndarray], np.ndarray] | None = None


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    peak = x.max(-1, keepdims=True)
    peak = np.where(np.isinf(peak), 0, peak)
    return np.log(np.exp(x - peak).sum(-1, keepdims=True)) + peak


def _last(place: Callable) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x.shape[-1] - 1 - place(x[..., ::-1], -1, keepdims=True)


def _windows(x: np.ndarray) -> np.ndarray:
    """[.., windows of three elements] along the last axis, the border least."""
    padded = np.pad(x, [(0, 0)] * 3 + [(1, 1)], constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(padded, 3, -1)


AXIS = (np.array([3]),)
WINDOW = {'kernel_shape': (1, 3), 'pads': (0, 1, 0, 1)}
ONES = np.ones(2, np.float32)
CASES = {
    'sum': Case('ReduceSum', {}, AXIS, exact=True, oracle=lambda x: x.sum(-1, keepdims=True)),
    'mean': Case('ReduceMean', {}, AXIS, exact=True, oracle=lambda x: x.mean(-1, keepdims=True)),
    'prod': Case('ReduceProd', {}, AXIS, oracle=lambda x: x.prod(-1, keepdims=True)),
    'max': Case('ReduceMax', {}, AXIS, exact=True, oracle=lambda x: x.max(-1, keepdims=True)),
    'min': Case('ReduceMin', {}, AXIS, exact=True, oracle=lambda x: x.min(-1, keepdims=True)),
    'l1': Case('ReduceL1', {}, AXIS, exact=True),
    'l2': Case('ReduceL2', {}, AXIS),
    'squares': Case('ReduceSumSquare', {}, AXIS),
    'log_sum': Case('ReduceLogSum', {}, AXIS),
    'log_sum_exp': Case('ReduceLogSumExp', {}, AXIS, oracle=_log_sum_exp),
    'max over rows': Case('ReduceMax', {}, (np.array([2]),), exact=True),
    'max over all': Case('ReduceMax', {'keepdims': 0}, exact=True),
    'argmax': Case('ArgMax', {'axis': 3}, oracle=lambda x: np.argmax(x, -1, keepdims=True)),
    'argmin': Case('ArgMin', {'axis': 3}, oracle=lambda x: np.argmin(x, -1, keepdims=True)),
    'argmax, the last': Case(
        'ArgMax', {'axis': 3, 'select_last_index': 1}, oracle=_last(np.argmax)
    ),
    'argmin, the last': Case(
        'ArgMin', {'axis': 3, 'select_last_index': 1}, oracle=_last(np.argmin)
    ),
    'argmax over rows': Case('ArgMax', {'axis': 2}),
    'cumulative sum': Case(
        'CumSum', {}, (np.array(3),), exact=True, oracle=lambda x: np.cumsum(x, -1)
    ),
    'softmax': Case('Softmax', {'axis': 3}, oracle=_softmax),
    'softmax over rows': Case('Softmax', {'axis': 1}),
    'log_softmax': Case('LogSoftmax', {'axis': 3}),
    'hardmax': Case(
        'Hardmax', {'axis': 3},
        oracle=lambda x: np.arange(x.shape[-1]) == np.argmax(x, -1, keepdims=True),
    ),
    'top': Case(
        'TopK', {'axis': 3}, (np.array([5]),), 2, oracle=lambda x: np.sort(x)[..., :-6:-1]
    ),
    'least': Case(
        'TopK', {'axis': 3, 'largest': 0}, (np.array([LENGTH]),), 2, oracle=lambda x: np.sort(x)
    ),
    'max_pool': Case('MaxPool', WINDOW, exact=True, oracle=lambda x: _windows(x).max(-1)),
    'max_pool, places': Case('MaxPool', WINDOW, outputs=2),
    'max_pool of squares': Case(
        'MaxPool', {'kernel_shape': (3, 3), 'strides': (2, 2), 'pads': (1, 1, 1, 1)}, exact=True
    ),
    'average_pool': Case('AveragePool', {**WINDOW, 'count_include_pad': 1}, exact=True),
    'average_pool inside': Case('AveragePool', WINDOW, exact=True),
    'lp_pool': Case('LpPool', WINDOW),
    'lp_pool of threes': Case('LpPool', {**WINDOW, 'p': 3}),
    'global max': Case('GlobalMaxPool', {}, exact=True),
    'global average': Case('GlobalAveragePool', {}),
    'lrn': Case('LRN', {'size': 3, 'alpha': 0.1, 'beta': 0.75, 'bias': 1.0}),
    'batch_norm': Case('BatchNormalization', {}, (ONES, ONES, ONES, ONES)),
    'instance_norm': Case('InstanceNormalization', {}, (ONES, ONES)),
    'group_norm': Case('GroupNormalization', {'num_groups': 1}, (ONES, ONES)),
    'layer_norm': Case(
        'LayerNormalization', {'axis': 3}, (np.ones(LENGTH, np.float32),) * 2
    ),
    'rms_norm': Case('RMSNormalization', {'axis': 3}, (np.ones(LENGTH, np.float32),)),
    # Squares of subnormal numbers are zeros.
    'lp_norm': Case('LpNormalization', {'axis': 3, 'p': 1}),
    'mvn': Case('MeanVarianceNormalization', {'axes': (3,)}),
}  # fmt: skip
# One for each kind of code, on all targets in every run; the others are slow but on one.
FEW = frozenset({'max', 'sum', 'argmax', 'softmax', 'max_pool, places', 'average_pool', 'lrn'})
QUICK = host_isas()[0]
PAIRS = [
    pytest.param(
        name, target,
        marks=[*marks(target), *([] if target == QUICK or name in FEW else [pytest.mark.slow])],
    )
    for name, target in itertools.product(CASES, TARGETS)
]  # fmt: skip


def image() -> np.ndarray:
    found = lines()
    even = len(found) // 2 * 2
    return np.stack([found[:even:2], found[1:even:2]])[None]


def program(case: Case, x: np.ndarray):
    constants = {f'c{n}': array for n, array in enumerate(case.inputs)}
    names = tuple(f'y{n}' for n in range(case.outputs))
    node = Node(case.op, 'node', ('x', *constants), names, case.attributes)
    outputs = tuple((name, name) for name in names)
    return lower(Graph('test', (Value('x', x.shape),), outputs, (node,), constants))


def on(target: str):
    """Runs a group's kernel on a target, as graph/evaluate.py runs the reference."""
    return lambda group, arrays: run(target, group, arrays)


@pytest.mark.parametrize('name', [name for name, case in CASES.items() if case.oracle])
def test_the_oracle_is_numpy(name: str) -> None:
    """What kernels are compared with is right."""
    case, x = CASES[name], image()
    assert case.oracle is not None
    with np.errstate(all='ignore'):
        want = case.oracle(x.astype(np.float64))
        got = evaluate(program(case, x), {'x': x})['y0']
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(('name', 'target'), PAIRS)
def test_every_reduction(name: str, target: str) -> None:
    case, x = CASES[name], image()
    made = program(case, x)
    with np.errstate(all='ignore'):
        want = evaluate(made, {'x': x})
        got = evaluate(made, {'x': x}, run=on(target))
    for output, right in want.items():
        if right.dtype.kind == 'f':
            # Sums have an order of their own; of subnormal numbers they are exact in any.
            atol = 2.0**-149 if case.exact else 1e-35
            np.testing.assert_allclose(got[output], right, rtol=2e-5, atol=atol)
        else:
            np.testing.assert_array_equal(got[output], right)
