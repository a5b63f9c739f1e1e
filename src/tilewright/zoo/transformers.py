"""Transformers: BERT-base, ViT-B/16 and GPT-2 small, as graphs of our own and PyTorch modules.

    BERT-base   Devlin et al., NAACL'19: words to two scores each (where an answer begins and ends)
    ViT-B/16    Dosovitskiy et al., ICLR'21: an image in patches of 16 x 16, and a class
    GPT-2       Radford et al., 2019, the smallest: scores of the next word. It also gives its keys
                and values; `gpt2_decode` takes those of the words before and computes one more

Goes in: a name, batch, words (side of the image for ViT) and a number that divides the heads.
Comes out: a `Transformer`, weights by name from a seed, and what is made of both. Graphs have the
operators that exporters write (products, softmax), modules PyTorch's own attention.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import MissingError, SpecError
from tilewright.graph.graph import Attribute, Graph, Node, Value

HEAD = 64  # size of a head
DEPTH = 12
PATCH = 16
DEVIATION = 0.02
OUTPUT = 'scores'


@dataclass(frozen=True, slots=True)
class Transformer:
    """One network; `words` are computed, `past` are those whose keys and values are given.

    before    layers are normalised before they are computed, else behind the residual
    """

    name: str
    batch: int
    words: int
    past: int = 0
    side: int = 0
    heads: int = 12
    vocabulary: int = 0
    scores: int = 2
    before: bool = False
    causal: bool = False
    epsilon: float = 1e-5

    @property
    def hidden(self) -> int:
        return self.heads * HEAD

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(f'layer{n}' for n in range(DEPTH))

    @property
    def rows(self) -> int:
        """Rows that go through the layers: words, or patches and a class."""
        return (self.side // PATCH) ** 2 + 1 if self.side else self.words

    @property
    def inputs(self) -> tuple[Value, ...]:
        if self.side:
            return (Value('image', (self.batch, 3, self.side, self.side)),)
        shape = (self.batch, self.heads, self.past, HEAD)
        kept = [f'{what}{n}' for n in range(DEPTH) for what in ('key', 'value')]
        past = (Value(name, shape) for name in kept) if self.past else ()
        return (Value('ids', (self.batch, self.words), 'i64'), *past)

    @property
    def outputs(self) -> tuple[Value, ...]:
        if not self.causal:
            rows = () if self.side else (self.words,)
            return (Value(OUTPUT, (self.batch, *rows, self.scores)),)
        shape = (self.batch, self.heads, self.past + self.words, HEAD)
        kept = [f'new_{what}{n}' for n in range(DEPTH) for what in ('key', 'value')]
        return (Value(OUTPUT, (self.batch, self.vocabulary)), *(Value(n, shape) for n in kept))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inputs[0].shape

    @property
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight; matrices are [in, out]."""
        d = self.hidden
        made: dict[str, tuple[int, ...]] = {}
        if self.side:
            made |= {'patches.weight': (d, 3, PATCH, PATCH), 'patches.bias': (d,)}
            made |= {'class': (1, 1, d), 'places': (self.rows, d)}
        else:
            made |= {'words': (self.vocabulary, d), 'places': (512 if self.scores else 1024, d)}
        if not self.before:
            made |= {'kinds': (2, d)}
        made |= {'norm.scale': (d,), 'norm.shift': (d,)}
        for layer in self.layers:
            for name, (rows, columns) in _MATRICES.items():
                made[f'{layer}.{name}.weight'] = (rows * d, columns * d)
                made[f'{layer}.{name}.bias'] = (columns * d,)
            for norm in ('norm1', 'norm2'):
                made |= {f'{layer}.{norm}.scale': (d,), f'{layer}.{norm}.shift': (d,)}
        if self.scores:
            made |= {'head.weight': (d, self.scores), 'head.bias': (self.scores,)}
        return made

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.weights.values())

    @property
    def multiplications(self) -> int:
        """Of matrices, patches and attention, by their definition."""
        d, rows = self.hidden, self.batch * self.rows
        each = sum(i * o for i, o in _MATRICES.values()) * d * d + 2 * (self.past + self.rows) * d
        last = self.batch * d * self.vocabulary if self.causal else rows * d * self.scores
        if self.side:
            last = self.batch * d * self.scores + (rows - self.batch) * 3 * PATCH**2 * d
        return DEPTH * rows * each + last


# Matrices of a layer: how many times the hidden size go in and come out.
_MATRICES = {'qkv': (1, 3), 'out': (1, 1), 'up': (1, 4), 'down': (4, 1)}


def bert_base(batch: int = 1, image: int = 384, width: int = 1) -> Transformer:
    """Words of 30,522, embedded with their place; layers normalised behind the residual."""
    words = _checked('bert_base', batch, image, 512)
    return Transformer(
        'bert_base', batch, words, heads=_heads(width), vocabulary=30522 // width, epsilon=1e-12
    )


def bert_base_128(batch: int = 1, image: int = 128, width: int = 1) -> Transformer:
    return bert_base(batch, image, width)


def vit_b16(batch: int = 1, image: int = 224, width: int = 1) -> Transformer:
    if batch < 1 or image < PATCH or image % PATCH:
        raise SpecError(f'vit_b16: image size {image} is not a multiple of {PATCH}; choose one')
    return Transformer(
        'vit_b16', batch, 0, side=image, heads=_heads(width), scores=1000, before=True,
        epsilon=1e-6,
    )  # fmt: skip


def gpt2(batch: int = 1, image: int = 128, width: int = 1) -> Transformer:
    """The words of a prompt at once: scores of the word behind them, keys and values."""
    words = _checked('gpt2', batch, image, 1024)
    return Transformer(
        'gpt2', batch, words, heads=_heads(width), vocabulary=50257 // width, scores=0,
        before=True, causal=True,
    )  # fmt: skip


def gpt2_decode(batch: int = 1, image: int = 128, width: int = 1) -> Transformer:
    """One word behind `image` words whose keys and values are given."""
    past = _checked('gpt2_decode', batch, image, 1023)
    return Transformer(
        'gpt2_decode', batch, 1, past=past, heads=_heads(width), vocabulary=50257 // width,
        scores=0, before=True, causal=True,
    )  # fmt: skip


MAKERS = {
    'bert_base': bert_base,
    'bert_base_128': bert_base_128,
    'vit_b16': vit_b16,
    'gpt2': gpt2,
    'gpt2_decode': gpt2_decode,
}


def _heads(width: int) -> int:
    if width < 1:
        raise SpecError(f'width is {width}; it is at least 1')
    return max(1, 12 // width)


def _checked(name: str, batch: int, words: int, most: int) -> int:
    if batch < 1 or not 1 <= words <= most:
        raise SpecError(f'{name}: batch {batch} and {words} words; give 1 or more, words to {most}')
    return words


def draw_weights(
    network: Transformer, seed: int = 0, drawn: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Normal numbers of deviation 0.02, as these networks start from; scales are near 1.

    `drawn` are those of the same seed at other sizes, which most weights do not depend on.
    """
    made = {}
    for name, shape in network.weights.items():
        if drawn is not None and name in drawn and drawn[name].shape == shape:
            made[name] = drawn[name]
            continue
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        array = rng.standard_normal(shape, np.float32) * np.float32(DEVIATION)
        made[name] = array + np.float32(1) if name.endswith('scale') else array
    return made


def draw_inputs(network: Transformer, seed: int = 0) -> dict[str, np.ndarray]:
    """Random words, images, keys and values."""
    rng = np.random.default_rng([seed, 1])
    return {
        v.name: rng.integers(0, network.vocabulary, v.shape)
        if v.dtype == 'i64'
        else rng.standard_normal(v.shape, np.float32)
        for v in network.inputs
    }


def to_graph(network: Transformer, weights: Mapping[str, np.ndarray]) -> Graph:
    """[Transformer, arrays by name] -> [Graph] with the operators that exporters write."""
    return _Writer(network, dict(weights)).graph()


@dataclass
class _Writer:
    """A graph as it grows: each method adds nodes and returns the name of a value."""

    network: Transformer
    constants: dict[str, np.ndarray]
    nodes: list[Node] = field(default_factory=list)

    def node(self, op: str, name: str, *inputs: str, **attributes: Attribute) -> str:
        self.nodes.append(Node(op, name, inputs, (name,), attributes))
        return name

    def number(self, name: str, value: Any, dtype: type = np.float32) -> str:
        self.constants.setdefault(name, np.asarray(value, dtype))
        return name

    def linear(self, x: str, name: str) -> str:
        product = self.node('MatMul', f'{name}/product', x, f'{name}.weight')
        return self.node('Add', name, product, f'{name}.bias')

    def norm(self, x: str, name: str) -> str:
        return self.node(
            'LayerNormalization', f'{name}/normal', x, f'{name}.scale', f'{name}.shift', axis=-1,
            epsilon=self.network.epsilon,
        )  # fmt: skip

    def heads(self, x: str) -> str:
        t = self.network
        shape = self.number('split', (t.batch, t.rows, t.heads, HEAD), np.int64)
        split = self.node('Reshape', f'{x}/split', x, shape)
        return self.node('Transpose', f'{x}/heads', split, perm=(0, 2, 1, 3))

    def graph(self) -> Graph:
        t = self.network
        x = self.patches() if t.side else self.words()
        for n, layer in enumerate(t.layers):
            x = self.layer(x, n, layer)
        if t.before:
            x = self.norm(x, 'norm')
        self.head(x)
        outputs = tuple((v.name, v.name) for v in t.outputs)
        return Graph(t.name, t.inputs, outputs, tuple(self.nodes), self.constants)

    def words(self) -> str:
        t = self.network
        places = self.constants.pop('places')[t.past : t.past + t.words]
        if not t.before:
            places = places + self.constants.pop('kinds')[0]
        self.constants['places'] = places
        x = self.node('Gather', 'embedded', 'words', 'ids', axis=0)
        x = self.node('Add', 'placed', x, 'places')
        return x if t.before else self.norm(x, 'norm')

    def patches(self) -> str:
        t = self.network
        x = self.node(
            'Conv', 'patches', 'image', 'patches.weight', 'patches.bias',
            kernel_shape=(PATCH, PATCH), strides=(PATCH, PATCH),
        )  # fmt: skip
        x = self.node('Reshape', 'rows', x, self.number('flat', (t.batch, t.hidden, -1), np.int64))
        x = self.node('Transpose', 'columns', x, perm=(0, 2, 1))
        self.constants['class'] = np.repeat(self.constants['class'], t.batch, 0)
        x = self.node('Concat', 'classed', 'class', x, axis=1)
        return self.node('Add', 'placed', x, 'places')

    def layer(self, x: str, n: int, name: str) -> str:
        before = self.network.before
        given = self.norm(x, f'{name}.norm1') if before else x
        y = self.linear(self.attention(given, n, name), f'{name}.out')
        x = self.node('Add', f'{name}/attended', x, y)
        x = x if before else self.norm(x, f'{name}.norm1')
        given = self.norm(x, f'{name}.norm2') if before else x
        up = self.linear(given, f'{name}.up')
        form = 'tanh' if self.network.causal else 'none'
        y = self.linear(self.node('Gelu', f'{name}/gelu', up, approximate=form), f'{name}.down')
        x = self.node('Add', f'{name}/thought', x, y)
        return x if before else self.norm(x, f'{name}.norm2')

    def attention(self, x: str, n: int, name: str) -> str:
        t = self.network
        qkv = self.linear(x, f'{name}.qkv')
        parts = tuple(f'{name}/{part}' for part in 'qkv')
        self.nodes.append(
            Node('Split', f'{name}/parts', (qkv,), parts, {'axis': -1, 'num_outputs': 3})
        )
        q, k, v = map(self.heads, parts)
        if t.causal:
            k, v = (self.cached(r, what, n) for r, what in ((k, 'key'), (v, 'value')))
        turned = self.node('Transpose', f'{name}/keys', k, perm=(0, 1, 3, 2))
        s = self.node('MatMul', f'{name}/products', q, turned)
        s = self.node('Mul', f'{name}/scores', s, self.number('scale', HEAD**-0.5))
        if t.causal and t.words > 1:
            seen = np.tril(np.ones((t.words, t.past + t.words), bool), t.past)
            low = self.number('unseen', np.finfo(np.float32).min)
            s = self.node('Where', f'{name}/seen', self.number('seen', seen, np.bool_), s, low)
        w = self.node('Softmax', f'{name}/weights', s, axis=-1)
        y = self.node('MatMul', f'{name}/sums', w, v)
        y = self.node('Transpose', f'{name}/rows', y, perm=(0, 2, 1, 3))
        return self.node(
            'Reshape', f'{name}/joined', y,
            self.number('joined', (t.batch, t.rows, t.hidden), np.int64),
        )  # fmt: skip

    def cached(self, x: str, what: str, n: int) -> str:
        """Keys or values, behind those of the words before; also an output of the network."""
        if self.network.past:
            return self.node('Concat', f'new_{what}{n}', f'{what}{n}', x, axis=2)
        return self.node('Identity', f'new_{what}{n}', x)

    def head(self, x: str) -> str:
        t = self.network
        if t.side or t.causal:
            row = 0 if t.side else t.words - 1
            x = self.node('Gather', 'row', x, self.number('last', row, np.int64), axis=1)
        if not t.causal:
            product = self.node('MatMul', 'head/product', x, 'head.weight')
            return self.node('Add', OUTPUT, product, 'head.bias')
        return self.node('Gemm', OUTPUT, x, 'words', transB=1)


def to_torch(network: Transformer, weights: Mapping[str, np.ndarray]) -> Any:
    """[Transformer, arrays by name] -> torch.nn.Module in evaluation mode; it copies the arrays."""
    try:
        torch: Any = import_module('torch')
    except ImportError:
        raise MissingError(
            "PyTorch modules of networks need PyTorch: pip install 'tilewright[torch]'"
        ) from None
    from tilewright.zoo.transformer_module import module_of

    return module_of(torch, network, weights).eval()
