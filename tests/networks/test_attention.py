"""Attention in networks: found in every form that exporters write, and right on every target."""

from __future__ import annotations

from dataclasses import replace

import graphs
import numpy as np
import pytest
from devices import device
from test_fuse import same

import tilewright as tw
from tilewright.graph.attention import join_attention
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.ops.attention import read_attention, why_no_attention

B, H, L, D = 2, 3, 6, 4


def heads(*names: str) -> list:
    """[b, words, hidden] -> [b, heads, words, size], as exporters split a row into heads."""
    nodes = []
    for name in names:
        nodes.append(graphs.node('Reshape', f'{name} split', f'{name}s'))
        nodes.append(graphs.node('Transpose', f'{name}s', f'{name}h', perm=(0, 2, 1, 3)))
    return nodes


def written(scale: str = 'Div', mask: str = 'Add', turned: str = 'apart') -> Graph:
    """Attention as nodes: heads split and joined, a scale, a mask, keys turned in their own way."""
    nodes = heads('q', 'v')
    if turned == 'apart':
        nodes += heads('k')
        nodes.append(graphs.node('Transpose', 'kh', 'kt', perm=(0, 1, 3, 2)))
    else:
        nodes.append(graphs.node('Reshape', 'k split', 'ks'))
        nodes.append(graphs.node('Transpose', 'ks', 'kt', perm=(0, 2, 3, 1)))
    nodes.append(graphs.node('MatMul', 'qh kt', 's'))
    last = 's'
    if scale:
        nodes.append(graphs.node(scale, f'{last} c', 'scaled'))
        last = 'scaled'
    if mask == 'Where':
        nodes.append(graphs.node('Where', f'keep {last} low', 'masked'))
        last = 'masked'
    elif mask:
        nodes.append(graphs.node(mask, f'm {last}', 'masked'))
        last = 'masked'
    nodes.append(graphs.node('Softmax', last, 'w', axis=3))
    nodes.append(graphs.node('MatMul', 'w vh', 'o'))
    nodes.append(graphs.node('Transpose', 'o', 'ot', perm=(0, 2, 1, 3)))
    nodes.append(graphs.node('Reshape', 'ot joined', 'y'))
    inputs = {'q': (B, L, H * D), 'k': (B, L, H * D), 'v': (B, L, H * D), 'm': (B, 1, 1, L)}
    keep = np.tril(np.ones((L, L), bool))[None, None]
    return graphs.graph(
        inputs, 'y', nodes, split=np.array([B, L, H, D]), joined=np.array([B, L, H * D]),
        c=np.array(2.0, np.float32), keep=keep, low=np.array(-1e4, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize('scale', ['Div', 'Mul', ''])
@pytest.mark.parametrize('mask', ['Add', 'Where', ''])
@pytest.mark.parametrize('turned', ['apart', 'at once'])
def test_it_is_one_task_in_every_form(scale, mask, turned):
    """Splitting and joining heads and turning keys are indices of the task, not tasks."""
    program = graphs.lowered(written(scale, mask, turned))
    joined = join_attention(program)
    assert len(joined.tasks) == 1
    form = read_attention(joined.tasks[0].group)
    assert len(form.between) == bool(scale) + bool(mask)
    same(program, joined)


def test_scores_that_somebody_else_reads_are_stored():
    made = written()
    for name in ('s', 'masked', 'w'):
        seen = graphs.lowered(replace(made, outputs=(*made.outputs, (name, name))))
        assert join_attention(seen).tasks == seen.tasks


def test_what_is_not_attention_is_left_alone():
    nodes = [
        graphs.node('MatMul', 'x x', 's'),
        graphs.node('Softmax', 's', 'w', axis=1),
        graphs.node('MatMul', 'w x', 'y'),
    ]
    program = graphs.lowered(graphs.graph({'x': (1, 5, 5)}, 'y', nodes))
    assert join_attention(program).tasks == program.tasks


@pytest.mark.parametrize('target', ['cpu', 'host', 'opencl'])
def test_it_is_right_on_a_target(target):
    """One kernel on every target."""
    if target != 'cpu':
        device(target)
    graph = written()
    inputs = graphs.inputs_of(graphs.lowered(graph))
    want = evaluate(graphs.lowered(graph), inputs)
    network = tw.compile(graph, target=target)
    got = network.run(inputs)
    np.testing.assert_allclose(got['y'], want['y'], rtol=1e-4, atol=1e-5)
    if target != 'cpu':
        assert [task.schedule.schema for task in network.gpu_tasks] == ['attention']


def test_attention_with_a_cache_and_shared_heads():
    """ONNX's operator: keys of earlier words behind which new ones come, two heads for each."""
    made = graphs.node('Attention', 'q k v', 'y nk nv', is_causal=1, q_num_heads=4, kv_num_heads=2)
    nodes = [replace(made, inputs=('q', 'k', 'v', '', 'pk', 'pv'))]
    inputs = {
        'q': (1, 3, 4 * D), 'k': (1, 3, 2 * D), 'v': (1, 3, 2 * D), 'pk': (1, 2, 5, D),
        'pv': (1, 2, 5, D),
    }  # fmt: skip
    program = graphs.lowered(graphs.graph(inputs, 'y nk nv', nodes))
    joined = join_attention(program)
    found = [t for t in joined.tasks if not why_no_attention(t.group)]
    assert len(found) == 1
    assert read_attention(found[0].group).causal == 5
    same(program, joined)
    arrays = graphs.inputs_of(program)
    network = tw.compile(graphs.graph(inputs, 'y nk nv', nodes))
    want = evaluate(program, arrays)
    got = network.run(arrays)
    for name in ('y', 'nk', 'nv'):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
