"""The core of a group decides its schedule, whatever stands around it or it is written into."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import Window

PLAIN = conv2d(n=2, c=4, h=6, w=6, k=8, r=3, s=3, pad=1)
BEHIND = conv2d(n=2, c=4, h=6, w=6, k=8, r=3, s=3, pad=1, bias=True, activation='relu')


def part_of(group: Group, first: int, channels: int) -> Group:
    """The group as a branch that writes its channels into a larger tensor, from `first` on."""
    last, result = group.stages[-1], group.output
    index = list(last.write.index)
    index[1] = replace(index[1], const=first)
    large = replace(result, shape=(result.shape[0], channels, *result.shape[2:]))
    tensors = tuple(large if t is result else t for t in group.tensors)
    stages = (*group.stages[:-1], replace(last, write=replace(last.write, index=tuple(index))))
    return Group(f'{group.label}@1:{first}/{channels}', tensors, stages, group.storage)


@pytest.mark.parametrize('group', [PLAIN, BEHIND])
@pytest.mark.parametrize(('first', 'channels'), [(0, 9), (3, 20)])
def test_branches_of_a_joined_tensor_share_a_core(group: Group, first: int, channels: int) -> None:
    sliced = part_of(group, first, channels)
    assert core(sliced).digest == core(group).digest == PLAIN.digest
    assert core(sliced).label == PLAIN.label


def test_a_pooling_into_a_joined_tensor_is_timed_with_a_result_of_its_own() -> None:
    pooling = max_pool((2, 4, 6, 6), [Window(6, 2, 2, 1, 0, 0, 3)] * 2)
    assert core(part_of(pooling, 3, 20), front=True).digest == pooling.digest
    assert core(pooling) is pooling


def test_a_group_that_is_its_own_core_is_left_alone() -> None:
    assert core(PLAIN) is PLAIN
