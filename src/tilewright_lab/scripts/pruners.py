"""PUL, the bound and the time model as pruners: does the best schedule survive the first 1%?

    python -m tilewright_lab.scripts.pruners --collect bench/results/h200/chains-random.json \
        --seconds 120      measure random schedules of fused kernels; needs a GPU
    python -m tilewright_lab.scripts.pruners --json bench/results/h200/pruned-fused.json
                           judge them, beside what gpu_model.py found of kernels that are not fused

DeepCuts keeps the first 1% by PUL, and claims that the best is always among them. Goes in: the ten
chains of gpu_chains.py, `--samples` random schedules of the `dfg` schema for each, timed on a GPU
and checked against the reference; and bench/results/h200/pruned.json with all measured schedules of
CNNOpt's 20 layers. Comes out, by layer: whether the best survives each pruner, and what is lost,
the best of the first 1% over the best; which share would have to be kept; whether a measured time
is below the bound. Estimates are made again from the schedules, so that a file outlives the models;
`--collect` goes on with the file where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import InputError, ScheduleError, TilewrightError
from tilewright.kernels.gpu.schemas.dfg.plan import NAME as DFG
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.estimates import ESTIMATES
from tilewright.model.gpu.time import is_priced
from tilewright.model.gpu.transactions import work
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.store.records import open_store
from tilewright_lab.compare.gpu_layers import GpuBench, GpuOptions
from tilewright_lab.compare.gpu_timed import TimedGroup, timed_groups
from tilewright_lab.scripts.gpu_chains import BATCHES, chains, tied
from tilewright_lab.scripts.gpu_dfg import rows_of, write
from tilewright_lab.scripts.gpu_model import Ranker, Sample, by_layer, show_pruned

FOLDER = Path('bench/results/h200')
FUSED = 'fused chains'
DRAWS = 40  # for each schedule that is wanted


def fused_groups(batches: Sequence[int] = BATCHES) -> dict[str, Group]:
    """Name -> one group of each chain, at each batch size."""
    return {
        f'{name}, batch {batch}': tied(groups)
        for batch in batches
        for name, groups in chains(batch).items()
    }


def drawn(
    group: Group, machine: GpuMachine, count: int, seed: int
) -> dict[str, tuple[GpuSchedule, ...]]:
    """Distinct random schedules that fit the machine; the work of one process."""
    space, rng = moves(group, machine, [DFG]), random.Random(f'{group.digest} {seed}')
    found: dict[str, GpuSchedule] = {}
    for _ in range(DRAWS * count):
        one = space.draw(rng)
        if one is not None and is_priced(group, one, machine):
            found[one.digest] = one
        if len(found) == count:
            break
    return {DFG: tuple(found.values())}


def row_of(found: TimedGroup) -> dict[str, Any]:
    """One chain: what was drawn, and what each took; None: it did not work."""
    return {
        'layer': found.name, 'label': found.group.label, 'digest': found.group.digest,
        'schedules': [
            {'schedule': s.to_json(), 'us': None if t is None else 1e6 * t}
            for s, t in found.of(DFG)
        ],
    }  # fmt: skip


def collect(
    groups: Mapping[str, Group], target: str, samples: int, seed: int, until: float, file: Path
) -> dict[str, Any]:
    """Measure what the file has not; comes out: what it has then."""
    options = GpuOptions(target, peers=(), repeats=7)
    with open_store() as store, GpuBench(options, store, 1) as bench:
        said = {
            'device': bench.opened.device, 'target': target, 'trials': samples, 'seed': seed,
            'versions': bench.opened.versions, 'machine': bench.opened.machine.to_json(),
        }  # fmt: skip
        rows = {row['layer']: row for row in rows_of(file, said)}
        left = {name: group for name, group in groups.items() if name not in rows}
        for found in timed_groups(bench, left, drawn, (samples, seed), until):
            rows[found.name] = row_of(found)
            best = found.working(DFG)[:1]
            at = f'best {1e6 * best[0][1]:.2f} us' if best else 'nothing worked'
            print(f'{found.name}: {len(found.planned[DFG])} schedules, {at}', flush=True)
            write(file, said, rows.values(), groups)
        return write(file, said, rows.values(), groups)


def samples_of(data: Mapping[str, Any], groups: Mapping[str, Group]) -> Iterator[Sample]:
    """Schedules that worked, and that this version still knows of the same groups."""
    for row in data['rows']:
        group = groups.get(row['layer'])
        if group is None or group.label != row['label']:
            continue
        for one in row['schedules']:
            try:
                schedule = GpuSchedule.from_json(one['schedule'])
                done = work(group, schedule)
            except ScheduleError:
                continue
            if one['us'] is not None:
                yield Sample(
                    row['layer'], group, schedule, 1e-6 * one['us'], done, done,
                    group.compulsory_bytes,
                )  # fmt: skip


def rankers_of(machine: GpuMachine) -> dict[str, Ranker]:
    """The pruners; what an estimate says nothing of comes last."""

    def by(estimate: Callable[..., float]) -> Ranker:
        def seconds(sample: Sample) -> float:
            try:
                return estimate(sample.group, sample.schedule, machine)
            except ScheduleError:
                return math.inf

        return seconds

    return {name: by(estimate) for name, estimate in ESTIMATES.items()}


def judged(data: Mapping[str, Any], groups: Mapping[str, Group]) -> dict[str, Any]:
    """{set -> pruner -> by layer and on average}, and times below the bound."""
    machine = GpuMachine.from_json(data['machine'])
    samples = list(samples_of(data, groups))
    if not samples:
        raise InputError('no measured schedule is one of this version; --collect them again')
    by = rankers_of(machine)
    tables = show_pruned(samples, by, {FUSED: (DFG,)})
    below = [s for s in samples if s.seconds < by['bound'](s)]
    print(f'{len(below)} of {len(samples)} measured times are below the bound')
    for sample in below:
        print(f'  {sample.layer}: {sample.schedule.tiles}, {1e6 * sample.seconds:.2f} us')
    return {
        'pruned': tables, 'below_bound': len(below), 'samples': len(samples),
        'layers': {layer: len(rows) for layer, rows in by_layer(samples).items()},
    }  # fmt: skip


def layer_lines(tables: Mapping[str, Any]) -> list[str]:
    """By set and layer: whether the best survives each pruner's first 1%, else what is lost."""
    lines = []
    for title, ways in tables.items():
        names = [name for name in ESTIMATES if name in ways]
        lines.append(f'{title}: best of the first 1% over the best, less 1 (0: it survives)')
        for layer in ways[names[0]]['layers']:
            found = [ways[name]['layers'][layer] for name in names]
            said = (
                f'{name} 0' if row['best'] else f'{name} {row["loss"]:.1%}'
                for name, row in zip(names, found, strict=True)
            )
            lines.append(f'  {layer}: {found[0]["rows"]} schedules, {", ".join(said)}')
    return lines


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--collect', type=Path, metavar='FILE', help='measure on a GPU, write here')
    parser.add_argument('--samples', type=int, default=60, help='schedules drawn for each chain')
    parser.add_argument('--seconds', type=float, default=120.0, help='no new chain after these')
    parser.add_argument('--target', default='cuda')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--fused', type=Path, default=FOLDER / 'chains-random.json')
    parser.add_argument('--unfused', type=Path, default=FOLDER / 'pruned.json')
    parser.add_argument('--json', type=Path, help='where to write what was found of fused kernels')
    options = parser.parse_args(words)
    groups = fused_groups()
    try:
        if options.collect is not None:
            until = time.monotonic() + options.seconds
            found = collect(
                groups, options.target, options.samples, options.seed, until, options.collect
            )
            print(f'{len(found["rows"])} of {len(groups)} chains are in {options.collect}')
            return 0
        tables = _read(options.unfused)
        if options.fused.exists():
            result = judged(_read(options.fused), groups)
            tables = tables | result['pruned']
            if options.json is not None:
                options.json.write_text(json.dumps(result, indent=1) + '\n')
        else:
            print(f'{options.fused} is not there: fused kernels have to be measured (--collect)')
        print('\n'.join(layer_lines(tables)))
    except TilewrightError as error:
        print(f'pruners: {error}', file=sys.stderr)
        return error.exit_code
    return 0


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f'{file} cannot be read: {error}') from None


if __name__ == '__main__':
    sys.exit(main())
