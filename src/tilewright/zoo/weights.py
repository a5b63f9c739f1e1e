"""Seeded weights that keep activations of order one, and batch-norm statistics that fit them.

Goes in: a `Network` and a seed. Comes out: arrays by layer and name, such as conv1.weight.

Weights are drawn with variance 2 / fan-in (He et al., ICCV'15, Eq. 10). Over such weights the
output of a convolution has mean 0 and twice the second moment of its input, whatever the data are.
So mean and variance of every channel are carried along from the image, which has 0 and 1, through
rectifiers as those of a normal variable, and batch normalisations get the statistics that belong
to them: nothing is run. What poolings do depends on how neighbours correlate; fixed factors stand
for it. The last layer's weights are such that scores are of order one, and no class is certain.

Every layer draws from a generator of its own (seed, name), in float32.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.zoo.layers import INPUT, Layer, Network

Arrays = dict[str, np.ndarray]
GAIN = 2.0
BIAS_DEVIATION = 0.1
# Of a 2x2 or 3x3 maximum of rectified values that correlate as neighbours in random networks do:
# its mean over theirs, its variance over theirs; and the variance of an average over theirs.
MAXIMUM_MEAN, MAXIMUM_VARIANCE, AVERAGE_VARIANCE = 1.6, 0.8, 0.4


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of every channel of a value."""

    mean: np.ndarray
    variance: np.ndarray

    @property
    def square(self) -> np.ndarray:
        return self.mean**2 + self.variance

    def scaled(self, mean: float, variance: float) -> Moments:
        return Moments(self.mean * mean, self.variance * variance)

    def rectified(self, slope: float = 0.0) -> Moments:
        """Of max(x, slope x), x normal: E = m P + s p, E2 = (m2 + v) P + m s p, at t = m / s."""
        deviation = np.sqrt(self.variance)
        t = self.mean / deviation
        P = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in t])
        p = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
        above, above2 = (
            self.mean * P + deviation * p,
            self.square * P + self.mean * deviation * p,
        )
        mean = above + slope * (self.mean - above)
        square = above2 + slope**2 * (self.square - above2)
        return Moments(mean, square - mean**2)


def weights(network: Network, seed: int = 0) -> Arrays:
    """Every weight of a network, as 'layer.name' -> array."""
    made: Arrays = {}
    c = network.shape[1]
    moments = {INPUT: Moments(np.zeros(c), np.ones(c))}
    last = [layer.name for layer in network.layers if layer.weights][-1]
    for layer in network.layers:
        rng = np.random.default_rng([seed, zlib.crc32(layer.name.encode())])
        given = [moments[source] for source in layer.sources]
        gain = GAIN if layer.name != last else 1 / float(given[0].square.mean())
        own = {}
        if layer.weights:
            own = _weighted(layer, gain, rng)
        elif layer.kind == 'batch_norm':
            own = _batch_norm(layer, given[0], rng)
        made |= {f'{layer.name}.{name}': array for name, array in own.items()}
        moments[layer.name] = _moments(layer, given, own, gain)
    return made


def _normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    array = rng.standard_normal(shape, np.float32)
    array *= np.float32(deviation)
    return array


def _weighted(layer: Layer, gain: float, rng: np.random.Generator) -> Arrays:
    """A convolution or a fully connected layer: variance gain / fan-in."""
    shape = (layer['k'], layer['c'])
    if layer.kind == 'conv':
        shape = (layer['k'], layer['c'] // layer['groups'], *layer['window'])
    arrays = {'weight': _normal(rng, shape, math.sqrt(gain / math.prod(shape[1:])))}
    if layer['bias']:
        arrays['bias'] = _normal(rng, shape[:1], BIAS_DEVIATION)
    return arrays


def _batch_norm(layer: Layer, given: Moments, rng: np.random.Generator) -> Arrays:
    c, deviation = layer['c'], np.sqrt(given.variance)
    return {
        'scale': rng.uniform(0.8, 1.2, c).astype(np.float32),
        'shift': _normal(rng, (c,), 0.1),
        'mean': (given.mean + deviation * rng.normal(0.0, 0.1, c)).astype(np.float32),
        'variance': (given.variance * rng.uniform(0.8, 1.2, c)).astype(np.float32),
    }


def _moments(layer: Layer, given: list[Moments], own: Arrays, gain: float) -> Moments:
    """Mean and variance of what a layer writes."""
    x, c = given[0], layer.shape[1]

    def weighted() -> Moments:
        variance = gain * x.square.mean() + BIAS_DEVIATION**2 * ('bias' in own)
        return Moments(np.zeros(c), np.full(c, variance))

    def normalised() -> Moments:
        factor = own['scale'] / np.sqrt(own['variance'] + layer['epsilon'])
        return Moments(factor * (x.mean - own['mean']) + own['shift'], factor**2 * x.variance)

    def joined(combine: Callable[[list[np.ndarray]], np.ndarray]) -> Moments:
        return Moments(combine([g.mean for g in given]), combine([g.variance for g in given]))

    rules: Mapping[str, Callable[[], Moments]] = {
        'conv': weighted,
        'linear': weighted,
        'batch_norm': normalised,
        'relu': x.rectified,
        'relu6': x.rectified,
        'leaky_relu': lambda: x.rectified(layer['slope']),
        'lrn': lambda: x.scaled(*(layer['bias'] ** (-layer['beta'] * power) for power in (1, 2))),
        'max_pool': lambda: x.scaled(MAXIMUM_MEAN, MAXIMUM_VARIANCE),
        'average_pool': lambda: x.scaled(1.0, AVERAGE_VARIANCE),
        'global_average': lambda: x.scaled(1.0, AVERAGE_VARIANCE),
        'add': lambda: joined(sum),  # pyright: ignore[reportArgumentType]
        'concat': lambda: joined(np.concatenate),
        'flatten': lambda: joined(lambda parts: np.repeat(parts[0], c // parts[0].size)),
    }
    return rules.get(layer.kind, lambda: x)()
