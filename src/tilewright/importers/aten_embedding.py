"""ATen's embeddings as ONNX nodes: rows of a table, and sums, means and maxima of bags of them.

A bag is what lies between two offsets. Bags of one size, which is what indices in two dimensions
are traced to, are a reduction over an axis. Others are a product with a matrix that says which
index belongs to which bag, since offsets may be known only at the call: work grows with bags times
indices.

    rows[i] = weight[indices[i]];   inside[b, i] = offsets[b] <= i < offsets[b + 1]
    sum:  inside * per_sample_weights @ rows      mean:  divided by the indices of a bag
    max:  max over i of (rows where inside)       empty bags are 0; padding_idx is in no bag
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError

SUM, MEAN, MAX = range(3)


def _embedding(call: Call) -> Value:
    """Padding and scaling by frequency concern training alone."""
    return call.done('Gather', call.value('weight'), call.value('indices'), axis=0)


def _bags(call: Call) -> tuple[Value | None, ...]:
    """The first of four results; the others serve training."""
    if any(call.used(number) for number in (1, 2, 3)):
        raise UnsupportedError('whose further results are used')
    table, indices = call.value('weight'), call.cast(call.value('indices'), 'i64')
    rows = call.emit('Gather', table, indices, axis=0)
    (count,), (bags, columns) = indices.shape, call.result.shape
    size = _size(call, count, bags)
    # Bags of one size are rows of an axis of their own: [bags, size] against [1 or bags, count].
    lead = (bags, size) if size else (1, count)
    whole = call.reshaped(Value(rows, (count, columns), table.dtype), (*lead, columns))
    inside = None if size else _inside(call, count, bags)
    padding = call['padding_idx']
    if padding >= 0:
        chosen = call.reshaped(indices, lead)
        other = call.emit('Not', call.emit('Equal', chosen, call.number(padding, 'i64')))
        both = other if inside is None else call.emit('And', inside, other)
        inside = Value(both, (bags, lead[1]), 'bool')
    if call['mode'] == MAX:
        return _largest(call, whole, inside), None, None, None
    members = None if inside is None else call.cast(inside, table.dtype)
    factors = members
    if call.has('per_sample_weights'):
        given = call.reshaped(call.operand('per_sample_weights', table.dtype), lead)
        factors = given if factors is None else call.made('Mul', factors, factors, given)
    total = _sum(call, whole, factors, size)
    if call['mode'] == MEAN:
        many: Value | str = call.number(size or 1, table.dtype)
        if members is not None:
            found = call.emit('ReduceSum', members, call.constant([1]), keepdims=1)
            many = call.emit('Max', found, call.number(1, table.dtype))
        total = call.done('Div', total, many)
    return total, None, None, None


def _size(call: Call, count: int, bags: int) -> int:
    """How many indices every bag has, if offsets are known and all have as many; else 0."""
    offsets = call.emitter.constants.get(call.value('offsets').name)
    if offsets is None or not bags or count % bags:
        return 0
    size = count // bags
    return size if np.array_equal(offsets[:bags], size * np.arange(bags)) else 0


def _inside(call: Call, count: int, bags: int) -> Value:
    """[bags, count]: whether an index is in a bag."""
    offsets = call.cast(call.value('offsets'), 'i64')
    if call['include_last_offset']:
        whole = offsets
    else:
        whole = Value(call.emit('Concat', offsets, call.constant([count]), axis=0), (), 'i64')
    column, places = call.constant([bags, 1]), call.constant(np.arange(count))
    first, behind = (
        call.emit('Reshape', call.emit('Slice', whole, *map(call.constant, bounds)), column)
        for bounds in (([0], [bags]), ([1], [bags + 1]))
    )
    above = call.emit('GreaterOrEqual', places, first)
    return Value(call.emit('And', above, call.emit('Less', places, behind)), (bags, count), 'bool')


def _sum(call: Call, rows: Value, factors: Value | None, size: int) -> Value:
    """Rows of each bag, added; bags of one size have rows of their own."""
    if not size:
        assert factors is not None
        return call.done('MatMul', factors, call.reshaped(rows, rows.shape[1:]))
    if factors is not None:
        rows = call.made('Mul', rows, rows, call.reshaped(factors, (*factors.shape, 1)))
    return call.done('ReduceSum', rows, call.constant([1]), keepdims=0)


def _largest(call: Call, rows: Value, inside: Value | None) -> Value:
    if inside is None:
        return call.done('ReduceMax', rows, call.constant([1]), keepdims=0)
    mask = call.reshaped(inside, (*inside.shape, 1))
    least = call.number(-np.inf, rows.dtype)
    kept = call.emit('Where', mask, rows, least)
    found = call.emit('ReduceMax', kept, call.constant([1]), keepdims=0)
    some = call.emit('ReduceMax', call.cast(inside, 'i32'), call.constant([1]), keepdims=1)
    filled = call.cast(Value(some, (inside.shape[0], 1), 'i32'), 'bool')
    return call.done('Where', filled, found, call.number(0, rows.dtype))


HANDLERS: dict[str, Handler] = {
    'embedding.default': _embedding,
    '_embedding_bag.default': _bags,
    '_embedding_bag_forward_only.default': _bags,
}
