"""The structure of a group as a graph of numbers (GTuner Sec. 3.2: nodes, edges, X).

Goes in: a `Group`. Comes out: a `Graph`: a node for each stage and each tensor, an edge between a
stage and every tensor that it reads or writes, and a row of `NODE_FEATURES` for each node. A stage
has zeros in the columns of tensors and the other way round. Neighbours are both ends of an edge:
what a stage knows of its producers and of its consumers both matter. Nothing here depends on a
schedule or a machine; the same for CPUs and GPUs.

`Graphs` are several of them side by side, filled up with empty nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.ops.dtypes import DTYPES, is_float
from tilewright.ops.group import ROLES, STORAGE, Group, Tensor
from tilewright.ops.stage import Stage

Array = np.ndarray
SIZES = ('n', 'k', 'h', 'w', 'c', 'r', 's', 'g')  # iterators, docs/naming.md
LAST = 4  # dimensions of a tensor that have columns, the last ones
# Functions by what they cost a kernel; what is not named here counts as 'other'.
FUNCTION_KINDS: Mapping[str, tuple[str, ...]] = {
    'add': ('add', 'sub', 'neg'),
    'mul': ('mul',),
    'div': ('div', 'mod', 'fmod'),
    'max': ('max', 'min', 'abs', 'sign'),
    'exp': ('exp', 'tanh', 'sigmoid', 'sqrt', 'pow', 'log', 'log1p', 'expm1', 'erf'),
    'choose': ('eq', 'lt', 'le', 'gt', 'ge', 'and', 'or', 'xor', 'not', 'where'),
}
_KIND_OF = {name: kind for kind, names in FUNCTION_KINDS.items() for name in names}


@dataclass(frozen=True)
class NodeFeature:
    """A column: its name, its formula, and the function of a stage or a tensor."""

    name: str
    formula: str
    stage: Callable[[Group, Stage], float] | None = None
    tensor: Callable[[Group, Tensor], float] | None = None


def _log(value: float) -> float:
    return math.log2(1 + value)


def functions_of(stage: Stage) -> dict[str, int]:
    """How often functions of each kind occur in the expression of one point."""
    found = dict.fromkeys((*FUNCTION_KINDS, 'other'), 0)
    for name in stage.expr.functions():
        found[_KIND_OF.get(name, 'other')] += 1
    return found


def kind_of(stage: Stage) -> str:
    """What a stage is to the schemas."""
    if stage.is_product_sum:
        return 'products'
    if not stage.is_affine:
        return 'gather'
    if stage.combiner is None:
        return 'pointwise'
    return 'sum' if stage.combiner == 'sum' else 'extreme'


STAGE_KINDS = {
    'products': 'a sum of products', 'sum': 'another sum', 'extreme': 'max, min, prod',
    'pointwise': 'no reduction', 'gather': 'reads through a table or a lookup',
}  # fmt: skip


def _steps(stage: Stage) -> list[int]:
    """Steps of parallel iterators in indices that a window slides along."""
    return [
        e.coefficient(name)
        for read in stage.reads
        for e in read.index
        if len(e.names) > 1
        for name in e.names
        if name in stage.parallel
    ]


def _padded(stage: Stage) -> float:
    return float(any(e.const < 0 for read in stage.reads for e in read.index))


def _is_kind(kind: str) -> NodeFeature:
    text = f'1 for a stage that is {STAGE_KINDS[kind]}'
    return NodeFeature(f'is_{kind}', text, stage=lambda _, s: float(kind_of(s) == kind))


def _is_role(role: str) -> NodeFeature:
    text = f'1 for a tensor with the role {role}'
    return NodeFeature(f'is_{role}', text, tensor=lambda _, t: float(t.role == role))


def _size(name: str) -> NodeFeature:
    return NodeFeature(
        f'size_{name}', f'log2(1 + size of the iterator {name})',
        stage=lambda _, s: _log(s.sizes.get(name, 0)),
    )  # fmt: skip


def _functions(kind: str) -> NodeFeature:
    names = ', '.join(FUNCTION_KINDS.get(kind, ('every other',)))
    return NodeFeature(
        f'f_{kind}', f'functions of one point: {names}',
        stage=lambda _, s: float(functions_of(s)[kind]),
    )  # fmt: skip


def _storage(level: str) -> NodeFeature:
    return NodeFeature(
        f'at_{level}', f'1 for an inner tensor that is kept at {level}',
        tensor=lambda g, t: float(dict(g.storage).get(t.name) == level),
    )  # fmt: skip


def _extent(place: int) -> NodeFeature:
    return NodeFeature(
        f'extent_{place}', f'log2(1 + extent) of dimension {place} from the end',
        tensor=lambda _, t: _log(t.shape[-place]) if place <= len(t.shape) else 0.0,
    )  # fmt: skip


NODE_FEATURES: tuple[NodeFeature, ...] = (
    *(_is_kind(kind) for kind in STAGE_KINDS),
    *(_is_role(role) for role in ROLES),
    NodeFeature('is_main', '1 for the main stage', stage=lambda g, s: float(s is g.main)),
    *(_size(name) for name in SIZES),
    NodeFeature('points', 'log2(1 + points of the iteration domain)',
                stage=lambda _, s: _log(s.points)),
    NodeFeature('outputs', 'log2(1 + product of the parallel sizes)',
                stage=lambda _, s: _log(math.prod(s.sizes[d] for d in s.parallel))),
    NodeFeature('reduced', 'log2(product of the reduction sizes)',
                stage=lambda _, s: math.log2(math.prod(s.sizes[d] for d in s.reduction))),
    NodeFeature('parallel_dims', 'parallel dimensions above 1',
                stage=lambda _, s: float(sum(s.sizes[d] > 1 for d in s.parallel))),
    NodeFeature('reduction_dims', 'reduction dimensions above 1',
                stage=lambda _, s: float(sum(s.sizes[d] > 1 for d in s.reduction))),
    NodeFeature('reads', 'accesses that are read', stage=lambda _, s: float(len(s.reads))),
    NodeFeature('constants', 'of these, constant operands', stage=lambda g, s: float(
        sum(g.tensor(a.tensor).role == 'constant' for a in s.reads))),
    NodeFeature('step', 'the largest step of a sliding window; 0 without one',
                stage=lambda _, s: float(max(_steps(s), default=0))),
    NodeFeature('padded', '1 if an index may lie before the tensor',
                stage=lambda _, s: _padded(s)),
    NodeFeature('flops', 'log2(1 + operations of the stage)', stage=lambda _, s: _log(s.flops)),
    *(_functions(kind) for kind in (*FUNCTION_KINDS, 'other')),
    NodeFeature('bytes', 'log2(1 + bytes of the tensor)', tensor=lambda _, t: _log(t.bytes)),
    NodeFeature('rank', 'dimensions of the tensor', tensor=lambda _, t: float(len(t.shape))),
    *(_extent(place) for place in range(1, LAST + 1)),
    NodeFeature('float', '1 for floating-point elements',
                tensor=lambda _, t: float(is_float(t.dtype))),
    NodeFeature('width', 'bytes of an element', tensor=lambda _, t: float(DTYPES[t.dtype])),
    *(_storage(level) for level in STORAGE),
    NodeFeature('readers', 'accesses of all stages that read the tensor',
                tensor=lambda g, t: float(sum(a.tensor == t.name for s in g.stages
                                              for a in s.reads))),
)  # fmt: skip
NODE_NAMES = tuple(f.name for f in NODE_FEATURES)


@dataclass(frozen=True)
class Graph:
    """`nodes`: a row of features each, stages first; `adjacency`: 1 where two are neighbours."""

    nodes: Array = field(repr=False)
    adjacency: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.nodes)


def graph_of(group: Group) -> Graph:
    """[Group] -> [Graph]"""
    stages, tensors = group.stages, group.tensors
    rows = [
        *([f.stage(group, s) if f.stage else 0.0 for f in NODE_FEATURES] for s in stages),
        *([f.tensor(group, t) if f.tensor else 0.0 for f in NODE_FEATURES] for t in tensors),
    ]
    place = {t.name: len(stages) + i for i, t in enumerate(tensors)}
    adjacency = np.zeros((len(rows), len(rows)), np.float32)
    for number, stage in enumerate(stages):
        for access in stage.accesses:
            other = place[access.tensor]
            adjacency[number, other] = adjacency[other, number] = 1
    return Graph(np.array(rows, np.float32), adjacency)


@dataclass(frozen=True)
class Graphs:
    """Graphs of one shape: `nodes` (graphs, nodes, features), `adjacency` (graphs, nodes, nodes),
    `present` (graphs, nodes): 1 for nodes that are there.
    """

    nodes: Array = field(repr=False)
    adjacency: Array = field(repr=False)
    present: Array = field(repr=False)

    def __len__(self) -> int:
        return len(self.nodes)


def side_by_side(graphs: Sequence[Graph]) -> Graphs:
    """[Graph] -> [Graphs]"""
    most = max(len(graph) for graph in graphs)
    nodes = np.zeros((len(graphs), most, len(NODE_FEATURES)), np.float32)
    adjacency = np.zeros((len(graphs), most, most), np.float32)
    present = np.zeros((len(graphs), most), np.float32)
    for i, graph in enumerate(graphs):
        count = len(graph)
        nodes[i, :count], adjacency[i, :count, :count] = graph.nodes, graph.adjacency
        present[i, :count] = 1
    return Graphs(nodes, adjacency, present)
