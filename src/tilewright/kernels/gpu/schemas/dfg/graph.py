"""The data-flow graph of a thread block, as a value (DeepCuts, Sec. "Code Generator").

    conv 3x3 >> conv 1x1      In, Ker0 -> combine -> Y (shared)  |  Y, Ker -> combine -> Out

Goes in: a group. Comes out: a `BlockGraph` of a few symbolic nodes: a node is an operation at every
point of a stage's region, not one for each scalar, so that a graph has as many nodes as the
description has accesses and expressions. The steps are DeepCuts':

    baseline    the graph of one stage: loads from global memory, what is computed, a store to it
    joined_at   two graphs at a tensor: at 'register' a value is handed on in the place of loads; at
                'shared' store and loads stay, and a barrier lies between them
    extracted   what one store needs, found by walking back from it: what a thread does between two
                barriers

`block_graph` does all of it for a group. The tensor between two parts (ops/parts.py) is shared,
those inside a part are registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.kernels.cpu.pointwise import axes_of
from tilewright.ops.compose import placed
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Affine, Expr, Stage

GLOBAL, SHARED = 'global', 'shared'


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a tensor in global or shared memory; outside the tensor it is `pad`."""

    name: str
    tensor: str
    level: str
    index: tuple[Affine, ...]
    pad: float

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Combine:
    """A small loop over reductions: `combiner` over what `expr` makes of the inputs."""

    name: str
    combiner: str
    expr: Expr
    inputs: tuple[str, ...]
    over: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """An expression of the inputs at one point."""

    name: str
    expr: Expr
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """The value of its input into a tensor in global or shared memory."""

    name: str
    tensor: str
    level: str
    index: tuple[Affine, ...]
    inputs: tuple[str, ...]


Node = Load | Combine | Apply | Store


@dataclass(frozen=True)
class BlockGraph:
    """Nodes in an order in which they can run; indices are over iterators of the stage that the
    node's segment begins with.
    """

    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(n for n in self.nodes if isinstance(n, Store))

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(from, to) of every value that is handed on in registers."""
        return tuple((name, n.name) for n in self.nodes for name in n.inputs)

    @property
    def barriers(self) -> tuple[tuple[str, str], ...]:
        """(store, load) of every value that goes through shared memory: all threads wait there."""
        return tuple(
            (s.name, n.name)
            for s in self.stores
            for n in self.nodes
            if isinstance(n, Load) and SHARED == n.level == s.level and n.tensor == s.tensor
        )


def block_graph(group: Group) -> BlockGraph:
    """[Group] -> [BlockGraph] of all that a block computes."""
    made = BlockGraph(())
    for part in parts(group):
        first, *behind = part.stages
        graph = baseline(first, _same(first))
        for stage in behind:
            after = baseline(stage, axes_of(stage, first.write.index))
            for tensor in sorted({a.tensor for a in stage.reads} & _stored(graph)):
                after = joined_at(graph, after, tensor, 'register')
            graph = BlockGraph((*graph.nodes, *after.nodes))
        graph = extracted(graph, graph.stores[-1])
        loaded = {n.tensor for n in graph.nodes if isinstance(n, Load)}
        shared = sorted(_stored(made) & loaded)
        made = BlockGraph((*made.nodes, *graph.nodes))
        for tensor in shared:
            made = joined_at(made, made, tensor, SHARED)
    return made


def baseline(stage: Stage, place: Mapping[str, Affine]) -> BlockGraph:
    """The graph of one stage; `place`: its iterators by those of the segment's first stage."""

    def at(index: Iterable[Affine]) -> tuple[Affine, ...]:
        return tuple(placed(e, place) for e in index)

    loads = tuple(
        Load(f'{stage.name}.{a.tensor}.{number}', a.tensor, GLOBAL, at(a.index), stage.pad_value)
        for number, a in enumerate(stage.reads)
    )
    names = tuple(load.name for load in loads)
    over = tuple((d, stage.sizes[d]) for d in stage.reduction)
    value = (
        Combine(stage.name, stage.combiner, stage.expr, names, over)
        if stage.combiner
        else Apply(stage.name, stage.expr, names)
    )
    tensor = stage.write.tensor
    store = Store(f'{stage.name}>{tensor}', tensor, GLOBAL, at(stage.write.index), (stage.name,))
    return BlockGraph((*loads, value, store))


def joined_at(first: BlockGraph, second: BlockGraph, tensor: str, level: str) -> BlockGraph:
    """The second graph where it loads the `tensor` that the first one stores.

    At 'register' the value is handed on where it is (that the store is gone shows when a thread's
    part is extracted); at 'shared' both are accesses to shared memory.
    """
    if level == 'register':
        value = next(s for s in first.stores if s.tensor == tensor).inputs[0]
        mine = {n.name for n in second.nodes if isinstance(n, Load) and n.tensor == tensor}
        return BlockGraph(
            tuple(_fed(n, dict.fromkeys(mine, value)) for n in second.nodes if n.name not in mine)
        )
    return BlockGraph(
        tuple(
            replace(n, level=level) if isinstance(n, Load | Store) and n.tensor == tensor else n
            for n in second.nodes
        )
    )


def extracted(graph: BlockGraph, store: Store) -> BlockGraph:
    """What a store needs, by walking back from it; loads from shared memory are where it ends."""
    marked, left = {store.name}, list(store.inputs)
    while left:
        name = left.pop()
        if name not in marked:
            marked.add(name)
            left += graph.node(name).inputs
    return BlockGraph(tuple(n for n in graph.nodes if n.name in marked))


def segments(graph: BlockGraph) -> tuple[BlockGraph, ...]:
    """What a thread does between barriers, for each store one."""
    return tuple(extracted(graph, store) for store in graph.stores)


def _same(stage: Stage) -> dict[str, Affine]:
    return {d: Affine(((d, 1),)) for d in stage.sizes}


def _stored(graph: BlockGraph) -> set[str]:
    return {s.tensor for s in graph.stores}


def _fed(node: Node, names: Mapping[str, str]) -> Node:
    if isinstance(node, Load):
        return node
    return replace(node, inputs=tuple(names.get(n, n) for n in node.inputs))
