"""The GPU's side of the command line, without a GPU: exit codes, explanations, tables, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.cli.options import refuse
from tilewright.errors import InputError, MissingError
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.bounds import gpu_bounds
from tilewright.report.gpu_explain import explain_gpu
from tilewright.runtime.gpu import cuda_devices
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.gpu_results import GpuLayer, GpuTable, geometric_mean

SMALL = 'mb1ic8ih6oc16kh3ph1'
WITHOUT = ('casadi', 'rich', 'pyopencl', 'platformdirs', 'onnx', 'torch', 'cuda')


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))


@pytest.fixture
def call(capfd: pytest.CaptureFixture):
    def run(*words: str) -> tuple[int, str, str]:
        code = invoke(list(words))
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def no_gpu() -> bool:
    return not cuda_devices.cuda_devices()


@pytest.mark.skipif(not no_gpu(), reason='this host has a CUDA device')
@pytest.mark.parametrize(
    'words', [('bench', 'cnnopt', '--target', 'cuda', '--against', 'cudnn'),
              ('machine', '--target', 'cuda')],
)  # fmt: skip
def test_without_a_gpu_it_is_one_sentence_and_exit_code_3(call, words: tuple[str, ...]) -> None:
    code, out, err = call(*words)
    assert code == 3
    assert out == ''
    assert err.startswith('tilewright: ')
    assert 'CUDA' in err
    assert err.count('\n') == 1


@pytest.mark.parametrize(
    ('words', 'part'),
    [
        (('bench', SMALL, '--target', 'metal'), "--target 'metal'; choose one of cuda"),
        (('machine', '--target', 'metal'), "--target 'metal'"),
        (('bench', SMALL, '--target', 'host', '--against', 'mkl'), "--against 'mkl' on host"),
        (('bench', SMALL, '--target', 'host', '--trials', '0'), 'trials is 0'),
        (('bench', SMALL, '--target', 'host', '--seconds', '0'), 'seconds is 0'),
        (('bench', 'cnnopt/R99', '--target', 'host'), 'has no layer'),
    ],
)
def test_bad_options_are_exit_code_2(call, words: tuple[str, ...], part: str) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, '')
    assert part in err


def test_a_device_by_a_wrong_name_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_devices, 'cuda_devices', lambda: ['NVIDIA H200'])
    with pytest.raises(MissingError, match="no CUDA device is called 'v100'; there are: NVIDIA"):
        cuda_devices.cuda_device('v100')


def test_it_runs_where_optional_packages_are_missing() -> None:
    """What a GPU host without casadi and others has is enough to begin: the driver is missing."""
    code = (
        f'import sys\nfor name in {WITHOUT!r}: sys.modules[name] = None\n'
        "from tilewright.cli.main import invoke\nsys.exit(invoke(['bench', 'cnnopt', '--target', "
        "'cuda']))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count('\n') == 1


def test_explain_on_a_gpu_that_is_not_there(call, tmp_path: Path) -> None:
    path = tmp_path / 'e.json'
    code, out, err = call('explain', 'cnnopt/R12', '--machine', 'h200', '--json', str(path))
    assert (code, err) == (0, '')
    for part in ('on h200', 'bound with multiply-adds: 3.46 us by compute', 'best schedule: ',
                 'traffic: L2', 'occupancy', 'limited by', 'runner-up'):  # fmt: skip
        assert part in out
    data = json.loads(path.read_text())
    assert data['verb'] == 'explain'
    assert data['machine']['name'] == 'h200'
    layer = data['layers'][0]
    assert layer['bounds']['fma']['by'] == 'compute'
    assert layer['predicted']['seconds'] > layer['bounds']['fma']['l2_s']
    schedule = GpuSchedule.from_json(layer['schedule'])
    assert schedule.to_json() == layer['schedule']


def test_an_explanation_is_the_same_every_time() -> None:
    group = tw.parse(SMALL)
    first, second = (explain_gpu('x', group, known_gpu('v100')) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.schedule.intrinsic == 'fma'


def test_machines_of_targets(call) -> None:
    code, out, _ = call('machine', '--target', 'host', '--json', '-')
    assert code == 0
    told = json.loads(out)['devices'][0]['machine']
    assert (told['name'], told['multiprocessors']) == ('host', 1)
    assert told['threads_per_block'] == known_gpu('h200').threads_per_block
    assert 'l2_gbps' in told['assumed']
    code, out, _ = call('machine', '--target', 'host')
    assert 'assumed, neither queried nor measured: global_gbps' in out
    assert 'GFLOP/s' in out
    assert 'compute capability none' in out


def test_bench_on_the_host_dialect(call, tmp_path: Path) -> None:
    path = tmp_path / 'b.json'
    code, out, _ = call(
        'bench', SMALL, '--target', 'host', '--trials', '2', '--rounds', '2', '--batch', '2',
        '--seed', '3', '--json', str(path),
    )  # fmt: skip
    assert code == 0
    assert 'geometric mean of general / ours' in out
    data = json.loads(path.read_text())
    assert data['complete']
    assert data['layers'][0]['name'].endswith('@2')
    assert data['layers'][0]['label'].startswith('mb2')
    ours = data['layers'][0]['contestants'][0]
    assert len(ours['samples_us']) == 2
    assert ours['status'] == 'ok'


def test_a_contestant_that_is_missing_keeps_its_column_and_is_exit_code_3(call) -> None:
    code, out, err = call(
        'bench', SMALL, '--target', 'host', '--trials', '1', '--rounds', '1', '--against',
        'general,cudnn', '--seed', '3',
    )  # fmt: skip
    assert code == 3
    assert 'cudnn us' in out
    assert 'cudnn' in err


def layer(name: str, ours: float, rival: float) -> GpuLayer:
    group = tw.parse('cnnopt/R12')
    schedule = GpuSchedule.of('tiled', 'mma_tf32x3', bk=32)
    contestants = (
        {'name': 'ours/0', 'median_us': ours, 'settings': {'schedule': schedule.to_json()}},
        {'name': 'ours/1', 'median_us': 2 * ours, 'settings': {}},
        {'name': 'cudnn/nchw', 'median_us': rival},
        {'name': 'cudnn/channels_last', 'median_us': 3 * rival},
        {'name': 'opencl', 'status': 'failed', 'message': 'too much'},
    )
    machine = known_gpu('h200')
    return GpuLayer(
        name, group.label, group.digest, group.flops, machine, 'cudnn', contestants,
        gpu_bounds(group, machine),
    )  # fmt: skip


def test_tables_keep_losing_rows() -> None:
    won, lost = layer('won', 10.0, 40.0), layer('lost', 10.0, 9.0)
    assert won.ours_us == 10.0
    assert won.ratio('cudnn') == 4.0
    assert won.ratio('opencl') is None
    assert won.tflops == pytest.approx(won.flops / 1e7)
    assert won.percent_of_peak == pytest.approx(100 * won.flops / 1e-5 / 66.908e12, rel=1e-3)
    assert geometric_mean([won, lost], 'cudnn') == pytest.approx((4 * 0.9) ** 0.5)
    table = GpuTable(['won', 'lost'], ['cudnn', 'opencl'])
    rows = [table.row(won), table.row(lost)]
    assert '0.90' in rows[1]
    assert rows[0].endswith('tiled mma_tf32x3 bk32')
    foot = table.foot([won, lost])
    assert 'geometric mean of cudnn / ours over 2 of 2 layers: 1.90; behind on lost' in foot
    assert 'opencl' not in foot
    assert len(table.head().splitlines()[-1].split('schedule')[0]) <= len(rows[0])


def test_options_of_the_other_target_are_refused() -> None:
    refuse('cuda', {'threads': False, 'turn-ms': False})
    with pytest.raises(InputError, match='--threads, --turn-ms mean nothing with --target cuda'):
        refuse('cuda', {'threads': True, 'top': False, 'turn-ms': True})
