"""Convolutions, poolings, matrix products, normalisations, softmax and reductions."""

from __future__ import annotations

import math

import numpy as np

from ..draw import ANY, FLOATS, NUMBERS, Draw, MisfitError, Row, Step


def _image(draw: Draw, x: str, least: int = 1, most: int = 3) -> tuple[int, ...]:
    shape = draw.values[x].shape
    if not 2 + least <= len(shape) <= 2 + most:
        raise MisfitError('no image')
    return shape


def _window(draw: Draw, sizes: tuple[int, ...], pooling: bool) -> tuple[dict, list[int]]:
    """Attributes of a window over the axes of an image, and its taps."""
    taps, strides, dilations, before, after = [], [], [], [], []
    for size in sizes:
        tap = draw.pick((1, 2, 3, 3))
        dilation = draw.pick((1, 1, 1, 2)) if tap > 1 else 1
        span = (tap - 1) * dilation + 1
        most = span - 1 if pooling else span
        pair = [draw.int(0, min(2, most)) if draw.chance(0.5) else 0 for _ in range(2)]
        if draw.chance(0.3):
            pair[1] = pair[0]
        if size + sum(pair) < span:
            tap, dilation, pair = 1, 1, [0, 0]
        if pooling and dilation > 1 and size < span:
            tap, dilation, pair = 1, 1, [0, 0]  # all taps may lie in the padding
        taps.append(tap)
        dilations.append(dilation)
        strides.append(draw.pick((1, 1, 1, 2, 3)))
        before.append(pair[0])
        after.append(pair[1])
    attributes: dict[str, object] = {'kernel_shape': taps, 'strides': strides}
    if any(d > 1 for d in dilations):
        attributes['dilations'] = dilations
    auto = draw.pick(('NOTSET',) * 5 + ('SAME_UPPER', 'SAME_LOWER', 'VALID'))
    gaps = any(t < s for t, s in zip(taps, strides, strict=True))
    if auto.startswith('SAME') and (gaps or any(d > 1 for d in dilations)):
        auto = 'NOTSET'  # ONNX Runtime's padding is negative then, or it refuses
    if auto == 'NOTSET':
        attributes['pads'] = [*before, *after]
    else:
        if auto == 'VALID' and any(
            (t - 1) * d + 1 > s for t, d, s in zip(taps, dilations, sizes, strict=True)
        ):
            raise MisfitError('the window does not fit')
        attributes['auto_pad'] = auto
    return attributes, taps


def _groups(draw: Draw, channels: int) -> int:
    return draw.pick([1, 1, channels, *(g for g in range(1, channels + 1) if channels % g == 0)])


def _conv(draw: Draw, x: str) -> Step:
    shape = _image(draw, x)
    kind = str(draw.values[x].dtype)
    attributes, taps = _window(draw, shape[2:], pooling=False)
    channels = shape[1]
    groups = _groups(draw, channels)
    made = groups * draw.pick((1, 1, 2, 3, 4))
    terms = channels // groups * math.prod(taps)
    inputs = [x, draw.weight((made, channels // groups, *taps), kind, terms)]
    if draw.chance(0.5):
        inputs.append(draw.operand((made,), kind))
    if groups > 1:
        attributes['group'] = groups
    return Step(inputs, attributes)


def _conv_transpose(draw: Draw, x: str) -> Step:
    shape = _image(draw, x)
    kind = str(draw.values[x].dtype)
    rank, channels = len(shape) - 2, shape[1]
    taps = [draw.pick((1, 2, 3)) for _ in range(rank)]
    strides = [draw.pick((1, 2, 2, 3)) for _ in range(rank)]
    dilations = [draw.pick((1, 1, 2)) if t > 1 else 1 for t in taps]
    groups = _groups(draw, channels)
    attributes: dict[str, object] = {'strides': strides, 'group': groups, 'dilations': dilations}
    whole = [
        s * (n - 1) + (t - 1) * d + 1
        for s, n, t, d in zip(strides, shape[2:], taps, dilations, strict=True)
    ]
    if draw.chance(0.5):
        attributes['pads'] = [
            draw.int(0, min(1, (w - 1) // 2)) for _ in range(2) for w in whole
        ]  # fmt: skip
    if draw.chance(0.4):
        attributes['output_padding'] = [
            draw.int(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)
        ]
    made = draw.pick((1, 2, 3))
    inputs = [x, draw.weight((channels, made, *taps), kind, channels * math.prod(taps))]
    if draw.chance(0.5):
        inputs.append(draw.operand((made * groups,), kind))
    return Step(inputs, attributes)


def _pool(draw: Draw, x: str) -> Step:
    shape = _image(draw, x)
    attributes, _ = _window(draw, shape[2:], pooling=True)
    if draw.chance(0.3):
        attributes['ceil_mode'] = 1
    return Step([x], attributes)


def _max_pool(draw: Draw, x: str) -> Step:
    step = _pool(draw, x)
    if draw.chance(0.25):
        return Step([x], {**step.attributes, 'storage_order': 0}, 2)
    return step


def _average_pool(draw: Draw, x: str) -> Step:
    step = _pool(draw, x)
    return Step([x], {**step.attributes, 'count_include_pad': draw.int(0, 1)})


def _lp_pool(draw: Draw, x: str) -> Step:
    step = _pool(draw, x)
    return Step([x], {**step.attributes, 'p': draw.pick((1, 2, 2, 3))})


def _global(draw: Draw, x: str) -> Step:
    _image(draw, x)
    return Step([x])


def _global_lp(draw: Draw, x: str) -> Step:
    _image(draw, x)
    return Step([x], {'p': draw.pick((1, 2, 3))})


def _batch_norm(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim < 2:
        raise MisfitError('no channels')
    kind, channels = str(array.dtype), (array.shape[1],)
    others = [draw.operand(channels, kind) for _ in range(3)]
    variance = draw.constant(draw.data(channels, kind, 'positive'))
    return Step([x, *others, variance], {'epsilon': draw.pick((1e-5, 1e-3))})


def _instance_norm(draw: Draw, x: str) -> Step:
    shape = _image(draw, x)
    kind = str(draw.values[x].dtype)
    return Step([x, *(draw.operand((shape[1],), kind) for _ in range(2))], {'epsilon': 1e-2})


def _group_norm(draw: Draw, x: str) -> Step:
    step = _instance_norm(draw, x)
    channels = draw.values[x].shape[1]
    count = draw.pick([g for g in range(1, channels + 1) if channels % g == 0])
    return Step(step.inputs, {'num_groups': count, 'epsilon': 1e-2})


def _layer_norm(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axis = draw.int(0, array.ndim - 1)
    inputs = [x, draw.operand(array.shape[axis:], str(array.dtype))]
    if draw.chance(0.6):
        inputs.append(draw.operand(array.shape[axis:], str(array.dtype)))
    return Step(inputs, {'axis': axis - array.ndim * draw.int(0, 1), 'epsilon': 1e-2})


def _rms_norm(draw: Draw, x: str) -> Step:
    step = _layer_norm(draw, x)
    return Step(step.inputs[:2], step.attributes)


def _lrn(draw: Draw, x: str) -> Step:
    shape = _image(draw, x, least=2, most=2)
    sizes = [n for n in (1, 3, 5) if n <= 2 * shape[1] + 1]
    return Step([x], {'size': draw.pick(sizes), 'alpha': 0.3, 'beta': 0.75, 'bias': 1.0})


def _lp_norm(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    return Step([x], {'axis': draw.int(-array.ndim, array.ndim - 1), 'p': draw.pick((1, 2))})


def _mean_variance(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim < 4:
        raise MisfitError('no image')
    axes = draw.pick((sorted(draw.some(range(array.ndim))), [0, 2, 3]))
    with np.errstate(all='ignore'):
        least = np.min(np.std(array.astype(np.float64), axis=tuple(axes)))
    if not least > 1e-3:
        raise MisfitError('it is divided by a deviation of zero')
    return Step([x], {} if axes == [0, 2, 3] else {'axes': axes})


def _matmul(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    kind = str(array.dtype)
    if kind not in (*FLOATS, 'int32', 'int64', 'uint32', 'uint64'):
        raise MisfitError('the standard has no products of these')
    left = draw.chance(0.6)
    stack = [1 if draw.chance(0.3) else s for s in array.shape[:-2]]
    stack = stack[draw.int(0, len(stack)) :] if draw.chance(0.4) else stack
    if left:
        depth = array.shape[-1]
        shape = (depth,) if draw.chance(0.15) else (*stack, depth, draw.size())
        return Step([x, draw.weight(shape, kind, depth)])
    depth = array.shape[-2] if array.ndim > 1 else array.shape[0]
    shape = (depth,) if draw.chance(0.15) else (*stack, draw.size(), depth)
    return Step([draw.weight(shape, kind, depth), x])


def _gemm(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    kind = str(array.dtype)
    if array.ndim != 2 or kind not in (*FLOATS, 'int32', 'int64', 'uint32', 'uint64'):
        raise MisfitError('no matrix')
    turned_a, turned_b = draw.int(0, 1), draw.int(0, 1)
    m, k = array.shape[::-1] if turned_a else array.shape
    n = draw.size()
    inputs = [x, draw.weight((n, k) if turned_b else (k, n), kind, k)]
    if draw.chance(0.7):
        inputs.append(draw.operand(draw.pick(((n,), (m, n), (1, n), (m, 1), (1,), ())), kind))
    scaled = draw.chance(0.4) and kind in FLOATS
    attributes: dict[str, object] = {'transA': turned_a, 'transB': turned_b}
    if scaled:
        attributes |= {'alpha': draw.pick((0.5, 1.0, -0.5)), 'beta': draw.pick((0.5, 1.0, 0.0))}
    return Step(inputs, attributes)


def _einsum(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    kind, rank = str(array.dtype), array.ndim
    if kind not in (*FLOATS, 'int32', 'int64') or not 1 <= rank <= 4:
        raise MisfitError('no sum of products')
    letters = 'abcd'[:rank]
    sizes = dict(zip(letters, array.shape, strict=True))
    kept = ''.join(draw.some(letters, 0))
    if draw.chance(0.3):
        return Step([x], {'equation': f'{letters}->{kept}'})
    other = ''.join(draw.some(letters))
    if draw.chance(0.6):
        other, sizes = f'{other}z', {**sizes, 'z': draw.size()}
        kept = f'{kept}z' if draw.chance(0.7) else f'z{kept}'
    terms = math.prod(s for c, s in sizes.items() if c not in kept)
    weight = draw.weight([sizes[c] for c in other], kind, terms)
    return Step([x, weight], {'equation': f'{letters},{other}->{kept}'})


def _axis(draw: Draw, x: str) -> Step:
    rank = draw.values[x].ndim
    if not rank:
        raise MisfitError('no dimensions')
    return Step([x], {'axis': draw.int(-rank, rank - 1)})


def _arg(draw: Draw, x: str) -> Step:
    step = _axis(draw, x)
    more = {'keepdims': draw.int(0, 1), 'select_last_index': draw.int(0, 1)}
    return Step([x], {**step.attributes, **more})


def _stft(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim != 2 or array.shape[1] < 2 or draw.opset < 17:
        raise MisfitError('no signals, or no such operator')
    kind, size = str(array.dtype), draw.int(2, array.shape[1])
    step = draw.constant(np.array(draw.int(1, size)))
    window = draw.constant(draw.data((size,), kind)) if draw.chance(0.5) else ''
    length = '' if window and draw.chance(0.5) else draw.constant(np.array(size))
    inputs = [x, step, window, length]
    while not inputs[-1]:
        inputs.pop()
    return Step(inputs, {'onesided': draw.int(0, 1)})


def _reduction(since: int):
    """Over axes, which were an attribute before this opset."""

    def make(draw: Draw, x: str) -> Step:
        return _over_axes(draw, x, since)

    return make


def _over_axes(draw: Draw, x: str, since: int) -> Step:
    rank = draw.values[x].ndim
    keep: dict[str, object] = {'keepdims': draw.int(0, 1)}
    if not rank or draw.chance(0.15):
        if draw.chance(0.2) and draw.opset >= since:
            keep['noop_with_empty_axes'] = 1
        return Step([x], keep)
    axes = [a - rank * draw.int(0, 1) for a in draw.some(range(rank))]
    return draw.listed(x, 'axes', axes, since, keep)


def _log_sum(draw: Draw, x: str) -> Step:
    if not draw.special and draw.values[x].min() < 0.05:
        raise MisfitError('sums have to be positive')
    return _over_axes(draw, x, 18)


def _running(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axis = np.array(draw.int(-array.ndim, array.ndim - 1), draw.pick(('int64', 'int32')))
    attributes = {'exclusive': draw.int(0, 1), 'reverse': draw.int(0, 1)}
    return Step([x, draw.constant(axis)], attributes)


ROWS = (
    Row('Conv', FLOATS, _conv),
    Row('ConvTranspose', FLOATS, _conv_transpose),
    Row('AveragePool', FLOATS, _average_pool),
    Row('MaxPool', NUMBERS, _max_pool),
    Row('LpPool', FLOATS, _lp_pool),
    Row('GlobalAveragePool', FLOATS, _global),
    Row('GlobalMaxPool', NUMBERS, _global),
    Row('GlobalLpPool', FLOATS, _global_lp),
    Row('BatchNormalization', FLOATS, _batch_norm),
    Row('InstanceNormalization', FLOATS, _instance_norm),
    Row('GroupNormalization', FLOATS, _group_norm),
    Row('LayerNormalization', FLOATS, _layer_norm),
    Row('RMSNormalization', FLOATS, _rms_norm),
    Row('LRN', FLOATS, _lrn),
    Row('LpNormalization', FLOATS, _lp_norm),
    Row('MeanVarianceNormalization', FLOATS, _mean_variance),
    Row('MatMul', NUMBERS, _matmul),
    Row('Gemm', NUMBERS, _gemm),
    Row('Einsum', NUMBERS, _einsum),
    *(Row(name, FLOATS, _axis) for name in ('Softmax', 'LogSoftmax', 'Hardmax')),
    *(Row(name, NUMBERS, _arg) for name in ('ArgMax', 'ArgMin')),
    Row('STFT', FLOATS, _stft),
    Row('ReduceSum', NUMBERS, _reduction(13)),
    *(
        Row(f'Reduce{name}', NUMBERS, _reduction(18))
        for name in ('Mean', 'Prod', 'L1', 'SumSquare')
    ),
    *(Row(f'Reduce{name}', ANY, _reduction(18)) for name in ('Max', 'Min')),
    *(Row(f'Reduce{name}', FLOATS, _reduction(18)) for name in ('L2', 'LogSumExp')),
    Row('ReduceLogSum', FLOATS, _log_sum),
    *(Row(name, NUMBERS, _running) for name in ('CumSum', 'CumProd')),
)
