"""Plans are refused exactly where some order of events reads other bytes than it means."""

from __future__ import annotations

import importlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import graphs
import numpy as np
import pytest
from plan_orders import Replay, Simulator
from sampling import NETWORKS

import tilewright as tw
from tilewright import zoo
from tilewright.errors import ModelError, PlanError
from tilewright.graph.concat import concat
from tilewright.graph.memory import Memory, Place, plan
from tilewright.graph.memory_proof import Beside, Rooms, box, prove_memory, read_box
from tilewright.graph.program import Program
from tilewright.graph.proof import Access, Block, Event, Region, _levels, prove
from tilewright.network.compile import prepare
from tilewright.ops.elementwise import elementwise
from tilewright.ops.reduction import running
from tilewright.ops.slices import into_slice
from tilewright.targets.cpu import site

BYTES = 96


def touch(value, at, size=8, first=0, levels=(), start=0, align=1) -> Access:
    return Access(value, first, 0, at, Region(start, size, levels), align, repr(value))


def refused(events, size=BYTES) -> str:
    """Why a plan is refused; '' where it is not."""
    try:
        prove('test', [Block('the arena', size)], events)
    except PlanError as error:
        return str(error)
    return ''


def drawn(rng: random.Random) -> list[Event]:
    """A few events on values at random places: plain ones, parts of one value, slices, sums in
    place, scratch memory; nearly all wait for what they read.
    """
    values: dict[str, tuple[int, int]] = {}  # value -> (place, bytes)
    makers: dict[str, list[int]] = {}
    events: list[Event] = []

    def put(name: str) -> tuple[int, int]:
        values[name] = rng.randrange(0, 80, 4), rng.choice((4, 8, 12, 16))
        makers[name] = []
        return values[name]

    at, size = put('x')
    makers['x'] = [0]
    events.append(Event('in', (), [touch('x', at, size)], ()))
    joined = rng.random() < 0.4
    if joined:
        values['c'], makers['c'] = (rng.randrange(0, 80, 4), 16), []
        repeats = rng.random() < 0.5
    for number in range(1, rng.randint(3, 6)):
        ready = [v for v in values if makers[v] and (v != 'c' or len(makers['c']) == 2)]
        reads, after = [], {0}
        for value in rng.sample(ready, rng.randint(1, min(2, len(ready)))):
            at, size = values[value]
            first = rng.choice((0, 0, size // 2))
            shift = 4 if rng.random() < 0.02 else 0
            reads.append(touch(value, min(at + first + shift, BYTES - 16), size - first, first))
            after |= {m for m in makers[value] if rng.random() < 0.96}
        if joined and len(makers['c']) < 2:
            at, _ = values['c']
            half, turn = len(makers['c']), makers['c']
            part = (
                touch('c', at, 4, levels=((8, 2),), start=4 * half)
                if repeats
                else touch('c', at + 8 * half, 8, 8 * half)
            )
            writes = [part]
            turn.append(number)
        elif rng.random() < 0.12 and len(ready) > 1:
            value = rng.choice([v for v in ready if v != 'x'])  # a sum in place
            at, size = values[value]
            reads.append(touch(value, at, size))
            writes = [touch(value, at, size)]
            after |= set(makers[value])
            makers[value] = [*makers[value], number]
        else:
            at, size = put(f'v{number}')
            writes = [touch(f'v{number}', at, size)]
            makers[f'v{number}'] = [number]
        if rng.random() < 0.15:
            writes.append(touch(f's{number}', rng.randrange(0, 80, 4), 8))
        after |= {n for n in range(1, number) if rng.random() < 0.6}
        events.append(Event(f'e{number}', reads, writes, sorted(after)))
    last = [v for v in values if makers[v] and (v != 'c' or len(makers['c']) == 2)][-2:]
    reads = [touch(v, *values[v]) for v in last]
    events.append(Event('out', reads, (), range(len(events))))
    return events


def test_a_plan_is_refused_where_some_order_of_events_goes_wrong_and_only_there():
    rng, seen = random.Random(5), Counter()
    for case in range(200):
        events = drawn(rng)
        wrong = Simulator(events).is_wrong()
        why = refused(events)
        assert bool(why) == wrong, (case, events, why)
        seen[wrong] += 1
    assert min(seen[True], seen[False]) > 30


def row(*, waits: dict[int, tuple[int, ...]] | None = None) -> list[Event]:
    """x -> a -> b -> y, each in eight bytes; every event waits for the one before it."""
    names, after = ['x', 'a', 'b', 'y'], waits or {}
    places = dict(zip(names, (0, 8, 16, 24), strict=True))
    events = [Event('in', (), [touch('x', 0)], ())]
    for number, (one, other) in enumerate(itertools.pairwise(names), 1):
        events.append(
            Event(
                f'make {other}', [touch(one, places[one])], [touch(other, places[other])],
                after.get(number, (number - 1,)),
            )
        )  # fmt: skip
    return [*events, Event('out', [touch('y', 24), touch('x', 0)], (), (3,))]


@pytest.mark.parametrize(
    ('number', 'change', 'words'),
    [
        (2, {'writes': [touch('b', 10)]}, "overwrites bytes 10 to 15 of the arena, which hold 'a'"),
        (2, {'writes': [touch('b', 0)]}, "may overwrite bytes 0 to 7 .* hold 'x', before out has"),
        (2, {'after': (0,)}, "make b reads bytes 0 to 7 of 'a' and does not wait for make a"),
        (2, {'reads': [touch('a', 24)]}, "in bytes 24 to 31 of the arena, but make a writes them"),
        (2, {'reads': [touch('z', 8)]}, "reads bytes 0 to 7 of 'z', which nothing has written"),
        (2, {'writes': [touch('b', 92)]}, 'bytes 92 to 99 of the arena, which has 96 bytes'),
        (2, {'writes': [touch('b', 18, align=4)]}, 'at a multiple of 4 bytes, and .* at byte 18'),
        (2, {'writes': [touch('b', 16), touch('s', 18, 4)]}, "18 to 21 .* while it needs"),
        (2, {'writes': [touch('b', 16), touch('x', 0)]}, 'in and make b both write bytes'),
        (2, {'writes': [touch('b', 16)._replace(block=3)]}, 'which is in no memory'),
        (2, {'after': (2,)}, 'waits for event 2, which is not one of the 2 before it'),
    ],
)  # fmt: skip
def test_a_refusal_names_value_tasks_bytes_and_remedy(number, change, words):
    events = row()
    assert refused(events) == ''
    events[number] = events[number]._replace(**change)
    with pytest.raises(PlanError, match=f'^test: its memory plan is wrong: .*{words}.*passes=()'):
        prove('test', [Block('the arena', BYTES)], events)


def test_events_side_by_side_need_memory_of_their_own():
    events = row(waits={2: (1,), 3: (2,)})
    beside = Event('beside', [touch('x', 0)], [touch('d', 16)], (0,))
    events.insert(3, beside)
    events[4:] = [events[4]._replace(after=(2,)), events[5]._replace(after=(3, 4))]
    assert "beside may overwrite bytes 16 to 23 of the arena, which hold 'b', before" in refused(
        events
    )
    events[3] = beside._replace(writes=[touch('d', 32)])
    assert refused(events) == ''


@pytest.mark.parametrize('axis', [0, 1, 2, 3])
def test_the_box_that_a_branch_writes_is_found_byte_by_byte(axis):
    group = into_slice(elementwise('neg', (2, 3, 4, 5)), axis, 2, 7)
    mask = np.zeros(group.output.shape, np.float32)
    index = [slice(None)] * 4
    index[axis] = slice(2, 2 + (2, 3, 4, 5)[axis])
    mask[tuple(index)] = 1
    flat, seen = mask.reshape(-1).repeat(4), np.zeros(4 * mask.size)
    for first, end in box(group).runs():
        seen[first:end] += 1
    assert (seen == flat).all()


@pytest.mark.parametrize('reverse', [False, True])
def test_sums_of_nothing_read_nothing_behind_their_operand(reverse):
    """All that precedes the only element of an axis lies outside."""
    for shape, axis in (((1, 1), 1), ((2, 1, 3), 1), ((1, 4), 0)):
        group = running('cumsum', shape, axis, 'sum', exclusive=True, reverse=reverse)
        assert read_box(group, 'In') is None


def wide(batch: int) -> Program:
    """Two concatenations by channels, in which each image has its part; a slice of one image."""
    nodes = [
        graphs.node('Relu', 'x', 'a'),
        graphs.node('Neg', 'x', 'b'),
        graphs.node('Concat', 'a b', 'c', axis=1),
        graphs.node('Exp', 'c', 'd'),
        graphs.node('Concat', 'd c x', 'e', axis=1),
        graphs.node('Slice', 'e starts ends', 'f'),
        graphs.node('Abs', 'f', 'y'),
        graphs.node('Relu', 'e', 'z'),
    ]
    graph = graphs.graph(
        {'x': (batch, 2, 3, 4)}, 'y z', nodes, starts=np.array([0]), ends=np.array([1])
    )
    return concat(graphs.lowered(graph))


@cache
def prepared(name: str) -> Program:
    named = {
        'residual': lambda: graphs.lowered(graphs.convolutions()),
        'branches': lambda: concat(graphs.lowered(graphs.branches())),
        'batch of branches': lambda: concat(graphs.lowered(graphs.branches(3))),
        'slices': lambda: wide(1),
        'batch of slices': lambda: wide(3),
    }
    if name in named:
        return named[name]()
    net, _, batch = name.partition(' x')
    sizes = {**zoo.SMALL[net], 'image': 32} if net == 'densenet121' else zoo.SMALL[net]
    return prepare(zoo.graph(net, **sizes, batch=int(batch or 1)))


SMALL = ('residual', 'branches', 'batch of branches', 'slices', 'batch of slices')
MUTATED = (*SMALL, 'squeezenet', 'resnet18', 'inception_v1 x2')


def moved(program: Program, memory: Memory, root: str, by: int) -> Memory:
    """The plan with everything that lies in one value's memory somewhere else."""
    places = {
        value: replace(place, offset=place.offset + by)
        if place.kind == 'arena' and program.place(value)[0] == root
        else place
        for value, place in memory.places.items()
    }
    return replace(memory, places=places)


def mutants(program: Program, memory: Memory, rng: random.Random) -> Iterator[Memory]:
    """Plans in which something lies elsewhere: on another value, in its place, a bit further."""
    roots = {
        program.place(v)[0]: p.offset for v, p in memory.places.items()
        if p.kind == 'arena' and program.place(v)[0] == v
    }  # fmt: skip
    pairs = [(a, b) for a in roots for b in roots if a != b]
    for a, b in pairs if len(pairs) <= 24 else rng.sample(pairs, 24):
        by = roots[b] - roots[a]
        yield moved(program, memory, a, by)
        yield moved(program, moved(program, memory, a, by), b, -by)
        yield moved(program, memory, a, by + 4 * rng.choice((-1, 1)))
    for a in rng.sample(list(roots), min(len(roots), 8)):
        yield moved(program, memory, a, memory.arena_bytes - roots[a])
    values = list(memory.places)
    for value in values if len(values) <= 12 else rng.sample(values, 12):
        here = memory.places[value]
        for place in (
            Place('input', program.inputs[0], 0),
            Place('output', program.outputs[0][0], 0),
            replace(here, offset=here.offset + 4),
        ):
            yield replace(memory, places={**memory.places, value: place})
    for copy in memory.copies:
        yield replace(memory, copies=tuple(c for c in memory.copies if c != copy))
    yield replace(memory, arena_bytes=memory.arena_bytes - 64)


def is_refused(program: Program, memory: Memory, rooms: Rooms | None = None) -> bool:
    try:
        prove_memory(program, memory, rooms)
    except PlanError:
        return True
    return False


@pytest.mark.parametrize('name', MUTATED)
def test_a_plan_with_a_change_is_refused_where_running_it_goes_wrong_and_only_there(name):
    program = prepared(name)
    memory, replay, seen = plan(program), Replay(program), Counter()
    assert not is_refused(program, memory)
    assert not replay.is_wrong(memory)
    for mutant in mutants(program, memory, random.Random(name)):
        wrong = replay.is_wrong(mutant)
        assert is_refused(program, mutant) == wrong, mutant
        seen[wrong] += 1
    assert seen[True] > 20


@pytest.mark.parametrize('name', MUTATED)
def test_tasks_that_change_places_are_refused_where_running_them_goes_wrong(name):
    program = prepared(name)
    memory, seen = plan(program), Counter()
    for first in range(len(program.tasks) - 1):
        tasks = list(program.tasks)
        tasks[first : first + 2] = reversed(tasks[first : first + 2])
        try:
            swapped = program.with_tasks(tuple(tasks))
        except ModelError:
            seen['no program'] += 1
            continue
        wrong = Replay(swapped).is_wrong(memory)
        assert is_refused(swapped, memory) == wrong, first
        seen[wrong] += 1
    assert seen.total() == len(program.tasks) - 1


def test_a_concatenation_is_not_complete_before_all_of_its_branches_are():
    program = prepared('batch of branches')
    last = max(n for n, t in enumerate(program.tasks) if t.writes_part)
    parts = [n for n, t in enumerate(program.tasks) if t.writes_part]
    short = program.with_tasks(tuple(t for n, t in enumerate(program.tasks) if n != last))
    assert len(parts) > 1
    with pytest.raises(PlanError, match='nothing has written before'):
        prove_memory(short, plan(short))


def test_an_address_that_no_kernel_can_read_is_refused():
    program = prepared('residual')
    memory = plan(program)
    value = next(v for v, p in memory.places.items() if p.kind == 'arena')
    with pytest.raises(PlanError, match='at a multiple of 4 bytes, and it lies at byte'):
        prove_memory(program, moved(program, memory, value, 2))


def test_scratch_memory_and_packed_constants_stay_in_their_rooms():
    program = prepared('residual')
    memory, count = plan(program), len(program.tasks)
    rooms = Rooms(256, 128 * count, [Beside(n, 256, 128 * n, 100) for n in range(count)])
    prove_memory(program, memory, rooms)
    small = replace(rooms, scratch_bytes=255)
    with pytest.raises(PlanError, match=r'its scratch memory at bytes 0 to 255 .* has 255 bytes'):
        prove_memory(program, memory, small)
    for change, words in (
        ({'packed': 64}, 'overwrites bytes 64 to 99 of the packed constants'),
        ({'packed': 129}, 'at a multiple of 64 bytes'),
        ({'packed': 128 * count}, f'which has {128 * count} bytes'),
    ):
        tasks = [rooms.tasks[0], replace(rooms.tasks[1], **change), *rooms.tasks[2:]]
        with pytest.raises(PlanError, match=words):
            prove_memory(program, memory, replace(rooms, tasks=tasks))
    same = [replace(b, kernel=0, packed=0) for b in rooms.tasks]
    constants = {
        tuple(program.base(t.operands[c.name]) for c in t.group.with_role('constant'))
        for t in program.tasks
    }
    assert is_refused(program, memory, replace(rooms, tasks=same)) == (len(constants) > 1)


def test_a_value_that_is_nowhere_is_refused():
    program = prepared('residual')
    memory = plan(program)
    places = {v: p for v, p in memory.places.items() if v != 'a'}
    with pytest.raises(PlanError, match="'a', which is in no memory"):
        prove_memory(program, replace(memory, places=places))


@pytest.mark.parametrize('name', NETWORKS)
def test_every_network_of_the_zoo_passes(name):
    program = prepared(name)
    prove_memory(program, plan(program))


def wrong_plan(program: Program) -> Memory:
    """The plan with one value on top of another that is needed."""
    memory, replay = plan(program), Replay(program)
    return next(m for m in mutants(program, memory, random.Random(0)) if replay.is_wrong(m))


def test_a_wrong_plan_reaches_nobody(tmp_path, monkeypatch):
    graph, path = graphs.convolutions(), tmp_path / 'net.tw'
    tw.compile(graph, save=path, threads=1)
    monkeypatch.setattr(site, 'plan', wrong_plan)
    for made in (lambda: tw.compile(graph, threads=1), lambda: tw.load(path)):
        with pytest.raises(PlanError, match='its memory plan is wrong: task'):
            made()


def test_a_wrong_plan_is_not_exported(tmp_path, monkeypatch):
    exporting = importlib.import_module('tilewright.network.export')
    network = graphs.quick(prepared('residual'))
    monkeypatch.setattr(exporting, 'plan', wrong_plan)
    with pytest.raises(PlanError, match='its memory plan is wrong: task'):
        exporting.write_network(tmp_path / 'c', 'net', network, prepared('residual'))
    assert not (tmp_path / 'c').exists()


def test_classes_of_a_strided_gradient_are_a_few_pieces():
    """Every second element of every second row by events of their own: told apart at once, and one
    that is moved by an element is refused.
    """
    for width, rows in ((256, 1 << 14), (147, 3 * 147)):
        size = 4 * width * rows
        assert refused(strided_classes(width, rows, 0), size) == ''
        said = refused(strided_classes(width, rows, 4), size)
        assert 'both write' in said or 'nothing has' in said


def strided_classes(width: int, rows: int, shift: int) -> list[Event]:
    """Rows of planes; an odd width ends a row in another class than an even one."""
    made, plane = [], rows if width % 2 == 0 else width
    for number, (row, column) in enumerate((r, c) for r in (0, 1) for c in (0, 1)):
        down, across = (plane - row + 1) // 2, (width - column + 1) // 2
        levels = ((4 * width * plane, rows // plane), (8 * width, down), (8, across))
        start = 4 * (row * width + column) - (shift if number == 3 else 0)
        write = touch('g', 0, 4, levels=levels[rows == plane :], start=start)
        made.append(Event(f'class {number}', (), [write], (number - 1,) if number else ()))
    return [*made, Event('read', [touch('g', 0, 4 * width * rows)], (), (3,))]


@pytest.mark.parametrize(
    ('starts', 'levels'),
    [
        ([5], ()),
        ([0, 8, 16], ((8, 3),)),
        ([0, 8, 100, 108, 200, 208], ((100, 3), (8, 2))),
        ([0, 1, 4, 5, 20, 21, 24, 25], ((20, 2), (4, 2), (1, 2))),
        ([0, 8, 100, 108, 200], None),
        ([0, 8, 17], None),
    ],
)
def test_places_at_equal_distances_are_levels_of_a_region(starts, levels):
    assert _levels(starts) == levels
    if levels is not None:
        assert [a for a, _ in Region(starts[0], 1, levels).runs()] == starts
