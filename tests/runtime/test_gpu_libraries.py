"""cuDNN and cuBLASLt as candidates: their calls, what they refuse, who is selected, .tw files."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_libraries import VERSIONS, FakeCublasLt, FakeCudnn, LibraryDevice

import tilewright as tw
from tilewright.errors import InputError, MissingError, ModelError, ScheduleError, StoreError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import half_error
from tilewright.kernels.gpu.registry import GPU_SCHEMAS, is_library, schema_named
from tilewright.kernels.gpu.schemas.library import calls_for, said_of, why_not
from tilewright.kernels.gpu.schemas.library.calls import call_of, call_text
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.bounds import compute_gflops, schedule_bounds
from tilewright.network import compile as compiling
from tilewright.ops.convolution import conv2d
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group, Tensor
from tilewright.ops.matmul import matmul
from tilewright.ops.pointwise import pointwise
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, call, const, read, var
from tilewright.runtime import verify
from tilewright.runtime.gpu.cuda_graph import Launch, captured
from tilewright.runtime.gpu.libraries import cublaslt, cudnn, table
from tilewright.runtime.gpu.libraries.loading import found, places
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.worker import Answer
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright.store import network_file
from tilewright.store.records import open_store
from tilewright.targets.gpu import choose, selector, site, tuning
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.layers import Builder
from tilewright.zoo.weights import weights

ENDS = {'bias': True, 'activation': 'relu'}


def residual(shape=(2, 8, 5, 5), relu: bool = True) -> Group:
    """A convolution whose result is added to an image, as in residual networks."""
    n, k, h, w = shape
    plain = conv2d(n=n, c=4, h=h, w=w, k=k, r=3, s=3, pad=1, bias=True)
    dims = (Dim('n', n), Dim('c', k), Dim('h', h), Dim('w', w))
    here = tuple(var(d.name) for d in dims)
    names = ('n', 'k', 'h', 'w')
    inner = [replace(t, name='Acc1', role='inner') for t in plain.tensors if t.name == 'Out']
    stages = [replace(s, write=replace(s.write, tensor='Acc1')) if s.name == 'bias' else s
              for s in plain.stages]  # fmt: skip
    total = call('add', read(1), read(0))
    total = call('max', total, const(0.0)) if relu else total
    stages.append(pointwise('join', dims, 'Out', 'Acc1', total, Access('Image', here)))
    tensors = [t for t in plain.tensors if t.name != 'Out']
    return Group(
        'residual', (*tensors, *inner, Tensor('Image', names, shape),
                     Tensor('Out', names, shape, 'output')), tuple(stages), plain.storage,
    )  # fmt: skip


CONVOLUTIONS = {
    'plain': conv2d(c=3, h=7, w=6, k=4, r=3, s=3, pad=1),
    'fused': conv2d(n=2, c=3, h=7, w=6, k=4, r=3, s=3, pad=1, **ENDS),
    'bias': conv2d(c=3, h=7, w=6, k=4, r=3, s=3, pad=1, bias=True),
    'relu': conv2d(c=3, h=7, w=6, k=4, r=3, s=3, pad=1, activation='relu'),
    'sigmoid': conv2d(c=3, h=7, w=6, k=4, r=3, s=3, pad=1, bias=True, activation='sigmoid'),
    'numbers': conv2d(
        n=2, c=4, h=11, w=13, k=6, r=3, s=2, stride=(2, 1), pad=(2, 1), dilation=(1, 3), groups=2
    ),
    'depthwise': conv2d(c=6, h=9, w=9, k=6, r=3, s=3, stride=2, pad=1, groups=6, **ENDS),
    'multiplied': conv2d(c=3, h=6, w=6, k=6, r=3, s=3, groups=3),
    'residual': residual(),
    'residual without relu': residual(relu=False),
}
PRODUCTS = {
    'fc': fully_connected(n=1, c=20, k=12, bias=True),
    'fc of many': fully_connected(n=5, c=20, k=12, **ENDS),
    'matmul': matmul(m=6, n=10, k=7),
    '1x1': conv2d(c=6, h=5, w=4, k=8, r=1, s=1),
    '1x1 of many': conv2d(n=3, c=6, h=5, w=4, k=8, r=1, s=1, **ENDS),
}


def halved(group: Group, dtype: str) -> Group:
    """The same as networks of half precision have it: biases and sums stay float32."""
    tensors = tuple(
        t if t.role == 'inner' or len(t.shape) == 1 else replace(t, dtype=dtype)
        for t in group.tensors
    )
    return replace(group, tensors=tensors)


PRODUCTS |= {
    'matmul in f16': halved(matmul(m=6, n=10, k=7), 'f16'),
    'fc in f16': halved(fully_connected(n=5, c=20, k=12, **ENDS), 'f16'),
    'fc in bf16': halved(fully_connected(n=5, c=20, k=12, bias=True), 'bf16'),
    'silu in f16': halved(fully_connected(n=5, c=20, k=12, bias=True, activation='silu'), 'f16'),
}
GROUPS = [('cudnn', n) for n in CONVOLUTIONS] + [('cublaslt', n) for n in PRODUCTS]


def group_of(library: str, name: str) -> Group:
    return (CONVOLUTIONS if library == 'cudnn' else PRODUCTS)[name]


def schedules(device: LibraryDevice, library: str, group: Group) -> list[GpuSchedule]:
    return table.proposals(device.library(library), library, group)


@pytest.mark.parametrize(('library', 'name'), GROUPS)
def test_every_proposal_computes_the_group(library, name):
    device, group = LibraryDevice(), group_of(library, name)
    arrays = verify.random_arrays(group, 3)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    inputs = {t.name: arrays[t.name] for t in group.with_role('input')}
    proposed = schedules(device, library, group)
    assert proposed
    for schedule in proposed:
        module = generate(group, schedule)
        result = Runner(module, device, constants)(**inputs).astype(np.float64)
        near = 2e-5 + half_error(group)
        np.testing.assert_allclose(
            result, reference(group, arrays), rtol=near, atol=near, err_msg=schedule_text(schedule)
        )


def test_biases_of_halves_are_rounded_ahead_and_other_ends_are_ours():
    device = LibraryDevice()
    for name, fused in (('fc in f16', 1), ('silu in f16', 0), ('matmul in f16', 0)):
        group = PRODUCTS[name]
        first = schedules(device, 'cublaslt', group)[0]
        module = generate(group, first)
        assert first['fused'] == fused
        assert len(module.ahead) == fused
        found = call_of(module.steps[0].kernel)
        assert (found.dtype, found.result) == ('f16', 'f32' if 'silu' in name else 'f16')
    assert 'float32' in why_not('cudnn', PRODUCTS['fc in f16'])


def test_descriptors_hold_the_numbers_of_the_convolution():
    found = calls_for('cudnn', CONVOLUTIONS['numbers'])[0].call
    assert (found.n, found.c, found.h, found.w, found.k, found.r, found.s) == (
        2,
        4,
        11,
        13,
        6,
        3,
        2,
    )
    assert (found.stride, found.pad, found.dilation, found.groups) == ((2, 1), (2, 1), (1, 3), 2)
    api = FakeCudnn()
    made = cudnn.Cudnn(api, 91900, 0).prepare(replace(found, algorithm=1, workspace=64))
    assert api.made[made.convolution] == {
        'pad': (2, 1), 'stride': (2, 1), 'dilation': (1, 3), 'groups': 2, 'math': 3
    }  # fmt: skip
    assert api.made[made.w]['shape'] == (6, 2, 3, 2)
    made.close()
    assert len(api.made.alive) == 1, 'the handle alone is left'


def test_what_the_library_does_behind_the_sums():
    ways = {name: calls_for('cudnn', group)[0] for name, group in CONVOLUTIONS.items()}
    ends = {n: (w.fused, w.call.bias, w.call.residual, w.call.relu) for n, w in ways.items()}
    assert ends['plain'] == (False, False, False, False)
    assert ends['fused'] == (True, True, False, True)
    assert ends['bias'] == (True, True, False, False)
    assert ends['relu'] == (True, False, False, True)
    assert ends['sigmoid'] == (False, False, False, False)
    assert ends['residual'] == (True, True, True, True)
    assert ends['residual without relu'] == (True, True, True, False)


def test_an_algorithm_that_must_end_with_an_activation_leaves_the_bias_to_us():
    found = schedules(LibraryDevice(), 'cudnn', CONVOLUTIONS['bias'])
    assert {s['algorithm']: s['fused'] for s in found} == {1: 1, 6: 0}
    kernels = generate(CONVOLUTIONS['bias'], found[1]).kernels
    assert [kernel.language for kernel in kernels] == ['cudnn', 'cucl']


@pytest.mark.parametrize(
    ('library', 'group', 'why'),
    [
        ('cudnn', conv2d(c=4, h=8, w=8, k=4, r=3, s=3, stride=2, pad=(0, 0, 1, 1)), 'padding'),
        ('cudnn', matmul(m=4, n=5, k=6), 'images'),
        ('cublaslt', conv2d(c=4, h=8, w=8, k=4, r=1, s=1, stride=2), 'side by side'),
        ('cublaslt', conv2d(c=4, h=8, w=8, k=4, r=3, s=3), 'behind each other'),
        ('cublaslt', conv2d(c=4, h=8, w=8, k=4, r=3, s=3, pad=1), 'first'),
    ],
)
def test_what_a_library_cannot_compute_is_one_sentence(library, group, why):
    sentence = why_not(library, group)
    assert why in sentence
    assert sentence.startswith(('cuDNN', 'cuBLASLt'))
    assert said_of(group)[library] == sentence
    with pytest.raises(ScheduleError, match=why):
        generate(group, GpuSchedule.of(library, version=1, algorithm=0, workspace=0, fused=0))


def test_a_part_of_a_larger_tensor_is_left_to_us():
    plain = conv2d(c=4, h=8, w=8, k=4, r=3, s=3, pad=1)
    wide = tuple(replace(t, shape=(1, 9, 8, 8)) if t.name == 'Out' else t for t in plain.tensors)
    assert 'part of a larger tensor' in why_not('cudnn', replace(plain, tensors=wide))


def test_libraries_have_schemas_that_no_search_draws():
    assert {'cudnn', 'cublaslt'}.isdisjoint(schema.name for schema in GPU_SCHEMAS.values())
    assert schema_named('cudnn').words.startswith('a call of cuDNN')
    schedule = GpuSchedule.of('cudnn', version=91900, algorithm=6, workspace=0, fused=0)
    assert is_library(GpuSchedule.from_json(schedule.to_json()))
    group, machine = CONVOLUTIONS['plain'], known_gpu('h200')
    direct = replace(schedule, tiles=(('version', 91900), ('algorithm', 1), ('workspace', 0)))
    # Transforms have fewer products: no bound by arithmetic holds for them.
    assert schedule_bounds(group, schedule, machine).compute_s == 0
    assert schedule_bounds(group, direct, machine).compute_s > 0
    # Products of halves run on matrix units, whatever a call is named after.
    call = GpuSchedule.of('cublaslt', version=1, algorithm=0, workspace=0, fused=0)
    plain, half = PRODUCTS['matmul'], PRODUCTS['matmul in f16']
    slow, fast = (schedule_bounds(g, call, machine).compute_s for g in (plain, half))
    assert slow / fast == pytest.approx(
        compute_gflops(machine, 'wgmma_half') / compute_gflops(machine, 'fma')
    )
    kernel = generate(group, schedule).kernels[0]
    assert call_of(kernel).algorithm == 6
    assert call_text(kernel).startswith('// cuDNN 9.19.0: algorithm 6')


def test_errors_of_libraries_are_sentences():
    call = calls_for('cudnn', CONVOLUTIONS['plain'])[0].call
    library = cudnn.Cudnn(FakeCudnn(), 91900, 0)
    with pytest.raises(ScheduleError, match=r'cuDNN 9\.19\.0 failed at asking for workspace'):
        library.prepare(replace(call, algorithm=2))
    with pytest.raises(ScheduleError, match='needs 64 bytes of workspace, but 8 were planned'):
        library.prepare(replace(call, algorithm=1, workspace=8))
    broken = cudnn.Cudnn(FakeCudnn(status=5000), 91900, 0)
    with pytest.raises(StoreError, match='a convolution by algorithm 6: CUDNN_STATUS_5000'):
        broken.prepare(replace(call, algorithm=6)).run({'x': 0, 'w': 0, 'out': 0})
    product = calls_for('cublaslt', PRODUCTS['matmul'])[0].call
    lt = cublaslt.CublasLt(FakeCublasLt(), 130100, 0)
    with pytest.raises(ScheduleError, match='names 3 algorithms, not 6'):
        lt.prepare(replace(product, algorithm=5))
    for status, error, word in (
        (15, ScheduleError, 'NOT_SUPPORTED'),
        (13, StoreError, 'EXECUTION'),
    ):
        lt = cublaslt.CublasLt(FakeCublasLt(status=status), 130100, 0)
        with pytest.raises(error, match=word):
            lt.prepare(replace(product, algorithm=1, workspace=99)).run({'a': 0, 'b': 0, 'out': 0})


def test_structures_have_the_sizes_of_the_headers():
    assert ctypes.sizeof(cudnn.Performance) == 48
    assert ctypes.sizeof(cublaslt.Algorithm) == 64
    assert ctypes.sizeof(cublaslt.Heuristic) == 96
    assert len(cudnn.SIGNATURES['cudnnConvolutionBiasActivationForward'][1]) == 18
    assert len(cudnn.SIGNATURES['cudnnConvolutionForward'][1]) == 13
    assert len(cublaslt.SIGNATURES['cublasLtMatmul'][1]) == 16


def test_a_library_is_found_in_wheels_before_the_system_and_asked_for_its_version(tmp_path):
    file = tmp_path / 'nvidia' / 'cudnn' / 'lib' / 'libcudnn.so.9'
    file.parent.mkdir(parents=True)
    file.write_text('')
    assert places(cudnn.WANTED, [str(tmp_path)]) == [str(file), 'libcudnn.so.9']

    def old(_):
        def version():
            return 80907

        return SimpleNamespace(cudnnGetVersion=version)

    with pytest.raises(MissingError, match=r'cuDNN 8\.9\.7 is too old, 9\.0\.0 is needed'):
        found(cudnn.WANTED, [], old)

    def nothing(_):
        raise OSError

    with pytest.raises(MissingError) as error:
        found(cudnn.WANTED, [], nothing)
    assert str(error.value) == (
        'cuDNN 9 is not found; pip install nvidia-cudnn-cu13, or leave --libraries none'
    )


def test_words_that_mean_nothing():
    with pytest.raises(InputError, match="libraries is 'some'; choose one of none, auto, only"):
        tw.compile('model.onnx', target='cuda', libraries='some')
    with pytest.raises(InputError, match='no library for the CPU yet'):
        tw.compile('model.onnx', libraries='auto')
    with pytest.raises(InputError, match="leave it out with target='opencl'"):
        tw.compile('model.onnx', target='opencl', libraries='only')
    with pytest.raises(InputError, match=r'libraries= means nothing with model\.tw'):
        tw.compile('model.tw', target='cuda', libraries='auto')


def test_a_library_is_captured_by_the_relaxed_kind_and_an_error_ends_the_capture():
    said = []

    class Driver:
        CUstreamCaptureMode = SimpleNamespace(
            CU_STREAM_CAPTURE_MODE_RELAXED='relaxed', CU_STREAM_CAPTURE_MODE_THREAD_LOCAL='local'
        )

        def __getattr__(self, name):
            return lambda *words: said.append((name, *words)) or (0, 5)

    def checked(answer, doing=''):
        return answer[1]

    with captured(Driver(), checked, 1, [Launch((), None, lambda: said.append('library'))], 2):
        pass
    names = [one if isinstance(one, str) else one[0] for one in said]
    assert said[0] == ('cuStreamBeginCapture', 1, 'relaxed')
    assert names[1:4] == ['library', 'library', 'cuStreamEndCapture']
    said.clear()

    def fails():
        raise ScheduleError('no')

    with pytest.raises(ScheduleError), captured(Driver(), checked, 1, [Launch((), None, fails)], 1):
        pass
    assert [one[0] for one in said] == [
        'cuStreamBeginCapture', 'cuStreamEndCapture', 'cuGraphDestroy'
    ]  # fmt: skip


class Timed:
    """A worker whose times are given: library -> what an attempt comes to; 'ours' for ours."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers, self.device = answers, LibraryDevice()
        self.tried: list[GpuSchedule] = []

    def __call__(self, *_words, **_more):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def ask(self, group, request, limit):
        try:
            proposed = schedules(self.device, request['library'], group)
        except ScheduleError as error:
            return {'status': 'failed', 'message': str(error)}
        return {'status': 'ok', 'schedules': [s.to_json() for s in proposed]}

    def attempt(self, group, schedule, built, repeats, worth):
        self.tried.append(schedule)
        name = schedule.schema if is_library(schedule) else 'ours'
        return self.answers[name], {}


def took(ms: float, error: float = 1e-6) -> Answer:
    return Answer('ok', '', error, (ms,))


@pytest.fixture
def selecting(monkeypatch, tmp_path):
    """What decides is given: a device, versions of libraries, an empty cache, and that a network
    with libraries is the faster one.
    """
    monkeypatch.setattr(compiling, '_seconds_of', lambda network: -library_calls(network))
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.setattr(choose, 'TRIALS', 8)
    monkeypatch.setattr(tuning, 'versions_of', lambda target: {'nvrtc': '13.0'})
    monkeypatch.setattr(selector, 'available', lambda: (dict(VERSIONS), []))
    device = LibraryDevice()
    monkeypatch.setattr(site, 'open_device', lambda target, name='': device)

    def use(**answers: Answer) -> Timed:
        worker = Timed(answers)
        monkeypatch.setattr(selector, 'GpuWorker', worker)
        return worker

    return SimpleNamespace(use=use, device=device, folder=tmp_path, patch=monkeypatch)


def small():
    net = Builder('small', 1, 10, 1)
    x = net.relu(net.conv('image', 8, 3, pad=1))
    x = net.relu(net.join(net.conv(x, 8, 3, pad=1), x))
    made = net.finish(net.linear(net.global_average(x), 10))
    return to_graph(made, weights(made, 0))


def library_calls(network) -> int:
    return sum(name in ('cudnn', 'cublaslt') for name in schemas_of(network))


def schemas_of(network) -> list[str]:
    return [task.schedule.schema for task in network.gpu_tasks]


@pytest.mark.parametrize(
    ('ours', 'mode', 'wins'), [(2.0, 'auto', True), (0.5, 'auto', False), (0.5, 'only', True)]
)
def test_the_faster_one_is_selected(selecting, ours, mode, wins):
    selecting.use(ours=took(ours), cudnn=took(1.0), cublaslt=took(1.0))
    network = tw.compile(small(), 'cuda', libraries=mode, check=False)
    used = schemas_of(network)
    assert (used.count('cudnn'), used.count('cublaslt')) == ((2, 1) if wins else (0, 0))
    image = np.random.default_rng(0).standard_normal(network.inputs[0].shape).astype(np.float32)
    right = evaluate(lower(small()), {'image': image})['scores']
    np.testing.assert_allclose(network(image), right, rtol=1e-4, atol=1e-5)
    chosen = [t for t in network.gpu_tasks if t.schedule.schema == 'cudnn']
    assert all(t.schedule['version'] == 91900 and t.predicted_s == 1e-3 for t in chosen)


def test_a_network_that_libraries_slow_down_does_without(selecting):
    """What wins alone may lose beside other kernels."""
    selecting.use(ours=took(2.0), cudnn=took(1.0), cublaslt=took(1.0))
    selecting.patch.setattr(compiling, '_seconds_of', library_calls)
    assert library_calls(tw.compile(small(), 'cuda', libraries='auto', check=False)) == 0
    assert library_calls(tw.compile(small(), 'cuda', libraries='only', check=False)) == 3


def test_generated_code_alone_unless_asked(selecting):
    worker = selecting.use()
    network = tw.compile(small(), 'cuda', check=False)
    assert not worker.tried
    assert {'cudnn', 'cublaslt'}.isdisjoint(schemas_of(network))


def test_a_call_that_crashes_is_recorded_and_ours_is_taken(selecting):
    selecting.use(ours=took(2.0), cudnn=Answer('crashed', 'cuDNN broke'), cublaslt=took(9.0))
    network = tw.compile(small(), 'cuda', libraries='auto', check=False)
    assert {'cudnn', 'cublaslt'}.isdisjoint(schemas_of(network))
    place = tuning.Place.of(selecting.device, 'cuda')
    groups = [t.group for t in network.gpu_tasks if not why_not('cudnn', t.group)]
    with open_store() as store:
        of = tuning.Memory.of(store, place).validators
        found = [r for g in groups for r in store.find(g.digest, tuning.NO_THREADS, of)]
    records = [r for r in found if r.schedule['schema'] == 'cudnn']
    assert records
    assert all(r.measurement.status == 'crashed' for r in records)
    assert records[0].measurement.message == 'cuDNN broke'


def test_an_answer_beyond_the_error_budget_does_not_win(selecting):
    selecting.use(ours=took(2.0), cudnn=took(1.0, error=1e-3), cublaslt=took(1.0))
    network = tw.compile(small(), 'cuda', libraries='auto', check=False, max_rel_err=1e-5)
    assert 'cudnn' not in schemas_of(network)
    assert 'cublaslt' in schemas_of(network)


def test_what_was_selected_is_not_timed_again_until_a_version_changes(selecting):
    answers = {'ours': took(2.0), 'cudnn': took(1.0), 'cublaslt': took(1.0)}
    first = selecting.use(**answers)
    tw.compile(small(), 'cuda', libraries='auto', check=False)
    assert first.tried
    again = selecting.use(**answers)
    network = tw.compile(small(), 'cuda', libraries='auto', check=False)
    assert not again.tried
    assert 'cudnn' in schemas_of(network)
    newer = VERSIONS | {'cudnn': 92000}
    selecting.patch.setattr(selector, 'available', lambda: (newer, []))
    tw.compile(small(), 'cuda', libraries='auto', check=False)
    assert again.tried


def test_missing_libraries_are_said_and_only_needs_one(selecting):
    selecting.use()
    selecting.patch.setattr(selector, 'available', lambda: ({}, ['cuDNN 9 is not found; ..']))
    with pytest.warns(UserWarning, match='cuDNN 9 is not found'):
        network = tw.compile(small(), 'cuda', libraries='auto', check=False)
    assert 'cudnn' not in schemas_of(network)
    with pytest.raises(MissingError, match='cuDNN 9 is not found'):
        tw.compile(small(), 'cuda', libraries='only', check=False)


def saved(selecting):
    selecting.use(ours=took(2.0), cudnn=took(1.0), cublaslt=took(1.0))
    path = selecting.folder / 'small.tw'
    network = tw.compile(small(), 'cuda', libraries='auto', check=False, save=path)
    return path, network


def test_a_file_holds_the_library_by_name_and_version(selecting, recwarn):
    path, network = saved(selecting)
    choices = network_file.read(path).choices.values()
    assert {('cudnn', 91900), ('cublaslt', 130100)} <= {
        (c.schedule.schema, dict(c.schedule.tiles).get('version')) for c in choices
    }
    again = tw.load(path)
    assert schemas_of(again) == schemas_of(network)
    image = np.ones(network.inputs[0].shape, np.float32)
    np.testing.assert_array_equal(again(image), network(image))
    assert not [w for w in recwarn if 'small.tw' in str(w.message)]


def test_a_file_whose_library_is_missing_runs_our_kernels(selecting):
    path, network = saved(selecting)
    selecting.device.missing = ('cudnn',)
    with pytest.warns(UserWarning, match=r'has cuDNN 9.19.0 compute 2 of its \d groups') as said:
        again = tw.load(path)
    assert len([w for w in said if 'small.tw' in str(w.message)]) == 1
    assert 'cudnn' not in schemas_of(again)
    assert 'cublaslt' in schemas_of(again)
    image = np.ones(network.inputs[0].shape, np.float32)
    np.testing.assert_allclose(again(image), network(image), rtol=1e-4, atol=1e-5)


def test_a_file_of_another_major_version_runs_our_kernels(selecting):
    path, _ = saved(selecting)
    selecting.device.versions = VERSIONS | {'cudnn': 100000}
    with pytest.warns(UserWarning, match=r'was chosen, but here is 10\.0\.0'):
        again = tw.load(path)
    assert 'cudnn' not in schemas_of(again)


def test_a_file_with_a_call_that_cannot_be_is_refused(selecting):
    path, _ = saved(selecting)
    held = network_file.read(path)
    digest = next(d for d, c in held.choices.items() if c.schedule.schema == 'cudnn')
    wrong = GpuSchedule.of('cublaslt', version=130100, algorithm=0, workspace=0, fused=0)
    choices = dict(held.choices) | {digest: replace(held.choices[digest], schedule=wrong)}
    network_file.write(path, replace(held, choices=choices))
    with pytest.raises(ModelError, match='is not legal'):
        tw.load(path)
