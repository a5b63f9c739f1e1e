"""Recurrent layers: LSTM, GRU and RNN as ONNX defines them, step by step.

    Sum[t, d, n, g, h] += R[d, g, h, k] * State[t - 1, d, n, k]       products of the last state
    I, F, O, New[t, d, n, h] = functions of In[.., g, h] + Sum[.., g, h]
    Cell[t] = F * Cell[t - 1] + I * New;   State[t] = O * tanh(Cell[t])

`t` is sequential, `d` a direction, `n` a sequence of the batch, `g` a gate, `h` a hidden unit. In,
the products of the inputs of all steps with biases added, comes from outside: it is one matrix
product, which does not wait for anything. Directions that run backwards read In from its end.

The result is one tensor, Out[r, d, n, u]: row r < T is the state at place r of the sequence, row T
the last state, rows behind it the last cell (LSTM), `u` units to a row. With lengths, a state is
carried unchanged over places behind the end of its sequence, where the result is zero; so sequences
need not be turned around by their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.errors import SpecError
from tilewright.ops.describe import group_of
from tilewright.ops.functions import ONE, ZERO, X, add, mul, sub, where
from tilewright.ops.group import Group
from tilewright.ops.stage import (
    MAX_TABLE,
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    Table,
    access,
    affine,
    call,
    const,
    index,
    read,
    substituted,
    var,
    whole,
)

GATES = {'lstm': 4, 'gru': 3, 'rnn': 1}
OUTPUT_GATE = 1  # of an LSTM
FUNCTIONS = {'lstm': 3, 'gru': 2, 'rnn': 1}  # of a direction
STEP = 't'


@dataclass(frozen=True, slots=True)
class Recurrent:
    """What a recurrent layer computes.

    kind        'lstm' (gates i o f c), 'gru' (z r h) or 'rnn'
    backwards   for each direction, whether it runs from the last step to the first
    functions   for each direction its activations, expressions of read 0, as ONNX orders them
    projected   units of the state where it is projected, else 0: they are the hidden ones
    clip        the arguments of gates are brought between -clip and clip; 0: they are not. The cell
                itself is not clipped, as in ONNX Runtime
    lengths     dtype of the lengths of sequences, '' where all are whole
    """

    kind: str
    steps: int
    batch: int
    hidden: int
    backwards: tuple[bool, ...]
    functions: tuple[tuple[Expr, ...], ...]
    projected: int = 0
    clip: float = 0.0
    input_forget: bool = False
    linear_before_reset: bool = False
    peepholes: bool = False
    initial_state: bool = False
    initial_cell: bool = False
    lengths: str = ''
    dtype: str = field(default='f32')

    def __post_init__(self) -> None:
        if self.kind not in GATES:
            raise SpecError(f'{self.kind!r} is not a recurrent layer; choose one of {list(GATES)}')
        if self.directions * self.rows > MAX_TABLE:
            raise SpecError(
                f'{self.steps} steps in {self.directions} directions; the limit is '
                f'{MAX_TABLE // self.directions - self.cell_rows - 1}: give shorter sequences'
            )

    @property
    def directions(self) -> int:
        return len(self.backwards)

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def units(self) -> int:
        """Units of the state."""
        return self.projected or self.hidden

    @property
    def cell_rows(self) -> int:
        """Rows of the result that hold the last cell."""
        return -(-self.hidden // self.units) if self.kind == 'lstm' else 0

    @property
    def rows(self) -> int:
        return self.steps + 1 + self.cell_rows


def recurrence(layer: Recurrent) -> Group:
    """[Recurrent] -> [Group]. Its operands, of which some may be missing:

    In [T, B, D, gates, H], R [D, gates, H, units], and for a GRU that is not linear before reset R
    of two gates and RHidden [D, 1, H, units]; RBias [D, H] of a GRU that is; Peephole [D, 3, H];
    Projection [D, 1, units, H]; Initial [D, B, units], InitialCell [D, B, H]; Lengths [B].
    """
    made = _Builder(layer).group()
    _LAYERS[made.digest] = layer
    return made


_LAYERS: dict[str, Recurrent] = {}


def layer_of(group: Group) -> Recurrent | None:
    """The layer that `recurrence` made a group of."""
    return _LAYERS.get(group.digest) if group.is_sequential else None


def reverse_recurrence(layer: Recurrent) -> Group:
    """The gradient by the state after every step, from the last step of a direction to the first.

        State[t] = Up[place] + sum over gates g of Back_g A_g[t - 1] + Kept[t - 1]
        A_g[t]   = State[t] * Slope_g[place], the gradient by the product of gate g

    where `place` runs against the layer. Of an LSTM all gates but the output's hang on the cell:
    Cell[t] = State[t] * Shown[place] + UpCell[place] + Kept[t - 1], A_g = Cell[t] * Slope_g, and
    Kept = Cell * Carry; of a GRU Kept = State * Carry; an RNN keeps nothing. Operands: Up, UpCell,
    Shown, Carry, Slope0, .. [T, D, B, H]; Back0, .. [D, 1, H, H]: R of a gate, transposed.
    """
    return _Builder(layer).reverse()


class _Builder:
    """The stages so far, and the shapes of what they read."""

    def __init__(self, layer: Recurrent) -> None:
        self.layer = layer
        self.stages: list[Stage] = []
        d, b, h = layer.directions, layer.batch, layer.hidden
        self.shapes: dict[str, tuple[int, ...]] = {'In': (layer.steps, b, d, layer.gates, h)}
        self.step = Dim(STEP, layer.steps, 'sequential')
        self.lanes = Dim('d', d), Dim('n', b)

    def group(self) -> Group:
        layer = self.layer
        last = self._carried('State', 'Initial', layer.units, layer.initial_state)
        {'lstm': self._lstm, 'gru': self._gru, 'rnn': self._rnn}[layer.kind](last)
        self._output()
        dtypes = {'Lengths': layer.lengths} if layer.lengths else {}
        return group_of(self._label(), self.stages, self.shapes, layer.dtype, dtypes)

    def _label(self) -> str:
        layer = self.layer
        turn = '-bidirectional' if layer.directions > 1 else '-backwards' * layer.backwards[0]
        kind = '' if layer.dtype == 'f32' else f'-{layer.dtype}'
        shape = f'{layer.steps}x{layer.batch}x{layer.hidden}'
        return f'{layer.kind}{turn}-{shape}{f"p{layer.units}" if layer.projected else ""}{kind}'

    def reverse(self) -> Group:
        layer, steps = self.layer, self.layer.steps
        forwards = tuple(range(steps))
        places = tuple(p for b in layer.backwards for p in (forwards if b else forwards[::-1]))
        whole_ = (steps, layer.directions, layer.batch, layer.hidden)
        self.shapes = {}

        def given(name: str) -> Access:
            self.shapes[name] = whole_
            place = Table(places, affine((STEP, 1), ('d', steps)))
            return access(name, place, var('d'), var('n'), var('h'))

        for gate in range(layer.gates):
            source = self._before(f'A{gate}', 'k')
            self._product(f'Back{gate}', 1, layer.hidden, source, layer.hidden, f'Sum{gate}')
        kept = () if layer.kind == 'rnn' else (self._before('Kept'),)
        reads = [given('Up'), *(self._sum(f'Sum{gate}', 0) for gate in range(layer.gates))]
        reads += kept if layer.kind == 'gru' else ()
        total = X
        for number in range(1, len(reads)):
            total = add(total, read(number))
        self._point('State', total, *reads)
        source = 'State'
        if layer.kind == 'lstm':
            source, expr = 'Cell', add(add(mul(X, read(1)), read(2)), read(3))
            self._point('Cell', expr, self._here('State'), given('Shown'), given('UpCell'), *kept)
        if kept:
            self._point('Kept', mul(X, read(1)), self._here(source), given('Carry'))
        for gate in range(layer.gates):
            own = self._here('State' if layer.kind == 'lstm' and gate == OUTPUT_GATE else source)
            self._point(f'A{gate}', mul(X, read(1)), own, given(f'Slope{gate}'))
        dims = (Dim('r', steps), *self.lanes, Dim('h', layer.hidden))
        at = Table(places, affine(('r', 1), ('d', steps)))
        shown = access('State', at, var('d'), var('n'), var('h'))
        place = tuple(var(d.name) for d in dims)
        self.stages.append(Stage('output', dims, Access('Out', place), (shown,), X))
        return group_of(f'{self._label()}-reverse', self.stages, self.shapes, layer.dtype)

    # Accesses at one step, direction, image and unit.

    def _here(self, tensor: str, unit: str = 'h') -> Access:
        return Access(tensor, (var(STEP), var('d'), var('n'), var(unit)))

    def _before(self, tensor: str, unit: str = 'h') -> Access:
        return Access(tensor, (affine((STEP, 1), const=-1), var('d'), var('n'), var(unit)))

    def _sum(self, tensor: str, gate: int) -> Access:
        return Access(tensor, (var(STEP), var('d'), var('n'), Affine((), gate), var('h')))

    def _input(self, gate: int) -> Access:
        layer, place = self.layer, var(STEP)
        if any(layer.backwards):
            forwards = tuple(range(layer.steps))
            table = tuple(p for b in layer.backwards for p in (forwards[::-1] if b else forwards))
            place = Table(table, affine((STEP, 1), ('d', layer.steps)))
        return access('In', place, var('n'), var('d'), Affine((), gate), var('h'))

    def _carried(self, tensor: str, initial: str, units: int, given: bool) -> Access:
        """The access to a tensor as the last step left it; before the first one, as it is given.

        What is not given is zero: that is what lies outside a tensor.
        """
        if not given:
            return self._before(tensor, 'k')
        self.shapes[initial] = (self.layer.directions, self.layer.batch, units)
        first = Access(initial, (var('d'), var('n'), var('k')))
        expr = where(call('eq', index(STEP), whole(0)), X, read(1))
        dims = (self.step, *self.lanes, Dim('k', units))
        name = f'Last{tensor}'
        self.stages.append(
            Stage(f'last_{tensor.lower()}', dims, self._here(name, 'k'),
                  (first, self._before(tensor, 'k')), expr)
        )  # fmt: skip
        return self._here(name, 'k')

    def _product(
        self, weights: str, gates: int, rows: int, source: Access, units: int, result: str
    ) -> None:
        """result[t, d, n, g, h] += weights[d, g, h, k] * source[.., k]"""
        dims = (self.step, *self.lanes, Dim('g', gates), Dim('h', rows))
        self.shapes[weights] = (self.layer.directions, gates, rows, units)
        self.stages.append(
            Stage(
                f'product_{result.lower()}', (*dims, Dim('k', units, 'reduction')),
                Access(result, tuple(var(d.name) for d in dims)),
                (Access(weights, (var('d'), var('g'), var('h'), var('k'))), source),
                mul(X, read(1)), 'sum',
            )
        )  # fmt: skip

    def _point(self, result: str, expr: Expr, *reads: Access, units: int = 0) -> None:
        """A function of values of one unit."""
        dims = (self.step, *self.lanes, Dim('h', units or self.layer.hidden))
        self.stages.append(Stage(result.lower(), dims, self._here(result), reads, expr))

    def _activated(self, number: int, argument: Expr, clipped: bool = True) -> Expr:
        """Activation `number` of the direction at hand."""
        layer = self.layer
        if layer.clip and clipped:
            low, high = const(-layer.clip), const(layer.clip)
            argument = call('min', call('max', argument, low), high)
        made = [substituted(functions[number], [argument]) for functions in layer.functions]
        if len(set(made)) == 1:
            return made[0]
        return where(call('eq', index('d'), whole(0)), made[0], made[1])

    def _inside(self, step: str, length: int) -> Expr:
        """Whether the place that belongs to a step lies inside the sequence of read `length`."""
        layer = self.layer
        back = sub(whole(layer.steps - 1), index(step))
        places = [back if b else index(step) for b in layer.backwards]
        if len(set(layer.backwards)) == 1:
            place = places[0]
        else:
            place = where(call('eq', index('d'), whole(0)), places[0], places[1])
        return call('lt', place, read(length))

    def _kept(self, result: str, computed: str, last: Access, units: int = 0) -> None:
        """result: what was computed inside the sequence, what was there before behind its end."""
        self.shapes['Lengths'] = (self.layer.batch,)
        expr = where(self._inside(STEP, 2), X, read(1))
        reads = self._here(computed), _of_unit(last), Access('Lengths', (var('n'),))
        self._point(result, expr, *reads, units=units)

    def _result(self, tensor: str, last: Access, expr: Expr, *reads: Access) -> None:
        """The new state or cell, which is kept where the sequence has ended."""
        computed = f'Next{tensor}' if self.layer.lengths else tensor
        self._point(computed, expr, *reads)
        if self.layer.lengths:
            self._kept(tensor, computed, last)

    # The three kinds.

    def _lstm(self, last: Access) -> None:
        layer = self.layer
        cell = self._carried('Cell', 'InitialCell', layer.hidden, layer.initial_cell)
        self._product('R', 4, layer.hidden, last, layer.units, 'Sum')
        before = _of_unit(cell)
        if layer.peepholes:
            self.shapes['Peephole'] = (layer.directions, 3, layer.hidden)

        def gate(name: str, number: int, function: int, peephole: int, seen: Access) -> None:
            expr, reads = add(X, read(1)), [self._input(number), self._sum('Sum', number)]
            if layer.peepholes and peephole >= 0:
                expr = add(expr, mul(read(2), read(3)))
                reads += [Access('Peephole', (var('d'), Affine((), peephole), var('h'))), seen]
            self._point(name, self._activated(function, expr), *reads)

        gate('I', 0, 0, 0, before)
        if layer.input_forget:
            self._point('F', sub(ONE, X), self._here('I'))
        else:
            gate('F', 2, 0, 2, before)
        gate('New', 3, 1, -1, before)
        fresh = add(mul(X, read(1)), mul(read(2), read(3)))
        values = self._here('F'), before, self._here('I'), self._here('New')
        computed = 'NextCell' if layer.lengths else 'Cell'
        self._result('Cell', cell, fresh, *values)
        gate('O', 1, 0, 1, self._here(computed))
        shown = mul(X, self._activated(2, read(1), clipped=False))
        reads = self._here('O'), self._here(computed)
        if not layer.projected:
            self._result('State', last, shown, *reads)
            return
        self._point('Shown', shown, *reads)
        source = self._here('Shown', 'k')
        self._product('Projection', 1, layer.units, source, layer.hidden, 'Projected')
        computed = 'NextState' if layer.lengths else 'State'
        self._point(computed, X, self._sum('Projected', 0), units=layer.units)
        if layer.lengths:
            self._kept('State', computed, last, units=layer.units)

    def _gru(self, last: Access) -> None:
        layer, before = self.layer, _of_unit(last)
        direct = layer.linear_before_reset
        self._product('R', 3 if direct else 2, layer.hidden, last, layer.units, 'Sum')
        for name, number in (('Z', 0), ('Reset', 1)):
            expr = self._activated(0, add(X, read(1)))
            self._point(name, expr, self._input(number), self._sum('Sum', number))
        if direct:
            self.shapes['RBias'] = (layer.directions, layer.hidden)
            bias = Access('RBias', (var('d'), var('h')))
            inner = add(X, mul(read(1), add(read(2), read(3))))
            reads = self._here('Reset'), self._sum('Sum', 2), bias
        else:
            self._point('Seen', mul(X, read(1)), self._here('Reset'), before)
            source = self._here('Seen', 'k')
            self._product('RHidden', 1, layer.hidden, source, layer.units, 'Inner')
            inner, reads = add(X, read(1)), (self._sum('Inner', 0),)
        self._point('New', self._activated(1, inner), self._input(2), *reads)
        mixed = add(mul(sub(ONE, X), read(1)), mul(X, read(2)))
        self._result('State', last, mixed, self._here('Z'), self._here('New'), before)

    def _rnn(self, last: Access) -> None:
        self._product('R', 1, self.layer.hidden, last, self.layer.units, 'Sum')
        expr = self._activated(0, add(X, read(1)))
        self._result('State', last, expr, self._input(0), self._sum('Sum', 0))

    def _output(self) -> None:
        layer, rows = self.layer, self.layer.rows
        table: list[int] = []
        for backwards in layer.backwards:
            places = list(range(layer.steps))
            table += places[::-1] if backwards else places
            table += [layer.steps - 1] * (rows - layer.steps)
        at = Table(tuple(table), affine(('r', 1), ('d', rows)))
        reads = [access('State', at, var('d'), var('n'), var('h'))]
        expr = X
        if layer.lengths:
            reads.append(Access('Lengths', (var('n'),)))
            inside = call('or', call('ge', index('r'), whole(layer.steps)),
                          call('lt', index('r'), read(1)))  # fmt: skip
            expr = where(inside, X, ZERO)
        if layer.cell_rows:
            first = -(layer.steps + 1) * layer.units
            unit = affine(('r', layer.units), ('h', 1), const=first)
            reads.append(Access('Cell', (Affine((), layer.steps - 1), var('d'), var('n'), unit)))
            behind = call('gt', index('r'), whole(layer.steps))
            expr = where(behind, read(len(reads) - 1), expr)
        dims = (Dim('r', rows), *self.lanes, Dim('h', layer.units))
        place = tuple(var(d.name) for d in dims)
        self.stages.append(Stage('output', dims, Access('Out', place), tuple(reads), expr))


def _of_unit(carried: Access) -> Access:
    """The value that this unit itself had, of an access by all units."""
    return Access(carried.tensor, (*carried.index[:3], var('h')))
