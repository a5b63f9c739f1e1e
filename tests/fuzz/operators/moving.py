"""Operators that move elements or look at them otherwise: shapes, slices, borders, gathers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..draw import ANY, FLOATS, MOST_ELEMENTS, NUMBERS, Draw, MisfitError, Row, Step


def _plain(draw: Draw, x: str) -> Step:
    return Step([x])


def _dropout(draw: Draw, x: str) -> Step:
    if draw.values[x].dtype.kind != 'f':
        raise MisfitError('of floats')
    # Before opset 12 nobody says what the mask is where nothing is dropped.
    return Step([x], {}, draw.pick((1, 1, 2)) if draw.opset >= 12 else 1)


def factors(draw: Draw, count: int, rank: int) -> list[int]:
    """Sizes with a product."""
    sizes = []
    for _ in range(rank - 1):
        size = draw.pick([n for n in range(1, count + 1) if count % n == 0])
        sizes.append(size)
        count //= size
    sizes.append(count)
    draw.rng.shuffle(sizes)
    return sizes


def _reshape(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    rank = draw.pick((0, 1, 2, 3, 4, 4, 5)) if array.size == 1 else draw.pick((1, 2, 3, 4, 4, 5))
    shape = factors(draw, array.size, rank) if rank else []
    if rank and draw.chance(0.3):
        shape[draw.int(0, rank - 1)] = -1
    elif draw.chance(0.2):
        shape = [0 if i < array.ndim and s == array.shape[i] else s for i, s in enumerate(shape)]
    return Step([x, draw.numbers(shape)])


def _flatten(draw: Draw, x: str) -> Step:
    rank = draw.values[x].ndim
    return Step([x], {'axis': draw.int(-rank, rank)})


def _squeeze(draw: Draw, x: str) -> Step:
    ones = [i for i, s in enumerate(draw.values[x].shape) if s == 1]
    if not ones or draw.chance(0.2):
        return Step([x])
    rank = draw.values[x].ndim
    axes = [a - rank * draw.int(0, 1) for a in draw.some(ones)]
    return draw.listed(x, 'axes', axes, 13, {})


def _unsqueeze(draw: Draw, x: str) -> Step:
    rank = draw.values[x].ndim
    count = draw.int(1, max(1, min(2, 5 - rank)))
    if rank + count > 6:
        raise MisfitError('too many dimensions')
    axes = draw.rng.sample(range(rank + count), count)
    axes = [a - (rank + count) * draw.int(0, 1) for a in axes]
    return draw.listed(x, 'axes', axes, 13, {})


def _shape(draw: Draw, x: str) -> Step:
    if not draw.values[x].ndim:
        raise MisfitError('no dimensions')
    rank = draw.values[x].ndim
    start = draw.int(-rank, rank - 1)
    return Step([x], draw.pick(({}, {'start': start})))


def _expand(draw: Draw, x: str) -> Step:
    shape = [draw.size() if s == 1 else s for s in draw.values[x].shape]
    if draw.chance(0.3) and len(shape) < 5:
        shape = [draw.pick((1, 2, 3)), *shape]
    shape = [1 if s != 1 and draw.chance(0.2) else s for s in shape]
    return Step([x, draw.numbers(shape)])


def _tile(draw: Draw, x: str) -> Step:
    return Step([x, draw.numbers([draw.pick((1, 1, 2, 3)) for _ in draw.values[x].shape])])


def _concat(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axis = draw.int(0, array.ndim - 1)
    names = [x]

    def rest(other: np.ndarray) -> tuple:
        return other.dtype, other.ndim, other.shape[:axis], other.shape[axis + 1 :]

    fitting = [n for n, a in draw.values.items() if rest(a) == rest(array)]
    for _ in range(draw.pick((0, 1, 1, 1, 2, 3))):
        if draw.chance(0.6):
            names.append(draw.pick(fitting))
        else:
            shape = list(array.shape)
            shape[axis] = draw.pick((1, 2, 3))
            names.append(draw.operand(shape, str(array.dtype)))
    draw.rng.shuffle(names)
    return Step(names, {'axis': axis - array.ndim * draw.int(0, 1)})


def _split(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    wide = [i for i, s in enumerate(array.shape) if s > 1]
    if not wide:
        raise MisfitError('nothing to split')
    axis = draw.pick(wide)
    size = array.shape[axis]
    count = draw.int(1, min(3, size))
    if draw.chance(0.4) and draw.opset >= 18:
        if (count - 1) * -(-size // count) >= size:
            raise MisfitError('a part would be empty')
        return Step([x], {'axis': axis, 'num_outputs': count}, count)
    cuts = sorted(draw.rng.sample(range(1, size), count - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    step = draw.listed(x, 'split', sizes, 13, {'axis': axis - array.ndim * draw.int(0, 1)})
    return replace(step, outputs=count)


def _slice(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axes = draw.some(range(array.ndim))
    starts, ends, steps = [], [], []
    for axis in axes:
        size = array.shape[axis]
        kind = draw.rng.random()
        if kind < 0.35:  # backwards, often all of it
            step = draw.pick((-1, -1, -1, -2))
            start = size - 1 if draw.chance(0.7) else draw.int(0, size - 1)
            starts.append(draw.pick((start, start - size)))
            ends.append(-size - 1 if draw.chance(0.7) else start - 1 - size)
            steps.append(step)
        else:
            start = draw.int(0, size - 1)
            end = draw.int(start + 1, size)
            starts.append(draw.pick((start, start - size)))
            ends.append(draw.pick((end, 2**31 - 1)) if end == size else end)
            steps.append(draw.pick((1, 1, 2, 3)))
    inputs = [x, draw.numbers(starts), draw.numbers(ends), draw.numbers(axes), draw.numbers(steps)]
    if axes == list(range(len(axes))) and all(s == 1 for s in steps) and draw.chance(0.5):
        inputs = inputs[:3]
    return Step(inputs)


def _pad(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    mode = draw.pick(('constant', 'constant', 'edge', 'reflect', 'wrap'))
    if array.dtype == bool and mode != 'constant':
        mode = 'constant'
    axes = list(range(array.ndim))
    named = draw.chance(0.5)
    if named:
        axes = draw.some(axes)
    before, after = [], []
    for axis in axes:
        size = array.shape[axis]
        most = min(3, size - 1) if mode in ('reflect',) else min(3, size) if mode == 'wrap' else 3
        pair = [draw.int(0, most) if draw.chance(0.7) else 0 for _ in range(2)]
        if draw.chance(0.25) and size > 1:  # cut away, and perhaps add on the other side
            side = draw.int(0, 1)
            pair[side] = -draw.int(1, size - 1)
            kept = size + pair[side]
            pair[1 - side] = min(pair[1 - side], kept - (mode == 'reflect'))
            if draw.chance(0.4) and mode != 'reflect':
                pair[1 - side] = min(-pair[side], 3 if mode == 'constant' else kept)
        before.append(pair[0])
        after.append(pair[1])
    inputs = [x, draw.numbers([*before, *after])]
    if mode == 'constant' and draw.chance(0.4):
        inputs.append(draw.constant(draw.data((), str(array.dtype))))
    if named:
        inputs = [*inputs, *([''] * (3 - len(inputs))), draw.numbers(axes)]
    return Step(inputs, {'mode': mode})


def _crop(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axes = draw.some(range(array.ndim))
    wanted = [max(1, array.shape[a] + draw.int(-2, 2)) for a in axes]
    return Step([x, draw.numbers(wanted)], {'axes': axes})


def _transpose(draw: Draw, x: str) -> Step:
    rank = draw.values[x].ndim
    order = list(range(rank))
    draw.rng.shuffle(order)
    if not rank or draw.chance(0.15):
        return Step([x])
    return Step([x], {'perm': order})


def _depth(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    blocks = [b for b in (1, 2, 3) if array.ndim == 4 and array.shape[1] % (b * b) == 0]
    if not blocks:
        raise MisfitError('no blocks')
    return Step([x], {'blocksize': blocks[-1], 'mode': draw.pick(('DCR', 'CRD'))})


def _space(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    blocks = [
        b
        for b in (1, 2, 3)
        if array.ndim == 4 and not array.shape[2] % b and not array.shape[3] % b
    ]
    if not blocks:
        raise MisfitError('no blocks')
    return Step([x], {'blocksize': draw.pick(blocks)})


def _indices(draw: Draw, positions: np.ndarray, size: int) -> str:
    """Known or given when it runs; now and then counted from the end."""
    positions = np.asarray(positions)
    if draw.chance(0.3):
        rng = np.random.default_rng(draw.rng.getrandbits(32))
        positions = np.where(rng.integers(0, 2, positions.shape), positions, positions - size)
    array = positions.astype(draw.pick(('int64', 'int64', 'int32')))
    return draw.given(array) if draw.chance(0.3) else draw.constant(array)


def _gather(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axis = draw.int(0, array.ndim - 1)
    size = array.shape[axis]
    kind = draw.rng.random()
    if kind < 0.5:  # a permutation: as many as there are
        order = list(range(size))
        draw.rng.shuffle(order)
        positions = np.array(order)
    elif kind < 0.65:
        positions = np.arange(size)[:: draw.pick((1, -1))]
    elif kind < 0.75:
        positions = np.array(draw.int(0, size - 1))
    else:
        shape = draw.shape(draw.pick((1, 1, 2)))
        if math.prod(shape) * array.size > 4 * MOST_ELEMENTS:
            raise MisfitError('too many')
        positions = np.array([draw.int(0, size - 1) for _ in range(math.prod(shape))])
        positions = positions.reshape(shape)
    step = {'axis': axis - array.ndim * draw.int(0, 1)}
    return Step([x, _indices(draw, positions, size)], step)


def _gather_elements(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    axis = draw.int(0, array.ndim - 1)
    shape = [draw.int(1, s) if draw.chance(0.3) else s for s in array.shape]
    if draw.chance(0.4):
        shape[axis] = draw.int(1, 5)
    size = array.shape[axis]
    rng = np.random.default_rng(draw.rng.getrandbits(32))
    return Step([x, _indices(draw, rng.integers(0, size, shape), size)], {'axis': axis})


def _top_k(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim or draw.opset < 10 or np.isnan(np.asarray(array, float)).any():
        raise MisfitError('no dimensions, an attribute instead of a count, or no order')
    axis = draw.int(0, array.ndim - 1)
    count = draw.constant(np.array([draw.int(1, array.shape[axis])]))
    attributes = {'axis': axis - array.ndim * draw.int(0, 1)}
    if draw.opset >= 11:
        attributes |= {'largest': draw.int(0, 1), 'sorted': 1}
    return Step([x, count], attributes, 2)


def _scatter_elements(draw: Draw, x: str) -> Step:
    """Every element at most once, unless they are added up."""
    array = draw.values[x]
    if not array.ndim or draw.opset < 11:
        raise MisfitError('no dimensions, or no such operator')
    axis = draw.int(0, array.ndim - 1)
    shape = [draw.int(1, s) if draw.chance(0.3) else s for s in array.shape]
    size = array.shape[axis]
    rng = np.random.default_rng(draw.rng.getrandbits(32))
    lines = rng.permuted(
        np.broadcast_to(np.arange(size), (*shape[:axis], *shape[axis + 1 :], size)), axis=-1
    )
    positions = np.moveaxis(lines[..., : shape[axis]], -1, axis)
    attributes: dict[str, object] = {'axis': axis}
    kind = str(array.dtype)
    if draw.opset >= 16 and kind in FLOATS and draw.chance(0.5):
        attributes['reduction'] = 'add'
        positions = rng.integers(0, size, shape)
    updates = draw.operand(shape, kind)
    return Step([x, _indices(draw, positions, size), updates], attributes)


def _gather_nd(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if not array.ndim:
        raise MisfitError('no dimensions')
    batch = draw.int(0, min(2, array.ndim - 1))
    width = draw.int(1, array.ndim - batch)
    lead = draw.shape(draw.pick((0, 1, 1, 2))) if batch == 0 else draw.shape(1)
    shape = (*array.shape[:batch], *lead, width)
    rng = np.random.default_rng(draw.rng.getrandbits(32))
    sizes = array.shape[batch : batch + width]
    positions = np.stack([rng.integers(0, s, shape[:-1]) for s in sizes], -1).astype(np.int64)
    name = draw.given(positions) if draw.chance(0.3) else draw.constant(positions)
    return Step([x, name], {'batch_dims': batch})


RESIZE_MODES = (
    'half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric',
    'tf_crop_and_resize',
)  # fmt: skip


def _resize(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim < 1 or array.ndim > 5:
        raise MisfitError('no image')
    mode = draw.pick(('nearest', 'nearest', 'linear', 'cubic'))
    if str(array.dtype) not in FLOATS:
        mode = 'nearest'
    keep = 2 if array.ndim > 2 else 0
    spatial = array.ndim - keep
    if mode == 'cubic' and (array.ndim != 4 or spatial != 2):
        mode = 'nearest'
    attributes: dict[str, object] = {
        'mode': mode, 'coordinate_transformation_mode': draw.pick(RESIZE_MODES[:5]),
    }  # fmt: skip
    if mode == 'nearest':
        attributes['nearest_mode'] = draw.pick(
            ('round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil')
        )
    if mode == 'cubic' and draw.chance(0.5):
        attributes['cubic_coeff_a'] = -0.5
    shape = array.shape
    sizes = [
        *shape[:keep],
        *(draw.pick((s, 2 * s, max(1, s // 2), draw.int(1, 8))) for s in shape[keep:]),
    ]
    # A place between two pixels, by a scale that floats do not hold, may be on either side of it.
    exact = all(out % size == 0 for out, size in zip(sizes, shape, strict=True))
    if draw.chance(0.5) and (mode != 'nearest' or exact):
        return Step([x, '', '', draw.numbers(sizes)], attributes)
    scales = [1.0] * keep + [draw.pick((1.0, 2.0, 2.0, 0.5, 1.5)) for _ in range(spatial)]
    if any(size * scale % 1 for size, scale in zip(shape, scales, strict=True)):
        # Whether align_corners means the length before or after rounding, others do not agree on.
        attributes['coordinate_transformation_mode'] = 'asymmetric'
    return Step([x, '', draw.constant(np.array(scales, np.float32))], attributes)


ROWS = (
    Row('Identity', ANY, _plain),
    Row('Dropout', FLOATS, _dropout),
    Row('Reshape', ANY, _reshape),
    Row('Flatten', ANY, _flatten),
    Row('Squeeze', ANY, _squeeze),
    Row('Unsqueeze', ANY, _unsqueeze),
    Row('Shape', ANY, _shape),
    Row('Size', ANY, _plain),
    Row('Expand', ANY, _expand),
    Row('Tile', ANY, _tile),
    Row('Concat', ANY, _concat),
    Row('Split', ANY, _split),
    Row('Slice', ANY, _slice),
    Row('Pad', ANY, _pad),
    Row('CenterCropPad', ANY, _crop),
    Row('Transpose', ANY, _transpose),
    Row('DepthToSpace', ANY, _depth),
    Row('SpaceToDepth', ANY, _space),
    Row('Gather', ANY, _gather),
    Row('GatherElements', ANY, _gather_elements),
    Row('GatherND', ANY, _gather_nd),
    Row('TopK', NUMBERS, _top_k),
    Row('ScatterElements', ANY, _scatter_elements),
    Row('Resize', ANY, _resize),
)
