"""Bad input: one sentence that names the value, the right exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import quick

import tilewright as tw
from tilewright import errors, knobs
from tilewright.cli.main import invoke
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import best_isa
from tilewright.machine.measure import nominal_machine

SMALL = 'mb1ic8ih8oc16kh3ph1'
PLAN = ('--no-measure', '--machine', 'i7-9700k')


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
    path = tmp_path / 'host.json'
    path.write_text(json.dumps(nominal_machine(describe_host(), best_isa()).to_json()))
    return str(path)


@pytest.fixture
def refusal(capsys):
    """Run a command that must be refused; comes out: the exit code and the sentence."""

    def run(*words):
        code = invoke([str(word) for word in words])
        said = capsys.readouterr()
        assert said.out == ''
        lines = [line for line in said.err.splitlines() if not line.startswith('warning: ')]
        assert len(lines) == 1, said.err
        assert lines[0].startswith('tilewright: ')
        assert 'Traceback' not in said.err
        return code, lines[0]

    return run


@pytest.mark.parametrize(
    ('words', 'names'),
    [
        (['mb1ic0ih6oc8kh3', *PLAN], "'ic0' is below 1"),
        (['mb0ic4ih6oc8kh3', *PLAN], "'mb0' is below 1"),
        (['mb1ic-4ih6oc8kh3', *PLAN], 'at position 3'),
        (['mb1ic4.5ih6oc8kh3', *PLAN], "'.' is not part"),
        (['mb1ic4ih3oc8kh7', *PLAN], 'spans 7'),
        (['g3mb1ic4ih6oc6kh3', *PLAN], 'groups=3 does not divide c=4'),
        (['mb1ic4ih6oc8kx3', *PLAN], "'kx3' is not a field"),
        (['mb1ic4ih6oc8', *PLAN], 'lacks kh'),
        (['mopd', *PLAN], 'did you mean mopt'),
        (['mopt/R99', *PLAN], "no layer 'R99'"),
        (['benchdnn:nowhere.txt', *PLAN], 'nowhere.txt cannot be read'),
        (['', *PLAN], 'names no convolution'),
        ([SMALL, *PLAN, '--threads', 0], 'threads is 0'),
        ([SMALL, *PLAN, '--threads', 9], 'i7-9700k has 8 usable cores'),
        ([SMALL, *PLAN, '--threads', 'two'], '--threads'),
        ([SMALL, *PLAN, '--top', 0], 'top=0'),
        ([SMALL, *PLAN, '--seed', -1], '--seed'),
        ([SMALL, *PLAN, '--algorithm', 'fast'], "'fast' is not one of 'auto', 'direct'"),
        ([SMALL, *PLAN, '--max-rel-err', 0], 'max_rel_err is 0'),
        ([SMALL, *PLAN, '--max-rel-err', '1e-2'], 'at most 0.001, the tolerance'),
        ([SMALL, *PLAN, '--max-rel-err', 'nan'], 'max_rel_err is nan'),
        ([SMALL, '--no-measure', '--machine', 'i5'], "machine 'i5' is not known"),
        ([SMALL, '--no-measure', '--machine', 'nowhere.json'], 'nowhere.json cannot be read'),
        ([SMALL, *PLAN, '--bogus'], '--bogus'),
        ([SMALL, *PLAN, '--json', 'nowhere/at/all.json'], 'nowhere/at/all.json cannot be written'),
        ([], 'SPEC'),
    ],
)  # fmt: skip
def test_a_bad_layer_or_option_is_bad_input(refusal, words, names):
    code, sentence = refusal('optimize', *words)
    assert code == 2
    assert names.lower() in sentence.lower()


@pytest.mark.parametrize(
    ('words', 'names'),
    [
        (['optimise', SMALL], 'optimise'),
        (['explain', 'mopt/R99'], 'R99'),
        (['bench', SMALL, '--against', 'tvmm'], "peer 'tvmm' is not known"),
        (['bench', SMALL, '--against', ','], 'names no peer'),
        (['bench', SMALL, '--against', 'torch', '--rounds', 0], 'rounds is 0'),
        (['machine', '--machine', 'i7-9700k', '--threads', 9], 'threads is 9'),
        (['machine', '--machine', 'i7-9700k', '--remeasure'], 'leave out --machine'),
    ],
)
def test_other_verbs_refuse_bad_input_too(refusal, words, names):
    code, sentence = refusal(*words)
    assert code == 2
    assert names in sentence


def test_a_plot_of_what_was_not_measured(capsys, tmp_path):
    code = invoke(['machine', '--machine', 'i7-9700k', '--plot', str(tmp_path / 'x.png')])
    assert code == 2
    assert 'no bandwidth curve' in capsys.readouterr().err


def test_measuring_for_a_machine_that_is_not_here(refusal):
    name = 'i7-9700k' if best_isa() in ('neon', 'portable') else None
    if name is None:
        pytest.skip('this host can run what both known machines can')
    code, sentence = refusal('optimize', SMALL, '--machine', name)
    assert code == 2
    assert 'which this host cannot run' in sentence


def test_sources_that_cannot_be_written(refusal, tmp_path):
    (tmp_path / 'file').write_text('')
    code, sentence = refusal('optimize', SMALL, *PLAN, '--emit', tmp_path / 'file' / 'out')
    assert code == 2
    assert '--emit' in sentence


def test_no_compiler(refusal, monkeypatch, tmp_path, host):
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.delenv('CC', raising=False)
    code, sentence = refusal('optimize', SMALL, '--no-measure', '--machine', host, '--threads', 1)
    assert code == 3
    assert 'no C compiler was found' in sentence


def test_a_compiler_that_is_not_there(refusal, monkeypatch, host):
    monkeypatch.setenv('TILEWRIGHT_CC', 'nonesuch-cc')
    code, sentence = refusal('optimize', SMALL, '--no-measure', '--machine', host)
    assert code == 3
    assert 'nonesuch-cc' in sentence


def test_a_cache_directory_that_cannot_be_written(refusal, monkeypatch, tmp_path, host):
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'file' / 'cache'))
    code, sentence = refusal('optimize', SMALL, '--no-measure', '--machine', host)
    assert code == 2
    assert 'cannot be written' in sentence


@pytest.mark.parametrize(
    ('verb', 'options'),
    [(verb, {'--threads': threads}) for verb in ('machine', 'optimize', 'explain', 'bench', 'demo')
     for threads in (0, 10**6)]
    + [(verb, {'--top': 0}) for verb in ('optimize', 'bench')]
    + [(verb, {option: value}) for verb in ('optimize', 'explain', 'bench')
       for option, value in (('--max-rel-err', 0.5), ('--algorithm', 'fast'))],
)  # fmt: skip
def test_bad_options_are_refused_before_the_host_is_measured(refusal, monkeypatch, verb, options):
    def measured(*_, **__):
        raise AssertionError('the host was measured, or its figures were read')

    for module in ('machine', 'optimize'):
        monkeypatch.setattr(f'tilewright.cli.{module}.load_machine', measured)
    words = [SMALL] if verb in ('optimize', 'explain', 'bench') else []
    code, sentence = refusal(verb, *words, *(str(w) for pair in options.items() for w in pair))
    assert code == 2
    assert str(next(iter(options.values()))) in sentence


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('THREADS', 'many'), ('DEBUG', '-1'), ('ISA', 'mmx'),
    ],
)  # fmt: skip
def test_a_knob_that_cannot_be_read(refusal, monkeypatch, name, value):
    monkeypatch.setenv(f'TILEWRIGHT_{name}', value)
    code, sentence = refusal('optimize', SMALL, '--no-measure')
    assert code == 2
    assert f'TILEWRIGHT_{name}' in sentence
    assert value in sentence


@pytest.mark.parametrize(
    ('name', 'values'),
    [
        ('time_limit', ['nan', 'inf', '-1', '0', '1e7', 'soon']),
        ('memory_limit', ['0', '-5', '1.5', 'nan', str(1 << 63)]),
    ],
)
def test_limits_are_positive_and_finite(monkeypatch, name, values):
    variable = f'TILEWRIGHT_{name.upper()}'
    for value in values:
        monkeypatch.setenv(variable, value)
        with pytest.raises(errors.InputError, match=f"{variable}='{value}' cannot be read"):
            knobs.get(name)
    monkeypatch.setenv(variable, '7')
    assert knobs.get(name) == 7


def test_processors_are_a_list_of_numbers(monkeypatch):
    for value in ('x', '0-', '3-1', '1,,2', '0-1-2', '-1', '0-99999999999'):
        monkeypatch.setenv('TILEWRIGHT_CPUS', value)
        with pytest.raises(errors.InputError, match=f"TILEWRIGHT_CPUS='{value}' cannot be read"):
            knobs.get('cpus')
    monkeypatch.setenv('TILEWRIGHT_CPUS', '0-3, 8')
    assert knobs.get('cpus') == '0-3, 8'


def test_debugging_shows_the_traceback(monkeypatch, capsys):
    monkeypatch.setenv('TILEWRIGHT_DEBUG', '1')
    assert invoke(['optimize', 'mopd', *PLAN]) == 2
    assert 'Traceback' in capsys.readouterr().err


def test_a_defect_is_one_sentence_too(refusal, monkeypatch):
    def broken(*_, **__):
        raise KeyError('nothing of that name')

    monkeypatch.setattr('tilewright.cli.explain.optimize', broken)
    code, sentence = refusal('explain', SMALL, '--machine', 'i7-9700k')
    assert code == 1
    assert 'KeyError' in sentence
    assert 'TILEWRIGHT_DEBUG=1' in sentence


def test_a_corrupt_store_is_moved_aside_and_the_run_goes_on(monkeypatch, capsys, tmp_path, host):
    folder = tmp_path / 'damaged'
    folder.mkdir()
    (folder / 'store.sqlite').write_bytes(b'this is no database' * 100)
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(folder))
    code = invoke(['optimize', SMALL, '--machine', host, '--top', '1', '--threads', '1'])
    said = capsys.readouterr()
    assert code == 0
    assert 'is damaged' in said.err
    assert said.err.count('\n') == 1
    assert (folder / 'store.sqlite.corrupt-1').read_bytes().startswith(b'this is no database')


def run_elsewhere(words, **environment):
    changed = {k: v for k, v in quick.environment().items() if k not in environment}
    changed |= {k: v for k, v in environment.items() if v is not None}
    return subprocess.run(
        [sys.executable, *words], env=changed, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_a_home_that_cannot_be_written(tmp_path, host):
    home = tmp_path / 'home'
    home.write_text('a file, so that nothing can be made below it')
    temporary = tmp_path / 'temporary'
    temporary.mkdir()
    words = ['-m', 'quick', 'optimize', SMALL, '--machine', host, '--top', '1']
    done = run_elsewhere(
        words, HOME=str(home), XDG_CACHE_HOME=None, TILEWRIGHT_CACHE_DIR=None, TMPDIR=str(temporary)
    )
    assert done.returncode == 0, done.stderr
    assert 'verified' in done.stdout
    assert done.stderr.count('this run is remembered in') == 1
    assert list(temporary.iterdir()) == []
    assert 'Traceback' not in done.stderr


ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import quick
from tilewright.cli.main import invoke
quick.shorten()
print(invoke(sys.argv[1:]), invoke([*sys.argv[1:], '--threads', '2']))
"""


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='affinity cannot be set here')
def test_one_core_is_enough():
    words = ['-c', ONE_CORE, 'optimize', 'mb1ic4ih4oc8kh1', '--no-measure']
    done = run_elsewhere(words)
    assert done.stdout.splitlines()[-1] == '0 2', done.stderr
    assert 'threads: 1' in done.stdout
    assert 'threads is 2' in done.stderr


GOOD = {'c': 4, 'h': 6, 'w': 6, 'k': 8, 'r': 3, 's': 3}


@pytest.mark.parametrize(
    ('changed', 'names'),
    [
        ({'c': 0}, 'c is 0'),
        ({'h': -1}, 'h is -1'),
        ({'w': 6.5}, 'w is 6.5'),
        ({'k': True}, 'k is True'),
        ({'n': '1'}, "n is '1'"),
        ({'r': 9}, 'spans 9'),
        ({'s': 3, 'dilation': 4}, 'spans 9'),
        ({'groups': 3}, 'groups=3 does not divide c=4'),
        ({'stride': 0}, 'stride is 0'),
        ({'stride': (1, 2, 3)}, '(height, width)'),
        ({'pad': -1}, 'pad is -1'),
        ({'pad': (1, 2, 3)}, '(top, left, bottom, right)'),
        ({'activation': 'rely'}, "activation 'rely' is not known"),
        ({'h': 1 << 20, 'w': 1 << 20}, 'the limit is'),
    ],
)  # fmt: skip
def test_impossible_convolutions(changed, names):
    with pytest.raises(errors.SpecError) as caught:
        tw.conv2d(**(GOOD | changed))
    assert names in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('text', ['mopt', 'mopt/R1,mopt/R2', 3, 'nothing'])
def test_parse_wants_exactly_one_layer(text):
    with pytest.raises(errors.SpecError):
        tw.parse(text)


@pytest.mark.parametrize('threads', [0, -1, 4096, 1.5, True])
def test_threads_of_the_public_face(threads):
    with pytest.raises(errors.InputError, match='threads is'):
        tw.optimize(tw.conv2d(**GOOD), 'i7-9700k', measure=False, threads=threads)


@pytest.mark.parametrize(
    ('changed', 'names'),
    [
        ({'group': 'mopt/R2'}, "group is 'mopt/R2'; give what conv2d, matmul or parse"),
        ({'group': None}, 'group is None'),
        ({'machine': 7}, 'machine is 7'),
        ({'machine': {'name': 'x'}}, "machine is {'name': 'x'}"),
        ({'top': '3'}, "top='3'"),
        ({'top': 2.0}, 'top=2.0'),
        ({'top': True}, 'top=True'),
        ({'threads': '2'}, "threads is '2'"),
        ({'max_rel_err': '1'}, "max_rel_err is '1'"),
        ({'max_rel_err': None}, 'max_rel_err is None'),
        ({'max_rel_err': True}, 'max_rel_err is True'),
        ({'max_rel_err': 1.01e-3}, 'at most 0.001'),
        ({'max_rel_err': float('nan')}, 'max_rel_err is nan'),
        ({'algorithm': 'fast'}, "algorithm 'fast' is not known"),
        ({'algorithm': None}, 'algorithm None is not known'),
        ({'seed': -1}, 'seed is -1'),
        ({'seed': 'x'}, "seed is 'x'"),
    ],
)  # fmt: skip
def test_near_misses_of_the_public_face(changed, names):
    good = {'group': tw.conv2d(**GOOD), 'machine': 'i7-9700k', 'measure': False}
    with pytest.raises(errors.InputError) as caught:
        tw.optimize(**(good | changed))
    assert names in str(caught.value)
    assert '\n' not in str(caught.value)


def test_a_machine_may_be_a_path_and_a_budget_any_real_number(host):
    group = tw.conv2d(**GOOD)
    given = {'top': 1, 'measure': False, 'threads': 1}
    plan = tw.optimize(group, Path(host), max_rel_err=np.float32(1e-4), **given)
    assert plan.best == tw.optimize(group, host, **given).best


@pytest.fixture(scope='module')
def built(cache):
    """A small convolution, its arguments and its answer, built once."""
    previous = os.environ.get('TILEWRIGHT_CACHE_DIR')
    os.environ['TILEWRIGHT_CACHE_DIR'] = str(cache)
    try:
        machine = nominal_machine(describe_host(), best_isa())
        plan = tw.optimize(tw.conv2d(**GOOD), machine, top=1, measure=False, threads=1)
        random = np.random.default_rng(3)
        weights = random.integers(-3, 4, (8, 4, 3, 3)).astype(np.float32)
        x = random.integers(-3, 4, (1, 4, 6, 6)).astype(np.float32)
        conv = plan.build(weights=weights)
        yield plan, conv, weights, x, conv(x)
    finally:
        if previous is None:
            del os.environ['TILEWRIGHT_CACHE_DIR']
        else:
            os.environ['TILEWRIGHT_CACHE_DIR'] = previous


@pytest.mark.parametrize(
    ('array', 'names'),
    [
        (np.zeros((1, 4, 6, 7), np.float32), 'shape (1, 4, 6, 7)'),
        (np.zeros((4, 6, 6), np.float32), 'made for (1, 4, 6, 6)'),
        (np.zeros((1, 4, 6, 6), np.complex64), 'complex64'),
        (np.full((1, 4, 6, 6), 'x'), 'dtype'),
        (np.full((1, 4, 6, 6), None), 'object'),
        ('an image', 'shape'),
    ],
)
def test_arrays_that_do_not_fit(built, array, names):
    _, conv, *_ = built
    with pytest.raises(errors.ArrayError) as caught:
        conv(array)
    assert names in str(caught.value)


def test_arrays_that_are_converted(built):
    _, conv, _, x, want = built
    shifted = np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    shifted[...] = x
    wide = np.zeros((1, 4, 6, 12), np.float32)
    wide[..., ::2] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    for given in (
        x.astype(np.float64), x.astype(np.int8), shifted, wide[..., ::2], np.asfortranarray(x),
        x.astype('>f4'), read_only, x.tolist(),
    ):  # fmt: skip
        np.testing.assert_array_equal(conv(given), want)


def test_outputs_that_cannot_be_written_to(built):
    _, conv, _, x, want = built
    shape = want.shape
    frozen = np.zeros(shape, np.float32)
    frozen.flags.writeable = False
    for out in (
        np.zeros((1, 8, 4, 5), np.float32), np.zeros(shape), np.zeros(shape, np.float32).T, frozen,
        np.zeros((*shape[:-1], 8), np.float32)[..., ::2],
    ):  # fmt: skip
        with pytest.raises(errors.ArrayError, match='out'):
            conv(x, out=out)
    reused = np.zeros(shape, np.float32)
    assert conv(x, out=reused) is reused
    np.testing.assert_array_equal(reused, want)


def test_constants_that_are_missing_or_unknown(built):
    plan, conv, weights, x, want = built
    with pytest.raises(errors.ArrayError, match='takes no bias'):
        plan.build(weights=weights, bias=np.zeros(8, np.float32))
    with pytest.raises(errors.ArrayError, match='made for'):
        plan.build(weights=weights[:4])
    with pytest.raises(errors.ArrayError, match='has no constant'):
        plan.build(constants={'Filter': weights})
    with pytest.raises(errors.ArrayError, match='takes 1 inputs'):
        conv(x, x)
    later = plan.build()
    with pytest.raises(errors.ArrayError, match='built without'):
        later(x)
    np.testing.assert_array_equal(later(x, Ker=weights), want)


def test_every_error_has_an_exit_code_of_the_contract():
    def below(kind):
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    for kind in below(errors.TilewrightError):
        assert kind.exit_code in (1, 2, 3)
    assert errors.InputError.exit_code == errors.StoreError.exit_code == 2
    assert errors.MissingError.exit_code == 3
    assert errors.CheckError.exit_code == errors.CompilerError.exit_code == 1
