"""CNNOpt's Table 6: how modelled and measured counts of a kernel go with its time.

    python -m tilewright_lab.scripts.gpu_profile table --json bench/results/h200/table6.json  on \
        the GPU
    python -m tilewright_lab.scripts.gpu_profile correlate table6.json  modelled and correlated \
        anew, no GPU
    python -m tilewright_lab.scripts.gpu_profile table --json t.json --counters saved.csv --times \
        saved.json

`table` chooses about a hundred schedules (of all layers the best that is known, of some a seeded
sample of every schema), times and checks them, runs the same process again under Nsight Compute
(`ncu`, one pass over all kernels, caches and clocks left alone), and writes counts, times and
correlations. With --counters and --times nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.work import TRANSACTION
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.occupancy import occupancy, waves
from tilewright.model.gpu.transactions import work
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.compiled import Compiled, Family, compile_families, cubins
from tilewright_lab.collect.layers import SHAPE, by_definition, group_of
from tilewright_lab.collect.meter import Meter, cuda_meter
from tilewright_lab.collect.problems import (
    SAMPLED,
    SEED,
    TILES,
    LayerSource,
    Problem,
    families_of,
    layers,
)
from tilewright_lab.collect.rows import read_rows
from tilewright_lab.compare.gpu_counters import METRICS, command, parse, pearson, wanted

PREFIX = 'profiled'
MAIN = f'{PREFIX}[0-9]+_(rs|s|tiled|patch|general)_conv2d'  # not what packs or zeroes
SAMPLED_LAYERS = ('D2', 'Y8', 'R2', 'R6', 'R10')
OF_EACH = {'rs': 5, 's': 2, 'tiled': 2, 'patch': 2}
SECTOR = 32
MODELLED = (
    'shared_transactions', 'global_sectors', 'occupancy_limit_pct', 'occupancy_pct', 'waves',
)  # fmt: skip


def best_rows(folder: Path, schema: str) -> dict[tuple[int, ...], dict[str, str]]:
    """The fastest row of every problem in a data set, where it was measured."""
    path = folder / f'layers-{schema}.csv.gz'
    found: dict[tuple[int, ...], dict[str, str]] = {}
    for row in read_rows(path) if path.exists() else ():
        if row['status'] == 'ok':
            shape = tuple(int(row[name]) for name in SHAPE)
            if shape not in found or float(row['time_us']) < float(found[shape]['time_us']):
                found[shape] = row
    return found


def choose(folder: Path, machine: GpuMachine) -> list[dict]:
    """The schedules of the table, the same every time for the same files."""
    chosen: list[dict] = []
    rs = best_rows(folder, 'rs')
    winners = folder / 'cnnopt.json'
    told = json.loads(winners.read_text())['layers'] if winners.exists() else []
    won = {layer['name'].split('/')[-1]: layer['schedule'] for layer in told if layer['schedule']}
    for name, problem in layers().items():
        flat = problem.prepadded
        row = rs.get(tuple(getattr(flat, n) for n in SHAPE))
        if row is not None:
            tiles = tuple((n, int(row[n])) for n in list(row)[len(SHAPE) : -4])
            chosen.append(_entry(name, 'best rs', flat, GpuSchedule('rs', tiles)))
        if name in won:
            chosen.append(_entry(name, 'winner', problem, GpuSchedule.from_json(won[name])))
        if name not in SAMPLED_LAYERS:
            continue
        for schema, intrinsic in [*((s, 'fma') for s in TILES), *SAMPLED]:
            if schema not in OF_EACH:
                continue
            of = flat if schema in TILES else problem
            drawn = families_of(LayerSource(of, schema, intrinsic, 40), machine)
            random = Random(f'{SEED} {name} {schema} {intrinsic}')
            some = random.sample(drawn, min(OF_EACH[schema], len(drawn)))
            chosen += [_entry(name, 'sample', of, random.choice(one.schedules)) for one in some]
    return chosen


def _entry(layer: str, kind: str, problem: Problem, schedule: GpuSchedule) -> dict:
    return {
        'layer': layer, 'kind': kind, 'problem': asdict(problem), 'schedule': schedule.to_json()
    }  # fmt: skip


def prepared(chosen: Sequence[dict]) -> list[Compiled]:
    """Machine code of each; names of kernels say whose they are."""
    translate = cubins('sm_90a')

    def one(number: int) -> Compiled:
        entry = chosen[number]
        problem, schedule = Problem(**entry['problem']), GpuSchedule.from_json(entry['schedule'])
        family = Family(problem, (schedule,))
        return compile_families(problem.group, (family,), translate, f'{PREFIX}{number}_')[0]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, range(len(chosen))))


def run(path: Path, out: Path | None) -> None:
    """Check and time all schedules, or, under the profiler, launch each of them once."""
    chosen = json.loads(path.read_text())
    made = prepared(chosen)
    meter: Meter = cuda_meter(partial(by_definition, group_of))
    if out is None:
        meter.seconds = lambda calls: 0.0
    found = []
    for number, one in enumerate(made):
        (row,) = meter.measure(one)
        found.append(
            {'status': row.status, 'time_us': row.time_us, 'registers': row.registers}
        )  # fmt: skip
        print(number, found[-1], flush=True)
    if out is not None:
        out.write_text(json.dumps(found) + '\n')


def modelled(entry: dict, machine: GpuMachine, registers: int | None) -> dict[str, float]:
    """What the model counts of the same kernel; nothing of a schema without counts."""
    problem, schedule = Problem(**entry['problem']), GpuSchedule.from_json(entry['schedule'])
    try:
        done = work(problem.group, schedule, registers)
        held = occupancy(machine, done.threads, done.registers, done.shared_bytes)
    except ScheduleError:
        return {}
    places = machine.multiprocessors * held.blocks
    # Places for blocks in all waves, of which the last may be short.
    filled = done.blocks / (places * waves(machine, done.blocks, held.blocks).whole)
    return {
        'shared_transactions': done.blocks * (done.wavefronts + done.copied / 4 / TRANSACTION),
        'global_sectors': done.global_bytes / SECTOR,
        'occupancy_limit_pct': 100.0 * held.share,
        'occupancy_pct': 100.0 * held.share * filled,
        'waves': done.blocks / places,
    }


def correlations(rows: Sequence[dict]) -> dict[str, dict[str, dict]]:
    """Pearson with the time: over the best of all layers, as in the paper, and within layers."""
    made: dict[str, dict[str, dict]] = {}
    for source in ('measured', 'modelled'):
        names = [n for n in METRICS if n != 'time_ns'] if source == 'measured' else None
        names = names or list(MODELLED)
        for name in names:
            pairs = {
                kind: [
                    (row[source][name], row['time_us'])
                    for row in rows
                    if row['kind'] == kind and name in row[source]
                ]
                for kind in ('best rs', 'winner')
            }
            within = []
            for layer in SAMPLED_LAYERS:
                some = [
                    (row[source][name], row['time_us'])
                    for row in rows
                    if row['layer'] == layer and name in row[source]
                ]
                value = pearson(some)
                within += [] if value is None else [value]
            made.setdefault(name, {})[source] = {
                'best_rs_of_layers': pearson(pairs['best rs']),
                'winners_of_layers': pearson(pairs['winner']),
                'within_layers_mean': statistics.mean(within) if within else None,
                'pairs': sum(name in row[source] for row in rows),
            }
    return made


def agreement(rows: Sequence[dict]) -> dict[str, float | None]:
    """Pearson between what was modelled and what was measured."""
    return {
        name: pearson(
            [
                (row['modelled'][name], row['measured'][name])
                for row in rows
                if name in row['modelled'] and name in row['measured']
            ]
        )
        for name in MODELLED
    }


def joined(
    chosen: Sequence[dict], times: Sequence[dict], counters: dict[str, dict[str, float]],
    machine: GpuMachine,
) -> list[dict]:  # fmt: skip
    """Schedules that are right and were profiled, with everything that is known of them."""
    rows = []
    named = {int(m[1]): v for k, v in counters.items() if (m := re.match(rf'{PREFIX}(\d+)_', k))}
    for number, (entry, time) in enumerate(zip(chosen, times, strict=True)):
        measured = named.get(number)
        if time['status'] == 'ok' and measured:
            told = modelled(entry, machine, time['registers'])
            rows.append(entry | time | {'measured': measured, 'modelled': told})
    return rows


def table(options: argparse.Namespace) -> int:
    machine = known_gpu(options.machine)
    folder = Path(options.data)
    chosen = choose(folder, machine)
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / 'chosen.json'
        listed.write_text(json.dumps(chosen))
        csv_path, times_path = options.counters, options.times
        if csv_path is None:
            if shutil.which('ncu') is None:
                print('ncu (Nsight Compute) is not on the PATH', file=sys.stderr)
                return 3
            csv_path, times_path = Path(scratch) / 'ncu.csv', Path(scratch) / 'times.json'
            program = [sys.executable, __file__, 'run', str(listed)]
            subprocess.run([*program, '--out', str(times_path)], check=True)
            known = subprocess.run(
                ['ncu', '--query-metrics'], capture_output=True, text=True, check=False
            )
            asked = wanted(known.stdout)
            profile = command(asked, str(csv_path), MAIN, program)
            done = subprocess.run(profile, capture_output=True, text=True, check=False)
            print(done.stdout[-2000:], done.stderr[-2000:])
            if options.json:
                shutil.copy(csv_path, options.json.with_suffix('.ncu.csv'))
                shutil.copy(times_path, options.json.with_suffix('.times.json'))
        counters = parse(csv_path.read_text())
        times = json.loads(times_path.read_text())
    rows = joined(chosen, times, counters, machine)
    document = {
        'machine': machine.to_json(), 'metrics': METRICS, 'schedules': len(chosen),
        'profiled': len(rows), 'agreement': agreement(rows), 'table6': correlations(rows),
        'rows': rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + '\n')
    show(document)
    return 0


def show(document: dict) -> None:
    print(f'{document["profiled"]} of {document["schedules"]} schedules')
    names = ('best_rs_of_layers', 'winners_of_layers', 'within_layers_mean', 'pairs')
    print('metric'.ljust(22), 'source'.ljust(9), *(name.rjust(19) for name in names))
    for metric, by_source in document['table6'].items():
        for source, values in by_source.items():
            cells = ['-' if values[n] is None else f'{values[n]:.3f}' for n in names[:3]]
            print(metric.ljust(22), source.ljust(9),
                  *(cell.rjust(19) for cell in [*cells, str(values['pairs'])]))  # fmt: skip
    print('modelled against measured', document['agreement'])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest='verb', required=True)
    one = verbs.add_parser('table')
    one.add_argument('--json', type=Path)
    one.add_argument('--machine', default='h200')
    one.add_argument('--data', default='bench/results/h200', help='where measured rows are')
    one.add_argument('--counters', type=Path, help='CSV of an earlier profile')
    one.add_argument('--times', type=Path, help='times of the same schedules')
    two = verbs.add_parser('run', help='what runs under the profiler')
    two.add_argument('list', type=Path)
    two.add_argument('--out', type=Path)
    three = verbs.add_parser('correlate')
    three.add_argument('file', type=Path)
    options = parser.parse_args()
    if options.verb == 'run':
        run(options.list, options.out)
        return 0
    if options.verb == 'correlate':
        document = json.loads(options.file.read_text())
        machine = GpuMachine.from_json(document['machine'])
        rows = [
            row | {'modelled': modelled(row, machine, row['registers'])}
            for row in document['rows']
        ]  # fmt: skip
        made = {'rows': rows, 'agreement': agreement(rows), 'table6': correlations(rows)}
        options.file.write_text(json.dumps(document | made, indent=1) + '\n')
        show(document | made)
        return 0
    return table(options)


if __name__ == '__main__':
    raise SystemExit(main())
