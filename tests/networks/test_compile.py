"""Networks from the front door: stages, passes, tuning, .tw files, profiles."""

from __future__ import annotations

import copy
import json
import pickle
import warnings

import graphs
import numpy as np
import onnx
import pytest
from file_mutants import file_of, header_of

import tilewright as tw
from tilewright import zoo
from tilewright.errors import InputError, ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.passes import PASSES
from tilewright.machine.measure import load_machine
from tilewright.network.compile import prepare
from tilewright.ops.convolution import conv2d
from tilewright.runtime import pool
from tilewright.store import choices, network_file
from tilewright.targets.cpu.choose import Question, choose_all, core


@pytest.fixture(scope='module', autouse=True)
def quiet():
    """A host that was not measured is no trouble here."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*nominal figures.*')
        yield


@pytest.fixture(scope='module')
def made():
    return graphs.convolutions()


@pytest.fixture(scope='module')
def network(made) -> tw.Network:
    return tw.compile(made)


@pytest.fixture(scope='module')
def saved(made, tmp_path_factory):
    path = tmp_path_factory.mktemp('saved') / 'net.tw'
    tw.compile(made, save=path)
    return path


def want_of(made, x):
    return evaluate(prepare(made, passes=()), {'x': x})['y']


def close(got, want) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


def test_a_graph_compiles_and_runs(made, network):
    x = graphs.floats(1, 4, 6, 6, seed=1)
    close(network(x), want_of(made, x))
    assert len(network.tasks) == 2


@pytest.mark.parametrize('off', [*PASSES, 'all'])
@pytest.mark.parametrize('make', [graphs.convolutions, graphs.branches, graphs.dense_block])
def test_every_pass_can_be_turned_off(make, off):
    made = make()
    plain = prepare(made, passes=())
    inputs = graphs.inputs_of(plain)
    want = evaluate(plain, inputs)
    passes = () if off == 'all' else tuple(name for name in PASSES if name != off)
    got = evaluate(prepare(made, passes=passes), inputs)
    for name, array in want.items():
        close(got[name], array)


def test_models_in_every_form(tmp_path):
    model = zoo.onnx_model('squeezenet', image=32, width=8)
    path = tmp_path / 'model.onnx'
    onnx.save(model, path)
    programs = [prepare(form) for form in (model, model.SerializeToString(), path, str(path))]
    assert len({json.dumps([t.group.digest for t in p.tasks]) for p in programs}) == 1
    for wrong in (3, None, np.zeros(3), object()):
        with pytest.raises(ModelError, match='is not a model'):
            prepare(wrong)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'target': 'abacus'}, 'target'),
        ({'tune': 'guess'}, 'tune'),
        ({'trials': 0}, 'trials'),
        ({'threads': 0}, 'threads'),
        ({'threads': 10_000}, 'threads'),
        ({'passes': ['fuse', 'nothing']}, 'passes'),
        ({'passes': 'fuse'}, 'passes'),
        ({'passes': 5}, 'passes'),
        ({'machine': 'i7-9700k'}, 'machine'),
        ({'save': 'no/such/folder/x.tw'}, 'is not a directory'),
        ({'save': 'x.zip'}, 'does not end in .tw'),
        ({'max_rel_err': -1}, 'max_rel_err'),
        ({'device': 'H200'}, "device='H200' is a part of the name of a GPU"),
        ({'constants': {'size': 3}}, 'constants= are values of inputs of an ONNX model'),
    ],
)
def test_options_that_cannot_be_meant(made, options, message):
    with pytest.raises(InputError, match=message):
        tw.compile(made, **options)


def test_compiling_twice_searches_once(made, network, monkeypatch):
    from tilewright.targets.cpu import choose as chooser

    def never(question):
        raise AssertionError(f'{question.group.label} was searched again')

    monkeypatch.setattr(chooser, 'search', never)
    again = tw.compile(made)
    assert {k: v.schedule for k, v in again.kernels.items()} == {
        k: v.schedule for k, v in network.kernels.items()
    }


def test_equal_problems_are_searched_once(monkeypatch, tmp_path):
    from tilewright.targets.cpu import choose as chooser

    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    asked = []
    real = chooser.search
    monkeypatch.setattr(chooser, 'search', lambda q: asked.append(q.group.digest) or real(q))
    monkeypatch.setattr(pool, 'usable_cores', lambda: 1)
    shape = {'c': 4, 'h': 5, 'w': 5, 'k': 4, 'r': 1, 's': 1}
    machine, _ = load_machine(measure=False)
    groups = [
        conv2d(**shape),
        conv2d(**shape, bias=True),
        conv2d(**shape, bias=True, activation='relu'),
    ]
    found = choose_all(groups, machine, 1, 1, 1e-4)
    assert len(asked) == 1
    assert len({choice[0].schedule for choice in found}) == 1
    assert choose_all(groups, machine, 1, 1, 1e-4) == found
    assert len(asked) == 1


@pytest.mark.usefixtures('full_searches')  # children know nothing of shorter ones
def test_children_find_what_this_process_finds(monkeypatch, tmp_path):
    from tilewright.targets.cpu import choose as chooser

    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    machine, _ = load_machine(measure=False)
    groups = [conv2d(c=4, h=5, w=5, k=k, r=1, s=1) for k in (4, 8)]
    monkeypatch.setattr(pool, 'usable_cores', lambda: 2)
    found = choose_all(groups, machine, 1, 1, 1e-4)
    assert [f[0] for f in found] == [
        chooser.search(Question(g, machine, 1, 1, 1e-4))[0] for g in groups
    ]


def test_the_core_of_a_group_is_what_is_searched():
    plain = conv2d(c=4, h=5, w=5, k=4, r=3, s=3, pad=1)
    whole = conv2d(c=4, h=5, w=5, k=4, r=3, s=3, pad=1, bias=True, activation='relu')
    assert core(plain) is plain
    assert core(whole).digest == plain.digest


def test_an_answer_that_is_damaged_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    key = choices.key_of({'a': 1})
    assert choices.recall(key) is None
    choices.keep(key, {'schedule': 1})
    assert choices.recall(key) == {'schedule': 1}
    assert choices.recall_choices(key) is None
    path = next(tmp_path.rglob(f'{key}.json'))
    path.write_text('{"schedule": ')
    assert choices.recall(key) is None


def test_no_choice_at_all_is_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    machine, _ = load_machine(measure=False)
    group = conv2d(c=4, h=5, w=5, k=4, r=1, s=1)
    (found,) = choose_all([group], machine, 1, 1, 1e-4)
    for path in (tmp_path / 'chosen').rglob('*.json'):
        path.write_text('[]')
    assert choose_all([group], machine, 1, 1, 1e-4) == [found]


def test_what_is_chosen_for_gpus_also_depends_on_their_own_code():
    question = {'a': 1}
    assert choices.key_of(question) == choices.key_of(question, ())
    assert choices.key_of(question, choices.GPU_DECIDES) != choices.key_of(question)


def test_measuring_in_the_network(made, network, monkeypatch):
    tuned = tw.compile(made, tune='measure', trials=2)
    x = graphs.floats(1, 4, 6, 6, seed=1)
    close(tuned(x), want_of(made, x))
    assert tuned.kernels.keys() == network.kernels.keys()
    from tilewright.targets.cpu import tuning

    def never(*_):
        raise AssertionError('measured again')

    monkeypatch.setattr(tuning, 'sound', never)
    again = tw.compile(made, tune='measure', trials=2)
    assert {k: v.schedule for k, v in again.kernels.items()} == {
        k: v.schedule for k, v in tuned.kernels.items()
    }


def test_wrong_kernels_are_left_out(monkeypatch):
    """The first candidate computes another group; the second is taken."""
    from dataclasses import replace

    from tilewright.targets.cpu import tuning

    group = conv2d(c=4, h=5, w=5, k=4, r=1, s=1)
    machine, _ = load_machine(measure=False)
    (found,) = choose_all([group], machine, 1, 2, 1e-4)
    other = conv2d(c=4, h=5, w=5, k=4, r=1, s=1, activation='relu')
    real = tuning.build_each

    def spoil(wanted, report=None):
        made = real(wanted, report)
        wrong = real([(other, wanted[0][1])])[0]
        return [replace(made[0], library=wrong.library), *made[1:]]

    monkeypatch.setattr(tuning, 'build_each', spoil)
    trials = tuning.sound({group.digest: (group, found)}, 1e-4)
    assert [trial.choice for trial in trials[group.digest]] == list(found[1:])


def test_a_saved_network_is_the_same(made, network, saved):
    x = graphs.floats(1, 4, 6, 6, seed=1)
    loaded = tw.load(saved)
    np.testing.assert_array_equal(loaded(x), network(x))
    np.testing.assert_array_equal(tw.compile(saved)(x), network(x))
    assert loaded.threads == network.threads
    again = saved.with_name('again.tw')
    tw.compile(made, save=again)
    assert again.read_bytes() == saved.read_bytes()


def test_threads_may_differ_when_loaded(saved, made):
    loaded = tw.load(saved, threads=1)
    assert loaded.threads == 1
    x = graphs.floats(1, 4, 6, 6, seed=1)
    close(loaded(x), want_of(made, x))


def test_every_flipped_byte_is_refused(saved, tmp_path):
    data = saved.read_bytes()
    path = tmp_path / 'flipped.tw'
    rng = np.random.default_rng(0)
    places = {*range(48), len(data) - 1, *rng.integers(0, len(data), 60).tolist()}
    for place in sorted(places):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(ModelError) as caught:
            network_file.read(path)
        assert '\n' not in str(caught.value)


@pytest.mark.parametrize('size', [0, 7, 40, 500, -1])
def test_files_that_end_too_early_or_too_late(saved, tmp_path, size):
    data = saved.read_bytes()
    path = tmp_path / 'cut.tw'
    path.write_bytes(data + b'\0' if size == -1 else data[:size])
    with pytest.raises(ModelError, match=r'damaged|not a \.tw file'):
        network_file.read(path)


def rewritten(saved, tmp_path, change):
    """A file with sound checksums whose header was changed."""
    header, arrays = header_of(saved.read_bytes())
    change(header)
    path = tmp_path / 'changed.tw'
    path.write_bytes(file_of(header, arrays))
    return path


def test_a_file_of_another_version_is_refused(saved, tmp_path):
    path = rewritten(saved, tmp_path, lambda h: h.update(version='9.9.9'))
    with pytest.raises(ModelError, match=r'version 9\.9\.9.*compile the model again'):
        tw.load(path)


def test_schedules_of_another_machine_are_chosen_again(saved, tmp_path, made):
    path = rewritten(saved, tmp_path, lambda h: h['machine'].update(fingerprint='other'))
    x = graphs.floats(1, 4, 6, 6, seed=1)
    with pytest.warns(UserWarning, match='chosen again'):
        loaded = tw.load(path)
    close(loaded(x), want_of(made, x))


def first_group(header) -> dict:
    return next(iter(header['groups'].values()))


def first_choice(header) -> dict:
    return next(iter(header['choices'].values()))


@pytest.mark.parametrize(
    'change',
    [
        lambda h: first_group(h).update(label='x */ int main() {} /*'),
        lambda h: first_group(h)['stages'][0]['write'][1][0].__setitem__(1, 10_000),
        lambda h: first_group(h)['stages'][0]['reads'][0][1][0].__setitem__(1, 'n'),
        lambda h: first_group(h)['stages'][0]['expr'].__setitem__(1, 'system'),
        lambda h: first_choice(h)['schedule'].update(vector='k; }'),
        lambda h: first_choice(h)['schedule'].update(isa='made up'),
        lambda h: first_choice(h).pop('schedule'),
        lambda h: h['constants'][0].update(offset=1 << 40),
        lambda h: h['program']['tasks'][0].update(result='nowhere'),
        lambda h: h['program']['tasks'].reverse(),
        lambda h: next(v for v in h['program']['values'] if v[0] == 'y').__setitem__(
            1, [1, 4, 6, 5]
        ),
        lambda h: h['program'].update(inside={'a': ['a', 0]}),
        lambda h: h['program'].pop('inputs'),
        lambda h: h.pop('groups'),
        lambda h: h.update(threads=-3),
    ],
)
def test_contents_that_make_no_sense_are_one_sentence(saved, tmp_path, change):
    path = rewritten(saved, tmp_path, change)
    with pytest.raises(tw.TilewrightError) as caught:
        tw.load(path)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'options',
    [
        {'shapes': {'x': (1, 3, 8, 8)}}, {'constants': {'x': np.zeros(1)}}, {'passes': ['fuse']},
        {'tune': 'measure', 'trials': 2}, {'save': 'again.tw'}, {'fallback': 'onnxruntime'},
        {'tune': 'measure'}, {'max_rel_err': 1e-3},
    ],
)  # fmt: skip
def test_a_compiled_file_has_nothing_left_to_decide(saved, options):
    with pytest.raises(InputError, match='compiled already'):
        tw.compile(saved, **options)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ModelError, match='cannot be read'):
        tw.load(tmp_path / 'nothing.tw')
    with pytest.raises(InputError, match='cannot be written'):
        tw.compile(graphs.convolutions(), save=tmp_path / 'no' / 'folder.tw')


def test_profile_trace_and_explanation(network, tmp_path):
    found = network.profile(calls=3)
    assert [task.name for task in found.tasks] == [task.name for task in network.tasks]
    assert found.total_ms > 0
    assert all(task.time_ms >= 0 and task.bound_ms > 0 for task in found.tasks)
    assert found.tasks[0].origin == ('Conv_c0', 'Relu_a')
    text = str(found)
    assert all(task.name in text for task in network.tasks)
    path = tmp_path / 'trace.json'
    found.write_trace(path)
    events = json.loads(path.read_text())['traceEvents']
    assert [event['name'] for event in events] == [task.name for task in network.tasks]
    assert all(event['ph'] == 'X' and event['dur'] >= 0 for event in events)
    said = network.explain(calls=2)
    assert 'By kind of kernel' in said
    assert json.dumps(found.to_json())
    with pytest.raises(InputError, match='calls'):
        network.profile(calls=0)


def test_symbolic_sizes_are_fixed_by_shapes():
    model = zoo.onnx_model('squeezenet', image=32, width=8)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch'
    program = prepare(model, {'image': (2, 3, 32, 32)})
    assert program.values['image'].shape == (2, 3, 32, 32)
    assert prepare(model).values['image'].shape == (1, 3, 32, 32)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = 'height'
    with pytest.raises(ModelError, match='which is open'):
        prepare(model)


@pytest.mark.parametrize('name', ['resnet18', 'inception_v1'])
def test_a_batch_of_nothing(name):
    """Every kind of layer has a result for it: nothing."""
    model = zoo.onnx_model(name, **zoo.SMALL[name])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = 'batch'
    sizes = model.graph.input[0].type.tensor_type.shape.dim[1:]
    shape = (0, *(size.dim_value for size in sizes))
    network = tw.compile(model, shapes={'image': shape})
    assert network(np.zeros(shape, np.float32)).shape[0] == 0


def test_a_network_of_the_zoo_at_other_sizes():
    """Sizes that are given are not dropped: a call of another size than was asked for."""
    net = tw.compile('squeezenet', shapes={'image': [2, 3, 32, 32]}, threads=1)
    assert net.inputs[0].shape == (2, 3, 32, 32)
    with pytest.raises(ModelError, match="squeezenet has the input 'image'; shapes gives x"):
        tw.compile('squeezenet', shapes={'x': (1, 3, 64, 64)})


def test_a_network_of_the_zoo_by_its_name(monkeypatch):
    small = zoo.graph('squeezenet', image=32, width=8)
    monkeypatch.setattr(zoo, 'graph', lambda name: small if name == 'squeezenet' else None)
    assert tw.compile('squeezenet').inputs[0].shape == (1, 3, 32, 32)
    with pytest.raises(ModelError, match='cannot be read'):
        tw.compile('squeezenett')


class Raising:
    """Something that says it is an array, and is none."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise KeyError('no data')


@pytest.mark.parametrize(
    ('call', 'names'),
    [
        (lambda net, conv: tw.load(None), 'path is None'),
        (lambda net, conv: tw.load(5), 'path is 5'),
        (lambda net, conv: tw.compile(graphs.convolutions(), save=5), 'save is 5'),
        (lambda net, conv: tw.compile(graphs.convolutions(), save=b'x.tw'), 'save is b'),
        (lambda net, conv: tw.export(graphs.convolutions(), None), 'folder is None'),
        (lambda net, conv: conv(Raising()), 'In is not an array .*no data'),
        (lambda net, conv: net(Raising()), "input 'x' is not an array .*no data"),
    ],
)
def test_misuse_is_an_error_of_ours(network, call, names):
    group = conv2d(c=4, h=5, w=5, k=4, r=1, s=1)
    conv = tw.optimize(group, measure=False).build(weights=np.ones((4, 4, 1, 1), np.float32))
    with pytest.raises(InputError, match=names) as caught:
        call(network, conv)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('take', [pickle.dumps, copy.copy, copy.deepcopy])
def test_copies_of_a_network_are_refused_in_one_sentence(network, take):
    with pytest.raises(InputError, match='cannot be copied or pickled; write it with save='):
        take(network)


def test_tensors_that_are_no_arrays_are_an_error_of_ours(network):
    torch = pytest.importorskip('torch')
    group = conv2d(c=4, h=6, w=6, k=4, r=1, s=1)
    conv = tw.optimize(group, measure=False).build(weights=np.ones((4, 4, 1, 1), np.float32))
    for tensor, why in (
        (torch.zeros(1, 4, 6, 6, requires_grad=True), 'detach'),
        (torch.zeros(1, 4, 6, 6, dtype=torch.bfloat16), 'BFloat16'),
    ):
        for callee in (conv, network):
            with pytest.raises(InputError, match=f'is not an array .*{why}.*give a numpy array'):
                callee(tensor)
