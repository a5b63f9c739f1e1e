"""dfg beside other schemas, and pruners on fused kernels: measured on the host, small layers."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tilewright as tw
from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.estimates import ESTIMATES
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.gpu_timed import TimedGroup, importable
from tilewright_lab.figures.tables import FIGURES
from tilewright_lab.scripts import gpu_dfg, pruners
from tilewright_lab.scripts.gpu_chains import tied

H200 = known_gpu('h200')
LAYERS = {
    'a': tw.conv2d(c=4, h=6, w=6, k=8, r=3, s=3, pad=1),
    'b': tw.conv2d(c=8, h=6, w=6, k=8, r=1, s=1),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))


def test_schedules_of_dfg_come_in_the_order_of_the_time_model() -> None:
    found = gpu_dfg.dfg_by_model(LAYERS['a'], H200, 4, 16)
    times = [ESTIMATES['time'](LAYERS['a'], s, H200) for s in found]
    assert {s.schema for s in found} == {'dfg'}
    assert times[0] == min(times)
    assert len(set(found)) == 4


@pytest.mark.slow
def test_layers_are_measured_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {'bk': 8, 'bh': 2, 'bw': 6, 'threads': 64}
    fixed = {
        'dfg': [GpuSchedule.of('dfg', 'fma', **plain, tk=tk, tp=2) for tk in (1, 2)],
        'others': [GpuSchedule.of('general', 'fma', threads=64)],
    }
    monkeypatch.setattr(gpu_dfg, 'planned', lambda *words: fixed)
    file = tmp_path / 'dfg.json'
    first = gpu_dfg.run({'a': LAYERS['a']}, 'host', 2, math.inf, file, 8)
    assert first['complete']
    (row,) = first['rows']
    assert (row['dfg_worked'], row['dfg_tried']) == (2, 2)
    assert row['dfg_over_others'] == pytest.approx(row['dfg_us'] / row['others_us'])
    assert row['dfg_schedule']['schema'] == 'dfg' != row['others_schedule']['schema']
    both = gpu_dfg.run(LAYERS, 'host', 2, math.inf, file, 8)
    assert json.loads(file.read_text()) == both
    assert [r['layer'] for r in both['rows']] == ['a', 'b']
    assert both['rows'][0] == row
    with pytest.raises(InputError, match='has trials 2, and this is 3; name another file'):
        gpu_dfg.rows_of(file, {**both, 'trials': 3})
    late = gpu_dfg.write(file, both, [row], LAYERS)
    assert (late['rows'], late['complete']) == ([row], False)
    page = FIGURES['dfg'](both)
    assert '| a | ' in page
    assert 'of 2 |' in page.splitlines()[-1]


def test_what_does_not_work_has_no_ratio_and_a_beaten_bound_is_counted() -> None:
    group = LAYERS['a']
    schedules = gpu_dfg.dfg_by_model(group, H200, 2, 8)
    bound = ESTIMATES['bound'](group, schedules[0], H200)
    seconds = {schedules[0].digest: 0.5 * bound, schedules[1].digest: 1.0}
    found = TimedGroup('a', group, {'dfg': schedules, 'others': ()}, seconds)
    row = gpu_dfg.row_of(found, H200)
    assert (row['below_bound'], row['bounded']) == (1, 2)
    assert row['dfg_over_others'] is None
    assert 'others: nothing worked' in gpu_dfg.line(row)
    assert '| - |' in FIGURES['dfg']({'rows': [row]})


def test_a_file_that_is_something_else_is_refused(tmp_path: Path, capsys) -> None:
    file = tmp_path / 'x.json'
    file.write_text('[]')
    assert gpu_dfg.main(['--json', str(file), '--target', 'host', '--layers', 'cnnopt/R9']) == 2
    assert 'cannot be gone on with' in capsys.readouterr().err


def small_chain():
    """A 3x3 convolution and a 1x1 behind it, as one group."""
    return tied((tw.conv2d(c=4, h=6, w=6, k=8, r=3, s=3, pad=1), LAYERS['b']))


def test_random_schedules_of_chains_are_distinct_legal_and_the_same_every_time() -> None:
    found = pruners.drawn(small_chain(), H200, 5, 1)['dfg']
    assert len({s.digest for s in found}) == 5
    assert pruners.drawn(small_chain(), H200, 5, 1)['dfg'] == found
    assert pruners.drawn(small_chain(), H200, 5, 2)['dfg'] != found
    assert len(pruners.fused_groups()) == 10


def test_fused_kernels_are_collected_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    groups, file = {'small': small_chain()}, tmp_path / 'chains.json'
    monkeypatch.setattr(pruners, 'fused_groups', lambda: groups)
    words = ['--collect', str(file), '--target', 'host', '--samples', '3']
    assert pruners.main(words) == 0
    data = json.loads(file.read_text())
    (row,) = data['rows']
    assert [one['us'] is not None for one in row['schedules']] == [True] * 3
    # As if they had been measured on an H200, in the order of the time model but for one.
    schedules = [GpuSchedule.from_json(one['schedule']) for one in row['schedules']]
    schedules.sort(key=lambda s: ESTIMATES['time'](groups['small'], s, H200))
    row['schedules'] = [
        {'schedule': s.to_json(), 'us': us}
        for s, us in zip(schedules, (100.0, 200.0, 0.001), strict=True)
    ]
    file.write_text(json.dumps(data | {'machine': H200.to_json()}))
    result = tmp_path / 'pruned.json'
    unfused = tmp_path / 'unfused.json'
    unfused.write_text('{}')
    judge = ['--fused', str(file), '--unfused', str(unfused), '--json', str(result)]
    assert pruners.main(judge) == 0
    found = json.loads(result.read_text())
    by_time = found['pruned'][pruners.FUSED]['time']
    assert by_time['mean']['best_kept'] == 0
    assert by_time['layers']['small']['loss'] == pytest.approx(1e5 - 1)
    assert by_time['layers']['small']['needed'] == 1.0
    assert (found['below_bound'], found['samples']) == (1, 3)
    said = capsys.readouterr().out
    assert '1 of 3 measured times are below the bound' in said
    assert 'small: 3 schedules, pul' in said
    assert 'fused chains, 3' in FIGURES['pruned'](found)


def test_without_measured_chains_it_says_so(tmp_path: Path, capsys) -> None:
    assert pruners.main(['--fused', str(tmp_path / 'nothing')]) == 0
    said = capsys.readouterr().out
    assert 'have to be measured (--collect)' in said
    assert 'all: best of the first 1%' in said
    assert pruners.main(['--unfused', str(tmp_path / 'nothing')]) == 2


def test_functions_of_a_script_are_sent_by_a_name_that_other_processes_know(monkeypatch):
    script = SimpleNamespace(__spec__=SimpleNamespace(name=pruners.__name__))
    monkeypatch.setitem(sys.modules, '__main__', script)
    main = {'__name__': '__main__'}
    exec('def drawn(): ...', main)  # as `python -m` defines it
    assert importable(main['drawn']) is pruners.drawn
    assert importable(gpu_dfg.planned) is gpu_dfg.planned
