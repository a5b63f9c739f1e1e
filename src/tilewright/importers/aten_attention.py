"""ATen's attention and stacked products as ONNX nodes. [Call] -> [Value]"""

from __future__ import annotations

import math

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError


def _matmul(call: Call) -> Value:
    return call.done('MatMul', call.value('self'), call.value('other'))


def _attention(call: Call) -> Value:
    """[.., heads, words, size]; what stands before the heads is one dimension of images."""
    q, k, v = (call.value(name) for name in ('query', 'key', 'value'))
    if float(call['dropout_p'] or 0.0):
        raise UnsupportedError('with dropout')
    before = q.shape[:-3]
    if len(q.shape) < 3 or any(r.shape[:-3] != before for r in (k, v)):
        raise UnsupportedError(f'of {list(q.shape)}, {list(k.shape)} and {list(v.shape)}')
    shaped = [call.reshaped(r, (math.prod(before), *r.shape[-3:])) for r in (q, k, v)]
    mask = call.value('attn_mask') if call.has('attn_mask') else None
    if mask is not None and len(mask.shape) > 4:
        mask = call.reshaped(mask, (math.prod(mask.shape[:-3]), *mask.shape[-3:]))
    if mask is not None and len(before) > 1 and len(mask.shape) > 3:
        raise UnsupportedError(f'of {list(q.shape)} with a mask of {list(mask.shape)}')
    attributes: dict[str, float] = {'is_causal': int(bool(call['is_causal']))}
    if call.has('scale'):
        attributes['scale'] = float(call['scale'])
    made = call.emit('Attention', *shaped, mask, **attributes)
    shape = (*shaped[0].shape[:3], shaped[2].shape[-1])
    return call.reshaped(Value(made, shape, q.dtype), call.result.shape)


HANDLERS: dict[str, Handler] = {
    'matmul.default': _matmul,
    'scaled_dot_product_attention.default': _attention,
}
