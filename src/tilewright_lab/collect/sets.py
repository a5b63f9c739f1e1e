"""The files of a GPU data set: one for each schema, and what they hold already.

Goes in: a folder and the name of a set. Comes out: `Sets`, which takes rows and says what is left
of a unit. What a row means is in the folder's README.md, which is written with the first rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.problems import TILES, Problem, Unit
from tilewright_lab.collect.rows import RowFile
from tilewright_lab.collect.space import choices_of, sampled_kinds
from tilewright_lab.compare.gpu_measure import Row

SHAPE = ('k', 'h', 'w', 'c', 'r', 'stride', 'pad')
RESULT = ('status', 'time_us', 'registers', 'spill_bytes')
README = """\
# Measured GPU schedules

`layers-*.csv.gz`: CNNOpt's 20 layers, frozen. `train-*.csv.gz`: random problems, none of them a
layer. Written by `python -m tilewright_lab.scripts.gpu_dataset`; the machine is in `dataset.json`.

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


def shape(problem: Problem) -> tuple[int, ...]:
    return tuple(getattr(problem, name) for name in SHAPE)


class Sets:
    """The files of one set, one for each schema and intrinsic."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.files: dict[tuple[str, str], RowFile] = {}
        self.done: dict[tuple[str, str], set[tuple[int, ...]]] = {}

    def file(self, schema: str, intrinsic: str) -> RowFile:
        kind = (schema, intrinsic)
        if kind not in self.files:
            several = sum(known == schema for known, _ in sampled_kinds()) > 1
            label = f'{schema}-{intrinsic}' if several else schema
            path = self.folder / f'{self.name}-{label}.csv.gz'
            key = (*SHAPE, *names(schema, intrinsic))
            file = RowFile(path, (*key, *RESULT))
            self.files[kind] = file
            self.done[kind] = {tuple(int(row[c]) for c in key) for row in file.rows}
        return self.files[kind]

    def left(self, unit: Unit) -> Unit | None:
        """The unit without what was measured before."""
        first = unit.schedules[0]
        kind = (first.schema, first.intrinsic)
        self.file(*kind)
        of = shape(unit.problem)
        open_ = tuple(s for s in unit.schedules if (*of, *decisions(s)) not in self.done[kind])
        return Unit(unit.problem, open_) if open_ else None

    def add(self, row: Row) -> None:
        file = self.file(row.schedule.schema, row.schedule.intrinsic)
        taken = ['' if v is None else v for v in (row.registers, row.spill_bytes)]
        micro = '' if row.time_us is None else f'{row.time_us:.3f}'
        file.add(*shape(row.problem), *decisions(row.schedule), row.status, micro, *taken)

    def close(self) -> None:
        for file in self.files.values():
            file.pack()


def chunks(units: Sequence[Unit], size: int) -> list[tuple[Unit, ...]]:
    """Units of one problem and schema, some at a time: one compilation each."""
    made: list[list[Unit]] = []
    for unit in units:
        first = unit.schedules[0]
        key = (unit.problem, first.schema, first.intrinsic)
        last = made[-1] if made else []
        same = bool(last) and key == (
            last[0].problem, last[0].schedules[0].schema, last[0].schedules[0].intrinsic
        )  # fmt: skip
        if same and len(last) < size:
            last.append(unit)
        else:
            made.append([unit])
    return [tuple(chunk) for chunk in made]
