"""CNNOpt's two kernels, the schemas `RS` and `S`: plan.py says what their decisions mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.kernels.gpu.schema import SPLITS, GpuSchema, Probe, Table, each
from tilewright.kernels.gpu.schemas.cnnopt import plan
from tilewright.kernels.gpu.schemas.cnnopt.code import generate
from tilewright.kernels.gpu.schemas.cnnopt.columns import count_many, tiling
from tilewright.kernels.gpu.schemas.cnnopt.counts import need, work
from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group

_POWERS = (1, 2, 4, 8, 16, 32)


def _lanes(rows: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Lanes of a warp along k, y and x."""
    return [(k, y, WARP // (k * y)) for k in _POWERS for y in rows if k * y <= WARP]


def _table(_: Group, __: str) -> Table:
    warps = [
        (k, y, x) for k in (1, 2, 4) for y in (1, 2, 4) for x in (1, 2, 4) if 2 <= k * y * x <= 16
    ]
    return {
        **each(
            rk=(1, 2, 4, 8), ry=(1, 2, 4, 7), rx=(1, 2, 4, 7, 8), cb=(1, 2, 4, 8), stages=(1, 2),
            split=SPLITS, join=(0, 1, 2),
        ),
        ('tk', 'ty', 'tx'): _lanes((1, 2, 4, 8)),
        ('wk', 'wy', 'wx'): warps,
    }  # fmt: skip


def _decided(values: Mapping) -> dict[str, int]:
    """Lanes of a warp are one choice; where nothing is joined, one way stands for all."""
    numbers = dict(values)
    numbers |= dict(zip(('tk', 'ty', 'tx'), numbers.pop('lanes'), strict=True))
    numbers['join'] *= numbers['split'] > 1
    return {name: numbers[name] for name in DECISIONS}


RS = GpuSchema(
    name=plan.RS,
    words='CNNOpt\'s RS kernel: input slices and outputs of a thread in registers',
    generate=generate,
    intrinsics={'fma': 0.5},
    table=_table,
    pairs=(('rk', 'rx'),),
    sampled={
        'fma': {
            'rk': (1, 2, 4, 8), 'ry': (1, 2, 3, 4, 7), 'rx': (1, 2, 3, 4, 6, 7, 8, 14, 16),
            'lanes': _lanes((1, 2, 4)), 'wk': (1, 2, 4), 'wy': (1, 2, 4, 7), 'wx': (1, 2, 4),
            'cb': (1, 2, 4, 8), 'stages': (1, 2, 3), 'split': SPLITS, 'join': (0, 1, 2),
        },
    },
    decided=_decided,
    need=need,
    work=work,
    measured=('fma',),
    count_many=count_many,
    tiling=tiling,
    probes=(
        Probe({
            'rk': 2, 'ry': 1, 'rx': 7, 'tk': 16, 'ty': 1, 'tx': 2, 'wk': 1, 'wy': 2, 'wx': 2,
            'cb': 1, 'stages': 1, 'split': 4, 'join': 0,
        }),
    ),
)  # fmt: skip

S = replace(
    RS,
    name=plan.S,
    words="CNNOpt's S kernel: one row of the input slice in registers at a time",
)
