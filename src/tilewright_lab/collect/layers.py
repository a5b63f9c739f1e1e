"""The data set of layers: how problems are drawn, checked and written.

A row is written with the sizes of its problem; what is right is computed on the device by the
definition of a convolution (tilewright_lab/collect/oracle.py). What a row means is in the folder's
README.md, which is written with the first rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import Call, Device
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.collector import GroupOf, Recipe
from tilewright_lab.collect.compiled import Family
from tilewright_lab.collect.group_data import DECISIONS as SEARCHED
from tilewright_lab.collect.meter import Present, grid_of, placed
from tilewright_lab.collect.oracle import direct
from tilewright_lab.collect.problems import (
    TILES,
    LayerSource,
    Problem,
    ProposedSource,
    families_of,
    proposed_of,
)
from tilewright_lab.collect.sets import Layout
from tilewright_lab.collect.space import choices_of, sampled_kinds

SHAPE = ('k', 'h', 'w', 'c', 'r', 'stride', 'pad')
README = """\
# Measured GPU schedules

`layers-*.csv.gz`: CNNOpt's 20 layers, frozen. `train-*.csv.gz`: random problems, none of them a
layer. `proposed-*.csv.gz`: the same problems, what searches propose and compare of every schema.
Written by `python -m tilewright_lab.scripts.gpu_dataset`; the machine is in `dataset.json`.

| column | meaning |
|---|---|
| k h w c r stride | output channels, height and width, input channels, square window, stride |
| pad | 0: the input was padded before, as CNNOpt measured; else padding on all sides |
| then | the decisions of the schedule, by the names of the schema (`src/tilewright/kernels/gpu/`) |
| status | `ok`, `wrong`, `refused`, `crashed` (below) |
| time_us | a whole call, zeroing included: median of replays of a CUDA graph, data in L2 |
| registers, spill_bytes | of the main kernel, by the compiler |

`wrong`: an element is off by more than 1e-4, by the rule of runtime/verify.py. `refused`: the
schedule cannot be generated or compiled, or does not fit the device. `crashed`: the device gave an
error, or the kernel did not end.

Batch 1, fp32, NCHW; weights packed ahead. rs and s: lanes, tiles and splits by CNNOpt's conventions
(`src/tilewright_lab/collect/cnnopt_space.py`), parts joined by atomics into a zeroed result.
"""


def names(schema: str, intrinsic: str) -> tuple[str, ...]:
    """Decisions of a schema, as columns."""
    if schema in TILES:
        return DECISIONS
    pairs = {'columns': ('bk', 'tk')}
    return tuple(n for name in choices_of(schema, intrinsic) for n in pairs.get(name, (name,)))


def decisions(schedule: GpuSchedule) -> tuple[int, ...]:
    return tuple(schedule[name] for name in names(schedule.schema, schedule.intrinsic))


def searched(schedule: GpuSchedule) -> tuple[int, ...]:
    """The same for kernels that a search proposes; without a word of lanes there is one."""
    tiles = {'lanes': 1, **dict(schedule.tiles)}
    return tuple(tiles[name] for name in SEARCHED[schedule.schema, schedule.intrinsic])


def layout(name: str) -> Layout[Problem]:
    """How the rows of a set, `layers`, `train` or `proposed`, are written."""
    proposed = name == 'proposed'
    known_kinds = tuple(SEARCHED) if proposed else sampled_kinds()

    def file_name(schema: str, intrinsic: str) -> str:
        several = sum(known == schema for known, _ in known_kinds) > 1
        label = f'{schema}-{intrinsic}' if several else schema
        return f'{name}-{label}.csv.gz'

    def cells(problem: Problem) -> tuple[int, ...]:
        return tuple(getattr(problem, column) for column in SHAPE)

    if proposed:
        return Layout(file_name, SHAPE, cells, lambda *kind: SEARCHED[kind], searched)
    return Layout(file_name, SHAPE, cells, names, decisions)


def group_of(problem: Problem) -> Group:
    return problem.group


def groups_in(folder: Path) -> GroupOf[Problem]:
    """Problems need no catalogue: they say what they compute."""
    return group_of


def draw(
    source: LayerSource | ProposedSource, group_of: GroupOf[Problem], machine: GpuMachine
) -> list[Family[Problem]]:
    if isinstance(source, ProposedSource):
        return proposed_of(source, machine)
    return families_of(source, machine)


def by_definition(group_of: GroupOf[Problem], device: Device) -> Callable[[Problem], Present]:
    """What puts a problem on a device, its result by the definition."""
    program = device.compile(direct())

    def prepare(problem: Problem) -> Present:
        group = group_of(problem)
        tensors, _ = placed(device, group)
        result = tensors[group.output.name]
        numbers = {'stride': problem.stride, 'pad': problem.pad}
        device.launch(Call(program, tensors | numbers, grid_of(math.prod(result.sizes))))
        return Present.of(device, group, tensors, result.numpy())

    return prepare


LAYERS: Recipe[Problem] = Recipe(
    groups_in, draw, by_definition, stay=False, busy=False, ahead=6, ready=48,
    compile_limit_s=120.0, measure_limit_s=60.0, readme=README,
)  # fmt: skip
