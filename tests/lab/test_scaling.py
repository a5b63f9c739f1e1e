"""The trend that points are compared with, by hand; nothing is measured here."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from tilewright.errors import InputError
from tilewright_lab.figures import scaling
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.scaling import Point, evaluate, problems, trend_at


def points(times_ms, predicted_ms=None):
    sizes = [2**i for i in range(len(times_ms))]
    return [
        Point('batch', 3, size, f'l{size}', 1000 * size, ms, other, 50.0, 'outer')
        for size, ms, other in zip(sizes, times_ms, predicted_ms or times_ms, strict=True)
    ]


def test_a_power_law_is_its_own_trend():
    sizes = [1.0, 3.0, 10.0, 40.0, 90.0]
    values = [5 * size**-0.3 for size in sizes]
    for i in range(len(sizes)):
        assert trend_at(i, sizes, values) == pytest.approx(values[i])
    assert trend_at(0, sizes[:2], values[:2]) is None


def test_a_point_that_is_off_is_flagged_and_its_neighbours_are_not():
    times = [1.0 * 2**i for i in range(7)]
    times[3] *= 1.4
    found = evaluate(points(times, [1.0 * 2**i for i in range(7)]))
    assert [p['size'] for p in found if p['flagged']] == [8]
    assert found[3]['off'] == pytest.approx(0.4)
    assert found[3]['predicted_off'] == pytest.approx(0.0)
    assert all(abs(p['off']) < 0.1 for p in found if not p['flagged'])


def test_small_problems_may_cost_more_each_without_being_off():
    """A call costs something: time = 1 + size bends the line, smoothly."""
    found = evaluate(points([1 + 2.0**i for i in range(2, 9)]))
    assert not any(p['flagged'] for p in found[1:-1])


def test_the_sweeps_are_those_that_were_asked_for():
    wanted = list(problems())
    assert len({group.digest for *_, group in wanted}) >= 36
    for sweep, low, high in (('batch', 1, 64), ('channels', 16, 1024), ('image', 7, 512)):
        sizes = [size for name, _, size, _ in wanted if name == sweep]
        assert (min(sizes), max(sizes)) == (low, high)
    assert {taps for _, taps, _, _ in wanted} == {1, 3}
    # Multiply-adds grow as the swept size: in proportion, or with its square.
    for name, power in (('batch', 1), ('channels', 2), ('image', 2)):
        work = [(s, g.flops) for n, taps, s, g in wanted if n == name and taps == 1]
        for (s0, f0), (s1, f1) in pairwise(work):
            assert math.log(f1 / f0) == pytest.approx(power * math.log(s1 / s0))


def options(data=None):
    return Options('scaling', None, '', 0, 1, 0, data)


def test_data_of_an_earlier_run_is_evaluated_again(tmp_path):
    times = [1.0 * 2**i for i in range(7)]
    times[3] *= 1.4
    path = tmp_path / 'scaling.json'
    path.write_text(json.dumps({'limit': 0.15, 'points': evaluate(points(times))}))
    found = scaling.run(options(path))
    assert found['points'][3]['flagged']
    text = scaling.text(found)
    assert '1 of 7 points are more than 15% off the trend of their neighbours (!), 1 of' in text
    pytest.importorskip('matplotlib')
    scaling.plot(found, tmp_path / 'scaling.png')
    assert (tmp_path / 'scaling.png').stat().st_size > 1000


@pytest.mark.parametrize('text', ['', '{}', '{"points": [{}]}', '[]'])
def test_data_that_cannot_be_read(tmp_path, text):
    path = tmp_path / 'x.json'
    path.write_text(text)
    with pytest.raises(InputError):
        scaling.run(options(path))
    with pytest.raises(InputError, match='needs a machine'):
        scaling.run(options())
