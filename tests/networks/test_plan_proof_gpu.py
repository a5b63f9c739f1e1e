"""What is handed to a GPU is refused exactly where some order that it may take goes wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import graphs
import pytest
from plan_orders import Simulator
from sampling import NETWORKS

import tilewright as tw
from tilewright import zoo
from tilewright.errors import PlanError
from tilewright.graph.concat import concat
from tilewright.graph.graph import Graph
from tilewright.graph.levels import by_levels
from tilewright.graph.lower import lower
from tilewright.graph.passes import GPU_PASSES
from tilewright.graph.program import Program
from tilewright.graph.proof import Event
from tilewright.network.compile import prepare
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.gpu.device import Call, Device, NDArray, Resources
from tilewright.runtime.gpu.device import Program as Compiled
from tilewright.runtime.gpu.session import open_device
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu import assemble, bind, choose
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.order import Touched, waits
from tilewright.targets.gpu.place import duties
from tilewright.targets.gpu.proof import Bound, alignment, prove_bound, story

TILED = {'bk': 16, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 4, 'stages': 1, 'joint': 0}
CNNOPT = {'rk': 1, 'ry': 2, 'rx': 4, 'tk': 8, 'ty': 2, 'tx': 2, 'wk': 2, 'wy': 1, 'wx': 1,
          'cb': 2, 'stages': 2}  # fmt: skip
MACHINE = open_device('host').machine


class Paper(Device):
    """A device on which nothing runs: networks are bound to it as to any other."""

    name, machine, dialect = 'paper', MACHINE, open_device('host').dialect

    def compile(self, kernel) -> Compiled:
        return Compiled(kernel, '', Resources(), None)

    def empty(self, dims, sizes, dtype='f32') -> NDArray:
        return NDArray(tuple(dims), tuple(sizes), dtype, self, None)

    def part(self, whole, offset, dims, sizes, dtype) -> NDArray:
        return self.empty(dims, sizes, dtype)

    def write(self, array, values) -> None:
        assert array.bytes == values.nbytes

    def download(self, array):
        raise AssertionError('nothing is read')

    def launch(self, call: Call) -> None:
        assert set(call.values) == {a.name for a in call.program.kernel.args}

    def synchronize(self) -> None:
        return

    def time(self, calls, repeats) -> list[float]:
        return [0.0] * repeats


def handed(program: Program, schedules: Callable | None = None) -> Bound:
    """What a network hands to its device, before it is proved."""
    program = by_levels(program)
    groups = {task.group.digest: task.group for task in program.tasks}
    best = {
        digest: choose.choice_of(group, schedules(group), MACHINE)
        if schedules and choose.has_products(group)
        else choose.search(group, MACHINE, 1, DEFAULT_LIMIT, products=False)[0]
        for digest, group in groups.items()
    }
    works = assemble.works_of(program, best, MACHINE, DEFAULT_LIMIT)
    found: list[Bound] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bind, 'prove_bound', found.append)
        bind.bind(program, works, Paper())
    return found[0]


@cache
def network(name: str) -> Bound:
    named = {
        'residual': lambda: lower(graphs.convolutions()),
        'branches': lambda: concat(lower(graphs.branches())),
        'batch of branches': lambda: concat(lower(graphs.branches(2))),
        'dense': lambda: concat(lower(graphs.dense_block(3))),
    }
    if name in named:
        return handed(named[name]())
    net, _, batch = name.partition(' x')
    graph = zoo.graph(net, **zoo.SMALL[net], batch=int(batch or 1))
    return handed(prepare(graph, cost=GpuCost(MACHINE), program_passes=GPU_PASSES))


def refused(bound: Bound) -> str:
    """Why it is refused; '' where it is not."""
    try:
        prove_bound(bound)
    except PlanError as error:
        return str(error)
    return ''


@dataclass(frozen=True)
class At:
    """A slot of our own."""

    offset: int = 0
    array: NDArray | None = None


def with_slot(bound: Bound, number: int, buffer: str, slot: At) -> Bound:
    slots = list(bound.slots)
    slots[number] = {**slots[number], buffer: slot}
    return replace(bound, slots=slots)


def spans(bound: Bound) -> list[Touched]:
    """What every kernel of a call touches of the arena."""
    found = []
    for work, slots in zip(bound.works, bound.slots, strict=True):
        found += [bind._touched(work.task, step, slots) for step in work.module.steps]
    return found


def moved(bound: Bound, root: str, by: int) -> Bound:
    """One value elsewhere, and waits for what is then touched: right if in a row is right."""
    slots = []
    for work, own in zip(bound.works, bound.slots, strict=True):
        names = {**work.task.operands, work.module.group.output.name: work.task.result}
        slots.append(
            {
                buffer: At(slot.offset + by)
                if buffer in names
                and slot.array is None
                and bound.program.place(names[buffer])[0] == root
                else slot
                for buffer, slot in own.items()
            }
        )

    def place(value: str) -> object:
        slot = bound.place(value)
        return At(slot.offset + by) if bound.program.place(value)[0] == root else slot

    made = replace(bound, slots=slots, place=place)
    return replace(made, waits=waits(spans(made)))


@pytest.mark.parametrize('name', NETWORKS)
def test_every_network_of_the_zoo_passes(name):
    assert refused(network(name)) == ''


def before(events: Sequence[Event]) -> list[set[int]]:
    """All that has ended when each event begins."""
    found: list[set[int]] = []
    for event in events:
        found.append(set(event.after).union(*(found[other] for other in event.after)))
    return found


def is_race(events: Sequence[Event]) -> bool:
    """Whether two events may run at once, one of which writes what the other touches."""
    cells = Simulator(events)
    writes = [{cell for cell, _ in own} for own in cells.writes]
    touched = [{cell for cell, _ in own} | w for own, w in zip(cells.reads, writes, strict=True)]
    order = before(events)
    return any(
        a not in order[b] and (writes[a] & touched[b] or touched[a] & writes[b])
        for b in range(len(events))
        for a in range(b)
    )


def dropped_waits(bound: Bound, most: int) -> Counter:
    """Leave out single waits, so many of them, and count those that something needs."""
    edges, seen = [(n, other) for n, own in enumerate(bound.waits) for other in own], Counter()
    for edge in random.Random(0).sample(edges, min(most, len(edges))):
        left = [tuple(w for w in own if (n, w) != edge) for n, own in enumerate(bound.waits)]
        changed = replace(bound, waits=left)
        events = story(changed)[1]
        race = is_race(events)
        assert bool(refused(changed)) == race, edge
        if len(events) < 12:
            assert Simulator(events).is_wrong() == race, edge
        seen[race] += 1
    return seen


@pytest.mark.parametrize(
    ('name', 'most'),
    [('residual', 99), ('branches', 99), ('batch of branches', 99), ('dense', 99),
     ('squeezenet', 12), ('inception_v1', 6)],
)  # fmt: skip
def test_a_wait_that_is_left_out_is_refused_if_something_needs_it(name, most):
    bound = network(name)
    assert refused(bound) == ''
    seen = dropped_waits(bound, most)
    assert seen[True] >= seen.total() / 2 > 0


@pytest.mark.parametrize('name', ['residual', 'branches', 'batch of branches', 'dense'])
def test_a_value_that_lies_elsewhere_is_refused_where_running_in_a_row_goes_wrong(name):
    bound, seen = network(name), Counter()
    program = bound.program
    roots = {program.place(v)[0] for t in program.tasks for v in (t.result, *t.operands.values())}
    at = {r: bound.place(r).offset for r in sorted(roots - program.constants.keys())}
    for a in at:
        for b in at:
            for by in (0, 16) if a != b else ():
                changed = moved(bound, a, at[b] - at[a] + by)
                events = story(changed)[1]
                written = [access for event in events for access in event.writes]
                outside = any(
                    w.at + w.region.end > bound.arena_bytes for w in written if w.block == 0
                )
                wrong = outside or Simulator(events).is_wrong_in_a_row()
                assert bool(refused(changed)) == wrong, (a, b, by)
                seen[wrong] += 1
    assert seen[True] > 3
    assert seen[False] or len(at) < 5


def uneven() -> Graph:
    """A short branch behind a long one: `c` is computed after `d`, on whose way it is not."""
    nodes = [
        graphs.node('Conv', 'x w', 'a', pads=(1, 1, 1, 1)),
        graphs.node('Conv', 'a v', 'b'),
        graphs.node('Conv', 'b w', 'd', pads=(1, 1, 1, 1)),
        graphs.node('MaxPool', 'a', 'c', kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        graphs.node('Conv', 'd w', 'e', pads=(1, 1, 1, 1)),
        graphs.node('Add', 'e c', 'y'),
    ]
    constants = {'w': graphs.floats(4, 4, 3, 3), 'v': graphs.floats(4, 4, 1, 1)}
    return graphs.graph({'x': (1, 4, 8, 8)}, 'y', nodes, **constants)


def reordered(bound: Bound, names: Sequence[str]) -> Bound:
    """The same memory for tasks in another order, and waits for what is then touched."""
    order = [[w.task.name for w in bound.works].index(name) for name in names]
    works = [bound.works[number] for number in order]
    made = replace(
        bound,
        program=bound.program.with_tasks(tuple(work.task for work in works)),
        works=works,
        slots=[bound.slots[number] for number in order],
    )
    return replace(made, waits=waits(spans(made)))


def test_lives_counted_in_levels_are_refused_where_tasks_run_in_another_order():
    program = lower(uneven())
    bound = handed(program)
    shared = moved(bound, 'd', bound.place('a').offset - bound.place('d').offset)
    assert [w.task.name for w in bound.works] != [task.name for task in program.tasks]
    assert refused(bound) == refused(shared) == ''
    why = refused(reordered(shared, [task.name for task in program.tasks]))
    assert "'Conv_d' may overwrite" in why
    assert "hold 'a', before task 'MaxPool_c' has read them" in why


SCHEDULES = {
    'tiled': GpuSchedule.of('tiled', **TILED, split=2),
    'second pass': GpuSchedule.of('s', **CNNOPT, split=2, join=1),
    'atomics': GpuSchedule.of('rs', **CNNOPT, split=2, join=0),
    'winograd': GpuSchedule.of('winograd', m=2, **TILED, split=1),
}


@cache
def schemas(name: str) -> Bound:
    """Two convolutions side by side and one behind them, by one schema."""
    nodes = [
        graphs.node('Conv', 'x w', 'a', pads=(1, 1, 1, 1)),
        graphs.node('Conv', 'x v', 'b', pads=(1, 1, 1, 1)),
        graphs.node('Add', 'a b', 'c'),
        graphs.node('Conv', 'c w', 'y', pads=(1, 1, 1, 1)),
    ]
    constants = {'w': graphs.floats(16, 16, 3, 3), 'v': graphs.floats(16, 16, 3, 3, seed=1)}
    graph = graphs.graph({'x': (1, 16, 8, 8)}, 'y', nodes, **constants)
    return handed(lower(graph), lambda group: SCHEDULES[name])


@pytest.mark.parametrize('name', SCHEDULES)
def test_schemas_with_memory_of_their_own_pass_and_their_scratch_is_private(name):
    bound = schemas(name)
    assert refused(bound) == ''
    own = [
        (n, b) for n, w in enumerate(bound.works) for b, d in duties(w.module).items()
        if d == 'scratch'
    ]  # fmt: skip
    for number, buffer in own:
        roomy = replace(bound, arena_bytes=2 * bound.arena_bytes)
        changed = with_slot(roomy, number, buffer, At(bound.place('x').offset))
        assert "hold 'x'" in refused(replace(changed, waits=waits(spans(changed))))
        theirs = [bound.slots[n][b] for n, b in own if n == 1 - number]
        if number < 2 and theirs:  # these two run side by side
            assert 'may ' in refused(with_slot(bound, number, buffer, theirs[0]))
    assert bool(own) == (name != 'atomics')
    assert dropped_waits(bound, 99)[True] > 2


def test_zeros_of_two_kernels_side_by_side_are_not_the_same():
    bound = schemas('tiled')
    zeroed = [
        next(b for b, d in duties(w.module).items() if d == 'zeroed') for w in bound.works[:2]
    ]
    shared = with_slot(bound, 1, zeroed[1], bound.slots[0][zeroed[0]])
    assert 'of the array of' in refused(shared)
    in_arena = with_slot(bound, 1, zeroed[1], At(bound.place('x').offset))
    assert refused(in_arena)


def test_prepared_constants_are_those_of_the_task_and_given_back_ones_are_not_read():
    bound = schemas('tiled')
    packed = next(b for b, d in duties(bound.works[0].module).items() if d == 'prepared')
    other = with_slot(bound, 1, packed, bound.slots[0][packed])
    assert 'the preparation of' in refused(other)
    kept = bound.slots[0][packed].array
    assert 'what gives memory back' in refused(replace(bound, gone={*bound.gone, id(kept)}))


def test_a_kernel_that_moves_fours_needs_them_aligned():
    bound = schemas('tiled')
    step = bound.works[0].module.steps[0]
    assert alignment(step.kernel) == 16
    assert alignment(replace(step.kernel, body='@Out[i=0] = @In[i=0];')) == 1
    assert 'at a multiple of 16 bytes' in refused(moved(bound, 'a', 4))
    assert 'at a multiple of 4 bytes' in refused(moved(network('residual'), 'c0', 2))


def test_a_result_where_an_input_lies_is_refused():
    bound = network('residual')
    there = bound.place('x')
    assert refused(moved(bound, 'y', there.offset - bound.place('y').offset))
    assert "reads bytes 0 to 575 of 'y' in" in refused(
        replace(bound, place=lambda value: there if value == 'y' else bound.place(value))
    )


def test_a_wrong_placement_reaches_nobody(tmp_path, monkeypatch):
    path, right = tmp_path / 'net.tw', bind.place
    tw.compile(graphs.convolutions(), 'host', save=path)

    def wrong(program, modules):
        made = right(program, modules)
        return replace(made, values=dict.fromkeys(made.values, 0))

    monkeypatch.setattr(bind, 'place', wrong)
    for made in (lambda: tw.compile(graphs.convolutions(), 'host'), lambda: tw.load(path)):
        with pytest.raises(PlanError, match='its memory plan is wrong: task'):
            made()
