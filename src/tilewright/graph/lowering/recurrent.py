"""Recurrent layers: LSTM, GRU, RNN. One product for the inputs of all steps, then the steps.

Beside what ONNX defines, an LSTM may have a ninth input, the weights of a projection of its state,
[directions, projected, hidden]: PyTorch's layers have them, and its importer writes them so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import pointwise, transpose
from tilewright.graph.lowering.moving import slices
from tilewright.graph.lowering.reader import FLOATS, WHOLE, Lowering, NodeReader, Operator
from tilewright.graph.lowering.result import Known, Result, Unsupported, compute, known, view
from tilewright.ops import functions
from tilewright.ops.describe import typed
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.functions import X, add, mul
from tilewright.ops.recurrence import FUNCTIONS, GATES, Recurrent, recurrence
from tilewright.ops.stage import Expr, call, const, read

DIRECTIONS = {'forward': (False,), 'reverse': (True,), 'bidirectional': (False, True)}
DEFAULTS = {'lstm': ('Sigmoid', 'Tanh', 'Tanh'), 'gru': ('Sigmoid', 'Tanh'), 'rnn': ('Tanh',)}
# activation -> alpha and beta where they are not given (None: it takes none), and what it is
ACTIVATIONS = {
    'sigmoid': ((None, None), lambda a, b: call('sigmoid', X)),
    'tanh': ((None, None), lambda a, b: call('tanh', X)),
    'relu': ((None, None), lambda a, b: functions.relu()),
    'softsign': ((None, None), lambda a, b: functions.softsign()),
    'softplus': ((None, None), lambda a, b: functions.softplus()),
    'affine': ((1.0, 0.0), lambda a, b: add(mul(const(a), X), const(b))),
    'leakyrelu': ((0.01, None), lambda a, b: functions.leaky_relu(a)),
    'thresholdedrelu': ((1.0, None), lambda a, b: functions.thresholded_relu(a)),
    'elu': ((1.0, None), lambda a, b: functions.elu(a)),
    'hardsigmoid': ((0.2, 0.5), lambda a, b: functions.hard_sigmoid(a, b)),
    'scaledtanh': ((1.0, 1.0), lambda a, b: mul(const(a), call('tanh', mul(const(b), X)))),
}


@dataclass(frozen=True)
class _Layer:
    """A node, checked: X as [T, B, I], weights by gate, and what it says about itself."""

    node: NodeReader
    kind: str
    x: Result
    backwards: tuple[bool, ...]
    hidden: int
    batch_first: bool

    @property
    def directions(self) -> int:
        return len(self.backwards)

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def projection(self) -> Result | None:
        return self.node.optional(8) if self.kind == 'lstm' else None

    @property
    def units(self) -> int:
        return self.projection.shape[1] if self.projection is not None else self.hidden

    def operand(self, number: int, name: str, shape: tuple[int, ...]) -> Result | None:
        """An optional input, of this shape and of the dtype of X."""
        found = self.node.optional(number)
        if found is not None and (found.shape != shape or found.dtype != self.x.dtype):
            raise ModelError(
                f'its {name} is {found.dtype}{list(found.shape)}; it must be '
                f'{self.x.dtype}{list(shape)}'
            )
        return found

    def state(self, number: int, name: str, units: int) -> Result | None:
        """A state before the first step, [D, B, units]; None where it is zero."""
        shape = self.directions, self.x.shape[1], units
        if not self.batch_first:
            found = self.operand(number, name, shape)
        else:
            found = self.operand(number, name, (shape[1], shape[0], units))
            found = None if found is None else transpose(found, (1, 0, 2))
        zero = isinstance(found, Known) and not np.any(found.array)
        return None if zero else found


def _lower(kind: str) -> Lowering:
    def lower(node: NodeReader) -> tuple[Result, ...]:
        layer = _checked(node, kind)
        d, gates, hidden, units = layer.directions, layer.gates, layer.hidden, layer.units
        steps, batch, features = layer.x.shape
        weights = layer.operand(1, 'W', (d, gates * hidden, features))
        recurrent = layer.operand(2, 'R', (d, gates * hidden, units))
        if weights is None or recurrent is None:
            raise ModelError('it needs W and R, its weights')
        linear = kind == 'gru' and bool(node.int('linear_before_reset', 0))
        bias, hidden_bias = _biases(layer, linear)
        operands = {
            'In': view(_input_product(layer, weights, bias), (steps, batch, d, gates, hidden))
        }
        r = view(recurrent, (d, gates, hidden, units))
        if kind == 'gru' and not linear:
            operands['RHidden'] = slices(r, {1: range(2, 3)})
            r = slices(r, {1: range(2)})
        operands['R'] = r
        if hidden_bias is not None:
            operands['RBias'] = hidden_bias
        initial, cell, peephole = layer.state(5, 'initial_h', units), None, None
        if kind == 'lstm':
            cell = layer.state(6, 'initial_c', hidden)
            peephole = layer.operand(7, 'P', (d, 3 * hidden))
            projection = layer.operand(8, 'projection', (d, units, hidden))
            if projection is not None:
                operands['Projection'] = view(projection, (d, 1, units, hidden))
        if peephole is not None:
            operands['Peephole'] = view(peephole, (d, 3, hidden))
        lengths = _lengths(layer)
        more = {'Initial': initial, 'InitialCell': cell, 'Lengths': lengths}
        operands |= {name: found for name, found in more.items() if found is not None}
        described = Recurrent(
            kind, steps, batch, hidden, layer.backwards, _functions(layer),
            units if layer.projection is not None else 0, abs(node.float('clip', 0.0)),
            kind == 'lstm' and bool(node.int('input_forget', 0)), linear, peephole is not None,
            initial is not None, cell is not None, lengths.dtype if lengths is not None else '',
            layer.x.dtype,
        )  # fmt: skip
        return _results(layer, described, compute(recurrence(described), operands))

    return lower


def _checked(node: NodeReader, kind: str) -> _Layer:
    x, recurrent = node.input(0), node.input(2)
    if len(x.shape) != 3 or len(recurrent.shape) != 3:
        raise ModelError(
            f'its input has shape {list(x.shape)} and R {list(recurrent.shape)}; both must have '
            f'three dimensions'
        )
    batch_first = node.int('layout', 0) == 1
    direction = node.text('direction', 'forward', tuple(DIRECTIONS))
    hidden = node.int('hidden_size', recurrent.shape[1] // GATES[kind])
    x = transpose(x, (1, 0, 2)) if batch_first else x
    if 0 in x.shape or hidden < 1:
        raise Unsupported(f'of {hidden} hidden units on {list(x.shape)}')
    return _Layer(node, kind, x, DIRECTIONS[direction], hidden, batch_first)


def _biases(layer: _Layer, linear: bool) -> tuple[Result | None, Result | None]:
    """(what is added to the input product, [D * gates * H]; what a GRU adds before its reset)."""
    d, gates, hidden, dtype = layer.directions, layer.gates, layer.hidden, layer.x.dtype
    bias = layer.operand(3, 'B', (d, 2 * gates * hidden))
    if bias is None:
        nothing = known(np.zeros((d, hidden)), dtype) if linear else None
        return None, nothing
    both = view(bias, (d, 2, gates, hidden))
    inputs, states = (slices(both, {1: range(i, i + 1)}) for i in range(2))
    if not linear:
        return pointwise('bias', add(X, read(1)), [inputs, states], dtype), None
    kept = known(np.array([1, 1, 0]).reshape(1, 1, gates, 1), dtype)
    joined = pointwise('bias', add(X, mul(read(1), read(2))), [inputs, states, kept], dtype)
    inner = slices(states, {2: range(2, 3)})
    return joined, view(inner, (d, hidden))


def _input_product(layer: _Layer, weights: Result, bias: Result | None) -> Result:
    """The inputs of all steps times W, plus the bias: [T * B, D * gates * H]."""
    steps, batch, features = layer.x.shape
    count = layer.directions * layer.gates * layer.hidden
    if bias is not None:
        bias = view(bias, (count,))
    joined = isinstance(bias, Known)
    group = typed(fully_connected(n=steps * batch, c=features, k=count, bias=joined), layer.x.dtype)
    operands = {'In': view(layer.x, (steps * batch, features))}
    operands['Ker'] = view(weights, (count, features))
    if bias is not None and joined:
        operands['Bias'] = bias
    made = compute(group, operands)
    if bias is None or joined:
        return made
    return pointwise('bias', add(X, read(1)), [made, bias], layer.x.dtype)


def _lengths(layer: _Layer) -> Result | None:
    """The lengths of sequences; None where all are whole."""
    found, (steps, batch, _) = layer.node.optional(4), layer.x.shape
    if found is None:
        return None
    if found.shape != (batch,) or found.dtype not in WHOLE:
        raise ModelError(
            f'its sequence_lens is {found.dtype}{list(found.shape)}; it must be a whole number for '
            f'each of {batch} sequences'
        )
    if isinstance(found, Known):
        lengths = found.array
        if lengths.min() < 0 or lengths.max() > steps:
            raise ModelError(
                f'its sequence_lens are {lengths.min()} to {lengths.max()}; they must be 0 to '
                f'{steps}, the steps of its input'
            )
        if lengths.min() == steps:
            return None
    return found


def _functions(layer: _Layer) -> tuple[tuple[Expr, ...], ...]:
    """The activations of each direction."""
    count = FUNCTIONS[layer.kind]
    default = DEFAULTS[layer.kind] * layer.directions
    names = layer.node.raw('activations', default)
    if not isinstance(names, tuple) or len(names) != count * layer.directions:
        raise ModelError(
            f'its activations are {names!r}; it must have {count} for each of '
            f'{layer.directions} directions'
        )
    alphas, betas = (_numbers(layer.node, f'activation_{word}') for word in ('alpha', 'beta'))
    made = []
    for name in names:
        key = str(name).lower()
        if key not in ACTIVATIONS:
            raise Unsupported(f'with activation {name!r}')
        (alpha, beta), function = ACTIVATIONS[key]
        # Numbers are listed for those activations only that take them.
        alpha = alphas.pop(0) if alphas and alpha is not None else alpha
        beta = betas.pop(0) if betas and beta is not None else beta
        made.append(function(alpha, beta))
    return tuple(tuple(made[i : i + count]) for i in range(0, len(made), count))


def _numbers(node: NodeReader, name: str) -> list[float]:
    found = node.raw(name, ())
    if not isinstance(found, tuple) or not all(isinstance(v, int | float) for v in found):
        raise ModelError(f'its {name} is {found!r}; it must be a list of numbers')
    return [float(v) for v in found]


def _results(layer: _Layer, described: Recurrent, out: Result) -> tuple[Result, ...]:
    """Y, Y_h and, of an LSTM, Y_c: rows of one tensor [rows, D, B, units]."""
    steps, d, batch = described.steps, described.directions, described.batch
    units, hidden = described.units, described.hidden
    y = slices(out, {0: range(steps)})
    state = view(slices(out, {0: range(steps, steps + 1)}), (d, batch, units))
    made = [y, state]
    if described.kind == 'lstm':
        cell = slices(out, {0: range(steps + 1, described.rows)})
        if described.cell_rows > 1:
            wide = transpose(cell, (1, 2, 0, 3))
            whole = view(wide, (d, batch, described.cell_rows * units))
            made.append(slices(whole, {2: range(hidden)}))
        else:
            made.append(view(cell, (d, batch, hidden)))
    if not layer.batch_first:
        return tuple(made)
    return transpose(y, (2, 0, 1, 3)), *(transpose(s, (1, 0, 2)) for s in made[1:])


OPERATORS: dict[str, Operator] = {
    name: Operator(_lower(name.lower()), FLOATS) for name in ('LSTM', 'GRU', 'RNN')
}
