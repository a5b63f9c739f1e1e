"""Networks of normalised blocks: ResNet-18, -34 and -50, MobileNet-v1 and -v2, DenseNet-121."""

from __future__ import annotations

from tilewright.zoo.classic import CLASSES
from tilewright.zoo.layers import INPUT, Builder, Network

STAGES = {'resnet18': (2, 2, 2, 2), 'resnet34': (3, 4, 6, 3), 'resnet50': (3, 4, 6, 3)}
# MobileNet-v1: channels and stride of each separable convolution (Howard et al., Table 1).
SEPARABLE = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2),
    (1024, 1),
)  # fmt: skip
# MobileNet-v2: expansion, channels, repetitions, first stride (Sandler et al., Table 2).
BOTTLENECKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def resnet18(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """He et al., CVPR'16, Table 1, projections where shapes change (option B)."""
    return _resnet('resnet18', batch, image, width)


def resnet34(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """He et al., CVPR'16, Table 1."""
    return _resnet('resnet34', batch, image, width)


def resnet50(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """He et al., CVPR'16, Table 1; the stride is in the 3x3, as in the files that people have."""
    return _resnet('resnet50', batch, image, width)


def _resnet(name: str, batch: int, image: int, width: int) -> Network:
    net = Builder(name, batch, image, width)
    x = net.relu(_normalised(net, INPUT, 64, 7, 2, 3))
    x = net.max_pool(x, 3, 2, 1)
    for stage, blocks in enumerate(STAGES[name]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _residual(net, x, 64 << stage, stride, deep=name == 'resnet50')
    return net.finish(net.linear(net.global_average(x), CLASSES))


def _normalised(net: Builder, x: str, k: int, window: int, stride: int = 1, pad: int = 0) -> str:
    """A convolution and its batch normalisation."""
    return net.batch_norm(net.conv(x, k, window, stride, pad, bias=False))


def _residual(net: Builder, x: str, k: int, stride: int, deep: bool) -> str:
    """A basic or a bottleneck block (the paper's Fig. 5)."""
    out = 4 * k if deep else k
    if deep:
        y = net.relu(_normalised(net, x, k, 1))
        y = net.relu(_normalised(net, y, k, 3, stride, 1))
        y = _normalised(net, y, out, 1)
    else:
        y = net.relu(_normalised(net, x, k, 3, stride, 1))
        y = _normalised(net, y, k, 3, 1, 1)
    if stride > 1 or net.shapes[x][1] != net.channels(out):
        x = _normalised(net, x, out, 1, stride)
    return net.relu(net.join(y, x))


def mobilenet_v1(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Howard et al., 2017, Table 1."""
    net = Builder('mobilenet_v1', batch, image, width)
    x = net.relu(_normalised(net, INPUT, 32, 3, 2, 1))
    for k, stride in SEPARABLE:
        x = net.relu(net.batch_norm(net.depthwise(x, 3, stride, 1)))
        x = net.relu(_normalised(net, x, k, 1))
    x = net.linear(net.global_average(x), CLASSES)
    return net.finish(net.softmax(x))


def mobilenet_v2(batch: int = 1, image: int = 224, width: int = 1) -> Network:
    """Sandler et al., CVPR'18, Table 2: inverted residuals, linear bottlenecks, relu6."""
    net = Builder('mobilenet_v2', batch, image, width)
    x = net.relu6(_normalised(net, INPUT, 32, 3, 2, 1))
    c = 32
    for expansion, k, repeats, first in BOTTLENECKS:
        for number in range(repeats):
            stride = 1 if number else first
            y = x
            if expansion > 1:
                y = net.relu6(_normalised(net, x, expansion * c, 1))
            y = net.relu6(net.batch_norm(net.depthwise(y, 3, stride, 1)))
            y = _normalised(net, y, k, 1)
            x, c = (net.join(x, y) if stride == 1 and c == k else y), k
    x = net.relu6(_normalised(net, x, 1280, 1))
    return net.finish(net.linear(net.dropout(net.global_average(x)), CLASSES))


def densenet121(batch: int = 1, image: int = 224, width: int = 1, growth: int = 32) -> Network:
    """Huang et al., CVPR'17, Table 1: growth 32, bottlenecks, half the channels in transitions."""
    net = Builder('densenet121', batch, image, width)
    x = net.relu(_normalised(net, INPUT, 2 * growth, 7, 2, 3))
    x, c = net.max_pool(x, 3, 2, 1), 2 * growth
    for stage, layers in enumerate((6, 12, 24, 16)):
        if stage:
            c //= 2
            x = net.average_pool(net.conv(_activated(net, x), c, 1, bias=False), 2, 2)
        for _ in range(layers):
            y = net.conv(_activated(net, x), 4 * growth, 1, bias=False)
            y = net.conv(_activated(net, y), growth, 3, 1, 1, bias=False)
            x, c = net.concat([x, y]), c + growth
    return net.finish(net.linear(net.global_average(_activated(net, x)), CLASSES))


def _activated(net: Builder, x: str) -> str:
    """Normalisation and relu before a convolution."""
    return net.relu(net.batch_norm(x))
