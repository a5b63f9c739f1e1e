"""Chains of reducing parts, computed tile by tile, against the float64 reference.

Tiles are one below, at and above what divides the result, so that every halo, border and rest of a
tile occurs.
"""

from __future__ import annotations

import pytest

from tilewright.kernels.cpu.schemas.chain.space import nest_schedule
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows


def conv(c: int, h: int, k: int, r: int, stride: int = 1, dilation: int = 1, **more) -> Group:
    sizes = {'w': h, 'pad': dilation * (r // 2)} | more
    return conv2d(c=c, h=h, k=k, r=r, s=r, stride=stride, dilation=dilation, **sizes)


def tied(first: Group, second: Group) -> Group:
    made = chain(first, second, second.main.reads[0].tensor)
    assert made is not None
    return made.group


CHAINS = {
    'conv+conv': tied(conv(3, 7, 4, 3, w=9), conv(4, 7, 5, 3, w=9, bias=True)),
    'strided': tied(conv(3, 11, 4, 3, stride=2), conv(4, 6, 5, 3, stride=2)),
    'dilated': tied(conv(3, 9, 4, 3), conv(4, 9, 2, 3, dilation=2, activation='relu')),
    'grouped': tied(
        conv(4, 9, 6, 3, groups=2, bias=True), conv(6, 9, 8, 3, groups=2, stride=2, bias=True)
    ),
    '1x1+dw+1x1': tied(
        tied(conv(3, 8, 4, 1, bias=True), conv(4, 8, 4, 3, groups=4)), conv(4, 8, 3, 1, n=1)
    ),
    'conv+pool': tied(conv(3, 10, 4, 3), max_pool((1, 4, 10, 10), windows((10, 10), 3, 2, 1))),
    'pool+conv': tied(max_pool((1, 3, 10, 10), windows((10, 10), 2, 2)), conv(3, 5, 4, 3)),
}


@pytest.mark.parametrize('tile', [{'h': 2}, {'h': 3, 'w': 4}, {'h': 1, 'w': 1}])
@pytest.mark.parametrize('name', CHAINS)
def test_plain_loops_compute_the_reference(name: str, tile: dict[str, int], check) -> None:
    """A halo that is too small, a border that is read as data, a tile whose rest is lost."""
    group = CHAINS[name]
    parallel = (('h', 2),) if tile['h'] < 3 else ()
    check(group, nest_schedule(group, 'portable', tile, parallel))
