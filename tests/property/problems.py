"""Strategies: random groups of every operator, and random legal schedules for them."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from tilewright.kernels.cpu.space import random_schedule
from tilewright.ops.blocked import blocked
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.schedule.schedule import Schedule

SEEDS = st.integers(0, 2**31 - 1)


def sizes(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most)


@st.composite
def convolutions(draw: st.DrawFn) -> Group:
    """Batch, stride, dilation, groups, asymmetric padding, bias, activation, odd sizes."""
    r, s = draw(st.sampled_from([(1, 1), (3, 3), (3, 1), (1, 3), (2, 3), (5, 5), (7, 7)]))
    dilation = (draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2, 3])))
    pad = tuple(draw(st.integers(0, 3)) for _ in range(4))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    # The smallest image under the filter, and a bit more: sizes of no particular divisibility.
    span_h, span_w = (r - 1) * dilation[0] + 1, (s - 1) * dilation[1] + 1
    return conv2d(
        n=draw(st.sampled_from([1, 1, 2, 3])),
        c=groups * draw(sizes(9)),
        h=max(1, span_h - pad[0] - pad[2]) + draw(st.integers(0, 12)),
        w=max(1, span_w - pad[1] - pad[3]) + draw(st.integers(0, 26)),
        k=groups * draw(sizes(20)),
        r=r,
        s=s,
        stride=(draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 1, 2, 3]))),
        pad=pad,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from([None, *ACTIVATIONS])),
    )


@st.composite
def depthwise(draw: st.DrawFn) -> Group:
    channels = draw(st.integers(2, 11))
    return conv2d(
        n=draw(st.sampled_from([1, 2])),
        c=channels,
        h=draw(st.integers(5, 14)),
        w=draw(st.integers(5, 22)),
        k=channels,
        r=3,
        s=draw(st.sampled_from([1, 3, 5])),
        stride=draw(st.sampled_from([1, 2])),
        pad=tuple(draw(st.integers(0, 2)) for _ in range(4)),
        groups=channels,
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from([None, 'relu6'])),
    )


@st.composite
def products(draw: st.DrawFn) -> Group:
    return matmul(m=draw(sizes(40)), n=draw(sizes(70)), k=draw(sizes(40)))


@st.composite
def blocked_convolutions(draw: st.DrawFn) -> Group:
    """Channels in blocks (NCHWc) on the way in, on the way out, or both."""
    block_in, block_out = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 4, 8, 16]))
    group = conv2d(
        n=draw(st.sampled_from([1, 2])),
        c=block_in * draw(sizes(3)),
        h=draw(st.integers(3, 10)),
        w=draw(st.integers(3, 18)),
        k=block_out * draw(sizes(3)),
        r=3,
        s=draw(st.sampled_from([1, 3])),
        stride=draw(st.sampled_from([1, 2])),
        pad=draw(st.sampled_from([0, 1, (1, 0, 0, 2)])),
        bias=draw(st.booleans()),
        activation=draw(st.sampled_from([None, 'relu'])),
    )
    blocks = {'In': block_in, 'Out': block_out}
    return blocked(group, {name: block for name, block in blocks.items() if block > 1})


def groups() -> st.SearchStrategy[Group]:
    return st.one_of(
        convolutions(), convolutions(), convolutions(), depthwise(), products(),
        blocked_convolutions(),
    )  # fmt: skip


def schedule_of(group: Group, isa: str, seed: int) -> Schedule:
    return random_schedule(group, isa, Random(seed), levels=1 + seed % 3)
