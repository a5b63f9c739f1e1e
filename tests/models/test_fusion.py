"""The search for chains: against every partition there is, on graphs with branches and residuals,
and what it asks prices for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tilewright.graph.chain import alone, can_join, joined, links_of
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Value
from tilewright.graph.program import Program, Task
from tilewright.ops.chain import is_chained, regions, repetition
from tilewright.ops.compose import append
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows
from tilewright.search.fusion import Prices, disjoint, find_chains

PEAK, BANDWIDTH, CALL_S, CACHE_BYTES = 5e10, 2e10, 2e-6, 64 << 10


class Draft:
    """A program on its way, task by task; every value is an image."""

    def __init__(self, c: int, h: int) -> None:
        self.values = {'x': Value('x', (1, c, h, h))}
        self.constants: dict[str, np.ndarray] = {}
        self.tasks: list[Task] = []

    def add(self, name: str, group: Group, *read_values: str) -> str:
        operands = dict(zip((t.name for t in group.with_role('input')), read_values, strict=True))
        for tensor in group.with_role('constant'):
            value = f'{name}/{tensor.name}'
            rng = np.random.default_rng([len(self.constants), *tensor.shape])
            self.constants[value] = rng.standard_normal(tensor.shape).astype(np.float32)
            self.values[value] = Value(value, tensor.shape)
            operands[tensor.name] = value
        self.values[name] = Value(name, group.output.shape)
        self.tasks.append(Task(name, group, operands, name, (name,)))
        return name

    def conv(self, name: str, source: str, k: int, r: int = 1, stride: int = 1, groups: int = 1,
             skip: str = '') -> str:  # fmt: skip
        """A convolution, with a residual behind it if `skip` names one."""
        _, c, h, w = self.values[source].shape
        group = conv2d(c=c, h=h, w=w, k=k, r=r, s=r, stride=stride, pad=r // 2, groups=groups)
        if not skip:
            return self.add(name, group, source)
        shape = group.output.shape
        plus = elementwise('add', shape, shape)
        made = append(group, plus, plus.with_role('input')[0].name)
        assert made is not None
        return self.add(name, made.group, source, skip)

    def depthwise(self, name: str, source: str, stride: int = 1) -> str:
        c = self.values[source].shape[1]
        return self.conv(name, source, c, 3, stride, c)

    def pool(self, name: str, source: str) -> str:
        shape = self.values[source].shape
        return self.add(name, max_pool(shape, windows(shape[2:], 3, 2, 1)), source)

    def plus(self, name: str, *sources: str) -> str:
        shape = self.values[sources[0]].shape
        return self.add(name, elementwise('add', shape, shape), *sources)

    def program(self, *outputs: str) -> Program:
        pairs = tuple((name, name) for name in outputs)
        return Program('net', ('x',), pairs, tuple(self.tasks), self.values, self.constants)


def separable() -> Program:
    """MobileNet: depthwise and 1x1 in turns, images of which the first are the largest."""
    net, value = Draft(8, 64), 'x'
    for number, (k, stride) in enumerate([(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)]):
        value = net.conv(f'p{number}', net.depthwise(f'd{number}', value, stride), k)
    return net.program(value)


def inverted() -> Program:
    """MobileNetV2: 1x1, depthwise, 1x1 with the block's input added."""
    net, value = Draft(16, 32), 'x'
    for block in range(4):
        wide = net.depthwise(f'd{block}', net.conv(f'e{block}', value, 48))
        value = net.conv(f'p{block}', wide, 16, skip=value)
    return net.program(value)


def residual() -> Program:
    """ResNet: two 3x3 convolutions, the second with the block's input, which two tasks read."""
    net = Draft(3, 40)
    value = net.pool('stem', net.conv('c', 'x', 12, 3))
    for block in range(4):
        value = net.conv(f'b{block}', net.conv(f'a{block}', value, 12, 3), 12, 3, skip=value)
    return net.program(value)


def inception() -> Program:
    """Branches from one value, which come together by sums."""
    net = Draft(16, 28)
    top = net.conv('top', 'x', 16)
    one = net.conv('one', top, 24)
    three = net.conv('three', net.conv('three/in', top, 8), 24, 3)
    five = net.conv('five', net.conv('five/mid', net.conv('five/in', top, 8), 8, 3), 24, 3)
    value = net.plus('sum', net.plus('half', one, three), five)
    return net.program(net.conv('out', net.depthwise('last', value), 8))


def seen() -> Program:
    """A chain whose middle is also a result of the network."""
    net = Draft(8, 48)
    middle = net.conv('p0', net.depthwise('d0', 'x'), 16)
    value = net.conv('p1', net.depthwise('d1', middle), 16)
    value = net.pool('pool', net.conv('c', value, 16, 3))
    return net.program(middle, net.conv('last', value, 8))


def ladder() -> Program:
    """Convolutions of which every value but the last few is read by the next two."""
    net = Draft(12, 24)
    values = [net.conv('r0', 'x', 12, 3)]
    values.append(net.depthwise('r1', values[0]))
    for number in range(2, 8):
        values.append(net.conv(f'r{number}', values[-1], 12, 1 + number % 2 * 2, skip=values[-2]))
    return net.program(net.pool('pool', net.conv('end', net.depthwise('dw', values[-1]), 8)))


GRAPHS = {f.__name__: f for f in (separable, inverted, residual, inception, seen, ladder)}


def price(group: Group) -> float:
    """A small time model: arithmetic with halos computed again, bytes, and a call; the best of a
    few tiles whose inner regions fit a cache.
    """
    moved = CALL_S + group.compulsory_bytes / BANDWIDTH
    if not is_chained(group):
        return moved + sum(s.flops for s in group.stages) / PEAK
    best, (rows, columns) = math.inf, group.stages[-1].parallel[-2:]
    for tile in ({rows: h, columns: w} for h in (4, 8, 16, 64) for w in (8, 64)):
        region, again = regions(group, tile), repetition(group, tile)
        held = 4 * sum(region[s.name].elements for s in group.stages[:-1])
        if held <= CACHE_BYTES:
            best = min(best, sum(s.flops * again[s.name] for s in group.stages) / PEAK)
    return moved + best


def cost_of(program: Program) -> float:
    return sum(price(task.group) for task in program.tasks)


class Paths:
    """Convexity by its definition, without `Links`: from who reads what, path by path."""

    def __init__(self, program: Program) -> None:
        count, self.program = len(program.tasks), program
        made = {task.result: n for n, task in enumerate(program.tasks)}
        self.reads = [{made[v] for v in t.operands.values() if v in made} for t in program.tasks]
        self.before = [set[int]() for _ in range(count)]
        for number in range(count):
            for producer in self.reads[number]:
                self.before[number] |= {producer} | self.before[producer]

    def is_group(self, numbers: frozenset[int]) -> bool:
        """Connected, convex, with one value that others may see."""
        outside = set(range(len(self.program.tasks))) - numbers
        between = {
            o for o in outside
            if self.before[o] & numbers and any(o in self.before[n] for n in numbers)
        }  # fmt: skip
        leaving = {
            n for n in numbers
            if any(n in self.reads[o] for o in outside)
            or self.program.is_output(self.program.tasks[n].result)
        }  # fmt: skip
        if between or leaving != {max(numbers)}:
            return False
        reached, front = set[int](), {min(numbers)}
        while front:
            reached |= front
            front = {
                n for n in numbers - reached
                if self.reads[n] & reached or any(n in self.reads[r] for r in reached)
            }  # fmt: skip
        return reached == numbers

    def groups(self, most: int) -> Iterator[frozenset[int]]:
        for size in range(2, most + 1):
            for some in itertools.combinations(range(len(self.program.tasks)), size):
                if self.is_group(frozenset(some)):
                    yield frozenset(some)


def best_partition(program: Program, most: int) -> float:
    """Seconds of the best of all partitions into groups of at most so many reducing tasks."""
    links, tasks = links_of(program), range(len(program.tasks))
    prices = {frozenset({n}): price(program.tasks[n].group) for n in tasks}
    reducing = {n for n in tasks if any(s.combiner for s in program.tasks[n].group.stages)}
    for numbers in Paths(program).groups(most + len(tasks) - len(reducing)):
        task = joined(links, numbers) if len(numbers & reducing) <= most else None
        if task is not None:
            prices[numbers] = price(task.group)

    def least(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        if left not in known:
            first = min(left)
            known[left] = min(
                seconds + least(left - numbers)
                for numbers, seconds in prices.items()
                if first in numbers and numbers <= left
            )
        return known[left]

    known: dict[frozenset[int], float] = {}
    return least(frozenset(tasks))


@pytest.mark.parametrize('name', GRAPHS)
def test_the_search_is_within_two_percent_of_the_best_partition(name: str) -> None:
    program = GRAPHS[name]()
    assert len(program.tasks) <= 12
    found = find_chains(program, Prices(price))
    best = best_partition(program, 3)
    assert best <= cost_of(found.program) * (1 + 1e-9)
    assert cost_of(found.program) <= 1.02 * best
    assert cost_of(found.program) < cost_of(program), 'a graph on which nothing gains shows nothing'


@pytest.mark.parametrize('name', GRAPHS)
def test_joined_programs_compute_the_same(name: str) -> None:
    program = GRAPHS[name]()
    found = find_chains(program, Prices(lambda group: 1.0 + 0.01 * len(group.stages)))
    assert found.kept
    rng = np.random.default_rng(0)
    inputs = {'x': rng.standard_normal(program.values['x'].shape).astype(np.float32)}
    want = evaluate(program, inputs, exact=True)
    got = evaluate(found.program, inputs, exact=True)
    for output, array in want.items():
        np.testing.assert_allclose(got[output], array, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('name', GRAPHS)
def test_what_can_be_joined_is_what_is_convex_with_one_result(name: str) -> None:
    program = GRAPHS[name]()
    links, paths = links_of(program), Paths(program)
    for size in (2, 3, 4):
        for some in itertools.combinations(range(len(program.tasks)), size):
            numbers = frozenset(some)
            if paths.is_group(numbers):
                assert can_join(links, numbers)
            elif can_join(links, numbers):
                raise AssertionError(f'{sorted(numbers)} is not convex')


def test_a_value_with_two_readers_is_inner_where_both_are_inside() -> None:
    program = residual()
    links = links_of(program)
    at = {task.name: n for n, task in enumerate(program.tasks)}
    assert not can_join(links, {at['stem'], at['a0']})
    assert not can_join(links, {at['stem'], at['b0']})
    assert can_join(links, {at['stem'], at['a0'], at['b0']})
    task = joined(links, {at['stem'], at['a0'], at['b0']})
    assert task is not None
    assert set(task.operands.values()) - program.constants.keys() == {'c'}
    assert task.origin == ('stem', 'a0', 'b0')
    pooled = task.group.stages[0].write.tensor
    readers = [s for s in task.group.stages if any(a.tensor == pooled for a in s.reads)]
    assert len(readers) == 2, 'the convolution and the sum read one inner tensor'


def test_results_of_the_network_are_not_inner() -> None:
    program = seen()
    found = find_chains(program, Prices(lambda group: 1.0))
    assert [name for name, _ in found.program.outputs] == ['p0', 'last']
    assert all(task.result == 'p0' for task in found.program.tasks if 'p0' in task.origin)
    tried = {one.tasks for one in found.tried}
    assert not any('p0' in some and 'd1' in some for some in tried)


def test_views_and_parts_of_other_values_are_not_inner() -> None:
    net = Draft(8, 8)
    value = net.conv('b', net.conv('a', 'x', 8), 8)
    program = net.program(value)
    assert can_join(links_of(program), {0, 1})
    flat = replace(
        program, values={**program.values, 'flat': Value('flat', (1, 512))}, views={'flat': 'a'}
    )
    holder = replace(
        program, values={**program.values, 'wide': Value('wide', (1, 16, 8, 8))},
        inside={'a': ('wide', 0)},
    )  # fmt: skip
    for other in (flat, holder):
        assert not can_join(links_of(other), {0, 1})


def test_groups_grow_from_what_gained_alone() -> None:
    """A chain of three is tried only where two neighbours gained."""
    net = Draft(4, 8)
    net.conv('c', net.conv('b', net.conv('a', 'x', 4), 4), 4)
    program = net.program('c')

    def only(*labels: int) -> Prices:
        return Prices(lambda g: 0.5 if len(g.stages) in labels else float(len(g.stages)))

    nothing = find_chains(program, only(3))
    assert {one.tasks for one in nothing.tried} == {('a', 'b'), ('b', 'c')}
    assert not nothing.kept
    assert nothing.program.tasks == program.tasks
    some = find_chains(program, only(2, 3))
    assert [one.tasks for one in some.kept] == [('a', 'b', 'c')]
    two = find_chains(program, only(2, 3), most_reducing=2)
    assert [one.tasks for one in two.kept] == [('a', 'b')]
    assert next(one for one in two.tried if one.tasks == ('b', 'c')).why.endswith(
        'but more is saved with b in other groups'
    )


def test_each_distinct_group_is_priced_once_and_the_answer_is_always_the_same() -> None:
    asked: list[str] = []

    def counted(group: Group) -> float:
        asked.append(group.digest)
        return price(group)

    program = inverted()
    first = find_chains(program, Prices(counted))
    assert len(asked) == len(set(asked))
    assert len(asked) < len(first.tried), 'equal blocks are equal questions'
    again = find_chains(program, Prices(counted))
    assert again.tried == first.tried
    assert [t.group.label for t in again.program.tasks] == [
        t.group.label for t in first.program.tasks
    ]


def test_cheap_answers_come_before_prices() -> None:
    program = separable()

    def refuse(group: Group) -> float:
        raise AssertionError(f'{group.label} was priced')

    kept_apart = find_chains(program, Prices(refuse, why_not=lambda g: 'nobody can'))
    assert {one.why for one in kept_apart.tried} == {'nobody can'}
    assert all(one.fused_s is None for one in kept_apart.tried)

    def plain(group: Group) -> float:
        assert not is_chained(group), f'{group.label} was priced'
        return 1.0

    told: list[Group] = []
    bounded = find_chains(program, Prices(plain, bound=lambda g: 2.0, ahead=told.extend))
    assert not bounded.kept
    assert all('no kernel can take less than 2000 ms' in one.why for one in bounded.tried)
    assert {g.digest for g in told} <= {task.group.digest for task in program.tasks}
    assert told


def test_the_number_of_groups_that_are_tried_is_limited() -> None:
    few = find_chains(separable(), Prices(price), most_tried=3)
    priced = {one.digest for one in few.tried if one.fused_s is not None}
    assert len(priced) == 3
    assert any('3 groups were tried before it, which is the limit' in one.why for one in few.tried)


def test_what_is_slower_when_measured_is_left_apart() -> None:
    program = separable()
    seconds: dict[int, int] = {}

    def measured(fused: Program, apart: Program) -> tuple[float, float]:
        assert len(fused.tasks) == 1
        x = {n: np.ones(apart.values[n].shape, np.float32) for n in apart.inputs}
        want, got = (evaluate(p, x, exact=True) for p in (apart, fused))
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-9)
        seconds[len(apart.tasks)] = seconds.get(len(apart.tasks), 0) + 1
        return (2.0, 1.0) if len(apart.tasks) > 2 else (1.0, 2.0)

    found = find_chains(program, Prices(lambda g: 1.0), measured)
    assert {len(one.tasks) for one in found.kept} == {2}
    assert all(one.measured and one.why == 'it saves 50.0%' for one in found.kept)
    slow = [one for one in found.tried if one.measured and not one.kept]
    assert {len(one.tasks) for one in slow} >= {3}
    assert all(
        'slower than its tasks apart when measured' in o.why for o in slow if len(o.tasks) > 2
    )
    digests = {one.digest for one in found.tried if one.measured}
    assert sum(seconds.values()) == len(digests), 'each group once'


def test_a_set_alone_is_a_program() -> None:
    program = inverted()
    links = links_of(program)
    part = alone(links, program.tasks[3:6], 'part')
    assert part.inputs == ('p0',)
    assert set(part.constants) == {'e1/Ker', 'd1/Ker', 'p1/Ker'}
    assert part.outputs == (('p1', 'p1'),)


def test_disjoint_sets_with_the_largest_gain_are_found() -> None:
    """Taking the largest gain first would lose here."""
    sets = {frozenset(s): g for s, g in (((0, 1), 5.0), ((1, 2), 6.0), ((2, 3), 5.0))}
    assert disjoint(sets) == (frozenset({0, 1}), frozenset({2, 3}))
    rng = np.random.default_rng(3)
    for _ in range(40):
        drawn = {
            frozenset(int(n) for n in rng.choice(9, size=int(rng.integers(2, 4)), replace=False)):
            float(rng.integers(1, 9))
            for _ in range(8)
        }  # fmt: skip
        best = max(
            sum(drawn[s] for s in some)
            for size in range(len(drawn) + 1)
            for some in itertools.combinations(drawn, size)
            if sum(map(len, some)) == len(frozenset().union(*some))
        )
        chosen = disjoint(drawn)
        assert sum(map(len, chosen)) == len(frozenset().union(*chosen))
        assert sum(drawn[s] for s in chosen) == best
