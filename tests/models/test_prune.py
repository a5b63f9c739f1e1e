"""`prune=`: PUL, the bound or the time model order GPU schedules before any is measured."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import knobs
from tilewright.cli.main import invoke
from tilewright.errors import InputError, ScheduleError
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.estimates import ESTIMATES
from tilewright.model.gpu.pul import bound, pul
from tilewright.model.gpu.pul_fused import fused_pul
from tilewright.model.gpu.time import is_priced, predict_gpu
from tilewright.network.arguments import how_of
from tilewright.ops.chain import chain
from tilewright.ops.elementwise import elementwise
from tilewright.ops.front import put_in_front, without_front
from tilewright.ops.stage import call, const, read
from tilewright.rank.rankers import HOPELESS_S, ranker_for
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.targets.gpu import target as gpu_target
from tilewright.targets.gpu.choose import choose_all
from tilewright.targets.gpu.tuning import How

H200 = known_gpu('h200')
LAYER = tw.conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
TRIALS = 10


def fused():
    first = tw.conv2d(c=4, h=8, w=8, k=8, r=3, s=3, pad=1)
    second = tw.conv2d(c=8, h=8, w=8, k=4, r=1, s=1)
    made = chain(first, second, second.main.reads[0].tensor)
    assert made is not None
    return made.group


def drawn(group, count: int) -> list[GpuSchedule]:
    space, rng = moves(group, H200), random.Random(1)
    found = [s for _ in range(20 * count) if (s := space.draw(rng)) is not None]
    return [s for s in found if is_priced(group, s, H200)][:count]


def test_estimates_are_the_models_that_their_names_say() -> None:
    for schedule in drawn(LAYER, 8):
        said = {name: estimate(LAYER, schedule, H200) for name, estimate in ESTIMATES.items()}
        assert said['time'] == predict_gpu(LAYER, schedule, H200).seconds
        assert said['bound'] == bound(LAYER, schedule, H200).seconds
        share = pul(LAYER, schedule, H200).value
        assert said['pul'] == pytest.approx(LAYER.flops / H200.peak_gflops / 1e9 / share)


def test_fused_kernels_have_the_fused_limit_and_the_bound_is_below_the_time() -> None:
    group = fused()
    for schedule in drawn(group, 6):
        share = fused_pul(group, schedule, H200).value
        want = group.flops / H200.peak_gflops / 1e9 / share
        assert ESTIMATES['pul'](group, schedule, H200) == pytest.approx(want)
        times = [ESTIMATES[name](group, schedule, H200) for name in ('bound', 'time')]
        assert times[0] <= times[1]


@pytest.mark.parametrize('name', ['pul', 'bound'])
def test_rankers_of_these_names_order_by_them(name: str) -> None:
    schedules = drawn(LAYER, 6)
    ranker = ranker_for(name, LAYER, H200, 'search').ranker
    want = [ESTIMATES[name](LAYER, s, H200) for s in schedules]
    np.testing.assert_allclose(np.exp(ranker(schedules)), want)
    impossible = GpuSchedule.of('tiled', 'fma', bk=3, bp=5)
    with pytest.raises(ScheduleError):
        ESTIMATES[name](LAYER, impossible, H200)
    assert ranker([impossible])[0] == pytest.approx(np.log(HOPELESS_S))


@pytest.mark.parametrize(
    ('group', 'names'), [(LAYER, tuple(ESTIMATES)), (fused(), ('pul',))], ids=['layer', 'fused']
)
def test_choices_come_in_the_order_of_the_estimate(group, names, tmp_path, monkeypatch) -> None:
    """Each estimate has answers of its own, and the default is the time model's."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    chosen = {}
    for name in names:
        (found,) = choose_all([group], H200, 4, 1e-4, processes=1, trials=TRIALS, estimate=name)
        seconds = [ESTIMATES[name](group, c.schedule, H200) for c in found]
        assert seconds[0] == min(seconds)
        assert found[0].predicted_s == predict_gpu(group, found[0].schedule, H200).seconds
        chosen[name] = found
    if 'time' in names:
        (plain,) = choose_all([group], H200, 4, 1e-4, processes=1, trials=TRIALS)
        assert plain == chosen['time'] != chosen['pul']


def test_stages_before_the_products_are_left_out_where_a_kernel_of_their_own_does_them() -> None:
    conv = tw.conv2d(c=8, h=8, w=8, k=16, r=1, s=1)
    relu = elementwise(call('max', read(0), const(0.0)), conv.tensor('In').shape, name='relu')
    joined = put_in_front(relu, conv, 'In')
    assert joined is not None
    group = joined.group
    for schedule in drawn(without_front(group), 4):
        for name in ('pul', 'bound'):
            there = ESTIMATES[name](group, schedule, H200)
            assert there >= ESTIMATES[name](without_front(group), schedule, H200)


def test_a_knob_draws_other_candidates() -> None:
    assert how_of('cuda', 'measure', 'auto', None).seed == 0
    with knobs.held('seed', '3'):
        assert how_of('cuda', 'measure', 'auto', None).seed == 3


def test_how_says_what_prunes_and_keeps_answers_apart() -> None:
    assert how_of('cuda', 'model', 'analytical', None, prune='time') == How('analytical')
    pruned = how_of('cuda', 'measure', 'analytical', 'top', prune='pul')
    assert (pruned.estimate, How().estimate, How('forest').estimate) == ('pul', 'time', 'time')
    assert pruned.key(LAYER, H200) != How(search='top').key(LAYER, H200)


def test_a_search_measures_what_the_estimate_puts_first() -> None:
    measured: list[GpuSchedule] = []

    def measure(schedules):
        measured.extend(schedules)
        return [1.0 + i for i, _ in enumerate(schedules)]

    How('pul', 'top').search_for(LAYER, H200, measure, trials=4, starts=(), sampled=40)
    limits = [ESTIMATES['pul'](LAYER, s, H200) for s in measured]
    assert len(measured) == 4
    assert limits == sorted(limits)


def test_optimize_by_an_estimate(monkeypatch) -> None:
    monkeypatch.setattr(gpu_target, 'LOOKED_AT', TRIALS)
    plan = tw.optimize(LAYER, 'h200', 3, False, target='cuda', prune='bound')
    seconds = [ESTIMATES['bound'](LAYER, c.schedule, H200) for c in plan.candidates]
    assert seconds[0] == min(seconds)


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        ({'target': 'cuda', 'prune': 'luck'}, "prune is 'luck'; choose one of pul, bound, time"),
        ({'target': 'cuda', 'prune': 'pul', 'model': 'forest'}, 'give one of them only'),
        ({'prune': 'pul'}, "prune='pul' is for GPU kernels"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tw.optimize(LAYER, 'h200' if 'target' in words else None, 1, False, **words)
    more = {} if 'model' not in words else {'tune': 'measure'}
    with pytest.raises(InputError, match=sentence):
        tw.compile(b'', **words, **more)


def test_the_command_line(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(gpu_target, 'LOOKED_AT', TRIALS)
    layer = 'mb1ic8ih8oc16kh3ph1'
    words = ['optimize', layer, '--machine', 'h200', '--no-measure']
    assert invoke([*words, '--prune', 'pul', '--top', '1']) == 0
    assert invoke([*words, '--prune', 'pul', '--model', 'gat']) == 2
    assert invoke(['optimize', layer, '--prune', 'pul', '--no-measure']) == 2
    assert invoke(['compile', 'x.onnx', '--prune', 'luck']) == 2
    said = capsys.readouterr().err
    assert 'both say what orders candidates' in said
    assert '--prune mean nothing with --target cpu' in said
    assert "'luck' is not one of" in said
