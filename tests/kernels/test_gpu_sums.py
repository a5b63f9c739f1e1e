"""Long sums of few results, and weight gradients as products along pixels, against the reference.

If these fail, training steps on a GPU compute wrong gradients of weights or wrong statistics.
"""

from __future__ import annotations

import numpy as np
import pytest
from devices import device

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.schemas.inner.plan import roles
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops import moving
from tilewright.ops.adjoint import adjoint
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.normalise import batch_moments
from tilewright.ops.recurrence import Recurrent, reverse_recurrence
from tilewright.ops.reduction import REDUCTIONS
from tilewright.ops.reference import reference
from tilewright.ops.scatter import rows_at_once
from tilewright.ops.stage import call, read
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import search


def weight_gradient(**sizes: int) -> Group:
    """The gradient of a convolution by its weights."""
    return adjoint(conv2d(**sizes), 1)[-1].parts[0]


SUMMED = [
    weight_gradient(n=2, c=6, h=9, w=8, k=6, r=3, s=3, pad=1, groups=6),
    weight_gradient(n=3, c=5, h=9, w=11, k=5, r=3, s=3, pad=1, stride=2, groups=5),
    batch_moments((3, 5, 100))[0],
    batch_moments((3, 5, 100))[1],
    batch_moments((3, 5, 49))[1],
    REDUCTIONS['sum'].group('sum', (300, 7), (0,), 'f32'),
    REDUCTIONS['max'].group('max', (7, 300), (1,), 'f32'),
]

PRODUCTS = [
    weight_gradient(n=2, c=20, h=6, w=8, k=24, r=1, s=1),
    weight_gradient(n=2, c=20, h=7, w=7, k=17, r=3, s=3, pad=1),
    weight_gradient(n=3, c=16, h=9, w=9, k=32, r=3, s=3, pad=1, stride=2),
    weight_gradient(n=3, c=16, h=9, w=9, k=32, r=1, s=1, stride=2),
    weight_gradient(n=2, c=32, h=6, w=6, k=48, r=3, s=3, pad=1, groups=2),
    weight_gradient(n=3, c=3, h=9, w=9, k=16, r=5, s=5, pad=2, stride=2),
]


def check(group: Group, schedule: GpuSchedule, target: str = 'host', error: float = 1e-5) -> None:
    arrays = random_arrays(group, 3)
    given = {t.name: arrays[t.name] for t in group.with_role('input')}
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    want = reference(group, {name: a.astype(np.float64) for name, a in arrays.items()})
    run = Runner(generate(group, schedule), device(target), constants)
    first = run(**given)
    assert np.allclose(first, want, rtol=0, atol=error * np.abs(want).max())
    assert (run(**given) == first).all()


@pytest.mark.parametrize('group', SUMMED, ids=lambda g: g.label)
@pytest.mark.parametrize('tiles', [(32, 1, 1), (64, 4, 3), (32, 2, 4)], ids=str)
def test_blocks_share_long_sums(group: Group, tiles: tuple[int, int, int]) -> None:
    threads, owners, split = tiles
    check(group, GpuSchedule.of('sums', threads=threads, owners=owners, split=split))


def test_four_terms_of_a_thread_at_once() -> None:
    for group in (SUMMED[2], SUMMED[3], SUMMED[-1]):
        schedule = GpuSchedule.of('sums', threads=32, owners=2, split=3, run=4)
        assert 'LOAD4' in generate(group, schedule).steps[0].kernel.body
        check(group, schedule)
    with pytest.raises(ScheduleError, match='run is 1'):
        generate(SUMMED[4], GpuSchedule.of('sums', threads=32, owners=2, split=3, run=4))


def test_long_sums_in_opencl() -> None:
    for group in SUMMED[:3]:
        check(group, GpuSchedule.of('sums', threads=32, owners=2, split=3), 'opencl')


@pytest.mark.parametrize('group', PRODUCTS, ids=lambda g: g.label)
@pytest.mark.parametrize('split', [1, 3])
def test_weight_gradients_as_products_along_pixels(group: Group, split: int) -> None:
    tiles = {'bk': 32, 'bp': 16, 'tk': 16, 'tp': 16, 'kb': 16, 'stages': 2, 'split': split}
    check(group, GpuSchedule.of('inner', 'mma_tf32x3', **tiles, joint=0))
    wider = tiles | {'bk': 16, 'tk': 16, 'bp': 32, 'tp': 8, 'stages': 3}
    check(
        group,
        GpuSchedule.of('inner', 'mma_tf32x3', **wider, joint=int(roles(group, True) is not None)),
    )


@pytest.mark.parametrize('shape', [(2000, 20), (1, 700, 17)], ids=str)
def test_rows_that_a_list_names_are_added_in_its_order(shape: tuple[int, ...]) -> None:
    count, extent = 600, shape[-2]
    made = {m.tensor: m.parts[0] for m in adjoint(moving.gather(shape, count), 0)}
    group = rows_at_once(made['Seen'], made['Rows'], made['Grad'])
    draw = np.random.default_rng(0)
    listed = draw.integers(-extent, extent, count)
    listed[::3] = listed[0]
    arrays = {
        t.name: listed if t.dtype == 'i64' else draw.standard_normal(t.shape, np.float32)
        for t in group.with_role('input')
    }
    want = reference(group, arrays)
    for tiles in ({'threads': 32, 'rows': 5}, {'threads': 64, 'rows': 64}):
        module = generate(group, GpuSchedule.of('scatter', **tiles))
        for target in ('host', 'opencl'):
            got = Runner(module, device(target), {})(**arrays)
            assert np.allclose(got, want, rtol=1e-5, atol=1e-5)
    assert search(group, known_gpu('h200'), 1, 1e-4)[0].schedule.schema == 'scatter'


@pytest.mark.parametrize('kind', ['lstm', 'gru'])
@pytest.mark.parametrize(
    'schedule',
    [
        GpuSchedule.of('recurrence', threads=32, lanes=4, batch=2, wide=1),
        GpuSchedule.of('persistent', per=2, kept=1, batch=2),
        GpuSchedule.of(
            'matrix_steps', 'mma_tf32x3', bk=16, bp=16, tk=16, tp=8, kb=8, stages=2, split=1
        ),
    ],
    ids=lambda s: s.schema,
)
def test_gradients_of_recurrent_layers_have_no_last_states(
    kind: str, schedule: GpuSchedule
) -> None:
    functions = (call('sigmoid', read(0)), call('tanh', read(0)), call('tanh', read(0)))
    for backwards in ((kind == 'gru',), (False, True)):
        layer = Recurrent(
            kind,
            5,
            3,
            8,
            backwards,
            (functions,) * len(backwards),
            linear_before_reset=kind == 'gru',
        )
        check(reverse_recurrence(layer), schedule)


def test_the_model_gives_depthwise_weight_gradients_to_them() -> None:
    machine = known_gpu('h200')
    group = weight_gradient(n=16, c=32, h=112, w=112, k=32, r=3, s=3, pad=1, groups=32)
    found = search(group, machine, 1, 1e-4)[0]
    assert found.schedule.schema == 'sums'
    plain = predict_gpu(group, GpuSchedule.of('general', threads=256), machine)
    assert found.predicted_s < plain.seconds / 10
