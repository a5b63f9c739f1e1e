"""The memory plan: no two values that live together overlap, and little is wasted."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from dataclasses import replace

import graphs
import pytest

from tilewright.errors import ModelError
from tilewright.graph.concat import concat
from tilewright.graph.graph import Value
from tilewright.graph.memory import ALIGNMENT, Life, Place, lifetimes, offsets_of, plan
from tilewright.graph.program import Program, Task
from tilewright.ops.elementwise import elementwise


def chain(sizes: list[int], outputs=None, views=None, inside=None) -> Program:
    """x -> v1 -> v2 ..: each value has its own size, which the groups do not care about."""
    values = {f'v{i}': Value(f'v{i}', (size,)) for i, size in enumerate(sizes)}
    tasks = []
    for i, (before, after) in enumerate(itertools.pairwise(sizes), 1):
        group = elementwise('neg', (before,)) if before == after else _stretch(before, after)
        tasks.append(Task(f't{i}', group, {'In': f'v{i - 1}'}, f'v{i}'))
    last = f'v{len(sizes) - 1}'
    return Program(
        'chain', ('v0',), outputs or (('y', last),), tuple(tasks), values, {}, views or {},
        inside or {},
    )  # fmt: skip


def _stretch(before: int, after: int):
    from tilewright.ops.group import Group, Tensor
    from tilewright.ops.stage import Access, Affine, Dim, Stage, read, var

    stage = Stage(
        'first', (Dim('i', after),), Access('Out', (var('i'),)), (Access('In', (Affine(()),)),),
        read(0),
    )  # fmt: skip
    tensors = (Tensor('In', ('j',), (before,)), Tensor('Out', ('i',), (after,), 'output'))
    return Group(f'first-{before}to{after}', tensors, (stage,))


def test_lives_that_meet_never_overlap():
    rng = random.Random(0)
    for _ in range(200):
        lives = {}
        for number in range(rng.randint(1, 30)):
            first = rng.randint(0, 20)
            lives[f'v{number}'] = Life(first, first + rng.randint(0, 6), rng.randint(1, 5000))
        offsets = offsets_of(lives)
        assert offsets.keys() == lives.keys()
        assert all(offset % ALIGNMENT == 0 for offset in offsets.values())
        for a, b in itertools.combinations(lives, 2):
            if lives[a].meets(lives[b]):
                one, other = sorted([(offsets[a], lives[a].bytes), (offsets[b], lives[b].bytes)])
                assert one[0] + one[1] <= other[0]


def test_a_chain_needs_two_values_at_a_time():
    program = chain([64, 64, 64, 64, 64, 64])
    memory = plan(program)
    assert memory.arena_bytes == memory.peak_bytes == 2 * 64 * 4
    assert memory.places['v0'] == Place('input', 'v0', 0)
    assert memory.places['v5'] == Place('output', 'y', 0)
    assert memory.places['v1'].offset == memory.places['v3'].offset


def test_the_arena_is_close_to_what_lives_at_once():
    rng = random.Random(1)
    for _ in range(20):
        memory = plan(chain([16 * rng.randint(1, 200) for _ in range(40)]))
        assert memory.peak_bytes <= memory.arena_bytes <= 1.5 * memory.peak_bytes


def test_the_plan_is_the_same_every_time():
    program = graphs.lowered(graphs.branches())
    assert plan(program) == plan(graphs.lowered(graphs.branches()))


def test_a_value_lives_until_its_last_reader():
    program = graphs.lowered(graphs.convolutions())
    lives = lifetimes(program, {'x': None, 'y': None})
    names = [task.name for task in program.tasks]
    assert lives['c1'].first == names.index('Conv_c1')
    assert lives['c1'].last == names.index('BatchNormalization_b')


def test_views_have_the_memory_of_their_base():
    nodes = [
        graphs.node('Relu', 'x', 'a'),
        graphs.node('Flatten', 'a', 'f'),
        graphs.node('Neg', 'f', 'y'),
    ]
    program = graphs.lowered(graphs.graph({'x': (2, 3, 4)}, 'y', nodes))
    memory = plan(program)
    assert program.views == {'f': 'a'}
    assert memory.places['f'] == memory.places['a']


def test_parts_of_a_concatenation_lie_inside_it():
    program = concat(graphs.lowered(graphs.branches()))
    memory = plan(program)
    begin = memory.places['y'].offset
    assert memory.places['r0'].offset == begin
    assert memory.places['r2'].offset == begin + 4 * 4 * 25
    assert memory.places['p'].offset == begin + 4 * 10 * 25


@pytest.mark.parametrize(
    'outputs',
    [
        (('one', 'v2'), ('two', 'v2')),
        (('same', 'v0'), ('y', 'v2')),
    ],
)
def test_results_without_memory_of_their_own_are_copied(outputs):
    memory = plan(chain([8, 8, 8], outputs=outputs))
    copied = {name for name, _ in memory.copies}
    assert copied == ({'two'} if outputs[0][0] == 'one' else {'same'})
    assert memory.places['v2'].kind == 'output'


def test_a_result_inside_something_else_is_copied_and_lives_to_the_end():
    made = chain([8, 8, 4])
    program = replace(
        made,
        outputs=(('y', 'v2'), ('half', 'h')),
        values={**made.values, 'h': Value('h', (4,))},
        inside={'h': ('v1', 4)},
    )
    memory = plan(program)
    assert memory.copies == (('half', 'h'),)
    assert memory.places['h'] == Place('arena', '', memory.places['v1'].offset + 16)
    assert lifetimes(program, {'v0': None, 'v2': None})['v1'].last == len(program.tasks)


@pytest.mark.parametrize(
    ('inside', 'message'),
    [
        ({'v1': ('v0', 5)}, 'does not fit'),
        ({'v1': ('v2', 0), 'v2': ('v1', 0)}, 'inside itself'),
        ({'v1': ('nothing', 0)}, 'has no type'),
    ],
)
def test_places_that_cannot_be_are_refused(inside, message):
    with pytest.raises(ModelError, match=message):
        chain([8, 8, 8], inside=inside)


def test_planning_takes_work_that_grows_with_the_number_of_tasks():
    """In a chain every value meets its neighbours alone, however long it is."""
    counts = []
    for length in (100, 200):
        program, calls = chain([64] * length), Counter()
        sys.setprofile(lambda frame, event, _: calls.update([event]))  # noqa: B023
        try:
            plan(program)
        finally:
            sys.setprofile(None)
        counts.append(calls['call'])
    assert counts[1] < 2.1 * counts[0]
