"""`reproduce deepcuts-speedup` and `deepcuts-generation-time`: from files of bench to tables."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright_lab.figures import deepcuts_generation, deepcuts_speedup, deepcuts_training
from tilewright_lab.figures.deepcuts import version_of
from tilewright_lab.figures.figures import FIGURES, Options


def ours(us: float, seconds: float, tune: str = 'measure', status: str = 'ok') -> dict:
    settings = {'tune': tune, 'parallel': True, 'kernels': 50,
                'stages_s': {'search': 0.25 * seconds, 'measure': 0.5 * seconds}}  # fmt: skip
    return {'name': f'tilewright/{tune}, side by side', 'status': status, 'median_us': us,
            'tuning_s': seconds, 'settings': settings}  # fmt: skip


def peer(name: str, us: float, seconds: float | None = None) -> dict:
    return {'name': name, 'status': 'ok', 'median_us': us, 'tuning_s': seconds, 'settings': {}}


def write(folder: Path, name: str, contestants: dict[str, list[dict]], **said) -> Path:
    networks = [
        {'name': network, 'batch': said['batch'], 'flops': 1, 'contestants': rows}
        for network, rows in contestants.items()
    ]
    path = folder / f'deepcuts-{name}.json'
    facts = {'device': 'NVIDIA H200', 'networks': networks, 'libraries': 'none'} | said
    path.write_text(json.dumps(facts))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """ResNet-50 at batch 1 in all versions, MobileNet at 16 not fused alone."""
    resnet = 'resnet50'
    torch = [peer('torch/a', 900.0), peer('torch/b', 800.0)]
    write(tmp_path, 'none', {resnet: [ours(200.0, 30.0), *torch]}, fuse='none', batch=1, cold=True)
    write(tmp_path, 'none-16', {'mobilenet_v2': [ours(50.0, 9.0)]}, fuse='none', batch=16)
    rows = [ours(100.0, 12.0), ours(90.0, 1.0, 'model', 'wrong'), *torch]
    inductor = [peer('inductor/aten', 700.0, 20.0), peer('inductor/triton', 710.0, 40.0)]
    write(tmp_path, 'elementwise', {resnet: [*rows, *inductor]}, fuse='elementwise', batch=1,
          inductor=[{'seconds': 60.0}])  # fmt: skip
    write(tmp_path, 'all', {resnet: [ours(125.0, 14.0)]}, fuse='all', batch=1, cold=False)
    write(tmp_path, 'libraries', {resnet: [ours(102.0, 80.0)]}, fuse='elementwise', batch=1,
          libraries='auto')  # fmt: skip
    return tmp_path


def options(name: str, data: Path | None) -> Options:
    return Options(name, None, '', 0, 1, 0, data)


def cells(lines: list[str], network: str, batch: int) -> list[str]:
    (row,) = (words[2:] for line in lines if (words := line.split())[:2] == [network, str(batch)])
    return row


def test_ratios_are_of_the_best_peer_and_missing_cells_stay_missing(data: Path) -> None:
    found = deepcuts_speedup.run(options('deepcuts-speedup', data))
    assert found['means']['not fused']['best_peer_over_ours'] == pytest.approx(3.5)
    assert found['means']['fused']['best_peer_over_ours'] == pytest.approx(7.0)
    assert [one['workloads'] for one in found['means'].values()] == [1, 1, 1]
    assert found['fused_over_not_fused'] == {'mean': pytest.approx(2.0), 'workloads': 1}
    assert found['libraries_behind_the_better'] == pytest.approx(0.02)
    assert found['missing'] == 8 * 4 - 5
    lines = deepcuts_speedup.text(found).splitlines()
    assert cells(lines, 'resnet50', 1) == [
        '200.0', '100.0', '125.0', '102.0', '800.0', '700.0', '3.50', '7.00', '6.86'
    ]  # fmt: skip
    assert cells(lines, 'mobilenet_v2', 16) == ['50.0', *'--------']
    assert '1.18' in deepcuts_speedup.markdown(found)


def test_training_steps_stand_beside_the_decks_mean(data: Path) -> None:
    """The fastest step of a workload counts; workloads without one say so."""
    row = {'network': 'resnet50', 'batch': 16, 'right': True, 'gradient_error': 2e-5}
    rows = {
        'a': row | {'us': {'ours': 300.0, 'torch': 200.0}},
        'b': row | {'us': {'ours': 100.0, 'torch': 210.0}},
        'c': row | {'network': 'dlrm', 'batch': 128, 'stage': 'compiled'},
        'd': row | {'network': 'bert_base', 'batch': 4, 'us': {'ours': 90.0, 'torch': 200.0}},
        'e': row | {'network': 'bert_base', 'batch': 4, 'gradient_errors': {'ours': 3e-5},
                    'us': {'ours': 100.0, 'torch': 195.0, 'inductor': 189.0}},
    }  # fmt: skip
    (data / 'training.json').write_text(json.dumps({'rows': rows}))
    found = deepcuts_speedup.run(options('deepcuts-speedup', data))
    assert found['training']['best_peer_over_ours'] == pytest.approx(2.1)
    lines = [line.split() for line in deepcuts_speedup.text(found).splitlines()]
    assert ['step', 'of', 'resnet50', '16', '100.0', '210.0', '2.10', '2.0e-05'] in lines
    # Inductor was timed beside another step of the workload.
    assert ['step', 'of', 'bert_base', '4', '90.0', '189.0', '2.10', '2.0e-05'] in lines
    assert ['step', 'of', 'dlrm', '128', '-', '-', '-', 'not', 'timed'] in lines
    assert any('2 of 16 workloads' in ' '.join(line) for line in lines)
    (data / 'training.json').write_text('[]')
    with pytest.raises(InputError, match=r'training\.json is not what gpu_training'):
        deepcuts_speedup.run(options('deepcuts-speedup', data))


def test_the_training_workloads_are_those_of_the_script() -> None:
    """Read from its source: importing it takes PyTorch."""
    spec = find_spec('tilewright_lab.scripts.gpu_training')
    assert spec is not None
    assert spec.origin is not None
    lines = ast.parse(Path(spec.origin).read_text()).body
    (batches,) = (
        line.value for line in lines
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == 'BATCHES'
    )  # fmt: skip
    assert ast.literal_eval(batches) == deepcuts_training.WORKLOADS


def test_seconds_are_marked_where_something_was_known_before(data: Path) -> None:
    found = deepcuts_generation.run(options('deepcuts-generation-time', data))
    lines = deepcuts_generation.text(found).splitlines()
    assert cells(lines, 'resnet50', 1) == ['30.0', '12.0*', '14.0*', '80.0*', '20.0']
    assert found['mean_seconds']['not fused'] == pytest.approx((30.0 * 9.0) ** 0.5)
    assert 'after 60 s in which' in '\n'.join(lines)
    assert 'with libraries: search 25%, measure 50% of the seconds' in lines
    assert '13.53' in '\n'.join(lines)


def test_a_cold_compilation_counts_before_a_later_one(data: Path) -> None:
    write(data, 'again', {'resnet50': [ours(99.0, 70.0)]}, fuse='elementwise', batch=1, cold=True)
    write(data, 'more', {'resnet50': [ours(98.0, 90.0)]}, fuse='elementwise', batch=1)
    found = deepcuts_generation.run(options('deepcuts-generation-time', data))
    (one,) = (w for w in found['workloads'] if (w['network'], w['batch']) == ('resnet50', 1))
    assert (one['ours']['elementwise']['us'], one['ours']['elementwise']['seconds']) == (98.0, 70.0)


def test_a_file_says_which_version_it_is_of() -> None:
    assert version_of({}) == 'elementwise'  # from before there was a choice
    assert version_of({'fuse': 'none', 'libraries': 'none'}) == 'not fused'
    assert version_of({'fuse': 'elementwise', 'libraries': 'auto'}) == 'with libraries'
    assert version_of({'fuse': 'all', 'libraries': 'auto'}) == 'with libraries'
    assert version_of({'fuse': 'none', 'libraries': 'only'}) is None


@pytest.mark.parametrize('name', ['deepcuts-speedup', 'deepcuts-generation-time'])
def test_what_is_shipped_can_be_shown_and_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    result = tmp_path / 'result.json'
    words = ['reproduce', name, '--machine', 'h200', '--json', str(result)]
    assert invoke([*words, '--plot', str(tmp_path)]) == 0
    assert 'NVIDIA H200' in capsys.readouterr().out
    assert json.loads(result.read_text())['figure'] == name
    assert (tmp_path / f'{name}.png').stat().st_size > 1000
    assert FIGURES[name].load().markdown(json.loads(result.read_text())).startswith('| network')


@pytest.mark.parametrize(
    ('text', 'sentence'),
    [
        ('{"networks": [{}], "device": "x"}', 'is not what tilewright bench'),
        ('[1]', 'is not what tilewright bench'),
        (None, 'finds no deepcuts-*.json'),
    ],
)
def test_other_files_are_refused_in_a_sentence(
    text: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    if text is not None:
        (tmp_path / 'deepcuts-x.json').write_text(text)
    assert invoke(['reproduce', 'deepcuts-speedup', '--data', str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count('\n') == 1
