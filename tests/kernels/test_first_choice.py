"""Schedules without a search, and Boda's networks on a device: shapes, every result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from devices import device

import tilewright as tw
from tilewright import zoo
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.moving import transpose
from tilewright.ops.normalise import lrn, softmax
from tilewright.ops.suites import suite
from tilewright_lab.compare.first_choice import first_choice

BODA = ('alexnet', 'nin', 'inception_v1')


def test_every_operation_of_boda_is_in_a_network() -> None:
    """Table 1 lists the convolutions beyond 1e8 operations of the three networks, at batch 5.

    Boda took AlexNet without the groups of its paper.
    """
    found = set()
    for name in BODA:
        net = zoo.network(name, 5)
        for layer in net.layers:
            n, c, *image = net.shape_of(layer.sources[0])
            if layer.kind == 'conv':
                (r, s), (ph, pw) = layer['window'], layer['pad']
                h, w = image
                found.add(conv2d(n=n, c=c, h=h, w=w, k=layer['k'], r=r, s=s,
                                 stride=layer['stride'], pad=(ph, pw)).label)  # fmt: skip
            elif layer.kind == 'linear':
                found.add(('fc', c * math.prod(image), layer['k']))
    layers = suite('boda')
    assert len(layers) == 43
    for layer in layers:
        conv = layer.conv
        connected = ('fc', conv.c * conv.size[0] * conv.size[1], conv.k)
        whole = conv.out == (1, 1)
        assert conv.label in found or (whole and connected in found), layer.name


def test_shapes_inside_inception() -> None:
    """Szegedy et al., Table 1: sizes behind each stage."""
    net = zoo.network('inception_v1', 3)
    shapes = [layer.shape for layer in net.layers if layer.kind == 'concat']
    assert net.layers[0].shape == (3, 64, 112, 112)
    assert shapes[1] == (3, 480, 28, 28)
    assert shapes[6] == (3, 832, 14, 14)
    assert shapes[8] == (3, 1024, 7, 7)


@pytest.mark.slow
@pytest.mark.parametrize('on', ['host', 'opencl'])
@pytest.mark.parametrize('name', BODA)
def test_a_device_computes_the_network(name: str, on: str) -> None:
    """Twice, so that counters and workspaces are used again; every task where results differ."""
    device(on)  # skips where there is none
    made = tw.compile(zoo.graph(name, batch=2, **zoo.SMALL[name]), target=on, check=True)
    net = zoo.network(name, batch=2, **zoo.SMALL[name])
    first, second = (made(zoo.example(net, seed)) for seed in (5, 2))
    for probabilities in (first, second):
        np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-5)
    assert np.abs(first - second).max() > 1e-6
    np.testing.assert_array_equal(made(zoo.example(net, 2)), second)


def test_schedules_without_a_search() -> None:
    """The most specialised schema that fits; lanes where points are few."""
    machine = known_gpu('h200')
    conv = conv2d(c=256, h=13, w=13, k=384, r=3, s=3, pad=1)
    connected = fully_connected(c=9216, k=4096, bias=True, activation='relu')
    for group in (conv, connected):
        assert first_choice(group, machine).schema == 'tiled'
    wide, narrow = (first_choice(g, machine) for g in (lrn((1, 96, 55, 55)), softmax((1, 1000))))
    assert wide.schema == narrow.schema == 'general'
    assert wide['lanes'] == 1
    assert narrow['lanes'] > 1
    depthwise = conv2d(c=32, h=28, w=28, k=32, r=3, s=3, pad=1, groups=32)
    assert first_choice(depthwise, machine).schema == 'depthwise'
    assert first_choice(transpose((1, 64, 9, 9), (0, 2, 3, 1)), machine).schema == 'transposed'
    assert first_choice(transpose((1, 3, 9, 9), (0, 2, 3, 1)), machine).schema == 'general'
