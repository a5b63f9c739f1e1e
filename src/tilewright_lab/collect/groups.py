"""The data set of fused groups of networks: how they are drawn, checked and written.

A row is written with the digest of its group, which the folder's `groups.json` has
(tilewright_lab/collect/group_data.py). What is right is computed in float64 by the host, once; all
groups stay on the device, so that turns may mix them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.kernels.gpu.module import with_own_dims
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.device import Device
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.collector import GroupOf, Recipe
from tilewright_lab.collect.compiled import Family
from tilewright_lab.collect.group_data import DECISIONS, decisions, file_name, read_catalogue
from tilewright_lab.collect.group_sample import GroupSource, families
from tilewright_lab.collect.meter import Present, placed
from tilewright_lab.collect.sets import Layout

LAYOUT: Layout[str] = Layout(
    file_name,
    ('group',),
    lambda digest: (digest,),
    lambda schema, intrinsic: DECISIONS[schema, intrinsic],
    decisions,
)


def groups_in(folder: Path) -> GroupOf[str]:
    """The groups of a folder's catalogue, by digest."""
    known = read_catalogue(folder)
    return lambda digest: known[digest].group


def draw(source: GroupSource, group_of: GroupOf[str], machine: GpuMachine) -> list[Family[str]]:
    return families(source, group_of(source.digest), machine)


@dataclass(frozen=True, slots=True)
class GivenSource:
    """Schedules of a group that are known already."""

    digest: str
    schedules: tuple[GpuSchedule, ...]

    @property
    def stage(self) -> str:
        return 'given'


def given(source: GivenSource, group_of: GroupOf[str], machine: GpuMachine) -> list[Family[str]]:
    return [Family(source.digest, (schedule,)) for schedule in source.schedules]


def by_reference(group_of: GroupOf[str], device: Device) -> Callable[[str], Present]:
    """What puts a group on a device, with its result in float64."""

    def prepare(digest: str) -> Present:
        group = with_own_dims(group_of(digest))
        tensors, values = placed(device, group)
        want = np.asarray(reference(group, values), np.float32)
        return Present.of(device, group, tensors, want)

    return prepare


GROUPS: Recipe[str] = Recipe(
    groups_in, draw, by_reference, stay=True, busy=True, ahead=24, ready=256, compile_limit_s=60.0,
    measure_limit_s=40.0,
)  # fmt: skip
