"""Steps of a recurrent layer in one kernel: values between blocks that run together on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import device
from test_gpu_coverage import SIGMOID, TANH

from tilewright.errors import CheckError, ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.schemas.recurrence.persistent import plan, propose
from tilewright.machine.gpu import known_gpu
from tilewright.ops.group import Group
from tilewright.ops.recurrence import Recurrent, recurrence
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.device import Call
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import search

FUNCTIONS = {'gru': (SIGMOID, TANH), 'lstm': (SIGMOID, TANH, TANH), 'rnn': (TANH,)}


def layer(kind: str, steps: int, batch: int, units: int, **more) -> Group:
    return recurrence(
        Recurrent(kind, steps, batch, units, (False, True), (FUNCTIONS[kind],) * 2, **more)
    )


@pytest.mark.parametrize(
    ('kind', 'steps', 'batch', 'units', 'tiles'),
    [
        ('lstm', 4, 1, 8, {'per': 3, 'kept': 1, 'batch': 1}),
        ('lstm', 2, 3, 9, {'per': 4, 'kept': 0, 'batch': 2}),
        ('gru', 3, 2, 6, {'per': 2, 'kept': 1, 'batch': 2}),
        ('rnn', 1, 2, 7, {'per': 8, 'kept': 4, 'batch': 4}),
        pytest.param(
            'lstm', 2, 2, 136, {'per': 16, 'kept': 1, 'batch': 2}, marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_steps_agree_and_a_call_may_be_repeated(kind, steps, batch, units, tiles):
    """Odd and even rows, weights in registers, shared memory and both; lengths that end early."""
    group = layer(kind, steps, batch, units, lengths='i32', initial_state=kind != 'rnn')
    arrays = random_arrays(group, 1)
    (lengths,) = (t.name for t in group.tensors if t.dtype == 'i32')
    arrays[lengths] = np.arange(batch, dtype=np.int32) % steps + 1
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    module = generate(group, GpuSchedule.of('persistent', **tiles))
    assert len(module.steps) == 3
    with Runner(module, device('host'), constants) as runner:
        for _ in range(2):
            got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()


def test_a_value_that_nobody_sends_is_an_error_and_no_endless_wait():
    body = """\
int polls = 0;
PAIRS got[1];
ASK1(got[0], @Out);
while (!HAS1(got[0], 7)) {
    PAUSE(polls);
    ASK1(got[0], @Out);
}
"""
    out = Array('Out', ('i',), (2,), written=True)
    kernel = Kernel('waits', (out,), body, (2, 1, 1), 2, needs=frozenset({'resident_grid'}))
    on = device('host')
    array = on.empty(('i',), (2,))
    on.write(array, np.zeros(2, np.float32))
    with pytest.raises(CheckError, match='nobody sends'):
        on.launch(Call(on.compile(kernel), {'Out': array}))


def test_chosen_where_blocks_run_together_and_weights_fit():
    h200 = known_gpu('h200')
    group = layer('lstm', 100, 1, 800)
    best = search(group, h200, 2, 1e-4)
    assert [c.schedule.schema for c in best] == ['persistent', 'recurrence']
    p = plan(group, best[0].schedule)
    assert p.steps.directions * p.blocks <= h200.multiprocessors
    alone = replace(h200, instructions=('mma_tf32',))
    assert search(group, alone, 1, 1e-4)[0].schedule.schema == 'recurrence'
    large = layer('lstm', 10, 1, 2048)  # 134 MB of weights
    assert search(large, h200, 1, 1e-4)[0].schedule.schema == 'recurrence'


def test_many_sequences_go_to_matrix_instructions_unless_errors_must_be_small():
    h200, group = known_gpu('h200'), layer('lstm', 100, 64, 800)
    best = search(group, h200, 1, 1e-4)[0]
    assert best.schedule.schema == 'matrix_steps'
    closer = search(group, h200, 1, 1e-6)[0].schedule
    assert closer.schema == 'matrix_steps'  # which begins its sums anew
    assert dict(closer.tiles)['fresh']
    assert 'fresh' not in dict(best.schedule.tiles)
    closest = search(group, h200, 1, 1e-7)[0]
    assert closest.schedule.schema == 'recurrence'
    assert best.predicted_s < closest.predicted_s / 2


def test_what_is_refused():
    with pytest.raises(ScheduleError, match='one width'):
        plan(
            layer('lstm', 2, 1, 8, projected=5),
            GpuSchedule.of('persistent', per=2, kept=1, batch=1),
        )
    with pytest.raises(ScheduleError, match='at most 32 sequences'):
        plan(layer('lstm', 2, 33, 8), GpuSchedule.of('persistent', per=2, kept=1, batch=1))


def test_a_direction_needs_a_multiprocessor_of_its_own():
    group, h200 = layer('lstm', 3, 1, 8), known_gpu('h200')
    named = [s.schema for s in propose(group, h200)]
    assert named[0] == 'persistent'
    alone = propose(group, replace(h200, multiprocessors=1))
    assert [s.schema for s in alone] == named[1:]
