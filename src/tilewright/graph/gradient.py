"""Gradients of what a graph computes, as further tasks of the same program.

Goes in: an `Emitter` with the tasks of a forward pass, the value that is differentiated, the values
by which. Comes out: the gradient of each of these as a result that the emitter names like any
other. Every task is turned around by the description of its stages (ops/adjoint.py), from the last
to the first; nothing here knows what a convolution is.

What a group keeps to itself and its gradient needs (the mean of a normalisation) is computed again
from its operands, by the stage that describes it. Contributions to one value are added in the order
in which its readers stand, the last first, so that results are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tilewright.errors import SpecError, UnsupportedError
from tilewright.graph.graph import Node
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.emit import Emitter
from tilewright.graph.lowering.result import (
    Computed,
    Known,
    Named,
    Part,
    Result,
    View,
    filled,
    join,
    view,
)
from tilewright.graph.program import Task
from tilewright.graph.recurrent_gradient import recurrent_gradients
from tilewright.ops.adjoint import GRAD, UP, MadeTensor, adjoint, single_stages
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group
from tilewright.ops.normalise import (
    batch_moments,
    by_moments_adjoint,
    epsilon_of,
    exponentials_adjoint,
)
from tilewright.ops.recurrence import layer_of
from tilewright.ops.stage import Expr, call, read

MOST_ADDENDS = 8
GIVEN = ('input', 'constant')


def gradients(
    emitter: Emitter, of: Mapping[str, Result | None], by: Iterable[str]
) -> dict[str, Result]:
    """The gradient by every value of `by`, zeros where nothing depends on it.

    `of` are the values that are differentiated, each with the gradient that comes in; None is 1.
    """
    wanted = list(by)
    backward = _Backward(emitter, wanted)
    for value, up in of.items():
        kind = emitter.values[value]
        one = filled(kind.shape, 1.0, kind.dtype)
        backward.add(value, up if up is not None else one)
    backward.run()
    found = {}
    for name in wanted:
        kind = emitter.values[name]
        result = backward.total(name)
        found[name] = result if result is not None else filled(kind.shape, 0.0, kind.dtype)
    return found


class _Backward:
    """The gradients so far, by the value whose memory it is, as lists of what is to be added."""

    def __init__(self, emitter: Emitter, by: Sequence[str]) -> None:
        self.emitter = emitter
        self.tasks = tuple(emitter.tasks)
        self.parts: dict[str, list[Result]] = {}
        self.totals: dict[str, Result] = {}
        self.refused: dict[str, list[str]] = {}
        self.makers = {task.result: task for task in self.tasks}
        self.varying = {emitter.views.get(name, name) for name in by}
        for task in self.tasks:
            if self.varying & {self._base(v) for v in task.operands.values()}:
                self.varying.add(self._base(task.result))

    def _base(self, value: str) -> str:
        return self.emitter.views.get(value, value)

    def add(self, value: str, gradient: Result) -> None:
        base = self._base(value)
        kind = self.emitter.values[base]
        if base in self.varying and is_float(kind.dtype):
            self.parts.setdefault(base, []).append(view(gradient, kind.shape))

    def total(self, value: str) -> Result | None:
        """The gradient of a value, all of whose readers have been turned around."""
        base = self._base(value)
        if base not in self.totals:
            if base not in self.parts:
                return None
            summed = added(self.parts.pop(base))
            self.totals[base] = self._named(summed, f'{base}/grad')
        return view(self.totals[base], self.emitter.values[value].shape)

    def _named(self, result: Result, wish: str, origin: str = '') -> Result:
        if isinstance(result, Known | Named):
            return result
        node = Node('Gradient', origin or wish, (), ())
        name = self.emitter.name_of(result, self.emitter.fresh(wish), node)
        return Named(self.emitter.values[name])

    def run(self) -> None:
        for task in reversed(self.tasks):
            if self._base(task.result) not in self.varying:
                continue
            up = self.total(task.result)
            if up is None:
                continue
            try:
                found = self._turned(task, up)
            except SpecError as reason:
                self.refused.setdefault(str(reason), []).extend(task.origin or (task.name,))
                # Zeros in the place of its gradients, so that nodes before it are looked at, too.
                found = [
                    (tensor, filled(kind.shape, 0.0, kind.dtype))
                    for tensor, value in task.operands.items()
                    if is_float((kind := self.emitter.values[value]).dtype)
                ]
            for tensor, gradient in found:
                self.add(task.operands[tensor], gradient)
        if self.refused:
            items = [
                f'{", ".join(map(repr, dict.fromkeys(nodes)))} ({reason})'
                for reason, nodes in self.refused.items()
            ]
            raise UnsupportedError(
                f'{self.emitter.graph.name} has nodes without a gradient: {"; ".join(items)}; '
                f'leave what feeds them out of the parameters, or replace them',
                tuple(name for nodes in self.refused.values() for name in nodes),
            )

    def _turned(self, task: Task, up: Result) -> list[tuple[str, Result]]:
        """(tensor, a contribution to its gradient) of a task's operands."""
        held: dict[str, Result] = {
            t: Named(self.emitter.values[v]) for t, v in task.operands.items()
        }
        moving = {t for t, v in task.operands.items() if self._base(v) in self.varying}
        out = Named(self.emitter.values[task.result])

        def named(result: Result, tensor: str) -> Result:
            return self._named(result, f'{task.result}/{tensor}', task.name)

        epsilon = self._by_batch(task)
        if epsilon is None:
            return turned(task.group, held, out, up, moving, named)
        sums = turned(task.group, held, out, up, {'In3', 'In4'}, named)
        sums = [(tensor, named(result, f'{tensor}/grad')) for tensor, result in sums]
        count = math.prod(held['In0'].shape) // math.prod(held['In1'].shape)
        given = [up, *(held[f'In{n}'] for n in (0, 1, 2, 3)), dict(sums)['In4'], dict(sums)['In3']]
        expr = by_moments_adjoint(epsilon, count)
        return [('In0', pointwise('batchnorm_grad', expr, given, out.dtype)), *sums]

    def _by_batch(self, task: Task) -> float | None:
        """The epsilon of a normalisation by the moments of its own operand; None for others.

        Its gradient has a closed form (ops/normalise.py), which reads everything twice. Derived
        from stages, mean and mean square are turned around by themselves: it is read seven times.
        """
        stage = task.group.stages[0]
        epsilon = epsilon_of(stage.expr) if len(task.operands) == 5 else None
        if epsilon is None or len(task.group.stages) != 1:
            return None
        x, mean, power = (self._base(task.operands[f'In{number}']) for number in range(3))
        of_mean, of_power = self.makers.get(mean), self.makers.get(power)
        if of_mean is None or of_power is None or set(of_power.operands) != {'In', 'Mean'}:
            return None
        known = batch_moments(of_power.group.tensor('In').shape, task.group.output.dtype)
        read_by = [self._base(v) for t in (of_mean, of_power) for v in t.operands.values()]
        same = [t.group.stages for t in (of_mean, of_power)] == [g.stages for g in known]
        return epsilon if same and sorted(read_by) == sorted([x, x, mean]) else None


def turned(
    group: Group, operands: Mapping[str, Result], out: Result, up: Result, moving: Collection[str],
    named: Callable[[Result, str], Result] = lambda result, _: result,
) -> list[tuple[str, Result]]:  # fmt: skip
    """(tensor, a contribution to its gradient) of the operands of a group that are `moving`.

    out    what the group computed; up: the gradient of that
    named  gives a result a name, so that what reads it several times shares it
    """
    layer = layer_of(group)
    if layer is not None:
        return recurrent_gradients(layer, operands, out, up, moving, turned)
    held = {**operands, group.output.name: out}
    closed = exponentials_adjoint(group)
    if closed is not None:
        return [('In', _computed([MadeTensor(GRAD, (closed,))], {**held, UP: up}))]
    arrived: dict[str, list[Result]] = {group.output.name: [up]}
    found: list[tuple[str, Result]] = []
    stages, varying = list(single_stages(group)), set(moving)
    values = _Inner(stages, held, named)
    for stage in stages:
        if varying & {a.tensor for a in stage.stages[0].reads}:
            varying.add(stage.output.name)
    for stage in reversed(stages):
        parts = arrived.pop(stage.output.name, None)
        if parts is None:
            continue
        own = named(added(parts), f'{stage.output.name}/grad')
        for number, access in enumerate(stage.stages[0].reads):
            made = adjoint(stage, number) if access.tensor in varying else ()
            if not made:
                continue
            gradient = own
            if not made[-1].is_copy:
                needed = {t.name for m in made for g in m.parts for t in g.tensors}
                given = {t: values[t] for t in needed if values.has(t)}
                gradient = _computed(made, {**given, UP: own})
            if access.tensor in operands:
                found.append((access.tensor, gradient))
            else:
                arrived.setdefault(access.tensor, []).append(gradient)
    return found


def gradients_of(result: Result, up: Result, by: Sequence[Result]) -> list[Result]:
    """The gradients by some of the results that a result is computed from; zeros for others."""
    order: list[Result] = []
    inside = {id(leaf) for leaf in by}

    def visit(found: Result) -> bool:
        """Whether it depends on one of `by`; those that do are listed behind what they read."""
        if id(found) in inside or any(found is other for other in order):
            return True
        read_by: list[Result] = []
        if isinstance(found, View):
            read_by = [found.of]
        elif isinstance(found, Computed):
            read_by = [operand for part in found.parts for operand in part.operands.values()]
        depends = [visit(operand) for operand in read_by]  # all of them, also behind the first
        if any(depends):
            order.append(found)
        return any(depends)

    visit(result)
    listed = {id(found) for found in order} | inside
    arrived: dict[int, list[Result]] = {id(result): [up]}
    for found in reversed(order):
        own = added(arrived.pop(id(found)))
        if isinstance(found, View):
            arrived.setdefault(id(found.of), []).append(view(own, found.of.shape))
            continue
        assert isinstance(found, Computed)
        for part in found.parts:
            moving = {t for t, operand in part.operands.items() if id(operand) in listed}
            for tensor, gradient in turned(part.group, part.operands, found, own, moving):
                arrived.setdefault(id(part.operands[tensor]), []).append(gradient)
    return [
        added(arrived[id(leaf)]) if id(leaf) in arrived else filled(leaf.shape, 0.0, leaf.dtype)
        for leaf in by
    ]


class _Inner:
    """Tensors of a group as results: operands, the output, and inner ones, computed when asked."""

    def __init__(
        self, stages: Sequence[Group], held: dict[str, Result],
        name: Callable[[Result, str], Result],
    ) -> None:  # fmt: skip
        self.held, self.name = held, name
        self.writers = {stage.output.name: stage for stage in stages}

    def has(self, tensor: str) -> bool:
        return tensor in self.held or tensor in self.writers

    def __getitem__(self, tensor: str) -> Result:
        if tensor not in self.held:
            stage = self.writers[tensor]
            operands = {t.name: self[t.name] for t in stage.tensors if t.role in GIVEN}
            self.held[tensor] = self.name(join([Part(stage, operands)]), tensor)
        return self.held[tensor]


def _computed(made: Sequence[MadeTensor], given: Mapping[str, Result]) -> Result:
    held = dict(given)
    for step in made:
        held[step.tensor] = join([
            Part(group, {t.name: held[t.name] for t in group.tensors if t.role in GIVEN})
            for group in step.parts
        ])  # fmt: skip
    return held[made[-1].tensor]


def added(results: Sequence[Result]) -> Result:
    """The sum of results of one shape, in their order."""
    left = list(results)
    while len(left) > 1:
        now, left = left[:MOST_ADDENDS], left[MOST_ADDENDS:]
        total: Expr = read(0)
        for number in range(1, len(now)):
            total = call('add', total, read(number))
        left.insert(0, pointwise('add', total, now, now[0].dtype))
    return left[0]
