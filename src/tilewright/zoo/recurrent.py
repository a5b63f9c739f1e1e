"""Recurrent networks of DeepCuts' table, as graphs of our own and PyTorch modules.

    DeepSpeech2     Amodei et al., ICML'16: a spectrogram of 161 bands to 29 characters a step, by
                    two convolutions and five LSTMs of 800 units in both directions, which are added
    Attention-RNN   Luong et al., EMNLP'15: words to words with global attention ('general' score),
                    two LSTMs of 1,024 units on either side; the target's words are given

Goes in: a name, batch, frames or words, and a number that divides channels and units. Comes out: a
`WrittenNetwork`. Weights of LSTMs are in ONNX's order of gates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.graph import Graph, Value
from tilewright.zoo.written import (
    OUTPUT,
    GraphWriter,
    WrittenNetwork,
    check_sizes,
    copy_into,
    divided,
    loaded_linear,
)

BANDS, CHARACTERS = 161, 29
# Kernel and stride of the convolutions, over bands and frames; borders keep the middle in place.
CONVOLUTIONS = (((41, 11), (2, 2)), ((21, 11), (2, 1)))
CEILING = 20.0  # activations are cut at 0 and here
# PyTorch's gates i f g o, as numbers of ONNX's i o f c.
GATES = (0, 2, 3, 1)


def _lstm_weights(name: str, features: int, units: int, directions: int) -> dict[str, tuple]:
    return {
        f'{name}.W': (directions, 4 * units, features),
        f'{name}.R': (directions, 4 * units, units),
        f'{name}.B': (directions, 8 * units),
    }


class _RecurrentNetwork(WrittenNetwork):
    """Weights that keep activations of order one: PyTorch's for LSTMs, by the sum for others."""

    __slots__ = ()
    units: int

    def deviation(self, name: str) -> float:
        shape = self.weights[name]
        if name.endswith(('.W', '.R', '.B')):
            return (3 * self.units) ** -0.5
        if len(shape) == 1:
            return 0.02
        if name in ('source', 'target'):  # rows of words
            return 1.0
        return math.prod(shape[1:] if len(shape) == 4 else shape[:1]) ** -0.5


@dataclass(frozen=True, slots=True)
class DeepSpeech2(_RecurrentNetwork):
    name: str
    batch: int
    frames: int
    channels: int = 32
    units: int = 800
    depth: int = 5

    @property
    def layers(self) -> tuple[str, ...]:
        lstms = tuple(f'lstm{n}' for n in range(self.depth))
        return (*(f'conv{n}' for n in range(len(CONVOLUTIONS))), *lstms, 'head')

    @property
    def choices(self) -> int:
        return 0

    @property
    def images(self) -> list[tuple[int, int]]:
        """Bands and frames before, between and behind the convolutions."""
        found = [(BANDS, self.frames)]
        for _, strides in CONVOLUTIONS:
            bands, frames = ((n - 1) // s + 1 for n, s in zip(found[-1], strides, strict=True))
            found.append((bands, frames))
        return found

    @property
    def features(self) -> list[int]:
        """What goes into each LSTM."""
        return [self.channels * self.images[-1][0]] + [self.units] * (self.depth - 1)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (Value('spectrogram', (self.batch, 1, BANDS, self.frames)),)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (Value(OUTPUT, (self.images[-1][1], self.batch, CHARACTERS)),)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        made: dict[str, tuple[int, ...]] = {}
        for n, (kernel, _) in enumerate(CONVOLUTIONS):
            made[f'conv{n}.weight'] = (self.channels, self.channels if n else 1, *kernel)
            made |= {f'conv{n}.norm.{part}': (self.channels,) for part in _NORM}
        for n, features in enumerate(self.features):
            if n:
                made |= {f'lstm{n}.norm.{part}': (features,) for part in _NORM}
            made |= _lstm_weights(f'lstm{n}', features, self.units, 2)
        return made | {'head.weight': (self.units, CHARACTERS)}

    @property
    def multiplications(self) -> int:
        total, steps = 0, self.images[-1][1]
        for n, ((kernel, _), image) in enumerate(zip(CONVOLUTIONS, self.images[1:], strict=True)):
            inside = math.prod(kernel) * (self.channels if n else 1)
            total += self.channels * math.prod(image) * inside
        each = sum(8 * self.units * (features + self.units) for features in self.features)
        return self.batch * (total + steps * (each + self.units * CHARACTERS))

    def to_graph(self, weights: Mapping[str, np.ndarray]) -> Graph:
        g = GraphWriter(dict(weights))
        x = self.inputs[0].name
        low, high = g.number('floor', 0.0), g.number('ceiling', CEILING)
        for n, (kernel, strides) in enumerate(CONVOLUTIONS):
            pads = tuple(size // 2 for size in kernel)
            x = g.node('Conv', f'conv{n}', x, f'conv{n}.weight', kernel_shape=kernel,
                       strides=strides, pads=pads * 2)  # fmt: skip
            x = g.node('Clip', f'conv{n}/cut', _norm(g, x, f'conv{n}.norm'), low, high)
        shape = g.whole('columns', self.batch, self.features[0], self.images[-1][1])
        x = g.node('Transpose', 'steps', g.node('Reshape', 'joined', x, shape), perm=(2, 0, 1))
        for n in range(self.depth):
            if n:
                turned = g.node('Transpose', f'lstm{n}/turned', x, perm=(1, 2, 0))
                normal = _norm(g, turned, f'lstm{n}.norm')
                x = g.node('Transpose', f'lstm{n}/steps', normal, perm=(2, 0, 1))
            y = _lstm(g, x, f'lstm{n}', self.units, direction='bidirectional')[0]
            x = g.node('ReduceSum', f'lstm{n}/sum', y, g.whole('directions', 1), keepdims=0)
        g.node('LogSoftmax', OUTPUT, g.node('MatMul', 'head', x, 'head.weight'), axis=-1)
        return g.graph(self)

    def module(self, torch: Any, weights: Mapping[str, np.ndarray]) -> Any:
        nn: Any = torch.nn
        network = self

        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                parts = []
                for n, (kernel, strides) in enumerate(CONVOLUTIONS):
                    before = network.channels if n else 1
                    pads = tuple(size // 2 for size in kernel)
                    conv = nn.Conv2d(before, network.channels, kernel, strides, pads, bias=False)
                    copy_into(torch, conv, weight=weights[f'conv{n}.weight'])
                    norm = nn.BatchNorm2d(network.channels)
                    parts += [conv, _loaded_norm(torch, norm, weights, f'conv{n}.norm')]
                    parts.append(nn.Hardtanh(0, CEILING))
                self.conv = nn.Sequential(*parts)
                self.norms = nn.ModuleList(
                    _loaded_norm(torch, nn.BatchNorm1d(size), weights, f'lstm{n}.norm')
                    for n, size in enumerate(network.features[1:], 1)
                )
                self.lstms = nn.ModuleList(
                    _loaded_lstm(torch, weights, [f'lstm{n}']) for n in range(network.depth)
                )
                self.head = loaded_linear(torch, weights, 'head')

            def forward(self, spectrogram: Any) -> Any:
                x = self.conv(spectrogram).flatten(1, 2).permute(2, 0, 1)
                for n, lstm in enumerate(self.lstms):
                    if n:
                        x = self.norms[n - 1](x.permute(1, 2, 0)).permute(2, 0, 1)
                    forwards, backwards = lstm(x)[0].chunk(2, -1)
                    x = forwards + backwards
                return nn.functional.log_softmax(self.head(x), -1)

        return Module()


@dataclass(frozen=True, slots=True)
class AttentionRnn(_RecurrentNetwork):
    name: str
    batch: int
    words: int
    vocabulary: int = 32000
    units: int = 1024
    depth: int = 2

    @property
    def layers(self) -> tuple[str, ...]:
        sides = (f'{side}{n}' for side in ('encoder', 'decoder') for n in range(self.depth))
        return ('source', 'target', *sides, 'score', 'join', 'head')

    @property
    def choices(self) -> int:
        return self.vocabulary

    @property
    def inputs(self) -> tuple[Value, ...]:
        shape = (self.words, self.batch)
        return (Value('source_ids', shape, 'i64'), Value('target_ids', shape, 'i64'))

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (Value(OUTPUT, (self.words, self.batch, self.vocabulary)),)

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        d = self.units
        made: dict[str, tuple[int, ...]] = dict.fromkeys(('source', 'target'), (self.vocabulary, d))
        for layer in self.layers[2:-3]:
            made |= _lstm_weights(layer, d, d, 1)
        made |= {'score.weight': (d, d), 'join.weight': (2 * d, d), 'join.bias': (d,)}
        return made | {'head.weight': (d, self.vocabulary), 'head.bias': (self.vocabulary,)}

    @property
    def multiplications(self) -> int:
        d = self.units
        each = 2 * self.depth * 8 * d * d + 3 * d * d + 2 * self.words * d + d * self.vocabulary
        return self.batch * self.words * each

    def to_graph(self, weights: Mapping[str, np.ndarray]) -> Graph:
        g = GraphWriter(dict(weights))
        sides, states = {}, {}
        for side, words in (('encoder', 'source'), ('decoder', 'target')):
            x = g.node('Gather', f'{words}/rows', words, f'{words}_ids', axis=0)
            for n in range(self.depth):
                y, *states[n] = _lstm(g, x, f'{side}{n}', self.units, states.get(n, ()))
                x = g.node('Squeeze', f'{side}{n}/steps', y, g.whole('direction', 1))
            sides[side] = x
        memory, out = sides['encoder'], sides['decoder']
        keys = g.node('MatMul', 'score', memory, 'score.weight')
        turned = g.node('Transpose', 'score/keys', keys, perm=(1, 2, 0))
        queries = g.node('Transpose', 'score/queries', out, perm=(1, 0, 2))
        products = g.node('MatMul', 'attention/products', queries, turned)
        shares = g.node('Softmax', 'attention/shares', products, axis=-1)
        values = g.node('Transpose', 'attention/values', memory, perm=(1, 0, 2))
        context = g.node('MatMul', 'attention/context', shares, values)
        context = g.node('Transpose', 'attention/steps', context, perm=(1, 0, 2))
        both = g.node('Concat', 'join/both', out, context, axis=-1)
        g.linear(g.node('Tanh', 'join/tanh', g.linear(both, 'join')), 'head', OUTPUT)
        return g.graph(self)

    def module(self, torch: Any, weights: Mapping[str, np.ndarray]) -> Any:
        nn: Any = torch.nn
        network = self

        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for side, words in (('encoder', 'source'), ('decoder', 'target')):
                    rows = nn.Embedding(network.vocabulary, network.units)
                    copy_into(torch, rows, weight=weights[words])
                    self.add_module(words, rows)
                    names = [f'{side}{n}' for n in range(network.depth)]
                    self.add_module(side, _loaded_lstm(torch, weights, names))
                for name in ('score', 'join', 'head'):
                    self.add_module(name, loaded_linear(torch, weights, name))

            def forward(self, source_ids: Any, target_ids: Any) -> Any:
                memory, state = self.encoder(self.source(source_ids))
                # While PyTorch 2.11 exports them, they have another dimension of one.
                state = tuple(s.reshape(network.depth, -1, network.units) for s in state)
                out, _ = self.decoder(self.target(target_ids), state)
                products = out.transpose(0, 1) @ self.score(memory).permute(1, 2, 0)
                context = torch.softmax(products, -1) @ memory.transpose(0, 1)
                both = torch.cat([out, context.transpose(0, 1)], -1)
                return self.head(torch.tanh(self.join(both)))

        return Module()


_NORM = ('scale', 'shift', 'mean', 'variance')


def _norm(g: GraphWriter, x: str, name: str) -> str:
    given = (f'{name}.{part}' for part in _NORM)
    return g.node('BatchNormalization', f'{name}/normal', x, *given)


def _lstm(
    g: GraphWriter, x: str, name: str, units: int, states: Sequence[str] = (), **more: Any
) -> tuple[str, ...]:
    given = [f'{name}.{part}' for part in 'WRB'] + ['', *states] * bool(states)
    outputs = (name, f'{name}/state', f'{name}/cell')
    return g.several('LSTM', outputs, x, *given, hidden_size=units, **more)


def _loaded_norm(torch: Any, module: Any, weights: Mapping[str, np.ndarray], name: str) -> Any:
    scale, shift, mean, variance = (weights[f'{name}.{part}'] for part in _NORM)
    return copy_into(
        torch, module, weight=scale, bias=shift, running_mean=mean, running_var=variance
    )  # fmt: skip


def _loaded_lstm(torch: Any, weights: Mapping[str, np.ndarray], names: Sequence[str]) -> Any:
    """Layers of these names as one nn.LSTM."""
    directions, rows, features = weights[f'{names[0]}.W'].shape
    module = torch.nn.LSTM(features, rows // 4, len(names), bidirectional=directions == 2)
    for n, name in enumerate(names):
        both = weights[f'{name}.B'].reshape(directions, 2, rows)
        parts = {'weight_ih': weights[f'{name}.W'], 'weight_hh': weights[f'{name}.R']}
        parts |= {'bias_ih': both[:, 0], 'bias_hh': both[:, 1]}
        for part, arrays in parts.items():
            for d, array in enumerate(arrays):
                gates = np.concatenate([np.split(array, 4)[gate] for gate in GATES])
                copy_into(torch, module, **{f'{part}_l{n}{"_reverse" * d}': gates})
    return module


def deepspeech2(batch: int = 1, image: int = 300, width: int = 1) -> DeepSpeech2:
    """`image` is the number of frames."""
    frames = check_sizes('deepspeech2', batch, image, 'frames', 2**16)
    return DeepSpeech2('deepspeech2', batch, frames, divided(32, width), divided(800, width))


def attention_rnn(batch: int = 1, image: int = 30, width: int = 1) -> AttentionRnn:
    """`image` is the number of words on either side."""
    words = check_sizes('attention_rnn', batch, image, 'words', 2**12)
    return AttentionRnn(
        'attention_rnn', batch, words, divided(32000, width), divided(1024, width)
    )  # fmt: skip


MAKERS = {'deepspeech2': deepspeech2, 'attention_rnn': attention_rnn}
