"""Figures of the papers: sampling, the file of samples, losses and ranks, what is shown of them."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import statistics
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tilewright.errors import InputError, MissingError, StoreError
from tilewright.kernels.cpu.generate import generate
from tilewright.machine.known import known_machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.stencil_time import predict_stencil
from tilewright.ops.convolution import conv2d
from tilewright.search.cpu.sample import log_uniform, schedules, take
from tilewright_lab.cli import reproduce
from tilewright_lab.compare.results import Contestant, LayerResult
from tilewright_lab.figures import dataset, mopt_fig5, mopt_fig6, mopt_fig7, pictures
from tilewright_lab.figures.collect import _batches, _wants_turn, covering
from tilewright_lab.figures.dataset import DataSet, LayerData, Recorder, Sample
from tilewright_lab.figures.evaluate import decided_times, deciding, evaluate, spearman
from tilewright_lab.figures.figures import FIGURES, Options, figure_of
from tilewright_lab.figures.measured import price

MACHINE = known_machine('i7-9700k')
DENSE = conv2d(c=24, h=20, w=20, k=40, r=3, s=3, pad=1)
DEPTHWISE = conv2d(c=16, h=12, w=12, k=16, r=3, s=3, pad=1, groups=16)


def drawn(group, count, threads=1, seed=0):
    return list(itertools.islice(schedules(group, MACHINE, threads, seed), count))


def test_a_name_that_is_not_known_gets_a_hint():
    with pytest.raises(InputError, match='did you mean mopt-fig5'):
        figure_of('mopt-fig55')
    with pytest.raises(
        InputError, match='choose one of mopt-fig5, mopt-fig6, mopt-fig7, mopt-fig8'
    ):
        figure_of('x')


@pytest.mark.parametrize('name', ['mopt-fig5', 'mopt-fig6', 'mopt-fig7', 'mopt-fig8'])
def test_a_figure_is_a_module_with_run_text_and_plot(name):
    module = FIGURES[name].load()
    assert all(callable(getattr(module, part)) for part in ('run', 'text', 'plot'))


@pytest.mark.parametrize('group', [DENSE, DEPTHWISE, conv2d(c=8, h=9, w=9, k=12, r=1, s=1)])
def test_samples_are_distinct_legal_and_always_the_same(group):
    found = drawn(group, 20)
    assert len({schedule.digest for schedule in found}) == 20
    assert found == drawn(group, 20)
    assert found != drawn(group, 20, seed=1)
    assert len({schedule.schema for schedule in found}) == 1
    assert all(schedule.threads == 1 for schedule in found)
    for schedule in found:
        generate(group, schedule)  # raises for what is not legal


def test_samples_use_exactly_the_threads_that_are_asked_for():
    assert {schedule.threads for schedule in drawn(DENSE, 12, threads=2)} == {2}
    assert {schedule.threads for schedule in drawn(DEPTHWISE, 6, threads=2)} == {2}


def test_samples_reach_every_kind_of_choice():
    found = drawn(DENSE, 60)
    assert {schedule.pack for schedule in found} == {'l1', 'l2', 'l3'}  # padding: never in place
    vectors = {schedule.reg.tile['k'] // 8 for schedule in found}
    assert vectors == {1, 2, 3, 4}
    assert len({schedule.levels[3].order for schedule in found}) > 50
    assert len({schedule.levels[1].tile['c'] for schedule in found}) > 5
    inside = [schedule.levels[1].tile['c'] for schedule in found]
    outside = [schedule.levels[3].tile['c'] for schedule in found]
    assert statistics.mean(inside) < statistics.mean(outside)
    assert all(a <= b for a, b in zip(inside, outside, strict=True))


@pytest.mark.slow
def test_a_small_space_is_exhausted_and_ends():
    tiny = conv2d(c=1, h=1, w=1, k=1, r=1, s=1)
    found = drawn(tiny, 1000)
    assert 4 <= len(found) < 1000
    bodies = {generate(tiny, schedule).partition('*/')[2] for schedule in found}
    assert len(bodies) == len(found)


def test_log_uniform_numbers_have_the_probabilities_of_their_logarithms():
    random, draws = Random(5), 40_000
    counts = Counter(log_uniform(2, 9, random) for _ in range(draws))
    assert set(counts) == set(range(2, 10))
    for value, count in counts.items():
        wanted = math.log((value + 1) / value) / math.log(10 / 2)
        assert count / draws == pytest.approx(wanted, rel=0.08)
    assert {log_uniform(7, 7, random) for _ in range(10)} == {7}


def test_samples_are_added_to_those_that_are_known():
    first = drawn(DENSE, 4)
    known = tuple(schedule.digest for schedule in first)
    assert take(DENSE, MACHINE, 1, 0, 4, known) == []
    assert take(DENSE, MACHINE, 1, 0, 6, known) == drawn(DENSE, 6)[4:]
    other = take(DENSE, MACHINE, 1, 3, 6, known)  # another seed: none of them is known
    assert other == drawn(DENSE, 2, seed=3)


def head(**changes):
    return replace(DataSet(MACHINE, 1, 0, {'package': 'x+1'}), **changes)


def record(recorder, times, name='layer', group=DENSE):
    """A layer with one sample for each list of calls."""
    recorder.put('layer', name, group=group.to_json())
    keys = []
    for schedule, calls in zip(drawn(group, len(times)), times, strict=True):
        key = schedule.digest
        keys.append(key)
        recorder.put('sample', name, key=key, schedule=schedule.to_json())
        outcome = {'status': 'ok', 'max_rel_err': 1e-7, 'message': ''}
        recorder.put('check', name, key=key, wall_ms=5.0 + calls[0], **outcome)
        recorder.put('turn', name, key=key, calls_ms=calls, **outcome)
    return keys


def test_what_is_recorded_is_read_back(tmp_path):
    path = tmp_path / 'deep' / 'samples.jsonl'
    with Recorder(path, head()) as recorder:
        keys = record(recorder, [[2.0, 2.2, 2.1], [4.0, 4.1]])
        recorder.put('turn', 'layer', key=keys[0], status='ok', calls_ms=[2.6], max_rel_err=1e-7,
                     message='')  # fmt: skip
        recorder.put('final', 'layer', calls_ms={keys[0]: [2.0], keys[1]: [4.0]})
        recorder.put('state', 'layer', probe_ms=1.5, load=0.25)
    found = dataset.read(path)
    layer = found.layers['layer']
    assert (found.machine, found.threads, found.seed) == (MACHINE, 1, 0)
    assert layer.group.digest == DENSE.digest
    assert [s.schedule for s in layer.samples.values()] == drawn(DENSE, 2)
    assert layer.times_ms() == {keys[0]: pytest.approx((2.1 + 2.6) / 2), keys[1]: 4.05}
    assert layer.finals == [{keys[0]: (2.0,), keys[1]: (4.0,)}]
    assert (layer.states[0].probe_ms, layer.states[0].load) == (1.5, 0.25)
    packed = tmp_path / 'samples.jsonl.gz'
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert dataset.read(packed).layers['layer'].times_ms() == layer.times_ms()


@pytest.mark.parametrize('cut', [1, 7, 60])
def test_a_line_that_was_cut_off_is_dropped_and_the_file_goes_on(tmp_path, cut):
    path = tmp_path / 'samples.jsonl'
    with Recorder(path, head()) as recorder:
        keys = record(recorder, [[2.0], [4.0]])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert set(dataset.read(path).layers['layer'].times_ms()) == {keys[0]}
    with Recorder(path, head()) as recorder:
        assert recorder.data.layers['layer'].samples[keys[1]].turns_ms == []
        recorder.put('turn', 'layer', key=keys[1], status='ok', calls_ms=[4.0], max_rel_err=1e-7,
                     message='')  # fmt: skip
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert lines == [json.loads(line) for line in whole.splitlines()]


def test_a_file_is_written_by_one_process_at_a_time(tmp_path):
    path = tmp_path / 'samples.jsonl'
    with (
        Recorder(path, head()),
        pytest.raises(StoreError, match='being written by another process'),
    ):
        Recorder(path, head())
    with Recorder(path, head()):
        pass


def test_files_of_a_directory_are_evaluated_together_if_they_belong_together(tmp_path):
    for name in ('a', 'b'):
        with Recorder(tmp_path / f'{name}.jsonl', head()) as recorder:
            record(recorder, [[2.0]], name)
    assert set(dataset.read(tmp_path).layers) == {'a', 'b'}
    with Recorder(tmp_path / 'c.jsonl', head()) as recorder:
        record(recorder, [[2.0]], 'a')
    with pytest.raises(InputError, match=r'a is in .*a\.jsonl and in .*c\.jsonl'):
        dataset.read(tmp_path)
    (tmp_path / 'c.jsonl').unlink()
    with Recorder(tmp_path / 'd.jsonl', head(threads=2)) as recorder:
        record(recorder, [[2.0]], 'd')
    with pytest.raises(InputError, match='evaluate them apart'):
        dataset.read(tmp_path)


@pytest.mark.parametrize(
    ('text', 'sentence'),
    [
        ('', 'is empty'),
        ('{"kind": "run", "format": 9}\n', 'line 1 is no line of a data set'),
        ('[]\n', 'line 1'),
        ('not JSON\n', 'line 1'),
        ('GOOD{"kind": "turn", "layer": "nowhere"}\n', 'line 2'),
        ('GOOD{"kind": "other", "layer": "x"}\n', 'line 2'),
    ],
)
def test_what_is_no_data_set_is_refused_in_one_sentence(tmp_path, text, sentence):
    path = tmp_path / 'samples.jsonl'
    with Recorder(path, head()):
        pass
    path.write_text(text.replace('GOOD', path.read_text()))
    with pytest.raises(InputError, match=sentence):
        dataset.read(path)
    empty = tmp_path / 'empty'
    empty.mkdir()
    with pytest.raises(InputError, match='holds no file that ends in'):
        dataset.read(empty)


def layer_of(times, **more):
    """A layer with a sample for every list of turns, keys 'a', 'b', ... in order."""
    samples = {
        chr(ord('a') + i): Sample(schedule, turns_ms=[tuple(turn) for turn in turns])
        for i, (schedule, turns) in enumerate(zip(drawn(DENSE, len(times)), times, strict=True))
    }
    return LayerData('layer', DENSE, samples, **more)


def test_losses_by_hand():
    layer = layer_of([[[10.0]], [[8.0]], [[12.0]], [[9.0]], [[20.0]], [[30.0]]])
    predicted = {'a': 1.0, 'b': 3.0, 'c': 2.0, 'd': 4.0, 'e': 5.0, 'f': 6.0}
    found = evaluate(layer, predicted)
    assert found is not None
    # Predicted order: a (10 ms), c (12), b (8), d (9), e (20); the best measured is b.
    assert found.losses == {1: pytest.approx(0.25), 2: pytest.approx(0.25), 5: 0.0}
    assert (found.best, found.best_ms, found.retimed) == ('b', 8.0, False)
    assert set(deciding(layer, predicted)) == set('abcde')


def test_losses_come_from_final_rounds_where_all_took_part():
    rounds = [{'a': (9.0,), 'b': (10.0,)}, {'a': (9.2,), 'b': (10.2,)}, {'a': (9.1,), 'b': (9.9,)}]
    layer = layer_of([[[10.0]], [[8.0]]], finals=rounds)
    found = evaluate(layer, {'a': 2.0, 'b': 1.0})
    assert found is not None
    assert found.retimed
    assert found.best == 'a'  # the smaller median of the samples alone was b's
    assert found.losses[1] == pytest.approx(10.0 / 9.1 - 1)
    assert found.losses[2] == 0.0


def test_a_sample_that_was_in_no_final_round_is_brought_to_their_level():
    layer = layer_of([[[10.0]], [[8.0]], [[4.0]]], finals=[{'a': (20.0,), 'b': (16.0,)}])
    times, retimed = decided_times(layer, 'abc')
    assert times == {'a': 20.0, 'b': 16.0, 'c': 8.0}
    assert not retimed
    assert covering(layer.finals, 'ab') == layer.finals
    assert covering(layer.finals, 'abc') == []


def test_samples_that_failed_are_left_out():
    layer = layer_of([[[10.0]], [[8.0]]])
    layer.samples['b'].status = 'wrong'
    found = evaluate(layer, {'a': 1.0})
    assert found is not None
    assert (found.best, found.losses[5]) == ('a', 0.0)
    layer.samples['a'].status = 'crashed'
    assert evaluate(layer, {}) is None


def test_rank_correlation_against_its_definition():
    rng = np.random.default_rng(3)
    a, b = rng.permutation(30).tolist(), rng.permutation(30).tolist()
    squares = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    assert spearman(a, b) == pytest.approx(1 - 6 * squares / (30 * (30**2 - 1)))
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ties share their mean rank: 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    assert spearman([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(
        np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1]
    )
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_ranks_count_where_samples_differ_by_more_than_their_repeats():
    quiet = [[[t], [t * 1.01], [t * 1.02]] for t in (1.0, 2.0, 3.0, 4.0, 5.0)]
    loud = [[[t], [t * 2], [t * 3]] for t in (1.0, 1.1, 1.2, 1.3, 1.4)]
    predicted = {key: float(i) for i, key in enumerate('abcde')}
    first, second = evaluate(layer_of(quiet), predicted), evaluate(layer_of(loud), predicted)
    assert first is not None
    assert second is not None
    assert (first.tells, first.noise) == (True, pytest.approx(0.01 / 1.01))
    assert (second.tells, second.noise) == (False, pytest.approx(0.5))
    assert first.rank == second.rank == pytest.approx(1)


def test_the_slowest_samples_are_known_by_the_call_of_their_check():
    layer = layer_of([[[10.0], [10.0]], [[20.0]], [], []])
    for key, wall in zip('abcd', (60.0, 70.0, 2050.0, 75.0), strict=True):
        layer.samples[key].checked_ms = wall
    assert layer.overhead_ms == 50.0
    assert layer.times_ms() == {'a': 10.0, 'b': 20.0, 'c': 2000.0}  # d is fast: it has no time yet
    assert not _wants_turn(layer, layer.samples['c'])
    assert _wants_turn(layer, layer.samples['d'])
    assert _wants_turn(layer, layer.samples['a'])
    assert _wants_turn(layer_of([[]]), Sample(drawn(DENSE, 1)[0], checked_ms=1e4))


def test_slow_samples_get_fewer_turns():
    layer = layer_of([[[1.0]], [[25.0]], [[90.0]], [[1.0], [1.0], [1.0]]])
    wanted = {key: _wants_turn(layer, sample) for key, sample in layer.samples.items()}
    assert wanted == {'a': True, 'b': False, 'c': False, 'd': False}


def test_batches_hold_no_more_packed_constants_than_there_is_room_for():
    keys = [str(i) for i in range(70)]
    assert [len(batch) for batch in _batches(keys, DENSE)] == [32, 32, 6]
    huge = conv2d(c=8192, h=7, w=7, k=8192, r=3, s=3)
    assert {len(batch) for batch in _batches(keys, huge)} == {1}


@pytest.fixture
def samples(tmp_path):
    """A file with two layers; predicted order is known from the model."""
    path = tmp_path / 'samples.jsonl'
    with Recorder(path, head()) as recorder:
        for name, group in (('mopt/R9', DENSE), ('mopt/M2', DEPTHWISE)):
            record(recorder, [[1.0 + i, 1.01 + i] for i in range(8)], name, group)
    return path


@pytest.fixture
def two_layers(monkeypatch):
    layers = [('mopt/R9', DENSE, 1), ('mopt/M2', DEPTHWISE, 1)]
    for module in ('measured', 'mopt_fig7'):
        monkeypatch.setattr(f'tilewright_lab.figures.{module}.expand', lambda _: layers)


def options(name, path, samples=8):
    return Options(name, None, 'mopt/R9,mopt/M2', samples, 1, 0, path)


@pytest.mark.usefixtures('two_layers')
def test_fig5_of_a_file(samples):
    data = mopt_fig5.run(options('mopt-fig5', samples))
    json.dumps(data, allow_nan=False)
    assert data['complete']
    assert data['measured_on'] == 'i7-9700k'
    for row, group in zip(data['layers'], (DENSE, DEPTHWISE), strict=True):
        found = drawn(group, 8)
        measured = [1.005 + i for i in range(8)]
        points = {p['key']: p for p in row['points']}
        assert [points[s.digest]['measured_ms'] for s in found] == pytest.approx(measured)
        predicted = [points[s.digest]['predicted_ms'] for s in found]
        assert row['rank_correlation'] == pytest.approx(spearman(predicted, measured))
        first = min(zip(predicted, [s.digest for s in found], measured, strict=True))[2]
        assert row['loss_percent']['top1'] == pytest.approx(100 * (first / 1.005 - 1))
    read = dataset.read(samples).layers
    dense, depthwise = (price(read[name], MACHINE) for name in ('mopt/R9', 'mopt/M2'))
    for schedule in drawn(DENSE, 8):
        assert dense.predictions[schedule.digest] == predict(DENSE, schedule, MACHINE)
    for schedule in drawn(DEPTHWISE, 8):
        wanted = predict_stencil(DEPTHWISE, schedule, MACHINE)
        assert depthwise.predictions[schedule.digest] == wanted
    losses = [row['loss_percent']['top1'] for row in data['layers']]
    assert data['mean_loss_percent']['top1'] == pytest.approx(statistics.mean(losses))
    assert data['worst']['top1']['percent'] == max(losses)
    assert [target['holds'] for target in data['targets'][:1]] == [statistics.mean(losses) <= 3]
    text = mopt_fig5.text(data)
    assert 'paper: below 4.5% on every layer' in text
    assert text.count('target: ') == 4
    assert samples.name in text
    assert str(samples) not in text


@pytest.mark.usefixtures('two_layers')
def test_fig6_of_a_file_is_in_predicted_order(samples):
    data = mopt_fig6.run(options('mopt-fig6', samples, samples=4))
    json.dumps(data, allow_nan=False)
    for row in data['layers']:
        predicted = [point['predicted_ms'] for point in row['points']]
        assert len(predicted) == 4
        assert predicted == sorted(predicted)
        for point in row['points']:
            assert point['l1_bytes'] >= point['l3_bytes'] > 0
            assert point['register_words'] > 0
    assert 'simulated: one call' in mopt_fig6.text(data)


@pytest.mark.usefixtures('two_layers')
def test_layers_that_the_data_do_not_have(samples, tmp_path):
    with Recorder(tmp_path / 'other.jsonl', head()) as recorder:
        record(recorder, [[1.0]], 'mine')
    with pytest.raises(InputError, match=r'has no layer of .*; it has mine'):
        mopt_fig5.run(options('mopt-fig5', tmp_path / 'other.jsonl'))
    with Recorder(tmp_path / 'changed.jsonl', head()) as recorder:
        record(recorder, [[1.0]], 'mopt/R9', DEPTHWISE)
    with pytest.raises(InputError, match='is another problem'):
        mopt_fig5.run(options('mopt-fig5', tmp_path / 'changed.jsonl'))


def bench_file(path, peers=('torch', 'onnxruntime'), **changes):
    """A bench file: ours at 2 ms, MOpt-1 at 2.5 ms, peers at 4, 8, ... ms; R9 only."""

    def contestant(name, time_ms, algorithm='direct'):
        return Contestant(name, algorithm=algorithm, samples_ms=((time_ms,) * 3,) * 2)

    result = LayerResult(
        'mopt/R9', DENSE.label, DENSE.digest, DENSE.flops, 2, 2, False, 0,
        contestant('tilewright', 2.0), tuple(
            contestant(name, 4.0 * 2**i) for i, name in enumerate(peers)
        ),
    )  # fmt: skip
    measured = [('outer', 2.0, 1.9), ('outer', 2.5, 1.5)]
    layer = {
        'name': 'mopt/R9',
        'comparison': result.to_json(),
        'plan': {
            'candidates': [
                {'schedule': {'schema': schema}, 'measured': {'median_ms': time_ms},
                 'predicted': {'time_ms': predicted}}
                for schema, time_ms, predicted in measured
            ]
        },
    } | changes  # fmt: skip
    document = {'verb': 'bench', 'machine': MACHINE.to_json(), 'caches': 'warm', 'layers': [layer]}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ('name', 'there', 'asked', 'taken'),
    [
        ('mopt-fig7', ('avx512', 'avx2', 'portable'), None, 'avx2'),
        ('mopt-fig7', ('avx512', 'avx2', 'portable'), 'avx512', 'avx512'),
        ('mopt-fig7', ('neon', 'portable'), None, ''),
        ('mopt-fig8', ('avx512', 'avx2', 'portable'), None, 'avx512'),
        ('mopt-fig5', ('avx512', 'avx2', 'portable'), None, ''),
    ],
)
def test_the_instruction_set_of_the_papers_machine(monkeypatch, name, there, asked, taken):
    """Else figures 7 and 8 would be one and the same on a machine with AVX-512."""
    monkeypatch.delenv('TILEWRIGHT_ISA', raising=False)
    monkeypatch.setattr(reproduce, 'host_isas', lambda: there)
    assert reproduce._isa(figure_of(name), None, asked) == taken


def test_an_instruction_set_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.delenv('TILEWRIGHT_ISA', raising=False)
    monkeypatch.setattr(reproduce, 'host_isas', lambda: ('avx2', 'portable'))
    with pytest.raises(InputError, match=r'mopt-fig8 with avx512 .* which has avx2, portable'):
        reproduce._isa(figure_of('mopt-fig8'), None, None)
    with pytest.raises(InputError, match='leave it out'):
        reproduce._isa(figure_of('mopt-fig8'), tmp_path, 'avx2')


@pytest.mark.usefixtures('two_layers')
def test_fig7_of_a_bench_file(tmp_path):
    data = mopt_fig7.run(options('mopt-fig7', bench_file(tmp_path / 'bench.json')))
    json.dumps(data, allow_nan=False)
    (row,) = data['layers']
    assert data['baseline'] == 'torch'
    assert data['columns'] == ['MOpt-1', 'ours', 'torch', 'onnxruntime']
    relative = {name: column['relative'] for name, column in row['columns'].items()}
    assert relative == {
        'MOpt-1': pytest.approx(1.6), 'ours': 2.0, 'torch': 1.0, 'onnxruntime': 0.5
    }  # fmt: skip
    assert row['columns']['ours']['relative95'] == [2.0, 2.0]
    assert row['gflops_per_s'] == pytest.approx(DENSE.flops / 2e6)
    assert data['geometric_mean']['ours'] == pytest.approx(2.0)
    assert (data['missing_layers'], data['complete']) == (['mopt/M2'], False)
    assert 'not in these data: mopt/M2' in mopt_fig7.text(data)


@pytest.mark.usefixtures('two_layers')
def test_fig7_finds_the_fullest_file_of_a_directory_and_shows_what_failed(tmp_path):
    bench_file(tmp_path / 'a.json', comparison=None)
    (tmp_path / 'b.json').write_text('{"verb": "machine"}')
    data = mopt_fig7.run(options('mopt-fig7', tmp_path))
    assert data['data'] == 'a.json'
    assert data['baseline'] is None
    assert 'ours no candidate worked' in mopt_fig7.text(data)
    with pytest.raises(InputError, match='was not written by `tilewright bench'):
        mopt_fig7.run(options('mopt-fig7', tmp_path / 'b.json'))
    with pytest.raises(InputError, match='name it by --data'):
        mopt_fig7.run(options('mopt-fig7', None))


@pytest.mark.usefixtures('two_layers')
@pytest.mark.slow
def test_pictures(samples, tmp_path):
    pytest.importorskip('matplotlib')
    bench = bench_file(tmp_path / 'bench.json')
    for module, path in ((mopt_fig5, samples), (mopt_fig6, samples), (mopt_fig7, bench)):
        data = module.run(options('x', path, samples=3))
        picture = tmp_path / 'pictures' / f'{module.__name__}.png'
        module.plot(data, picture)
        assert picture.read_bytes().startswith(b'\x89PNG')


def test_a_picture_without_matplotlib_is_one_sentence(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'matplotlib.figure', None)
    with pytest.raises(MissingError, match=r'install tilewright\[report\]'):
        pictures.canvas(1, 1)
