"""Groups of several reducing stages: they compute what their parts do, and a tile's regions are
exactly what its accesses touch.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import ScheduleError, SpecError
from tilewright.ops.chain import chain, is_chained, regions, repetition, tile_counts
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.pooling import max_pool
from tilewright.ops.reference import reference
from tilewright.ops.stage import Affine
from tilewright.ops.windows import windows


def conv(c: int, h: int, k: int, r: int, stride: int = 1, dilation: int = 1, **more) -> Group:
    pad = dilation * (r // 2)
    return conv2d(c=c, h=h, w=h, k=k, r=r, s=r, stride=stride, pad=pad, dilation=dilation, **more)


def tied(first: Group, second: Group) -> Group:
    made = chain(first, second, second.main.reads[0].tensor)
    assert made is not None
    return made.group


CHAINS = {
    'conv+conv': tied(conv(3, 9, 4, 3), conv(4, 9, 5, 3)),
    'strided': tied(conv(3, 11, 4, 3, stride=2), conv(4, 6, 5, 3, stride=2)),
    'dilated': tied(conv(3, 12, 4, 3), conv(4, 12, 2, 3, dilation=2)),
    'dw+1x1': tied(conv(4, 9, 4, 3, groups=4, activation='relu'), conv(4, 9, 6, 1)),
    '1x1+dw+1x1': tied(
        tied(conv(3, 9, 4, 1, bias=True), conv(4, 9, 4, 3, groups=4)), conv(4, 9, 3, 1)
    ),
    'conv+pool': tied(conv(3, 10, 4, 3), max_pool((1, 4, 10, 10), windows((10, 10), 3, 2, 1))),
    'pool+conv': tied(max_pool((1, 3, 10, 10), windows((10, 10), 2, 2)), conv(3, 5, 4, 3)),
}


@pytest.mark.parametrize('name', CHAINS)
def test_a_chain_computes_what_its_parts_do(name: str) -> None:
    group = CHAINS[name]
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.standard_normal(t.shape)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    whole = reference(group, given)
    values = dict(given)
    for part in parts(group):
        wanted = {t.name for t in part.tensors if t.role in ('input', 'constant')}
        values[part.output.name] = reference(part, {n: values[n] for n in wanted})
    assert is_chained(group)
    np.testing.assert_array_equal(values[group.output.name], whole)


@pytest.mark.parametrize('tile', [{}, {'h': 2, 'w': 3}, {'k': 2, 'h': 1}, {'h': 4, 'w': 4, 'k': 1}])
@pytest.mark.parametrize('name', CHAINS)
def test_regions_are_what_accesses_touch(name: str, tile: dict[str, int]) -> None:
    group = CHAINS[name]
    found, last = regions(group, tile), group.stages[-1]
    steps = {n: range(0, last.sizes[n], tile.get(n, last.sizes[n])) for n in last.parallel}
    for origin in itertools.product(*steps.values()):
        at = dict(zip(steps, origin, strict=True))
        touched: dict[str, list[set[int]]] = {}
        for stage in reversed(group.stages):
            region = found[stage.name]
            ranges = {}
            for dim, span in region.dims.items():
                first = span.start.at(at)
                inside = range(max(first, 0), min(first + span.size, stage.sizes[dim]))
                ranges[dim] = inside
            if stage is not last:
                # What readers touch lies inside what this stage is asked for.
                for axis, positions in enumerate(touched[stage.write.tensor]):
                    first = region.written[axis].start.at(at)
                    assert positions <= set(range(first, first + region.written[axis].size))
            for access in stage.reads:
                if group.tensor(access.tensor).role != 'inner':
                    continue
                extents = group.tensor(access.tensor).shape
                sets = touched.setdefault(access.tensor, [set() for _ in extents])
                for axis, e in enumerate(access.index):
                    walks = [[c * v for v in ranges[n]] for n, c in e.terms]
                    sets[axis] |= {
                        position
                        for steps_of in itertools.product(*walks)
                        if 0 <= (position := e.const + sum(steps_of)) < extents[axis]
                    }


def test_a_halo_is_counted() -> None:
    group = CHAINS['conv+conv']
    first = group.stages[0]
    found = regions(group, {'h': 3, 'w': 3})
    assert [span.size for span in found[first.name].written] == [1, 4, 5, 5]
    assert tile_counts(group, {'h': 3, 'w': 3}) == 9
    assert repetition(group, {'h': 3, 'w': 3})[first.name] == pytest.approx(9 * 25 / 81)
    assert repetition(group, {})[first.name] == 1


def test_groups_that_do_not_fit_together_are_left_apart() -> None:
    assert chain(conv(3, 9, 4, 3), conv(4, 8, 5, 3), 'In') is None
    with pytest.raises(SpecError, match='no tensor'):
        chain(conv(3, 9, 4, 3), conv(4, 9, 5, 3), 'nosuch')


def test_a_stage_that_scatters_cannot_stand_in_front() -> None:
    group = CHAINS['dw+1x1']
    first = group.stages[0]
    write = replace(first.write, index=(*first.write.index[:3], Affine((('w', 2),))))
    wide = replace(group.tensor(first.write.tensor), shape=(1, 4, 9, 17))
    tensors = tuple(wide if t.name == wide.name else t for t in group.tensors)
    changed = Group('x', tensors, (replace(first, write=write), *group.stages[1:]), group.storage)
    with pytest.raises(ScheduleError, match='single iterators'):
        regions(changed, {'h': 2})
