"""PUL of fused kernels: rows of the deck's tables by hand, and its rules of fusion."""

from __future__ import annotations

import pytest

from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.pul_fused import fused_pul, operator_rows
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.normalise import softmax
from tilewright.ops.products import stacked_product
from tilewright.schedule.gpu import GpuSchedule


def tied(first: Group, second: Group) -> Group:
    made = chain(first, second, 'In')
    assert made is not None
    return made.group


def test_the_decks_example_by_hand() -> None:
    """Fig. 3: a 1x1 convolution of 2 channels, a block of 1 x 2 x 2 results; Fig. 4: with ReLU."""
    schedule = GpuSchedule.of('dfg', threads=4, bn=1, bk=1, bh=2, bw=2)
    (plain,) = operator_rows(conv2d(c=2, h=4, w=4, k=2, r=1, s=1), schedule)
    assert plain.computations == 2 * 2 * 1 * 2 * 2
    assert plain.transactions == 2 * 2 + 2  # rows of two channels, and a weight of each
    conv, relu = operator_rows(conv2d(c=2, h=4, w=4, k=2, r=1, s=1, activation='relu'), schedule)
    assert (conv, relu.fusion) == (plain, 'register')
    assert (relu.computations, relu.transactions, relu.loads) == (4, 0, 0)


def test_halos_follow_from_strides() -> None:
    """H_block 8, F 3, stride 2: 17 rows, where Table 8 says 5."""
    group = conv2d(c=1, h=64, w=64, k=1, r=3, s=3, stride=2, pad=1)
    (row,) = operator_rows(group, GpuSchedule.of('dfg', threads=64, bn=1, bk=1, bh=8, bw=8))
    assert row.transactions == 17 + 3 * 3


def test_what_is_in_shared_memory_moves_nothing() -> None:
    first = conv2d(c=8, h=16, w=16, k=16, r=1, s=1)
    both = tied(first, conv2d(c=16, h=16, w=16, k=8, r=3, s=3, pad=1))
    tile = {'bn': 1, 'bk': 0, 'bh': 4, 'bw': 0, 'threads': 64}
    before, after = operator_rows(both, GpuSchedule.of('dfg', 'fma', **tile))
    assert after.fusion == 'shared'
    assert after.transactions == 16 * 3 * 3  # eight weights at a time, no image
    # Two rows of halo are computed again.
    assert before.computations == 2 * 8 * 16 * 6 * 16


@pytest.mark.parametrize(('form', 'cycles'), [(0, 32.0), (1, 1.0)])
def test_bank_conflicts_are_those_of_the_layout(form: int, cycles: float) -> None:
    """A thread for each row of 32 floats: all in one bank, unless rows are filled up to 33."""
    scores = chain(stacked_product((32, 8), (8, 32)), softmax((32, 32)), 'In')
    assert scores is not None
    schedule = GpuSchedule.of('dfg', threads=32, bh=0, bw=0, format=form)
    rows = {row.stage: row for row in operator_rows(scores.group, schedule)}
    assert rows['peak'].conflicts == cycles


def test_a_share_of_peak() -> None:
    both = tied(conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1),
                conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1))  # fmt: skip
    tile = {'bn': 1, 'bk': 0, 'bh': 4, 'bw': 8, 'tk': 8, 'tp': 4, 'ci': 8}
    found = fused_pul(both, GpuSchedule.of('dfg', 'fma', threads=128, **tile), known_gpu('h200'))
    assert 0 < found.value <= 1
    assert found.fits
    large = GpuSchedule.of('dfg', 'fma', threads=128, **(tile | {'bh': 8, 'bw': 56}))
    assert not fused_pul(both, large, known_gpu('rtx2080ti')).fits
