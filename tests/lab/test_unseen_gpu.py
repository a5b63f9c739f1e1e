"""Tables 8 and 9 on a GPU that nobody here has seen, and what is said of data that are wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.machine.gpu import known_gpu
from tilewright.rank.counts import batches_of
from tilewright.rank.features import matrix_of
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.datasets import (
    Measured,
    group_of,
    least_seconds,
    possible,
    read_data,
    rows_in,
)
from tilewright_lab.figures import cnnopt, cnnopt_table8, cnnopt_table9

GPU = dataclasses.replace(known_gpu('v100'), name='unseen', multiprocessors=48, clock_ghz=1.9)
HEAD = 'K,H,W,C,R,TK,TH,TW,BK,BH,BW,CMult,Time\n'
LAYER = (64, 12, 12, 8, 3, 1)
SHAPES = ((32, 12, 4), (64, 12, 4), (64, 9, 8), (32, 18, 4), (64, 8, 4), (32, 16, 4))
PROBLEMS = tuple((k, h, h, c + more, 3, 1) for k, h, c in SHAPES for more in (0, 2))


def lines(problem: tuple[int, ...], rows: int, factor: float = 1.0) -> str:
    """Times by the formula, bent by something that it does not know."""
    group = group_of(problem)  # pyright: ignore[reportArgumentType]
    schedules = factor_space(group, GPU, 'rs')[0]
    order = np.random.default_rng(sum(problem)).permutation(len(schedules))[:rows]
    ((batch, _),) = batches_of(group, [schedules[i] for i in order])
    _, base = matrix_of(batch, GPU)
    t = batch.tiles
    seconds = factor * np.exp(base) * (2 + t['rx'] % 3)
    k, h, w, c, r, _ = problem
    return ''.join(
        f'{k},{h},{w},{c},{r},{t["rk"][i]},{t["ry"][i]},{t["rx"][i]},32,{t["wy"][i]},{t["wx"][i]},'
        f'{t["split"][i]},{1e3 * seconds[i]}\n'
        for i in range(len(batch))
    )


def written(folder: Path, train: str, layer: str) -> list[str]:
    """Data and GPU as files; comes out: the words of a command that name them."""
    inside = folder / 'dir_rs'
    inside.mkdir()
    (inside / 'train_set_rs.csv').write_text(HEAD + train)
    k, h, w, c, r, _ = LAYER
    (inside / f'Reg.timesForProblem{k}x{h}x{w}_{c}_{r}.csv').write_text(HEAD + layer)
    (folder / 'gpu.json').write_text(json.dumps(GPU.to_json()))
    return ['--data', str(folder), '--machine', str(folder / 'gpu.json')]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two recipes and one seed, and nothing remembered of other tests."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    for module in (cnnopt, cnnopt_table9):
        monkeypatch.setattr(module, 'SEEDS', 1)
    monkeypatch.setattr(cnnopt_table8, 'ONLINE_SEEDS', 1)
    monkeypatch.setattr(cnnopt, 'CHOSEN_FROM', ('boosted', 'mixed'))


def test_a_gpu_that_nobody_has_seen_gets_its_tables(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = written(tmp_path, ''.join(lines(p, 40) for p in PROBLEMS), lines(LAYER, 60))
    for figure in ('cnnopt-table9', 'cnnopt-table8'):
        path = tmp_path / 'found.json'
        assert invoke(['reproduce', figure, *words, '--json', str(path)]) == 0
        said = capsys.readouterr().out
        assert 'is chosen' in said
        assert 'the least cost' in said
        found = json.loads(path.read_text())
        assert found['machine']['name'] == 'unseen'
        (part,) = found['layers']
        assert len(part['layers']) == 1
    ours = part['layers'][0]['ours'][0]
    assert 1 <= ours[0] <= ours[1] <= 60


def _one_problem(folder: Path) -> list[str]:
    return written(folder, lines(PROBLEMS[0], 40), lines(LAYER, 40))


def _few_problems_to_judge(folder: Path) -> list[str]:
    train = ''.join(lines(p, 2) for p in PROBLEMS)
    return written(folder, train, lines(LAYER, 40))


def _two_devices(folder: Path) -> list[str]:
    words = written(folder, ''.join(lines(p, 40) for p in PROBLEMS), lines(LAYER, 40))
    (folder / 'dir_rs' / 'test_set_rs.csv').write_text(HEAD + lines(PROBLEMS[0], 40, 3.0))
    return words


def _impossible(folder: Path) -> list[str]:
    train = ''.join(lines(p, 40, 1e-6) for p in PROBLEMS)
    return written(folder, train, lines(LAYER, 40, 1e-6))


def _a_column_missing(folder: Path) -> list[str]:
    words = written(folder, ''.join(lines(p, 40) for p in PROBLEMS), lines(LAYER, 40))
    (folder / 'dir_rs' / 'train_set_rs.csv').write_text('K,H,W,C,R,CMult,Time\n1,2,3,4,3,1,7\n')
    return words


def _a_gpu_without(key: str, value: object) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        words = written(folder, ''.join(lines(p, 40) for p in PROBLEMS), lines(LAYER, 40))
        figures = GPU.to_json() | {key: value}
        (folder / 'gpu.json').write_text(
            json.dumps({k: v for k, v in figures.items() if v is not None})
        )
        return words

    return make


@pytest.mark.parametrize(
    ('make', 'says'),
    [
        (_one_problem, 'at least 10 training problems'),
        (_few_problems_to_judge, 'too few for 3 folds'),
        (_two_devices, 'they are of several devices'),
        (_impossible, 'times are impossible: unseen with'),
        (_a_column_missing, 'lacks the columns TK'),
        (_a_gpu_without('multiprocessors', 0), 'multiprocessors is 0'),
        (_a_gpu_without('clock_ghz', 'fast'), "clock_ghz is 'fast'"),
        (_a_gpu_without('l2_bytes', None), 'has the keys'),
    ],
)
def test_what_is_wrong_is_one_sentence(
    make: Callable[[Path], list[str]], says: str, quick: None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = make(tmp_path)
    assert invoke(['reproduce', 'cnnopt-table9', *words]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert len(said.splitlines()) == 1


def test_some_impossible_times_are_left_out_and_counted(tmp_path: Path) -> None:
    words = written(tmp_path, ''.join(lines(p, 40) for p in PROBLEMS), lines(LAYER, 40))
    data = read_data(Path(words[1]))
    first = data.train[0]
    seconds = first.seconds.copy()
    seconds[:3] = 0.1 * least_seconds(first, GPU)
    wrong = Measured(first.problem, first.batch, seconds)
    found = possible(dataclasses.replace(data, train=(wrong, *data.train[1:])), GPU)
    assert rows_in(found.train) == rows_in(data.train) - 3
    assert found.notes == ('3 rows are faster than unseen can multiply; they are left out',)
    assert possible(data, GPU) is data
