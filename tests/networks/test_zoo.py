"""The zoo: published sizes, ONNX and PyTorch alike, activations of order one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tilewright import zoo
from tilewright.cli.main import invoke
from tilewright.errors import SpecError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.graph.passes import PROGRAM_PASSES, apply_passes, passes_of
from tilewright.machine.detect import describe_host
from tilewright.machine.measure import nominal_machine
from tilewright.targets.cpu.cost import CpuCost
from tilewright.zoo.as_onnx import to_onnx
from tilewright.zoo.layers import Builder

torch = pytest.importorskip('torch')
ort = pytest.importorskip('onnxruntime')

# Parameters and multiplications (batch 1) as the papers, their Caffe files or torchvision's
# documentation give them.
PARAMETERS = {
    'alexnet': 60_965_224,
    'vgg11': 132_863_336,
    'vgg16': 138_357_544,
    'nin': 7_595_176,
    'inception_v1': 6_998_552,
    'inception_v3': 23_834_568,
    'resnet18': 11_689_512,
    'resnet34': 21_797_672,
    'resnet50': 25_557_032,
    'squeezenet': 1_235_496,
    'mobilenet_v1': 4_231_976,
    'mobilenet_v2': 3_504_872,
    'densenet121': 7_978_856,
    'darknet19': 20_842_376,
}
GIGA = {
    'alexnet': 0.72, 'vgg11': 7.61, 'vgg16': 15.47, 'inception_v1': 1.58, 'inception_v3': 5.71,
    'resnet18': 1.81, 'resnet34': 3.66, 'resnet50': 4.09, 'squeezenet': 0.35,
    'mobilenet_v1': 0.57, 'mobilenet_v2': 0.30, 'densenet121': 2.83, 'darknet19': 2.79,
}  # fmt: skip


def small(name, **more):
    return zoo.network(name, **zoo.SMALL[name], **more)


def answer(model, image):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )
    return session.run(None, {zoo.INPUT: image})[0]


@pytest.mark.parametrize('name', zoo.NAMES)
def test_sizes_are_those_that_were_published(name):
    network = zoo.network(name)
    assert network.parameters == PARAMETERS[name]
    if name in GIGA:
        assert network.multiplications / 1e9 == pytest.approx(GIGA[name], abs=0.006)
    assert network.shape_of(network.output) == (1, 1000)


@pytest.mark.parametrize('name', zoo.NAMES)
def test_onnx_and_torch_compute_the_same(name):
    network = small(name, batch=2)
    model = zoo.onnx_model(name, 3, 2, **zoo.SMALL[name])
    onnx.checker.check_model(model, full_check=True)
    image = zoo.example(network, 5)
    module = zoo.torch_module(name, 3, 2, **zoo.SMALL[name])
    with torch.inference_mode():
        theirs = module(torch.from_numpy(image)).numpy()
    ours = answer(model, image)
    assert ours.shape == network.shape_of(network.output)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(ours).max()
    # Another image has another answer: nothing has died on the way.
    other = answer(model, zoo.example(network, 6))
    assert np.abs(ours - other).max() > 1e-3 * np.abs(ours).max()


@pytest.mark.parametrize('name', zoo.NAMES)
def test_activations_are_of_order_one(name):
    network = small(name)
    module = zoo.torch_module(name, **zoo.SMALL[name])
    seen = {}
    for layer, part in module.named_children():
        part.register_forward_hook(
            lambda _, __, y, layer=layer: seen.__setitem__(layer, float(y.square().mean().sqrt()))
        )
    with torch.inference_mode():
        module(torch.from_numpy(zoo.example(network)))
    found = {layer: seen[layer] for layer in seen if network.layer(layer).weights}
    assert len(found) == sum(layer.weights > 0 for layer in network.layers)
    assert min(found.values()) > 0.05
    assert max(found.values()) < 15


@pytest.mark.parametrize('name', zoo.NAMES)
def test_small_forms_have_every_kind_of_layer_and_the_same_structure(name):
    full, little = zoo.network(name), small(name)
    assert [(a.kind, a.name, a.sources) for a in full.layers] == [
        (b.kind, b.name, b.sources) for b in little.layers
    ]
    assert little.parameters < full.parameters / 30


def test_nothing_is_folded_in_the_onnx_model():
    model = zoo.onnx_model('resnet18', **zoo.SMALL['resnet18'])
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count('BatchNormalization') == 20
    assert kinds.count('Conv') == 20
    assert kinds.count('Add') == 8
    assert model.opset_import[0].version == 21
    assert [i.name for i in model.graph.input] == [zoo.INPUT]
    assert [o.name for o in model.graph.output] == [zoo.OUTPUT]


def test_weights_are_the_same_for_the_same_seed_only():
    network = small('mobilenet_v2')
    first, again, other = (zoo.weights(network, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert all(not np.array_equal(first[name], other[name]) for name in first)
    assert {array.dtype for array in first.values()} == {np.dtype(np.float32)}
    data = [to_onnx(network, w).SerializeToString() for w in (first, again)]
    assert data[0] == data[1]


def test_batch_statistics_fit():
    """Normalised values have a variance near 1, by statistics that no run gave."""
    network = zoo.network('resnet18', image=96, width=2)
    module = zoo.torch_module('resnet18', image=96, width=2)
    spread = []
    for layer, part in module.named_children():
        if network.layer(layer).kind == 'batch_norm':
            part.register_forward_hook(lambda _, __, y: spread.append(float(y.std())))
    with torch.inference_mode():
        module(torch.from_numpy(zoo.example(network)))
    assert len(spread) == 20
    assert min(spread) > 0.5
    assert max(spread) < 2.0


def test_the_module_is_ordinary_pytorch():
    module = zoo.torch_module('resnet18', **zoo.SMALL['resnet18'])
    assert isinstance(module, torch.nn.Module)
    assert not module.training
    assert 'self.conv1(image)' in module.code
    assert isinstance(module.batch_norm1, torch.nn.BatchNorm2d)


@pytest.mark.parametrize(
    ('make', 'sentence'),
    [
        (lambda: zoo.network('resnet19'), "'resnet19' is not known; did you mean resnet18"),
        (lambda: zoo.network('qqqqqqq'), 'known: alexnet, vgg11'),
        (lambda: zoo.network('resnet18', batch=0), 'batch of resnet18 is 0; it is at least 1'),
        (lambda: zoo.network('vgg16', image=16), 'image size 16 is too small'),
        (lambda: zoo.network('alexnet', image=8), 'image size 8 is too small'),
    ],
)
def test_what_cannot_be_made_is_one_sentence(make, sentence):
    with pytest.raises(SpecError, match=sentence):
        make()


def test_a_builder_counts_what_it_builds():
    net = Builder('tiny', batch=2, image=9, width=1)
    x = net.max_pool(net.conv(zoo.INPUT, 4, 3, stride=2, pad=1), 3, 2, ceil=True)
    made = net.finish(net.linear(net.flatten(x), 5))
    assert made.shape_of(x) == (2, 4, 2, 2)
    assert made.parameters == 4 * 27 + 4 + 16 * 5 + 5
    assert made.multiplications == 2 * (4 * 27 * 25 + 16 * 5)


def test_zoo_verb_shows_and_writes(tmp_path, capsys):
    path = tmp_path / 'small.onnx'
    words = ['zoo', 'squeezenet', '--image', '64', '--width', '8', '--seed', '4', '-o', str(path)]
    assert invoke(words) == 0
    assert 'squeezenet' in capsys.readouterr().out
    want = zoo.onnx_model('squeezenet', 4, **zoo.SMALL['squeezenet'])
    assert path.read_bytes() == want.SerializeToString()
    assert invoke(['zoo']) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in zoo.NAMES)
    assert invoke(['zoo', '-o', str(path)]) == 2
    assert 'needs a network' in capsys.readouterr().err
    assert invoke(['zoo', 'resnet18', '-o', str(tmp_path / 'no' / 'x.onnx')]) == 2


@pytest.mark.parametrize('name', zoo.WRITTEN)
def test_written_networks_in_all_forms_agree(name):
    """ONNX Runtime, PyTorch and our reference compute the same of a small form."""
    small = zoo.SMALL[name]
    made = zoo.network(name, **small)
    given = zoo.inputs(made)
    session = ort.InferenceSession(zoo.onnx_model(name, **small).SerializeToString())
    want = session.run(None, given)
    module = zoo.torch_module(name, **small)
    found = module(*(torch.from_numpy(array) for array in given.values()))
    found = found if isinstance(found, tuple) else (found,)
    ours = evaluate(lower(zoo.graph(name, **small)), given)
    for value, right, theirs in zip(made.outputs, want, found, strict=True):
        scale = np.abs(right).max()
        assert right.shape == value.shape
        assert np.abs(theirs.numpy() - right).max() < 1e-5 * scale
        assert np.abs(ours[value.name] - right).max() < 1e-5 * scale


def test_written_networks_have_the_sizes_of_their_papers():
    millions = {n: zoo.network(n).parameters / 1e6 for n in zoo.WRITTEN}
    assert millions['bert_base'] == pytest.approx(108.9, abs=0.1)  # without its pooler
    assert millions['vit_b16'] == pytest.approx(86.6, abs=0.1)
    assert millions['gpt2'] == millions['gpt2_decode'] == pytest.approx(124.4, abs=0.1)
    assert zoo.network('bert_base').shape == (1, 384)
    assert zoo.network('bert_base_128', 2).shape == (2, 128)
    with pytest.raises(SpecError, match='words'):
        zoo.network('bert_base', image=513)
    with pytest.raises(SpecError, match='multiple of 16'):
        zoo.network('vit_b16', image=100)


def test_a_transformer_compiles_to_seven_tasks_a_layer():
    """Product of queries, keys and values, attention, product, norm, two products, norm."""
    small = zoo.SMALL['bert_base']
    made = zoo.network('bert_base', **small)
    graph = zoo.graph('bert_base', **small)
    cost = CpuCost(nominal_machine(describe_host(), 'portable'), 1)
    program = apply_passes(graph, passes_of(None), cost, PROGRAM_PASSES)
    assert len(program.tasks) == 7 * len(made.layers) + 3
    given = zoo.inputs(made)
    want = evaluate(lower(graph), given)['scores']
    assert np.abs(evaluate(program, given)['scores'] - want).max() < 1e-5 * np.abs(want).max()
