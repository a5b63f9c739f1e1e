"""Chains of reducing tasks in networks: they compute what their tasks do, are compiled by whatever
schema keeps them, survive a .tw file, and are explained.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import graphs
import numpy as np
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.errors import InputError
from tilewright.graph.chain import alone, grown, joined, links_of
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.passes import GPU_PASSES, PASSES, PROGRAM_PASSES, passes_of
from tilewright.graph.program import Program
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.gpu.registry import FALLBACK, GPU_SCHEMAS, schema_named
from tilewright.machine.gpu import known_gpu
from tilewright.model.cpu.roofline import roofline
from tilewright.network.compile import prepare
from tilewright.ops.chain import is_chained
from tilewright.ops.group import Group
from tilewright.search.fusion import Prices
from tilewright.store import network_file
from tilewright.targets.chained import passes_at, with_chains
from tilewright.targets.cpu.price import CpuPrice
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.gpu.price import GpuPrice, keeps_chains
from tilewright.targets.site import Asked
from tilewright.zoo.as_onnx import graph_to_onnx

CPU, GPU = 'chains_of_tests', 'gpu_chains_of_tests'
IMAGES = {
    'densenet121': 32,
    'inception_v1': 64,
    'mobilenet_v2': 32,
    'resnet18': 32,
    'squeezenet': 48,
}


def separable() -> Graph:
    """x -> 1x1, which is seen from outside -> 1x1 -> depthwise -> 1x1, added to what is seen: y."""
    nodes = [
        graphs.node('Conv', 'x w0', 'seen'),
        graphs.node('Conv', 'seen w1', 'e'),
        graphs.node('Relu', 'e', 'er'),
        graphs.node('Conv', 'er w2', 'd', pads=(1, 1, 1, 1), group=8),
        graphs.node('Conv', 'd w3', 'p'),
        graphs.node('Add', 'p seen', 'y'),
    ]
    return graphs.graph(
        {'x': (1, 4, 10, 10)}, 'y seen', nodes,
        w0=graphs.floats(4, 4, 1, 1), w1=graphs.floats(8, 4, 1, 1, seed=1),
        w2=graphs.floats(8, 1, 3, 3, seed=2), w3=graphs.floats(4, 8, 1, 1, seed=3),
    )  # fmt: skip


def no_time(group, schedule, machine):
    """So little that every chain gains."""
    return roofline(group, schedule, machine, 0.0, 1.0, 1.0)


@pytest.fixture
def keeper() -> Iterator[str]:
    """A CPU schema that takes chains alone: the general one's code, and a price next to nothing."""

    def choices(group: Group, isa: str, threads: int, levels: int):
        yield replace(general_schedule(group, isa, threads, levels), schema=CPU)

    SCHEMAS.register(
        replace(
            SCHEMAS['general'], name=CPU, words='a chain', rank='', choices=choices, draw=None,
            time=no_time, last_resort=False, flattens=False,
            why_not=lambda g: '' if is_chained(g) else f'{g.label} is not a chain',
        )
    )  # fmt: skip
    yield CPU
    SCHEMAS.unregister(CPU)


@pytest.fixture
def gpu_keeper() -> Iterator[str]:
    """The same for GPUs."""
    assert FALLBACK.propose is not None
    plain = FALLBACK.propose
    GPU_SCHEMAS.register(
        replace(
            FALLBACK, name=GPU, work=None, probes=(), measured=(), count_many=None, tiling=None,
            propose=lambda g, machine: [replace(s, schema=GPU) for s in plain(g, machine)]
            if is_chained(g) else [],
        )
    )  # fmt: skip
    yield GPU
    GPU_SCHEMAS.unregister(GPU)


def random_sets(seed: int) -> Iterator[tuple[Program, Program]]:
    """A random convex set of tasks of a small zoo network, as one task and as they were."""
    rng = Random(seed)
    name = rng.choice(list(IMAGES))
    program = prepare(zoo.graph(name, image=IMAGES[name], width=8))
    links = links_of(program)
    while True:
        numbers = frozenset({rng.randrange(len(program.tasks))})
        for _ in range(rng.randint(1, 4)):
            wider = list(grown(links, numbers))
            if wider:
                numbers = rng.choice(wider)
        task = joined(links, numbers) if len(numbers) > 1 else None
        if task is not None:
            parts = [program.tasks[n] for n in sorted(numbers)]
            yield alone(links, [task], 'fused'), alone(links, parts, 'apart')


def compare(fused: Program, apart: Program) -> None:
    assert len(fused.tasks) == 1 < len(apart.tasks)
    assert is_chained(fused.tasks[0].group)
    rng = np.random.default_rng(len(apart.tasks))
    given = {
        name: rng.standard_normal(apart.values[name].shape).astype(np.float32)
        for name in apart.inputs
    }
    want, got = (evaluate(p, given, exact=True) for p in (apart, fused))
    for name, array in want.items():
        scale = float(np.abs(array).max()) or 1.0
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-12 * scale, err_msg=name)


@pytest.mark.parametrize('seed', range(5))
def test_random_convex_sets_compute_the_same_joined(seed: int) -> None:
    """Wrong names of tensors, or values that others write meanwhile."""
    for _, pair in zip(range(4), random_sets(seed), strict=False):
        compare(*pair)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(5, 50))
def test_more_random_convex_sets_compute_the_same_joined(seed: int) -> None:
    for _, pair in zip(range(4), random_sets(seed), strict=False):
        compare(*pair)


def test_a_network_with_chains_agrees_with_one_without(keeper, tmp_path):
    made = separable()
    x = graphs.floats(1, 4, 10, 10, seed=9)
    apart = tw.compile(made, fuse='elementwise', threads=1)
    path = tmp_path / 'chained.tw'
    fused = tw.compile(made, fuse='all', threads=1, save=path)
    assert len(fused.tasks) == 2 < len(apart.tasks), 'what is seen from outside, and the rest'
    chained = [k for k in fused.kernels.values() if k.schedule.schema == keeper]
    assert len(chained) == 1
    assert chained[0].group.label.count('>>') == 2
    want = apart.run({'x': x})
    for network in (fused, tw.load(path, threads=1)):
        for name, array in network.run({'x': x}).items():
            np.testing.assert_allclose(array, want[name], rtol=1e-4, atol=1e-4)
    (group,) = (t.group for t in network_file.read(path).program.tasks if is_chained(t.group))
    assert group.digest == chained[0].group.digest
    assert group.storage == chained[0].group.storage


@pytest.mark.slow
def test_a_network_is_checked_pass_by_pass_with_chains(keeper):
    """A check that cannot make the programs between passes again."""
    assert len(tw.compile(separable(), fuse='all', threads=1, check=True).tasks) == 2


def test_measured_chains_are_kept_where_they_are_faster(keeper, monkeypatch):
    """Kernels are built and run; the times are given here."""
    from tilewright.runtime.cpu.network import Network

    measured: list[int] = []
    real = Network.time

    def timed(self, arrays, repeats):
        real(self, arrays, 1)
        measured.append(len(self.tasks))
        return [1.0 / len(self.tasks)] * repeats

    monkeypatch.setattr(Network, 'time', timed)
    tried: list = []
    site = CpuSite.of(None, 1)
    passes = passes_at(site, Asked('measure', 1), tried.extend)
    program = prepare(separable(), None, PASSES, site.cost, passes)
    assert not any(is_chained(task.group) for task in program.tasks)
    assert all('slower' in one.why for one in tried if one.measured)
    assert {1, 3} <= set(measured)
    count = len(measured)
    assert prepare(separable(), None, PASSES, site.cost, passes).tasks == program.tasks
    assert len(measured) == count, 'what was measured is known'


def test_chains_on_the_host_agree():
    """Prices say that any chain gains: only what it computes is looked at here."""
    made = separable()
    x = graphs.floats(1, 4, 10, 10, seed=9)
    passes = with_chains(GPU_PASSES, Prices(lambda group: 1.0))
    apart, fused = (
        tw.compile(prepare(made, None, passes_of(None, word), program_passes=passes), 'host')
        for word in ('elementwise', 'all')
    )
    assert len(fused.gpu_tasks) == 2 < len(apart.gpu_tasks)
    assert any(keeps_chains(schema_named(task.schedule.schema)) for task in fused.gpu_tasks)
    want = apart.run({'x': x})
    for name, array in fused.run({'x': x}).items():
        np.testing.assert_allclose(array, want[name], rtol=1e-4, atol=1e-4)


def test_a_chain_is_priced_where_a_gpu_schema_keeps_it(gpu_keeper):
    program = prepare(separable(), program_passes=GPU_PASSES)
    task = joined(links_of(program), {1, 2})
    assert task is not None
    prices = GpuPrice(known_gpu('h200'), 1, 1e-4).prices
    assert prices.why_not(task.group) == ''
    assert prices.bound(task.group) <= prices.price(task.group) < math.inf
    assert keeps_chains(schema_named(gpu_keeper))
    assert not keeps_chains(FALLBACK), 'it stores what lies between its kernels'
    assert not keeps_chains(schema_named('tiled')), 'it is handed one part of a group'


def test_schemas_that_store_inner_tensors_whole_do_not_count():
    """Plain loops compute any chain, and gain nothing by it."""
    site = CpuSite.of(None, 1)
    program = prepare(separable(), passes=passes_of(None, 'elementwise'))
    links = links_of(program)
    task = joined(links, {len(program.tasks) - 2, len(program.tasks) - 1})
    assert task is not None
    price = site.prices(Asked())
    for schema in SCHEMAS.values():
        if not schema.last_resort and 'cache' in schema.storage and not schema.why_not(task.group):
            assert price.why_not(task.group) == ''
            break
    else:
        assert price.why_not(task.group)
    alone_s = sum(price.price(t.group) for t in program.tasks[-2:])
    assert 0 < price.bound(task.group) < alone_s


def test_inner_tensors_keep_their_layout(keeper):
    """Channels in blocks: neither what a chain reads nor what it writes is asked for so."""
    nodes = [
        graphs.node('Conv', 'x w0', 'a'),
        graphs.node('Conv', 'a w1', 'b', pads=(1, 1, 1, 1)),
        graphs.node('Conv', 'b w2', 'c'),
        graphs.node('Conv', 'c w3', 'y', pads=(1, 1, 1, 1)),
    ]
    made = graphs.graph(
        {'x': (1, 8, 6, 6)}, 'y', nodes, w0=graphs.floats(8, 8, 1, 1),
        w1=graphs.floats(8, 8, 3, 3), w2=graphs.floats(8, 8, 1, 1), w3=graphs.floats(8, 8, 3, 3),
    )  # fmt: skip

    def price(group: Group) -> float:
        return 1.0 if len(group.stages) == 2 else float(len(group.stages))

    def likes_blocks(group: Group) -> float:
        return 0.1 if '@' in group.label else 1.0

    passes = with_chains(PROGRAM_PASSES, Prices(price))
    plain = prepare(made, None, ['layout'], likes_blocks, passes)
    program = prepare(made, None, ['chain', 'layout'], likes_blocks, passes)
    assert any('@' in task.group.label for task in plain.tasks)
    chained = [task.group for task in program.tasks if is_chained(task.group)]
    assert len(chained) == 2
    assert not any('@' in group.label for group in chained)
    x = graphs.inputs_of(program)
    want = evaluate(plain, x)['y']
    np.testing.assert_allclose(evaluate(program, x)['y'], want, rtol=1e-4, atol=1e-4)


def test_what_is_fused_follows_from_one_word():
    assert passes_of(None, 'all') == set(PASSES)
    assert set(PASSES) - passes_of(None, 'elementwise') == {'chain'}
    assert set(PASSES) - passes_of(None, 'none') == {
        'attention', 'fuse', 'prologue', 'concat', 'chain',
    }  # fmt: skip
    assert passes_of(None) == passes_of(None, 'all')
    assert passes_of(None, None, 'cuda') == passes_of(None, 'elementwise')
    assert passes_of(['chain']) == {'chain'}
    assert list(PROGRAM_PASSES) == [
        'attention', 'fuse', 'prologue', 'channels_last', 'concat', 'chain', 'layout',
    ]  # fmt: skip
    assert list(GPU_PASSES) == [
        'attention', 'fuse', 'prologue', 'channels_last', 'concat', 'chain',
    ]  # fmt: skip
    unfused = prepare(separable(), passes=passes_of(None, 'none'))
    assert len(unfused.tasks) == 6


def test_words_that_mean_nothing_are_refused(tmp_path):
    made = separable()
    with pytest.raises(InputError, match="fuse is 'some'; choose one of none, elementwise, all"):
        tw.compile(made, fuse='some')
    with pytest.raises(InputError, match=r"fuse='all' and passes= both say which passes run"):
        tw.compile(made, fuse='all', passes=['fuse'])
    with pytest.raises(InputError, match=r'give a list out of .*chain'):
        tw.compile(made, passes=['chains'])
    path = tmp_path / 'net.tw'
    tw.compile(made, threads=1, save=path)
    with pytest.raises(InputError, match=r'fuse= means nothing with .*net.tw, which is compiled'):
        tw.compile(path, fuse='all')


@pytest.fixture
def model(tmp_path) -> str:
    made = separable()
    types = prepare(made, passes=()).values
    path = tmp_path / 'net.onnx'
    found = [types[value] for _, value in made.outputs]
    path.write_bytes(graph_to_onnx(made, found).SerializeToString())
    return str(path)


def test_explain_says_what_was_tried(keeper, call, model):
    code, out, err = call('explain', model, '--threads', 1, '--fuse', 'all', '--json', '-')
    assert code == 0, err
    (network,) = json.loads(out)['networks']
    kept = [one for one in network['tried'] if one['kept']]
    assert len(kept) == 1
    assert kept[0]['fused_ms'] < kept[0]['apart_ms']
    (group,) = (g for g in network['groups'] if '>>' in g['label'])
    assert group['apart_ms'] == pytest.approx(kept[0]['apart_ms'])
    assert any(not one['kept'] and 'in other groups' in one['why'] for one in network['tried'])
    code, out, _ = call('explain', model, '--threads', 1, '--fuse', 'all')
    assert code == 0
    assert re.search(r'Chains of tasks: \d+ tried, 1 kept\.', out)
    assert re.search(r'kept \([0-9.]+ ms joined, [0-9.]+ ms apart\): it saves', out)
    assert re.search(r'Its \d parts would take [0-9.]+ ms in their own kernels\.', out)
    code, out, _ = call('explain', model, '--threads', 1, '--fuse', 'elementwise', '--json', '-')
    assert json.loads(out)['networks'][0]['tried'] == []


def test_explain_of_a_gpu_says_what_was_tried(call, model):
    words = ('explain', model, '--machine', 'h200', '--fuse', 'all', '--json', '-')
    code, out, err = call(*words)
    assert code == 0, err
    (network,) = json.loads(out)['networks']
    assert network['tried']
    assert all(one['why'] for one in network['tried'])


def test_fuse_on_the_command_line(keeper, call, model, tmp_path):
    path = tmp_path / 'net.tw'
    code, out, err = call(
        'compile', model, '-o', path, '--fuse', 'all', '--threads', 1, '--json', '-'
    )
    assert code == 0, err
    said = json.loads(out)
    assert said['fuse'] == 'all'
    assert len(said['network']['tasks']) == 2
    code, out, _ = call(
        'run', model, '--fuse', 'none', '--threads', 1, '--repeat', 1, '--json', '-'
    )
    assert code == 0
    assert len(json.loads(out)['network']['tasks']) == 6
    for words, sentence in (
        (('run', path, '--fuse', 'none'), 'fuse= means nothing with'),
        (('explain', path, '--fuse', 'none'), '--fuse means nothing with'),
        (('explain', 'mopt/R9', '--fuse', 'all'), '--fuse all is for networks'),
        (('bench', 'mopt/R9', '--fuse', 'all'), '--fuse all is for networks'),
        (('compile', model, '--fuse', 'some'), "'some' is not one of"),
    ):
        code, out, err = call(*words)
        assert code == 2, words
        assert sentence in err.splitlines()[-1]


def test_prices_are_those_that_networks_are_searched_with():
    """Groups that are searched twice, once for their price."""
    from tilewright.targets.cpu.choose import choose_all

    site = CpuSite.of(None, 1)
    program = prepare(separable(), cost=site.cost, passes=passes_of(None, 'elementwise'))
    price = site.prices(Asked()).price
    assert isinstance(price, CpuPrice)
    predicted = {t.group.digest: price(t.group) for t in program.tasks}
    found = site.choose(program, Asked())
    assert {digest: choices[0].predicted_s for digest, choices in found.items()} == predicted
    group = program.tasks[0].group
    (again,) = choose_all([group], site.machine, 1, price.top, price.max_rel_err)
    assert again[0].predicted_s == predicted[group.digest]
