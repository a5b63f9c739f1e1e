"""Attention and rotary embeddings, as ONNX defines them from opset 23 on.

Attention becomes the operators that exporters write for it, product, scale, mask, softmax, product,
each a result of its own: what joins them (graph/attention.py) need not know where they came from,
and targets without a kernel for all of them run them one by one. Heads are not moved: products
name their dimensions, b images, h heads of keys, g heads of queries that share one, i j d v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import flat, pointwise, transpose
from tilewright.graph.lowering.moving import concat, pad, slices
from tilewright.graph.lowering.reader import FLOATS, NodeReader, Operator
from tilewright.graph.lowering.result import Result, compute, filled, view
from tilewright.ops import moving
from tilewright.ops.attention import causal
from tilewright.ops.describe import label_of, names_of
from tilewright.ops.functions import X, add, mul, sub
from tilewright.ops.normalise import softmax
from tilewright.ops.products import einsum
from tilewright.ops.rotary import rotary
from tilewright.ops.stage import Expr, call, const, index, read, whole

UNSEEN = const(-math.inf)


def _product(
    word: str, operands: Sequence[Result], terms: Sequence[str], out: str, sizes: dict[str, int]
) -> Result:
    """A sum of products of two results whose dimensions have one letter each."""
    used = {name: sizes[name] for name in dict.fromkeys([*out, *''.join(terms)])}
    shapes = [r.shape for r in operands]
    group = einsum(
        label_of(word, *shapes), shapes, [list(t) for t in terms], list(out), used,
        operands[0].dtype,
    )  # fmt: skip
    return compute(group, {f'In{n}': r for n, r in enumerate(operands)})


def _attention(node: NodeReader) -> tuple[Result, ...]:
    q, k, v = (node.input(number) for number in range(3))
    if len({len(r.shape) for r in (q, k, v)}) > 1 or len(q.shape) not in (3, 4):
        raise ModelError(f'{[list(r.shape) for r in (q, k, v)]} are not all of 3 or 4 dimensions')
    flat_heads = len(q.shape) == 3
    heads, groups = _heads(node, q, k)
    past = node.input(4).shape[2] if node.has(4) else 0
    k, v = (_cached(node, r, n) for r, n in ((k, 4), (v, 5)))
    shared = heads // groups
    place = (q.shape[0], q.shape[1], groups, shared, -1) if flat_heads else (
        q.shape[0], groups, shared, q.shape[2], -1,
    )  # fmt: skip
    queries = _seen(q, place)
    sizes = {
        'b': q.shape[0], 'h': groups, 'g': shared, 'i': q.shape[1 if flat_heads else 2],
        'd': queries.shape[-1], 'j': k.shape[2], 'v': v.shape[3],
    }  # fmt: skip
    if k.shape != (sizes['b'], groups, sizes['j'], sizes['d']) or v.shape[:3] != k.shape[:3]:
        raise ModelError(
            f'keys of {list(k.shape)} and values of {list(v.shape)} do not fit queries of '
            f'{list(q.shape)} with {heads} heads'
        )
    shape = (*q.shape[:2], heads * v.shape[3]) if flat_heads else (*q.shape[:3], v.shape[3])
    if 0 in sizes.values():
        return filled(shape, 0, q.dtype), k, v
    return _computed(node, queries, k, v, sizes, past, shape, flat_heads)


def _heads(node: NodeReader, q: Result, k: Result) -> tuple[int, int]:
    """Heads of the queries, and of keys and values."""
    if len(q.shape) == 4:
        heads, groups = q.shape[1], k.shape[1]
    else:
        heads, groups = node.int('q_num_heads'), node.int('kv_num_heads')
    if groups < 1 or heads < 1 or heads % groups:
        raise ModelError(f'{heads} heads of queries cannot share {groups} heads of keys')
    return heads, groups


def _seen(x: Result, shape: Sequence[int]) -> Result:
    """A view; -1 stands for whatever is left."""
    rest = math.prod(size for size in shape if size > 0)
    if not rest or math.prod(x.shape) % rest:
        raise ModelError(f'{list(x.shape)} does not divide into heads as {list(shape)}')
    return view(x, [math.prod(x.shape) // rest if size < 0 else size for size in shape])


def _cached(node: NodeReader, x: Result, number: int) -> Result:
    """Keys or values [b, h, j, ..], behind those of earlier calls where there are any."""
    if len(x.shape) == 3:
        groups = node.int('kv_num_heads')
        x = transpose(_seen(x, (*x.shape[:2], groups, -1)), (0, 2, 1, 3))
    past = node.optional(number)
    if past is None:
        return x
    if len(past.shape) != 4 or (*past.shape[:2], past.shape[3]) != (*x.shape[:2], x.shape[3]):
        raise ModelError(f'the past has {list(past.shape)}, which does not fit {list(x.shape)}')
    return concat([past, x], 2)


def _computed(
    node: NodeReader, q: Result, k: Result, v: Result, sizes: dict[str, int], past: int,
    shape: Sequence[int], flat_heads: bool,
) -> tuple[Result, ...]:  # fmt: skip
    """The result, the keys and values to remember, and scores at the stage that is asked for."""
    stack = 'bhg' if sizes['g'] > 1 else 'bh'
    rows = 'bihgd' if flat_heads else 'bhgid'
    if sizes['g'] == 1:
        q = view(q, [n for n, name in zip(q.shape, rows, strict=True) if name != 'g'])
        rows = rows.replace('g', '')
    scores = _product('scores', [q, k], [rows, 'bhjd'], f'{stack}ij', sizes)
    default = 1 / math.sqrt(sizes['d'])
    scale = node.float('scale', 0.0) or default
    scores = pointwise('scale', mul(X, const(scale)), [scores], q.dtype)
    stages = [scores]
    cap = node.float('softcap', 0.0)
    if cap > 0:
        capped = mul(call('tanh', call('div', X, const(cap))), const(cap))
        scores = pointwise('cap', capped, [scores], q.dtype)
    stages.append(scores)
    scores, guarded = _masked(node, scores, sizes, past, stack)
    if scores.shape != stages[0].shape:
        raise ModelError(f'its mask makes scores of {list(scores.shape)} out of {stages[0].shape}')
    stages.append(scores)
    weights = compute(
        softmax(scores.shape, len(scores.shape) - 1, q.dtype, guarded), {'In': scores}
    )
    stages.append(weights)
    out = f'bi{stack[1:]}v' if flat_heads else f'{stack}iv'
    made = _product('values', [weights, v], [f'{stack}ij', 'bhjv'], out, sizes)
    asked = stages[node.int('qk_matmul_output_mode', 0)]
    whole_heads = (sizes['b'], sizes['h'] * sizes['g'], sizes['i'], sizes['j'])
    return (view(made, shape), k, v, view(asked, whole_heads))[: max(1, len(node.outputs))]


def _masked(
    node: NodeReader, scores: Result, sizes: dict[str, int], past: int, stack: str
) -> tuple[Result, bool]:
    """Scores of what a row does not see are -inf; whether a row may see nothing."""
    lengths, mask = node.optional(6), node.optional(3)
    row, key = (index(name) for name in names_of(scores.shape)[-2:])
    guarded = False
    if mask is not None:
        expr = call('where', read(1), X, UNSEEN) if mask.dtype == 'bool' else add(X, read(1))
        shown = _mask(mask, sizes, stack)
        scores, guarded = pointwise('mask', expr, [scores, shown], scores.dtype), True
    left, right = node.int('left_window_size', -1), node.int('right_window_size', -1)
    if lengths is None:
        if node.int('is_causal', 0):
            seen_by = causal(row.name, key.name, past)
            scores = pointwise('causal', seen_by, [scores], scores.dtype)
        at = add(row, whole(past))
        seen = _window(at, key, left, right)
        if seen is not None:
            expr = call('where', seen, X, UNSEEN)
            scores, guarded = pointwise('window', expr, [scores], scores.dtype), True
        return scores, guarded
    ends = view(lengths, (sizes['b'], *(1 for _ in stack[1:]), 1, 1))
    at = add(row, sub(read(1), whole(sizes['i'])))
    seen = call('lt', key, read(1))
    if node.int('is_causal', 0):
        seen = call('and', seen, call('le', key, at))
    window = _window(at, key, left, right)
    if window is not None:
        seen = call('and', seen, window)
    expr = call('where', seen, X, UNSEEN)
    return pointwise('lengths', expr, [scores, ends], scores.dtype), True


def _window(at: Expr, key: Expr, left: int, right: int) -> Expr | None:
    """Keys that lie at most so far before or behind a place; -1 has no end."""
    bounds = []
    if left >= 0:
        bounds.append(call('le', at, add(key, whole(left))))
    if right >= 0:
        bounds.append(call('le', key, add(at, whole(right))))
    if not bounds:
        return None
    return bounds[0] if len(bounds) == 1 else call('and', *bounds)


def _mask(mask: Result, sizes: dict[str, int], stack: str) -> Result:
    """A mask that broadcasts to [b, heads, i, j] as one that broadcasts to the scores."""
    short = sizes['j'] - mask.shape[-1] if mask.shape else 0
    if short > 0 and mask.shape[-1] > 1:
        value = 0.0 if mask.dtype == 'bool' else -math.inf
        mask = pad(mask, {len(mask.shape) - 1: (0, short)}, 'constant', value)
    full = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
    if len(stack) == 2:
        return view(mask, full)
    b, heads, *rest = full
    split = (sizes['h'], sizes['g']) if heads > 1 else (1, 1)
    return view(mask, (b, *split, *rest))


def _rotary(node: NodeReader) -> Result:
    """Pairs of a head's elements turned by angles, whose cosines and sines are given."""
    x, cosines, sines = (node.input(number) for number in range(3))
    rank = len(x.shape)
    if rank == 3:
        heads = node.int('num_heads', 0)
        if heads < 1:
            raise ModelError(f'its num_heads is {heads}; [b, words, hidden] needs 1 or more')
        split = _seen(x, (*x.shape[:2], heads, -1))
        b, words, _, size = split.shape
    elif rank == 4:
        split = x
        b, _, words, size = x.shape
    else:
        raise ModelError(f'{list(x.shape)} is neither [b, heads, words, size] nor [b, words, ..]')
    turned = node.int('rotary_embedding_dim', 0) or size
    if turned > size or turned % 2:
        raise ModelError(f'its rotary_embedding_dim is {turned}; give an even one up to {size}')
    cosines, sines = (_angles(node, r, (b, words, turned // 2)) for r in (cosines, sines))
    part = slices(split, {3: range(turned)}) if turned < size else split
    interleaved = bool(node.int('interleaved', 0))
    pairs = (turned // 2, 2) if interleaved else (2, turned // 2)
    seen = view(part, (*part.shape[:3], *pairs))
    group = rotary(seen.shape, cosines.shape[0], rank == 3, interleaved, x.dtype)
    made = view(compute(group, {'In': seen, 'Cos': cosines, 'Sin': sines}), part.shape)
    if turned < size:
        made = concat([made, slices(split, {3: range(turned, size)})], 3)
    return view(made, x.shape)


def _angles(node: NodeReader, table: Result, shape: tuple[int, int, int]) -> Result:
    """Cosines or sines of every image and word: rows of a table at positions, or given so."""
    positions = node.optional(3)
    if positions is None:
        if table.shape not in (shape, (1, *shape[1:])):
            raise ModelError(f'its angles are {list(table.shape)}; they must be {list(shape)}')
        return table
    if len(table.shape) != 2 or table.shape[1] != shape[2] or positions.shape != shape[:2]:
        raise ModelError(
            f'angles of {list(table.shape)} at positions of {list(positions.shape)} do not fit '
            f'{list(shape)}'
        )
    count = shape[0] * shape[1]
    rows = view(table, (1, *table.shape))
    group = moving.gather(rows.shape, count, table.dtype, positions.dtype)
    return view(compute(group, {'In': rows, 'Indices': view(flat(positions), (count,))}), shape)


OPERATORS: dict[str, Operator] = {
    'Attention': Operator(_attention, FLOATS),
    'RotaryEmbedding': Operator(_rotary, FLOATS),
}
