"""Chains of quantised operators that are exact, so that a compiled one has to be equal to numpy's.

Goes in: a source and steps, each a frozen value. Comes out: a `Net` of QuantizeLinear,
DequantizeLinear and operators between them, with every value as numpy computes it.

What rounds to eight bits jumps where a sum differs in its last bit, unless no sum does. Here none
does: all scales are powers of two, as are all factors of activations and means, so that each real
number is a whole number of units, and the unit is a power of two. `Real` refuses 2^24 units and
more, and a sum of products counts the absolute values of its products and its bias. Every partial
sum, in any order, in integers or in float32, fused or not, is the same number then, and ties round
as the standard says. This does not hold for algorithms with other factors on floats (FFT,
Winograd's F(4, 3)): a chain is compiled with a limit of errors that leaves them out.

A step has its own seed for the numbers it needs, and fits images of nearly any shape: a chain
without one of its steps is a chain as well, which is how failures become small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from .graphs import Net, Node

Array = np.ndarray
TYPES = {'u8': np.uint8, 'i8': np.int8}
LIMITS = {'u8': (0, 255), 'i8': (-128, 127)}
MOST_UNITS = 2**24
MOST_CHANNELS = 80


class UnfitError(Exception):
    """A step for which an image is too small, or whose sums would not be exact."""


@dataclass(frozen=True, slots=True)
class Format:
    """How real numbers become bytes: about `spread` of them from zero to the number furthest off,
    so that more than 255 are cut off.
    """

    dtype: str
    zero: int
    spread: int

    def scale(self, values: Array) -> float:
        furthest = float(np.abs(values).max()) or 1.0
        return float(2.0 ** np.round(np.log2(furthest / self.spread)))


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A value of the network in eight bits."""

    name: str
    numbers: Array
    dtype: str
    scale: float
    zero: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def centred(self) -> Array:
        return self.numbers.astype(np.float64) - self.zero


@dataclass(frozen=True, slots=True, eq=False)
class Real:
    """A value of the network in floats: whole numbers of units, fewer than 2^24."""

    name: str
    values: Array
    unit: float

    def __post_init__(self) -> None:
        if float(np.abs(self.values).max()) >= MOST_UNITS * self.unit:
            raise UnfitError(f'{self.name}: 2^24 units of {self.unit} and more')


class Writer:
    """A network while its chain is written: nodes, data, and the images so far."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Array] = {}
        self.images: list[Image] = []

    def constant(self, array: Array) -> str:
        name = f'c{len(self.constants)}'
        self.constants[name] = self.values[name] = array
        return name

    def input(self, array: Array) -> str:
        self.inputs['x'] = self.values['x'] = array
        return 'x'

    def node(
        self, op: str, inputs: Sequence[str], values: Array, unit: float = 1.0, **attributes: object
    ) -> Real:
        """One operator, and what it computes."""
        real = Real(f'{op.lower()}{len(self.nodes)}', values, unit)
        self.nodes.append(Node(op, tuple(inputs), (real.name,), attributes))
        self.values[real.name] = values.astype(np.float32)
        return real

    def real(self, image: Image) -> Real:
        """Image -> its real numbers, by DequantizeLinear."""
        inputs = image.name, *self._format(image.dtype, image.scale, image.zero)
        return self.node('DequantizeLinear', inputs, image.centred * image.scale, image.scale)

    def image(self, real: Real, stored: Format | Image) -> Image:
        """Real numbers -> an image of a format, or of the same one as another image."""
        scale = stored.scale(real.values) if isinstance(stored, Format) else stored.scale
        least, largest = LIMITS[stored.dtype]
        numbers = np.clip(np.rint(real.values / scale) + stored.zero, least, largest)
        inputs = real.name, *self._format(stored.dtype, scale, stored.zero)
        name = f'quantised{len(self.nodes)}'
        self.nodes.append(Node('QuantizeLinear', inputs, (name,)))
        self.values[name] = numbers.astype(TYPES[stored.dtype])
        self.images.append(Image(name, self.values[name], stored.dtype, scale, stored.zero))
        return self.images[-1]

    def picked(self, pick: int, fits: Callable[[tuple[int, ...]], bool]) -> Image:
        """One of the images whose shapes fit."""
        found = [image for image in self.images if fits(image.shape)]
        if not found:
            raise UnfitError('no image of a shape that fits')
        return found[pick % len(found)]

    def _format(self, dtype: str, scale: float, zero: int) -> tuple[str, str]:
        return (
            self.constant(np.array(scale, np.float32)),
            self.constant(np.array(zero, TYPES[dtype])),
        )


def filled(numbers: str, shape: Sequence[int], dtype: str, rng: np.random.Generator) -> Array:
    """Bytes: 'any', the two 'ends', all 'least', all 'largest', 'small' ones from the least one on
    (as behind a ReLU), 'small' with 'few large' ones among them, 'near zero'.
    """
    least, largest = LIMITS[dtype]
    if numbers == 'any':
        found = rng.integers(least, largest + 1, shape)
    elif numbers == 'ends':
        found = rng.choice([least, largest], shape)
    elif numbers in ('least', 'largest'):
        found = np.full(shape, least if numbers == 'least' else largest)
    elif numbers == 'near zero':
        found = rng.integers(max(least, -16), 17, shape)
    else:
        found = least + rng.integers(0, 60, shape)
        if numbers == 'few large':
            found = np.where(rng.random(shape) < 0.03, largest, found)
    return found.astype(TYPES[dtype])


def convolved(
    image: Array, weights: Array, strides: Sequence[int], pads: Sequence[int], groups: int
) -> Array:
    """The definition of a convolution, borders of zeros, in float64: exact below 2^53."""
    top, left, bottom, right = pads
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    if padded.shape[2] < weights.shape[2] or padded.shape[3] < weights.shape[3]:
        raise UnfitError('the image is smaller than the window')
    windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1]]
    sums = [
        np.einsum('nchwrs,kcrs->nkhw', part, kernel, optimize=True)
        for part, kernel in zip(
            np.split(windows, groups, 1), np.split(weights, groups), strict=True
        )
    ]
    return np.concatenate(sums, 1)


@dataclass(frozen=True, slots=True)
class Source:
    """The input: bytes, or floats that the network quantises."""

    shape: tuple[int, int, int, int]
    numbers: str
    stored: Format
    exponent: int
    floats: bool
    seed: int

    def write(self, net: Writer) -> None:
        rng, form = np.random.default_rng(self.seed), self.stored
        numbers = filled(self.numbers, self.shape, form.dtype, rng)
        scale = 2.0**self.exponent
        if self.floats:
            real = (numbers.astype(np.float64) - form.zero) * scale
            name = net.input(real.astype(np.float32))
            net.image(Real(name, real, scale), form)
        else:
            net.images.append(Image(net.input(numbers), numbers, form.dtype, scale, form.zero))


class Step(Protocol):
    """One operator or a few, from images that are there to the next one."""

    def write(self, net: Writer) -> Image: ...


@dataclass(frozen=True, slots=True)
class Weights:
    """Constants of a sum of products; powers of two are its scales, one or one for each channel."""

    numbers: str
    dtype: str
    zero: int
    exponents: tuple[int, ...]
    zero_is_given: bool
    bias: str  # '', 'bias', 'bias with zero point'
    seed: int

    def write(
        self, net: Writer, shape: Sequence[int], channels: int, axis: int
    ) -> tuple[str, Array, Array]:
        """Name, whole numbers, and scales of all channels."""
        rng = np.random.default_rng(self.seed)
        numbers = filled(self.numbers, shape, self.dtype, rng)
        scales = np.resize(2.0 ** np.array(self.exponents), channels)
        centred = numbers.astype(np.float64) - self.zero
        inputs = [net.constant(numbers), *self._given(net, scales, channels)]
        if self.zero_is_given or self.zero:
            zeros = np.full(channels, self.zero, TYPES[self.dtype])
            inputs.append(net.constant(zeros if self.each else zeros[0]))
        by_axis = scales.reshape([-1 if n == axis else 1 for n in range(len(shape))])
        attributes = {'axis': axis} if self.each else {}
        made = net.node(
            'DequantizeLinear', inputs, centred * by_axis, float(scales.min()), **attributes
        )
        return made.name, centred, scales

    def biases(self, net: Writer, unit: float, scales: Array) -> tuple[list[str], Array]:
        """Inputs of a node (none or one), and whole numbers for all channels."""
        count = len(scales)
        if not self.bias:
            return [], np.zeros(count)
        numbers = np.random.default_rng(self.seed + 1).integers(-5000, 5001, count)
        inputs = [net.constant(numbers.astype(np.int32))]
        inputs += self._given(net, unit * scales, count)
        if self.bias == 'bias with zero point':
            inputs.append(net.constant(np.zeros(count if self.each else (), np.int32)))
        attributes = {'axis': 0} if self.each else {}
        values = numbers * unit * scales
        least = float(unit * scales.min())
        return [net.node('DequantizeLinear', inputs, values, least, **attributes).name], numbers

    @property
    def each(self) -> bool:
        return len(self.exponents) > 1

    def _given(self, net: Writer, scales: Array, channels: int) -> list[str]:
        given = scales if self.each else np.array(scales[0])
        return [net.constant(given.astype(np.float32))]


def activated(net: Writer, real: Real, kind: str) -> Real:
    """'', 'Relu', 'Relu6' or 'LeakyRelu' behind a value."""
    values, unit = real.values, real.unit
    if kind == 'Relu':
        return net.node('Relu', [real.name], np.maximum(values, 0), unit)
    if kind == 'Relu6':
        limits = (net.constant(np.array(limit, np.float32)) for limit in (0, 6))
        return net.node('Clip', [real.name, *limits], np.clip(values, 0, 6), min(unit, 2.0))
    if kind == 'LeakyRelu':
        leaky = np.where(values < 0, values / 4, values)
        return net.node('LeakyRelu', [real.name], leaky, unit / 4, alpha=0.25)
    return real


def added(net: Writer, left: Real, right: Real) -> Real:
    values, unit = left.values + right.values, min(left.unit, right.unit)
    for one in (left, right):  # each has to be exact in the unit of the sum
        Real(one.name, one.values, unit)
    return net.node('Add', [left.name, right.name], values, unit)


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution, an image added to it or not, an activation. `channels` is 0 for as many as
    there are; `groups` is 0 for depthwise.
    """

    channels: int
    groups: int
    window: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    weights: Weights
    residual: str  # '', 'left' or 'right' of the sum
    activation: str
    pick: int
    stored: Format

    def write(self, net: Writer) -> Image:
        image = net.images[-1]
        if len(image.shape) != 4:
            raise UnfitError('a convolution of a matrix')
        given = image.shape[1]
        groups = self.groups or given
        if given % groups:
            raise UnfitError(f'{groups} groups of {given} channels')
        channels = -(-(self.channels or given) // groups) * groups
        shape = (channels, given // groups, *self.window)
        name, kernel, scales = self.weights.write(net, shape, channels, 0)
        bias_inputs, bias = self.weights.biases(net, image.scale, scales)
        how = self.strides, self.pads, groups
        most = convolved(np.abs(image.centred), np.abs(kernel), *how) + _across(np.abs(bias))
        if most.max() >= MOST_UNITS:
            raise UnfitError('sums of 2^24 and more')
        sums = convolved(image.centred, kernel, *how) + _across(bias)
        values, unit = sums * _across(image.scale * scales), image.scale * float(scales.min())
        real = net.node(
            'Conv', [net.real(image).name, name, *bias_inputs], values, unit,
            kernel_shape=self.window, strides=self.strides, pads=self.pads, group=groups,
        )  # fmt: skip
        if self.residual:
            other = net.real(net.picked(self.pick, lambda shape: shape == values.shape))
            real = added(net, *((other, real) if self.residual == 'left' else (real, other)))
        return net.image(activated(net, real, self.activation), self.stored)


def _across(channels: Array) -> Array:
    return channels.reshape(1, -1, 1, 1)


@dataclass(frozen=True, slots=True)
class Add:
    """The image and one of the same shape, itself perhaps."""

    activation: str
    pick: int
    stored: Format

    def write(self, net: Writer) -> Image:
        image = net.images[-1]
        other = net.picked(self.pick, lambda shape: shape == image.shape)
        real = added(net, net.real(image), net.real(other))
        return net.image(activated(net, real, self.activation), self.stored)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A ReLU of a stored image, or half of it."""

    op: str
    stored: Format

    def write(self, net: Writer) -> Image:
        real = net.real(net.images[-1])
        if self.op == 'Mul':
            half = net.constant(np.array(0.5, np.float32))
            real = net.node('Mul', [real.name, half], real.values / 2, real.unit / 2)
        else:
            real = activated(net, real, self.op)
        return net.image(real, self.stored)


@dataclass(frozen=True, slots=True)
class Pool:
    """MaxPool, or AveragePool of 2 x 2, of which the mean is exact. `stored` is None where the
    format stays.
    """

    op: str
    window: int
    stride: int
    stored: Format | None

    def write(self, net: Writer) -> Image:
        image = net.images[-1]
        pad = 1 if self.op == 'MaxPool' and self.window == 3 else 0
        if len(image.shape) != 4 or min(image.shape[2:]) + 2 * pad < self.window:
            raise UnfitError('the image is smaller than the window')
        real = net.real(image)
        around = (0, 0), (0, 0), (pad, pad), (pad, pad)
        padded = np.pad(real.values, around, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self.window,) * 2, (2, 3))
        windows = windows[:, :, :: self.stride, :: self.stride]
        mean = self.op == 'AveragePool'
        made = net.node(
            self.op, [real.name], windows.mean((4, 5)) if mean else windows.max((4, 5)),
            real.unit / 4 if mean else real.unit,
            kernel_shape=(self.window,) * 2, strides=(self.stride,) * 2, pads=(pad,) * 4,
        )  # fmt: skip
        return net.image(made, self.stored or image)


@dataclass(frozen=True, slots=True)
class Concat:
    """The channels of the image and of another one of the same size."""

    pick: int
    stored: Format

    def write(self, net: Writer) -> Image:
        image = net.images[-1]
        other = net.picked(
            self.pick, lambda shape: shape[:1] + shape[2:] == image.shape[:1] + image.shape[2:]
        )
        if len(image.shape) != 4 or image.shape[1] + other.shape[1] > MOST_CHANNELS:
            raise UnfitError('too many channels')
        parts = net.real(image), net.real(other)
        made = net.node(
            'Concat', [part.name for part in parts],
            np.concatenate([part.values for part in parts], 1), min(part.unit for part in parts),
            axis=1,
        )  # fmt: skip
        return net.image(made, self.stored)


@dataclass(frozen=True, slots=True)
class Transpose:
    """Rows become columns; the format stays."""

    def write(self, net: Writer) -> Image:
        image = net.images[-1]
        if len(image.shape) != 4:
            raise UnfitError('the transpose of a matrix')
        real = net.real(image)
        turned = real.values.transpose(0, 1, 3, 2)
        made = net.node('Transpose', [real.name], turned, real.unit, perm=(0, 1, 3, 2))
        return net.image(made, image)


@dataclass(frozen=True, slots=True)
class Product:
    """Flatten and MatMul."""

    columns: int
    weights: Weights
    stored: Format

    def write(self, net: Writer) -> Image:
        image = net.images[-1]
        if len(image.shape) != 4:
            raise UnfitError('one product is enough')
        real, flat = net.real(image), image.centred.reshape(image.shape[0], -1)
        rows = net.node('Flatten', [real.name], flat * image.scale, image.scale)
        shape = flat.shape[1], self.columns
        name, matrix, scales = self.weights.write(net, shape, self.columns, 1)
        if (np.abs(flat) @ np.abs(matrix)).max() >= MOST_UNITS:
            raise UnfitError('sums of 2^24 and more')
        values, unit = flat @ matrix * image.scale * scales, image.scale * float(scales.min())
        return net.image(net.node('MatMul', [rows.name, name], values, unit), self.stored)


@dataclass(frozen=True, slots=True)
class Chain:
    """A source and its steps. Outputs are the last image, those behind the steps `also`, and the
    real numbers of the last image where `real` says so.
    """

    source: Source
    steps: tuple[Step, ...]
    also: tuple[int, ...] = ()
    real: bool = False

    def net(self) -> Net:
        net = Writer()
        self.source.write(net)
        after = [step.write(net).name for step in self.steps]
        outputs = [after[-1], *(after[n] for n in self.also if n < len(after) - 1)]
        if self.real:
            outputs.append(net.real(net.images[-1]).name)
        made = Net(tuple(net.nodes), net.inputs, net.constants, tuple(outputs), net.values)
        return made.pruned()

    def __str__(self) -> str:
        also = f'; also {", ".join(map(str, self.also))}' * bool(self.also)
        lines = [_shown(self.source), *(f'{n}: {_shown(s)}' for n, s in enumerate(self.steps))]
        return '\n'.join([*lines, f'outputs: the last{also}{"; and as floats" * self.real}'])


def _shown(value: object) -> str:
    """'Conv channels=8 ... weights=(numbers=any ...)', without what is empty."""
    words = [
        f'{field.name}={f"({_shown(part)})" if hasattr(part, "__dataclass_fields__") else part}'
        for field in fields(value)  # pyright: ignore[reportArgumentType]
        if (part := getattr(value, field.name)) not in ('', None)
    ]
    return ' '.join([type(value).__name__, *words])
