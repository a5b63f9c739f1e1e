"""Forests and boosted trees: grown in C on binned features, asked in numpy alone.

Goes in: a matrix of features, one row a configuration, and what is to be learned. Comes out: an
`Ensemble`, arrays and nothing else, whose answer for a row is `offset` plus the sum of its trees'
answers. Three ways of growing (`Settings.kind`):

    forest    trees on bags of rows, each node choosing among some features (CNNOpt Sec. 4.1)
    boosted   each tree fits what the ones before left over, by least squares
    ranked    each tree follows LambdaRank's gradients: rows of one problem compete, and pairs count
              by what exchanging them would change at the top of the list

The same seed and data give the same ensemble. Asking needs no compiler.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.compiler import build

BINS = 256
KINDS = ('forest', 'boosted', 'ranked')
_ASKED_AT_ONCE = 1 << 20  # rows x trees of one pass: bounds the memory of an answer
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Settings:
    """How trees are grown.

    leaves, least     leaves of a tree at most, rows of a leaf at least
    rate              how much of a boosted tree is taken
    bag               share of the rows that each tree sees
    features          share of the features: of a tree if it is boosted, of a node in a forest
    weight_decay      lambda, added to the weights of a leaf
    depth             places at the top of a list that ranking looks at
    """

    kind: str = 'boosted'
    trees: int = 200
    leaves: int = 31
    least: int = 20
    rate: float = 0.1
    bag: float = 0.8
    features: float = 0.5
    weight_decay: float = 0.0
    depth: int = 20

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f'trees of kind {self.kind!r}; choose one of {", ".join(KINDS)}')
        if min(self.trees, self.leaves - 1, self.least, self.depth) < 1 or not (
            0 < self.rate <= 1 and 0 < self.bag <= 1 and 0 < self.features <= 1
        ):
            raise InputError(
                f'{self}: trees, least and depth are at least 1, leaves 2, and rate, bag and '
                f'features lie above 0 and up to 1'
            )


@dataclass(frozen=True)
class Ensemble:
    """Trees side by side. Node i is a leaf where feature[i] < 0; else rows whose feature is at most
    threshold[i] go to node left[i], the others to the one behind it.
    """

    roots: Array = field(repr=False)
    feature: Array = field(repr=False)
    threshold: Array = field(repr=False)
    left: Array = field(repr=False)
    value: Array = field(repr=False)
    offset: float = 0.0

    def __call__(self, x: Array) -> Array:
        """[rows x features] -> [rows]"""
        x = np.asarray(x, np.float32)
        answer = np.full(len(x), self.offset)
        step = max(_ASKED_AT_ONCE // max(len(self.roots), 1), 1)
        for begin in range(0, len(x), step):
            answer[begin : begin + step] += self._sum(x[begin : begin + step])
        return answer

    def _sum(self, x: Array) -> Array:
        node = np.repeat(self.roots[None, :], len(x), 0)
        row = np.broadcast_to(np.arange(len(x))[:, None], node.shape).ravel()
        node = node.ravel()
        open_ = np.flatnonzero(self.feature[node] >= 0)
        while len(open_):
            at = node[open_]
            right = x[row[open_], self.feature[at]] > self.threshold[at]
            node[open_] = self.left[at] + right
            open_ = open_[self.feature[node[open_]] >= 0]
        return self.value[node].reshape(len(x), -1).sum(1, dtype=np.float64)

    def check(self, features: int) -> None:
        """Raise InputError unless every answer ends in a leaf and reads features that exist."""
        n = len(self.feature)
        inner = np.flatnonzero(self.feature >= 0)
        same = len(self.threshold) == len(self.left) == len(self.value) == n
        ok = same and n and len(self.roots) and 0 <= self.roots.min() <= self.roots.max() < n
        # Children lie behind their parent, so that no walk can go round.
        ok = ok and self.feature.max() < features and np.all(self.left[inner] > inner)
        ok = ok and np.all(self.left[inner] + 1 < n)
        ok = ok and np.isfinite(self.value).all() and np.isfinite(self.threshold).all()
        if not ok:
            raise InputError('the trees of a learned model are damaged; train it again')


@cache
def _library() -> ctypes.CDLL:
    source = (Path(__file__).parent / 'trees.c').read_text()
    library = ctypes.CDLL(str(build(source, name='trees')))
    for function in (library.tw_grow, library.tw_ideal, library.tw_rank):
        function.restype = ctypes.c_int64
    return library


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


_n = ctypes.c_int64


class _Binned:
    """Features as numbers of bins: cuts lie between values that occur, quantiles where many do."""

    def __init__(self, x: Array) -> None:
        self.cuts = [_cuts(column) for column in x.T]
        bins = [np.searchsorted(cut, column) for cut, column in zip(self.cuts, x.T, strict=True)]
        self.bins = np.ascontiguousarray(np.stack(bins, 1), np.uint8)
        self.counts = np.array([len(cut) + 1 for cut in self.cuts], np.int32)

    @property
    def shape(self) -> tuple[int, int]:
        rows, features = self.bins.shape
        return rows, features


def _cuts(column: Array) -> Array:
    values = np.unique(column)
    if len(values) > BINS:
        places = np.linspace(0, len(column) - 1, BINS + 1)[1:-1].astype(int)
        values = np.unique(np.append(np.sort(column)[places], values[-1]))
    middle = (values[:-1].astype(np.float64) + values[1:]) / 2
    cuts = middle.astype(np.float32)
    return np.where(cuts < values[1:], cuts, values[:-1])  # a cut belongs to the left


class _Grown:
    """Trees as they come, on bins; `ensemble` puts thresholds in the place of bins."""

    def __init__(self, binned: _Binned, settings: Settings, seed: int) -> None:
        self.binned, self.settings = binned, settings
        self.random = np.random.default_rng(seed)
        self.trees: list[tuple[Array, Array, Array, Array]] = []

    def add(self, g: Array, h: Array, rate: float, scores: Array | None) -> None:
        """One tree that fits gradients `g` with weights `h`; `scores` take up its answers."""
        rows, features = self.binned.shape
        s = self.settings
        bag = self.random.permutation(rows)[: max(round(s.bag * rows), 1)].astype(np.int32)
        wanted = max(round(s.features * features), 1)
        allowed = np.arange(features, dtype=np.int32)
        if s.kind != 'forest':
            allowed = np.sort(self.random.permutation(allowed)[:wanted])
        most = 2 * s.leaves
        feature, bins, left = (np.empty(most, np.int32) for _ in range(3))
        value = np.empty(most)
        nodes = _library().tw_grow(
            _n(features), _at(self.binned.bins), _at(g), _at(h), _at(bag), _n(len(bag)),
            _at(self.binned.counts), _at(allowed), _n(len(allowed)), _n(wanted), _n(s.leaves),
            _n(s.least),
            ctypes.c_double(s.weight_decay), ctypes.c_uint64(int(self.random.integers(1 << 62))),
            _at(feature), _at(bins), _at(left), _at(value),
        )  # fmt: skip
        if nodes < 0:
            raise MemoryError
        tree = (feature[:nodes], bins[:nodes], left[:nodes], rate * value[:nodes])
        self.trees.append(tree)
        if scores is not None:
            _library().tw_add(
                _n(rows), _n(features), _at(self.binned.bins), *(_at(part) for part in tree),
                ctypes.c_double(1.0), _at(scores),
            )  # fmt: skip

    def ensemble(self, offset: float) -> Ensemble:
        sizes = [len(tree[0]) for tree in self.trees]
        starts = np.cumsum([0, *sizes[:-1]])
        feature, bins, value = (np.concatenate([tree[i] for tree in self.trees]) for i in (0, 1, 3))
        left = np.concatenate(
            [tree[2] + start for tree, start in zip(self.trees, starts, strict=True)]
        )
        threshold = np.zeros(len(feature), np.float32)
        for number, cut in enumerate(self.binned.cuts):
            mine = feature == number
            threshold[mine] = cut[bins[mine]]
        return Ensemble(
            starts.astype(np.int32), feature.astype(np.int16), threshold, left.astype(np.int32),
            value.astype(np.float32), offset,
        )  # fmt: skip


def grow(
    x: Array, y: Array, settings: Settings, *, weights: Array | None = None,
    groups: Array | None = None, seed: int = 0,
) -> Ensemble:  # fmt: skip
    """[rows x features, targets] -> [Ensemble]

    `y` is what is to be predicted; with kind 'ranked', how good a row is, 0 to 1, among the rows of
    the same number in `groups`, and the answers put the best first: the least is the best.
    """
    x = np.asarray(x, np.float32)
    if len(x) != len(y) or not len(x) or not np.isfinite(x).all() or not np.isfinite(y).all():
        raise InputError(
            f'{len(x)} rows of features and {len(y)} targets: both must be as many, at least one, '
            f'and finite'
        )
    w = np.ones(len(x)) if weights is None else np.ascontiguousarray(weights, np.float64)
    if settings.kind == 'ranked':
        if groups is None:
            raise InputError('ranking needs to know which rows compete; give their groups')
        order = np.argsort(groups, kind='stable')
        begins = np.flatnonzero(np.diff(np.asarray(groups)[order], prepend=np.nan) != 0)
        return _ranked(x[order], np.asarray(y, np.float64)[order], begins, settings, seed)
    grown = _Grown(_Binned(x), settings, seed)
    y = np.asarray(y, np.float64)
    offset = float(np.average(y, weights=w))
    if settings.kind == 'forest':
        for _ in range(settings.trees):
            grown.add(w * (offset - y), w, 1 / settings.trees, None)
        return grown.ensemble(offset)
    scores = np.full(len(x), offset)
    for _ in range(settings.trees):
        grown.add(w * (scores - y), w, settings.rate, scores)
    return grown.ensemble(offset)


def _ranked(x: Array, gain: Array, begins: Array, settings: Settings, seed: int) -> Ensemble:
    grown = _Grown(_Binned(x), settings, seed)
    begin = np.append(begins, len(x)).astype(np.int64)
    scores, g, h = (np.zeros(len(x)) for _ in range(3))
    gain, ideal = np.ascontiguousarray(gain), np.zeros(len(begins))
    groups, depth = _n(len(begins)), _n(settings.depth)
    if _library().tw_ideal(groups, _at(begin), _at(gain), depth, _at(ideal)):
        raise MemoryError
    for _ in range(settings.trees):
        failed = _library().tw_rank(
            groups, _at(begin), _at(gain), _at(ideal), _at(scores), depth, _at(g), _at(h)
        )  # fmt: skip
        if failed:
            raise MemoryError
        grown.add(g, h, settings.rate, scores)
    return grown.ensemble(0.0)
