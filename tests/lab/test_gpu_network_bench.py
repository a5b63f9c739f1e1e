"""Comparisons of networks on a GPU: turns, verdicts, figures. No device and no peer is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.errors import InputError, MissingError
from tilewright.runtime.measure import Progress
from tilewright_lab.cli import gpu_networks
from tilewright_lab.compare.gpu_networks import (
    GpuNetworkResult,
    Subject,
    duel,
    mean_ratio,
    table,
    verdict,
)
from tilewright_lab.peers.contestants import OURS, Entrant
from tilewright_lab.peers.peers import check_names

INPUTS = {'image': np.zeros((1, 3, 4, 4), np.float32)}
WANT = np.array([[1.0, -2.0]])
SUBJECT = Subject('small', {'name': 'small', 'batch': 1}, INPUTS, WANT, 4_000_000)


def entrant(name: str, us: float, answer: np.ndarray = WANT, turns: list[str] | None = None):
    def time(repeats: int) -> list[float]:
        if turns is not None:
            turns.append(name)
        return [us * 1e-6] * repeats

    return Entrant(name, time, lambda: answer)


def test_turns_are_interleaved_and_the_fastest_of_ours_counts() -> None:
    turns: list[str] = []
    makers = [
        lambda: entrant(f'{OURS}/side by side', 20.0, turns=turns),
        lambda: entrant(f'{OURS}/in a row', 25.0, turns=turns),
    ]
    found = duel(SUBJECT, makers, (), 2)
    assert turns == [f'{OURS}/side by side', f'{OURS}/in a row'] * 2
    assert found.ours_us == pytest.approx(20.0)
    assert found.ratio is None
    assert [c['status'] for c in found.contestants] == ['ok', 'ok']


def test_wrong_and_missing_ones_keep_their_rows() -> None:
    def missing() -> Entrant:
        raise MissingError('there is no device')

    wrong = WANT + 1e-2
    found = duel(SUBJECT, [lambda: entrant(OURS, 5.0, wrong), missing], (), 1)
    assert found.ours_us is None
    assert [c['status'] for c in found.contestants] == ['wrong', 'missing']
    assert 'there is no device' in table([found], ())


def test_the_fastest_peer_is_the_rival() -> None:
    rows = [
        {'name': f'{OURS}/in a row', 'status': 'ok', 'median_us': 100.0},
        {'name': 'torch/contiguous_format0', 'status': 'ok', 'median_us': 300.0},
        {'name': 'torch/channels_last1', 'status': 'ok', 'median_us': 180.0},
        {'name': 'torch/channels_last0', 'status': 'wrong', 'median_us': 10.0, 'message': 'off'},
        {'name': 'inductor', 'status': 'ok', 'median_us': 150.0},
    ]
    first = GpuNetworkResult('a', 1, 10**9, tuple(rows))
    assert first.time_us('torch') == 180.0
    assert first.ratio == pytest.approx(1.5)
    second = GpuNetworkResult('b', 1, 10**9, tuple(rows[:2]))
    assert mean_ratio([first, second]) == pytest.approx((1.5 * 3.0) ** 0.5)
    text = table([first, second], ('torch', 'inductor'))
    assert 'geometric mean 2.121 over 2 networks, least 1.500' in text
    assert '10.00' in text.splitlines()[2] or '10.00' in text  # TFLOP/s of 10^9 in 100 us
    assert first.to_json()['best_peer_over_ours'] == pytest.approx(1.5)


def test_verdicts() -> None:
    assert verdict(WANT + 1e-5, WANT)['status'] == 'ok'
    assert verdict(np.full_like(WANT, np.nan), WANT)['max_rel_err'] is None
    assert verdict(WANT * 1.002, WANT)['status'] == 'wrong'


def test_neither_onnx_nor_a_solver_is_needed() -> None:
    """A machine with a GPU may have neither; networks of the zoo need no file."""
    code = (
        "import sys; sys.modules['onnx'] = sys.modules['casadi'] = sys.modules['torch'] = None\n"
        'import tilewright_lab.cli.gpu_networks, tilewright_lab.cli.networks\n'
        'from tilewright import zoo\n'
        "print(len(zoo.graph('squeezenet', image=64, width=8).nodes))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60


def test_names_are_checked_before_anything_is_done(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(InputError, match='choose from torch, inductor'):
        check_names(['cudnn'], 'network', 'gpu')
    assert invoke(['bench', 'resnet18', '--target', 'host', '--against', 'cudnn']) == 2
    assert invoke(['bench', 'resnet18', '--target', 'host', '--tune', 'guess']) == 2
    assert invoke(['bench', 'model.onnx', '--target', 'host']) == 2
    assert invoke(['bench', 'resnet18', '--target', 'host', '--precision', 'int8']) == 2
    said = capsys.readouterr().err
    assert 'choose from torch, inductor' in said
    assert "--tune 'guess'" in said
    assert 'not a network of the zoo' in said


def test_a_version_of_a_network_is_in_the_file_with_what_it_was_compiled_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reproduce deepcuts-speedup` reads the version of a file from these fields."""
    asked: list[tuple[dict[str, Any], tuple[str, ...]]] = []

    def ours(
        subject: Subject, compiling: dict[str, Any], tunes: tuple[str, ...], fleet: None
    ) -> list:
        asked.append((compiling, tunes))
        return [lambda: entrant(f'{OURS}/measure, in a row', 5.0)]

    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    monkeypatch.setattr(gpu_networks, '_ours', ours)
    monkeypatch.setattr(Subject, 'of', lambda name, *_: replace(SUBJECT, name=name))
    file = tmp_path / 'versions.json'
    words = ['--target', 'host', '--batch', '16', '--fuse', 'none', '--no-untuned', '--rounds', '1']
    for cold in (True, False):
        assert invoke(['bench', 'resnet18', *words, '--json', str(file)]) == 0
        said = json.loads(file.read_text())
        assert (said['fuse'], said['libraries'], said['tune']) == ('none', 'none', 'measure')
        assert (said['batch'], said['cold'], said['precision']) == (16, cold, 'fp32')
        (tmp_path / 'cache' / 'records').touch()
    assert [tunes for _, tunes in asked] == [('measure',)] * 2
    assert asked[0][0]['fuse'] == 'none'
    assert invoke(['bench', 'mopt/R9', '--no-untuned']) == 2


def test_networks_with_several_inputs_are_asked_by_name() -> None:
    subject = Subject.of('dlrm', 0, 3, image=50, width=8)
    assert {name: array.dtype.name for name, array in subject.inputs.items()} == {
        'dense': 'float32', 'sparse': 'int64',
    }  # fmt: skip
    assert subject.want.shape == (3, 1)
    assert subject.want.dtype == np.float64
    decoded = Subject.of('gpt2_decode', 0, image=5, width=6)
    assert len(decoded.inputs) == 25
    assert decoded.want.shape[0] == 1  # scores, the first of many results


def test_seconds_of_stages_add_up() -> None:
    stages = gpu_networks._Stages()
    for stage in ('search', 'search', 'measure'):
        stages(Progress(stage, 'a layer', 1, 2, 0.0, None))
    assert set(stages.spent) == {'search', 'measure'}
    assert 0 < sum(stages.spent.values()) <= stages.seconds
