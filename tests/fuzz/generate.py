"""Graph number i of seed s: the same on every machine, whoever draws it, whatever was drawn before.

Goes in: a seed and a number. Comes out: a `Net`. Every graph has some pairs (producer, consumer)
that it has to contain, the next ones of a shuffled list of all pairs of the table, so that runs of
enough graphs contain every pair; around them stand motifs of real networks and operators at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import numpy as np

from .draw import FLOATS, Draw, MisfitError, Row, Step
from .graphs import OPSET, Net
from .operators import CLEAR, ROWS

PAIRS_EACH = 2
OLDER_SHARE = 0.12  # of the graphs are of an older opset: other forms, and other meanings of some
OLDER = (11, 12, 13, 15, 17, 18, 19, 20)
SPECIAL_SHARE = 0.02  # of the graphs have NaN and infinities in their data
# Where operators are defined.
DOMAINS = {
    'Log': 'positive', 'Sqrt': 'positive', 'Reciprocal': 'positive', 'ReduceLogSum': 'positive',
    'Acosh': 'above', 'Acos': 'unit', 'Asin': 'unit', 'Atanh': 'unit', 'Tan': 'unit',
}  # fmt: skip
# What makes the shapes and numbers that these have to know ahead.
NEEDED = {'ConstantOfShape': 'Shape', 'Range': 'Size'}
KINDS = ('any', 'any', 'any', 'positive', 'unit', 'above')


@cache
def all_pairs() -> tuple[tuple[str, str], ...]:
    return tuple((producer, consumer) for producer in ROWS for consumer in ROWS)


@cache
def pair_order(seed: int) -> tuple[tuple[str, str], ...]:
    pairs = list(all_pairs())
    Random(f'pairs {seed}').shuffle(pairs)
    return tuple(pairs)


def wanted_pairs(seed: int, number: int) -> tuple[tuple[str, str], ...]:
    order = pair_order(seed)
    first = number * PAIRS_EACH
    return tuple(order[(first + i) % len(order)] for i in range(PAIRS_EACH))


def drawn(seed: int, number: int) -> Net:
    """The graph."""
    rng = Random(f'graph {seed} {number}')
    special = rng.random() < SPECIAL_SHARE
    older = rng.random() < OLDER_SHARE
    draw = Draw(rng, special, rng.choice(OLDER) if older else OPSET)
    if special:
        draw.given(draw.data(draw.shape(), 'float32'))
        for _ in range(draw.int(2, 6)):
            grow_anywhere(draw, CLEAR)
        return _finished(draw)
    draw.given(draw.data(draw.shape(), draw.dtype()))
    if draw.chance(0.35):
        mark = draw.mark()
        try:
            draw.pick(MOTIFS)(draw)
        except MisfitError:  # of a later opset
            draw.rewind(mark)
    for producer, consumer in wanted_pairs(seed, number):
        add_pair(draw, ROWS[producer], ROWS[consumer], 10)
    for _ in range(draw.int(1, 6)):
        grow_anywhere(draw)
    return _finished(draw)


def _finished(draw: Draw) -> Net:
    if not draw.nodes:
        draw.apply('Identity', Step([next(iter(draw.inputs))]))
    return draw.net(outputs_of(draw))


def pair(seed: int, producer: str, consumer: str, attempts: int = 60) -> Net | None:
    """A graph of this pair and nothing else, or None where none was found."""
    draw = Draw(Random(f'pair {seed} {producer} {consumer}'))
    if not add_pair(draw, ROWS[producer], ROWS[consumer], attempts, alone=True):
        return None
    draw.special = True  # what follows takes values as they are
    return draw.net(outputs_of(draw))


def single(seed: int, op: str, dtype: str, attempts: int = 60) -> Net | None:
    """A graph of one operator on elements of one type, or None where none was found."""
    draw = Draw(Random(f'single {seed} {op} {dtype}'))
    for _ in range(attempts):
        mark = draw.mark()
        x = draw.given(draw.data(draw.shape(), dtype, DOMAINS.get(op, draw.pick(KINDS))))
        if op in NEEDED:
            found = grow(draw, ROWS[NEEDED[op]], x)
            x = found[0] if found else x
        if grow(draw, ROWS[op], x):
            return draw.net(outputs_of(draw))
        draw.rewind(mark)
    return None


def all_types() -> tuple[tuple[str, str], ...]:
    """Every operator with every element type that it takes."""
    return tuple((row.op, dtype) for row in ROWS.values() for dtype in row.dtypes)


def grow(draw: Draw, row: Row, x: str) -> tuple[str, ...] | None:
    """The outputs of a node of this operator on a value; None where it does not fit."""
    if str(draw.values[x].dtype) not in row.dtypes:
        return None
    mark = draw.mark()
    try:
        return draw.apply(row.op, row.make(draw, x))
    except MisfitError:
        draw.rewind(mark)
        return None


def grow_anywhere(draw: Draw, ops: Sequence[str] = tuple(ROWS)) -> None:
    """Some operator on some value, the latest ones rather, seldom a constant."""
    for _ in range(8):
        names = [name for name in draw.values if name not in draw.constants]
        if draw.constants and draw.chance(0.04):
            names = list(draw.constants)
        x = draw.pick(names[-4:] if draw.chance(0.7) else names)
        if grow(draw, ROWS[draw.pick(ops)], x):
            return


def source_for(draw: Draw, row: Row) -> str:
    """A new input that this operator may take."""
    kind = draw.pick(row.dtypes)
    if set(FLOATS) & set(row.dtypes) and draw.chance(0.8):
        kind = 'float32'
    how = draw.pick(KINDS)
    if row.op in DOMAINS and draw.chance(0.8):
        how = DOMAINS[row.op]
    return draw.given(draw.data(draw.shape(), kind, how))


def add_pair(draw: Draw, first: Row, then: Row, attempts: int, alone: bool = False) -> bool:
    """A node, and another one that reads it."""
    for attempt in range(attempts):
        mark = draw.mark()
        names = [n for n in draw.values if n not in draw.constants]
        if alone or not names or draw.chance(0.5):
            x = source_for(draw, first)
            if first.op in NEEDED:
                found = grow(draw, ROWS[NEEDED[first.op]], x)
                x = found[0] if found else x
        else:
            x = draw.pick(names)
        made = grow(draw, first, x)
        # Where nothing fits, results outside an operator's domain are better than none.
        draw.special = alone and attempt > attempts // 2 and then.op in CLEAR
        done = made and any(grow(draw, then, y) for y in made)
        draw.special = False
        if done:
            return True
        draw.rewind(mark)
    return False


def outputs_of(draw: Draw) -> list[str]:
    """What nobody reads; now and then also what is read inside, an input, one value twice."""
    read = {name for node in draw.nodes for name in node.inputs}
    made = [name for node in draw.nodes for name in node.outputs]
    outputs = [name for name in made if name not in read]
    inner = [name for name in made if name in read]
    if inner and draw.chance(0.25):
        outputs.append(draw.pick(inner))
    if draw.chance(0.06):
        outputs += draw.apply('Identity', Step([draw.pick(list(draw.inputs))]))
    if draw.chance(0.06):
        outputs += draw.apply('Identity', Step([draw.pick(outputs)]))
    draw.rng.shuffle(outputs)
    return outputs


# -- motifs: what real networks are made of, in small


def _image(draw: Draw) -> str:
    shape = (draw.pick((1, 1, 2)), draw.pick((2, 3, 4)), draw.pick((3, 4, 5)), draw.pick((3, 4, 6)))
    return draw.given(draw.data(shape, 'float32'))


def _conv(draw: Draw, x: str, made: int, taps: int = 1, groups: int = 1, stride: int = 1) -> str:
    channels = draw.values[x].shape[1]
    shape = (made, channels // groups, taps, taps)
    weight = draw.weight(shape, 'float32', shape[1] * taps * taps)
    pad = taps // 2
    inputs = [x, weight] + [draw.operand((made,), 'float32')] * draw.int(0, 1)
    attributes = {'pads': [pad] * 4, 'group': groups, 'strides': [stride] * 2}
    return draw.apply('Conv', Step(inputs, attributes))[0]


def _activation(draw: Draw, x: str) -> str:
    op = draw.pick(('Relu', 'Relu', 'Sigmoid', 'HardSwish', 'LeakyRelu', 'Tanh'))
    return draw.apply(op, Step([x]))[0]


def _batch_norm(draw: Draw, x: str) -> str:
    channels = (draw.values[x].shape[1],)
    factors = [draw.constant(draw.data(channels, 'float32')) for _ in range(3)]
    variance = draw.constant(draw.data(channels, 'float32', 'positive'))
    return draw.apply('BatchNormalization', Step([x, *factors, variance]))[0]


def residual(draw: Draw) -> None:
    x = _image(draw)
    channels = draw.values[x].shape[1]
    y = _conv(draw, x, channels, draw.pick((1, 3)))
    y = _batch_norm(draw, y) if draw.chance(0.5) else y
    y = _conv(draw, _activation(draw, y), channels, draw.pick((1, 3)))
    z = draw.apply('Add', Step(draw.pick(((x, y), (y, x)))))[0]
    _activation(draw, z)


def gate(draw: Draw) -> None:
    """Squeeze and excitation."""
    x = _image(draw)
    x = _activation(draw, _conv(draw, x, draw.values[x].shape[1], 3)) if draw.chance(0.6) else x
    channels = draw.values[x].shape[1]
    pooled = draw.apply(draw.pick(('GlobalAveragePool', 'GlobalMaxPool')), Step([x]))[0]
    small = _activation(draw, _conv(draw, pooled, draw.pick((1, 2))))
    weight = draw.apply('Sigmoid', Step([_conv(draw, small, channels)]))[0]
    draw.apply('Mul', Step(draw.pick(((x, weight), (weight, x)))))


def inception(draw: Draw) -> None:
    """Branches of different depth, joined in place."""
    x = _image(draw)
    branches = []
    for _ in range(draw.int(2, 3)):
        y = x
        for _ in range(draw.int(0, 2)):
            y = _activation(draw, _conv(draw, y, draw.pick((1, 2, 3)), draw.pick((1, 3))))
        branches.append(y)
    if draw.chance(0.3):
        pool = Step([x], {'kernel_shape': [3, 3], 'pads': [1] * 4})
        branches.append(draw.apply(draw.pick(('MaxPool', 'AveragePool')), pool)[0])
    joined = draw.apply('Concat', Step(branches, {'axis': 1}))[0]
    if draw.chance(0.6):
        _conv(draw, joined, draw.pick((1, 2)), draw.pick((1, 3)))


def pyramid(draw: Draw) -> None:
    """A small image brought up again and added to the larger ones, several times."""
    size = draw.pick((4, 8))
    x = draw.given(draw.data((1, draw.pick((1, 2)), size, size), 'float32'))
    channels = draw.values[x].shape[1]
    levels = [x]
    for _ in range(draw.int(1, 2)):
        levels.append(_activation(draw, _conv(draw, levels[-1], channels, 3, stride=2)))
    top = levels[-1]
    for level in reversed(levels[:-1]):
        scales = draw.constant(np.array([1, 1, 2, 2], np.float32))
        mode = {'mode': draw.pick(('nearest', 'nearest', 'linear'))}
        if mode['mode'] == 'nearest':
            mode |= {'coordinate_transformation_mode': 'asymmetric', 'nearest_mode': 'floor'}
        grown = draw.apply('Resize', Step([top, '', scales], mode))[0]
        top = draw.apply('Add', Step([_conv(draw, level, channels), grown]))[0]
        if draw.chance(0.4):
            _conv(draw, top, channels, 3)


def attention(draw: Draw) -> None:
    rows, depth = draw.pick((2, 3, 5)), draw.pick((2, 4))
    x = draw.given(draw.data((draw.pick((1, 2)), rows, depth), 'float32'))
    q, k, v = (
        draw.apply('MatMul', Step([x, draw.weight((depth, depth), 'float32', depth)]))[0]
        for _ in range(3)
    )
    turned = draw.apply('Transpose', Step([k], {'perm': [0, 2, 1]}))[0]
    scores = draw.apply('MatMul', Step([q, turned]))[0]
    share = draw.apply('Softmax', Step([scores], {'axis': -1}))[0]
    y = draw.apply('MatMul', Step([share, v]))[0]
    y = draw.apply('Add', Step([x, y]))[0]
    scale = draw.operand((depth,), 'float32')
    draw.apply('LayerNormalization', Step([y, scale], {'axis': -1}))


def shuffle(draw: Draw) -> None:
    """Channels in groups, shuffled between them."""
    channels = draw.pick((4, 6))
    size = draw.pick((2, 3))
    x = draw.given(draw.data((1, channels, size, size), 'float32'))
    y = _conv(draw, x, channels, 1, 2)
    y = draw.apply('Reshape', Step([y, draw.numbers([0, 2, channels // 2, size, size])]))[0]
    y = draw.apply('Transpose', Step([y], {'perm': [0, 2, 1, 3, 4]}))[0]
    y = draw.apply('Reshape', Step([y, draw.numbers([0, channels, size, size])]))[0]
    y = _conv(draw, y, channels, 3, channels)
    if draw.chance(0.5):
        a, b = draw.apply('Split', Step([y], {'axis': 1, 'num_outputs': 2}, 2))
        y = draw.apply('Concat', Step([_activation(draw, a), b], {'axis': 1}))[0]
    draw.apply('Add', Step([x, y]))


MOTIFS: Sequence[Callable[[Draw], None]] = (
    residual, gate, inception, pyramid, attention, shuffle,
)  # fmt: skip
