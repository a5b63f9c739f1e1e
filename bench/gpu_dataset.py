"""Measure the GPU data sets: compile in many processes, check and time in this one; go on later.

    python bench/gpu_dataset.py layers --schemas rs,s --seconds 540
    python bench/gpu_dataset.py layers --schemas tiled/fma,tiled/mma_tf32x3,patch/mma_tf32x3,general
    python bench/gpu_dataset.py train --seconds 540
    python bench/gpu_dataset.py status          rows of every file, without a GPU
    python bench/gpu_dataset.py plan            what would be measured, without a GPU

Run again with the same arguments until it says that nothing is left. Files: bench/results/h200/,
one for each set and schema, CSV in gzip members (src/tilewright/bench/gpu_rows.py). What a row
means: bench/results/h200/README.md, written with the first rows.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from tilewright.bench.gpu_measure import (
    Compiled,
    Meter,
    Row,
    Translate,
    compile_unit,
    cubin,
    cuda_meter,
)
from tilewright.bench.gpu_problems import (
    SAMPLED,
    TILES,
    Source,
    Unit,
    layer_sources,
    train_sources,
    units_of,
)
from tilewright.bench.gpu_rows import RowFile, read_rows
from tilewright.codegen.gpu.cnnopt_plan import DECISIONS
from tilewright.errors import StoreError
from tilewright.machine.gpu import known_gpu
from tilewright.schedule.gpu import GpuSchedule
from tilewright.schedule.gpu_space import CHOICES
from tilewright.version import VERSION

SHAPE = ('k', 'h', 'w', 'c', 'r', 'stride', 'pad')
RESULT = ('status', 'time_us', 'registers', 'spill_bytes')
ALL = ('rs', 's', *(f'{schema}/{intrinsic}' for schema, intrinsic in SAMPLED))
README = """\
# Measured GPU schedules

`layers-*.csv.gz`: CNNOpt's 20 layers, frozen. `train-*.csv.gz`: random problems, none of them a
layer. Written by `python bench/gpu_dataset.py`; the machine is in `dataset.json`.

| column | meaning |
|---|---|
| k h w c r stride | output channels, height and width, input channels, square window, stride |
| pad | 0: the input was padded before, as CNNOpt measured; else padding on all sides |
| then | the decisions of the schedule, by the names of the schema (`src/tilewright/codegen/gpu/`) |
| status | `ok`, `wrong`, `refused`, `crashed` (below) |
| time_us | a whole call, zeroing included: median of replays of a CUDA graph, data in L2 |
| registers, spill_bytes | of the main kernel, by the compiler |

`wrong`: an element differs from the definition's by more than 1e-4 of the largest. `refused`: the
schedule cannot be generated or does not fit the device. `crashed`: the device gave an error.

Batch 1, fp32, NCHW; weights packed ahead. rs and s: lanes, tiles and splits by CNNOpt's conventions
(`src/tilewright/schedule/cnnopt_space.py`), parts joined by atomics into a zeroed result.
"""

_translate: Translate


def start(architecture: str) -> None:
    """What a compiling process does first."""
    global _translate
    _translate = cubin(architecture)


def compiled(units: list[Unit]) -> list[Compiled]:
    return [compile_unit(unit, _translate) for unit in units]


def names(schema: str, intrinsic: str) -> tuple[str, ...]:
    return DECISIONS if schema in TILES else tuple(CHOICES[schema, intrinsic])


def decisions(schedule: GpuSchedule) -> tuple[int, ...]:
    return tuple(schedule[name] for name in names(schedule.schema, schedule.intrinsic))


class Sets:
    """The files of one set, one for each schema, and what they hold."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.files: dict[tuple[str, str], RowFile] = {}
        self.done: dict[tuple[str, str], set[tuple[int, ...]]] = {}

    def file(self, schema: str, intrinsic: str) -> RowFile:
        kind = (schema, intrinsic)
        if kind not in self.files:
            label = schema if intrinsic == 'fma' and schema != 'tiled' else f'{schema}-{intrinsic}'
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
        shape = _shape(unit)
        open_ = tuple(s for s in unit.schedules if (*shape, *decisions(s)) not in self.done[kind])
        return Unit(unit.problem, open_) if open_ else None

    def add(self, unit: Unit, row: Row) -> None:
        file = self.file(row.schedule.schema, row.schedule.intrinsic)
        taken = ['' if v is None else v for v in (row.registers, row.spill_bytes)]
        micro = '' if row.time_us is None else f'{row.time_us:.3f}'
        file.add(*_shape(unit), *decisions(row.schedule), row.status, micro, *taken)

    def close(self) -> None:
        for file in self.files.values():
            file.repack()


def _shape(unit: Unit) -> tuple[int, ...]:
    return tuple(getattr(unit.problem, name) for name in SHAPE)


def sources(options: argparse.Namespace) -> list[Source]:
    if options.set == 'train':
        return train_sources(options.problems)
    kinds = [
        (schema.partition('/')[0], schema.partition('/')[2] or 'fma')
        for schema in options.schemas.split(',')
    ]
    return layer_sources(kinds, tuple(name for name in options.layers.split(',') if name))


class Feeder:
    """Chunks of units that are left to measure; drawing them happens in processes of its own."""

    def __init__(self, pool: Executor, options: argparse.Namespace, sets: Sets) -> None:
        self.pool, self.sets, self.size = pool, sets, options.chunk
        self.machine = known_gpu(options.machine)
        self.sources = deque(sources(options))
        self.drawn: deque[Future] = deque()
        self.units: deque[Unit] = deque()
        self._draw()

    def _draw(self) -> None:
        while self.sources and len(self.drawn) < 8:
            self.drawn.append(self.pool.submit(units_of, self.sources.popleft(), self.machine))

    @property
    def exhausted(self) -> bool:
        return not (self.units or self.drawn or self.sources)

    def next(self, patient: bool) -> list[Unit]:
        """The next chunk; nothing where none is drawn yet, unless `patient`."""
        while not self.units and self.drawn and (patient or self.drawn[0].done()):
            found = self.drawn.popleft().result()
            self._draw()
            self.units.extend(u for u in map(self.sets.left, found) if u is not None)
        return [self.units.popleft() for _ in range(min(self.size, len(self.units)))]


def rows_of(meter: Meter, made: Compiled) -> Iterator[Row]:
    """Rows of a unit. One that takes the device down is recorded, so that a new run goes on."""
    measured = []
    try:
        for row in meter.measure(made):
            measured.append(row.schedule)
            yield row
    except StoreError as error:
        print(error, made.unit)
        lost = [s for s in made.unit.schedules if s not in measured]
        yield from (Row(made.unit.problem, schedule, 'crashed') for schedule in lost)
        raise


def measure(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    folder = options.out
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'README.md').write_text(README)
    sets = Sets(folder, options.set)
    context = get_context('spawn')
    workers = options.workers or max((os.cpu_count() or 2) - 1, 1)
    counts: Counter[str] = Counter()
    # These processes start before the GPU is touched here.
    with (
        ProcessPoolExecutor(workers, context, start, (options.architecture,)) as pool,
        ProcessPoolExecutor(2, context) as drawers,
        ExitStack() as stack,
    ):
        feeder = Feeder(drawers, options, sets)
        flying: set[Future] = set()
        meter, shown = None, time.monotonic()
        stack.callback(sets.close)
        while time.monotonic() < end and not (feeder.exhausted and not flying):
            while len(flying) < 3 * workers:
                chunk = feeder.next(patient=not flying)
                if not chunk:
                    break
                flying.add(pool.submit(compiled, chunk))
            if meter is None:
                meter = cuda_meter()
                description = meter.device.machine.to_json() | {'tilewright': VERSION}
                (folder / 'dataset.json').write_text(json.dumps(description, indent=1) + '\n')
            ready, flying = wait(flying, 0.2, FIRST_COMPLETED)
            for made in chain.from_iterable(future.result() for future in ready):
                if time.monotonic() >= end:
                    break
                for row in rows_of(meter, made):
                    sets.add(made.unit, row)
                    counts[row.status] += 1
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                print(dict(counts), f'{end - shown:.0f} s left', flush=True)
        whole = feeder.exhausted and not flying and time.monotonic() < end
        for executor in (pool, drawers):
            executor.shutdown(wait=False, cancel_futures=True)
    print(dict(counts), 'nothing is left' if whole else 'run again for the rest')


def show_plan(options: argparse.Namespace) -> None:
    """Problems, schedules and compilations by set and schema."""
    machine = known_gpu(options.machine)
    for name in ('layers', 'train'):
        counts: Counter[str] = Counter()
        compilations: Counter[str] = Counter()
        chosen = sources(argparse.Namespace(**vars(options) | {'set': name}))
        for source in chosen:
            kind = f'{source.schema}/{source.intrinsic}'
            for unit in units_of(source, machine):
                counts[kind] += len(unit.schedules)
                compilations[kind] += 1 + (len(unit.schedules) > 1)
        problems = {source.problem.shape for source in chosen}
        print(name, len(problems), 'problems')
        print('  schedules   ', dict(counts))
        print('  compilations', dict(compilations))


def show_status(options: argparse.Namespace) -> None:
    total = 0
    for path in sorted(options.out.glob('*.csv.gz')):
        rows = read_rows(path)
        total += path.stat().st_size
        problems = {tuple(row[c] for c in SHAPE) for row in rows}
        states = dict(Counter(row['status'] for row in rows))
        print(path.name, len(rows), 'rows', len(problems), 'problems', states)
    print(total, 'bytes in all')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('set', choices=['layers', 'train', 'plan', 'status'])
    parser.add_argument('--schemas', default=','.join(ALL))
    parser.add_argument('--layers', default='', help='names such as R2,Y4; all where empty')
    parser.add_argument('--problems', type=int, default=200)
    parser.add_argument('--seconds', type=float, default=540.0)
    parser.add_argument('--workers', type=int, default=0)
    parser.add_argument('--chunk', type=int, default=8)
    parser.add_argument('--machine', default='h200', help='whose limits the spaces keep')
    parser.add_argument('--architecture', default='sm_90')
    parser.add_argument('--out', type=Path, default=Path('bench/results/h200'))
    options = parser.parse_args()
    verbs = {'plan': show_plan, 'status': show_status}
    verbs.get(options.set, measure)(options)


if __name__ == '__main__':
    main()
