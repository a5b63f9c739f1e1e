"""Networks in f16 and bf16 on GPU targets: results, layouts, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.check.check import Check, Checked
from tilewright.errors import InputError
from tilewright.graph.concat import copy_of
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.half import halved
from tilewright.graph.lower import lower
from tilewright.graph.passes import GPU_PASSES, HALF, apply_passes, with_half


def _graph(seed: int = 0) -> Graph:
    """Padding, a residual, a depthwise layer, a concatenation, pooling, a product, softmax."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        scale = np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 1.0)
        return (rng.standard_normal(shape) / scale).astype(np.float32)

    constants = {
        'w1': weights(16, 3, 3, 3), 'b1': weights(16), 'w2': weights(16, 16, 3, 3),
        'wd': weights(16, 1, 3, 3), 'w3': weights(24, 16, 1, 1), 'wf': weights(10, 40),
    }  # fmt: skip
    same = {'pads': (1, 1, 1, 1)}
    nodes = [
        Node('Conv', 'c1', ('x', 'w1', 'b1'), ('a',), {**same, 'strides': (2, 2)}),
        Node('Relu', 'r1', ('a',), ('r',)),
        Node('MaxPool', 'p', ('r',), ('p',), {**same, 'kernel_shape': (3, 3)}),
        Node('Conv', 'c2', ('p', 'w2'), ('b',), same),
        Node('Add', 'add', ('b', 'p'), ('s',)),
        Node('Conv', 'd', ('s', 'wd'), ('d',), {**same, 'group': 16}),
        Node('Conv', 'c3', ('d', 'w3'), ('e',)),
        Node('Concat', 'cc', ('e', 's'), ('cc',), {'axis': 1}),
        Node('GlobalAveragePool', 'g', ('cc',), ('g',)),
        Node('Flatten', 'f', ('g',), ('f',)),
        Node('Gemm', 'gemm', ('f', 'wf'), ('o',), {'transB': 1}),
        Node('Softmax', 'soft', ('o',), ('out',), {'axis': 1}),
    ]
    return Graph(
        'half', (Value('x', (2, 3, 8, 8)),), (('out', 'out'),), tuple(nodes), constants
    )  # fmt: skip


def test_a_program_in_half_computes_the_same_with_half_the_bytes() -> None:
    program = lower(_graph())
    made = halved(program, 'f16')
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    want, got = (evaluate(p, {'x': x}, exact=True)['out'] for p in (program, made))
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()
    kinds = {value.dtype for name, value in made.values.items() if name in made.constants}
    assert kinds >= {'f16'}
    assert made.values['a'].shape == (2, 4, 4, 16)
    # Channels are filled up, a border of zeros stands around, windows are runs of a row.
    assert made.values['x@f16'].shape == (2, 9, 10, 4)
    assert made.values['x@f16/rows'].shape == (2, 9, 40)
    assert made.values['out'] == program.values['out']
    assert 'w1' not in made.constants


@pytest.mark.parametrize('precision', ['fp16', pytest.param('bf16', marks=pytest.mark.slow)])
def test_networks_are_right_within_what_their_type_allows(precision: str) -> None:
    found: list[Checked] = []
    tw.compile(_graph(), target='host', precision=precision, check=Check(report=found.append))
    assert found[0].within
    assert not found[0].grown


@pytest.mark.slow
@pytest.mark.parametrize('name', ['vit_b16', 'bert_base'])
def test_transformers_in_half_are_right(name: str) -> None:
    """Attention, normalisations and lookups of words beside products."""
    found: list[Checked] = []
    graph = zoo.graph(name, **zoo.SMALL[name])
    tw.compile(graph, target='host', precision='fp16', check=Check(report=found.append))
    assert found[0].within


def test_a_network_in_half_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / 'half.tw'
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    made = tw.compile(_graph(), target='host', precision='fp16', save=path)
    want = made.run({'x': x})['out']
    assert np.array_equal(tw.load(path).run({'x': x})['out'], want)


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ({'precision': 'fp8', 'target': 'host'}, 'choose one of fp32, fp16, bf16'),
        (
            {'precision': 'auto', 'target': 'host', 'accuracy': 'rel=0.1'},
            'which has fp32, fp16, bf16 and int8; choose one',
        ),
        ({'precision': 'fp16', 'target': 'host', 'libraries': 'auto'}, "needs target='cuda'"),
    ],
)
def test_precisions_that_cannot_be_are_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tw.compile(_graph(), **words)


def _dense_block() -> Graph:
    """Layers that read all layers before, and slices that several read."""
    rng = np.random.default_rng(2)
    nodes, constants, last = [], {}, 'x'
    for layer in range(3):
        wide = 16 + 8 * layer
        constants[f'w{layer}'] = rng.standard_normal((8, wide, 1, 1), dtype=np.float32) / wide**0.5
        nodes += [
            Node('Conv', f'conv{layer}', (last, f'w{layer}'), (f'y{layer}',)),
            Node('Relu', f'relu{layer}', (f'y{layer}',), (f'z{layer}',)),
            Node('Concat', f'cat{layer}', (last, f'z{layer}'), (f'c{layer}',), {'axis': 1}),
        ]
        last = f'c{layer}'
    constants |= {'split': np.array([16, 24]), 'u': np.ones((8, 16, 1, 1), np.float32) / 4,
                  'v': np.ones((8, 24, 3, 3), np.float32) / 9}  # fmt: skip
    nodes += [
        Node('Split', 'split', (last, 'split'), ('a', 'b'), {'axis': 1}),
        Node('Conv', 'u', ('a', 'u'), ('au',)),
        Node('Conv', 'v', ('b', 'v'), ('bv',), {'pads': (1, 1, 1, 1)}),
        Node('Add', 'add', ('au', 'bv'), ('out',)),
    ]
    given = (Value('x', (2, 16, 5, 6)),)
    return Graph('dense', given, (('out', 'out'),), tuple(nodes), constants)


def test_channels_of_concatenations_and_splits_are_not_copied() -> None:
    passes = with_half(GPU_PASSES, 'f16')
    program = apply_passes(_dense_block(), {'fuse', HALF, 'concat'}, lambda _: 0.0, passes)
    assert not any(copy_of(task) for task in program.tasks)
    found: list[Checked] = []
    tw.compile(_dense_block(), target='host', precision='fp16', check=Check(report=found.append))
    assert found[0].within


def test_models_of_fp16_run_as_fp16() -> None:
    """Weights and inputs of f16, as converters write them, with casts between."""
    graph = _graph()
    nodes = (Node('Cast', 'in', ('x16',), ('x',), {'to': 10}), *graph.nodes)
    half = replace(
        graph,
        inputs=(Value('x16', (2, 3, 8, 8), 'f16'),),
        nodes=nodes,
        constants={name: array.astype(np.float16) for name, array in graph.constants.items()},
    )
    net = tw.compile(half, target='host')
    assert any(task.group.half == 'f16' for task in net.gpu_tasks)  # pyright: ignore[reportAttributeAccessIssue]
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    want = evaluate(lower(graph), {'x': x}, exact=True)['out']
    assert np.abs(net.run({'x16': x})['out'] - want).max() < 5e-3 * np.abs(want).max()


def test_layers_are_planned_in_half() -> None:
    layer = tw.conv2d(c=32, h=14, w=14, k=64, r=3, s=3, pad=1)
    plan = tw.optimize(layer, 'h200', measure=False, target='cuda', dtype='bf16', trials=24)
    assert plan.best.schedule.schema == 'channels'
    assert 'MMA_BF16' in plan.source() or 'WGMMA_HALF_BF16' in plan.source()
    assert 'matrix instructions' in plan.explain()
    with pytest.raises(InputError, match='choose a GPU, f16, or f32'):
        tw.optimize(layer, dtype='bf16')
    with pytest.raises(InputError, match='i7-9700k has no arithmetic of f16; choose f32'):
        tw.optimize(layer, 'i7-9700k', measure=False, dtype='f16')
    words = {'measure': False, 'dtype': 'f16', 'algorithm': 'direct'}
    plan = tw.optimize(layer, 'neoverse-n1', **words)
    assert plan.best.schedule.schema == 'half'
    assert 'fmla' in plan.source()
    with pytest.raises(InputError, match='choose one of f32, f16, bf16'):
        tw.optimize(layer, 'h200', measure=False, target='cuda', dtype='f8')
