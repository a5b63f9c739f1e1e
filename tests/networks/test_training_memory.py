"""A step within a memory limit: less is kept, and every number stays what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.errors import InputError
from tilewright.graph import levels
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.memory import plan
from tilewright.graph.program import Program, Task
from tilewright.graph.program_json import program_to_json
from tilewright.graph.recompute import held_outside, within
from tilewright.graph.training import LOSS, RATE, step_program, trainable
from tilewright.network.arguments import size_of
from tilewright.network.compile import prepare


def flops(group: Any) -> float:
    return 1e-9 * (group.compulsory_bytes + sum(stage.flops for stage in group.stages))


def step() -> tuple[Program, dict[str, np.ndarray]]:
    """Three convolutions, each with an activation that reads its result twice."""
    draw, nodes, x = np.random.default_rng(0), [], 'x'
    constants = {f'w{i}': draw.standard_normal((3, 3, 3, 3)).astype(np.float32) for i in range(3)}
    for i, weights in enumerate(constants):
        nodes += [
            Node('Conv', f'conv{i}', (x, weights), (f'y{i}',), {'pads': (1, 1, 1, 1)}),
            Node('Sigmoid', f'gate{i}', (f'y{i}',), (f'g{i}',)),
            Node('Mul', f'silu{i}', (f'g{i}', f'y{i}'), (f'z{i}',)),
        ]
        x = f'z{i}'
    graph = Graph('net', (Value('x', (2, 3, 6, 6)),), (('out', x),), tuple(nodes), constants)
    program, state = step_program(trainable(graph, 'mse'), tw.SGD(0.1, 0.9))
    return prepare(program, None, ('fuse',), flops), state


def test_less_memory_gives_the_same_numbers() -> None:
    program, state = step()
    draw, values = np.random.default_rng(0), program.values
    given = {RATE: np.array([0.1], np.float32), **state}
    for name in program.inputs:
        if name not in given:
            given[name] = draw.standard_normal(values[name].shape).astype(np.float32)
    fixed, arena = held_outside(program), plan(program).arena_bytes
    small = within(program, fixed + int(0.6 * arena), flops)
    assert plan(small).arena_bytes <= 0.6 * arena
    assert len(small.tasks) > len(program.tasks)
    want, got = evaluate(program, given), evaluate(small, given)
    assert np.isfinite(want[LOSS])
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(
    ('depth', 'share'), [(2, 0.85), pytest.param(4, 0.7, marks=pytest.mark.slow)]
)
def test_a_device_keeps_the_limit_and_the_numbers(depth: int, share: float) -> None:
    """What is computed again stays behind what frees its memory, and state is changed in place."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.SiLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.SiLU()]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 144, 4))
    x, y = torch.randn(6, 3, 12, 12), torch.randint(0, 4, (6,))

    def compiled(**options: Any) -> Any:
        return tw.compile_training(
            module, 'cross_entropy', tw.SGD(0.1, 0.9), (x, y), target='host', **options
        )

    whole = compiled()
    limit = int(share * whole.network.arena_bytes)
    small = compiled(memory=limit)
    assert small.network.arena_bytes <= limit
    assert len(small.network.tasks) > len(whole.network.tasks)
    assert small.network.carried == whole.network.carried
    for _ in range(2):  # the second begins with momentum
        assert small(x, y) == whole(x, y)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(small.arrays()[name], array)
    with pytest.raises(InputError, match='needs at least'):
        compiled(memory='1KB')


def test_what_waits_for_nothing_is_computed_just_before_it_is_read() -> None:
    program, _ = step()
    made = {task.result for task in program.tasks}

    def first_of(value: str) -> str:
        return program.place(value)[0]

    def waits(task: Task) -> bool:
        return not made.isdisjoint(map(first_of, task.operands.values()))

    def early(late: bool) -> list[str]:
        """Tasks that wait for none and are read, but by none of the next level."""
        found = []
        at = levels.levels_of(program, late)
        for level, task in zip(at, program.tasks, strict=True):
            read = [
                other for other, reader in zip(at, program.tasks, strict=True)
                if task.result in map(first_of, reader.operands.values())
            ]  # fmt: skip
            if read and not waits(task) and min(read) != level + 1:
                found.append(task.name)
        return found

    assert any('reverse' in name or 'grad' in name for name in early(late=False))
    assert early(late=True) == []


def test_an_order_that_is_meant_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = step()
    monkeypatch.setattr(levels, 'SMALL', 0)
    plain = levels.by_levels(program)
    moved = plain.with_tasks((*plain.tasks[1:2], plain.tasks[0], *plain.tasks[2:]))
    meant = replace(moved, in_order=True)
    assert levels.levels_of(meant) == tuple(range(len(meant.tasks)))
    assert levels.by_levels(meant).tasks == meant.tasks
    assert program_to_json(meant, lambda task: task.name)['in_order']
    assert 'in_order' not in program_to_json(plain, lambda task: task.name)


def test_a_limit_that_cannot_be_kept_says_the_least_that_can() -> None:
    program, _ = step()
    with pytest.raises(InputError, match=r'memory is 1000 bytes, and .* needs at least \d+') as no:
        within(program, 1000, flops)
    least = int(str(no.value).partition('at least ')[2].split(',')[0])
    kept = within(program, least, flops)
    assert held_outside(kept) + plan(kept).arena_bytes <= least


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size_of('memory', text) for text in ('2GB', '1.5 MiB', 4096, '10b')] == [
        2_000_000_000, 1_572_864, 4096, 10
    ]  # fmt: skip
    for wrong in ('much', '-1GB', True, 'nanGB'):
        with pytest.raises(InputError, match='give a size such as'):
            size_of('memory', wrong)
