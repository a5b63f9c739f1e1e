"""A network as layers over named values, from which the ONNX model and the PyTorch module are made.

Goes in: calls of a `Builder`, one for each layer, in order. Comes out: `Network`, a value. Layers
know their shapes; their weights come from `zoo/weights.py`, by layer name.

    net = Builder('tiny', batch=1, image=32, width=1)
    x = net.relu(net.batch_norm(net.conv('image', 16, 3, pad=1, bias=False)))
    network = net.finish(net.linear(net.global_average(x), 10))

`width` divides every number of channels, so that small networks of the same structure can be made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import SpecError

INPUT = 'image'
OUTPUT = 'scores'


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its kind, the values it reads, its numbers, and the shape of what it writes.

    The value that it writes has its name.
    """

    kind: str
    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    numbers: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, key: str) -> Any:
        return dict(self.numbers)[key]

    @property
    def weights(self) -> int:
        """Size of the matrix of a convolution or a fully connected layer, else 0."""
        if self.kind == 'conv':
            return self['k'] * (self['c'] // self['groups']) * math.prod(self['window'])
        return self['k'] * self['c'] if self.kind == 'linear' else 0

    @property
    def parameters(self) -> int:
        if self.kind == 'batch_norm':
            return 2 * self['c']
        return self.weights + (self['k'] if self.weights and self['bias'] else 0)

    @property
    def multiplications(self) -> int:
        n, _, *image = self.shape
        return n * self.weights * math.prod(image)


@dataclass(frozen=True, slots=True)
class Network:
    """Layers in the order in which they run; the last value is the output."""

    name: str
    shape: tuple[int, int, int, int]
    layers: tuple[Layer, ...]
    output: str
    _by_name: dict[str, Layer] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._by_name.update({layer.name: layer for layer in self.layers})
        if len(self._by_name) != len(self.layers):
            raise SpecError(f'{self.name} has two layers of the same name')

    def layer(self, name: str) -> Layer:
        return self._by_name[name]

    def shape_of(self, value: str) -> tuple[int, ...]:
        return self.shape if value == INPUT else self._by_name[value].shape

    @property
    def parameters(self) -> int:
        """Numbers that training learns: weights, biases, scales and shifts."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def multiplications(self) -> int:
        """Of convolutions and fully connected layers, by their definition."""
        return sum(layer.multiplications for layer in self.layers)


class Builder:
    """A network as it grows: each method adds one layer on `source` and returns its value."""

    def __init__(self, name: str, batch: int, image: int, width: int) -> None:
        for what, number in (('batch', batch), ('image', image), ('width', width)):
            if number < 1:
                raise SpecError(f'{what} of {name} is {number}; it is at least 1')
        self.name, self.width = name, width
        self.shape = (batch, 3, image, image)
        self.shapes: dict[str, tuple[int, ...]] = {INPUT: self.shape}
        self.layers: list[Layer] = []
        self.counts: dict[str, int] = {}

    def finish(self, output: str) -> Network:
        return Network(self.name, self.shape, tuple(self.layers), output)

    def channels(self, k: int) -> int:
        """Channels at this width: at least one."""
        return max(1, k // self.width)

    def add(
        self, kind: str, sources: tuple[str, ...], shape: tuple[int, ...], **numbers: Any
    ) -> str:
        if min(shape) < 1:
            raise SpecError(
                f'{self.name}: image size {self.shape[2]} is too small, a {kind} layer would have '
                f'shape {shape}; take a larger image'
            )
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = f'{kind}{self.counts[kind]}'
        self.layers.append(Layer(kind, name, sources, shape, tuple(numbers.items())))
        self.shapes[name] = shape
        return name

    def conv(
        self, source: str, k: int, window: int | tuple[int, int], stride: int = 1,
        pad: int | tuple[int, int] = 0, groups: int = 1, bias: bool = True,
    ) -> str:  # fmt: skip
        """A convolution to `k` channels (before division by the width)."""
        n, c, h, w = self.shapes[source]
        (r, s), (ph, pw), k = _pair(window), _pair(pad), self.channels(k)
        shape = (n, k, (h + 2 * ph - r) // stride + 1, (w + 2 * pw - s) // stride + 1)
        return self.add(
            'conv', (source,), shape, c=c, k=k, window=(r, s), stride=stride, pad=(ph, pw),
            groups=groups, bias=bias,
        )  # fmt: skip

    def depthwise(self, source: str, window: int, stride: int = 1, pad: int = 0) -> str:
        """A convolution of every channel by itself, without bias."""
        c = self.shapes[source][1]
        return self.conv(source, c * self.width, window, stride, pad, groups=c, bias=False)

    def pool(
        self, kind: str, source: str, window: int, stride: int, pad: int = 0, ceil: bool = False
    ) -> str:
        """'max_pool' or 'average_pool'; averages are over what lies inside the image."""
        n, c, *image = self.shapes[source]
        sizes = [_pooled(size, window, stride, pad, ceil) for size in image]
        return self.add(
            kind, (source,), (n, c, *sizes), window=window, stride=stride, pad=pad, ceil=ceil
        )

    def max_pool(
        self, source: str, window: int, stride: int, pad: int = 0, ceil: bool = False
    ) -> str:
        return self.pool('max_pool', source, window, stride, pad, ceil)

    def average_pool(self, source: str, window: int, stride: int, pad: int = 0) -> str:
        return self.pool('average_pool', source, window, stride, pad)

    def same(self, kind: str, source: str, **numbers: Any) -> str:
        """A layer that keeps the shape."""
        return self.add(kind, (source,), self.shapes[source], **numbers)

    def batch_norm(self, source: str, epsilon: float = 1e-5) -> str:
        return self.same('batch_norm', source, c=self.shapes[source][1], epsilon=epsilon)

    def relu(self, source: str) -> str:
        return self.same('relu', source)

    def relu6(self, source: str) -> str:
        return self.same('relu6', source)

    def leaky_relu(self, source: str, slope: float) -> str:
        return self.same('leaky_relu', source, slope=slope)

    def dropout(self, source: str) -> str:
        return self.same('dropout', source)

    def softmax(self, source: str) -> str:
        return self.same('softmax', source)

    def lrn(self, source: str, bias: float) -> str:
        """Local response normalisation over five channels, as AlexNet introduced it (Sec. 3.3)."""
        return self.same('lrn', source, size=5, alpha=1e-4, beta=0.75, bias=bias)

    def join(self, first: str, second: str) -> str:
        """The sum of two values of one shape."""
        if self.shapes[first] != self.shapes[second]:
            raise SpecError(f'{first} and {second} have different shapes and cannot be added')
        return self.add('add', (first, second), self.shapes[first])

    def concat(self, sources: list[str]) -> str:
        """Values side by side in their channels."""
        n, _, *image = self.shapes[sources[0]]
        c = sum(self.shapes[source][1] for source in sources)
        return self.add('concat', tuple(sources), (n, c, *image))

    def global_average(self, source: str) -> str:
        """The mean of each whole image, as a row of channels."""
        n, c, *_ = self.shapes[source]
        return self.flatten(self.add('global_average', (source,), (n, c, 1, 1)))

    def flatten(self, source: str) -> str:
        n, *rest = self.shapes[source]
        return self.add('flatten', (source,), (n, math.prod(rest)))

    def linear(self, source: str, k: int) -> str:
        """A fully connected layer with bias, on rows."""
        n, c = self.shapes[source]
        return self.add(
            'linear', (source,), (n, self.channels(k)), c=c, k=self.channels(k), bias=True
        )


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _pooled(size: int, window: int, stride: int, pad: int, ceil: bool) -> int:
    """Windows along one axis; with `ceil` also a last one that starts inside but reaches beyond."""
    room = size + 2 * pad - window
    if room < 0:
        return 0
    count = (math.ceil(room / stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + pad else count
