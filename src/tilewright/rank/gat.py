"""GTuner's model: graph layers and self-attention over features of a group and its schedules.

Goes in: the graph of a group (rank/graph_features.py) and statistics of schedules
(rank/statistics.py). Comes out: the logarithm of their seconds. As GTuner (DAC'22) has it in Secs.
3.2-3.3 and 4.1:

    graph       two layers over the nodes, mean pooling (Eqs. 2-3)      nodes x d -> 136
    joined      with the statistics, one linear layer                   136 + s -> 512
    attention   the vector as four of 128; each of four heads has 128 x 128 projections of its own,
                W^O joins them (Eqs. 4-7)                               4 x 128 -> 4 x 128
    MLP         200-100-20-1

Layers of the graph, by variant: `wl` (Morris et al.: x W1 + sum of neighbours W2), `spectral` (Kipf
and Welling), `masked` (Velickovic et al., one head), `sage` (Hamilton et al., mean). Each is
followed by a ReLU, as Morris et al. have it; Eq. 2 leaves it out, and two layers would be one. What
the network gives is added to the logarithm of the analytical time (model/gpu/time.py), so that it
learns what that leaves out.

`forward` is written once for numpy and for torch: asking needs numpy alone, training is in
tilewright_lab/train/gat_training.py. Files are safetensors (rank/gat_files.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.rank.counts import Array
from tilewright.rank.graph_features import Graphs, graph_of, side_by_side
from tilewright.rank.statistics import statistics_for
from tilewright.schedule.gpu import GpuSchedule

GRAPH_WIDTH = 136
JOINED = 512
HEADS = 4
HEAD = JOINED // HEADS
MLP = (200, 100, 20, 1)
LEAK = 0.2  # slope below 0 of a masked layer's scores
_FAR = 1e9
_AT_ONCE = 1024  # rows of one pass: bounds the memory of an answer
Tensor = Any  # an array of numpy or of torch
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Variant:
    """What a model consists of; `graph` names its layers, '' for none."""

    name: str
    graph: str
    attention: bool
    about: str


VARIANTS: Mapping[str, Variant] = {
    v.name: v
    for v in (
        Variant('gtuner', 'wl', True, 'GNN + MHSA, WL-GCN layers'),
        Variant('mhsa', '', True, 'without the graph'),
        Variant('gnn-mlp', 'wl', False, 'without attention'),
        Variant('specgcn', 'spectral', True, 'spectral graph convolution'),
        Variant('maskgat', 'masked', True, 'masked attention among nodes'),
        Variant('graphsage', 'sage', True, 'means of neighbours'),
    )
}


@dataclass(frozen=True)
class Ops:
    """What numpy and torch call differently."""

    relu: Callable[[Tensor], Tensor]
    softmax: Callable[[Tensor], Tensor]  # along the last axis
    joined: Callable[[Sequence[Tensor]], Tensor]  # along the last axis
    eye: Callable[[int], Tensor]


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


NUMPY = Ops(
    lambda x: np.maximum(x, 0), _softmax, lambda parts: np.concatenate(parts, -1),
    lambda n: np.eye(n, dtype=np.float32),
)  # fmt: skip


def _wl(ops: Ops, w: Weights, at: str, x: Tensor, a: Tensor) -> Tensor:
    """Eq. 2: x_i W1 + (sum of its neighbours) W2."""
    return x @ w[f'{at}.own'] + (a @ x) @ w[f'{at}.others'] + w[f'{at}.bias']


def _spectral(ops: Ops, w: Weights, at: str, x: Tensor, a: Tensor) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 X W."""
    looped = a + ops.eye(a.shape[-1])
    scale = looped.sum(-1) ** -0.5
    spread = looped * scale[..., :, None] * scale[..., None, :]
    return spread @ (x @ w[f'{at}.own']) + w[f'{at}.bias']


def _masked(ops: Ops, w: Weights, at: str, x: Tensor, a: Tensor) -> Tensor:
    """Softmax over neighbours and the node itself of LeakyReLU(s . h_i + t . h_j), times h_j."""
    h = x @ w[f'{at}.own']
    e = h @ w[f'{at}.source'] + (h @ w[f'{at}.target']).swapaxes(-1, -2)
    e = LEAK * e + (1 - LEAK) * ops.relu(e)
    weights = ops.softmax(e - _FAR * (1 - a - ops.eye(a.shape[-1])))
    return weights @ h + w[f'{at}.bias']


def _sage(ops: Ops, w: Weights, at: str, x: Tensor, a: Tensor) -> Tensor:
    """x_i W1 + (mean of its neighbours) W2."""
    count = a.sum(-1)[..., None]
    mean = (a @ x) / (count + (count == 0))
    return x @ w[f'{at}.own'] + mean @ w[f'{at}.others'] + w[f'{at}.bias']


# layer -> (function, its weights as matrices: inputs of the layer, or its width, by outputs)
_LAYERS: Mapping[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    'wl': (_wl, ('own', 'others')),
    'spectral': (_spectral, ('own',)),
    'masked': (_masked, ('own', 'source', 'target')),
    'sage': (_sage, ('own', 'others')),
}


def shapes(variant: Variant, statistics: int, node_features: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a variant's weights."""
    found: dict[str, tuple[int, ...]] = {}
    if variant.graph:
        for layer, width in enumerate((node_features, GRAPH_WIDTH), 1):
            for name in _LAYERS[variant.graph][1]:
                found[f'graph{layer}.{name}'] = (
                    (GRAPH_WIDTH, 1) if name in ('source', 'target') else (width, GRAPH_WIDTH)
                )
            found[f'graph{layer}.bias'] = (GRAPH_WIDTH,)
    inputs = statistics + (GRAPH_WIDTH if variant.graph else 0)
    found |= {'joined.weight': (inputs, JOINED), 'joined.bias': (JOINED,)}
    if variant.attention:
        found |= {f'attention.{name}': (HEADS, HEAD, HEAD) for name in ('q', 'k', 'v')}
        found['attention.out'] = (JOINED, HEAD)
    width = JOINED
    for layer, outputs in enumerate(MLP, 1):
        found |= {f'mlp{layer}.weight': (width, outputs), f'mlp{layer}.bias': (outputs,)}
        width = outputs
    return found


def embed(
    ops: Ops, variant: Variant, w: Weights, nodes: Tensor, adjacency: Tensor, present: Tensor
) -> Tensor:
    """One vector for each graph: two layers, and the mean over the nodes that are there (Eq. 3)."""
    layer = _LAYERS[variant.graph][0]
    for at in ('graph1', 'graph2'):
        nodes = ops.relu(layer(ops, w, at, nodes, adjacency)) * present[..., None]
    return nodes.sum(1) / present.sum(1)[:, None]


def attend(ops: Ops, w: Weights, x: Tensor) -> Tensor:
    """Four-head self-attention over a vector as four of 128 (Eqs. 4-7)."""
    rows = len(x)
    tokens = x.reshape(rows * HEADS, HEAD)

    def project(name: str) -> Tensor:
        """All heads in one product; (rows, tokens, heads, 128)."""
        matrix = w[f'attention.{name}'].swapaxes(0, 1).reshape(HEAD, HEADS * HEAD)
        return (tokens @ matrix).reshape(rows, HEADS, HEADS, HEAD)

    q, k, v = (project(name) for name in 'qkv')
    # Products of 4 x 128 matrices are written out: as many calls of a library would take longer.
    scores = (q[:, :, None] * k[:, None]).sum(-1) / math.sqrt(HEAD)  # rows, query, key, head
    weights = ops.softmax(scores.swapaxes(2, 3)).swapaxes(2, 3)
    heads = (weights[..., None] * v[:, None]).sum(2)  # rows, query, head, 128
    side = heads.reshape(rows * HEADS, HEADS * HEAD)
    return (side @ w['attention.out']).reshape(rows, JOINED)


def forward(
    ops: Ops, variant: Variant, w: Weights, x: Tensor, graphs: Sequence[Tensor], which: Tensor
) -> Tensor:
    """What the network says of each row: `which` is the number of its graph, `graphs` are nodes,
    adjacency and present. All inputs are standardised already.
    """
    if variant.graph:
        x = ops.joined([embed(ops, variant, w, *graphs)[which], x])
    x = x @ w['joined.weight'] + w['joined.bias']
    if variant.attention:
        x = attend(ops, w, x)
    for layer in range(1, len(MLP) + 1):
        x = x @ w[f'mlp{layer}.weight'] + w[f'mlp{layer}.bias']
        if layer < len(MLP):
            x = ops.relu(x)
    return x[:, 0]


@dataclass(frozen=True)
class Scaling:
    """Means and deviations of the training rows: of statistics, of node features, of the target."""

    mean: Array = field(repr=False)
    scale: Array = field(repr=False)
    node_mean: Array = field(repr=False)
    node_scale: Array = field(repr=False)
    target: Array = field(repr=False)  # mean, scale

    def rows(self, x: Array) -> Array:
        """Statistics, standardised; what no training row had is cut off at eight deviations."""
        return np.clip((x - self.mean) / self.scale, -8, 8).astype(np.float32)

    def graphs(self, graphs: Graphs) -> tuple[Array, Array, Array]:
        nodes = np.clip((graphs.nodes - self.node_mean) / self.node_scale, -8, 8)
        nodes = (nodes * graphs.present[..., None]).astype(np.float32)
        return nodes, graphs.adjacency, graphs.present


@dataclass(frozen=True)
class GatModel:
    """Weights and what they were learned from. `header` holds plain values (JSON) only:

    variant, statistics, node_features, versions, machine, rows, groups, data_sha256, seed,
    training (epochs, rate, batch), validation
    """

    variant: Variant
    weights: Mapping[str, Array] = field(repr=False)
    scaling: Scaling = field(repr=False)
    header: Mapping[str, Any]

    def log_seconds(self, x: Array, base: Array, graphs: Graphs, which: Array) -> Array:
        """Predicted times of rows whose statistics, analytical times and graphs are there."""
        if len(x) != len(base) or len(x) != len(which):
            raise InputError(
                f'{len(x)} rows of statistics, {len(base)} times and {len(which)} graphs; give '
                f'one of each for every row'
            )
        inputs, parts = self.scaling.graphs(graphs), []
        for begin in range(0, len(x), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            rows = self.scaling.rows(x[some])
            parts.append(forward(NUMPY, self.variant, self.weights, rows, inputs, which[some]))
        mean, scale = self.scaling.target
        return base + mean + scale * np.concatenate(parts)

    def scores(self, group: Group, machine: GpuMachine, schedules: Sequence[GpuSchedule]) -> Array:
        """Predicted log-seconds of the schedules of one group."""
        x, base = statistics_for(group, machine, schedules)
        which = np.zeros(len(schedules), int)
        return self.log_seconds(x, base, side_by_side([graph_of(group)]), which)
