"""`tilewright reproduce`: a small figure measured for real, resumed, interrupted, read again."""

from __future__ import annotations

import json

import pytest

from tilewright import knobs
from tilewright.cli.main import invoke
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import best_isa
from tilewright.machine.measure import nominal_machine
from tilewright.ops.suites import parse
from tilewright.runtime.worker import Answer, Worker
from tilewright_lab.cli import reproduce as verb
from tilewright_lab.figures import collect
from tilewright_lab.figures.pictures import ABSENT

SMALL = 'mb1ic8ih8oc16kh3ph1'
OTHER = 'mb1ic8ih6oc8kh1'


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp('cache')


@pytest.fixture(autouse=True)
def _environment(monkeypatch, cache):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(cache))
    for knob in knobs.KNOBS:
        if knob.name not in ('cache_dir', 'cflags', 'jobs'):
            monkeypatch.delenv(knob.variable, raising=False)


@pytest.fixture
def host(tmp_path):
    """A machine file for this host with nominal figures: nothing has to be measured first."""
    path = tmp_path / 'host.json'
    path.write_text(json.dumps(nominal_machine(describe_host(), best_isa()).to_json()))
    return str(path)


@pytest.fixture
def call(capsys):
    def run(*words):
        capsys.readouterr()
        code = invoke(['reproduce', *(str(word) for word in words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_help_names_the_figures(call):
    code, out, _ = call('-h')
    assert code == 0
    for word in ('mopt-fig5', 'mopt-fig6', 'mopt-fig7', 'scaling', '--data', '--samples', '--plot'):
        assert word in out


@pytest.mark.slow
def test_fig5_is_measured_resumed_and_evaluated_from_its_data(call, cache, host, tmp_path):
    words = ('mopt-fig5', '--layers', f'{SMALL},{OTHER}', '--machine', host, '--seed', 3)
    result = tmp_path / 'result.json'
    code, out, err = call(*words, '--samples', 3, '--json', result)
    assert (code, err) == (0, '')
    data = json.loads(result.read_text())
    assert (data['verb'], data['complete'], data['threads'], data['seed']) == (
        'reproduce', True, 1, 3
    )  # fmt: skip
    assert [row['samples'] for row in data['layers']] == [3, 3]
    assert all(row['retimed'] and not row['failed'] for row in data['layers'])
    assert 'target: mean rank correlation' in out
    samples = lines_of(cache / data['data'])
    assert [line['kind'] for line in samples[:3]] == ['run', 'layer', 'sample']
    turns = [line for line in samples if line['kind'] == 'turn']
    assert 2 * 3 <= len(turns) <= 2 * 3 * collect.ROUNDS
    assert all(line['status'] == 'ok' and line['max_rel_err'] < 1e-5 for line in turns)

    code, _, err = call(*words, '--samples', 4)  # goes on: one more sample a layer
    assert (code, err) == (0, '')
    more = lines_of(cache / data['data'])
    assert more[: len(samples)] == samples
    assert sum(line['kind'] == 'sample' for line in more) == 8

    folder = tmp_path / 'data'
    folder.mkdir()
    (folder / 'samples.jsonl').write_text((cache / data['data']).read_text())
    before = (folder / 'samples.jsonl').read_bytes()
    code, out, err = call(
        'mopt-fig5', '--layers', SMALL, '--data', folder, '--machine', 'i7-9700k', '--json', '-'
    )
    assert (code, err) == (0, '')
    again = json.loads(out)
    assert again['machine']['name'] == 'i7-9700k'
    assert [row['samples'] for row in again['layers']] == [4]
    assert (folder / 'samples.jsonl').read_bytes() == before


def test_ctrl_c_leaves_data_that_can_be_used(call, host, tmp_path, monkeypatch):
    words = ('mopt-fig5', '--layers', f'{OTHER},{SMALL}', '--machine', host, '--samples', 2)
    time, first, second = Worker.time, parse(OTHER), parse(SMALL)

    def stop(self, group, *arguments, **named):
        if group == second:
            raise KeyboardInterrupt
        return time(self, group, *arguments, **named)

    result = tmp_path / 'result.json'
    monkeypatch.setattr(Worker, 'time', stop)
    code, _, err = call(*words, '--json', result)
    assert code == 130
    assert 'interrupted; every measurement taken so far is in' in err
    data = json.loads(result.read_text())
    assert not data['complete']
    assert [row['label'] for row in data['layers']] == [first.label]
    monkeypatch.setattr(Worker, 'time', time)
    code, out, err = call(*words, '--json', '-')
    assert (code, err) == (0, '')
    done = json.loads(out)
    assert done['complete']
    assert [row['samples'] for row in done['layers']] == [2, 2]
    assert done['layers'][0] == data['layers'][0]


def test_samples_that_fail_are_named_and_the_run_goes_on(call, host, monkeypatch):
    check, seen = Worker.check, []

    def judge(self, group, library):
        answer = check(self, group, library)
        seen.append(library)
        return Answer('wrong', 'differs at [0]') if library == seen[0] else answer

    monkeypatch.setattr(Worker, 'check', judge)
    code, out, err = call(
        'mopt-fig5', '--layers', SMALL, '--machine', host, '--samples', 3, '--seed', 9,
    )  # fmt: skip
    assert (code, err) == (0, '')
    assert '1 samples failed, the first wrong: differs at [0]' in out


def test_fig6_measures_and_simulates(call, host, tmp_path):
    code, out, err = call(
        'mopt-fig6', '--layers', SMALL, '--machine', host, '--samples', 2, '--seed', 3, '--json',
        tmp_path / 'fig6.json',
    )  # fmt: skip
    assert (code, err) == (0, '')
    (row,) = json.loads((tmp_path / 'fig6.json').read_text())['layers']
    assert row['samples'] == 2
    assert 'simulated: one call' in out


def test_without_matplotlib_the_json_is_written_and_the_exit_code_is_3(
    call, host, tmp_path, monkeypatch
):
    monkeypatch.setattr(verb, 'absence', lambda: ABSENT)
    words = ('mopt-fig6', '--layers', SMALL, '--machine', host, '--samples', 1, '--seed', 3)
    result = tmp_path / 'result.json'
    code, _, err = call(*words, '--json', result, '--plot', tmp_path / 'pictures')
    assert code == 3
    assert 'install tilewright[report]' in err
    assert json.loads(result.read_text())['complete']
    assert call(*words)[0] == 0  # no picture was asked for


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        (('fig5',), 'is not a figure that can be reproduced; did you mean mopt-fig5?'),
        (('mopt-fig5', '--data', 'nowhere'), '--data nowhere does not exist'),
        (('mopt-fig5', '--samples', 0), 'ask for at least 1'),
        (('mopt-fig7', '--samples', 5), 'draws no samples'),
        (('scaling', '--layers', 'mopt'), 'has layers of its own'),
        (('mopt-fig5', '--layers', 'mopt/R99'), "suite mopt has no layer 'R99'"),
        (('mopt-fig5', '--threads', 0), 'threads is 0'),
        (('mopt-fig5', '--threads', 9, '--machine', 'i7-9700k'), 'ask for 1 to 8'),
        (('mopt-fig5', '--plot', __file__), 'is not a directory'),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(call, words, sentence):
    code, out, err = call(*words)
    assert (code, out) == (2, '')
    assert sentence in err
    assert err.count('\n') == 1


def test_a_machine_of_another_kind_cannot_be_measured(call, tmp_path):
    foreign = tmp_path / 'foreign.json'
    other = nominal_machine(describe_host(), 'avx2' if best_isa() == 'neon' else 'neon')
    foreign.write_text(json.dumps(other.to_json()))
    code, _, err = call('mopt-fig5', '--machine', foreign, '--layers', SMALL, '--samples', 1)
    assert code == 2
    assert 'cannot be measured on this host; give data' in err
