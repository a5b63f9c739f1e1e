"""Networks that run: calls, arrays that are wrong, threads, forks, memory."""

from __future__ import annotations

import gc
import os
import resource
import threading
from dataclasses import replace

import graphs
import numpy as np
import pytest

from tilewright.errors import ArrayError, ModelError
from tilewright.graph.batch_norm import fold_batch_norm
from tilewright.graph.concat import concat
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse
from tilewright.graph.graph import Value
from tilewright.graph.memory import plan
from tilewright.graph.program import Program, Task
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.runtime.cpu.network import Network


def right(program: Program, network: Network, seed: int = 1) -> None:
    inputs = graphs.inputs_of(program, seed)
    want, got = evaluate(program, inputs), network.run(inputs)
    assert want.keys() == got.keys()
    for name, array in want.items():
        assert got[name].shape == array.shape
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope='module')
def program() -> Program:
    return fuse(graphs.lowered(fold_batch_norm(graphs.convolutions())), lambda _: 0.0)


@pytest.fixture(scope='module')
def network(program) -> Network:
    return graphs.quick(program)


@pytest.fixture
def x() -> np.ndarray:
    return graphs.floats(1, 4, 6, 6, seed=1)


def test_three_convolutions_by_hand():
    """Without an importer: groups, values, a plan, kernels, one call."""
    group = conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1, bias=True, activation='relu')
    values = {'x': Value('x', (1, 4, 6, 6))}
    constants, tasks = {}, []
    for number in range(3):
        names = {
            'In': f'y{number - 1}' if number else 'x',
            'Ker': f'w{number}',
            'Bias': f'b{number}',
        }
        constants |= {
            names['Ker']: graphs.floats(4, 4, 3, 3, seed=number),
            names['Bias']: graphs.floats(4),
        }
        tasks.append(Task(f'conv{number}', group, names, f'y{number}'))
        values[f'y{number}'] = Value(f'y{number}', (1, 4, 6, 6))
    values |= {name: Value(name, array.shape) for name, array in constants.items()}
    program = Program('by hand', ('x',), (('y', 'y2'),), tuple(tasks), values, constants)
    network = graphs.quick(program)
    right(program, network)
    assert len(network.kernels) == 1
    assert network.arena_bytes == 2 * 4 * 144 + 0 * 64 + 2 * (-4 * 144 % 64)


@pytest.mark.parametrize('make', [graphs.convolutions, graphs.branches, graphs.dense_block])
@pytest.mark.parametrize('threads', [1, 2, 3])
def test_networks_are_right_with_and_without_passes(make, threads):
    plain = graphs.lowered(make())
    inputs = graphs.inputs_of(plain)
    want = evaluate(plain, inputs)
    for program in (plain, fuse(plain, lambda _: 0.0), concat(fuse(plain, lambda _: 0.0))):
        got = graphs.quick(program, threads).run(inputs)
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)


def test_batches_write_their_slices():
    plain = graphs.lowered(graphs.branches(batch=2))
    program = concat(fuse(plain, lambda _: 0.0))
    right(program, graphs.quick(program))


def test_calls(program, network, x):
    want = evaluate(program, {'x': x})['y']
    out = np.full_like(want, np.nan)
    for got in (network(x), network(x=x), network.run({'x': x})['y'], network(x, out=out)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert network(x, out=out) is out
    assert network.run({'x': x}, {'y': out})['y'] is out
    assert [v.name for v in network.inputs] == ['x']
    assert [v.shape for v in network.outputs] == [(1, 4, 6, 6)]
    assert 'x f32[1,4,6,6] -> y f32[1,4,6,6]' in repr(network)


def test_results_are_new_arrays(network, x):
    first = network(x)
    kept = first.copy()
    network(-x)
    np.testing.assert_array_equal(first, kept)


def test_a_result_may_overwrite_its_input(program, network, x):
    want = network(x)
    both = x.copy()
    network(both, out=both)
    np.testing.assert_array_equal(both, want)


@pytest.mark.parametrize(
    'change', ['strided', 'fortran', 'unaligned', 'read only', 'list of arrays']
)
def test_arrays_in_any_form(network, x, change):
    want = network(x)
    if change == 'strided':
        given = np.repeat(x, 2, axis=3)[..., ::2]
    elif change == 'fortran':
        given = np.asfortranarray(x)
    elif change == 'unaligned':
        raw = np.empty(x.nbytes + 1, np.uint8)
        given = raw[1:].view(np.float32).reshape(x.shape)
        given[...] = x
    elif change == 'read only':
        given = x.copy()
        given.flags.writeable = False
    else:
        given = list(x)
    np.testing.assert_array_equal(network(given), want)


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda net, x: net(), "input 'x' is missing"),
        (lambda net, x: net(x, x), 'takes 1 inputs'),
        (lambda net, x: net(x, x=x), 'given twice'),
        (lambda net, x: net(y=x), "no input 'y'"),
        (lambda net, x: net.run({'x': x, 'more': x}), "no input 'more'"),
        (lambda net, x: net(x[..., :3]), r'shape \(1, 4, 6, 3\)'),
        (lambda net, x: net(x.astype(np.float64)), 'is float64; give float32'),
        (lambda net, x: net(x.astype('>f4')), 'is >f4; give float32'),
        (lambda net, x: net(x.astype(int)), 'is int64; give float32'),
        (lambda net, x: net([[1, 2], [3]]), 'is not an array'),
        (lambda net, x: net(x, out=x[..., :3]), 'out of'),
        (lambda net, x: net(x, out=[x, x]), 'has 1 results'),
        (lambda net, x: net(x, out=5), 'out is a int; give an array, or a list of 1'),
        (lambda net, x: net.run([x]), 'run takes inputs by name, in a dictionary; got a list'),
        (lambda net, x: net.run({'x': x}, [x]), 'run takes out by name'),
        (lambda net, x: net(x, out=np.empty(x.shape)), 'float32 array of shape'),
        (lambda net, x: net.run({'x': x}, {'z': x}), "no result 'z'"),
        (lambda net, x: net.run({'x': x}, {'y': [1]}), 'not a numpy array'),
    ],
)
def test_wrong_arrays_are_one_sentence(network, x, call, message):
    with pytest.raises(ArrayError, match=message) as caught:
        call(network, x)
    assert '\n' not in str(caught.value)


def test_a_result_that_cannot_be_written_is_refused(network, x):
    out = np.empty_like(x)
    out.flags.writeable = False
    with pytest.raises(ArrayError, match='writeable'):
        network(x, out=out)


def test_results_that_are_inputs_constants_views_or_the_same():
    nodes = [
        graphs.node('Relu', 'x', 'a'),
        graphs.node('Flatten', 'a', 'f'),
        graphs.node('Identity', 'x', 'i'),
        graphs.node('Identity', 'a', 'again'),
        graphs.node('Identity', 'k', 'known'),
        graphs.node('Split', 'a', 'left right', axis=1, num_outputs=2),
    ]
    made = graphs.graph({'x': (1, 4, 2)}, 'a f i again known left right', nodes, k=graphs.floats(3))
    program = concat(graphs.lowered(made))
    network = graphs.quick(program)
    right(program, network)
    results = network(graphs.floats(1, 4, 2))
    assert isinstance(results, tuple)
    assert len(results) == 7
    for one in range(7):
        for other in range(one):
            assert not np.may_share_memory(results[one], results[other])


def test_several_inputs_by_position_and_name():
    nodes = [graphs.node('Sub', 'a b', 'y')]
    network = graphs.quick(graphs.lowered(graphs.graph({'a': (3,), 'b': (3,)}, 'y', nodes)))
    a, b = graphs.floats(3), graphs.floats(3, seed=1)
    for got in (network(a, b), network(b=b, a=a), network(a, b=b)):
        np.testing.assert_array_equal(got, a - b)


def test_overlapping_results_are_refused():
    nodes = [graphs.node('Neg', 'x', 'a'), graphs.node('Abs', 'x', 'b')]
    network = graphs.quick(graphs.lowered(graphs.graph({'x': (3,)}, 'a b', nodes)))
    out = np.empty(3, np.float32)
    with pytest.raises(ArrayError, match='overlap'):
        network(graphs.floats(3), out=[out, out])


@pytest.mark.parametrize('shift', [0, 1, -2])
def test_results_may_be_written_over_the_inputs(shift):
    """Of two results one is the input as it came, and the other one is written over it."""
    nodes = [graphs.node('ReduceSum', 'x', 'total', keepdims=1), graphs.node('Sub', 'total x', 'y'),
             graphs.node('Identity', 'x', 'same')]  # fmt: skip
    network = graphs.quick(graphs.lowered(graphs.graph({'x': (2, 3)}, 'y same', nodes)))
    buffer, given = np.zeros(12, np.float32), graphs.floats(2, 3)
    x = buffer[3:9].reshape(2, 3)
    out = x if not shift else buffer[3 + shift : 9 + shift].reshape(2, 3)
    for _ in range(2):
        x[...] = given
        y, same = network(x, out=[out, np.empty_like(given)])
        assert y is out
        np.testing.assert_allclose(y, given.sum() - given, rtol=1e-6)
        np.testing.assert_array_equal(same, given)


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_arrays_that_were_changed_in_place_are_looked_at_again():
    nodes = [graphs.node('Neg', 'x', 'y')]
    network = graphs.quick(graphs.lowered(graphs.graph({'x': (3, 3)}, 'y', nodes)))
    x, out = graphs.floats(3, 3), np.empty((3, 3), np.float32)
    np.testing.assert_array_equal(network(x, out=out), -x)
    x.strides = x.strides[::-1]
    np.testing.assert_array_equal(network(x, out=out), -x)
    x.__setstate__((1, x.shape, x.dtype, False, graphs.floats(3, 3, seed=1).tobytes()))
    np.testing.assert_array_equal(network(x, out=out), -x)
    out.strides = out.strides[::-1]
    with pytest.raises(ArrayError, match='C-contiguous'):
        network(x, out=out)


def test_a_network_without_tasks():
    network = graphs.quick(
        graphs.lowered(graphs.graph({'x': (3,)}, 'y', [graphs.node('Identity', 'x', 'y')]))
    )
    x = graphs.floats(3)
    np.testing.assert_array_equal(network(x), x)


def test_constants_that_change_are_refused():
    group = conv2d(c=2, h=3, w=3, k=2, r=1, s=1)
    values = {name: Value(name, shape) for name, shape in
              {'x': (1, 2, 3, 3), 'w': (2, 2, 1, 1), 'y': (1, 2, 3, 3)}.items()}  # fmt: skip
    task = Task('conv', group, {'In': 'x', 'Ker': 'w'}, 'y')
    program = Program('p', ('x', 'w'), (('y', 'y'),), (task,), values, {})
    with pytest.raises(ModelError, match="packs 'w' ahead of time"):
        graphs.quick(program)


def test_equal_weights_are_packed_once():
    group = elementwise('add', (4, 4), (4, 4), roles=['input', 'constant'])
    values = {name: Value(name, (4, 4)) for name in ('x', 'w', 'a', 'b')}
    tasks = tuple(
        Task(f't{i}', group, {'In0': source, 'In1': 'w'}, to)
        for i, (source, to) in enumerate([('x', 'a'), ('a', 'b')])
    )
    program = Program('p', ('x',), (('y', 'b'),), tasks, values, {'w': graphs.floats(4, 4)})
    network = graphs.quick(program)
    right(program, network)
    assert network.weight_bytes == 64


def test_originals_of_packed_weights_are_not_kept():
    import weakref

    program = fuse(graphs.lowered(fold_batch_norm(graphs.convolutions())), lambda _: 0.0)
    arrays = [weakref.ref(array) for array in program.constants.values()]
    network = graphs.quick(program)
    right(program, network)
    del program
    gc.collect()
    assert network.weight_bytes > 0
    assert not any(ref() is not None for ref in arrays)


def test_two_threads_on_one_network(program, network):
    inputs = [graphs.floats(1, 4, 6, 6, seed=s) for s in range(4)]
    wants = [evaluate(program, {'x': x})['y'] for x in inputs]
    errors = []

    def work(number: int) -> None:
        for turn in range(200):
            which = (number + turn) % 4
            if not np.allclose(network(inputs[which]), wants[which], rtol=1e-4, atol=1e-4):
                errors.append(which)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_four_networks_at_once(program):
    networks = [graphs.quick(program) for _ in range(4)]
    x = graphs.floats(1, 4, 6, 6, seed=1)
    want = evaluate(program, {'x': x})['y']
    errors = []

    def work(network: Network) -> None:
        for _ in range(100):
            if not np.allclose(network(x), want, rtol=1e-4, atol=1e-4):
                errors.append(1)

    threads = [threading.Thread(target=work, args=(n,)) for n in networks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork on this system')
@pytest.mark.filterwarnings('ignore:.*multi-threaded:DeprecationWarning')
def test_a_forked_child_computes_what_its_parent_does(network, x, agrees_in_children):
    """Also while another thread of the parent holds the network."""
    agrees_in_children(lambda: network(x))


def test_memory_does_not_grow(network, x):
    out = np.empty((1, 4, 6, 6), np.float32)
    for _ in range(100):
        network(x, out=out)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3000):
        network(x, out=out)
        network(x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024


def test_stamps_and_times(network, x):
    stamps = network.stamps({'x': x}, 3)
    assert stamps.shape == (3, len(network.tasks) + 1)
    assert (np.diff(stamps, axis=1) >= 0).all()
    assert all(seconds > 0 for seconds in network.time({'x': x}, 5))


def test_arenas_are_what_the_plan_says(program, network):
    assert network.arena_bytes == plan(program).arena_bytes


def test_a_network_that_needs_more_than_the_machine_has_is_refused(program, network):
    memory = replace(plan(program), arena_bytes=2**60)
    with pytest.raises(
        ModelError, match=r'needs 1073741824.0 GiB for its values, .*smaller inputs'
    ):
        Network(program, memory, network.kernels, 2)


def test_a_profile_takes_what_a_call_takes(network, x):
    with pytest.raises(ArrayError, match=r'takes 1 inputs .*, got 2'):
        network.profile(x, x)
