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

from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.errors import SpecError, UnsupportedError
from tilewright.graph.graph import Node
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.emit import Emitter
from tilewright.graph.lowering.result import Known, Named, Part, Result, filled, join, view
from tilewright.graph.program import Task
from tilewright.ops.adjoint import GRAD, UP, MadeTensor, adjoint, single_stages
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group
from tilewright.ops.normalise import exponentials_adjoint
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
                continue
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
        group = task.group
        held = {t: Named(self.emitter.values[v]) for t, v in task.operands.items()}
        held[group.output.name] = Named(self.emitter.values[task.result])
        moving = {t for t, v in task.operands.items() if self._base(v) in self.varying}
        name = lambda result, tensor: self._named(result, f'{task.result}/{tensor}', task.name)  # noqa: E731
        closed = exponentials_adjoint(group)
        if closed is not None:
            made = _computed([MadeTensor(GRAD, (closed,))], {**held, UP: up})
            return [('In', made)]
        inner: dict[str, list[Result]] = {group.output.name: [up]}
        found: list[tuple[str, Result]] = []
        stages = list(single_stages(group))
        values = _Inner(stages, held, name)
        for stage in stages:
            if moving & {a.tensor for a in stage.stages[0].reads}:
                moving.add(stage.output.name)
        for stage in reversed(stages):
            arrived = inner.pop(stage.output.name, None)
            if arrived is None:
                continue
            own = name(added(arrived), f'{stage.output.name}/grad')
            for number, access in enumerate(stage.stages[0].reads):
                if access.tensor not in moving:
                    continue
                made = adjoint(stage, number)
                if not made:
                    continue
                if made[-1].is_copy:
                    gradient: Result = own
                else:
                    needed = {t.name for m in made for g in m.parts for t in g.tensors}
                    given = {t: values[t] for t in needed if values.has(t)}
                    gradient = _computed(made, {**given, UP: own})
                if access.tensor in task.operands:
                    found.append((access.tensor, gradient))
                else:
                    inner.setdefault(access.tensor, []).append(gradient)
        return found


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
