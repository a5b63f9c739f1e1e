"""Recurrent layers of ONNX and PyTorch: every attribute, state and length, on every target."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from random import Random

import graphs
import numpy as np
import onnx
import pytest
from devices import device
from marks import needs_make
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import ModelError, ScheduleError, UnsupportedError
from tilewright.graph.lower import lower
from tilewright.importers.aten_recurrent import ORDER
from tilewright.importers.torch import import_torch
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.recurrence.space import recurrence_choices
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.ops.functions import X
from tilewright.ops.group import Group
from tilewright.ops.recurrence import Recurrent, recurrence
from tilewright.ops.reference import reference
from tilewright.ops.stage import call
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.verify import compare, random_arrays
from tilewright.targets.gpu import choose

torch = pytest.importorskip('torch', reason='install the extra tilewright[torch]')
GATES = {'LSTM': 4, 'GRU': 3, 'RNN': 1}
SIGMOID, TANH = call('sigmoid', X), call('tanh', X)


def lstm(**changes) -> Group:
    given = {'kind': 'lstm', 'steps': 3, 'batch': 2, 'hidden': 20, 'backwards': (False,)} | changes
    functions = ((SIGMOID, TANH, TANH),) * len(given['backwards'])
    return recurrence(Recurrent(**given, functions=functions))


def model(
    kind: str, *, steps: int = 4, batch: int = 3, features: int = 5, hidden: int = 20,
    direction: str = 'forward', constant: bool = True, bias: bool = True, states: bool = False,
    lengths: Sequence[int] | None = None, peepholes: bool = False, **attributes,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:  # fmt: skip
    """A network of one layer, and inputs for it."""
    directions = 2 if direction == 'bidirectional' else 1
    rows, state = GATES[kind] * hidden, (directions, batch, hidden)
    x = (steps, batch, features)
    if attributes.get('layout'):
        x, state = (batch, steps, features), (batch, directions, hidden)
    rng = np.random.default_rng(7)

    def floats(*shape: int) -> np.ndarray:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    inputs = {'X': floats(*x)}
    weights = {'W': floats(directions, rows, features), 'R': floats(directions, rows, hidden)}
    if bias:
        weights['B'] = floats(directions, 2 * rows)
    if peepholes:
        weights['P'] = floats(directions, 3 * hidden)
    if lengths is not None:
        inputs['sequence_lens'] = np.asarray(lengths, np.int32)
    if states:
        inputs['initial_h'] = floats(*state)
        if kind == 'LSTM':
            inputs['initial_c'] = floats(*state)
    if not constant:
        inputs, weights = inputs | weights, {}
    order = ['X', 'W', 'R', 'B', 'sequence_lens', 'initial_h', 'initial_c', 'P']
    names = [name if name in inputs or name in weights else '' for name in order]
    while not names[-1]:
        names.pop()
    results = ['Y', 'Y_h', 'Y_c'][: 3 if kind == 'LSTM' else 2]
    node = helper.make_node(
        kind, names, results, name='layer', hidden_size=hidden, direction=direction, **attributes
    )
    kinds = {np.dtype(np.int32): TensorProto.INT32, np.dtype(np.float32): TensorProto.FLOAT}
    graph = helper.make_graph(
        [node], 'one',
        [helper.make_tensor_value_info(n, kinds[a.dtype], a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 14)], ir_version=8)
    return made, inputs


def onnxruntime(made: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ort = pytest.importorskip('onnxruntime', reason='install the extra tilewright[onnxruntime]')
    session = ort.InferenceSession(made.SerializeToString(), providers=['CPUExecutionProvider'])
    names = [info.name for info in made.graph.output]
    return dict(zip(names, session.run(names, inputs), strict=True))


def agree(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert set(got) == set(want)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=2e-6, err_msg=name)


MIXED = {
    'LSTM': (['HardSigmoid', 'Softsign', 'Elu', 'Sigmoid', 'Tanh', 'Relu'], [0.3, 0.7], [0.4]),
    'GRU': (['HardSigmoid', 'Softplus', 'Sigmoid', 'LeakyRelu'], [0.3, 0.1], [0.4]),
    'RNN': (['Affine', 'ScaledTanh'], [0.9, 1.3], [0.1, 0.8]),
}
FORMS = {
    'plain': {},
    'backwards, states': {'direction': 'reverse', 'states': True},
    'both, lengths, states': {
        'direction': 'bidirectional', 'lengths': [4, 2, 1], 'states': True},
    'weights at the call': {'constant': False, 'direction': 'bidirectional'},
    'one sequence, odd units': {'batch': 1, 'hidden': 37, 'bias': False},
    'many sequences': {'batch': 9, 'steps': 2},
    'clip': {'clip': 0.3},
}  # fmt: skip
CASES = [
    *((kind, form) for kind in GATES for form in FORMS.values()),
    *(
        (kind, {'direction': 'bidirectional', 'activations': names, 'activation_alpha': alphas,
                'activation_beta': betas})
        for kind, (names, alphas, betas) in MIXED.items()
    ),
    ('GRU', {'linear_before_reset': 1, 'direction': 'bidirectional'}),
    ('GRU', {'linear_before_reset': 1, 'bias': False}),
    ('LSTM', {'peepholes': True, 'direction': 'bidirectional'}),
    ('LSTM', {'peepholes': True, 'lengths': [3, 0, 4], 'clip': 0.5}),
    ('LSTM', {'input_forget': 1, 'peepholes': True}),
]  # fmt: skip


@pytest.mark.parametrize(('kind', 'form'), CASES, ids=lambda v: str(v).replace(' ', ''))
def test_onnx_layers_are_what_onnx_runtime_computes(kind: str, form: dict) -> None:
    """Attributes, states, masks and directions of the standard."""
    made, inputs = model(kind, **form)
    agree(tw.compile(made, threads=1).run(inputs), onnxruntime(made, inputs))


@pytest.mark.parametrize('kind', list(GATES))
def test_batch_first(kind: str) -> None:
    """Layout 1 is the same layer on turned tensors; ONNX Runtime does not have it."""
    made, inputs = model(kind, layout=1, states=True, direction='bidirectional')
    plain, turned = model(kind, states=True, direction='bidirectional')
    turned = {
        name: np.ascontiguousarray(inputs[name].transpose(1, 0, 2)) if name in inputs else array
        for name, array in turned.items()
    }
    want = tw.compile(plain, threads=1).run(turned)
    got = tw.compile(made, threads=1).run(inputs)
    np.testing.assert_array_equal(got['Y'], want['Y'].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(got['Y_h'], want['Y_h'].transpose(1, 0, 2))


def test_doubles_are_computed_as_doubles() -> None:
    """A layer of f64 keeps its digits."""
    layer = torch.nn.LSTM(3, 7).double().eval()
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    got = tw.compile(layer, example_inputs=[x], threads=1)(x.numpy())[0]
    np.testing.assert_allclose(got, layer(x)[0].detach().numpy(), rtol=1e-12, atol=1e-13)


# PyTorch


def torch_case(random: Random) -> tuple[str, dict, tuple[int, int, int], bool]:
    kind = random.choice(list(GATES))
    hidden = random.choice([1, 2, 5, 16, 17, 31, 33, 48])
    form = {
        'hidden_size': hidden, 'num_layers': random.choice([1, 1, 2, 3]),
        'bias': random.random() < 0.8, 'batch_first': random.random() < 0.5,
        'bidirectional': random.random() < 0.5,
    }  # fmt: skip
    if kind == 'RNN':
        form['nonlinearity'] = random.choice(['tanh', 'relu'])
    if kind == 'LSTM' and hidden > 1 and random.random() < 0.3:
        form['proj_size'] = random.randint(1, hidden - 1)
    sizes = random.randint(1, 9), random.randint(1, 7), random.randint(1, 24)
    return kind, form, sizes, random.random() < 0.5


def check_torch(kind, form, sizes, states: bool, target: str = 'cpu', **options) -> None:
    """A random layer against PyTorch in float64, all of its results."""
    steps, batch, features = sizes
    torch.manual_seed(steps * batch * features)
    layer = getattr(torch.nn, kind)(features, **form).eval()
    x = torch.randn(*((batch, steps) if form['batch_first'] else (steps, batch)), features)
    inputs = [x]
    if states:
        count = form['num_layers'] * (2 if form['bidirectional'] else 1)
        state = torch.randn(count, batch, form.get('proj_size') or form['hidden_size'])
        cell = torch.randn(count, batch, form['hidden_size'])
        inputs.append((state, cell) if kind == 'LSTM' else state)
    net = tw.compile(layer, example_inputs=inputs, target=target, check=False, **options)
    flat, spec = torch.utils._pytree.tree_flatten(inputs)
    got = net(*(a.numpy() for a in flat))
    wide = torch.utils._pytree.tree_unflatten([a.double() for a in flat], spec)
    want, _ = torch.utils._pytree.tree_flatten(layer.double()(*wide))
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('seed', range(6))
def test_random_layers_of_pytorch(seed: int) -> None:
    """Sizes, layers, directions, projections and states, in float64 by PyTorch."""
    check_torch(*torch_case(Random(seed)), threads=1 + seed % 2)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(6, 300))
def test_more_random_layers_of_pytorch(seed: int) -> None:
    check_torch(*torch_case(Random(seed)), threads=1 + seed % 2)


@pytest.mark.parametrize('kind', list(GATES))
def test_pytorch_layers_are_not_unrolled(kind: str) -> None:
    """The graph has one node for a layer, however long the sequence is."""
    layer = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=True).eval()
    for steps in (2, 20):
        graph = import_torch(layer, example_inputs=[torch.zeros(steps, 1, 3)])
        assert [n.op for n in graph.nodes].count(kind) == 2
        assert len(graph.nodes) < 60


def check_lengths(random: Random) -> None:
    """A layer on sequences of random lengths, against PyTorch's packed sequences in float64."""
    kind, both = random.choice(list(GATES)), random.random() < 0.5
    steps, batch, features = random.randint(1, 9), random.randint(1, 7), random.randint(1, 12)
    lengths = [random.randint(1, steps) for _ in range(batch)]
    direction = 'bidirectional' if both else 'forward'
    form = {'states': random.random() < 0.5, 'hidden': random.choice([1, 5, 16, 17, 33])}
    made, inputs = model(
        kind, steps=steps, batch=batch, features=features, direction=direction, lengths=lengths,
        **form, **({'linear_before_reset': 1} if kind == 'GRU' else {}),
    )  # fmt: skip
    got = tw.compile(made, threads=1 + (batch > 3), check=False).run(inputs)
    hidden = form['hidden']
    layer = getattr(torch.nn, kind)(features, hidden, bidirectional=both).double()
    given = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in made.graph.initializer}
    wide = {
        n: torch.from_numpy(a.astype(np.float64)) for n, a in inputs.items() if n != 'sequence_lens'
    }
    back = np.argsort(ORDER[kind])  # PyTorch's gates among ONNX's
    with torch.no_grad():
        for d, suffix in enumerate(('', '_reverse')[: 1 + both]):
            biases = np.split(given['B'][d], 2)
            parts = {'weight_ih': given['W'][d], 'weight_hh': given['R'][d]}
            parts |= {'bias_ih': biases[0], 'bias_hh': biases[1]}
            for name, array in parts.items():
                rows = np.concatenate([np.split(array, GATES[kind])[gate] for gate in back])
                getattr(layer, f'{name}_l0{suffix}').copy_(torch.from_numpy(rows))
        packed = torch.nn.utils.rnn.pack_padded_sequence(wide['X'], lengths, enforce_sorted=False)
        states = [wide[n] for n in ('initial_h', 'initial_c') if n in wide]
        y, last = layer(
            packed, *([tuple(states) if kind == 'LSTM' else states[0]] if states else [])
        )
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=steps)
    whole = got['Y'].transpose(0, 2, 1, 3).reshape(steps, batch, -1)
    np.testing.assert_allclose(whole, y.numpy(), rtol=1e-4, atol=1e-5)
    ends = last if isinstance(last, tuple) else (last,)
    for name, end in zip(('Y_h', 'Y_c'), ends, strict=False):
        np.testing.assert_allclose(got[name], end.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    'seed', [pytest.param(n, marks=[pytest.mark.slow] * (n > 1)) for n in range(100)]
)
def test_lengths_are_those_of_packed_sequences(seed: int) -> None:
    """Masks of a batch, backwards too, with states and without."""
    check_lengths(Random(seed))


# Threads


@pytest.mark.parametrize('backwards', [(False,), (False, True)])
def test_threads_compute_what_one_does(backwards: tuple[bool, ...]) -> None:
    """Threads that share the units stay in step: the same bits, call after call, whether two
    directions take their steps together or one behind the other.
    """
    group = lstm(backwards=backwards)
    arrays = random_arrays(group, 0)
    chosen = list(recurrence_choices(group, host_isas()[0], 2, 1))
    assert [schedule.threads for schedule in chosen] == [1, 2] * len(backwards)
    results = []
    for schedule in chosen:
        library = build(generate(group, schedule), flags=compiler_flags(schedule))
        kernel = Kernel.load(library, group)
        for _ in range(50):
            results.append(np.empty(group.output.shape, np.float32))
            kernel.run(arrays, kernel.pack({}), results[-1])
    assert compare(group, results[0], reference(group, arrays)).ok
    assert all(np.array_equal(results[0], one) for one in results)


def test_calls_side_by_side_do_not_wait_for_each_other() -> None:
    """Networks share a kernel: one finds the pool busy, and runs its parts one after the other."""
    made, inputs = model('GRU', steps=40, batch=1, hidden=64)
    nets = [tw.compile(made, threads=2) for _ in range(3)]
    want = nets[0].run(inputs)
    results: list[dict] = []

    def call(net) -> None:
        results.extend(net.run(inputs) for _ in range(30))

    threads = [threading.Thread(target=call, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert len(results) == 90
    assert all(np.array_equal(one['Y'], want['Y']) for one in results)


# GPUs


@pytest.mark.parametrize('target', ['host', 'opencl'])
@pytest.mark.parametrize('kind', list(GATES))
def test_networks_on_gpus(kind: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the same result: the step that memory counts begins at zero again."""
    device(target)
    monkeypatch.setattr(choose, 'has_products', lambda group: False)
    made, inputs = model(kind, direction='bidirectional', states=True, batch=5, hidden=9)
    net = tw.compile(made, target=target)
    want = tw.compile(made, threads=1).run(inputs)
    for _ in range(2):
        agree(net.run(inputs), want)


# Files, words, refusals


def test_saved_and_explained(tmp_path) -> None:
    """A file holds a recurrent network like any other, and its words say how steps run."""
    made, inputs = model('LSTM', direction='bidirectional', states=True)
    net = tw.compile(made, threads=1, save=tmp_path / 'net.tw')
    agree(tw.load(tmp_path / 'net.tw').run(inputs), net.run(inputs))
    assert 'recurrence' in net.explain()
    assert 'lstm-bidirectional-4x3x20' in net.explain()


@needs_make
def test_exported_as_c(tmp_path) -> None:
    """Threads of an exported network keep in step without Python; it checks itself."""
    made, _ = model('LSTM', direction='bidirectional', states=True)
    exported = tw.export(made, tmp_path / 'layer', name='layer', threads=2)
    done = subprocess.run(
        ['make', 'CFLAGS=-O1', 'check'], cwd=exported.folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(': right, ') == 3


def test_a_group_by_itself_is_optimised_and_explained() -> None:
    group = lstm()
    assert Group.from_json(group.to_json()) == group
    plan = tw.optimize(group, threads=1, measure=False)
    assert 'for each of 3 steps' in plan.explain()


@pytest.mark.parametrize('isa', ['avx512', 'avx2', 'neon', 'portable'])
def test_code_for_every_instruction_set(isa: str) -> None:
    """Vectors of each width; the same text twice."""
    for schedule in recurrence_choices(lstm(), isa, 2, 1):
        source = generate(lstm(), schedule)
        assert source == generate(lstm(), schedule)
        assert 'product' not in schedule.to_json()['vector']
        assert 'phase_0' in source


def test_other_schedules_are_refused() -> None:
    group = lstm()
    schedule = next(iter(recurrence_choices(group, 'portable', 1, 1)))
    other = tw.matmul(m=4, n=4, k=4)
    with pytest.raises(ScheduleError, match='follow each other'):
        generate(other, schedule)


@pytest.mark.parametrize(
    ('name', 'shape', 'said'),
    [
        ('initial_h', (1, 3, 19), r'initial_h is f32\[1, 3, 19\]; it must be f32\[1, 3, 20\]'),
        ('initial_c', (2, 3, 20), r'initial_c is f32\[2, 3, 20\]; it must be f32\[1, 3, 20\]'),
        ('R', (1, 80, 19), r'R is f32\[1, 80, 19\]; it must be f32\[1, 80, 20\]'),
        ('W', (1, 80, 4), r'W is f32\[1, 80, 4\]; it must be f32\[1, 80, 5\]'),
        ('B', (1, 80), r'B is f32\[1, 80\]; it must be f32\[1, 160\]'),
        ('P', (1, 20), r'P is f32\[1, 20\]; it must be f32\[1, 60\]'),
    ],
)
def test_operands_that_do_not_fit(name: str, shape: tuple[int, ...], said: str) -> None:
    """One sentence with what it is and what it must be."""
    shapes = {
        'x': (4, 3, 5), 'W': (1, 80, 5), 'R': (1, 80, 20), 'B': (1, 160), 'initial_h': (1, 3, 20),
        'initial_c': (1, 3, 20), 'P': (1, 60),
    } | {name: shape}  # fmt: skip
    node = graphs.node('LSTM', 'x W R B _ initial_h initial_c P', 'y', hidden_size=20)
    node = type(node)(
        node.op, node.name, tuple('' if n == '_' else n for n in node.inputs), node.outputs,
        node.attributes,
    )  # fmt: skip
    constants = {n: np.ones(s, np.float32) for n, s in shapes.items() if n != 'x'}
    with pytest.raises(ModelError, match=said):
        lower(graphs.graph({'x': shapes['x']}, 'y', [node], **constants))


def test_lengths_that_do_not_fit() -> None:
    constants = {
        'W': np.ones((1, 20, 5), np.float32), 'R': np.ones((1, 20, 20), np.float32),
        'B': np.ones((1, 40), np.float32), 'l': np.array([4, 5, 1], np.int32),
    }  # fmt: skip
    node = graphs.node('RNN', 'x W R B l', 'y', hidden_size=20)
    with pytest.raises(ModelError, match='sequence_lens are 1 to 5; they must be 0 to 4'):
        lower(graphs.graph({'x': (4, 3, 5)}, 'y', [node], **constants))


def test_all_that_is_unsupported_is_listed() -> None:
    """Activations that nobody has, and other operators, in one error with their names."""
    constants = {'W': np.ones((1, 20, 5), np.float32), 'R': np.ones((1, 20, 20), np.float32)}
    nodes = [
        graphs.node('RNN', 'x W R', 'y', hidden_size=20, activations=('Gelu',)),
        graphs.node('Scan', 'x', 'z'),
    ]
    with pytest.raises(UnsupportedError, match=r"RNN with activation 'Gelu'.*Scan") as caught:
        lower(graphs.graph({'x': (4, 3, 5)}, 'y z', nodes, **constants))
    assert set(caught.value.nodes) == {'RNN_y', 'Scan_z'}
