"""Features of CPU schedules against numbers worked out by hand, and layers left out of training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.machine.measure import load_machine
from tilewright.model.cpu.predict import predict
from tilewright.ops.convolution import conv2d
from tilewright.schedule.schedule import Level, Schedule
from tilewright.search.cpu.sample import take
from tilewright_lab.figures.cpu_ranker import MODELS, Rows, scores_without
from tilewright_lab.figures.dataset import DataSet, LayerData, Recorder
from tilewright_lab.train.cpu_features import CPU_FEATURES, CPU_NAMES, cpu_matrix

MACHINE = load_machine('i7-9700k', measure=False)[0]
LAYER = conv2d(c=16, h=20, w=20, k=32, r=3, s=3)


def by_hand() -> Schedule:
    order = ('n', 'k', 'h', 'w', 'c', 'r', 's')
    whole = {'n': 1, 'c': 16, 'r': 3, 's': 3}
    return Schedule(
        'outer', 'avx2', 'k',
        (
            Level.of('reg', order, {'n': 1, 'k': 16, 'h': 1, 'w': 6, 'c': 1, 'r': 1, 's': 1}),
            Level.of('l1', order, whole | {'c': 8, 'k': 16, 'h': 2, 'w': 18}),
            Level.of('l2', ('n', 'c', 'r', 's', 'h', 'w', 'k'), whole | {'k': 16, 'h': 6, 'w': 18}),
            Level.of('l3', order, whole | {'k': 32, 'h': 18, 'w': 18}),
        ), (), 'l2',
    )  # fmt: skip


def test_features_by_hand() -> None:
    schedule = by_hand()
    x, base = cpu_matrix(LAYER, [schedule], MACHINE)
    found = dict(zip(CPU_NAMES, x[0].tolist(), strict=True))
    said = predict(LAYER, schedule, MACHINE)
    assert base[0] == pytest.approx(math.log(said.seconds))
    assert found['k'] == 5.0
    assert found['reg_k'] == 4.0
    assert found['reg_pixels'] == pytest.approx(math.log2(6))
    assert found['l1_c'] == 3.0
    assert found['l1_pixels'] == pytest.approx(math.log2(36))
    assert found['l2_window'] == pytest.approx(math.log2(9))
    assert found['pack'] == 2.0  # l2
    # Bands: reg turns along w last (c, r, s stay inside the micro-kernel's call), l1 along c.
    assert found['l1_stays'] == 3.0
    assert found['l2_stays'] == 1.0  # tiles of l2 turn along k last: the input stays
    tile = 16 * 6 * 18 + 16 * 8 * 20 + 16 * 16 * 9  # results, input with its halo, weights
    assert found['l2_filled'] == pytest.approx(math.log2(4 * tile / MACHINE.caches[1].usable_bytes))
    assert found['compute_share'] == pytest.approx(said.compute_s / said.seconds, rel=1e-6)


def test_every_feature_is_named_and_finite() -> None:
    assert len(set(CPU_NAMES)) == len(CPU_NAMES)
    assert all(f.formula and f.group in ('problem', 'tiles', 'analytical') for f in CPU_FEATURES)
    deep = conv2d(c=8, h=14, w=14, k=8, r=3, s=3, pad=1, groups=8)
    one = conv2d(c=16, h=14, w=14, k=24, r=1, s=1)
    for group in (LAYER, deep, one):
        x, base = cpu_matrix(group, take(group, MACHINE, 1, 0, 6, ()), MACHINE)
        assert x.shape[1] == len(CPU_NAMES)
        assert np.isfinite(x).all()
        assert np.isfinite(base).all()


def rows_of(number: int, shift: float = 0.0) -> Rows:
    """Made-up samples: times are analytical ones times a feature that trees can learn."""
    group = conv2d(c=8, h=12 + number, w=12, k=16, r=3, s=3)
    random = np.random.default_rng(number)
    x = random.random((40, len(CPU_NAMES))).astype(np.float32)
    base = random.normal(-9, 1, 40)
    keys = tuple(f'{number}-{i}' for i in range(40))
    layer = LayerData(f'layer{number}', group)
    return Rows('seed 0', layer, keys, x, base, base + 2 * x[:, 3] + shift * random.random(40))


def test_a_shape_is_ranked_without_having_been_seen() -> None:
    found = [rows_of(number) for number in range(6)]
    shape = found[2].shape
    scores = scores_without(found, shape, 0)
    changed = [*found[:2], rows_of(2, shift=5.0), *found[3:]]
    assert scores_without(changed, shape, 0) == scores  # its times play no part
    (one,) = scores
    assert set(one) == set(MODELS)
    truth = found[2].log_s
    learned, analytical = (
        np.corrcoef(one[name], truth)[0, 1] for name in ('boosted', 'analytical')
    )
    assert learned > analytical


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = DataSet(MACHINE, 1, 7, {'package': 'x'})
    with Recorder(tmp_path / 'a.jsonl', head) as recorder:
        for number in range(4):
            group = conv2d(c=8, h=12 + number, w=12, k=16, r=3, s=3)
            name = f'layer{number}'
            recorder.put('layer', name, group=group.to_json())
            for place, schedule in enumerate(take(group, MACHINE, 1, 0, 12, ())):
                key = schedule.digest
                recorder.put('sample', name, key=key, schedule=schedule.to_json())
                recorder.put(
                    'turn', name, key=key, status='ok', message='', max_rel_err=0.0,
                    calls_ms=[1.0 + place, 1.1 + place],
                )  # fmt: skip
    made = tmp_path / 'out.json'
    words = ['reproduce', 'cpu-ranker', '--data', str(tmp_path)]
    assert invoke([*words, '--json', str(made)]) == 0
    assert '48 samples of 4 shapes' in capsys.readouterr().out
    found = json.loads(made.read_text())
    assert len(found['layers']) == 4
    assert str(tmp_path) not in json.dumps(found['layers'])
    assert found['data'] == tmp_path.name
    assert set(found['means']) == {'all', 'seed 7'}
    (tmp_path / 'a.jsonl').write_text('')
    assert invoke(words) == 2
    assert 'is empty' in capsys.readouterr().err
