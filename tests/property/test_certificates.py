"""Certificates: the checker accepts what was written, and no number of it can be changed."""

from __future__ import annotations

import copy
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import certificate
from tilewright.cli.main import invoke
from tilewright.errors import CheckError, InputError
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.report.certificate import certificate_of

STORED = Path(__file__).parents[2] / 'bench' / 'results' / 'mopt_certificates.json'
LAYERS = {one['name']: one['certificate'] for one in json.loads(STORED.read_text())['layers']}
CLAIMS = ('work', 'bound', 'time', 'gap', 'movement')  # the rest is what they are claimed of


def numbers(data: object, path: tuple = ()) -> Iterator[tuple]:
    """Paths of all numbers of a JSON value."""
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in items:
            yield from numbers(value, (*path, key))
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path


def altered(data: dict, path: tuple) -> dict:
    """The same with one number changed."""
    made = copy.deepcopy(data)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    inner[path[-1]] = value + 1 if isinstance(value, int) else value * 1.01 + 1e-3
    return made


def fails(data: dict) -> bool:
    try:
        certificate.check(data)
    except (CheckError, InputError):
        return True
    return False


def test_certificates_of_all_layers_of_mopt_hold() -> None:
    """The 32 stored certificates follow from their own numbers, and are those of the suite."""
    suite = {name: group for name, group, _ in expand('mopt')}
    assert set(LAYERS) == set(suite)
    assert len(LAYERS) == 32
    for name, data in LAYERS.items():
        assert certificate.check(data)
        assert data['group'] == json.loads(json.dumps(suite[name].to_json()))
    assert sum(data['movement'] is not None for data in LAYERS.values()) >= 10
    assert {data['assumes']['algorithm']['name'] for data in LAYERS.values()} == {
        'direct', 'winograd'
    }  # fmt: skip


@pytest.mark.parametrize('name', ['mopt/Y13', 'mopt/R2', 'mopt/M2'])
def test_a_changed_number_fails(name: str) -> None:
    """Whatever number is changed, the digest says so; claims fail with a right digest, too."""
    data = LAYERS[name]
    for path in numbers(data):
        assert fails(altered(data, path)), path
        if path[0] in CLAIMS and path[:2] != ('movement', 'stage'):
            assert fails(certificate.seal(altered(data, path))), path


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_changed_number_of_any_layer_fails(data: st.DataObject) -> None:
    made = LAYERS[data.draw(st.sampled_from(sorted(LAYERS)))]
    path = data.draw(st.sampled_from(list(numbers(made))))
    assert fails(altered(made, path))


@given(
    st.integers(1, 3), st.integers(3, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 3),
    st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_counts_are_those_of_a_walk(
    c: int, size: int, r: int, stride: int, pad: int, dilation: int
) -> None:
    """Operations on stored values and words that are read, counted point by point."""
    if size + 2 * pad < dilation * (r - 1) + 1:
        return
    group = tw.conv2d(c=c, h=size, w=size, k=2, r=r, s=1, stride=stride, pad=(pad, 0),
                      dilation=dilation)  # fmt: skip
    sizes = group.main.sizes
    seen, count = set(), 0
    for h, tap in itertools.product(range(sizes['h']), range(r)):
        row = h * stride + tap * dilation - pad
        if 0 <= row < size:
            seen.add(row)
            count += 1
    described = group.to_json()
    points = math.prod(sizes.values()) // (sizes['h'] * r) * count
    assert certificate.needed_points(described, described['stages'][0]) == points
    columns = len({w * stride for w in range(sizes['w'])})
    assert certificate.touched_words(described)['In'] == c * len(seen) * columns


@pytest.mark.parametrize(
    ('group', 'machine', 'target', 'algorithm'),
    [
        (tw.conv2d(c=16, h=12, w=12, k=16, r=3, s=3, pad=1), 'i7-9700k', 'cpu', 'direct'),
        (tw.conv2d(c=16, h=12, w=12, k=16, r=3, s=3, pad=1), 'i7-9700k', 'cpu', 'winograd'),
        (tw.conv2d(c=16, h=40, w=40, k=16, r=7, s=7, pad=3), 'i7-9700k', 'cpu', 'fft'),
        (tw.conv2d(c=8, h=12, w=12, k=8, r=3, s=3, groups=8), 'i9-10980xe', 'cpu', 'auto'),
        (tw.matmul(m=16, n=32, k=8), 'i9-10980xe', 'cpu', 'auto'),
        (tw.matmul(m=65, n=64, k=64), 'neoverse-n1', 'cpu', 'strassen'),
        (tw.conv2d(c=16, h=12, w=12, k=16, r=3, s=3, pad=1), 'h200', 'cuda', 'auto'),
    ],
    ids=lambda value: value if isinstance(value, str) else value.label[:20],
)
def test_a_plan_is_certified(group: Group, machine: str, target: str, algorithm: str) -> None:
    """Every algorithm and both kinds of machine; the bound is below the plan's and its time."""
    plan = tw.optimize(group, machine, 2, False, target=target, algorithm=algorithm)
    data = json.loads(json.dumps(plan.certificate()))
    assert certificate.check(data)
    bound_ms = 1e3 * data['bound']['seconds']
    assert bound_ms <= (1 + 1e-9) * plan.algorithm_bound_ms
    assert bound_ms <= 1e3 * plan.best.prediction.seconds
    if algorithm != 'auto':
        assert data['assumes']['algorithm']['name'] == algorithm


def test_the_checker_imports_neither_solver_nor_search() -> None:
    """A process that checks has loaded nothing that could repeat the solver's mistakes."""
    code = (
        'import json, sys; from tilewright import certificate\n'
        f'layers = json.load(open({str(STORED)!r}))["layers"]\n'
        'assert certificate.check(layers[0]["certificate"])\n'
        'print(*sorted(m for m in sys.modules if m.startswith("tilewright") or m == "casadi"))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        'tilewright', 'tilewright.certificate', 'tilewright.errors', 'tilewright.version'
    ]  # fmt: skip


def test_a_time_below_the_bound_refutes_the_machine() -> None:
    """A kernel that is faster than anything can be means that the machine's file is wrong."""
    data = copy.deepcopy(LAYERS['mopt/Y13'])
    data['time'] |= {'samples_ms': [1e-6], 'seconds': 1e-9}
    with pytest.raises(CheckError, match='measure it again'):
        certificate.check(certificate.seal(data))


@pytest.mark.parametrize(
    ('text', 'code', 'words'),
    [
        ('{', 2, 'is not JSON'),
        ('[]', 2, 'has no certificates'),
        ('{"layers": [{"name": "x", "certificate": 3}]}', 2, 'not a certificate'),
        (json.dumps(LAYERS['mopt/M1'] | {'format': 7}), 2, 'format 7'),
        (json.dumps(altered(LAYERS['mopt/M1'], ('bound', 'seconds'))), 1, 'was changed'),
        (json.dumps(LAYERS['mopt/M1']), 0, 'holds'),
    ],
)
def test_the_command_checks_files(
    text: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'c.json'
    path.write_text(text)
    assert invoke(['certify', '--check', str(path)]) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_the_command_certifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / 'made.json'
    words = ['mb1ic8ih6oc8oh6kh3ph1', '--machine', 'i7-9700k', '--json', str(path)]
    assert invoke(['certify', *words]) == 0
    assert invoke(['certify', '--check', str(path)]) == 0
    assert invoke(['certify']) == 2
    assert 'either a SPEC' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(LAYERS))
def test_certificates_of_mopt_made_anew(name: str) -> None:
    """Every layer of MOpt certified on this checkout's models."""
    ((_, group, _),) = expand(name)
    made = certificate_of(tw.optimize(group, 'i9-10980xe', 2, False))
    assert certificate.check(json.loads(json.dumps(made)))
