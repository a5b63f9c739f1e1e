"""The cache simulator: counts worked out by hand, and a slow simulator written another way."""

from __future__ import annotations

import itertools
import random
from collections import Counter, OrderedDict

import pytest

from tilewright.errors import InputError, ScheduleError
from tilewright.machine.machine import Cache
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, Dim, Stage, read, var
from tilewright.schedule.schedule import Level
from tilewright_lab.simulate.cachesim import Layout, SimCache, simulate


def level(order, tile, name='reg'):
    return Level.of(name, tuple(order), tile)


def test_everything_fits_so_each_word_is_filled_once():
    stage = matmul(m=4, n=6, k=5).main
    found = simulate(stage, [level('ijk', {'i': 2, 'j': 3, 'k': 1})], [SimCache(1000)])
    assert found.caches[0].fills == {'C': 24, 'A': 20, 'B': 30}
    assert found.caches[0].writebacks == {'C': 24, 'A': 0, 'B': 0}
    assert found.words(0) == {'C': 48, 'A': 20, 'B': 30}


def test_register_loads_and_stores_by_hand():
    """4 x 6 x 5 in register tiles of 2 x 3 x 1: 4 tiles of C, 5 steps each of 2 + 3 words."""
    stage = matmul(m=4, n=6, k=5).main
    inner = simulate(stage, [level('ijk', {'i': 2, 'j': 3, 'k': 1})], [])
    assert inner.loads == {'C': 24, 'A': 4 * 5 * 2, 'B': 4 * 5 * 3}
    assert inner.stores == {'C': 24, 'A': 0, 'B': 0}
    outer = simulate(stage, [level('kij', {'i': 2, 'j': 3, 'k': 1})], [])
    assert outer.loads['C'] == outer.stores['C'] == 5 * 24  # not held over the outer k loop
    held = simulate(stage, [level('ikj', {'i': 2, 'j': 3, 'k': 1})], [], held=['A', 'C'])
    assert held.loads['A'] == 20  # one tile of A for all j


def test_partial_tiles_of_registers_and_caches():
    """5 = 3 + 2 and 7 = 4 + 3: every tile of C once per block of k, whatever the remainders."""
    stage = matmul(m=5, n=7, k=3).main
    levels = [
        level('kij', {'i': 3, 'j': 2, 'k': 1}),
        level('kij', {'i': 5, 'j': 4, 'k': 2}, 'l1'),
    ]
    found = simulate(stage, levels, [])
    assert found.loads['C'] == 3 * 35
    # register tiles: i 3 + 2; j (2 + 2) + (2 + 1): 4 tiles; k 3 steps
    assert found.loads['A'] == 3 * 4 * 5
    assert found.loads['B'] == 3 * 2 * 7


def test_one_line_cache_misses_at_every_change_of_line():
    """Out[i] = X[i]: two tensors take turns in a cache of one line of four words."""
    stage = Stage(
        'copy', (Dim('i', 8),), Access('Out', (var('i'),)), (Access('X', (var('i'),)),), read(0)
    )
    found = simulate(stage, [level('i', {'i': 4})], [SimCache(1)], line_words=4)
    assert found.loads == {'Out': 0, 'X': 8}
    assert found.stores == {'Out': 8, 'X': 0}
    assert found.caches[0].fills == {'Out': 2, 'X': 2}
    assert found.caches[0].writebacks == {'Out': 2, 'X': 0}


def test_lru_evicts_the_oldest_and_thrashes_in_a_cycle():
    """A sweep of 5 words through a cache of 4 never hits; through 5 it hits in the second round."""
    stage = Stage(
        'rounds', (Dim('t', 2, 'reduction'), Dim('o', 1), Dim('i', 5, 'reduction')),
        Access('S', (var('o'),)), (Access('X', (var('i'),)),), read(0), 'sum',
    )  # fmt: skip
    levels = [level('tio', {'t': 1, 'i': 1, 'o': 1})]
    assert simulate(stage, levels, [SimCache(4)]).caches[0].fills['X'] == 10
    assert simulate(stage, levels, [SimCache(6)]).caches[0].fills['X'] == 5


def test_sets_conflict_where_a_full_cache_does_not():
    """Columns of a 4 x 8 matrix lie in one set of a direct-mapped cache of 8 words."""
    stage = Stage(
        'column', (Dim('o', 1), Dim('t', 3, 'reduction'), Dim('i', 4, 'reduction')),
        Access('S', (var('o'),)), (Access('X', (var('i'), var('o'))),), read(0), 'sum',
    )  # fmt: skip
    layout = {'X': Layout(8, (8, 1)), 'S': Layout(7, (1,))}
    levels = [level('oti', {'o': 1, 't': 1, 'i': 1})]
    assert simulate(stage, levels, [SimCache(8)], layout=layout).caches[0].fills['X'] == 4
    assert simulate(stage, levels, [SimCache(8, 1)], layout=layout).caches[0].fills['X'] == 12
    assert simulate(stage, levels, [SimCache(8, 4)], layout=layout).caches[0].fills['X'] == 4


def test_a_strided_window_touches_only_its_words():
    """Stride 3, window 1: every third word of the input, none in between."""
    stage = conv2d(c=1, k=1, h=10, w=10, r=1, s=1, stride=3).main
    whole = simulate(stage, [level('nkhwcrs', dict(stage.sizes))], [SimCache(1000)])
    assert whole.caches[0].fills == {'Out': 16, 'In': 16, 'Ker': 1}
    assert whole.loads['In'] == 16


def test_padding_is_part_of_the_input():
    stage = conv2d(c=2, k=1, h=4, w=4, r=3, s=3, pad=1).main
    whole = simulate(stage, [level('nkhwcrs', dict(stage.sizes))], [SimCache(1000)])
    assert whole.caches[0].fills['In'] == 2 * 6 * 6


def _slow(stage, levels, caches, line_words, ways_of):
    """Point by point, with ordered dictionaries; addresses from strides computed here."""
    bases, strides, base = {}, {}, 0
    for a in stage.accesses:
        shape = [e.extent(stage.sizes) for e in a.index]
        steps, step = [], 1
        for extent in reversed(shape):
            steps.insert(0, step)
            step *= extent
        bases[a.tensor], strides[a.tensor] = base, steps
        base += -(-step // line_words) * line_words
    sets = [[OrderedDict() for _ in range(c // w)] for c, w in zip(caches, ways_of, strict=True)]
    fills = [Counter() for _ in caches]
    backs = [Counter() for _ in caches]
    loads, stores = Counter(), Counter()

    def touch(depth, tensor, line, kind):
        if depth == len(caches):
            return
        bag = sets[depth][line % len(sets[depth])]
        if line in bag:
            bag.move_to_end(line)
            bag[line] = (tensor, bag[line][1] or kind != 'read')
            return
        if kind != 'writeback':
            fills[depth][tensor] += 1
            touch(depth + 1, tensor, line, 'read')
        if len(bag) == ways_of[depth]:
            old, (owner, dirty) = bag.popitem(last=False)
            if dirty:
                backs[depth][owner] += 1
                touch(depth + 1, owner, old, 'writeback')
        bag[line] = (tensor, kind != 'read')

    def words(access, tile):
        points = itertools.product(*(range(*tile[d]) for d in access.names))
        seen = set()
        for point in points:
            at = dict(zip(access.names, point, strict=True))
            seen.add(
                bases[access.tensor]
                + sum(
                    (e.at(at) - e.const) * s
                    for e, s in zip(access.index, strides[access.tensor], strict=True)
                )
            )
        return sorted(seen)

    def tiles(box, remaining):
        if not remaining:
            yield box
            return
        level, *inner = remaining

        def cut(box, names):
            if not names:
                yield from tiles(box, inner)
                return
            name, *rest = names
            lo, hi = box[name]
            for at in range(lo, hi, level.tile[name]):
                yield from cut({**box, name: (at, min(at + level.tile[name], hi))}, rest)

        yield from cut(box, list(level.order))

    current = None

    def store(tile):
        for address in words(stage.write, tile):
            stores[stage.write.tensor] += 1
            touch(0, stage.write.tensor, address // line_words, 'write')

    for tile in tiles({d.name: (0, d.size) for d in stage.dims}, list(reversed(levels))):
        mine = {d: tile[d] for d in stage.write.names}
        if mine != current:
            if current is not None:
                store(current)
            current = mine
            for address in words(stage.write, tile):
                loads[stage.write.tensor] += 1
                touch(0, stage.write.tensor, address // line_words, 'read')
        for access in stage.reads:
            for address in words(access, tile):
                loads[access.tensor] += 1
                touch(0, access.tensor, address // line_words, 'read')
    store(current)
    for depth, group in enumerate(sets):
        for bag in group:
            for line, (tensor, dirty) in bag.items():
                if dirty:
                    backs[depth][tensor] += 1
                    touch(depth + 1, tensor, line, 'writeback')
    return loads, stores, fills, backs


STAGES = [
    matmul(m=6, n=5, k=7).main,
    conv2d(n=2, c=2, k=3, h=5, w=6, r=3, s=2, pad=1).main,
    conv2d(n=1, c=2, k=2, h=9, w=8, r=3, s=3, stride=2, dilation=1).main,
    conv2d(n=1, c=4, k=4, h=7, w=6, r=2, s=2, dilation=(2, 3), groups=2).main,
    conv2d(n=1, c=3, k=3, h=6, w=6, r=3, s=3, groups=3).main,
]


@pytest.mark.parametrize('seed', range(30))
def test_against_a_slow_simulator_on_random_nests(seed):
    rng = random.Random(seed)
    stage = STAGES[seed % len(STAGES)]
    levels, outer = [], dict(stage.sizes)
    for name in ('l2', 'l1', 'reg')[rng.randrange(3) :]:
        outer = {d: rng.randint(1, size) for d, size in outer.items()}
        order = list(outer)
        rng.shuffle(order)
        levels.insert(0, level(order, outer, name))
    ways = [rng.choice([1, 2, 4, 0]) for _ in range(rng.randrange(1, 4))]
    caches = [SimCache(4 * rng.randint(1, 4) * 3**i, w) for i, w in enumerate(ways)]
    line = rng.choice([1, 1, 4, 3])
    found = simulate(stage, levels, caches, line_words=line)
    lines = [c.lines for c in caches]
    loads, stores, fills, backs = _slow(
        stage, levels, lines, line, [w or n for w, n in zip(ways, lines, strict=True)]
    )
    tensors = [a.tensor for a in stage.accesses]
    assert found.loads == {t: loads[t] for t in tensors}
    assert found.stores == {t: stores[t] for t in tensors}
    for depth, count in enumerate(found.caches):
        assert count.fills == {t: fills[depth][t] for t in tensors}
        assert count.writebacks == {t: backs[depth][t] for t in tensors}


def test_a_larger_fully_associative_cache_never_misses_more():
    """Inclusion property of LRU."""
    stage = STAGES[1]
    levels = [level('crsnkhw', dict.fromkeys(stage.sizes, 1))]
    fills = [
        sum(simulate(stage, levels, [SimCache(n)]).caches[0].fills.values()) for n in range(1, 90)
    ]
    assert fills == sorted(fills, reverse=True)


def test_cache_of_a_machine():
    cache = Cache('l1', 32 * 1024, 64, 8, 1, 30000)
    assert SimCache.of(cache) == SimCache(512, 8)
    assert SimCache.of(cache, associative=True) == SimCache(512)


def test_bad_input_is_refused_in_one_sentence():
    stage = matmul(m=4, n=4, k=4).main
    good = level('ijk', {'i': 1, 'j': 1, 'k': 1})
    with pytest.raises(InputError, match='10 lines in 4 ways'):
        SimCache(10, 4)
    with pytest.raises(ScheduleError, match='at least one level'):
        simulate(stage, [], [])
    with pytest.raises(ScheduleError, match='each dimension once'):
        simulate(stage, [level('ij', {'i': 1, 'j': 1})], [])
    with pytest.raises(InputError, match='line of 0 words'):
        simulate(stage, [good], [], line_words=0)
    with pytest.raises(InputError, match='5 caches are too many'):
        simulate(stage, [good], [SimCache(1)] * 5)
    with pytest.raises(InputError, match='shares a line'):
        simulate(stage, [good], [], layout={'A': Layout(0, (4, 1))})
    with pytest.raises(InputError, match='2 non-negative strides'):
        simulate(stage, [good], [], layout={'A': Layout(0, (4,))})
