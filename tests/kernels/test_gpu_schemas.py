"""GPU schemas against the reference, on the host dialect and, where it is there, on OpenCL; and
their CUDA text through NVRTC, where that is there.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from sampling import covering

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.precision import sum_error
from tilewright.kernels.gpu.schemas.patch.plan import plan
from tilewright.ops.group import Group
from tilewright.ops.products import einsum
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves

ARCHITECTURES = ('sm_75', 'sm_80', 'sm_90')


def groups() -> dict[str, Group]:
    """Strides, dilation, groups, odd sizes, batches, epilogues."""
    return {
        'dense': tw.conv2d(c=8, h=9, w=10, k=20, r=3, s=3, pad=1, bias=True, activation='relu'),
        'strided': tw.conv2d(n=2, c=5, h=11, w=9, k=7, r=3, s=3, stride=2, pad=1),
        'dilated': tw.conv2d(c=4, h=12, w=12, k=16, r=3, s=3, dilation=2, pad=2, bias=True),
        'grouped': tw.conv2d(c=8, h=7, w=7, k=12, r=3, s=1, groups=2, pad=(1, 0)),
        'pointwise': tw.conv2d(n=3, c=16, h=4, w=6, k=24, r=1, s=1, activation='silu', bias=True),
        'first': tw.conv2d(c=3, h=17, w=19, k=16, r=7, s=7, stride=2, pad=3),
        'product': tw.matmul(m=13, n=24, k=40),
    }


IMAGES = tuple(name for name in groups() if name != 'product')
FMA = (
    {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0},
    {'bk': 32, 'bp': 64, 'tk': 8, 'tp': 8, 'kb': 4, 'stages': 3, 'split': 2, 'joint': 1},
    {'bk': 64, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 16, 'stages': 1, 'split': 3, 'joint': 1},
)
MATRIX = (
    {'bk': 16, 'bp': 64, 'tk': 16, 'tp': 32, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0},
    {'bk': 32, 'bp': 32, 'tk': 32, 'tp': 16, 'kb': 16, 'stages': 3, 'split': 2, 'joint': 1},
)
SCHEDULES = [
    *(GpuSchedule.of('tiled', **tiles) for tiles in FMA),
    *(GpuSchedule.of('tiled', 'mma_tf32x3', **tiles) for tiles in MATRIX),
]


PATCH = (
    {'bk': 16, 'bn': 1, 'bh': 2, 'bw': 5, 'tk': 16, 'tp': 16, 'kb': 8, 'stages': 2, 'split': 1},
    {'bk': 32, 'bn': 1, 'bh': 3, 'bw': 4, 'tk': 16, 'tp': 8, 'kb': 3, 'stages': 3, 'split': 1},
    {'bk': 32, 'bn': 1, 'bh': 4, 'bw': 3, 'tk': 32, 'tp': 24, 'kb': 2, 'stages': 1, 'split': 2},
)


def run(module: Module, on: Device, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(the result of a second call on other data than the first, the reference)."""
    group = module.group
    first, second = (random_arrays(group, seed + i) for i in range(2))
    constants = {t.name: second[t.name] for t in group.with_role('constant')}
    runner = Runner(module, on, constants)
    names = [t.name for t in group.with_role('input')]
    runner(**{name: first[name] for name in names})
    on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
    return runner(**{name: second[name] for name in names}), reference(group, second)


def fitted(group: Group, schedule: GpuSchedule) -> Module:
    """The module; not split where there is not enough depth for it."""
    try:
        return generate(group, schedule)
    except ScheduleError:
        whole = tuple((n, 1 if n == 'split' else v) for n, v in schedule.tiles)
        return generate(group, GpuSchedule(schedule.schema, whole, schedule.intrinsic))


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(got - want).max() <= 2e-6 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize(('on', 'name'), covering(['host', 'opencl'], groups()))
def test_the_general_schema(name: str, on: str) -> None:
    module = generate(groups()[name], GpuSchedule.of('general', threads=64))
    close(*run(module, device(on), 1))


@pytest.mark.parametrize(('number', 'name'), covering(range(len(SCHEDULES)), groups()))
def test_the_tiled_schema_on_the_host(name: str, number: int) -> None:
    module = fitted(groups()[name], SCHEDULES[number])
    close(*run(module, device('host'), number))


@pytest.mark.parametrize(('number', 'name'), covering(range(len(FMA)), groups()))
def test_the_tiled_schema_on_opencl(name: str, number: int) -> None:
    module = fitted(groups()[name], SCHEDULES[number])
    close(*run(module, device('opencl'), number))


@pytest.mark.parametrize(('number', 'name'), covering(range(len(PATCH)), IMAGES))
def test_the_patch_schema_on_the_host(name: str, number: int) -> None:
    joint = int(PATCH[number]['kb'] % 8 > 0)
    schedule = GpuSchedule.of('patch', 'mma_tf32x3', **PATCH[number], joint=joint)
    close(*run(fitted(groups()[name], schedule), device('host'), number))


WIDE = (
    {'bk': 16, 'bn': 1, 'bh': 2, 'bw': 5, 'tk': 16, 'tp': 64, 'kb': 8, 'stages': 2, 'split': 1},
    {'bk': 32, 'bn': 1, 'bh': 4, 'bw': 3, 'tk': 32, 'tp': 128, 'kb': 2, 'stages': 1, 'split': 2},
    {'bk': 16, 'bn': 1, 'bh': 3, 'bw': 4, 'tk': 16, 'tp': 64, 'kb': 4, 'stages': 2, 'split': 1,
     'queue': 2, 'gap': 6},
    {'bk': 32, 'bn': 1, 'bh': 3, 'bw': 5, 'tk': 32, 'tp': 64, 'kb': 1, 'stages': 3, 'split': 2,
     'queue': 2, 'late': 1, 'bulk': 1},
    {'bk': 16, 'bn': 1, 'bh': 4, 'bw': 5, 'tk': 16, 'tp': 64, 'kb': 3, 'stages': 1, 'split': 1,
     'bulk': 1},
    {'bk': 16, 'bn': 1, 'bh': 2, 'bw': 3, 'tk': 16, 'tp': 64, 'kb': 8, 'stages': 2, 'split': 1,
     'late': 1},
)  # fmt: skip


KINDS = (
    *(('wgmma_tf32x3', i) for i in (0, 1, 2, 3)),
    *(('wgmma_tf32_bf16', i) for i in (0, 2, 3, 4, 5)),
)


@pytest.mark.parametrize(('kind', 'name'), covering(KINDS, IMAGES))
def test_the_patch_schema_of_warpgroups_on_the_host(kind: tuple[str, int], name: str) -> None:
    intrinsic, number = kind
    joint = int(WIDE[number]['kb'] % 8 > 0)
    schedule = GpuSchedule.of('patch', intrinsic, **WIDE[number], joint=joint)
    close(*run(fitted(groups()[name], schedule), device('host'), number))


STRIPS = (
    ('mma_tf32x3', {'bp': 48, 'bk': 32, 'tk': 16, 'tp': 24, 'kb': 8, 'stages': 2}),
    ('wgmma_tf32x3', {'bp': 64, 'bk': 16, 'tk': 16, 'tp': 64, 'kb': 3, 'stages': 2, 'queue': 2}),
    ('wgmma_tf32_bf16', {'bp': 128, 'bk': 32, 'tk': 32, 'tp': 64, 'kb': 8, 'stages': 2, 'late': 1,
                         'bulk': 1}),
)  # fmt: skip


WINDOWS = ((1, 1, 1, 3), (2, 2, 1, 3), (5, 1, 2, 3), (2, 1, 1, 1), (5, 1, 1, 3))


@pytest.mark.parametrize(('number', 'windows'), covering(range(len(STRIPS)), WINDOWS))
def test_strips_run_through_rows_and_images(number: int, windows: tuple[int, ...]) -> None:
    """Odd rows, so that a strip begins and ends anywhere in a row or an image."""
    images, stride, dilation, window = windows
    intrinsic, tiles = STRIPS[number]
    group = tw.conv2d(
        n=images, c=9, h=7, w=5, k=19, r=window, s=window, stride=stride, dilation=dilation,
        pad=dilation * (window // 2), bias=True,
    )  # fmt: skip
    joint, split = int(tiles['kb'] % 8 > 0), 2 - images % 2
    schedule = GpuSchedule.of('strip', intrinsic, **tiles, joint=joint, split=split)
    close(*run(generate(group, schedule), device('host'), 3 * number + images))


ROWS = (
    ('wgmma_tf32x3', {'bp': 64, 'bk': 16, 'tp': 64, 'kb': 8, 'stages': 2, 'queue': 2}),
    ('wgmma_tf32_bf16', {'bp': 128, 'bk': 32, 'tp': 64, 'kb': 32, 'stages': 1, 'bulk': 1}),
    ('wgmma_tf32_bf16', {'bp': 128, 'bk': 48, 'tp': 128, 'kb': 16, 'stages': 3, 'late': 1,
                         'bulk': 1}),
)  # fmt: skip
PRODUCTS = (
    ('ik,kj->ij', {'i': 65, 'k': 44, 'j': 31}),
    ('bik,kj->bij', {'b': 3, 'i': 43, 'k': 64, 'j': 48}),
    ('ik,jk->ij', {'i': 128, 'k': 36, 'j': 17}),
    ('gik,gkj->gij', {'g': 2, 'i': 64, 'k': 40, 'j': 33}),
)


@pytest.mark.parametrize(('number', 'product'), covering(range(len(ROWS)), PRODUCTS))
def test_strips_of_matrix_products_are_rows(number: int, product: tuple[str, dict]) -> None:
    """Rows, depths and columns that end within a block, several matrices, either order of B."""
    formula, sizes = product
    intrinsic, tiles = ROWS[number]
    terms, out = formula.split('->')
    a, b = terms.split(',')
    shapes = [tuple(sizes[d] for d in term) for term in (a, b)]
    group = einsum('product', shapes, (a, b), out, sizes)
    tensors = [replace(t, role='constant') if t.name == 'In1' else t for t in group.tensors]
    group = replace(group, tensors=tuple(tensors))
    for split in (1, 2):
        schedule = GpuSchedule.of('strip', intrinsic, **tiles, tk=tiles['bk'], joint=0, split=split)
        assert plan(group, schedule).pixels_are_rows
        close(*run(generate(group, schedule), device('host'), 3 * number + split))


def test_what_strips_of_rows_refuse() -> None:
    """Rows that are not aligned for copies of four are strips of images, or nothing."""
    tiles = {'bp': 64, 'bk': 16, 'tk': 16, 'tp': 64, 'kb': 8, 'stages': 1, 'split': 1, 'joint': 0}
    with pytest.raises(ScheduleError, match='a strip needs images'):
        plan(tw.matmul(m=16, n=16, k=18), GpuSchedule.of('strip', 'wgmma_tf32x3', **tiles))
    image = tw.conv2d(n=2, c=16, h=4, w=4, k=16, r=1, s=1)
    assert not plan(image, GpuSchedule.of('strip', 'wgmma_tf32x3', **tiles)).pixels_are_rows
    vectors = tw.conv2d(n=64, c=16, h=1, w=1, k=16, r=1, s=1)
    schedule = GpuSchedule.of('strip', 'wgmma_tf32x3', **tiles)
    assert plan(vectors, schedule).pixels_are_rows
    close(*run(generate(vectors, schedule), device('host'), 5))


def test_rows_under_a_strip_are_counted_from_its_pixels() -> None:
    """By hand: images of 3 rows with 4 pixels, 3x3 windows, so 5 rows of input under each."""
    group = tw.conv2d(n=3, c=8, h=3, w=4, k=16, r=3, s=3, pad=1)
    tiles = {'bk': 16, 'tk': 16, 'tp': 8, 'kb': 8, 'stages': 1, 'split': 1, 'joint': 0}
    p = plan(group, GpuSchedule.of('strip', 'mma_tf32x3', bp=8, **tiles))
    # pixels 0-7: rows 0-1 of image 0: input rows 0-3; 8-15: row 2 of image 0, row 0 of image 1:
    # input rows 2-4, then 5-7 of the next: 2 to 7
    assert p.axes[0].extent == 6
    assert p.plane == 6 * 6
    assert p.pixel_tiles == -(-36 // 8)
    with pytest.raises(ScheduleError, match='a multiple of tp'):
        plan(group, GpuSchedule.of('strip', 'mma_tf32x3', bp=12, **tiles))
    with pytest.raises(ScheduleError, match='rows are for warpgroups'):
        plan(tw.matmul(m=16, n=16, k=16), GpuSchedule.of('strip', 'mma_tf32x3', bp=8, **tiles))


def test_a_tile_of_nothing_is_refused_in_one_sentence() -> None:
    group = tw.conv2d(n=1, c=16, h=8, w=8, k=16, r=3, s=3, pad=1)
    tiles = {'bk': 16, 'tk': 16, 'tp': 8, 'kb': 8, 'stages': 1, 'split': 1, 'joint': 0}
    with pytest.raises(ScheduleError, match='every decision is at least 1'):
        plan(group, GpuSchedule.of('patch', 'mma_tf32x3', bn=1, bh=8, bw=0, **tiles))
    with pytest.raises(ScheduleError, match='a block of 0 threads; give at least one'):
        generate(group, GpuSchedule.of('general', threads=0))


def test_a_product_without_pixels_has_no_patch() -> None:
    sizes = {'a': 2, 'b': 1, 'c': 1, 'd': 17}
    group = einsum('one row', [(2, 1, 1), (2, 1, 1, 17)], ['abc', 'abcd'], 'bcd', sizes)
    tensors = [replace(t, role='constant') if t.name == 'In1' else t for t in group.tensors]
    group = replace(group, tensors=tuple(tensors))
    assert 'patch' not in {schema for schema, _ in moves(group, device('host').machine).tables}


def test_ways_of_copying_that_do_not_go_together() -> None:
    group = tw.conv2d(n=1, c=16, h=8, w=8, k=16, r=3, s=3, pad=1)
    tiles = {'bp': 64, 'bk': 16, 'tk': 16, 'tp': 64, 'kb': 8, 'split': 1, 'joint': 0}
    with pytest.raises(ScheduleError, match='late is for warpgroups with several stages'):
        plan(group, GpuSchedule.of('strip', 'wgmma_tf32_bf16', **tiles, stages=1, late=1))
    with pytest.raises(ScheduleError, match='bulk is for warpgroups'):
        plan(group, GpuSchedule.of('strip', 'wgmma_tf32_bf16', **tiles, stages=2, bulk=1))


@pytest.mark.parametrize('intrinsic', ['wgmma_tf32x3', 'wgmma_tf32_bf16'])
def test_a_single_product_in_parts_is_nearly_one_of_fp32(intrinsic: str) -> None:
    """One channel and one window point: every result is one product, so its error is the parts'."""
    group = tw.conv2d(n=1, c=1, h=40, w=50, k=16, r=1, s=1)
    tiles = {'bn': 1, 'bh': 4, 'bw': 16, 'tp': 64, 'bk': 16, 'tk': 16, 'stages': 1, 'split': 1}
    schedule = GpuSchedule.of('patch', intrinsic, **tiles, kb=1, joint=1)
    got, want = run(generate(group, schedule), device('host'), 3)
    share = np.abs(got - want) / np.abs(want)
    assert share.max() < 2**-18
    assert np.sqrt((share**2).mean()) < 2**-20
    assert sum_error(group, schedule) < 2**-19


@pytest.mark.parametrize('edge', range(-1, 2))
def test_sizes_around_the_edges_of_a_tile(edge: int) -> None:
    """Columns, rows and depth one below, at and one above what a block takes."""
    group = tw.conv2d(c=8 + edge, h=1, w=32 + edge, k=16 + edge, r=1, s=3, pad=(0, 1), bias=True)
    for schedule in (SCHEDULES[0], SCHEDULES[3]):
        close(*run(generate(group, schedule), device('host'), 5 + edge))


@pytest.mark.parametrize('seed', [7, pytest.param(8, marks=pytest.mark.slow)])
def test_random_schedules_of_random_problems(seed: int) -> None:
    draw = random.Random(seed)
    tried = 0
    while tried < 6:
        window = draw.choice([1, 3, 5])
        group = tw.conv2d(
            n=draw.randint(1, 3), c=draw.randint(1, 20), h=draw.randint(5, 13),
            w=draw.randint(5, 13), k=draw.randint(1, 40), r=window, s=window,
            stride=draw.randint(1, 2), pad=draw.randint(0, window // 2), bias=True,
        )  # fmt: skip
        matrix = draw.random() < 0.4
        unit = 16 if matrix else 4
        tk, tp = unit * draw.randint(1, 2), unit * draw.randint(1, 2)
        schedule = GpuSchedule.of(
            'tiled', 'mma_tf32x3' if matrix else 'fma', bk=tk * draw.choice([1, 2, 4]),
            bp=tp * draw.choice([1, 2, 4]), tk=tk, tp=tp, kb=draw.choice([8, 16]),
            stages=draw.randint(1, 4), split=draw.randint(1, 3), joint=draw.randint(0, 1),
        )  # fmt: skip
        try:
            module = generate(group, schedule)
        except ScheduleError:
            continue
        tried += 1
        close(*run(module, device('host'), tried))


def test_sums_of_shared_tiles_have_the_same_bits_every_time() -> None:
    module = generate(groups()['first'], SCHEDULES[2])
    first, _ = run(module, device('host'), 3)
    second, _ = run(module, device('host'), 3)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ('change', 'part'),
    [
        ({'tk': 3}, 'tk divides bk'),
        ({'bk': 18, 'tk': 6}, 'multiples of 4'),
        ({'bp': 48, 'tp': 4, 'bk': 20}, 'whole rows'),
        ({'split': 99}, 'at most the 9 pieces'),
        ({'kb': 0}, 'at least 1'),
    ],
)
def test_an_illegal_schedule_says_why(change: dict, part: str) -> None:
    with pytest.raises(ScheduleError, match=part):
        generate(groups()['dense'], GpuSchedule.of('tiled', **(FMA[0] | change)))
    with pytest.raises(ScheduleError, match='the intrinsic is one of'):
        generate(groups()['dense'], GpuSchedule.of('tiled', 'dp4a', **FMA[0]))


@needs_nvrtc
@pytest.mark.parametrize('number', range(len(SCHEDULES) + 1))
def test_cuda_text_compiles_without_spills(number: int) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    schedule = [*SCHEDULES, GpuSchedule.of('patch', 'mma_tf32x3', **PATCH[0], joint=0)][number]
    module = generate(groups()['dense'], schedule)
    for kernel in module.kernels:
        for architecture in ARCHITECTURES:
            if architecture == 'sm_75' and schedule.intrinsic != 'fma':
                continue  # matrix instructions for tf32 came with sm_80
            _, source, resources = compile_cubin(kernel, architecture)
            assert resources.spill_bytes == 0
            assert resources.registers is not None
            assert resources.registers <= 255
            assert kernel.name in source
