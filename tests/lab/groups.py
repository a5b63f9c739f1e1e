"""A small folder of groups with made-up times: what the model says, and a rule on top."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows
from tilewright.rank.statistics import NAMES, statistics_for
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.group_data import (
    Known,
    catalogue_text,
    columns,
    decisions,
    file_name,
)
from tilewright_lab.collect.space import draw

HOPPER = known_gpu('h200')


def fused(c: int, h: int, k: int) -> Group:
    """A convolution with bias and activation."""
    return conv2d(c=c, h=h, w=h, k=k, r=3, s=3, pad=1, bias=True, activation='relu')


def schedules_of(group: Group, count: int = 40) -> list[GpuSchedule]:
    if not group.main.is_product_sum:
        return [GpuSchedule.of('general', threads=n, lanes=1) for n in (32, 64, 128, 256)]
    return draw(group, HOPPER, 'tiled', 'fma', count, 1)[0]


def seconds_of(group: Group, schedules: list[GpuSchedule]) -> np.ndarray:
    """The model's time, longer for tiles along k, by a factor that the model knows nothing of."""
    x, base = statistics_for(group, HOPPER, schedules)
    column = x[:, NAMES.index('block_k')]
    return np.exp(base + 0.25 * (column - 5) + 0.1 * math.log(len(group.stages)))


def write_groups(folder: Path) -> None:
    """Four groups to learn from and two to rank, in the layout of
    src/tilewright_lab/scripts/gpu_groups.py.
    """
    groups = [
        *((fused(c, h, k), 'train', {'vgg11': 1}) for c, h, k in
          ((16, 14, 32), (32, 14, 64), (24, 20, 48), (64, 10, 64))),
        (max_pool((1, 16, 14, 14), windows((14, 14), 2, 2)), 'train', {'vgg11': 1}),
        *((fused(c, h, k), 'test', {'resnet18': 2}) for c, h, k in ((48, 12, 64), (32, 16, 96))),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    known = {group.digest: Known(group, part, networks) for group, part, networks in groups}
    (folder / 'groups.json').write_text(catalogue_text(known))
    lines: dict[str, list[str]] = {}
    for group, _, _ in groups:
        schedules = schedules_of(group)
        for schedule, seconds in zip(schedules, seconds_of(group, schedules), strict=True):
            kind = schedule.schema, schedule.intrinsic
            rows = lines.setdefault(file_name(*kind), [','.join(columns(*kind))])
            numbers = ','.join(map(str, decisions(schedule)))
            rows.append(f'{group.digest},{numbers},ok,{1e6 * seconds},32,0')
    for name, rows in lines.items():
        (folder / name).write_bytes(gzip.compress('\n'.join(rows).encode()))
