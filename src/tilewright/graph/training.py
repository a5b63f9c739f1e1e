"""A training step as a program: forward, loss, gradients and updates, one after the other.

    Graph, loss                --trainable-->      TrainedGraph: weights are inputs, layers train
    TrainedGraph, Optimizer    --step_program-->   Program, whose state goes in and comes out

Goes in: a graph for inference, whose float constants are its weights. Comes out: a program that
`network.compile` takes like any other. Everything that a step changes (parameters, slots of the
optimiser, running statistics, counters) is an input of it, and an output `name/next`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.errors import InputError, ModelError
from tilewright.graph.gradient import gradients
from tilewright.graph.graph import Graph, Node, Value, dtype_of, fresh_name
from tilewright.graph.lower import types, walk
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.emit import Emitter
from tilewright.graph.lowering.operators import OPERATORS
from tilewright.graph.lowering.result import MAX_FILLED, Named, Result
from tilewright.graph.optimizer import Optimizer
from tilewright.graph.program import Program
from tilewright.graph.recompute import updates_early
from tilewright.ops.dtypes import is_float
from tilewright.ops.functions import X, add
from tilewright.ops.stage import const, whole

LOSS, TARGET = 'loss', 'target'
NEXT = '/next'  # what a step makes of a state is an output of its name and this
RATE, STEP, COUNTER = 'optimizer/lr', 'optimizer/step', 'dropout/counter'
LOSSES = ('cross_entropy', 'mse', 'l1')


@dataclass(frozen=True)
class TrainedGraph:
    """A graph that computes a loss.

    parameters  input -> its array at first: what is learned
    buffers     input -> its array at first: what layers keep, running statistics say
    moved       buffer -> the value that it is after a step
    loss        the value of one element that is minimised
    """

    graph: Graph
    parameters: Mapping[str, np.ndarray]
    loss: str
    buffers: Mapping[str, np.ndarray] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> tuple[Value, ...]:
        """The inputs that callers give: examples, and what is expected of them."""
        held = {*self.parameters, *self.buffers}
        return tuple(v for v in self.graph.inputs if v.name not in held)


def trainable(
    graph: Graph, loss: str | None, parameters: Sequence[str] | None = None
) -> TrainedGraph:  # fmt: skip
    """[Graph] -> [TrainedGraph]: of its first output, or of its loss where that is None."""
    names = set(graph.names)
    names.update(node.name for node in graph.nodes)
    kept = _Norms(graph, names)
    nodes = [kept.node(node) for node in graph.nodes]
    value = graph.outputs[0][1]
    inputs = list(graph.inputs)
    if loss is not None:
        kind = types(graph)[value]
        target, more = _loss_nodes(loss, Value(value, kind.shape, kind.dtype), names)
        inputs.append(target)
        nodes += more
        value = more[-1].outputs[0]
    learned = _parameters(graph, parameters, set(kept.buffers))
    inputs += [_typed(n, a) for n, a in (*learned.items(), *kept.buffers.items())]
    held = {*learned, *kept.buffers}
    constants = {n: a for n, a in graph.constants.items() if n not in held}
    made = Graph(graph.name, tuple(inputs), ((LOSS, value),), tuple(nodes), constants)
    return TrainedGraph(made, learned, value, kept.buffers, kept.moved)


def _typed(name: str, array: np.ndarray) -> Value:
    return Value(name, array.shape, dtype_of(array))


class _Norms:
    """Batch normalisations as they are in training, and the statistics that they keep."""

    def __init__(self, graph: Graph, taken: set[str]) -> None:
        self.graph, self.taken = graph, taken
        self.buffers: dict[str, np.ndarray] = {}
        self.moved: dict[str, str] = {}

    def node(self, node: Node) -> Node:
        running = node.inputs[3:5]
        if node.op != 'BatchNormalization' or any(
            name not in self.graph.constants or name in self.buffers for name in running
        ):
            return node  # statistics that are computed, or shared, are not kept
        outputs = [node.outputs[0], *(fresh_name(f'{name}/next', self.taken) for name in running)]
        self.buffers |= {name: self.graph.constants[name] for name in running}
        self.moved |= dict(zip(running, outputs[1:], strict=True))
        attributes = {**node.attributes, 'training_mode': 1}
        return replace(node, outputs=tuple(outputs), attributes=attributes)


def _counted(trained: TrainedGraph) -> TrainedGraph:
    """The graph whose dropouts draw, by a counter among the buffers and by their place."""
    constants, nodes, drawn = trained.graph.constants, [], 0
    for node in trained.graph.nodes:
        if node.op == 'Dropout':
            source, ratio, *_ = (*node.inputs, '')
            if ratio and ratio not in constants:
                raise ModelError(f'{node} has a ratio that is not known before it runs')
            drawn += 1
            node = replace(
                node, op='tilewright::Dropout', inputs=(source, COUNTER),
                attributes={'ratio': float(constants[ratio]) if ratio else 0.5, 'seed': drawn},
            )  # fmt: skip
        nodes.append(node)
    if not drawn:
        return trained
    counter = np.zeros(1, np.uint32)
    inputs = (*trained.graph.inputs, _typed(COUNTER, counter))
    return replace(
        trained, graph=replace(trained.graph, nodes=tuple(nodes), inputs=inputs),
        buffers={**trained.buffers, COUNTER: counter},
    )  # fmt: skip


def _loss_nodes(loss: str, scores: Value, taken: set[str]) -> tuple[Value, list[Node]]:
    """What is expected, and the nodes behind a network that compare it."""
    if loss not in LOSSES:
        raise InputError(f'loss is {loss!r}; choose one of {", ".join(LOSSES)}')
    target = fresh_name(TARGET, taken)
    if loss == 'cross_entropy':
        if len(scores.shape) < 2:
            raise ModelError(f'cross_entropy needs scores [n, classes, ..], got {scores.shape}')
        out = fresh_name(LOSS, taken)
        node = Node('SoftmaxCrossEntropyLoss', out, (scores.name, target), (out,), {})
        return Value(target, (scores.shape[0], *scores.shape[2:]), 'i64'), [node]
    off, each, out = (fresh_name(f'{LOSS}/{word}', taken) for word in ('off', 'each', LOSS))
    first = Node('Sub', off, (scores.name, target), (off,))
    given = (off, off) if loss == 'mse' else (off,)
    second = Node('Mul' if loss == 'mse' else 'Abs', each, given, (each,))
    third = Node('ReduceMean', out, (each,), (out,), {'keepdims': 0})
    return Value(target, scores.shape, scores.dtype), [first, second, third]


def _parameters(
    graph: Graph, wanted: Sequence[str] | None, buffers: set[str]
) -> dict[str, np.ndarray]:  # fmt: skip
    """The float constants that nodes compute with; those by which shapes are decided do not."""
    if wanted is not None:
        unknown = [name for name in wanted if name not in graph.constants]
        if unknown:
            raise InputError(f'{graph.name} has no constant {unknown[0]!r} that could be learned')
        return {name: graph.constants[name] for name in wanted}
    fixed = set(buffers)
    for node in graph.nodes:
        operator = OPERATORS.get(node.op)
        fixed.update(n for i, n in enumerate(node.inputs) if operator and i in operator.known)
    return {
        name: array
        for name, array in graph.constants.items()
        if array.ndim and is_float(dtype_of(array)) and array.size and name not in fixed
    }


def step_program(trained: TrainedGraph, optimizer: Optimizer) -> tuple[Program, dict]:
    """The program of a step, and its state at first, by the names of inputs."""
    trained = _counted(trained)
    state = dict(trained.parameters) | dict(trained.buffers)
    for name, array in trained.parameters.items():
        for slot in optimizer.slots:
            state[f'{name}/{slot}'] = np.zeros_like(array)
    state[STEP] = np.zeros(1, np.float32)
    given = [*trained.data, *(_typed(name, array) for name, array in state.items())]
    graph = replace(trained.graph, inputs=(*given, Value(RATE, (1,))))
    emitter = Emitter(graph, MAX_FILLED)
    found = walk(graph, emitter.emit)
    loss = emitter.name_of(found[trained.loss], LOSS)
    slopes = gradients(emitter, {loss: None}, trained.parameters)

    def held(name: str) -> Result:
        return Named(emitter.values[name])

    step = pointwise('count', add(X, const(1.0)), [held(STEP)], 'f32')
    new: dict[str, Result] = {STEP: step}
    factors = optimizer.factors(held(RATE), step)
    for name in trained.parameters:
        slots = {slot: held(f'{name}/{slot}') for slot in optimizer.slots}
        new[name], kept = optimizer.update(held(name), slopes[name], slots, factors)
        new |= {f'{name}/{slot}': result for slot, result in kept.items()}
    for name in trained.buffers:
        if name == COUNTER:
            new[name] = pointwise('count', add(X, whole(1)), [held(name)], 'u32')
        elif name in trained.moved:
            new[name] = found[trained.moved[name]]
    outputs = [(LOSS, loss)]
    for name, result in new.items():
        node = Node('Update', f'{name}/update', (), ())
        made = emitter.name_of(result, emitter.fresh(f'{name}{NEXT}'), node)
        outputs.append((f'{name}{NEXT}', made))
    carried = {name: f'{name}{NEXT}' for name in new}
    return updates_early(replace(emitter.program(outputs), carried=carried)), state
