"""Gradients of recurrent layers: backward through time, with one product a step.

Goes in: a layer (ops/recurrence.py), its operands, the states that it showed, the gradient of what
it showed. Comes out: the gradients by its operands. States are known, so that gates and cells of
all steps are computed again at once: the products with R are one product, and cells

    Cell[t] = F[t] Cell[t - 1] + I[t] New[t]

are a scan of a few element-wise passes, each over four times as many steps (Hillis and Steele 1986:
twice). Only the gradient by the state goes step by step (`reverse_recurrence`); what follows from
it is again computed for all steps at once. Directions take their steps together. Everything is in
the order of places, which a direction that runs backwards takes from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.errors import SpecError
from tilewright.graph.lowering.build import pointwise, transpose
from tilewright.graph.lowering.moving import concat, slices
from tilewright.graph.lowering.result import Result, compute, filled, view
from tilewright.ops.derivative import derivative
from tilewright.ops.describe import group_of, label_of, typed
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.functions import ONE, ZERO, X, add, mul, sub
from tilewright.ops.moving import move
from tilewright.ops.recurrence import OUTPUT_GATE, Recurrent, reverse_recurrence
from tilewright.ops.stage import Access, Dim, Expr, Stage, affine, read, var

Y = read(1)
BACK = 'Back'  # what weights of a gate are called that gradients go back through
RADIX = 4  # values that a pass of a scan puts together
# operand -> the axis of its directions
_DIRECTIONS = {'In': 2, 'R': 0, 'RBias': 0, 'Initial': 0, 'InitialCell': 0}
Turn = Callable[..., list[tuple[str, Result]]]  # `gradient.turned`, which imports this
Gradients = Generator[dict[str, Result], Result, dict[str, Result]]


def recurrent_gradients(
    layer: Recurrent, operands: Mapping[str, Result], out: Result, up: Result,
    moving: Collection[str], turned: Turn,
) -> list[tuple[str, Result]]:  # fmt: skip
    """(operand, its gradient) of a layer."""
    asked = {
        'a projection': layer.projected, 'clip': layer.clip, 'lengths': layer.lengths,
        'peepholes': layer.peepholes, 'input_forget': layer.input_forget,
        'linear_before_reset=0': layer.kind == 'gru' and not layer.linear_before_reset,
    }  # fmt: skip
    if found := [word for word, value in asked.items() if value]:
        raise SpecError(f'{layer.kind} with {found[0]} has no gradient')
    each = _together(
        layer,
        [
            _Direction(layer, number, operands, out, up, turned).gradients()
            for number in range(layer.directions)
        ],
    )
    return [
        (name, concat([one[name] for one in each], axis))
        for name, axis in _DIRECTIONS.items()
        if name in operands and name in moving
    ]


def _together(layer: Recurrent, each: Sequence[Gradients]) -> list[dict[str, Result]]:
    """The gradients of all directions, whose steps are taken together."""
    asked = [next(one) for one in each]
    held = {
        name: concat([one[name] for one in asked], 0 if name.startswith(BACK) else 1)
        for name in asked[0]
    }
    states = compute(reverse_recurrence(layer), held)
    shape = layer.steps, layer.batch, layer.hidden
    found = []
    for number, one in enumerate(each):
        state = view(slices(states, {1: range(number, number + 1)}), shape)
        try:
            one.send(state)
        except StopIteration as end:
            found.append(end.value)
    return found


@dataclass(frozen=True)
class _Direction:
    """One direction of a layer; values are [T, B, H] in the order of places.

    `gradients` hands out what the gradient by the states follows from, and is sent that gradient.
    """

    layer: Recurrent
    number: int
    operands: Mapping[str, Result]
    out: Result
    up: Result
    turned: Turn

    @property
    def back(self) -> bool:
        return self.layer.backwards[self.number]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.layer.steps, self.layer.batch, self.layer.hidden

    def _of(self, expr: Expr, *given: Result) -> Result:
        return pointwise('recurrent', expr, given, self.layer.dtype)

    def _own(self, x: Result, axis: int, shape: Sequence[int]) -> Result:
        return view(slices(x, {axis: range(self.number, self.number + 1)}), shape)

    def _rows(self, x: Result, first: int, count: int) -> Result:
        """Rows of what the layer shows."""
        _, batch, hidden = self.shape
        return self._own(slices(x, {0: range(first, first + count)}), 1, (count, batch, hidden))

    def _moved(self, x: Result, by: int, steps: int = 0) -> Result:
        """x at `by` places before, zeros from outside."""
        shape = (steps or x.shape[0], *x.shape[1:])
        sizes = {f'd{axis}': size for axis, size in enumerate(shape)}
        index = (affine(('d0', 1), const=-by), var('d1'), var('d2'))
        return compute(move('shift', x.shape, index, sizes, dtype=x.dtype), {'In': x})

    def _shifted(self, expr: Expr, given: Mapping[str, tuple[Result, Sequence[int]]]) -> Result:
        """A function of values at some places before, zeros from outside."""
        dims = tuple(Dim(f'd{axis}', size) for axis, size in enumerate(self.shape))
        reads = tuple(
            Access(name, (affine(('d0', 1), const=-by), var('d1'), var('d2')))
            for name, (_, places) in given.items()
            for by in places
        )
        write = Access('Out', tuple(var(d.name) for d in dims))
        stage, shapes = Stage('scan', dims, write, reads, expr), dict.fromkeys(given, self.shape)
        group = group_of(label_of('scan', self.shape), [stage], shapes, self.layer.dtype)
        return compute(group, {name: x for name, (x, _) in given.items()})

    def _before(self, x: Result, initial: str) -> Result:
        """x as it was one step before, and what is given before the first one."""
        moved = self._moved(x, -1 if self.back else 1)
        if initial not in self.operands:
            return moved
        first = self._own(self.operands[initial], 0, (1, *self.shape[1:]))
        return self._of(add(X, Y), moved, self._placed(first, last=False))

    def _placed(self, x: Result, last: bool) -> Result:
        """[1, B, H] at the first or the last step, zeros elsewhere."""
        at = self.layer.steps - 1 if last != self.back else 0
        return self._moved(x, at, self.layer.steps)

    def _at_first(self, x: Result) -> Result:
        at = self.layer.steps - 1 if self.back else 0
        return slices(x, {0: range(at, at + 1)})

    def _scan(self, factor: Result, more: Result, back: bool) -> Result:
        """x[t] = factor[t] * x[t - 1] + more[t], from the last place on where `back` says so."""
        far, steps = 1, self.layer.steps
        while far < steps:
            count, by = min(RADIX, -(-steps // far)), -far if back else far
            sums, product = read(count - 1), X
            for n in reversed(range(count - 1)):
                sums = add(mul(read(count + n), sums), read(n))
            for n in range(1, count):
                product = mul(product, read(n))
            places = [by * n for n in range(count)]
            made = self._shifted(sums, {'More': (more, places), 'Factor': (factor, places[:-1])})
            factor = self._shifted(product, {'Factor': (factor, places)})
            more, far = made, far * RADIX
        return more

    @cached_property
    def previous(self) -> Result:
        return self._before(self._rows(self.out, 0, self.layer.steps), 'Initial')

    @cached_property
    def product(self) -> tuple[Result, Result]:
        """(R as [gates * H, H], the states before every step as [T * B, H])."""
        steps, batch, hidden = self.shape
        weights = self._own(self.operands['R'], 0, (self.layer.gates * hidden, hidden))
        return weights, view(self.previous, (steps * batch, hidden))

    def _sums(self) -> Result:
        """Products of the states before with R, [T, B, gates, H]."""
        weights, before = self.product
        made = compute(self._connected(before.shape[0]), {'In': before, 'Ker': weights})
        return view(made, (*self.shape[:2], self.layer.gates, self.shape[2]))

    def _connected(self, rows: int):
        hidden = self.layer.hidden
        return typed(
            fully_connected(n=rows, c=hidden, k=self.layer.gates * hidden), self.layer.dtype
        )

    def _gate(self, x: Result, gate: int) -> Result:
        return view(slices(x, {2: range(gate, gate + 1)}), self.shape)

    def _function(self, number: int, x: Result) -> tuple[Result, Expr]:
        """An activation, and its slope as an expression of its argument."""
        function = self.layer.functions[self.number][number]
        return self._of(function, x), derivative(function, 0) or ZERO

    def gradients(self) -> Gradients:
        layer, (steps, batch, hidden) = self.layer, self.shape
        sums = self._sums()
        given = view(
            slices(self.operands['In'], {2: range(self.number, self.number + 1)}),
            (steps, batch, layer.gates, hidden),
        )
        inputs = [self._gate(given, g) for g in range(layer.gates)]
        products = [self._gate(sums, g) for g in range(layer.gates)]
        found = {'lstm': self._lstm, 'gru': self._gru, 'rnn': self._rnn}[layer.kind]
        return (yield from found(inputs, products))

    def _asked(self, slopes: Sequence[Result], **more: Result) -> dict[str, Result]:
        """Operands of the gradient by every state, which goes step by step from the last one."""
        steps, batch, hidden = self.shape
        weights = view(self.product[0], (self.layer.gates, hidden, hidden))
        ups = self._rows(self.up, 0, steps)
        ups = self._of(add(X, Y), ups, self._placed(self._rows(self.up, steps, 1), last=True))
        flat = {'Up': ups, **more} | {f'Slope{g}': slope for g, slope in enumerate(slopes)}
        held = {name: view(x, (steps, 1, batch, hidden)) for name, x in flat.items()}
        for gate in range(self.layer.gates):
            own = view(slices(weights, {0: range(gate, gate + 1)}), (hidden, hidden))
            held[f'{BACK}{gate}'] = view(transpose(own, (1, 0)), (1, 1, hidden, hidden))
        return held

    def _spread(self, by_sum: Sequence[Result], by_input: Sequence[Result]) -> dict[str, Result]:
        """Gradients by operands, from those by the products and by the inputs of all gates."""
        layer, (steps, batch, hidden) = self.layer, self.shape
        count = layer.gates * hidden

        def stacked(each: Sequence[Result]) -> Result:
            return concat([view(x, (steps, batch, 1, hidden)) for x in each], 2)

        inner = stacked(by_sum)
        outer = inner if by_input is by_sum else stacked(by_input)
        weights, before = self.product
        sums = view(inner, (steps * batch, count))
        ((_, by_weights),) = self.turned(
            self._connected(steps * batch), {'In': before, 'Ker': weights}, sums, sums, {'Ker'}
        )
        made = {
            'In': view(outer, (steps, batch, 1, layer.gates, hidden)),
            'R': view(by_weights, (1, layer.gates, hidden, hidden)),
        }
        if 'Initial' in self.operands:
            first = view(self._at_first(view(inner, (steps, batch, count))), (batch, count))
            state = filled((batch, hidden), 0.0, layer.dtype)
            ((_, by_state),) = self.turned(
                self._connected(batch), {'In': state, 'Ker': weights}, first, first, {'In'}
            )
            made['Initial'] = view(by_state, (1, batch, hidden))
        return made

    def _rnn(self, inputs: Sequence[Result], products: Sequence[Result]) -> Gradients:
        argument = self._of(add(X, Y), inputs[0], products[0])
        slope = self._of(self._function(0, argument)[1], argument)
        state = yield self._asked([slope])
        by = [self._of(mul(X, Y), state, slope)]
        return self._spread(by, by)

    def _lstm(self, inputs: Sequence[Result], products: Sequence[Result]) -> Gradients:
        pairs = zip(inputs, products, strict=True)
        arguments = [self._of(add(X, Y), x, s) for x, s in pairs]
        (i, gate), (o, _), (f, _) = (self._function(0, x) for x in arguments[:3])
        new, fresh = self._function(1, arguments[3])
        more = self._of(mul(X, Y), i, new)
        if 'InitialCell' in self.operands:
            first = self._own(self.operands['InitialCell'], 0, (1, *self.shape[1:]))
            more = self._of(add(X, mul(Y, read(2))), more, f, self._placed(first, last=False))
        cell = self._scan(f, more, self.back)
        shown, slope = self._function(2, cell)
        before = self._before(cell, 'InitialCell')
        showing = self._of(mul(Y, slope), cell, o)
        slopes = [
            self._of(mul(gate, Y), x, factor)
            for x, factor in zip(arguments[:3], (new, shown, before), strict=True)
        ]
        slopes.append(self._of(mul(fresh, Y), arguments[3], i))
        by_cell = self._placed(self._rows(self.up, self.layer.steps + 1, 1), last=True)
        state = yield self._asked(slopes, Shown=showing, UpCell=by_cell, Carry=f)
        handed = self._of(add(mul(X, Y), read(2)), state, showing, by_cell)
        after = self._moved(f, 1 if self.back else -1)
        cells = self._scan(after, handed, not self.back)
        by = [
            self._of(mul(X, Y), state if number == OUTPUT_GATE else cells, s)
            for number, s in enumerate(slopes)
        ]
        made = self._spread(by, by)
        if 'InitialCell' in self.operands:
            made['InitialCell'] = self._at_first(self._of(mul(X, Y), cells, f))
        return made

    def _gru(self, inputs: Sequence[Result], products: Sequence[Result]) -> Gradients:
        arguments = [self._of(add(X, Y), inputs[i], products[i]) for i in range(2)]
        (z, gate), (reset, _) = (self._function(0, x) for x in arguments)
        bias = self._own(self.operands['RBias'], 0, (1, 1, self.layer.hidden))
        inner = self._of(add(X, Y), products[2], bias)
        argument = self._of(add(X, mul(Y, read(2))), inputs[2], reset, inner)
        new, fresh = self._function(1, argument)
        by_new = self._of(mul(fresh, sub(ONE, Y)), argument, z)
        slopes = [
            self._of(mul(gate, sub(Y, read(2))), arguments[0], self.previous, new),
            self._of(mul(gate, mul(Y, read(2))), arguments[1], inner, by_new),
            self._of(mul(X, Y), by_new, reset),
        ]
        state = yield self._asked(slopes, Carry=z)
        by = [self._of(mul(X, Y), state, slope) for slope in slopes]
        made = self._spread(by, [*by[:2], self._of(mul(X, Y), state, by_new)])
        steps, batch, hidden = self.shape
        flat = view(by[2], (steps * batch, hidden))
        group = typed(fully_connected(n=1, c=steps * batch, k=hidden), self.layer.dtype)
        ones = filled((1, steps * batch), 1.0, self.layer.dtype)
        made['RBias'] = compute(group, {'In': ones, 'Ker': transpose(flat, (1, 0))})
        if 'Initial' in self.operands:
            kept = self._at_first(self._of(mul(X, Y), state, z))
            made['Initial'] = self._of(add(X, Y), made['Initial'], kept)
        return made
