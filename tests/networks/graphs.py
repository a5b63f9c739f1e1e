"""Small networks for tests, and a quick way to run them: plain schedules, nothing searched."""

from __future__ import annotations

import numpy as np

from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import lower
from tilewright.graph.memory import plan
from tilewright.graph.program import Program
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.isa import host_isas
from tilewright.runtime.cpu.network import Network
from tilewright.schedule.choice import Choice
from tilewright.targets.cpu.kernels import build_all, distinct


def node(op: str, inputs: str, outputs: str, **attributes) -> Node:
    """'a b' -> names; the node is called after its first output."""
    made = tuple(outputs.split())
    return Node(op, f'{op}_{made[0]}', tuple(inputs.split()), made, attributes)


def graph(inputs: dict, outputs: str, nodes: list[Node], **constants) -> Graph:
    """inputs: name -> shape of floats; outputs: names with blanks between them."""
    return Graph(
        'test',
        tuple(Value(name, tuple(shape)) for name, shape in inputs.items()),
        tuple((name, name) for name in outputs.split()),
        tuple(nodes),
        {name: np.asarray(array) for name, array in constants.items()},
    )


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def inputs_of(program: Program, seed: int = 1) -> dict[str, np.ndarray]:
    return {name: floats(*program.values[name].shape, seed=seed) for name in program.inputs}


def quick(program: Program, threads: int = 2) -> Network:
    """The network with plain schedules, whatever its groups are."""
    isa = host_isas()[0]
    choices = {
        digest: Choice(general_schedule(group, isa, threads, 1), 1e-6, 1e-9)
        for digest, group in distinct(program).items()
    }
    return Network(program, plan(program), build_all(program, choices), threads)


def convolutions() -> Graph:
    """Three convolutions, the last with a residual: x -> a -> b, b + x -> y."""
    nodes = [
        node('Conv', 'x w0 b0', 'c0', pads=(1, 1, 1, 1)),
        node('Relu', 'c0', 'a'),
        node('Conv', 'a w1', 'c1', pads=(1, 1, 1, 1)),
        node('BatchNormalization', 'c1 s m u v', 'b', epsilon=1e-3),
        node('Add', 'b x', 'z'),
        node('Relu', 'z', 'y'),
    ]
    return graph(
        {'x': (1, 4, 6, 6)}, 'y', nodes,
        w0=floats(4, 4, 3, 3), b0=floats(4), w1=floats(4, 4, 3, 3, seed=2),
        s=floats(4, seed=3), m=floats(4, seed=4), u=floats(4, seed=5),
        v=np.abs(floats(4, seed=6)) + 0.5,
    )  # fmt: skip


def branches(batch: int = 1) -> Graph:
    """An Inception block: parallel convolutions on one input, joined by their channels."""
    nodes = [
        node('Conv', 'x w0', 'c0'),
        node('Relu', 'c0', 'r0'),
        node('Conv', 'x w1', 'c1'),
        node('Relu', 'c1', 'r1'),
        node('Conv', 'r1 w2', 'c2', pads=(1, 1, 1, 1)),
        node('Relu', 'c2', 'r2'),
        node('MaxPool', 'x', 'p', kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        node('Concat', 'r0 r2 p', 'y', axis=1),
        node('Conv', 'y w3', 'out'),
    ]
    return graph(
        {'x': (batch, 3, 5, 5)}, 'out', nodes,
        w0=floats(4, 3, 1, 1), w1=floats(2, 3, 1, 1), w2=floats(6, 2, 3, 3), w3=floats(2, 13, 1, 1),
    )  # fmt: skip


def dense_block(layers: int = 4) -> Graph:
    """DenseNet's block: every layer reads all features so far, joined anew each time."""
    nodes, constants, features, width = [node('Relu', 'x', 'a')], {}, ['a'], 2
    for i in range(layers):
        joined = 'a'
        if i:
            joined = f'j{i}'
            nodes.append(node('Concat', ' '.join(features), joined, axis=1))
        constants[f'w{i}'] = floats(3, width, 3, 3, seed=i)
        nodes.append(node('Conv', f'{joined} w{i}', f'f{i}', pads=(1, 1, 1, 1)))
        features.append(f'f{i}')
        width += 3
    nodes.append(node('Concat', ' '.join(features), 'all', axis=1))
    nodes.append(node('Relu', 'all', 'y'))
    return graph({'x': (1, 2, 4, 4)}, 'y', nodes, **constants)


def lowered(made: Graph) -> Program:
    return lower(made)


def assert_same(before: Graph, after: Graph) -> None:
    """Both compute the same from the same inputs, but for rounding."""
    one, other = lowered(before), lowered(after)
    inputs = inputs_of(one)
    want, got = evaluate(one, inputs), evaluate(other, inputs)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)
