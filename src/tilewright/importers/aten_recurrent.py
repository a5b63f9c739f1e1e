"""ATen's recurrent layers as ONNX nodes: one LSTM, GRU or RNN for each layer, not unrolled.

PyTorch orders gates i f g o and r z n, ONNX i o f c and z r h; rows of the weights are reordered.
A GRU of PyTorch is linear before its reset. Where the state is projected, the LSTM has a ninth
input (graph/lowering/recurrent.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler

# ONNX gate -> which of PyTorch's it is
ORDER = {'LSTM': (0, 3, 1, 2), 'GRU': (1, 0, 2), 'RNN': (0,)}


def _layers(op: str, **attributes: Any) -> Handler:
    """All layers of a call; it has no dropout, since it is not trained."""

    def handler(call: Call) -> tuple[Value, ...]:
        states = [call.typed(node) for node in _listed(call['hx'])]
        directions, layers = 1 + bool(call['bidirectional']), int(call['num_layers'])
        params = [call.typed(node) for node in call['params']]
        each = len(params) // (directions * layers)
        x = call.value('input')
        if call['batch_first']:
            x = _transposed(call, x, (1, 0, 2))
        ends: list[list[str]] = [[] for _ in states]
        for layer in range(layers):
            first = layer * directions
            own = [params[(first + d) * each :][:each] for d in range(directions)]
            given = [_rows(call, state, first, directions) for state in states]
            x, last = _layer(call, op, x, given, own, attributes)
            for end, name in zip(ends, last, strict=True):
                end.append(name)
        y = _transposed(call, x, (1, 0, 2)) if call['batch_first'] else x
        found = [_joined(call, names) for names in ends]
        kinds = [call.result_of(number) for number in range(1, 1 + len(states))]
        return y, *(Value(name, k.shape, k.dtype) for name, k in zip(found, kinds, strict=True))

    return handler


def _listed(states: Any) -> Sequence[Any]:
    return states if isinstance(states, list | tuple) else [states]


def _layer(
    call: Call, op: str, x: Value, states: Sequence[str], params: Sequence[Sequence[Value]],
    attributes: dict[str, Any],
) -> tuple[Value, list[str]]:  # fmt: skip
    """One layer on [T, B, features]; comes out: [T, B, directions * units] and its last states."""
    biases = 2 * bool(call['has_biases'])
    projected = len(params[0]) > 2 + biases
    hidden = params[0][0].shape[0] // len(ORDER[op])
    units = params[0][-1].shape[0] if projected else hidden
    weights, recurrent = (_stacked(call, op, hidden, [p[i] for p in params]) for i in (0, 1))
    bias = None
    if biases:
        both = [_stacked(call, op, hidden, [p[i] for p in params]) for i in (2, 3)]
        bias = call.emit('Concat', *both, axis=1)
    inputs: list[Value | str | None] = [x, weights, recurrent, bias, None, *states]
    if projected:
        own = [_led(call, p[-1]) for p in params]
        inputs += [None, _joined(call, own)]
    steps, batch, _ = x.shape
    kind = 'bidirectional' if len(params) == 2 else 'forward'
    y, *last = call.emit_many(
        op, 1 + len(states), *inputs, hidden_size=hidden, direction=kind,
        **{k: v * len(params) if isinstance(v, tuple) else v for k, v in attributes.items()},
    )  # fmt: skip
    made = Value(y, (steps, len(params), batch, units), x.dtype)
    beside = _transposed(call, made, (0, 2, 1, 3))
    return call.reshaped(beside, (steps, batch, len(params) * units)), last


def _stacked(call: Call, op: str, hidden: int, each: Sequence[Value]) -> str:
    """[directions, gates * hidden, ..] in ONNX's order of gates."""
    order = np.concatenate([np.arange(hidden) + gate * hidden for gate in ORDER[op]])
    rows = call.constant(order)
    turned = [
        value if op == 'RNN' else Value(call.emit('Gather', value, rows, axis=0), value.shape,
                                        value.dtype)
        for value in each
    ]  # fmt: skip
    return _joined(call, [_led(call, value) for value in turned])


def _led(call: Call, value: Value) -> str:
    return call.reshaped(value, (1, *value.shape)).name


def _joined(call: Call, names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else call.emit('Concat', *names, axis=0)


def _rows(call: Call, state: Value, first: int, count: int) -> str:
    """The states of one layer, of those of all."""
    if count == state.shape[0]:
        return state.name
    bounds = [call.constant([n]) for n in (first, first + count, 0)]
    return call.emit('Slice', state, *bounds)


def _transposed(call: Call, value: Value, order: Sequence[int]) -> Value:
    shape = tuple(value.shape[i] for i in order)
    return Value(call.emit('Transpose', value, perm=tuple(order)), shape, value.dtype)


HANDLERS: dict[str, Handler] = {
    'lstm.input': _layers('LSTM'),
    'gru.input': _layers('GRU', linear_before_reset=1),
    'rnn_tanh.input': _layers('RNN'),
    'rnn_relu.input': _layers('RNN', activations=('Relu',)),
}
