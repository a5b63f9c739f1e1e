"""The command line: verbs, JSON, exit codes, interruption. Nothing here depends on a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import quick

from tilewright import knobs
from tilewright.cli import machine, optimize, output
from tilewright.cli.options import AlgorithmName
from tilewright.errors import MissingError
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import best_isa
from tilewright.machine.measure import machine_file, nominal_machine
from tilewright.runtime.measure import Measurement
from tilewright.search.cpu.choose import ALGORITHMS
from tilewright_lab.cli import demo
from tilewright_lab.cli import layers as bench
from tilewright_lab.peers import peers

SMALL = 'mb1ic8ih8oc16kh3ph1'
OTHER = 'mb1ic8ih6oc8kh1'
VERBS = ('machine', 'optimize', 'explain', 'bench', 'demo')


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


def test_help_lists_the_verbs_and_the_knobs(call):
    code, out, err = call('--help')
    assert (code, err) == (0, '')
    for word in (*VERBS, *(knob.variable for knob in knobs.KNOBS)):
        assert word in out


@pytest.mark.parametrize('verb', VERBS)
def test_every_verb_has_help_with_examples(call, verb):
    code, out, _ = call(verb, '-h')
    assert code == 0
    for word in ('Examples:', f'tilewright {verb}', '--threads', '--json', '--seed'):
        assert word in out
    assert (code, out) == call(verb, '--help')[:2]


@pytest.mark.parametrize('verb', ['optimize', 'explain', 'bench'])
def test_help_lists_the_algorithms_that_the_search_knows(call, verb):
    assert [name.value for name in AlgorithmName] == list(ALGORITHMS)
    assert '|'.join(ALGORITHMS) in call(verb, '--help')[1]


def test_no_verb_shows_the_help_and_is_bad_input(call):
    code, out, _ = call()
    assert code == 2
    assert 'Usage: tilewright' in out


def test_the_module_can_be_run():
    words = [sys.executable, '-m', 'tilewright', '--version']
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == 'tilewright'


def test_the_example_of_the_readme_works(capsys):
    text = (Path(__file__).parents[2] / 'README.md').read_text()
    code = text.split('```python\n')[1].split('```')[0]
    exec(code.replace('tw.optimize(op)', 'tw.optimize(op, measure=False)'), {})
    out = capsys.readouterr().out
    assert out.startswith('(1, 64, 56, 56) None ms')
    assert 'Lower bounds on the time' in out


def test_optimize_without_measuring(call):
    code, out, err = call('optimize', SMALL, '--no-measure', '--machine', 'i7-9700k')
    assert (code, err) == (0, '')
    for part in ('on i7-9700k (avx2), threads: 8', 'micro-kernel:', 'predicted ', 'GFLOP/s',
                 '% of the peak', '% of the bound'):  # fmt: skip
        assert part in out
    assert 'measured' not in out


def test_json_on_standard_output_stands_alone_and_is_complete(call):
    code, out, err = call('optimize', SMALL, '--no-measure', '--machine', 'i7-9700k', '--json', '-')
    assert (code, err) == (0, '')
    data = json.loads(out)
    assert data['format'] == 1
    assert data['verb'] == 'optimize'
    assert data['complete'] is True
    assert set(data['versions']) == {
        'tilewright', 'package', 'python', 'numpy', 'compiler', 'system'
    }  # fmt: skip
    assert data['machine']['name'] == 'i7-9700k'
    (layer,) = data['layers']
    assert layer['plan']['candidates'][0]['measured'] is None
    assert {'predicted_ms', 'measured_ms', 'bound_ms', 'gflops_per_s'} <= set(layer['figures'])


def test_a_list_of_layers_is_one_line_each(call):
    spec = f'{SMALL},{OTHER}'
    code, out, _ = call('optimize', spec, '--no-measure', '--machine', 'i9-10980xe', '--threads', 2)
    assert code == 0
    _, _, head, *rows = out.splitlines()
    assert head.split()[:3] == ['layer', 'predicted', 'measured']
    assert len(rows) == 2
    assert all(row.split()[2] == '-' for row in rows)


def test_emitted_sources_are_the_same_byte_for_byte(call, tmp_path):
    folders = [tmp_path / 'one', tmp_path / 'two']
    for folder in folders:
        words = ('optimize', SMALL, '--no-measure', '--machine', 'i9-10980xe', '--threads', 3)
        assert call(*words, '--emit', folder)[0] == 0
    first, second = ({p.name: p.read_bytes() for p in f.iterdir()} for f in folders)
    assert first == second
    assert sorted(first)[0].startswith('01-')
    assert all(b'void tw_part(' in text for text in first.values())


def test_sources_of_a_suite_go_to_a_folder_each(call, tmp_path):
    words = ('optimize', f'{SMALL}n"a",{OTHER}n"b"', '--no-measure', '--machine', 'i7-9700k')
    assert call(*words, '--top', 1, '--threads', 2, '--emit', tmp_path)[0] == 0
    assert {p.name for p in tmp_path.iterdir()} == {'a', 'b'}


def test_optimize_measures_verifies_and_resumes(call, host, tmp_path):
    words = ('optimize', SMALL, '--machine', host, '--threads', 1, '--top', 2, '--seed', 7)
    layers = []
    for number in (1, 2):
        path = tmp_path / f'{number}.json'
        code, out, _ = call(*words, '--json', path)
        assert code == 0
        assert 'verified' in out
        data = json.loads(path.read_text())
        assert data['seed'] == 7
        layers.append(data['layers'][0])
    first, second = ({c['digest']: c['measured'] for c in layer['plan']['candidates']}
                     for layer in layers)  # fmt: skip
    assert all(m['status'] == 'ok' and m['samples_ms'] for m in first.values())
    # The second run finds every sample in the store, and takes none again.
    assert {d: m['samples_ms'] for d, m in second.items()} == {
        d: m['samples_ms'] for d, m in first.items()
    }
    assert Path(layers[0]['library']).is_file()


def test_explain_needs_neither_compiler_nor_the_machine(call, monkeypatch):
    monkeypatch.setenv('PATH', '')
    monkeypatch.delenv('CC', raising=False)
    code, out, err = call('explain', 'mopt/R9', '--machine', 'i9-10980xe', '--threads', 4)
    assert (code, err) == (0, '')
    assert out.startswith('mopt/R9: mb1ic256')
    assert 'Binding limit' in out
    code, out, _ = call('explain', SMALL, '--machine', 'i7-9700k', '--json', '-')
    assert code == 0
    data = json.loads(out)
    assert data['layers'][0]['explanation']['loops']
    assert data['versions']['compiler'] is None


def test_machine_shows_a_known_machine(call):
    code, out, _ = call('machine', '--machine', 'i7-9700k', '--threads', 4)
    assert code == 0
    assert 'nominal figures, not measured' in out
    assert 'with 4 threads: 460.8 GFLOP/s' in out  # 4 x 115.2
    data = json.loads(call('machine', '--machine', 'i7-9700k', '--threads', 4, '--json', '-')[1])
    assert data['at_threads']['peak_gflops_per_s'] == pytest.approx(460.8)
    assert data['host'] is None


def test_remeasuring_that_fails_keeps_the_old_figures(call, monkeypatch):
    facts = describe_host()
    path = machine_file(facts, best_isa(facts.isas))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('the old figures')

    def fail(*_):
        assert not path.exists()
        raise MissingError('no compiler')

    monkeypatch.setattr(machine, 'load_machine', fail)
    assert call('machine', '--remeasure')[0] == 3
    assert path.read_text() == 'the old figures'
    path.unlink()


def test_remeasuring_replaces_the_old_figures(call, monkeypatch):
    facts = describe_host()
    path = machine_file(facts, best_isa(facts.isas))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('the old figures')

    def measure(*_):
        path.write_text('the new figures')
        return nominal_machine(facts, best_isa(facts.isas)), None

    monkeypatch.setattr(machine, 'load_machine', measure)
    monkeypatch.setattr(machine, 'curve', lambda: [(8192, 2.0, 4.0)])
    assert call('machine', '--remeasure')[0] == 0
    assert path.read_text() == 'the new figures'
    assert [p.name for p in path.parent.iterdir() if p.suffix == '.before'] == []
    path.unlink()


def test_an_interrupt_says_how_to_go_on(call, host, monkeypatch, tmp_path):
    planned = optimize.optimize

    def once(group, *rest, **named):
        monkeypatch.setattr(optimize, 'optimize', interrupt)
        return planned(group, *rest, **named)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(optimize, 'optimize', once)
    path = tmp_path / 'partial.json'
    words = ('optimize', f'{SMALL},{OTHER}', '--machine', host, '--top', 1, '--json', path)
    code, _, err = call(*words)
    assert code == 130
    assert 'interrupted after 1 of 2 layers' in err
    assert 'store.sqlite, and running the same command again goes on from there' in err
    data = json.loads(path.read_text())
    assert data['complete'] is False
    assert len(data['layers']) == 1


def test_control_c_ends_a_real_run_cleanly(host, tmp_path):
    spec = ','.join(f'mb1ic{c}ih{h}oc16kh3ph1' for c in (4, 5, 6, 7, 9) for h in (5, 6, 7, 8, 9))
    words = [sys.executable, '-m', 'quick', 'optimize', spec, '--machine', host, '--top', '1']
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=quick.environment() | {'TILEWRIGHT_CACHE_DIR': str(tmp_path)},
        # A shell that starts the tests in the background has Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(4):  # three lines of heading, and the first layer
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert 'interrupted after' in err
    assert 'Traceback' not in err


@pytest.fixture
def _quick_bench(monkeypatch, host):
    """A comparison without measuring the machine: its figures are not what is tested here."""
    found = nominal_machine(describe_host(), best_isa())
    for verb in (bench, demo):
        monkeypatch.setattr(verb, 'machine_of', lambda *_: found)
    monkeypatch.setattr(bench, 'peaks_now', lambda *_: {'used_gflops_per_s': 100.0})
    monkeypatch.setattr(demo, 'TURN_MS', 1.0)
    monkeypatch.setattr(demo, 'ROUNDS', 1)
    monkeypatch.setattr(demo, 'CANDIDATES', 1)


@pytest.fixture
def _nothing_installed(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, 'find_spec', lambda name: None)


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
def test_a_missing_peer_keeps_its_column_and_gives_3(call, tmp_path):
    path = tmp_path / 'bench.json'
    words = ('bench', SMALL, '--against', 'openvino', '--rounds', 1, '--top', 1, '--threads', 1)
    code, out, err = call(*words, '--json', path)
    assert code == 3
    assert 'openvino ms' in out
    assert 'missing' in out
    assert 'peer openvino needs the package openvino' in err
    data = json.loads(path.read_text())
    (layer,) = data['layers']
    assert layer['comparison']['ours']['status'] == 'ok'
    assert layer['comparison']['ours']['samples_ms'][0]
    assert layer['comparison']['peers'][0]['status'] == 'missing'
    assert data['peers'] == ['openvino']


BENCH = ('--against', 'openvino', '--rounds', 1, '--top', 1, '--threads', 1)


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
def test_an_interrupted_comparison_keeps_the_finished_layers(call, monkeypatch, tmp_path):
    compared = bench.compare_kernels

    def once(*words, **named):
        monkeypatch.setattr(bench, 'compare_kernels', interrupt)
        return compared(*words, **named)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, 'compare_kernels', once)
    path = tmp_path / 'partial.json'
    words = ('bench', f'{SMALL}n"a",{OTHER}n"b"', *BENCH, '--json', path)
    code, out, err = call(*words)
    assert code == 130
    assert 'interrupted after 1 of 2 layers' in err
    assert out.splitlines()[1].split()[0] == 'a'
    data = json.loads(path.read_text())
    assert data['complete'] is False
    (layer,) = data['layers']
    assert (layer['name'], layer['comparison']['ours']['status']) == ('a', 'ok')

    def measured(*_):
        raise AssertionError('the peak was measured for nothing')

    other = ('bench', f'{SMALL}n"c",{OTHER}n"d"', *BENCH, '--json', path)
    monkeypatch.setattr(bench, 'peaks_now', measured)  # and with nothing finished, nothing is said
    code, out, err = call(*other)
    assert (code, out) == (130, '')
    assert 'interrupted after 0 of 2 layers' in err
    assert json.loads(path.read_text())['layers'] == []
    monkeypatch.setattr(bench, 'compare_kernels', compared)
    monkeypatch.setattr(bench, 'peaks_now', interrupt)  # the results are there, only the peak not
    code, out, err = call(*words)
    assert code == 3  # the peer is missing
    assert '% peak' not in out
    again = json.loads(path.read_text())
    assert again['complete'] is True
    # It went on behind the first layer, whose samples are those of the first run.
    assert '1 of 2 layers were compared before an interrupt' in err
    assert again['layers'][0] == layer
    assert again['seed'] == data['seed']
    code, _, err = call(*words)  # a run that was complete is measured again
    assert 'before an interrupt' not in err
    assert json.loads(path.read_text())['layers'][0] != layer


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
def test_a_comparison_in_slices_of_time_is_one_in_the_end(call, tmp_path):
    """However short, each slice compares a layer; the same command goes on, whatever its slice."""
    path = tmp_path / 'slices.json'
    words = ('bench', f'{SMALL}n"s",{OTHER}n"t"', *BENCH, '--json', path, '--slice-s')
    code, _, err = call(*words, 0.001)
    assert code == 130
    assert '1 of 2 layers compared in this slice and before' in err
    (layer,) = json.loads(path.read_text())['layers']
    code, _, err = call(*words, 60)
    assert code == 3  # the peer is missing
    found = json.loads(path.read_text())
    assert found['complete'] is True
    assert [one['name'] for one in found['layers']] == ['s', 't']
    assert found['layers'][0] == layer
    assert call(*words, 0)[0] == 2


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
@pytest.mark.parametrize('bad', [{'b'}, {'a', 'b'}])
def test_a_layer_without_a_working_candidate_does_not_end_the_others(
    call, monkeypatch, tmp_path, bad
):
    planned = bench.optimize

    def spoiled(group, *rest, **named):
        plan = planned(group, *rest, **named)
        if ('a' if 'oc16' in group.label else 'b') not in bad:
            return plan
        wrong = Measurement(plan.best.schedule.digest, 'wrong', message='it is off by one')
        return replace(plan, candidates=(replace(plan.best, measurement=wrong),))

    monkeypatch.setattr(bench, 'optimize', spoiled)
    path = tmp_path / 'bench.json'
    code, out, err = call('bench', f'{SMALL}n"a",{OTHER}n"b"', *BENCH, '--json', path)
    assert code == 1
    assert 'no candidate for b worked, so there is nothing to compare: it is off by one' in err
    data = json.loads(path.read_text())
    assert data['complete'] is True
    comparisons = {layer['name']: layer['comparison'] for layer in data['layers']}
    assert {name for name, found in comparisons.items() if found is None} == bad
    assert ('ours ms' in out) == (bad == {'b'})


@pytest.mark.usefixtures('_nothing_installed')
def test_nothing_to_compare_with(call):
    code, _, err = call('bench', SMALL)
    assert code == 3
    assert 'no peer is installed' in err


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
@pytest.mark.parametrize(
    ('algorithm', 'says', 'family'),
    [('direct', 'tilewright_outer', 'direct'), ('winograd', 'tilewright_winograd', 'winograd')],
)
def test_bench_says_which_algorithm_we_used(call, algorithm, says, family):
    code, out, _ = call('bench', SMALL, *BENCH, '--algorithm', algorithm, '--json', '-')
    assert code == 3
    ours = json.loads(out)['layers'][0]['comparison']['ours']
    assert (ours['status'], ours['algorithm'], ours['family']) == ('ok', says, family)


@pytest.mark.usefixtures('_quick_bench')
def test_bench_against_onnxruntime(call):
    pytest.importorskip('onnxruntime')
    words = ('bench', SMALL, '--against', 'onnxruntime', '--rounds', 1, '--top', 1, '--threads', 1)
    code, out, _ = call(*words, '--json', '-')
    data = json.loads(out)
    assert code == 0
    assert data['geometric_mean']['best_peer_over_ours'] > 0
    assert data['layers'][0]['comparison']['peers'][0]['algorithm'].startswith('mlas')


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
def test_the_demo_prints_a_row_for_each_layer(call, monkeypatch):
    monkeypatch.setattr(demo, 'SUITE', f'{SMALL}n"a",{OTHER}n"b"')
    code, out, err = call('demo', '--threads', 1)
    assert code == 0
    assert 'peer onnxruntime needs' in err
    assert '2 of 2 kernels verified' in out
    rows = [line.split() for line in out.splitlines() if line.startswith(('a ', 'b '))]
    assert [row[0] for row in rows] == ['a', 'b']
    assert all(float(cell) >= 0 for row in rows for cell in row[1:7])
    assert all(row[-2:] == ['missing', '-'] for row in rows)


@pytest.mark.usefixtures('_quick_bench', '_nothing_installed')
def test_the_demo_goes_on_after_a_layer_without_a_working_candidate(call, monkeypatch, tmp_path):
    planned, first = demo.optimize, []

    def spoiled(group, *rest, **named):
        plan = planned(group, *rest, **named)
        if first:
            return plan
        first.append(plan)
        wrong = Measurement(plan.best.schedule.digest, 'wrong', message='it is off by one')
        return replace(plan, candidates=(replace(plan.best, measurement=wrong),))

    monkeypatch.setattr(demo, 'optimize', spoiled)
    monkeypatch.setattr(demo, 'SUITE', f'{SMALL}n"a",{OTHER}n"b"')
    code, out, err = call('demo', '--threads', 1)
    assert code == 1
    assert 'no candidate for a worked' in err
    assert '1 of 1 kernels verified' in out


def test_a_wrong_answer_of_ours_gives_1(monkeypatch):
    class Result:
        others = ()

        class ours:  # noqa: N801
            ok = False

    assert bench.exit_code([Result()], (), output.Output('bench', None)) == 1  # type: ignore[list-item]


@pytest.mark.parametrize(
    ('spent', 'done', 'steps', 'share', 'left', 'text'),
    [
        (0.0, 0, 4, 0.0, None, ''),
        (10.0, 1, 3, 0.0, None, 'about 20 s left'),  # two more of ten seconds
        (15.0, 1, 3, 0.5, 2.0, 'about 12 s left'),  # 2 s of this one, and 15 / 1.5 for the last
        (60.0, 1, 11, 0.0, None, 'about 10 min left'),
        (30.0, 3, 3, 0.0, 0.0, 'about 0 s left'),
    ],
)
def test_time_left_by_hand(spent, done, steps, share, left, text):
    assert output.left_text(spent, done, steps, share, left) == text


def test_no_progress_bar_without_a_terminal(capsys):
    with output.Bar(2) as bar:
        bar.begin('a')
        bar.turn('torch', 1, 2)
        bar.finish()
        with bar.paused():
            print('a row')
    said = capsys.readouterr()
    assert (said.out, said.err) == ('a row\n', '')


def test_the_progress_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
    with output.Bar(2) as bar:
        bar.begin('first layer')
        bar.finish()
        with bar.paused():
            print('a row')
    said = capsys.readouterr()
    assert said.out == 'a row\n'
    assert 'first layer' in said.err
