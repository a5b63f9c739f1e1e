"""Operators defined here, with no edit to the package, get everything: reference, traffic, loop
orders, a schedule and running code. Each has an independent oracle in plain numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.cpu.space import random_schedule
from tilewright.machine.isa import host_isas
from tilewright.machine.known import known_machine
from tilewright.model.cpu.orders import order_classes
from tilewright.model.cpu.traffic import level_volumes
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group, Tensor
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var
from tilewright.search.cpu.rank import rank

PRODUCT = call('mul', read(0), read(1))


def conv1d() -> Group:
    """Out[n, k, w] += In[n, c, 2w + s - 1] * Ker[k, c, s]"""
    stage = Stage(
        'conv1d',
        (
            Dim('n', 2), Dim('k', 13), Dim('w', 15),
            Dim('c', 5, 'reduction'), Dim('s', 3, 'reduction'),
        ),
        Access('Out', (var('n'), var('k'), var('w'))),
        (
            Access('In', (var('n'), var('c'), affine(('w', 2), ('s', 1), const=-1))),
            Access('Ker', (var('k'), var('c'), var('s'))),
        ),
        PRODUCT,
        'sum',
    )  # fmt: skip
    tensors = (
        Tensor('In', ('n', 'c', 'w'), (2, 5, 29)),
        Tensor('Ker', ('k', 'c', 's'), (13, 5, 3), 'constant'),
        Tensor('Out', ('n', 'k', 'w'), (2, 13, 15), 'output'),
    )
    return Group('conv1d', tensors, (stage,))


def conv1d_oracle(In, Ker):
    padded = np.pad(In, ((0, 0), (0, 0), (1, 1)))
    out = np.zeros((2, 13, 15))
    for w in range(15):
        out[:, :, w] = np.einsum('ncs,kcs->nk', padded[:, :, 2 * w : 2 * w + 3], Ker)
    return out


def contraction() -> Group:
    """Out[i, j, l] += A[l, c, i, d] * B[d, j, c]: two reductions, everything transposed."""
    stage = Stage(
        'contraction',
        (
            Dim('i', 7), Dim('j', 18), Dim('l', 6),
            Dim('c', 4, 'reduction'), Dim('d', 9, 'reduction'),
        ),
        Access('Out', (var('i'), var('j'), var('l'))),
        (
            Access('A', (var('l'), var('c'), var('i'), var('d'))),
            Access('B', (var('d'), var('j'), var('c'))),
        ),
        PRODUCT,
        'sum',
    )  # fmt: skip
    tensors = (
        Tensor('A', ('l', 'c', 'i', 'd'), (6, 4, 7, 9)),
        Tensor('B', ('d', 'j', 'c'), (9, 18, 4), 'constant'),
        Tensor('Out', ('i', 'j', 'l'), (7, 18, 6), 'output'),
    )
    return Group('contraction', tensors, (stage,))


def max_pool() -> Group:
    """Out[c, h, w] max= In[c, 2h + r - 1, 2w + s - 1], with nothing outside the image."""
    stage = Stage(
        'max_pool',
        (
            Dim('c', 4), Dim('h', 5), Dim('w', 6),
            Dim('r', 3, 'reduction'), Dim('s', 3, 'reduction'),
        ),
        Access('Out', (var('c'), var('h'), var('w'))),
        (
            Access(
                'In',
                (
                    var('c'),
                    affine(('h', 2), ('r', 1), const=-1),
                    affine(('w', 2), ('s', 1), const=-1),
                ),
            ),
        ),
        read(0),
        'max',
        pad_value=-math.inf,
    )  # fmt: skip
    tensors = (
        Tensor('In', ('c', 'h', 'w'), (4, 9, 11)),
        Tensor('Out', ('c', 'h', 'w'), (4, 5, 6), 'output'),
    )
    return Group('max_pool', tensors, (stage,))


def max_pool_oracle(In):
    out = np.empty((4, 5, 6))
    for h, w in itertools.product(range(5), range(6)):
        window = In[:, max(0, 2 * h - 1) : 2 * h + 2, max(0, 2 * w - 1) : 2 * w + 2]
        out[:, h, w] = window.max((1, 2))
    return out


def residual() -> Group:
    """relu(conv(In) + Skip[..., per pixel] * Scale[k]): an epilogue with two operands."""
    base = conv2d(c=6, h=9, w=10, k=11, r=3, s=3, pad=1)
    shape = base.output.shape
    inner = Tensor('Acc', ('n', 'k', 'h', 'w'), shape, 'inner')
    main = replace(base.main, write=Access('Acc', base.main.write.index))
    here = tuple(var(d) for d in 'nkhw')
    add = Stage(
        'skip',
        tuple(Dim(d, size) for d, size in zip('nkhw', shape, strict=True)),
        Access('Out', here),
        (Access('Acc', here), Access('Skip', here), Access('Scale', (var('k'),))),
        call('max', call('add', read(0), call('mul', read(1), read(2))), call('neg', read(2))),
    )
    tensors = (
        *(t for t in base.tensors if t.role != 'output'),
        Tensor('Skip', ('n', 'k', 'h', 'w'), shape),
        Tensor('Scale', ('k',), (11,), 'constant'),
        inner,
        Tensor('Out', ('n', 'k', 'h', 'w'), shape, 'output'),
    )
    return Group('residual', tensors, (main, add), (('Acc', 'register'),))


def residual_oracle(In, Ker, Skip, Scale):
    padded = np.pad(In, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = sum(
        np.einsum('nchw,kc->nkhw', padded[:, :, r : r + 9, s : s + 10], Ker[:, :, r, s])
        for r, s in itertools.product(range(3), range(3))
    )
    scale = Scale[None, :, None, None]
    return np.maximum(out + Skip * scale, -scale)


def swish() -> Group:
    """A reduction whose value is used twice by its epilogue: x * sigmoid(x), in two stages."""
    shape = (6, 5)
    rows = (Dim('i', 6), Dim('j', 5))
    here = (var('i'), var('j'))
    main = Stage(
        'sums', (*rows, Dim('c', 4, 'reduction')), Access('X', here),
        (Access('In', (var('i'), var('c'), var('j'))),), read(0), 'sum',
    )  # fmt: skip
    gate = Stage('gate', rows, Access('G', here), (Access('X', here),), call('sigmoid', read(0)))
    both = Stage('both', rows, Access('Out', here), (Access('X', here), Access('G', here)), PRODUCT)
    tensors = (
        Tensor('In', ('i', 'c', 'j'), (6, 4, 5)),
        Tensor('X', ('i', 'j'), shape, 'inner'),
        Tensor('G', ('i', 'j'), shape, 'inner'),
        Tensor('Out', ('i', 'j'), shape, 'output'),
    )
    return Group('swish', tensors, (main, gate, both))


def swish_oracle(In):
    total = In.sum(1)
    return total / (1 + np.exp(-total))


@dataclass(frozen=True)
class Operator:
    """A group, what it should compute, how many classes of loop orders it has (worked by hand: one
    for each iterator that can be innermost with partial reuse, and one for each tensor that can
    then be kept), and the schema that it should get."""

    group: Group
    oracle: Callable
    orders: int
    schema: str


OPERATORS = {
    'conv1d': Operator(conv1d(), conv1d_oracle, 4, 'outer'),
    'contraction': Operator(
        contraction(), lambda A, B: np.einsum('lcid,djc->ijl', A, B), 3, 'outer'
    ),
    'max_pool': Operator(max_pool(), max_pool_oracle, 4, 'general'),
    'residual': Operator(residual(), residual_oracle, 8, 'outer'),
    'swish': Operator(swish(), swish_oracle, 1, 'general'),
}


@pytest.fixture(params=OPERATORS)
def operator(request) -> Operator:
    return OPERATORS[request.param]


def test_the_reference_agrees_with_numpy(operator, whole_numbers):
    arrays = whole_numbers(operator.group, 1)
    given = [arrays[t.name].astype(float) for t in operator.group.tensors if t.name in arrays]
    want = operator.oracle(*given)
    assert np.allclose(reference(operator.group, arrays), want, rtol=1e-12, atol=1e-12)


def test_whole_tiles_move_every_word_once(operator):
    """With one tile that holds everything, each boundary is crossed by the touched words alone."""
    group = operator.group
    stage = group.main
    schedule = random_schedule(group, 'portable', Random(0), levels=1)
    whole = replace(schedule.levels[1], tiles=tuple(sorted(stage.sizes.items())))
    (words,) = level_volumes(stage, (whole,), stage.sizes)
    for access in stage.reads:
        touched = 1
        for expression in access.index:
            ranges = [[c * i for i in range(stage.sizes[n])] for n, c in expression.terms]
            touched *= len({sum(point) for point in itertools.product(*ranges)})
        assert words[access.tensor] == touched
    # A result that is accumulated is read and written.
    assert words[stage.write.tensor] == 2 * math.prod(stage.sizes[d] for d in stage.parallel)


def test_loop_orders_are_derived(operator):
    stage = operator.group.main
    classes = order_classes(stage)
    assert len(classes) == operator.orders
    for found in classes:
        assert sorted(found.representative()) == sorted(stage.sizes)


@pytest.mark.parametrize('threads', [1, 2])
def test_a_schedule_is_found_and_its_code_runs(operator, threads, check):
    machine = replace(known_machine('i7-9700k'), isa=host_isas()[0])
    candidates = rank(operator.group, machine, threads, 2)
    assert {c.schedule.schema for c in candidates} == {operator.schema}
    assert all(c.prediction.seconds > 0 for c in candidates)
    check(operator.group, candidates[0].schedule, 7)


@pytest.mark.parametrize('seed', [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_random_schedules_run_on_every_instruction_set(operator, isa, seed, check):
    check(operator.group, random_schedule(operator.group, isa, Random(seed)), seed)


def test_a_product_of_two_inputs_is_computed(check):
    """Neither operand is constant: panels are packed in every call."""
    group = contraction()
    mutable = tuple(replace(t, role='input') if t.name == 'B' else t for t in group.tensors)
    group = replace(group, label='two inputs', tensors=mutable)
    assert vector_candidates(group) == ()
    assert vector_candidates(group, moving=True) == ('j',)
    machine = replace(known_machine('i7-9700k'), isa=host_isas()[0])
    check(group, rank(group, machine, 2, 1)[0].schedule, 3)
    for seed in range(4):
        check(group, random_schedule(group, host_isas()[0], Random(seed)), seed)
