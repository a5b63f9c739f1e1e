"""Recurrent layers, attention and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..draw import FLOATS, Draw, MisfitError, Row, Step

GATES = {'LSTM': 4, 'GRU': 3, 'RNN': 1}


def _recurrent(kind: str) -> Callable[[Draw, str], Step]:
    def make(draw: Draw, x: str) -> Step:
        array = draw.values[x]
        if array.ndim != 3 or array.shape[0] > 6:
            raise MisfitError('no short sequence')
        _, batch, width = array.shape
        dtype, gates, hidden = str(array.dtype), GATES[kind], draw.int(1, 5)
        direction = draw.pick(('forward', 'reverse', 'bidirectional'))
        ways = 2 if direction == 'bidirectional' else 1
        inputs = [
            x, draw.weight((ways, gates * hidden, width), dtype, width),
            draw.weight((ways, gates * hidden, hidden), dtype, hidden),
            draw.operand((ways, 2 * gates * hidden), dtype) if draw.chance(0.6) else '', '',
        ]  # fmt: skip
        if draw.chance(0.4):
            inputs.append(draw.operand((ways, batch, hidden), dtype))
            if kind == 'LSTM':
                inputs.append(draw.operand((ways, batch, hidden), dtype))
        attributes: dict[str, object] = {'hidden_size': hidden, 'direction': direction}
        if kind == 'GRU':
            attributes['linear_before_reset'] = draw.int(0, 1)
        return Step(inputs, attributes, draw.int(1, 3 if kind == 'LSTM' else 2))

    return make


def _attention(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim != 4:
        raise MisfitError('no heads')
    batch, heads, words, depth = array.shape
    dtype, keys = str(array.dtype), words if draw.chance(0.5) else draw.int(1, 9)
    inputs = [
        x, draw.operand((batch, heads, keys, depth), dtype),
        draw.operand((batch, heads, keys, draw.int(1, 6)), dtype),
    ]  # fmt: skip
    attributes: dict[str, object] = {}
    if draw.chance(0.3):
        attributes['scale'] = 1 / (1 + math.sqrt(depth))
    if draw.chance(0.3) and keys == words:
        attributes['is_causal'] = 1
    elif draw.chance(0.3):
        inputs.append(draw.operand((words, keys), dtype))
    return Step(inputs, attributes)


def _rotary(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim != 4 or array.shape[3] % 2:
        raise MisfitError('no pairs')
    batch, _, words, depth = array.shape
    dtype, places = str(array.dtype), words + draw.int(0, 3)
    numbered = draw.chance(0.5)
    shape = (places, depth // 2) if numbered else (batch, words, depth // 2)
    inputs = [x, draw.operand(shape, dtype), draw.operand(shape, dtype)]
    if numbered:
        found = [[draw.int(0, places - 1) for _ in range(words)] for _ in range(batch)]
        inputs.append(draw.constant(np.array(found, np.int64)))
    return Step(inputs, {'interleaved': draw.int(0, 1)})


ROWS = (
    *(Row(kind, FLOATS, _recurrent(kind)) for kind in GATES),
    Row('Attention', FLOATS, _attention),
    Row('RotaryEmbedding', FLOATS, _rotary),
)
