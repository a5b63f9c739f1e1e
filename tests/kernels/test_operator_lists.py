"""Networks as operator lists: shapes are Boda's, oracles agree, devices compute every tensor."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from devices import device

from tilewright.errors import ArrayError, SpecError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import transpose
from tilewright.ops.suites import suite
from tilewright_lab.compare.boda_networks import NETWORKS, inception_v1, network
from tilewright_lab.compare.operator_lists import (
    Operator,
    OperatorList,
    reference_values,
)
from tilewright_lab.compare.run_lists import ListRunner, check, first_choice, general_choice
from tilewright_lab.peers.torch_oracle import torch_values

TORCH = pytest.mark.skipif(
    importlib.util.find_spec('torch') is None, reason='torch is not installed (extra: torch)'
)


def small(name: str) -> OperatorList:
    """Inception with one of its nine modules, which has every kind of operator."""
    if name == 'inception_v1':
        return inception_v1(2, 64, 16, ('3a',))
    return network(name, 2, small=True)


def test_every_operation_of_boda_is_in_a_network() -> None:
    """Table 1 lists the convolutions beyond 1e8 operations of the three networks, at batch 5."""
    found = set()
    for name in NETWORKS:
        for operator in network(name, 5).operators:
            numbers = dict(operator.numbers)
            if operator.kind == 'conv2d':
                plain = numbers | {'bias': False, 'activation': None}
                found.add(conv2d(**plain).label)
            elif operator.kind == 'fully_connected':
                found.add(('fc', numbers['c'], numbers['k']))
    layers = suite('boda')
    assert len(layers) == 43
    for layer in layers:
        conv = layer.conv
        connected = ('fc', conv.c * conv.h * conv.w, conv.k)
        whole = conv.out_h == conv.out_w == 1
        assert conv.label in found or (whole and connected in found), layer.name


@pytest.mark.parametrize(
    ('name', 'count', 'shape'),
    [('alexnet', 14, (1, 1000)), ('nin', 17, (1, 1000)), ('inception_v1', 75, (1, 1000))],
)
def test_sizes_of_the_networks(name: str, count: int, shape: tuple) -> None:
    net = network(name)
    assert len(net.operators) == count
    assert net.shapes[net.output] == shape


def test_shapes_inside_inception() -> None:
    """Szegedy et al., Table 1: sizes behind each stage."""
    shapes = network('inception_v1', 3).shapes
    assert shapes['conv1'] == (3, 64, 112, 112)
    assert shapes['pool2'] == (3, 192, 28, 28)
    assert shapes['inception_3b'] == (3, 480, 28, 28)
    assert shapes['inception_4e'] == (3, 832, 14, 14)
    assert shapes['inception_5b'] == (3, 1024, 7, 7)


@TORCH
@pytest.mark.parametrize('name', NETWORKS)
def test_the_oracles_agree_and_values_are_of_order_one(name: str) -> None:
    net = network(name, 2, small=True)
    weights, inputs = net.random_weights(3), net.random_inputs(4)
    ours = dict(reference_values(net, inputs, weights))
    theirs = dict(torch_values(net, inputs, weights))
    assert list(ours) == list(theirs)
    assert set(ours) == set(net.shapes) - {'data'}
    for tensor, values in ours.items():
        want = theirs[tensor].reshape(values.shape)
        np.testing.assert_allclose(values, want, rtol=1e-9, atol=1e-11)
        if tensor != 'prob' and values.shape[1] >= 8:  # few channels may all be rectified
            assert 0.3 < np.sqrt(np.mean(np.square(values))) < 15


@pytest.mark.parametrize(
    ('name', 'on'),
    [
        *((name, 'host') for name in NETWORKS),
        ('inception_v1', 'opencl'),
        *(pytest.param(name, 'opencl', marks=pytest.mark.slow) for name in ('alexnet', 'nin')),
    ],
)
def test_a_device_computes_every_tensor(name: str, on: str) -> None:
    net = small(name)
    weights, inputs = net.random_weights(1), net.random_inputs(2)
    runner = ListRunner(net, device(on), weights, first_choice if on == 'host' else general_choice)
    verdicts = []
    for seed in (5, 2):  # twice, so that counters and workspaces are used again
        runner.run(net.random_inputs(seed))
        inputs = net.random_inputs(seed)
        verdicts = check(runner, reference_values(net, inputs, weights))
        assert [v.comparison.message for v in verdicts] == [''] * len(verdicts)
    assert {v.tensor for v in verdicts} == set(net.shapes) - {'data'}
    probabilities = runner(inputs)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-5)


def residual() -> OperatorList:
    """A 1x1 convolution, a depthwise one, and what came in added to it."""
    image = {'n': 2, 'c': 6, 'h': 9, 'w': 8}
    window = {'k': 6, 'r': 3, 's': 3, 'pad': 1, 'groups': 6, 'bias': True}
    operators = (
        Operator('wide', 'conv2d', (*image.items(), ('k', 6), ('r', 1), ('s', 1)), ('x',), 'a'),
        Operator('deep', 'conv2d', (*image.items(), *window.items()), ('a',), 'b'),
        Operator('sum', 'add', (('shape', (2, 6, 9, 8)),), ('b', 'x'), 'c'),
        Operator('gate', 'activate', (('name', 'silu'), ('shape', (2, 6, 9, 8))), ('c',), 'y'),
    )
    return OperatorList('residual', (('x', (2, 6, 9, 8)),), operators, 'y')


@pytest.mark.parametrize('oracle', [reference_values, pytest.param(torch_values, marks=TORCH)])
def test_operators_with_two_inputs(oracle) -> None:
    net = residual()
    weights, inputs = net.random_weights(1), net.random_inputs(2)
    runner = ListRunner(net, device('host'), weights)
    assert runner.schedules['deep'].schema == 'depthwise'
    runner.run(inputs)
    assert all(v.comparison.ok for v in check(runner, oracle(net, inputs, weights)))
    assert runner.time(1).keys() == {'', 'wide', 'deep', 'sum', 'gate'}


def test_a_wrong_tensor_is_found() -> None:
    net = replace(small('alexnet'), operators=small('alexnet').operators[:2], output='norm1')
    weights, inputs = net.random_weights(1), net.random_inputs(2)
    runner = ListRunner(net, device('host'), weights, general_choice)
    runner.run(inputs)
    runner.calls['norm1'] = []
    assert all(v.comparison.ok for v in check(runner, reference_values(net, inputs, weights)))
    runner.run(inputs)
    first, second = check(runner, reference_values(net, inputs, weights))
    assert first.comparison.ok
    assert 'not written' in second.comparison.message
    assert second.to_json()['ok'] is False


def test_memory_is_one_buffer_a_tensor() -> None:
    """Branches of a concatenation and a flattened image are bound to the memory itself."""
    net = inception_v1(1, 64, 16, ('3a',))
    runner = ListRunner(net, device('host'), net.random_weights(0), general_choice)
    whole = runner.arrays['inception_3a'].memory
    for branch in ('3a_1x1', '3a_3x3', '3a_5x5', '3a_pool_proj'):
        assert runner.calls[branch][-1].values['Out'].memory is whole
    assert runner.calls['pool5'][0].values['In'].memory is whole
    assert runner.calls['classifier'][0].values['In'].memory is runner.arrays['pool5'].memory


def test_schedules_without_a_search() -> None:
    """The most specialised schema that fits; lanes where points are few."""
    machine = known_gpu('h200')
    net = network('alexnet')
    chosen = {o.name: first_choice(o.whole, machine) for o in net.operators}
    assert chosen['conv3'].schema == chosen['fc6'].schema == 'tiled'
    assert chosen['pool1'].schema == chosen['norm1'].schema == 'general'
    assert chosen['norm1']['lanes'] == 1
    assert chosen['prob']['lanes'] > 1
    depthwise = conv2d(c=32, h=28, w=28, k=32, r=3, s=3, pad=1, groups=32)
    assert first_choice(depthwise, machine).schema == 'depthwise'
    assert first_choice(transpose((1, 64, 9, 9), (0, 2, 3, 1)), machine).schema == 'transposed'
    assert first_choice(transpose((1, 3, 9, 9), (0, 2, 3, 1)), machine).schema == 'general'


def relu(name: str, source: str, output: str, **place) -> Operator:
    numbers = (('name', 'relu'), ('shape', (1, 3, 2, 2)))
    return Operator(name, 'activate', numbers, (source,), output, **place)


@pytest.mark.parametrize(
    ('operators', 'part'),
    [
        ([relu('a', 'x', 'y'), relu('a', 'y', 'z')], 'named twice'),
        ([relu('a', 'y', 'z')], 'before it is written'),
        ([relu('a', 'x', 'y', place=(1, 6))], '12 elements are written to y, which has 24'),
        ([relu('a', 'x', 'y'), relu('b', 'x', 'y')], '24 elements are written to y'),
        ([relu('a', 'x', 'y'), relu('b', 'x', 'y', place=(0, 6))], 'two shapes'),
        ([replace(relu('a', 'x', 'y'), inputs=('x', 'x'))], 'takes 1 inputs'),
    ],
)
def test_a_list_that_makes_no_sense_says_so(operators: list, part: str) -> None:
    with pytest.raises(SpecError, match=part):
        OperatorList('bad', (('x', (1, 3, 2, 2)),), tuple(operators), 'y')


def test_other_bad_input() -> None:
    with pytest.raises(SpecError, match='known: alexnet, nin, inception_v1'):
        network('vgg')
    with pytest.raises(SpecError, match=r'takes \(1, 3, 2, 2\), but x is'):
        OperatorList('bad', (('x', (1, 3, 2, 3)),), (relu('a', 'x', 'y'),), 'y')
    net = OperatorList('one', (('x', (1, 3, 2, 2)),), (relu('a', 'x', 'y'),), 'y')
    runner = ListRunner(net, device('host'), {})
    with pytest.raises(ArrayError, match='expected'):
        runner.run({'x': np.zeros((3, 2, 2), np.float32)})
    conv = small('alexnet')
    with pytest.raises(ArrayError, match='is needed'):
        ListRunner(conv, device('host'), {})
