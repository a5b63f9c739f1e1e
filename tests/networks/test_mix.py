"""`precision='int8'` and `'auto'`: a mix keeps its accuracy, is the fastest, and says so."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest
from test_quantize import samples, small_model

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.half import halved
from tilewright.graph.passes import HALF, PROGRAM_PASSES, apply_passes, passes_of, with_half
from tilewright.importers.onnx import import_onnx
from tilewright.machine.measure import load_machine
from tilewright.network.compile import prepare
from tilewright.ops.stored import as_stored
from tilewright.precision.accuracy import Accuracy, output_error
from tilewright.precision.calibrate import QuantizeOptions, calibrate
from tilewright.precision.mix import MixSearch, fastest, mix_text, priced
from tilewright.precision.mixed import mixed_model
from tilewright.precision.reference import Floats
from tilewright.precision.units import units_of
from tilewright.search.mix import MixProblem
from tilewright.targets.cpu.cost import CpuCost
from tilewright_lab.scripts.integer_networks import exact_results

pytest.importorskip('onnxruntime')


def machine():
    return load_machine(measure=False)[0]


def test_the_integer_program_finds_what_trying_all_mixes_does() -> None:
    random, parts = np.random.default_rng(2), 7
    for _ in range(12):
        floats, integers, losses, there, back = random.random((5, parts)) * 1e-3
        crossings = tuple(
            (i, i + 1, float(0.3 * there[i]), float(0.3 * back[i])) for i in range(parts - 1)
        )
        problem = MixProblem(tuple(floats), tuple(integers), tuple(losses), crossings)
        allowed = float(random.uniform(0, losses.sum()))
        mixes = itertools.product((False, True), repeat=parts)
        best = min(problem.seconds(mix) for mix in mixes if problem.loss(mix) <= allowed)
        found = problem.solve(allowed)
        assert problem.loss(found) <= allowed * (1 + 1e-6)
        assert problem.seconds(found) == pytest.approx(best, rel=1e-4)


def test_every_mix_computes_what_onnxruntime_does_and_rounds_nothing_for_floats(tmp_path) -> None:
    """A unit is a product with what follows it; each of the mixes runs, near the floats."""
    calibrated = calibrate(small_model(), [{'x': x[None]} for x in samples()], QuantizeOptions())
    units = units_of(calibrated.model)
    assert [unit.nodes for unit in units.units] == [
        ('conv1', 'relu1'), ('conv2', 'add1', 'mean1', 'flatten1'), ('linear1',)
    ]  # fmt: skip
    assert {(i, j) for i, j, _ in units.edges} == {(0, 1), (1, 2)}
    path, x = tmp_path / 'mix.onnx', {'x': samples(1)}
    onnx.save(small_model(), path)
    right = exact_results(path, x)
    for mix in itertools.product((False, True), repeat=3):
        made = mixed_model(calibrated, units, mix)
        onnx.save(made, path)
        small = {name for u, x in zip(units.units, mix, strict=True) if x for name in u.nodes}
        readers = {name: node for node in made.graph.node for name in node.input}
        stored = [node for node in made.graph.node if node.op_type == 'QuantizeLinear']
        assert bool(stored) == any(mix)
        assert all(readers[readers[q.output[0]].output[0]].name in small for q in stored)
        theirs = exact_results(path, x)
        mine = evaluate(prepare(path), x)['y']
        assert np.abs(mine - theirs).max() <= 0.02 * np.abs(right).max()
        assert np.linalg.norm(theirs - right) <= 0.15 * np.linalg.norm(right)


@pytest.mark.parametrize('half', ['f16', 'bf16'])
@pytest.mark.parametrize('mix', [m for m in itertools.product((False, True), repeat=3) if any(m)])
def test_floats_beside_integers_may_be_halves(mix, half) -> None:
    """Bytes stay bytes, also the weights of layers whose results are floats, and so does an input
    that is only rounded to them.
    """
    calibrated = calibrate(small_model(), [{'x': x[None]} for x in samples()], QuantizeOptions())
    program = prepare(mixed_model(calibrated, units_of(calibrated.model), mix))
    made, x = halved(program, half, on_cpu=True), {'x': samples(1)}
    want, got = (evaluate(p, x)['y'] for p in (program, made))
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
    factors = [
        {t.group.tensor(a.tensor).dtype for a in t.group.main.reads}
        for t in made.tasks if t.group.main.is_product_sum
    ]  # fmt: skip
    assert sum(kinds == {half} for kinds in factors) >= mix.count(False)
    assert sum(not kinds & {half, 'f32'} for kinds in factors) == mix.count(True)
    assert any('convert' in t.group.label for t in made.tasks) != mix[0]


@pytest.mark.parametrize('half', ['f16', 'bf16'])
def test_kernels_of_halves_quantise_what_integers_read(half) -> None:
    """No pass over memory is left between a layer of f16 and the layer of bytes that reads it."""
    calibrated = calibrate(small_model(), [{'x': x[None]} for x in samples()], QuantizeOptions())
    model = mixed_model(calibrated, units_of(calibrated.model), (False, True, False))
    made = apply_passes(
        import_onnx(model), passes_of(None) | {HALF}, CpuCost(machine(), 1),
        with_half(PROGRAM_PASSES, half, on_cpu=True),
    )  # fmt: skip
    stored = {task.name: as_stored(task.group)[1] for task in made.tasks}
    assert stored['conv1'] is not None
    assert made.values['r1_QuantizeLinear_Output'].shape == (1, 6, 6, 8)  # channels last
    assert not any(name == 'r1_QuantizeLinear' for name in stored)
    x = {'x': samples(1)}
    want, got = (evaluate(p, x)['y'] for p in (prepare(model), made))
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()


def test_passing_from_one_type_to_the_other_has_a_price_each_way() -> None:
    """What a unit takes beyond its own type is for those that read it in the other type."""
    calibrated = calibrate(small_model(), [{'x': x[None]} for x in samples()], QuantizeOptions())
    units = units_of(calibrated.model)

    def price(model):
        """10 s for a layer of floats, 4 s for one of bytes; from floats to bytes 3 s, back 1 s."""
        small = {n.output[0] for n in model.graph.node if n.op_type == 'DequantizeLinear'}
        products = {n.name: n for n in model.graph.node}
        types = [products[unit.name].input[1] in small for unit in units.units]
        tasks = [((u.name,), 4.0 if x else 10.0) for u, x in zip(units.units, types, strict=True)]
        for i, j, _ in units.edges:
            value = units.units[i].values[-1]
            if types[j] and not types[i]:
                tasks.append(((f'{value}_QuantizeLinear',), 3.0))
            if types[i] and not types[j]:
                tasks.append(((f'{value}_DequantizeLinear',), 1.0))
        return tasks

    problem = priced(calibrated, units, (0.1, 0.1, 0.1), price)
    assert problem.floats_s == (10.0, 10.0, 10.0)
    for mix, seconds in (
        ((True, True, True), 12.0), ((False, True, False), 28.0), ((True, False, False), 25.0),
        ((False, False, True), 27.0), ((True, True, False), 19.0),
    ):  # fmt: skip
        assert problem.seconds(mix) == pytest.approx(seconds)


def test_an_activation_that_comes_back_has_its_limits(tmp_path) -> None:
    """The tool drops the only Clip of a model with its limits, which floats behind it need."""
    model = small_model()
    relu = next(node for node in model.graph.node if node.op_type == 'Relu')
    relu.op_type = 'Clip'
    relu.input.extend(['low', 'high'])
    for name, value in (('low', 0), ('high', 6)):
        limit = onnx.numpy_helper.from_array(np.array(value, np.float32), name)
        model.graph.initializer.append(limit)
    calibrated = calibrate(model, [{'x': x[None]} for x in samples()], QuantizeOptions())
    made = mixed_model(calibrated, units_of(calibrated.model), (True, False, False))
    onnx.save(made, tmp_path / 'mix.onnx')
    found = exact_results(tmp_path / 'mix.onnx', {'x': samples(1)})
    assert np.isfinite(found).all()
    assert [list(n.input[1:]) for n in made.graph.node if n.op_type == 'Clip'] == [['low', 'high']]


@pytest.mark.parametrize('given', [samples(), None], ids=['samples', 'random'])
@pytest.mark.filterwarnings('ignore:no samples are given:UserWarning')
def test_int8_is_quantised_and_compiled(given) -> None:
    net = tw.compile(small_model(), precision='int8', samples=given, machine=machine(),
                     threads=1)  # fmt: skip
    assert net.mix is None
    assert {k.schedule.accumulation for k in net.kernels.values()} >= {'i32'}
    plain = tw.compile(small_model(), machine=machine(), threads=1)
    x = {'x': samples(1)}
    error = output_error([plain.run(x)], [net.run(x)])
    assert 0 < error.rel < 0.15


@pytest.mark.parametrize(
    ('accuracy', 'reached'),
    [
        ('rel=0.5', True),
        ('rel=1e-9', False),
        pytest.param('cosine=0.9', True, marks=pytest.mark.slow),
        pytest.param('top1=0.25', True, marks=pytest.mark.slow),
        pytest.param('rel=0.001', True, marks=pytest.mark.slow),
    ],
)
def test_a_mix_keeps_its_accuracy_or_says_that_it_does_not(accuracy, reached, tmp_path, recwarn):
    path = tmp_path / 'mix.tw'
    net = tw.compile(
        small_model(), precision='auto', accuracy=accuracy, samples=samples(8), threads=1,
        machine=machine(), save=path,
    )  # fmt: skip
    assert net.mix['reached'] == reached
    assert any('no mix reaches accuracy' in str(w.message) for w in recwarn) != reached
    small = [name for name, kind in net.mix['types'].items() if kind == 'int8']
    if Accuracy.of(accuracy).limit <= 0.1:
        assert not small
    elif not (machine().half or machine().bf16):  # else types are timed, and floats may win
        assert small
    times = net.mix['predicted_ms']
    assert times['mix'] <= times['fp32']
    again = tw.load(path)
    assert again.mix == net.mix
    x = {'x': samples(1)}
    np.testing.assert_array_equal(again.run(x)['y'], net.run(x)['y'])


def test_floats_are_fp16_where_that_keeps_the_limit_and_is_faster() -> None:
    """The choice alone, on every machine: prices and what fp16 loses are given."""
    source = Floats.of(small_model(), threads=1)

    def price(each: float):
        return lambda model: [((node.name,), each) for node in model.graph.node]

    def compiled(model, floats):
        off = {'fp32': 0.0, 'fp16': 1e-3}[floats]
        return lambda sample: {
            name: (1 + off) * array for name, array in source.results_of(model, [sample])[0].items()
        }

    given = [{'x': x[None]} for x in samples(8)]
    for seconds, accuracy, floats in (
        (1e-6, 'rel=0.002', 'fp16'), (1e-6, 'rel=0.0005', 'fp32'), (1e-3, 'rel=0.002', 'fp32')
    ):  # fmt: skip
        prices = {'fp32': price(1e-4), 'fp16': price(seconds)}
        search = MixSearch.of(source, given, QuantizeOptions(), prices, compiled)
        assert search.floors['fp16'].rel == pytest.approx(1e-3, rel=1e-3)
        mix = search.choose(Accuracy.of(accuracy), compiled)
        assert mix.reached
        assert mix.floats == floats


@pytest.mark.skipif(
    not (machine().half or machine().bf16),
    reason='16-bit kernels need a core with fp16 arithmetic (asimdhp in /proc/cpuinfo, as on a '
    'Neoverse-N1) or tiles of bf16 (amx_bf16), and this one has neither: run it on such a core',
)
def test_a_machine_with_halves_mixes_them_with_bytes() -> None:
    """Layers that are not bytes are floats of one type, fp32 where halves alone break the limit."""
    half = 'fp16' if machine().half else 'bf16'
    for accuracy, kinds in (('rel=0.05', {'fp32', half}), ('rel=1e-5', {'fp32'})):
        net = tw.compile(
            small_model(), precision='auto', accuracy=accuracy, samples=samples(8), threads=1,
            machine=machine(),
        )  # fmt: skip
        assert net.mix['reached']
        floats = net.mix['floats']
        assert floats in kinds
        assert set(net.mix['types'].values()) <= {'int8', floats}
        assert net.mix['predicted_ms'].keys() == {'mix', 'fp32', half, 'int8'}
        assert f'the others in {floats}' in mix_text(net.mix)
        halves = any(task.group.half for task in net.tasks)
        assert halves == (floats == half and half in net.mix['types'].values())


def test_networks_are_compared_in_turns_and_the_first_wins_a_draw(monkeypatch) -> None:
    now, called = [0.0], []

    def takes(name: str, seconds: float):
        def run(_):
            called.append(name)
            now[0] += seconds
            return {}

        return run

    monkeypatch.setattr('tilewright.precision.mix.time.perf_counter', lambda: now[0])
    slow, quick, level = takes('a', 2.0), takes('b', 1.0), takes('c', 1.995)
    assert fastest({}, [slow, quick, level]) == 1
    assert called[:6] == ['a', 'b', 'c', 'a', 'b', 'c']
    assert fastest({}, [slow, level]) == 0
    assert fastest({}, [quick, slow]) == 0


def test_a_mix_of_an_older_file_has_floats_of_fp32() -> None:
    old = {
        'accuracy': 'rel=0.1', 'reached': True, 'held_out_samples': 2, 'types': {'c': 'int8'},
        'error': {'rel': 0.01, 'cosine': 1.0, 'top1': 1.0}, 'error_alone': {'c': 0.01},
        'predicted_ms': {'mix': 1.0, 'fp32': 2.0, 'int8': 1.0},
    }  # fmt: skip
    assert 'the others in fp32, predicted 1.000 ms (fp32 2.000, int8 1.000)' in mix_text(old)


def test_the_command_line_ends_with_1_where_no_mix_is_accurate_enough(tmp_path, capsys) -> None:
    onnx.save(small_model(), tmp_path / 'm.onnx')
    np.savez(tmp_path / 'x.npz', x=samples(8))
    files = {name: str(tmp_path / name) for name in ('m.onnx', 'x.npz', 'r.json')}
    words = ['compile', files['m.onnx'], '--precision', 'auto', '--samples', files['x.npz'],
             '--threads', '1', '--json', files['r.json']]  # fmt: skip
    assert invoke([*words, '--accuracy', 'rel=1e-9']) == 1
    assert 'NOT reached' in capsys.readouterr().out
    assert json.loads((tmp_path / 'r.json').read_text())['mix']['reached'] is False
    assert (tmp_path / 'm.tw').exists()


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        ({'precision': 'auto'}, 'needs an accuracy'),
        ({'precision': 'auto', 'accuracy': 'mse=1', 'samples': samples(8)}, "by 'mse' is not kno"),
        ({'precision': 'auto', 'accuracy': 'rel', 'samples': samples(8)}, 'cannot be read'),
        ({'precision': 'auto', 'accuracy': 'top1=2', 'samples': samples(8)}, 'at most 1'),
        ({'precision': 'auto', 'accuracy': 0.1, 'samples': samples(3)}, 'at least 4 are needed'),
        ({'precision': 'int8', 'accuracy': 0.1}, 'accuracy= means nothing'),
        ({'precision': 'fp32', 'samples': samples()}, 'samples= means nothing'),
        ({'precision': 'int4'}, 'choose one of fp32, fp16, bf16, int8, auto'),
        (
            {'precision': 'auto', 'accuracy': 0.1, 'target': 'cuda'},
            'which has fp32, fp16, bf16 and int8',
        ),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(words, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tw.compile(small_model(), **words)
