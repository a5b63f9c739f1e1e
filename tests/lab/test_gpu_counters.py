"""Hardware counters from text, without a profiler; and the table that is made of them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright_lab.compare.gpu_counters import METRICS, command, parse, pearson, wanted

HEAD = (
    'ID',
    'Process ID',
    'Kernel Name',
    'Context',
    'gpu__time_duration.sum',
    'launch__waves_per_multiprocessor',
    'l1tex__data_pipe_lsu_wavefronts_mem_shared.sum',
)
WIDE = """\
==PROF== Connected to process 77
==PROF== Profiling "profiled0_rs_conv2d_1" - 0: 0%....100% - 3 passes
{head}
"","","","","ns","",""
"0","77","profiled0_rs_conv2d_1","1","6,144","0.50","123456"
"1","77","profiled1_tiled_conv2d_0(const float *, float *)","1","8000","1.25","n/a"
"""
LONG = """\
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","profiled0_rs_conv2d_1","Command line profiler metrics","gpu__time_duration.sum","ns","6144"
"0","profiled0_rs_conv2d_1","Command line profiler metrics","dram__sectors_read.sum","sector","99"
"0","profiled0_rs_conv2d_1","Command line profiler metrics","other","sector","99"
"""


def test_both_forms_of_the_profilers_table() -> None:
    wide = parse(WIDE.replace('{head}', ','.join(f'"{name}"' for name in HEAD)))
    assert wide['profiled0_rs_conv2d_1'] == {
        'time_ns': 6144.0, 'waves': 0.5, 'shared_transactions': 123456.0,
    }  # fmt: skip
    assert wide['profiled1_tiled_conv2d_0'] == {'time_ns': 8000.0, 'waves': 1.25}
    assert parse(LONG) == {'profiled0_rs_conv2d_1': {'time_ns': 6144.0, 'dram_read_sectors': 99.0}}


def test_a_profiler_that_failed_says_why() -> None:
    with pytest.raises(InputError, match='ERR_NVGPUCTRPERM'):
        parse('==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n')
    with pytest.raises(InputError, match='no table'):
        parse('')


def test_only_metrics_that_the_profiler_has_are_asked_for() -> None:
    known = (
        'dram__sectors_read    Counter   sector   # of sectors\ngpu__time_duration  Counter ns\n'
    )
    asked = wanted(known)
    assert 'dram__sectors_read.sum' in asked
    assert 'dram__sectors_write.sum' not in asked
    assert 'launch__waves_per_multiprocessor' in asked
    assert wanted('') == list(METRICS.values())
    words = command(asked, 'log.csv', 'profiled', ['python', 'x.py'])
    assert words[0] == 'ncu'
    assert words[-2:] == ['python', 'x.py']
    assert words[words.index('--cache-control') + 1] == 'none'


def test_pearson() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(20), rng.random(20)
    assert pearson(list(zip(a, b, strict=True))) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert pearson([(1.0, 2.0), (2.0, 3.0)]) is None
    assert pearson([(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]) is None


def script() -> ModuleType:
    path = Path(__file__).parents[2] / 'src' / 'tilewright_lab' / 'scripts' / 'gpu_profile.py'
    spec = importlib.util.spec_from_file_location('gpu_profile', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules['gpu_profile'] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_table_from_saved_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the script but the two runs on the device, with counters that follow the time."""
    tool = script()
    monkeypatch.setattr(tool, 'SAMPLED_LAYERS', ('R10',))
    monkeypatch.setattr(tool, 'OF_EACH', {'rs': 3, 's': 1, 'tiled': 1, 'patch': 1})
    chosen = tool.choose(tmp_path, known_gpu('h200'))
    assert chosen == tool.choose(tmp_path, known_gpu('h200'))
    assert {entry['layer'] for entry in chosen} == {'R10'}
    assert {entry['schedule']['schema'] for entry in chosen} == {'rs', 's', 'tiled', 'patch'}
    times = [{'status': 'ok', 'time_us': 2.0 + n, 'registers': 64} for n in range(len(chosen))]
    times[-1]['status'] = 'wrong'
    head = ['ID', 'Kernel Name', *METRICS.values()]
    lines = [head, [''] * len(head)]
    for number in range(len(chosen)):
        kernel = f'profiled{number}_rs_conv2d_0'
        lines.append([str(number), kernel, *(str(7 * (number + 1)) for _ in METRICS)])
    text = '\n'.join(','.join(f'"{cell}"' for cell in line) for line in lines)
    (tmp_path / 'ncu.csv').write_text(text)
    (tmp_path / 'times.json').write_text(json.dumps(times))
    out = tmp_path / 'table6.json'
    words = ['table', '--json', str(out), '--data', str(tmp_path), '--counters',
             str(tmp_path / 'ncu.csv'), '--times', str(tmp_path / 'times.json')]  # fmt: skip
    monkeypatch.setattr(sys, 'argv', ['gpu_profile.py', *words])
    assert tool.main() == 0
    made = json.loads(out.read_text())
    assert made['profiled'] == len(chosen) - 1
    shared = made['table6']['shared_transactions']
    assert shared['measured']['within_layers_mean'] == pytest.approx(1.0)
    assert shared['measured']['winners_of_layers'] is None
    assert shared['modelled']['pairs'] >= 4
    monkeypatch.setattr(sys, 'argv', ['gpu_profile.py', 'correlate', str(out)])
    assert tool.main() == 0
