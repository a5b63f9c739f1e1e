"""`tilewright explain --dfg`: the data-flow graph of a GPU kernel as a picture or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from tilewright.cli.main import invoke
from tilewright.errors import InputError, MissingError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.report import dfg_picture, gpu_explain
from tilewright.report.dfg_picture import MEMORY, REGISTER, SHARED_MEMORY, dfg_graph, write_dfg

MACHINE = known_gpu('h200')
LAYER = 'mb1ic4ih8oc8kh3ph1'


def fused() -> Group:
    """A 3x3 and a 1x1 convolution, each with bias and ReLU, as one group."""
    first = conv2d(c=4, h=8, w=8, k=8, r=3, s=3, pad=1, bias=True, activation='relu')
    second = conv2d(c=8, h=8, w=8, k=4, r=1, s=1, bias=True, activation='relu')
    made = chain(first, second, second.main.reads[0].tensor)
    assert made is not None
    return made.group


@pytest.fixture(scope='module')
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution, and one with bias and ReLU, as an ONNX file."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (('w0', (8, 4, 3, 3)), ('w1', (4, 8, 1, 1)), ('b1', (4,)))
    ]
    nodes = [
        helper.make_node('Conv', ['x', 'w0'], ['y'], 'first', pads=[1, 1, 1, 1]),
        helper.make_node('Conv', ['y', 'w1', 'b1'], ['z'], 'second'),
        helper.make_node('Relu', ['z'], ['out'], 'third'),
    ]
    x, out = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 8, 8])
        for name, channels in (('x', 4), ('out', 4))
    )
    graph = helper.make_graph(nodes, 'small', [x], [out], weights)
    path = tmp_path_factory.mktemp('models') / 'small.onnx'
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9), path)
    return path


def test_edges_say_where_their_values_lie() -> None:
    group = fused()
    graph = dfg_graph(group, dfg_picture.preferred(group, MACHINE))
    kinds = [kind for _, kind in graph.nodes(data='kind')]
    assert {stage.name for stage in group.stages} <= set(graph.nodes)
    assert (kinds.count('product'), kinds.count('element-wise')) == (2, 4)
    storages = [said for _, _, said in graph.edges(data='storage')]
    assert storages.count(SHARED_MEMORY) == 1
    (crossing,) = (e for e in graph.edges(data=True) if e[2]['storage'] == SHARED_MEMORY)
    assert crossing[2]['bytes'] >= 4 * 8
    # Input, two filters and two biases are loaded, the result is stored.
    assert storages.count(MEMORY) == 6
    assert storages.count(REGISTER) == len(storages) - 7
    assert all(graph.nodes[a]['layer'] < graph.nodes[b]['layer'] for a, b in graph.edges)


def test_a_picture_is_xml_with_all_names_and_the_same_every_time(tmp_path: Path) -> None:
    group = fused()
    for name in ('a.svg', 'b.svg'):
        write_dfg(group, MACHINE, tmp_path / name)
    assert (tmp_path / 'a.svg').read_bytes() == (tmp_path / 'b.svg').read_bytes()
    root = ElementTree.parse(tmp_path / 'a.svg').getroot()
    text = ' '.join(root.itertext())
    for name in (*(stage.name for stage in group.stages), REGISTER, SHARED_MEMORY, MEMORY):
        assert name in text


@pytest.mark.parametrize(('suffix', 'magic'), [('.png', b'\x89PNG'), ('.pdf', b'%PDF')])
def test_other_formats(suffix: str, magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / f'deep/er{suffix}'
    write_dfg(fused(), MACHINE, path)
    assert path.read_bytes().startswith(magic)


def test_a_layer_is_drawn_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_explain, 'LOOKED_AT', 16)
    path, result = tmp_path / 'graph.json', tmp_path / 'said.json'
    words = ['explain', LAYER, '--machine', 'h200', '--dfg', str(path), '--json', str(result)]
    assert invoke(words) == 0
    assert f'wrote the data-flow graph to {path}' in capsys.readouterr().out
    assert json.loads(result.read_text())['layers'][0]['dfg'] == str(path)
    said = json.loads(path.read_text())
    assert 'product' in {node['kind'] for node in said['nodes']}
    assert {edge['storage'] for edge in said['edges']} == {REGISTER, MEMORY}


@pytest.mark.parametrize(
    ('words', 'stages'), [((), 3), (('--group', 'first'), 1), (('--group', '2'), None)]
)
def test_a_network_draws_the_group_of_most_stages_or_the_one_that_is_named(
    words: tuple[str, ...], stages: int | None, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / 'graph.json'
    assert invoke(['explain', str(model), '--machine', 'h200', '--dfg', str(path), *words]) == 0
    kinds = [node['kind'] for node in json.loads(path.read_text())['nodes']]
    count = sum(kind in ('product', 'reduction', 'element-wise') for kind in kinds)
    assert count == stages or (stages is None and count in (1, 3))


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        (
            (LAYER, '--dfg', 'x.gif', '--machine', 'h200'),
            'end it in one of .svg, .png, .pdf, .json',
        ),
        ((LAYER, '--dfg', 'x', '--machine', 'h200'), 'ends in nothing'),
        ((LAYER, '--dfg', 'x.svg'), 'draws a kernel of a GPU; name one by --machine'),
        ((LAYER, '--group', '1', '--machine', 'h200'), 'says which kernel of a network'),
        (('cnnopt', '--dfg', 'x.svg', '--machine', 'h200'), 'names 20 layers or networks'),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture
) -> None:
    assert invoke(['explain', *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count('\n') == 1


def test_a_group_that_is_not_there_is_named(model: Path, capsys: pytest.CaptureFixture) -> None:
    words = ['explain', str(model), '--machine', 'h200', '--dfg', 'x.svg', '--group']
    assert invoke([*words, 'frist']) == 2
    assert 'did you mean first?' in capsys.readouterr().err
    assert invoke([*words, '7']) == 2
    assert 'rows 1 to 2' in capsys.readouterr().err


@pytest.mark.parametrize('suffix', ['.svg', '.json'])
def test_a_file_that_cannot_be_written_is_one_sentence(suffix: str, tmp_path: Path) -> None:
    (tmp_path / 'file').write_text('')
    with pytest.raises(InputError, match='cannot be written to'):
        write_dfg(fused(), MACHINE, tmp_path / 'file' / f'x{suffix}')


def test_without_the_library_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, 'networkx', None)
    with pytest.raises(MissingError, match=r'install tilewright\[report\]'):
        write_dfg(fused(), MACHINE, tmp_path / 'x.svg')
