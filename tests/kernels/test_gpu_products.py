"""Products of two computed operands by the tiled, patch and strip schemas: packed in every call, or
read in place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import device

from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import refined, sum_error
from tilewright.kernels.gpu.schemas.patch.counts import work as patch_work
from tilewright.kernels.gpu.schemas.tiled.counts import work
from tilewright.kernels.gpu.schemas.tiled.plan import plan
from tilewright.machine.gpu import known_gpu
from tilewright.ops.adjoint import adjoint
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.products import einsum
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import precise_one, search

FMA = GpuSchedule.of('tiled', bk=16, bp=16, tk=4, tp=4, kb=8, stages=2, split=1, joint=0)
SPLIT = GpuSchedule.of('tiled', bk=16, bp=16, tk=4, tp=4, kb=4, stages=1, split=2, joint=0)
MATRIX = GpuSchedule.of(
    'tiled', 'mma_tf32x3', bk=16, bp=32, tk=16, tp=16, kb=8, stages=2, split=1, joint=0
)


def product(first: str, second: str, out: str, **sizes: int) -> Group:
    shapes = [tuple(sizes[n] for n in names) for names in (first, second)]
    return einsum('product', shapes, [list(first), list(second)], list(out), sizes)


CASES = {
    'plain': (product('ik', 'kj', 'ij', i=17, j=16, k=8), True),
    'ragged': (product('ik', 'kj', 'ij', i=15, j=19, k=13), False),
    'turned': (product('ki', 'jk', 'ij', i=16, j=16, k=16), False),
    'batched': (product('bhik', 'bhkj', 'bhij', b=2, h=3, i=9, j=32, k=24), True),
    'turned heads': (product('bihk', 'bjhk', 'bhij', b=2, h=2, i=7, j=9, k=10), False),
    'broadcast': (product('bik', 'kj', 'bij', b=3, i=5, j=16, k=16), True),
    'one row': (product('bk', 'bkj', 'bj', b=3, j=18, k=40), False),
}


@pytest.mark.parametrize(
    ('name', 'schedule'),
    [
        *((name, FMA) for name in CASES),
        ('ragged', SPLIT), ('ragged', MATRIX), ('batched', MATRIX), ('turned heads', MATRIX),
    ],
)  # fmt: skip
def test_products_of_computed_operands(name: str, schedule: GpuSchedule) -> None:
    group, direct = CASES[name]
    made = generate(group, schedule)
    assert not made.ahead
    assert len(made.steps) == (1 if direct else 2)
    on, arrays = device('host'), random_arrays(group, 2)
    with Runner(made, on, {}) as runner:
        for _ in range(2):
            got = runner(**arrays)
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()


DEEP = product('ik', 'jk', 'ij', i=24, j=20, k=1000)
ANEW = {
    'tiled': MATRIX,
    'inner': GpuSchedule.of('inner', 'mma_tf32x3', bk=16, bp=16, tk=16, tp=16, kb=32, stages=2,
                            split=2, joint=0),
    'patch': GpuSchedule.of('patch', 'wgmma_tf32x3', bk=32, bi=24, tk=32, tp=64, kb=8, stages=2,
                            split=2, joint=0, queue=2),
    'warps': GpuSchedule.of('patch', 'mma_tf32x3', bk=32, bi=24, tk=16, tp=8, kb=16, stages=2,
                            split=1, joint=0),
    'strip': GpuSchedule.of('strip', 'wgmma_tf32_bf16', bk=32, bp=64, tk=32, tp=64, kb=32,
                            stages=2, late=1, bulk=1, split=1, joint=0),
    'early': GpuSchedule.of('strip', 'wgmma_tf32_bf16', bk=32, bp=64, tk=32, tp=64, kb=16,
                            stages=2, late=0, bulk=0, split=1, joint=0, queue=2),
}  # fmt: skip


@pytest.mark.parametrize('name', ANEW)
def test_sums_that_matrix_units_begin_anew(name: str) -> None:
    """The same sums, of which fewer terms are cut off: also where the last piece is not full."""
    group, plain = DEEP, ANEW[name]
    fresh = refined(group, plain, 2e-6)
    assert fresh == GpuSchedule.of(
        plain.schema, plain.intrinsic, **dict(plain.tiles), fresh=1
    )  # fmt: skip
    assert fresh is not None
    assert sum_error(group, fresh) < 2e-6 < sum_error(group, plain)
    assert refined(group, plain, 1e-4) == plain
    made, arrays = generate(group, fresh), random_arrays(group, 4)
    assert any('fresh' in step.kernel.body for step in made.steps)
    with Runner(made, device('host'), {}) as runner:
        got = runner(**arrays)
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()


def test_a_limit_of_errors_leaves_matrix_units_where_their_sums_are_short() -> None:
    group, plain = product('ik', 'kj', 'ij', i=1536, j=768, k=3072), ANEW['strip']
    found = [precise_one(group, plain, e) for e in (1e-4, 3e-6, 1e-8)]
    assert found == [plain, refined(group, plain, 3e-6), None]
    assert precise_one(group, FMA, 1e-8) == FMA
    large = GpuSchedule.of('strip', 'wgmma_tf32_bf16', bk=256, bp=64, tk=256, tp=64, kb=32,
                           stages=2, late=1, bulk=1, split=1, joint=0)  # fmt: skip
    assert refined(group, large, 1e-5) is None  # no registers are left for what is not added yet


WEIGHTS = {
    'patch': GpuSchedule.of('patch', 'mma_tf32x3', bk=16, bn=1, bh=3, bw=5, tk=16, tp=16, kb=8,
                            stages=2, split=1, joint=0),
    'wide': GpuSchedule.of('patch', 'wgmma_tf32x3', bk=16, bn=1, bh=4, bw=5, tk=16, tp=64, kb=8,
                           stages=1, split=1, joint=0),
    'strip': GpuSchedule.of('strip', 'wgmma_tf32_bf16', bk=16, bp=64, tk=16, tp=64, kb=8,
                            stages=2, late=1, bulk=1, split=2, joint=0),
}  # fmt: skip


@pytest.mark.parametrize('name', WEIGHTS)
def test_weights_that_change_are_packed_in_every_call(name: str) -> None:
    """Convolutions of a training step, forward and by their input."""
    plain = conv2d(n=2, c=16, h=6, w=6, k=12, r=3, s=3, pad=1)
    tensors = tuple(replace(t, role='input') if t.role == 'constant' else t for t in plain.tensors)
    group, schedule = replace(plain, tensors=tensors), WEIGHTS[name]
    back = adjoint(group, 0)[-1].parts[0]
    on = device('host')
    for one in (group, back):
        made = generate(one, schedule)
        assert not made.ahead
        assert len(made.steps) == 2
        arrays = random_arrays(one, 3)
        with Runner(made, on, {}) as runner:
            got = runner(**arrays)
        want = reference(one, arrays)
        assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    assert patch_work(group, schedule, None).extra_kernels == 1
    assert patch_work(plain, schedule, None).extra_bytes == 0


def test_packing_is_counted_where_it_happens() -> None:
    packed, direct = CASES['ragged'][0], CASES['plain'][0]
    p = plan(packed, FMA)
    done = work(packed, FMA, None)
    assert done.extra_kernels == 1
    assert done.extra_bytes == 8 * p.packed.elements
    assert work(direct, FMA, None).extra_kernels == 0


def test_fast_schemas_are_chosen() -> None:
    group = product('bhik', 'bhjk', 'bhij', b=4, h=12, i=256, j=256, k=64)
    found = search(group, known_gpu('h200'), 1, 1e-4, trials=32)[0]
    assert found.schedule.schema in ('inner', 'tiled')
