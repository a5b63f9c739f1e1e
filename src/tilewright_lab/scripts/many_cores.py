"""Layers and networks with 1, 2, 4, ... threads beside other libraries, predicted beside measured.

    python -m tilewright_lab.scripts.many_cores --threads 1,2,4,8,16 --within 380 --json F

Goes in: layers, networks, thread counts. Comes out: a JSON file that is complete after each row, so
that a run that ends early is of use; with `--json` of an earlier run it goes on from there.

Schedules are chosen on this host, as `optimize` does, and the `--top` best predicted are measured.
Rounds are interleaved (compare/rounds.py): everybody alone, everybody on the same CPUs. Where two
CPUs are threads of one core, which virtual machines may hide (machine/measure.py finds it), as many
threads as there are cores run on one CPU of each. More threads than cores: the others get all CPUs;
ours, which are made for cores, stay as many as those.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.cli.output import versions
from tilewright.errors import TilewrightError
from tilewright.files import replacing
from tilewright.machine.machine import Machine
from tilewright.machine.measure import core_cpus, load_machine
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.pipeline import optimize
from tilewright.store.records import Store, open_store
from tilewright_lab.compare.layers import Arena, Entry, compare_kernels
from tilewright_lab.compare.networks import NetworkArena, Subject, compare_network
from tilewright_lab.peers.contestants import OURS
from tilewright_lab.peers.peers import Peer, absence

LAYERS = 'mopt/R2,mopt/R6,mopt/R9,mopt/R12,mopt/Y4,mopt/Y13,mopt/M5'
NETWORKS = 'resnet50'
THREADS = '8,1,2,16,4'  # what matters most first
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n', 1)[0])
    parser.add_argument('--layers', default=LAYERS)
    parser.add_argument('--networks', default=NETWORKS)
    parser.add_argument('--threads', default=THREADS)
    parser.add_argument('--against', default='torch,onnxruntime')
    parser.add_argument('--algorithm', default='auto', choices=['auto', 'direct'])
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--turn-ms', type=float, default=30.0)
    parser.add_argument('--top', type=int, default=2)
    parser.add_argument('--within', type=float, default=1e6, help='begin no row after so many s')
    parser.add_argument('--json', type=Path, required=True)
    given = parser.parse_args()
    end = time.monotonic() + given.within
    cpus, every = placed(), sorted(os.sched_getaffinity(0))
    machine, warning = load_machine()
    kept = json.loads(given.json.read_text()) if given.json.exists() else {'rows': []}
    rows: list[Row] = kept['rows']
    head = {
        'machine': machine.to_json(), 'warning': warning, 'versions': versions(), 'cpus': cpus,
        'every_cpu': every, 'given': vars(given) | {'json': str(given.json)},
    }  # fmt: skip
    names = [name for name in given.against.split(',') if name and not absence(name)]
    print(f'{machine.name}: {machine.cores} cores on CPUs {cpus} of {every}; {names}', flush=True)
    with open_store() as store:
        for threads in map(int, given.threads.split(',')):
            os.sched_setaffinity(0, cpus if threads <= len(cpus) else every)
            done = {(row['name'], row['threads'], row['algorithm']) for row in rows}
            for name, make in work(given, machine, threads, names, store):
                if (name, threads, given.algorithm) in done:
                    continue
                if time.monotonic() > end:
                    print(f'{given.within:g} s are over; {len(rows)} rows are kept', flush=True)
                    return
                row = {'name': name, 'threads': threads, 'algorithm': given.algorithm} | made(make)
                rows.append(row)
                with replacing(given.json) as path:
                    path.write_text(json.dumps(head | {'rows': rows}, indent=1) + '\n')
                print(line(row), flush=True)


def placed() -> list[int]:
    """One CPU for each core; where the system shows more, ours are kept on them from now on."""
    cpus = core_cpus()
    if len(cpus) < len(os.sched_getaffinity(0)):
        os.environ['TILEWRIGHT_CPUS'] = ','.join(map(str, cpus))
    return list(cpus)


def work(
    given: argparse.Namespace, machine: Machine, threads: int, names: Sequence[str], store: Store
) -> Iterator[tuple[str, Callable[[], Row]]]:  # fmt: skip
    """What is to be measured with so many threads: names, and functions that do it."""
    layers = list(expand(given.layers)) if given.layers else []
    with Arena(names, threads) as arena:
        for name, group, _ in layers:
            yield name, lambda group=group: layer(given, machine, group, arena, store)
    ours = Peer(OURS, threads, work='network')
    peers = [name for name in names if not absence(name, 'network')]
    with NetworkArena(peers, threads, ours) as networks:
        for name in filter(None, given.networks.split(',')):
            yield name, lambda name=name: network(given, machine, name, networks)


def layer(
    given: argparse.Namespace, machine: Machine, group: Group, arena: Arena, store: Store
) -> Row:  # fmt: skip
    threads = min(arena.threads, machine.cores)
    plan = optimize(
        group, machine, given.top, True, threads, algorithm=given.algorithm, store=store, seed=1
    )
    best = plan.best
    entry = Entry(plan.library(best), best.schedule.schema, best.schedule.digest)
    (result,) = compare_kernels(
        group, [entry], arena, rounds=given.rounds, turn_ms=given.turn_ms, seed=1
    )
    return {
        'our_threads': best.schedule.threads, 'predicted_ms': 1e3 * best.prediction.seconds,
        'schedule': best.schedule.to_json(), 'result': result.to_json(),
    }  # fmt: skip


def network(given: argparse.Namespace, machine: Machine, name: str, arena: NetworkArena) -> Row:
    threads = min(arena.threads, machine.cores)
    options = {'tune': 'model', 'threads': threads}
    with tempfile.TemporaryDirectory() as folder:
        result = compare_network(
            Subject.of_zoo(name, Path(folder), 1), arena, options=options, rounds=given.rounds,
            turn_ms=given.turn_ms, seed=1,
        )  # fmt: skip
    return {'our_threads': threads, 'predicted_ms': None, 'result': result.to_json()}


def made(make: Callable[[], Row]) -> Row:
    """A row, with how long it took; or what went wrong, since the others are still of use."""
    start = time.monotonic()
    try:
        row = make()
    except (TilewrightError, OSError) as error:
        row = {'error': f'{type(error).__name__}: {error}'}
    return row | {'took_s': round(time.monotonic() - start, 1)}


def line(row: Row) -> str:
    """One row for people."""
    head = f'{row["name"]} x{row["threads"]} ({row["took_s"]} s)'
    if 'error' in row:
        return f'{head}: {row["error"]}'
    result = row['result']
    times = {
        one['name']: statistics.median(ms for turn in one['samples_ms'] for ms in turn)
        for one in (result['ours'], *result['peers'])
        if one['status'] == 'ok'
    }
    told = ', '.join(f'{name} {ms:.3f} ms' for name, ms in times.items())
    others = [ms for name, ms in times.items() if name != OURS]
    ratio = f'; ratio {min(others) / times[OURS]:.2f}' if others and OURS in times else ''
    predicted = row['predicted_ms']
    return f'{head}: {told}{ratio}' + (f'; predicted {predicted:.3f} ms' if predicted else '')


if __name__ == '__main__':
    main()
