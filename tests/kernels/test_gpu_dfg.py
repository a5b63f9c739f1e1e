"""The dfg schema: every fused kind in one kernel, around the edges of its tile; what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.matrix_units import cut_off, parts_of
from tilewright.kernels.gpu.precision import sum_error
from tilewright.kernels.gpu.schemas.dfg.counts import segment_counts
from tilewright.kernels.gpu.schemas.dfg.graph import block_graph, extracted
from tilewright.kernels.gpu.schemas.dfg.plan import plan
from tilewright.kernels.gpu.schemas.dfg.space import propose, table
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.bounds import schedule_bounds
from tilewright.model.gpu.time import predict_gpu
from tilewright.model.gpu.transactions import work
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group, Tensor
from tilewright.ops.normalise import row_norm, softmax
from tilewright.ops.pooling import max_pool
from tilewright.ops.products import stacked_product
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Stage, call, read
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.targets.gpu.choose import search


def conv(c: int, h: int, k: int, r: int, stride: int = 1, dilation: int = 1, **more) -> Group:
    pad = dilation * (r // 2)
    return conv2d(
        c=c, h=h, w=h + 1, k=k, r=r, s=r, stride=stride, pad=pad, dilation=dilation, **more
    )


def tied(*groups: Group) -> Group:
    """One behind the other, at the first operand of each."""
    whole = groups[0]
    for group in groups[1:]:
        made = chain(whole, group, group.stages[0].reads[0].tensor)
        assert made is not None
        whole = made.group
    return whole


def pool(c: int, h: int, stride: int) -> Group:
    return max_pool((1, c, h, h + 1), windows((h, h + 1), 3, stride, 1))


def residual(h: int) -> Group:
    """Two consumers of one producer: conv1 -> Y, conv2(Y) + Y."""
    both = tied(conv(3, h, 4, 3, activation='relu'), conv(4, h, 4, 3))
    shared = both.stages[-1].reads[0].tensor
    last = both.stages[-1]
    made = replace(both.output, name='Acc9', role='inner')
    dims = tuple(d for d in last.dims if d.kind == 'parallel')
    here = last.write.index
    add = Stage(
        'add', dims, Access('Out', here), (Access('Acc9', here), Access(shared, here)),
        call('add', read(0), read(1)),
    )  # fmt: skip
    tensors = (*(t for t in both.tensors if t.role != 'output'), made, both.output)
    stages = (*both.stages[:-1], replace(last, write=Access('Acc9', here)), add)
    return Group('residual', tensors, stages, (*both.storage, ('Acc9', 'register')))


def pools(h: int) -> Group:
    """Two consumers that see different values outside: a convolution 0, a maximum -inf."""
    y = tied(conv(2, h, 3, 1), conv(3, h, 3, 3))
    first, second = y.stages
    shared = second.reads[0].tensor
    pooled = pool(3, h, 1).stages[0]
    seen = Access(shared, pooled.reads[0].index)
    largest = replace(pooled, reads=(seen,), write=Access('P', pooled.write.index))
    total = Stage(
        'total', tuple(d for d in pooled.dims if d.kind == 'parallel'),
        Access('Out', pooled.write.index),
        (Access('P', pooled.write.index), Access('Q', pooled.write.index)),
        call('add', read(0), read(1)),
    )  # fmt: skip
    tensors = (
        *(t for t in y.tensors if t.role != 'output'),
        Tensor('P', ('n', 'k', 'h', 'w'), (1, 3, h, h + 1), 'inner'),
        Tensor('Q', ('n', 'k', 'h', 'w'), (1, 3, h, h + 1), 'inner'),
        y.output,
    )
    stages = (first, largest, replace(second, write=Access('Q', second.write.index)), total)
    return Group('pools', tensors, stages, (*y.storage, ('P', 'cache')))


def attention(n: int, d: int = 6) -> Group:
    scores = stacked_product((2, n, 5), (2, 5, n + 1))
    return tied(scores, softmax((2, n, n + 1), 2), stacked_product((2, n, n + 1), (2, n + 1, d)))


KINDS = {
    'conv+conv': lambda h: tied(conv(3, h, 4, 3, bias=True, activation='relu'), conv(4, h, 5, 3)),
    'strided': lambda h: tied(
        conv(3, 2 * h, 4, 3, stride=2),
        conv2d(c=4, h=h, w=h + 1, k=5, r=3, s=3, pad=1, stride=2),
    ),
    'dilated': lambda h: tied(conv(3, h, 4, 3, dilation=2), conv(4, h, 2, 3, dilation=2)),
    'grouped': lambda h: tied(conv(4, h, 4, 3, groups=2), conv(4, h, 6, 3, groups=2, bias=True)),
    'batched': lambda h: tied(conv(3, h, 4, 1, n=2), conv(4, h, 5, 3, n=2, bias=True)),
    '1x1+dw+1x1': lambda h: tied(
        conv(3, h, 4, 1, bias=True), conv(4, h, 4, 3, groups=4, activation='relu'), conv(4, h, 3, 1)
    ),
    'conv+pool': lambda h: tied(conv(3, h, 4, 3), pool(4, h, 2)),
    'pool+conv': lambda h: tied(pool(3, h, 1), conv(3, h, 4, 3)),
    'attention': attention,
    'norm+product': lambda h: tied(row_norm('layernorm', (h, 9)), stacked_product((h, 9), (9, 7))),
    'residual': residual,
    'two pads': pools,
    'one column': lambda h: tied(
        max_pool((1, 2, h, 1), windows((h, 1), (3, 1), 1, (1, 0, 1, 0))),
        max_pool((1, 2, h, 1), windows((h, 1), (3, 1), 1, (1, 0, 1, 0))),
    ),
    'one stage': lambda h: conv(3, h, 5, 3, bias=True),
    'pointwise': lambda h: elementwise('exp', (h, 5)),
}
SCHEDULES = {
    'whole': GpuSchedule.of('dfg', threads=32, bn=1, bk=0, bh=0, bw=0),
    'small': GpuSchedule.of('dfg', threads=32, bn=1, bk=2, bh=2, bw=4, tk=2, tp=2, format=1),
    'tall': GpuSchedule.of('dfg', threads=64, bn=2, bk=3, bh=4, bw=4, tk=4, tp=3, format=2),
    'staged': GpuSchedule.of('dfg', threads=32, bn=1, bk=4, bh=4, bw=4, tk=4, tp=2, ci=2),
    'weights': GpuSchedule.of(
        'dfg', threads=32, bn=1, bk=0, bh=2, bw=0, tk=4, tp=2, ci=2, cw=1, stages=2, format=1
    ),
    'slid': GpuSchedule.of(
        'dfg', threads=64, bn=1, bk=4, bh=4, bw=4, tk=4, tp=2, sh=2, sw=4, early=1, format=3
    ),
}


# With enough columns for matrix instructions.
WIDE = {
    '1x1+3x3': lambda h: tied(
        conv(20, h, 24, 1, bias=True, activation='relu'), conv(24, h, 18, 3, bias=True)
    ),
    'inverted': lambda h: tied(
        conv(16, h, 40, 1, bias=True),
        conv(40, h, 40, 3, groups=40, activation='relu'),
        conv(40, h, 24, 1, bias=True),
    ),
    'dw+1x1': lambda h: tied(
        conv(24, h, 24, 3, groups=24, bias=True, n=2), conv(24, h, 20, 1, n=2)
    ),
    'dw/2+1x1': lambda h: tied(
        conv2d(c=8, h=2 * h, w=2 * h, k=8, r=3, s=3, stride=2, pad=1, groups=8),
        conv2d(c=8, h=h, w=h, k=9, r=1, s=1),
    ),
    'stem+pool': lambda h: tied(
        conv2d(c=3, h=4 * h, w=4 * h, k=16, r=7, s=7, stride=2, pad=3, bias=True),
        max_pool((1, 16, 2 * h, 2 * h), windows((2 * h, 2 * h), 3, 2, 1)),
    ),
    'grouped': lambda h: tied(conv(8, h, 16, 1), conv(16, h, 32, 3, groups=2)),
    'attention': lambda h: attention(h + 10, 9),
    'one stage': lambda h: conv(3, h, 17, 3, bias=True),
}
MATRIX = {
    'direct': {'threads': 64, 'bn': 1, 'bh': 4, 'bw': 4, 'bk': 0, 'tk': 16, 'tp': 8},
    'slid': {'threads': 64, 'bn': 1, 'bh': 4, 'bw': 8, 'bk': 16, 'tk': 32, 'tp': 16, 'sh': 2,
             'sw': 4, 'format': 3},
    'staged': {'threads': 128, 'bn': 2, 'bh': 4, 'bw': 0, 'bk': 0, 'tk': 16, 'tp': 32, 'sh': 4,
               'ci': 8, 'cw': 1, 'stages': 2, 'format': 3},
    'whole': {'threads': 96, 'bn': 1, 'bh': 0, 'bw': 0, 'bk': 0, 'tk': 32, 'tp': 16, 'sh': 2,
              'sw': 2, 'ci': 64, 'format': 1},
    'early': {'threads': 64, 'bn': 1, 'bh': 4, 'bw': 8, 'bk': 16, 'tk': 16, 'tp': 8, 'sh': 2,
              'early': 1, 'format': 3},
}  # fmt: skip


def check(group: Group, schedule: GpuSchedule, target: str = 'host') -> None:
    on, arrays = device(target), random_arrays(group, 3)
    module = generate(group, schedule)
    assert len(module.steps) == 1
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(module, on, constants) as runner:
        on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('kind', KINDS)
def test_one_kernel_computes_the_group(kind: str, schedule: str) -> None:
    """One size of each: below, at or above what tiles of 4 cover; all of them over the kinds."""
    number = list(KINDS).index(kind) + list(SCHEDULES).index(schedule)
    check(KINDS[kind](7 + number % 3), SCHEDULES[schedule])


@pytest.mark.parametrize('schedule', MATRIX)
@pytest.mark.parametrize('kind', WIDE)
def test_matrix_instructions_and_windows_that_slide(kind: str, schedule: str) -> None:
    number = list(WIDE).index(kind) + list(MATRIX).index(schedule)
    tiles = MATRIX[schedule] | ({'bh': 16, 'bw': 8} if kind == 'attention' else {})
    check(WIDE[kind](7 + number % 3), GpuSchedule.of('dfg', 'mma_tf32x3', **tiles))


@pytest.mark.parametrize('size', [7, 8, 9])
@pytest.mark.parametrize(('kind', 'early'), [('inverted', 0), ('inverted', 1), ('dw+1x1', 1)])
def test_channels_that_are_walked_in_parts(kind: str, early: int, size: int) -> None:
    """Stages before the last product, for 16 of its 48 or 32 channels at a time."""
    tiles = {'bn': 1, 'bh': 4, 'bw': 4, 'bk': 0, 'tk': 16, 'tp': 8, 'sh': 2, 'format': 3}
    schedule = GpuSchedule.of('dfg', 'mma_tf32x3', threads=128, hc=16, early=early, **tiles)
    check(
        tied(conv(16, size, 48, 1, bias=True), *_behind(48, size)) if kind == 'inverted'
        else tied(*_behind(32, size)),
        schedule,
    )  # fmt: skip


def _behind(c: int, h: int) -> tuple[Group, Group]:
    depthwise = conv(c, h, c, 3, groups=c, bias=True, activation='relu')
    return depthwise, conv(c, h, 24, 1, bias=True)


@pytest.mark.parametrize('size', [7, 8, 9])
@pytest.mark.parametrize(
    ('kind', 'schedule'),
    [
        ('conv+conv', 'staged'), ('strided', 'staged'), ('1x1+dw+1x1', 'staged'),
        ('attention', 'staged'), ('1x1+dw+1x1', 'slid'), ('conv+pool', 'slid'),
    ],
)  # fmt: skip
def test_around_the_edges_of_a_tile(kind: str, schedule: str, size: int) -> None:
    check(KINDS[kind](size), SCHEDULES[schedule], 'opencl')


@needs_nvrtc
@pytest.mark.parametrize('architecture', ['sm_75', 'sm_80', 'sm_90'])
def test_nvrtc_compiles_every_schedule(architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubins

    kinds = ('conv+conv', '1x1+dw+1x1', 'two pads', 'norm+product', 'attention', 'conv+pool')
    kernels = [
        replace(generate(KINDS[kind](9), schedule).steps[0].kernel, name=f'k{n}')
        for n, (kind, schedule) in enumerate(zip(kinds, SCHEDULES.values(), strict=True))
    ]
    if architecture != 'sm_75':
        kernels += [
            replace(
                generate(group(9), GpuSchedule.of('dfg', 'mma_tf32x3', **tiles)).steps[0].kernel,
                name=f'm{n}',
            )
            for n, (group, tiles) in enumerate(zip(WIDE.values(), MATRIX.values(), strict=False))
        ]
    _, _, resources = compile_cubins(kernels, architecture)
    assert [resources[k.name].spill_bytes for k in kernels] == [0] * len(kernels)


def test_the_graph_of_a_block() -> None:
    """Register edges inside a part, barriers between two; a thread's part ends at its loads."""
    graph = block_graph(KINDS['conv+conv'](8))
    first, last = graph.stores
    assert (first.level, last.level) == ('shared', 'global')
    assert [pair[0] for pair in graph.barriers] == [first.name]
    assert {'relu', 'bias', 'conv2d0'} <= {n.name for n in extracted(graph, first).nodes}
    assert first.name not in {n.name for n in extracted(graph, last).nodes}


def test_only_chains_are_searched() -> None:
    """Ordinary groups are chosen as ever; chains get one kernel that the model priced."""
    machine = known_gpu('h200')
    assert not table(conv(3, 8, 4, 3), 'fma')
    assert not propose(conv(3, 8, 4, 3), machine)
    group = tied(conv(16, 28, 16, 3), conv(16, 28, 16, 3))
    best, *_ = search(group, machine, 4, 1e-4, trials=24)
    assert best.schedule.schema == 'dfg'
    done = work(group, best.schedule)
    again = done.blocks * (done.products * 64 + done.matrix * 2048 / 3)
    assert again >= sum(s.flops for s in group.stages)
    assert predict_gpu(group, best.schedule, machine).seconds >= (
        schedule_bounds(group, best.schedule, machine).seconds
    )


def test_counts_by_hand() -> None:
    """Matrix instructions, multiply-adds and reads of a depthwise stage and a 1x1 convolution: 32
    channels, 64 columns, a tile of 4 x 8 pixels, 4 warps.
    """
    group = tied(
        conv2d(c=32, h=16, w=16, k=32, r=3, s=3, pad=1, groups=32),
        conv2d(c=32, h=16, w=16, k=64, r=1, s=1),
    )
    tiles = {'bn': 1, 'bk': 0, 'bh': 4, 'bw': 8, 'tk': 32, 'tp': 16, 'sh': 4, 'format': 3}
    p = plan(group, GpuSchedule.of('dfg', 'mma_tf32x3', threads=128, **tiles))
    slid, product = (segment_counts(p, segment) for segment in p.segments)
    strips = 32 * 8 // 32  # warps of them: every channel, every column
    assert slid.products == strips * 4 * 9
    assert slid.reads == strips * (6 * 3 + 9)
    steps = 4 * 32 // 8  # shares of 32 columns by 16 pixels, depths in eights
    assert product.matrix == steps * 3 * 2 * 2
    assert product.reads == steps * (2 * 2 + 2)
    assert product.wavefronts == steps * (2 * 2 + 4 * 2)  # planes are 8 banks apart
    assert product.share == 1.0


def test_errors_of_sums_behind_each_other_add_up() -> None:
    group = tied(conv(16, 8, 32, 1), conv(32, 8, 16, 3))
    tiles = {'bn': 1, 'bk': 0, 'bh': 4, 'bw': 4, 'tk': 16, 'tp': 8}
    parts = parts_of('mma_tf32x3')
    assert parts is not None
    found = sum_error(group, GpuSchedule.of('dfg', 'mma_tf32x3', threads=64, **tiles))
    assert found == pytest.approx(2 * parts.left_out + cut_off(parts, 16 + 9 * 32))
    assert sum_error(group, GpuSchedule.of('dfg', threads=64, **tiles)) == 0.0


def test_neighbours_have_kernels_of_their_own() -> None:
    """Decisions for stages that a chain does not have would fill a search with copies."""
    group = tied(conv(16, 28, 16, 3, groups=16), conv(16, 28, 16, 1))
    machine = known_gpu('h200')
    space, (best, *_) = moves(group, machine), propose(group, machine)
    kernels = [generate(group, s).steps[0].kernel for s in (best, *space.neighbours(best))]
    texts = [(kernel.body, kernel.threads, kernel.grid) for kernel in kernels[1:]]
    assert len(set(texts)) == len(texts) > 4


def test_what_does_not_fit_names_the_edge() -> None:
    group = tied(conv(3, 56, 256, 3), conv(256, 56, 64, 3))
    edge = group.stages[-1].reads[0].tensor
    with pytest.raises(ScheduleError, match=f'the edge {edge} .1x256x10x59. takes 604160, and'):
        generate(group, GpuSchedule.of('dfg', threads=256, bn=1, bk=0, bh=8, bw=0))


@pytest.mark.parametrize(
    ('changed', 'words'),
    [
        ({'threads': 2048}, '1 to 1024 threads'),
        ({'tk': 16, 'tp': 16}, 'at most 128 sums'),
        ({'stages': 2}, 'nothing is copied in stages without ci'),
        ({'format': 4}, 'format is one of'),
        ({'sh': 8, 'sw': 4}, 'slides over 1 to 16 outputs'),
        ({'hc': 16}, 'hc=16 must be a multiple of 16 that divides the 4 channels'),
    ],
)
def test_schedules_that_are_refused(changed: dict[str, int], words: str) -> None:
    tiles = {'threads': 64, 'bn': 1, 'bk': 0, 'bh': 4, 'bw': 0}
    with pytest.raises(ScheduleError, match=words):
        generate(KINDS['conv+conv'](8), GpuSchedule.of('dfg', 'fma', **(tiles | changed)))


def test_what_is_stored_in_memory_is_not_fused() -> None:
    group = KINDS['conv+conv'](8)
    edge = group.stages[-1].reads[0].tensor
    levels = tuple((n, 'global' if n == edge else level) for n, level in group.storage)
    with pytest.raises(ScheduleError, match='between stages is stored in memory'):
        generate(replace(group, storage=levels), SCHEDULES['whole'])
