"""Whole networks through the GPU path: on the host dialect everywhere, on OpenCL where it is."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from devices import device

import tilewright as tw
from tilewright.errors import ArrayError, InputError, ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.levels import levels_of
from tilewright.graph.lower import lower
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.schemas.winograd.plan import why_not
from tilewright.ops.convolution import conv2d
from tilewright.runtime import pool as labour
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.session import open_device
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu import moves as gpu_moves
from tilewright.search.gpu.moves import moves
from tilewright.store import network_file
from tilewright.targets.gpu import choose, site
from tilewright.targets.gpu.order import Touched, waits
from tilewright.targets.gpu.place import duties, is_aligned, place
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.layers import Builder, Network
from tilewright.zoo.weights import weights


@pytest.fixture(params=['host', 'opencl'])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    device(request.param)
    if request.param == 'opencl':
        # Its compiler takes seconds for a tuned kernel; those are tried on it one by one elsewhere.
        monkeypatch.setattr(choose, 'has_products', lambda group: False)
    return request.param


@cache
def small() -> Network:
    """Every kind of layer of residual and branching networks, and a branch of odd size."""
    net = Builder('small', 1, 10, 1)
    x = net.relu(net.batch_norm(net.conv('image', 8, 3, pad=1, bias=False)))
    y = net.relu(net.join(net.conv(x, 8, 3, pad=1), x))
    d = net.relu6(net.batch_norm(net.depthwise(y, 3, 2, 1)))
    branches = [net.conv(d, 3, 1), net.conv(d, 5, 3, pad=1), net.average_pool(d, 3, 1, 1)]
    pooled = net.max_pool(net.concat(branches), 3, 2)
    return net.finish(net.softmax(net.linear(net.global_average(pooled), 10)))


@cache
def graph() -> Graph:
    return to_graph(small(), weights(small(), 0))


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(small().shape).astype(np.float32)


def right(x: np.ndarray) -> np.ndarray:
    return evaluate(lower(graph()), {'image': x})['scores']


@cache
def compiled(target: str, **options) -> GpuNetwork:
    net = tw.compile(graph(), target=target, **options)
    assert isinstance(net, GpuNetwork)
    return net


def test_a_network_by_position_by_name_and_in_place(target: str) -> None:
    net = compiled(target)
    for seed in (0, 1):
        x = image(seed)
        want = right(x)
        got = net(x)
        assert isinstance(got, np.ndarray)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert np.array_equal(net(image=x), got)
        out = np.empty_like(got)
        assert net.run({'image': x}, {'scores': out})['scores'] is out
        assert np.array_equal(out, got)


def test_passes_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x = image()
    fused = compiled('host')
    monkeypatch.setattr(choose, 'has_products', lambda group: False)  # other kernels as well
    plain = compiled('host', passes=())
    assert len(fused.calls) < len(plain.calls)
    assert np.abs(plain(x) - fused(x)).max() <= 1e-5


def test_data_that_stays_on_the_device() -> None:
    net = compiled('host')
    x = image(3)
    net.device.write(net.buffers['image'], x)
    net.launch()
    got = net.device.download(net.buffers['scores'])
    assert np.array_equal(got, net(x))


def test_kernels_run_in_any_order_that_waits_allow() -> None:
    """Latest first instead of earliest first: whatever is not said to wait may change places."""
    net = compiled('host')
    x = image(4)
    want = net(x)
    assert net.waits is not None
    left = set(range(len(net.calls)))
    net.device.write(net.buffers['image'], x)
    while left:
        free = [n for n in left if not left & set(net.waits[n])]
        chosen = max(free)
        net.device.launch(net.calls[chosen])
        left.remove(chosen)
    assert np.array_equal(net.device.download(net.buffers['scores']), want)


def test_threads_take_turns() -> None:
    net = compiled('host')
    images = [image(seed) for seed in range(4)]
    wanted = [net(x) for x in images]
    got: dict[int, object] = {}

    def work(number: int) -> None:
        got[number] = net(images[number])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(np.asarray(got[n]), np.asarray(wanted[n])) for n in range(4))


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    net = compiled('host')
    with pytest.raises(ArrayError, match='has shape'):
        net(np.zeros((1, 3, 9, 9), np.float32))
    with pytest.raises(ArrayError, match='float64'):
        net(image().astype(np.float64))
    with pytest.raises(ArrayError, match='is missing'):
        net()
    with pytest.raises(InputError, match='threads= means nothing'):
        tw.compile(graph(), target='host', threads=2)
    with pytest.raises(InputError, match='machine= means nothing'):
        tw.compile(graph(), target='host', machine=object())  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="target 'gpu' is not known"):
        tw.compile(graph(), target='gpu')


def test_a_file_is_loaded_without_a_search(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / 'small.tw'
    made = tw.compile(graph(), target='host', save=path)
    wanted = made(image())

    def never(*_: object, **__: object) -> None:
        raise AssertionError('a search was begun')

    monkeypatch.setattr(site, 'chosen_by_model', never)
    for loaded in (tw.load(path), tw.compile(path), tw.compile(path, target='host')):
        assert isinstance(loaded, GpuNetwork)
        assert np.array_equal(loaded(image()), wanted)
        assert isinstance(made, GpuNetwork)
        schedules = [task.schedule for task in loaded.gpu_tasks]
        assert schedules == [task.schedule for task in made.gpu_tasks]


def test_a_file_of_another_gpu_is_scheduled_again(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / 'small.tw'
    tw.compile(graph(), target='host', save=path)
    held = network_file.read(path)
    network_file.write(path, replace(held, machine=replace(held.machine, name='another')))
    with pytest.warns(UserWarning, match='was compiled for another; schedules are chosen again'):
        loaded = tw.load(path)
    np.testing.assert_allclose(loaded(image()), right(image()), rtol=1e-4, atol=1e-5)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / 'small.tw', tmp_path / 'other.tw'
    tw.compile(graph(), target='host', save=path)
    held = network_file.read(path)
    with pytest.raises(InputError, match="compiled for target 'host', not for 'cuda'"):
        tw.compile(path, target='cuda')
    with pytest.raises(InputError, match='threads= means nothing'):
        tw.load(path, threads=2)
    digest, choice = next(iter(held.choices.items()))
    wrong = replace(choice, schedule=GpuSchedule.of('general', threads=5000))
    network_file.write(other, replace(held, choices={**held.choices, digest: wrong}))
    with pytest.raises(ModelError, match='cannot be used'):
        tw.load(other)
    odd = replace(choice, schedule=GpuSchedule.of('nobody'))
    network_file.write(other, replace(held, choices={**held.choices, digest: odd}))
    with pytest.raises(ModelError, match='cannot be used'):
        tw.load(other)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with pytest.raises(ModelError, match='is damaged'):
        tw.load(other)


def test_a_file_of_the_cpu_is_none_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / 'cpu.tw'
    net = Builder('one', 1, 8, 1)
    made = net.finish(net.relu('image'))
    tw.compile(to_graph(made, {}), save=path)
    with pytest.raises(InputError, match="was compiled for target 'cpu', not for 'host'"):
        tw.compile(path, target='host')


def test_a_profile_names_every_task() -> None:
    net = compiled('host')
    found = net.profile(calls=1)
    assert [task.name for task in found.tasks] == [task.name for task in net.gpu_tasks]
    assert {'softmax1', 'linear1'} <= {task.name for task in found.tasks}
    assert 'rows' in {task.schema for task in found.tasks}
    assert str(found)
    assert net.explain(calls=1)


def test_the_fastest_of_those_that_were_measured(tmp_path: Path, monkeypatch) -> None:
    """Tuned by measuring, with what is found taken from the store the second time."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    net = Builder('one', 1, 8, 1)
    made = net.finish(net.relu(net.conv('image', 4, 3, pad=1)))
    model = to_graph(made, weights(made, 0))
    x = np.random.default_rng(0).standard_normal(made.shape).astype(np.float32)
    want = evaluate(lower(model), {'image': x})['scores']
    first = tw.compile(model, target='host', tune='measure', trials=2)
    assert np.abs(first(x) - want).max() <= 1e-5 * np.abs(want).max()

    def never(*_: object) -> None:
        raise AssertionError('it was measured before')

    monkeypatch.setattr('tilewright.targets.gpu.tuning.GpuWorker', never)
    second = tw.compile(model, target='host', tune='measure', trials=2)
    assert isinstance(first, GpuNetwork)
    assert isinstance(second, GpuNetwork)
    assert [t.schedule for t in first.gpu_tasks] == [t.schedule for t in second.gpu_tasks]


def test_values_of_any_dtype_and_outputs_that_nobody_computes() -> None:
    """Whole numbers, comparisons, an output that is an input, and one that is a constant."""
    known = np.arange(6, dtype=np.int64).reshape(2, 3)
    nodes = (
        Node('Cast', 'cast', ('x',), ('whole',), {'to': 7}),
        Node('Add', 'add', ('whole', 'known'), ('sum',)),
        Node('Greater', 'greater', ('x', 'half'), ('above',)),
        Node('Where', 'where', ('above', 'sum', 'known'), ('picked',)),
        Node('ArgMax', 'arg', ('x',), ('best',), {'axis': 1, 'keepdims': 0}),
    )
    model = Graph(
        'types', (Value('x', (2, 3)),),
        (('picked', 'picked'), ('best', 'best'), ('same', 'x'), ('fixed', 'known')), nodes,
        {'known': known, 'half': np.array(0.5, np.float32)},
    )  # fmt: skip
    net = tw.compile(model, target='host')
    x = np.array([[0.2, 3.7, -1.5], [9.1, 0.6, 0.4]], np.float32)
    picked, best, same, fixed = net(x)
    assert picked.tolist() == np.where(x > 0.5, x.astype(np.int64) + known, known).tolist()
    assert best.tolist() == [1, 0]
    assert np.array_equal(same, x)
    assert fixed.tolist() == known.tolist()


def test_kernels_wait_for_memory_and_for_nothing_twice() -> None:
    """0 writes a; 1 and 2 read a; 3 joins them; 4 writes over a."""
    a, b, c, d = ((n, n + 8) for n in range(0, 32, 8))
    kernels = [
        Touched((), (a,)), Touched((a,), (b,)), Touched((a,), (c,)), Touched((b, c), (d,)),
        Touched((d,), (a,)),
    ]  # fmt: skip
    assert waits(kernels) == ((), (0,), (0,), (1, 2), (3,))
    assert waits([Touched((), ((0, 9),)), Touched((), ((8, 9),))]) == ((), (0,))


def test_values_that_live_together_do_not_share_memory() -> None:
    program = lower(graph())
    modules = [generate(t.group, choose.search(t.group, open_device('host').machine, 1, 1e-4,
               products=False)[0].schedule) for t in program.tasks]  # fmt: skip
    placed = place(program, modules)
    levels = levels_of(program)
    lives: dict[str, tuple[int, int]] = {}
    for level, task in zip(levels, program.tasks, strict=True):
        for value in (task.result, *task.operands.values()):
            root, _ = program.place(value)
            if root in placed.values:
                low, high = lives.get(root, (level, level))
                lives[root] = min(low, level), max(high, level)
    sizes = {root: 4 * int(np.prod(program.values[root].shape)) for root in lives}
    for one in lives:
        for other in lives:
            together = lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]
            if one < other and together:
                a, b = placed.values[one], placed.values[other]
                assert a + sizes[one] <= b or b + sizes[other] <= a
    assert max(placed.values[r] + sizes[r] for r in lives) <= placed.arena_bytes
    joined = next(t for t in program.tasks if t.name == 'add1')
    assert levels[program.tasks.index(joined)] == 1 + max(
        levels[n] for n, t in enumerate(program.tasks) if t.result in joined.operands.values()
    )


def test_a_shortcut_runs_beside_the_longer_branch() -> None:
    """Conv 1x1 beside two of 3x3: the sum belongs to the last 3x3, and nobody waits for the 1x1."""
    net = Builder('block', 1, 8, 1)
    x = net.relu(net.conv('image', 4, 3, pad=1))
    long = net.conv(net.relu(net.conv(x, 4, 3, pad=1)), 4, 3, pad=1)
    made = net.finish(net.relu(net.join(long, net.conv(x, 4, 1))))
    found = tw.compile(to_graph(made, weights(made, 0)), target='host')
    assert isinstance(found, GpuNetwork)
    assert len(found.gpu_tasks) == 4
    assert found.gpu_tasks[-1].origin[0] == long
    levels = [0] * len(found.calls)
    for number, earlier in enumerate(found.waits or ()):
        levels[number] = 1 + max((levels[n] for n in earlier), default=-1)
    assert max(levels) == 2


def test_what_buffers_of_a_module_are_for() -> None:
    tiled = GpuSchedule.of(
        'tiled', bk=16, bp=16, tk=4, tp=4, kb=4, stages=1, split=2, joint=0
    )  # fmt: skip
    group = conv2d(c=8, h=6, w=6, k=16, r=3, s=3, pad=1, bias=True)
    assert duties(generate(group, tiled)) == {
        'In': 'value', 'Ker': 'packing', 'Bias': 'constant', 'Out': 'value',
        'Ker_packed': 'prepared', 'partial': 'scratch', 'counter': 'zeroed',
    }  # fmt: skip


def test_tasks_of_several_kernels(tmp_path: Path, monkeypatch) -> None:
    """Winograd wherever it applies: between its kernels lies memory of the arena."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.setattr(gpu_moves, 'pays', lambda schema, group, machine: not why_not(group))
    monkeypatch.setattr(
        choose, 'moves',
        lambda group, machine, only, algorithm: moves(
            group, machine, only if why_not(group) else ['winograd'], algorithm
        ),
    )  # fmt: skip
    monkeypatch.setattr(choose, 'each', lambda call, asked, _: [call(*one) for one in asked])
    builder = Builder('two', 3, 9, 2)
    x = builder.relu(builder.conv('image', 8, 3, pad=1))
    made = builder.finish(builder.relu(builder.join(builder.conv(x, 8, 3, pad=1), x)))
    model = to_graph(made, weights(made, 0))
    net = tw.compile(model, target='host')
    assert isinstance(net, GpuNetwork)
    schemas = [task.schedule.schema for task in net.gpu_tasks]
    assert schemas == ['winograd', 'winograd']
    assert len(net.calls) == 6
    value = np.random.default_rng(5).standard_normal(made.shape).astype(np.float32)
    want = evaluate(lower(model), {'image': value})['scores']
    assert np.abs(net(value) - want).max() <= 2e-5 * np.abs(want).max()
    tiles = {'bk': 16, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 4, 'stages': 1, 'split': 1, 'joint': 0}
    found = duties(
        generate(conv2d(c=8, h=6, w=6, k=16, r=3, s=3), GpuSchedule.of('winograd', m=2, **tiles))
    )
    assert {name for name, duty in found.items() if duty == 'scratch'} == {
        'In_points', 'Out_points',
    }  # fmt: skip
    assert {name for name, duty in found.items() if duty == 'prepared'} == {
        'Ker_points', 'Ker_points_packed',
    }  # fmt: skip


def test_a_limit_of_errors_decides_the_tiles() -> None:
    group = conv2d(n=64, c=256, h=14, w=14, k=256, r=3, s=3, pad=1)
    small, large = (GpuSchedule.of('winograd', m=m, split=1) for m in (2, 4))
    assert [choose.is_precise(group, s, 1e-5) for s in (small, large)] == [True, False]
    assert choose.is_precise(group, large, 1e-4)
    assert not choose.is_precise(group, replace(small, intrinsic='mma_tf32x3'), 1e-6)


def test_odd_branches_are_computed_one_element_at_a_time() -> None:
    """A value inside another that begins at no multiple of 16 bytes."""
    net = compiled('host')
    inside = [t for t in net.gpu_tasks if t.name == 'conv5']
    assert [t.schedule.schema for t in inside] == ['general']
    assert is_aligned(lower(graph()), ['image'])


def test_work_in_other_processes() -> None:
    pieces = [(choose.search, n) for n in range(3)]
    groups = [conv2d(c=4, h=4, w=4, k=4 * (n + 1), r=1, s=1) for _, n in pieces]
    machine = open_device('host').machine
    asked = [(group, machine, 2, 1e-4, False) for group in groups]
    found = list(labour.each(choose.search, asked, processes=2))
    assert found == [choose.search(*piece) for piece in asked]
    with pytest.raises(InputError):
        list(labour.each(open_device, [('nowhere',), ('nowhere',)], processes=2))


def test_a_search_that_asks_a_model_first(tmp_path: Path, monkeypatch) -> None:
    """No learned model knows the host: the analytical one ranks; by name it is refused."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.setattr('tilewright.search.gpu.strategies.POPULATION', 8)
    monkeypatch.setattr('tilewright.targets.gpu.tuning.SAMPLED', 16)
    net = Builder('one', 1, 8, 1)
    made = net.finish(net.relu(net.conv('image', 4, 3, pad=1)))
    model = to_graph(made, weights(made, 0))
    x = np.random.default_rng(0).standard_normal(made.shape).astype(np.float32)
    want = evaluate(lower(model), {'image': x})['scores']
    options = {'target': 'host', 'tune': 'measure', 'trials': 3, 'search': 'genetic'}
    found = tw.compile(model, **options, model='auto')
    assert np.abs(found(x) - want).max() <= 1e-5 * np.abs(want).max()
    with pytest.raises(InputError, match='no learned model knows the kernels of a search'):
        tw.compile(model, **options, model='forest')


def test_branches_whose_depth_changes_when_they_are_fused(target: str) -> None:
    """Fusion makes the left branch short, and the right one, which ran later, now runs first.

    x -> conv tanh sigmoid tanh -> conv -> left        levels 0..4, after fusion 0 and 1
    x -> conv -> conv -> conv -> right                 levels 0..2 as before

    Memory that a level has left must not be given to a task that runs before that level is done.
    """
    rng = np.random.default_rng(0)
    kernel = {f'w{i}': rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6 for i in range(5)}
    pads = {'pads': (1, 1, 1, 1)}
    nodes = tuple(
        Node(op, out, (given, *more), (out,), pads if op == 'Conv' else {})
        for op, given, more, out in (
            ('Conv', 'x', ('w0',), 'a0'), ('Tanh', 'a0', (), 'a1'), ('Sigmoid', 'a1', (), 'a2'),
            ('Tanh', 'a2', (), 'a3'), ('Conv', 'a3', ('w1',), 'left'), ('Conv', 'x', ('w2',), 'b0'),
            ('Conv', 'b0', ('w3',), 'b1'), ('Conv', 'b1', ('w4',), 'right'),
        )
    )  # fmt: skip
    model = Graph(
        'uneven', (Value('x', (1, 4, 8, 8)),), (('left', 'left'), ('right', 'right')), nodes, kernel
    )
    x = rng.standard_normal((1, 4, 8, 8)).astype(np.float32)
    got = tw.compile(model, target=target).run({'x': x})
    for name, want in evaluate(lower(model), {'x': x}).items():
        assert np.abs(got[name] - want).max() <= 1e-5 * np.abs(want).max(), name
