"""The traffic model against hand-computed volumes, the paper's formulas, walks over the tiles."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.model.cpu import traffic
from tilewright.model.cpu.traffic import capacity, footprint, level_volumes, touched, volume
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, Affine, Dim, Stage, affine, call, read, var
from tilewright.schedule.schedule import Level

ORDER = ('n', 'k', 'c', 'r', 's', 'h', 'w')


def conv(**sizes):
    return conv2d(**({'c': 4, 'h': 8, 'w': 8, 'k': 4, 'r': 3, 's': 3} | sizes)).main


def words(access: Access, low: dict, high: dict) -> set:
    """Every index of the tensor that a box of iterations touches."""
    names = access.names
    points = itertools.product(*(range(low[n], high[n]) for n in names))
    return {
        tuple(e.at(dict(zip(names, point, strict=True))) for e in access.index) for point in points
    }


def walk(access: Access, order: tuple, tile: dict, low: dict, high: dict, reuse=True) -> int:
    """Words moved when tiles are really visited in order, inside the box from low to high.

    The slice of the tile before is what is in the cache, unless a loop outside the innermost loop
    of the access has advanced: the paper's assumption is that it is evicted by then.
    """
    counters = [range(-(-(high[d] - low[d]) // tile[d])) for d in order]
    moving = [i for i, d in enumerate(order) if d in access.names and len(counters[i]) > 1]
    innermost = moving[-1] if moving else 0
    total, before, last = 0, set(), None
    for point in itertools.product(*counters):
        start = {d: low[d] + i * tile[d] for d, i in zip(order, point, strict=True)}
        end = {d: min(high[d], start[d] + tile[d]) for d in order}
        if last is None or point[:innermost] != last[:innermost]:
            before = set()
        now = words(access, start, end)
        if reuse or now != before:
            total += len(now - before) if reuse else len(now)
        before, last = now, point
    return total


def random_stage(rng: random.Random) -> Stage:
    kind = rng.choice(('dense', 'grouped', 'depthwise', 'matmul'))
    if kind == 'matmul':
        return matmul(m=rng.randint(1, 9), n=rng.randint(1, 9), k=rng.randint(1, 9)).main
    channels = {
        'dense': {'c': 2, 'k': 3, 'groups': 1},
        'grouped': {'c': 4, 'k': 4, 'groups': 2},
        'depthwise': {'c': 3, 'k': 3, 'groups': 3},
    }[kind]
    return conv(
        **channels, n=rng.randint(1, 2), h=rng.randint(5, 7), w=rng.randint(5, 8), pad=1,
        r=rng.randint(1, 3), s=rng.randint(1, 3), stride=rng.randint(1, 4),
        dilation=rng.randint(1, 2),
    )  # fmt: skip


@pytest.mark.parametrize('seed', range(120))
def test_exact_volume_equals_a_walk_over_the_tiles(seed):
    rng = random.Random(seed)
    stage = random_stage(rng)
    order = list(stage.sizes)
    rng.shuffle(order)
    tile = {d: rng.randint(1, size) for d, size in stage.sizes.items()}
    zero = dict.fromkeys(order, 0)
    for access in stage.accesses:
        for reuse in (True, False):
            expected = walk(access, tuple(order), tile, zero, stage.sizes, reuse)
            moved = volume(access, order, tile, stage.sizes, exact=True, window_reuse=reuse)
            assert moved == expected
            assert volume(
                access, order, tile, stage.sizes, exact=True, window_reuse=reuse, written=True
            ) == (2 * expected)


def boxes(tile: dict, low: dict, high: dict):
    """The tiles inside a box, as boxes."""
    for corner in itertools.product(*(range(low[d], high[d], tile[d]) for d in tile)):
        start = dict(zip(tile, corner, strict=True))
        yield start, {d: min(high[d], start[d] + tile[d]) for d in tile}


@pytest.mark.parametrize('seed', range(25))
def test_level_volumes_sum_over_all_outer_tiles_partial_ones_included(seed):
    rng = random.Random(1000 + seed)
    stage = random_stage(rng)
    sizes = stage.sizes
    orders, tiles, bound = [], [], dict(sizes)
    for _ in range(3):
        bound = {d: rng.randint(1, bound[d]) for d in sizes}
        tiles.insert(0, bound)
        order = list(sizes)
        rng.shuffle(order)
        orders.append(tuple(order))
    levels = [
        Level.of(name, order, tile)
        for name, order, tile in zip(('l1', 'l2', 'l3'), orders, tiles, strict=True)
    ]
    volumes = level_volumes(stage, levels, sizes)
    zero = dict.fromkeys(sizes, 0)
    outer_boxes = [(zero, sizes)]
    for i in (2, 1, 0):
        for access in stage.accesses:
            moved = sum(walk(access, orders[i], tiles[i], *box) for box in outer_boxes)
            factor = 2 if access is stage.write else 1
            assert volumes[i][access.tensor] == factor * moved
        outer_boxes = [inner for box in outer_boxes for inner in boxes(tiles[i], *box)]


def test_touched_counts_distinct_values():
    for c1, c2, a, b in itertools.product((1, 2, 3, 4, 6), (1, 2, 3, 6), range(1, 7), range(1, 6)):
        values = {c1 * i + c2 * j for i in range(a) for j in range(b)}
        assert touched(affine(('a', c1), ('b', c2)), {'a': a, 'b': b}) == len(values)


def test_a_stride_beyond_the_window_leaves_words_untouched():
    # 1x1 filter, stride 2: of 15 columns in range 8 are read; 3x3 with stride 4: 3 of each 4.
    column = affine(('w', 2), ('s', 1))
    assert touched(column, {'w': 8, 's': 1}) == 8
    assert column.extent({'w': 8, 's': 1}) == 15
    assert touched(affine(('w', 4), ('s', 3)), {'w': 5, 's': 1}) == 5
    assert touched(affine(('w', 4), ('s', 1)), {'w': 5, 's': 3}) == 15


def test_three_terms_are_bounded_by_range_and_by_points():
    expression = affine(('a', 1), ('b', 2), ('c', 4))
    assert touched(expression, {'a': 2, 'b': 2, 'c': 2}) == 8
    assert touched(expression, {'a': 5, 'b': 5, 'c': 5}) == 4 + 8 + 16 + 1
    assert touched(Affine(()), {}) == 1


def test_matmul_volume_is_equation_3():
    stage = matmul(m=96, n=60, k=80).main
    ni, nj, nk, ti, tj, tk = 96, 60, 80, 16, 12, 10
    levels = [Level.of('l1', ('i', 'j', 'k'), {'i': ti, 'j': tj, 'k': tk})]
    (words_moved,) = level_volumes(stage, levels, stage.sizes)
    # Eq. 3: Ni Nj Nk (1/Ti + 1/Tj + 2/Nk); B moves with 1/Ti, A with 1/Tj, C with 2/Nk.
    assert words_moved == {
        'A': ni * nj * nk // tj,
        'B': ni * nj * nk // ti,
        'C': 2 * ni * nj,
    }


def paper(name: str, N: dict, T: dict) -> dict[str, float]:
    """Volumes of Sec. 4 as printed: per tensor, for the class whose innermost loops are `name`."""
    t = {d: N[d] / T[d] for d in N}
    everything = math.prod(t.values())
    out = T['n'] * T['k'] * T['h'] * T['w']
    ker = T['k'] * T['c'] * T['r'] * T['s']
    high, wide = T['h'] + T['r'] - 1, T['w'] + T['s'] - 1

    def image(rows, columns):
        return T['n'] * T['c'] * rows * columns

    swept = {
        'w': image(high, N['w'] + T['s'] - 1),
        'h': image(N['h'] + T['r'] - 1, wide),
        's': image(high, T['w'] + N['s'] - 1),
        'r': image(T['h'] + N['r'] - 1, wide),
    }
    if name in ('w', 'h'):
        reduction = t['k'] * t['c'] * t['r'] * t['s']
        return {
            'Out': 2 * everything * out,
            'In': everything / t[name] * swept[name],
            'Ker': reduction * ker,
        }
    if name in ('s', 'r'):
        return {
            'Out': 2 * t['n'] * t['k'] * t['h'] * t['w'] * out,
            'In': everything / t[name] * swept[name],
            'Ker': everything * ker,
        }
    inner = name[0]
    return {
        'Out': 2 * everything * out,
        'In': everything / t['k'] / t[inner] * swept[inner],
        'Ker': everything * ker,
    }


CLASSES = {
    'w': ('k', 'c', 'r', 's', 'n', 'h', 'w'),
    'h': ('k', 'c', 'r', 's', 'n', 'w', 'h'),
    's': ('n', 'k', 'h', 'w', 'c', 'r', 's'),
    'r': ('n', 'k', 'h', 'w', 'c', 's', 'r'),
    'wk': ('n', 'c', 'h', 'r', 's', 'w', 'k'),
    'hk': ('n', 'c', 'w', 'r', 's', 'h', 'k'),
    'sk': ('n', 'c', 'h', 'w', 'r', 's', 'k'),
    'rk': ('n', 'c', 'h', 'w', 's', 'r', 'k'),
}


@pytest.mark.parametrize('name', CLASSES)
def test_class_expressions_of_section_4(name):
    """Eq. 5 and its seven companions, for random real tiles and permuted outer bands."""
    rng = random.Random(name)
    N = {'n': 6, 'k': 48, 'c': 30, 'r': 5, 's': 7, 'h': 20, 'w': 28}
    stage = conv(n=6, k=48, c=30, r=5, s=7, h=24, w=34)
    assert stage.sizes == N
    for _ in range(20):
        T = {d: rng.uniform(1, 0.95 * size) for d, size in N.items()}
        expected = paper(name, N, T)
        for access in stage.accesses:
            moved = volume(access, CLASSES[name], T, N, written=access is stage.write)
            assert moved == pytest.approx(expected[access.tensor], rel=1e-12)


def test_loops_of_a_single_trip_do_not_exist():
    stage = matmul(m=8, n=8, k=8).main
    a = next(x for x in stage.reads if x.tensor == 'A')
    # k whole: A[i, k] stays while j, now its innermost neighbour, runs. k halved: it does not.
    whole, halved = {'i': 2, 'j': 2, 'k': 8}, {'i': 2, 'j': 2, 'k': 4}
    assert volume(a, ('i', 'j', 'k'), whole, stage.sizes) == 64
    assert volume(a, ('i', 'j', 'k'), halved, stage.sizes) == 64 * 4


def test_partial_reuse_is_bounded_by_the_slice():
    # stride 2, 1-wide filter: successive tiles share nothing; stride 1, 3-wide: two columns.
    for stride, s, tile_words, total in ((2, 1, 2, 8), (1, 3, 4, 10)):
        stage = conv(c=1, k=1, h=1, w=8 * stride + s - stride, r=1, s=s, stride=(1, stride))
        tile = {**stage.sizes, 'w': 2}
        image = stage.reads[0]
        assert footprint(image, tile) == tile_words
        assert volume(image, ORDER, tile, stage.sizes) == total


def test_registers_do_not_slide():
    stage = conv(c=1, k=1, h=3, w=10)
    tile = {**stage.sizes, 's': 1}
    levels = [Level.of('reg', ORDER, tile), Level.of('l1', ORDER, stage.sizes)]
    in_registers, in_cache = level_volumes(stage, levels, stage.sizes)
    assert in_registers['In'] == 3 * 3 * 8  # every tap loads its eight columns, in three rows
    assert in_cache['In'] == 3 * 10
    sliding, _ = level_volumes(stage, levels, stage.sizes, window_reuse=(True, True))
    assert sliding['In'] == 3 * 10


def test_capacity_is_equation_4():
    stage = conv(n=2, c=16, k=16, h=20, w=20)
    T = {'n': 2, 'k': 5, 'c': 3, 'r': 3, 's': 2, 'h': 7, 'w': 4}
    image, kernel, out = 2 * 3 * (7 + 3 - 1) * (4 + 2 - 1), 5 * 3 * 3 * 2, 2 * 5 * 7 * 4
    assert capacity(stage, T) == image + kernel + out


def test_lines_round_the_fastest_dimension():
    stage = conv(c=2, k=3, h=6, w=20)
    tile = {**stage.sizes, 'k': 2, 'h': 2, 'w': 5}
    # In: 7 columns are one line of 16 words, Ker: 3 taps are one, Out: 5 columns are one.
    assert capacity(stage, tile, line_words=16) == 2 * 4 * 16 + 2 * 2 * 3 * 16 + 2 * 2 * 16
    packed = {'Ker': traffic.PACKED, 'In': 1}
    # In with channels fastest: 2 channels make one line of each of 4 x 7 pixels.
    assert capacity(stage, tile, line_words=16, layout=packed) == 16 * 4 * 7 + 2 * 2 * 9 + 64
    level = [Level.of('l1', ORDER, {**stage.sizes, 'w': 6})]
    (moved,) = level_volumes(stage, level, stage.sizes, line_words=4, layout=packed | {'In': 3})
    # w is innermost: 20 columns swept once are 5 lines of 4; 2 channels, 6 rows.
    assert moved['In'] == 2 * 6 * 20
    assert moved['Out'] == 2 * 3 * 4 * 20  # 18 columns: tiles of 6 share lines
    level = [Level.of('l1', CLASSES['h'], {**stage.sizes, 'w': 6, 'h': 2})]
    (moved,) = level_volumes(stage, level, stage.sizes, line_words=4)
    assert moved['Out'] == 2 * 3 * 4 * (8 + 8 + 8)  # w outside: each tile rounds alone
    assert moved['In'] == 2 * 6 * (8 + 8 + 8)
    with pytest.raises(InputError, match='fastest of its 4'):
        capacity(stage, tile, line_words=4, layout={'In': 7})


def test_accumulators_that_start_at_zero_are_not_read_first():
    stage = matmul(m=4, n=6, k=8).main
    tile = {'i': 2, 'j': 3, 'k': 4}
    assert volume(stage.write, ('k', 'i', 'j'), tile, stage.sizes, written=True) == 2 * 2 * 24
    assert volume(
        stage.write, ('k', 'i', 'j'), tile, stage.sizes, written=True, zero_start=True
    ) == (2 * 2 * 24 - 24)
    level = [Level.of('l1', ('k', 'i', 'j'), tile)]
    (moved,) = level_volumes(stage, level, stage.sizes, zero_start=True)
    assert moved['C'] == 2 * 2 * 24 - 24


def test_a_result_that_is_not_accumulated_moves_once():
    stage = Stage(
        'sum', (Dim('i', 12),), Access('C', (var('i'),)),
        (Access('A', (var('i'),)), Access('B', (var('i'),))), call('add', read(0), read(1)),
    )  # fmt: skip
    (moved,) = level_volumes(stage, [Level.of('l1', ('i',), {'i': 5})], stage.sizes)
    assert moved == {'A': 12, 'B': 12, 'C': 12}


def test_arrays_give_what_single_tiles_give():
    rng = np.random.default_rng(3)
    stage = conv(c=6, k=8, h=13, w=15, pad=1, stride=2)
    sizes, many = stage.sizes, 50
    outer = {d: rng.integers(1, s + 1, many) for d, s in sizes.items()}
    inner = {d: np.minimum(rng.integers(1, s + 1, many), outer[d]) for d, s in sizes.items()}
    orders = (CLASSES['wk'], CLASSES['s'])

    def volumes(small, large, **how):
        bands = [
            SimpleNamespace(order=o, tile=t) for o, t in zip(orders, (small, large), strict=True)
        ]
        return level_volumes(stage, bands, sizes, **how)

    for how in ({}, {'line_words': 4}, {'exact': False}):
        together = volumes(inner, outer, **how)
        for i in range(many):
            alone = volumes(
                {d: int(v[i]) for d, v in inner.items()},
                {d: int(v[i]) for d, v in outer.items()},
                **how,
            )
            for a, b in zip(alone, together, strict=True):
                for tensor in a:
                    assert b[tensor][i] == pytest.approx(a[tensor], rel=1e-12)


def test_symbols_give_what_numbers_give():
    ca = pytest.importorskip('casadi')
    stage = conv(c=6, k=8, h=13, w=15, pad=1, stride=2)
    tile = {'n': 1, 'k': 4, 'c': 3, 'r': 3, 's': 3, 'h': 2, 'w': 3.5}
    symbols = {d: ca.SX.sym(d) if d in 'kchw' else v for d, v in tile.items()}
    free = [d for d in tile if d in 'kchw']
    count = traffic.posynomial(stage.sizes)
    for order in CLASSES.values():
        for access in stage.accesses:
            symbolic = volume(access, order, symbols, stage.sizes, count=count)
            evaluated = ca.Function('v', [symbols[d] for d in free], [symbolic])
            expected = volume(access, order, tile, stage.sizes)
            assert float(evaluated(*(tile[d] for d in free))) == pytest.approx(expected)


def test_posynomial_form_agrees_with_touched_where_it_is_claimed():
    grouped = affine(('g', 4), ('k', 1))
    count = traffic.posynomial({'g': 3, 'k': 4, 'h': 9, 'r': 3})
    assert count(grouped, {'g': 2, 'k': 3}) == 6
    assert count(affine(('h', 2), ('r', 1)), {'h': 4, 'r': 3}) == 9
    assert count(affine(('h', 1), ('r', 2)), {'h': 4, 'r': 3}) == 8


def test_two_tiled_partners_have_no_posynomial():
    ca = pytest.importorskip('casadi')
    count = traffic.posynomial({'h': 9, 'r': 3})
    with pytest.raises(InputError, match='leave one of them untiled'):
        count(affine(('h', 1), ('r', 1)), {'h': ca.SX.sym('h'), 'r': ca.SX.sym('r')})


def test_an_operator_unknown_to_the_package():
    """Out[i, j] += A[i + k, j] * B[k, j]: a correlation along one axis."""
    stage = Stage(
        'correlate',
        (Dim('i', 12), Dim('j', 10), Dim('k', 4, 'reduction')),
        Access('Out', (var('i'), var('j'))),
        (Access('A', (affine(('i', 1), ('k', 1)), var('j'))), Access('B', (var('k'), var('j')))),
        call('mul', read(0), read(1)),
        'sum',
    )
    (moved,) = level_volumes(
        stage, [Level.of('l1', ('j', 'k', 'i'), {'i': 5, 'j': 5, 'k': 4})], stage.sizes
    )
    # i is innermost (5 + 5 + 2): A is swept once, 15 rows of 10; B stays; Out moves in and out.
    assert moved == {'Out': 2 * 120, 'A': 150, 'B': 40}
