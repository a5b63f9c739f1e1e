"""AlexNet, Network-in-Network and Inception-v1 as operator lists, in the setting of Boda's Table 1.

The shapes are those of the Caffe models that Boda took its operations from: AlexNet without groups
on 227 x 227 images (Krizhevsky et al., NIPS'12), Network-in-Network (Lin et al., 2013) and
Inception-v1 (Szegedy et al., CVPR'15) on 224 x 224, pooling that rounds up, LRN over five channels.
Dropout and the auxiliary classifiers of training are left out. Convolutions have bias and relu in
one group.

`image` and `width` make small networks of the same structure: other image sizes, channels divided
by `width`.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.errors import SpecError
from tilewright_lab.compare.operator_lists import Operator, OperatorList

# Inception modules: 1x1; 3x3 behind its reduction; 5x5 behind its reduction; behind the pooling.
MODULES = {
    '3a': (64, 96, 128, 16, 32, 32),
    '3b': (128, 128, 192, 32, 96, 64),
    '4a': (192, 96, 208, 16, 48, 64),
    '4b': (160, 112, 224, 24, 64, 64),
    '4c': (128, 128, 256, 24, 64, 64),
    '4d': (112, 144, 288, 32, 64, 64),
    '4e': (256, 160, 320, 32, 128, 128),
    '5a': (256, 160, 320, 32, 128, 128),
    '5b': (384, 192, 384, 48, 128, 128),
}
CLASSES = 1000


class _Builder:
    """A list as it grows: each method adds one operator on `source` and returns its output."""

    def __init__(self, name: str, batch: int, image: int, width: int) -> None:
        self.name, self.batch, self.width = name, batch, width
        self.inputs = (('data', (batch, 3, image, image)),)
        self.shapes: dict[str, tuple[int, ...]] = dict(self.inputs)
        self.operators: list[Operator] = []

    def finish(self, output: str) -> OperatorList:
        return OperatorList(self.name, self.inputs, tuple(self.operators), output)

    def add(
        self, name: str, kind: str, source: str, place: tuple[str, int, int] | None, **numbers: Any
    ) -> str:
        """`place` is (tensor, offset, extent) of a slice that is written instead of `name`."""
        output, *slot = place or (name,)
        slice_ = (int(slot[0]), int(slot[1])) if slot else None
        made = Operator(name, kind, tuple(numbers.items()), (source,), str(output), slice_)
        self.operators.append(made)
        self.shapes[made.output] = made.group.output.shape
        return made.output

    def image(self, source: str) -> dict[str, int]:
        return dict(zip('nchw', self.shapes[source], strict=True))

    def conv(
        self, name: str, source: str, k: int, r: int, stride: int = 1, pad: int = 0,
        place: tuple[str, int, int] | None = None,
    ) -> str:  # fmt: skip
        return self.add(
            name, 'conv2d', source, place, **self.image(source), k=max(1, k // self.width), r=r,
            s=r, stride=stride, pad=pad, bias=True, activation='relu',
        )  # fmt: skip

    def max_pool(self, name: str, source: str, window: int, stride: int, pad: int = 0) -> str:
        return self.add(
            name, 'max_pool2d', source, None, **self.image(source), window=window, stride=stride,
            pad=pad, ceil=True,
        )  # fmt: skip

    def mean(self, name: str, source: str) -> str:
        """The average of each whole image."""
        image = self.image(source)
        window = (image['h'], image['w'])
        return self.add(name, 'average_pool2d', source, None, **image, window=window)

    def lrn(self, name: str, source: str) -> str:
        return self.add(
            name, 'lrn', source, None, **self.image(source), size=5, alpha=1e-4, beta=0.75
        )

    def connected(self, name: str, source: str, k: int, activation: str | None) -> str:
        n, *rest = self.shapes[source]
        return self.add(
            name, 'fully_connected', source, None, n=n, c=math.prod(rest),
            k=max(1, k // self.width), bias=True, activation=activation,
        )  # fmt: skip

    def softmax(self, name: str, source: str) -> str:
        n, *rest = self.shapes[source]
        return self.add(name, 'softmax', source, None, shape=(n, math.prod(rest)))


def alexnet(batch: int = 1, image: int = 227, width: int = 1) -> OperatorList:
    """Five convolutions, three fully connected layers."""
    net = _Builder('alexnet', batch, image, width)
    x = net.conv('conv1', 'data', 96, 11, 4)
    x = net.max_pool('pool1', net.lrn('norm1', x), 3, 2)
    x = net.conv('conv2', x, 256, 5, 1, 2)
    x = net.max_pool('pool2', net.lrn('norm2', x), 3, 2)
    for name, k in (('conv3', 384), ('conv4', 384), ('conv5', 256)):
        x = net.conv(name, x, k, 3, 1, 1)
    x = net.max_pool('pool5', x, 3, 2)
    x = net.connected('fc6', x, 4096, 'relu')
    x = net.connected('fc7', x, 4096, 'relu')
    return net.finish(net.softmax('prob', net.connected('fc8', x, CLASSES, None)))


def network_in_network(batch: int = 1, image: int = 224, width: int = 1) -> OperatorList:
    """Four convolutions, each followed by two 1x1 convolutions; the mean of every class's image."""
    net = _Builder('nin', batch, image, width)
    x, number = 'data', 1
    for block, (k, r, stride, pad) in enumerate(
        ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (1024, 3, 1, 1)), 1
    ):
        x = net.conv(f'conv{block}', x, k, r, stride, pad)
        for last in (False, True):
            classes = block == 4 and last
            x = net.conv(f'cccp{number}', x, CLASSES if classes else k, 1)
            number += 1
        if block < 4:
            x = net.max_pool(f'pool{block}', x, 3, 2)
    return net.finish(net.softmax('prob', net.mean('pool4', x)))


def inception_v1(
    batch: int = 1, image: int = 224, width: int = 1, modules: tuple[str, ...] = tuple(MODULES)
) -> OperatorList:
    """GoogLeNet. `modules` are those that are built, in order, with the poolings between them."""
    net = _Builder('inception_v1', batch, image, width)
    x = net.conv('conv1', 'data', 64, 7, 2, 3)
    x = net.lrn('norm1', net.max_pool('pool1', x, 3, 2))
    x = net.conv('conv2', net.conv('conv2_reduce', x, 64, 1), 192, 3, 1, 1)
    x = net.max_pool('pool2', net.lrn('norm2', x), 3, 2)
    for module in modules:
        if module == '4a':
            x = net.max_pool('pool3', x, 3, 2)
        elif module == '5a':
            x = net.max_pool('pool4', x, 3, 2)
        x = _inception(net, module, x)
    x = net.connected('classifier', net.mean('pool5', x), CLASSES, None)
    return net.finish(net.softmax('prob', x))


def _inception(net: _Builder, module: str, source: str) -> str:
    """Four branches, each of which writes its channels of one tensor."""
    single, reduce3, three, reduce5, five, pooled = MODULES[module]
    sizes = [max(1, k // net.width) for k in (single, three, five, pooled)]
    name, extent = f'inception_{module}', sum(sizes)
    slots = [(name, sum(sizes[:i]), extent) for i in range(4)]
    net.conv(f'{module}_1x1', source, single, 1, place=slots[0])
    small = net.conv(f'{module}_3x3_reduce', source, reduce3, 1)
    net.conv(f'{module}_3x3', small, three, 3, 1, 1, slots[1])
    large = net.conv(f'{module}_5x5_reduce', source, reduce5, 1)
    net.conv(f'{module}_5x5', large, five, 5, 1, 2, slots[2])
    around = net.max_pool(f'{module}_pool', source, 3, 1, 1)
    return net.conv(f'{module}_pool_proj', around, pooled, 1, place=slots[3])


NETWORKS = {'alexnet': alexnet, 'nin': network_in_network, 'inception_v1': inception_v1}
# (image, width) of the small variants: every kind of operator and every stage of a network is left.
SMALL = {'alexnet': (67, 8), 'nin': (96, 8), 'inception_v1': (64, 8)}


def network(name: str, batch: int = 1, small: bool = False) -> OperatorList:
    """A network by name, at its own size or small."""
    if name not in NETWORKS:
        raise SpecError(f'network {name!r} is not known; known: {", ".join(NETWORKS)}')
    if small:
        image, width = SMALL[name]
        return NETWORKS[name](batch, image, width)
    return NETWORKS[name](batch)
