"""Inception-v1 (GoogLeNet) and Inception-v3, without the auxiliary classifiers of training."""

from __future__ import annotations

from tilewright.zoo.classic import CLASSES
from tilewright.zoo.layers import INPUT, Builder, Network

# Channels of each module: 1x1; 3x3 behind its reduction; 5x5 behind its reduction; behind the
# pooling (Szegedy et al., CVPR'15, Table 1). 'M': a 3x3 maximum of stride 2 between stages.
V1 = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), 'M',
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), 'M',
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
EPSILON = 1e-3


def inception_v1(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Szegedy et al., CVPR'15, Table 1; LRN as in AlexNet, poolings that round up."""
    net = Builder('inception_v1', batch, image, width)
    x = net.relu(net.conv(INPUT, 64, 7, 2, 3))
    x = net.lrn(net.max_pool(x, 3, 2, ceil=True), 1.0)
    x = net.relu(net.conv(x, 64, 1))
    x = net.relu(net.conv(x, 192, 3, 1, 1))
    x = net.max_pool(net.lrn(x, 1.0), 3, 2, ceil=True)
    for module in V1:
        if isinstance(module, str):
            x = net.max_pool(x, 3, 2, ceil=True)
            continue
        single, reduce3, three, reduce5, five, pooled = module
        small = net.relu(net.conv(x, reduce3, 1))
        large = net.relu(net.conv(x, reduce5, 1))
        branches = [
            net.conv(x, single, 1),
            net.conv(small, three, 3, 1, 1),
            net.conv(large, five, 5, 1, 2),
            net.conv(net.max_pool(x, 3, 1, 1), pooled, 1),
        ]
        x = net.concat([net.relu(branch) for branch in branches])
    x = net.linear(net.dropout(net.global_average(x)), CLASSES)
    return net.finish(net.softmax(x))


def inception_v3(batch: int = 1, image: int = 299, width: int = 1) -> Network:
    """Szegedy et al., CVPR'16, Sec. 6, with the channel numbers of the authors' own code."""
    net = Builder('inception_v3', batch, image, width)
    x = _unit(net, INPUT, 32, 3, 2)
    x = _unit(net, _unit(net, x, 32, 3), 64, 3, pad=1)
    x = _unit(net, net.max_pool(x, 3, 2), 80, 1)
    x = net.max_pool(_unit(net, x, 192, 3), 3, 2)
    for pooled in (32, 64, 64):
        x = _figure5(net, x, pooled)
    x = _reduce35(net, x)
    for inner in (128, 160, 160, 192):
        x = _figure6(net, x, inner)
    x = _reduce17(net, x)
    for _ in range(2):
        x = _figure7(net, x)
    return net.finish(net.linear(net.dropout(net.global_average(x)), CLASSES))


def _unit(
    net: Builder, x: str, k: int, window: int | tuple[int, int], stride: int = 1,
    pad: int | tuple[int, int] = 0,
) -> str:  # fmt: skip
    """Convolution, batch normalisation, relu."""
    return net.relu(net.batch_norm(net.conv(x, k, window, stride, pad, bias=False), EPSILON))


def _figure5(net: Builder, x: str, pooled: int) -> str:
    """Inception with 5x5 as two 3x3 (the paper's Fig. 5); the middle branch kept its 5x5."""
    double = _unit(net, _unit(net, x, 64, 1), 96, 3, pad=1)
    return net.concat(
        [
            _unit(net, x, 64, 1),
            _unit(net, _unit(net, x, 48, 1), 64, 5, pad=2),
            _unit(net, double, 96, 3, pad=1),
            _unit(net, net.average_pool(x, 3, 1, 1), pooled, 1),
        ]
    )


def _reduce35(net: Builder, x: str) -> str:
    """From 35x35 to 17x17 (Fig. 10)."""
    double = _unit(net, _unit(net, x, 64, 1), 96, 3, pad=1)
    return net.concat(
        [_unit(net, x, 384, 3, 2), _unit(net, double, 96, 3, 2), net.max_pool(x, 3, 2)]
    )


def _figure6(net: Builder, x: str, inner: int) -> str:
    """Inception with n x n as 1 x n and n x 1, n = 7 (Fig. 6)."""
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    once = _unit(net, x, inner, 1)
    once = _unit(net, once, inner, row[0], pad=row[1])
    twice = _unit(net, x, inner, 1)
    for window, pad in (column, row, column):
        twice = _unit(net, twice, inner, window, pad=pad)
    return net.concat(
        [
            _unit(net, x, 192, 1),
            _unit(net, once, 192, column[0], pad=column[1]),
            _unit(net, twice, 192, row[0], pad=row[1]),
            _unit(net, net.average_pool(x, 3, 1, 1), 192, 1),
        ]
    )


def _reduce17(net: Builder, x: str) -> str:
    """From 17x17 to 8x8."""
    wide = _unit(net, x, 192, 1)
    for window, pad in (((1, 7), (0, 3)), ((7, 1), (3, 0))):
        wide = _unit(net, wide, 192, window, pad=pad)
    return net.concat(
        [
            _unit(net, _unit(net, x, 192, 1), 320, 3, 2),
            _unit(net, wide, 192, 3, 2),
            net.max_pool(x, 3, 2),
        ]
    )


def _figure7(net: Builder, x: str) -> str:
    """Inception with widened banks of filters (Fig. 7)."""
    once = _unit(net, x, 384, 1)
    twice = _unit(net, _unit(net, x, 448, 1), 384, 3, pad=1)
    halves = [
        _unit(net, source, 384, window, pad=pad)
        for source in (once, twice)
        for window, pad in (((1, 3), (0, 1)), ((3, 1), (1, 0)))
    ]
    pooled = _unit(net, net.average_pool(x, 3, 1, 1), 192, 1)
    return net.concat([_unit(net, x, 320, 1), *halves, pooled])
