"""Kernels from data-flow graphs beside the hand-written schemas, layer by layer, on a GPU.

    python -m tilewright_lab.scripts.gpu_dfg --json bench/results/h200/dfg.json --seconds 500

Goes in: a GPU, layers (CNNOpt's 20 and Boda's 43). Comes out: for each layer the best of `--trials`
schedules of the `dfg` schema, in the order of the time model, and the best of as many of all other
schemas, as `tilewright compile` would choose them; their ratio; how many kernels were faster than
the bound. Every answer is checked against the float64 reference. The file is written after every
layer; the same command goes on where it was stopped, and `--seconds` stops it between two layers. A
file of another device, or with another number of trials, is refused. A page shows it by the mark
`table dfg FILE` (tables.py).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import InputError, ScheduleError, TilewrightError
from tilewright.kernels.gpu.registry import schema_named
from tilewright.kernels.gpu.schemas.dfg.plan import NAME as DFG
from tilewright.kernels.gpu.schemas.dfg.space import decisions
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.estimates import ESTIMATES
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import Moves
from tilewright.search.gpu.tune import tune
from tilewright.store.records import open_store
from tilewright.targets.gpu.choose import search, varied
from tilewright_lab.compare.gpu_layers import GpuBench, GpuOptions
from tilewright_lab.compare.gpu_timed import TimedGroup, timed_groups

LAYERS = 'cnnopt,boda'
OTHERS = 'others'
LOOKED = 120  # schedules of dfg that the model looks at


def planned(
    group: Group, machine: GpuMachine, trials: int, looked: int = LOOKED
) -> dict[str, tuple[GpuSchedule, ...]]:
    """The first `trials` of both by the time model; the work of one process."""
    found = search(group, machine, 2 * trials, DEFAULT_LIMIT)
    others = tuple(c.schedule for c in found if c.schedule.schema != DFG)
    return {DFG: dfg_by_model(group, machine, trials, looked), OTHERS: others[:trials]}


def dfg_by_model(
    group: Group, machine: GpuMachine, trials: int, looked: int
) -> tuple[GpuSchedule, ...]:
    """The best of the dfg schema by the time model, also where a search would not look at it; of
    each intrinsic some, as `search` has it.
    """
    kinds = [kind for kind in schema_named(DFG).intrinsics if machine.has(kind)]
    space = Moves(group, machine, {(DFG, kind): decisions(group, kind) for kind in kinds})
    tried = tune(
        space, lambda some: [_predicted(group, s, machine) for s in some], trials=looked,
        seed=random.Random(group.digest).getrandbits(32),
    )  # fmt: skip
    return tuple(varied([t.schedule for t in tried if t.seconds is not None], trials))


def _predicted(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> float | None:
    try:
        return ESTIMATES['time'](group, schedule, machine)
    except ScheduleError:
        return None


def row_of(found: TimedGroup, machine: GpuMachine) -> dict[str, Any]:
    """One layer: the best of both, their ratio, and how many times are below the bound."""
    row: dict[str, Any] = {'layer': found.name, 'label': found.group.label}
    for what in (DFG, OTHERS):
        working = found.working(what)
        best = working[0] if working else None
        row |= {
            f'{what}_us': best and 1e6 * best[1], f'{what}_tried': len(found.planned[what]),
            f'{what}_worked': len(working), f'{what}_schedule': best and best[0].to_json(),
            f'{what}_predicted_us': best and _us(_predicted(found.group, best[0], machine)),
        }  # fmt: skip
    ours, others = row[f'{DFG}_us'], row[f'{OTHERS}_us']
    measured = [(s, t) for what in (DFG, OTHERS) for s, t in found.working(what)]
    return row | {
        'dfg_over_others': ours / others if ours and others else None,
        'bounded': len(measured),
        'below_bound': sum(is_below_bound(found.group, s, t, machine) for s, t in measured),
    }


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else 1e6 * seconds


def is_below_bound(
    group: Group, schedule: GpuSchedule, seconds: float, machine: GpuMachine
) -> bool:
    """Whether a measured time is shorter than what no kernel with these tiles can beat."""
    try:
        return seconds < ESTIMATES['bound'](group, schedule, machine)
    except ScheduleError:  # it has no counts, and so no bound
        return False


def line(row: Mapping[str, Any]) -> str:
    """A row while others are measured."""
    said = [
        f'{what} {us:.2f} us' if (us := row[f'{what}_us']) else f'{what}: nothing worked'
        for what in (DFG, OTHERS)
    ]
    ratio = row['dfg_over_others']
    return f'{row["layer"]}: {", ".join(said)}' + (f', ratio {ratio:.2f}' if ratio else '')


def run(
    layers: Mapping[str, Group], target: str, trials: int, until: float, file: Path,
    looked: int = LOOKED,
) -> dict[str, Any]:  # fmt: skip
    """Measure what the file has not; comes out: what it has then."""
    options = GpuOptions(target, peers=(), repeats=7)
    with open_store() as store, GpuBench(options, store, 1) as bench:
        said = {
            'device': bench.opened.device, 'target': target, 'trials': trials,
            'versions': bench.opened.versions, 'machine': bench.opened.machine.to_json(),
        }  # fmt: skip
        rows = {row['layer']: row for row in rows_of(file, said)}
        left = {name: group for name, group in layers.items() if name not in rows}
        for found in timed_groups(bench, left, planned, (trials, looked), until):
            rows[found.name] = row_of(found, bench.opened.machine)
            print(line(rows[found.name]), flush=True)
            write(file, said, rows.values(), layers)
        return write(file, said, rows.values(), layers)


def rows_of(file: Path, said: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What an earlier run has written; InputError where that was another device or question."""
    if not file.exists():
        return ()
    try:
        before = json.loads(file.read_text())
        rows = before['rows']
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f'{file} cannot be gone on with, {error!r}; name another file') from None
    for key in ('device', 'target', 'trials'):
        if before.get(key) != said[key]:
            raise InputError(
                f'{file} has {key} {before.get(key)!r}, and this is {said[key]!r}; name another '
                f'file'
            )
    return rows


def write(
    file: Path, said: Mapping[str, Any], rows: Any, layers: Mapping[str, Group]
) -> dict[str, Any]:
    """The file, whole; layers in the order of their suites."""
    order = list(layers)
    known = sorted(rows, key=lambda r: order.index(r['layer']) if r['layer'] in order else -1)
    found = dict(said) | {'complete': {r['layer'] for r in known} >= set(order), 'rows': known}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + '\n')
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--json', type=Path, required=True, help='where to write the rows')
    parser.add_argument('--layers', default=LAYERS, help='as in tilewright optimize')
    parser.add_argument('--trials', type=int, default=12, help='kernels timed of each kind')
    parser.add_argument('--looked', type=int, default=LOOKED, help='schedules of dfg for the model')
    parser.add_argument('--seconds', type=float, default=500.0, help='no new layer after these')
    parser.add_argument('--target', default='cuda')
    options = parser.parse_args(words)
    until = time.monotonic() + options.seconds
    try:
        layers = {name: group for name, group, _ in expand(options.layers)}
        found = run(
            layers, options.target, options.trials, until, options.json, options.looked
        )  # fmt: skip
    except TilewrightError as error:
        print(f'gpu_dfg: {error}', file=sys.stderr)
        return error.exit_code
    below = sum(row['below_bound'] for row in found['rows'])
    print(
        f'{len(found["rows"])} layers are in {options.json}, '
        f'{"all" if found["complete"] else "not all"} of them; {below} times below the bound'
    )
    return 0


if __name__ == '__main__':
    sys.exit(main())
