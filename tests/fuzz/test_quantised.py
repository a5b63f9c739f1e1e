"""Chains of quantised operators: exact as they are drawn, and equal when they are compiled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tilewright.graph.lowering.operators import OPERATORS
from tilewright.graph.lowering.reader import NodeReader
from tilewright.machine.isa import host_isas

from . import chains, shrink
from .chains import Way
from .quantised import (
    Chain,
    Concat,
    Conv,
    Elementwise,
    Format,
    Product,
    Source,
    Transpose,
    UnfitError,
    Weights,
    Writer,
)
from .run import Runner, arguments, main

SEED = 1
# Kernels of three of them are compiled, which takes nearly all of the time.
NUMBERS, COMPILED, MORE = range(12), (3, 5, 9), range(200)
STORED = Format('u8', 0, 120)
WEIGHTS = Weights('any', 'i8', 0, (-7, -8), False, 'bias', 5)


def conv(channels: int, size: int, stride: int = 1, activation: str = 'Relu') -> Conv:
    pad = size // 2
    return Conv(
        channels, 1, (size, size), (stride, stride), (pad, pad, pad, pad), WEIGHTS, '', activation,
        0, STORED,
    )  # fmt: skip


def source(numbers: str, channels: int = 17, dtype: str = 'u8') -> Source:
    least = 0 if dtype == 'u8' else -128
    return Source((1, channels, 6, 5), numbers, Format(dtype, least, 120), -4, False, 3)


def assert_right(name: str, compiled: bool) -> None:
    chain, ways = chains.named(name)
    for way in ways if compiled else ways[:1]:
        kind, message = chains.tried(chain.net(), way)
        assert not kind, f'{way}: {message}; python -m tests.fuzz --replay {name}\n{chain}'


@pytest.mark.parametrize('number', NUMBERS)
def test_chains_of_a_fixed_seed_are_right(number: int) -> None:
    """One element that differs is a wrong kernel, pass or plan."""
    assert_right(f'quantised:{SEED}:{number}', number in COMPILED)


@pytest.mark.slow
@pytest.mark.parametrize('first', MORE[::20])
def test_more_chains_are_right(first: int) -> None:
    """Algorithms, fusions, threads and instruction sets of this host in turn."""
    for number in range(first, first + 20):
        assert_right(f'quantised:{SEED}:{number}', True)


@pytest.mark.skipif('avx2' not in host_isas(), reason='the host has no AVX2')
@pytest.mark.parametrize('numbers', ['few large', 'largest'])
@pytest.mark.parametrize(
    ('way', 'schema'),
    [
        (Way('drawn'), 'byte_pairs'),
        (Way('model', algorithm='winograd', isa='avx2'), 'winograd_words'),
    ],
    ids=['byte_pairs', 'winograd_words'],
)  # fmt: skip
def test_kernels_of_bytes_are_reached(way: Way, schema: str, numbers: str) -> None:
    """Images behind a ReLU with the least number for zero, images whose pairs of products are too
    large for 16 bits, windows of 3 x 3 with both strides: chains are about these kernels.
    """
    first = conv(8, 1)  # its result has the layout that they read
    if numbers == 'largest':
        weights = replace(WEIGHTS, numbers='largest')
        first = replace(first, weights=weights, stored=replace(STORED, spread=1000))
    chain = Chain(source(numbers), (first, conv(8, 3), conv(8, 3, 2, '')))
    net, schemas = chain.net(), Counter[str]()
    image = next(array for name, array in net.values.items() if name.startswith('quantised'))
    assert (image.min() == 255) == (numbers == 'largest')
    assert chains.tried(net, way, schemas) == ('', '')
    assert schemas[schema]


def test_numpy_says_what_onnxruntime_does() -> None:
    """The definition itself, where ONNX Runtime computes it node by node."""
    pytest.importorskip('onnxruntime')
    for number in range(6):
        net = chains.drawn(SEED, number).net()
        again = shrink.rebuilt(net.nodes, net.inputs, net.constants, net.outputs)
        for name in net.outputs:
            np.testing.assert_array_equal(again.values[name], net.values[name], err_msg=str(number))


def test_a_chain_follows_from_its_number() -> None:
    """Workers draw chains in any order; a failure has to be found again by seed and number."""
    first = [str(chains.drawn(SEED, n).net()) for n in (3, 4)]
    assert [str(chains.drawn(SEED, n).net()) for n in (4, 3)] == first[::-1]
    assert str(chains.drawn(SEED + 1, 3).net()) != first[0]


def test_a_chain_that_is_not_exact_is_refused() -> None:
    """Sums of 2^24 and more would be rounded, each kernel in its own order."""
    large = replace(WEIGHTS, numbers='largest')
    deep = Chain(source('largest', channels=64), (replace(conv(1, 3), weights=large),))
    with pytest.raises(UnfitError, match='2\\^24'):
        deep.net()
    assert deep.source.shape[1] * 9 * 255 * 127 > 2**24
    fits = replace(deep, source=replace(deep.source, shape=(1, 48, 6, 5)))
    assert fits.net().outputs


def test_steps_compute_their_definitions() -> None:
    """Ties go to the even number, what is too large is cut off, borders are zeros, not bytes."""
    net = Writer()
    Source((1, 1, 1, 4), 'any', Format('i8', 0, 100), 0, False, 0).write(net)
    image = replace(net.images[0], numbers=np.array([[[[5, 3, -3, 127]]]], np.int8))
    net.images[0] = image
    half = replace(image, scale=2.0, zero=-128)
    assert net.image(net.real(image), half).numbers.ravel().tolist() == [-126, -126, -128, -64]
    window = Conv(
        1, 1, (1, 2), (1, 1), (0, 1, 0, 0),
        Weights('largest', 'i8', 126, (-1,), True, '', 0), '', '', 0, Format('u8', 10, 60),
    )  # fmt: skip
    net.images[:] = [replace(image, zero=3)]
    assert (window.write(net).numbers.astype(int) - 10).ravel().tolist() == [1, 1, -3, 59]


def test_a_wrong_lowering_is_found_and_made_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of a concatenation change places; steps that it does not take are taken away."""
    right = OPERATORS['Concat'].lower

    def turned(node: NodeReader):
        return right(NodeReader(node.node, node.inputs[::-1]))

    monkeypatch.setitem(OPERATORS, 'Concat', replace(OPERATORS['Concat'], lower=turned))
    product = Product(3, replace(WEIGHTS, bias=''), STORED)
    steps = conv(12, 3), Elementwise('Mul', STORED), Concat(0, STORED), Transpose(), product
    chain = Chain(source('any'), steps)
    found = chains.examined('quantised:4:2', chain, Way('reference'), None, 20)
    assert found.kind == 'wrong'
    assert found.sign in (f'reference: wrong {step} Concat' for step in ('Conv', 'Elementwise'))
    runner = Runner(arguments(['--quantised', '3', '--first', '2', '--seed', '4']))
    assert runner.names() == ['quantised:4:2', 'quantised:4:3', 'quantised:4:4']
    runner.found(found.to_json())
    assert '--replay quantised:4:2\n' in capsys.readouterr().out
    assert runner.end() == 1
    monkeypatch.setattr(chains, 'named', lambda _: (chain, [Way('reference')]))
    assert main(['--replay', 'quantised:4:2', '--shrink', '0']) == 1
    assert 'reference schedules, passes all: wrong' in capsys.readouterr().out
