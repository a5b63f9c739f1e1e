"""What becomes of a fleet whose workers and coordinators die, and how it scales; by simulation.

    python -m tilewright_lab.scripts.fleet --json bench/results/xeon-2vcpu/fleet.json [WHAT ...]

Three things (WHAT, or all of them) are tried with candidates of every layer of a suite, each on
workers in processes of their own, which sleep instead of measuring (simulate/fleet.py):

    scaling   the same job with 1 and with 4 workers
    kills     4 workers, one of which is killed every few seconds
    restart   4 workers, and the coordinator killed in the middle and started again

All must end with the same rows, compared by a digest, also with those that FILE holds already. A
row is a group, a schedule, a status and every sample; how often a device was used is counted on the
side of the workers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tilewright.cli.output import versions
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.ops.suites import expand
from tilewright.runtime.child import package_paths
from tilewright.runtime.fleet import Fleet, open_fleet
from tilewright.schedule.choice import Choice
from tilewright.search.cpu.sample import take
from tilewright.store.records import Store, open_store, package_version
from tilewright.targets.fleet import plans
from tilewright.targets.target import Wanted
from tilewright_lab.simulate.fleet import LOG, ROUNDS, TARGET, TURN_S, devices

CANDIDATES = 2
WORKERS = (1, 4)


def coordinate(where: str, suite: str, path: Path) -> None:
    """The job itself: every layer of the suite, into one store. Says how long it took."""
    machine = load_machine(measure=False)[0]
    pieces = {name: (group, _wanted(group, machine)) for name, group, _ in expand(suite)}
    with open_fleet(where, devices, TARGET, package_version()) as fleet, open_store(path) as store:
        kind = next(iter(fleet.kinds()))
        begin = time.monotonic()
        done = sum(1 for _ in plans(fleet, kind, pieces, store))
        print(json.dumps({'seconds': time.monotonic() - begin, 'groups': done}))


def _wanted(group: Any, machine: Machine) -> Wanted:
    """Candidates that are drawn, not searched: what they are does not matter here."""
    drawn = take(group, machine, 1, 0, CANDIDATES, ())
    return Wanted(chosen=tuple(Choice(schedule, 0.0, 0.0) for schedule in drawn))


class Job:
    """One run in a folder of its own: workers, and a coordinator that may be started twice."""

    def __init__(self, folder: Path, workers: int, suite: str) -> None:
        self.folder, self.suite = folder, suite
        self.cache, self.store = folder / 'workers', folder / 'store.sqlite'
        self.cache.mkdir(parents=True)
        os.environ['TILEWRIGHT_CACHE_DIR'] = str(self.cache)  # of the workers that start now
        self.fleet: Fleet = open_fleet(f'local:{workers}', devices, TARGET, package_version())
        self.killed = 0

    def start(self) -> subprocess.Popen[str]:
        where = self.fleet.client.scheduler.address  # pyright: ignore[reportOptionalMemberAccess]
        words = ['--coordinate', where, '--suite', self.suite, '--store', str(self.store)]
        return subprocess.Popen(
            [sys.executable, '-m', __spec__.name if __spec__ else __name__, *words],
            stdout=subprocess.PIPE, text=True, env={**os.environ, **package_paths()},
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], kill_every: float | None = None) -> dict:
        """Wait for a coordinator, and kill a worker from time to time."""
        while True:
            try:
                said, _ = process.communicate(timeout=kill_every)
                break
            except subprocess.TimeoutExpired:
                self.kill_a_worker()
        if process.returncode:
            raise SystemExit(f'the coordinator ended with {process.returncode}')
        return json.loads(said.splitlines()[-1])

    def kill_a_worker(self) -> None:
        found: Any = self.fleet.client.run(os.getpid, on_error='ignore')
        if found:
            os.kill(random.choice(list(found.values())), signal.SIGKILL)
            self.killed += 1

    def close(self) -> dict:
        """End the workers; comes out: rows of the store, and turns that devices took."""
        self.fleet.close()
        turns = len((self.cache / LOG).read_text().splitlines())
        with open_store(self.store) as store:
            return {'rows': rows(store), 'turns': turns, 'workers_killed': self.killed}


def rows(store: Store) -> list:
    """What was measured, in an order that does not depend on when."""
    sql = 'SELECT group_digest, schedule_digest, status, measurement FROM records'
    found = store._run(lambda connection: connection.execute(sql).fetchall())
    return sorted([*key, json.loads(text)['samples_ms']] for *key, text in found)


def scaling(folder: Path, suite: str, every: float) -> dict:
    seconds, turns, digests, count = {}, {}, set(), 0
    for workers in WORKERS:
        job = Job(folder / f'scaling-{workers}', workers, suite)
        seconds[workers] = job.finish(job.start())['seconds']
        ended = job.close()
        turns[workers] = ended['turns']
        digests.add(digest(ended['rows']))
        count = len(ended['rows'])
        print(f'{workers} workers: {seconds[workers]:.1f} s', flush=True)
    speedup = seconds[1] / seconds[WORKERS[-1]]
    return {
        'seconds': seconds, 'turns': turns, 'speedup': speedup, 'rows': count,
        'digest': ' '.join(sorted(digests)),
    }  # fmt: skip


def kills(folder: Path, suite: str, every: float) -> dict:
    job = Job(folder / 'kills', WORKERS[-1], suite)
    said = job.finish(job.start(), every)
    return _summary(said, job.close()) | {'every_s': every}


def restart(folder: Path, suite: str, every: float) -> dict:
    job = Job(folder / 'restart', WORKERS[-1], suite)
    first = job.start()
    while not job.store.exists():
        time.sleep(0.05)
    time.sleep(2 * every)
    first.kill()
    first.wait()
    with open_store(job.store) as store:
        before = rows(store)
    said = job.finish(job.start())
    ended = job.close()
    kept = {tuple(row[:2]): row[3] for row in ended['rows']}
    lost = [row for row in before if kept[tuple(row[:2])][: len(row[3])] != row[3]]
    found = _summary(said, ended)
    return found | {'after_s': 2 * every, 'rows_before': len(before), 'rows_lost': len(lost)}


def _summary(said: dict, ended: dict) -> dict:
    stored = ended.pop('rows')
    return ended | said | {'rows': len(stored), 'digest': digest(stored)}


def digest(stored: list) -> str:
    return hashlib.sha256(json.dumps(stored).encode()).hexdigest()[:16]


WHAT = {'scaling': scaling, 'kills': kills, 'restart': restart}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else '')
    parser.add_argument('what', nargs='*', choices=[*WHAT, []], metavar='WHAT')
    parser.add_argument('--suite', default='mopt')
    parser.add_argument('--every', type=float, default=2.0, help='seconds between two kills')
    parser.add_argument('--json', type=Path)
    parser.add_argument('--coordinate', help=argparse.SUPPRESS)
    parser.add_argument('--store', type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.coordinate:
        coordinate(given.coordinate, given.suite, given.store)
        return 0
    asked = {
        'suite': given.suite, 'candidates': CANDIDATES, 'rounds': ROUNDS, 'turn_s': TURN_S,
    }  # fmt: skip
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    found = kept if kept.get('asked') == asked else {'asked': asked}
    found['versions'] = versions()
    for name in given.what or WHAT:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = WHAT[name](Path(folder), given.suite, given.every)
        print(f'{name}: {found[name]}', flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + '\n')
    digests = {found[name]['digest'] for name in WHAT if name in found}
    lost = found.get('restart', {}).get('rows_lost', 0)
    print('the same store' if len(digests) == 1 else 'stores differ', flush=True)
    return 0 if len(digests) == 1 and not lost else 1


if __name__ == '__main__':
    sys.exit(main())
