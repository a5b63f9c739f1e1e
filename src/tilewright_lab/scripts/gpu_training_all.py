"""All training workloads on a GPU in one go: prepared in processes, timed one after the other.

    python -m tilewright_lab.scripts.gpu_training_all --json training.json --gpu h200 --within 540

Goes in: workloads (all of gpu_training.py's, or --only NET-BATCH ..), more words for that script
behind `--`. Comes out: its JSON file, one row for each workload, written after every stage, so that
a run that is cut off keeps what it has. Each workload is a process of its own: it imports, chooses
and compiles without the GPU, then waits for its turn there (a locked file), so that nothing else
uses the GPU while it is checked and timed. One that fails leaves its error in its row; rows that
are complete are left alone. After --within seconds what still runs is ended. With --inductor
torch.compile takes part: its steps are compiled first, several at a time (--filled: that has been
done). With --libraries all are timed again with cuDNN and cuBLAS allowed, the lowest ratios first,
as long as time is left.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilewright_lab.figures.deepcuts_training import WORKLOADS

# Those without a figure first, and the shortest first among them.
ORDER = ('dlrm', 'deepspeech2', 'attention_rnn', 'resnet50', 'inception_v3', 'densenet121',
         'mobilenet_v2', 'bert_base')  # fmt: skip
LONGEST_S = 150.0  # that one workload may use the GPU

Workload = tuple[str, int]


class Runs:
    """Processes that share a GPU, some of which prepare while one is timed."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.end = given, time.monotonic() + given.within
        self.preparing = threading.Semaphore(given.parallel)
        self.folder: Path = given.json.parent
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def all(self, workloads: Iterable[Workload], more: Sequence[str]) -> None:
        threads = []
        for workload in workloads:
            self.preparing.acquire()
            thread = threading.Thread(target=self.one, args=(workload, more))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()

    def one(self, workload: Workload, more: Sequence[str]) -> None:
        """One process; another one may prepare once it waits for its turn, or has ended."""
        slot = _Once(self.preparing)
        try:
            if self.left > 0:
                self._start(workload, more, slot)
        finally:
            slot.release()

    def _start(self, workload: Workload, more: Sequence[str], slot: _Once) -> None:
        name, batch = workload
        words = [
            sys.executable, '-m', 'tilewright_lab.scripts.gpu_training', name,
            '--batch', str(batch), '--json', str(self.given.json),
            '--turn', str(self.folder / 'turn.lock'), '--ahead', self.given.gpu, *more,
        ]  # fmt: skip
        threads = str(max((os.cpu_count() or 1) // self.given.parallel, 1))
        environment = {
            'OMP_NUM_THREADS': threads, 'PYTHONUNBUFFERED': '1',
            'TORCHINDUCTOR_COMPILE_THREADS': threads,
        } | os.environ  # fmt: skip
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        timer = self._ended_after(self.left, process)
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if ': prepared after' in line and '--fill' not in more:
                slot.release()
            if ': begins after' in line:
                timer.cancel()
                timer = self._ended_after(min(self.left, LONGEST_S), process)
            if f'{name}-b{batch}-' in line:
                print(line, end='', flush=True)
        timer.cancel()
        if process.wait():
            print(f'{name}-b{batch}: ended with {process.returncode}', *lines[-6:], flush=True)

    def _ended_after(self, seconds: float, process: subprocess.Popen) -> threading.Timer:
        timer = threading.Timer(max(seconds, 0.0), process.kill)
        timer.start()
        return timer


class _Once:
    """A place among those that prepare, given back once."""

    def __init__(self, places: threading.Semaphore) -> None:
        self.places, self.held = places, True

    def release(self) -> None:
        if self.held:
            self.held = False
            self.places.release()


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text())['rows'] if path.exists() else {}


def main() -> None:
    words, more = sys.argv[1:], []
    if '--' in words:
        at = words.index('--')
        words, more = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--json', type=Path, required=True)
    parser.add_argument('--gpu', default='h200', help='the GPU that is here, for what is prepared')
    parser.add_argument('--within', type=float, default=540.0, metavar='SECONDS')
    parser.add_argument('--parallel', type=int, default=3, help='workloads that prepare at once')
    parser.add_argument('--only', nargs='*', metavar='NET-BATCH', default=[])
    parser.add_argument('--libraries', action='store_true')
    parser.add_argument('--inductor', action='store_true')
    parser.add_argument('--filled', action='store_true')
    given = parser.parse_args(words)
    workloads = [(name, batch) for name in ORDER for batch in WORKLOADS[name]]
    if given.only:
        workloads = [(n, b) for n, b in workloads if f'{n}-{b}' in given.only]
    runs = Runs(given)
    if '--again' not in more:  # those that are there already need no process
        done = rows_of(given.json)
        begun, workloads = workloads, [
            w for w in workloads
            if done.get('{}-b{}-model-none'.format(*w), {}).get('stage') != 'timed'
        ]  # fmt: skip
    else:
        begun = workloads
    if given.inductor and not given.filled:
        runs.all(workloads, [*more, '--fill'])
    if given.inductor:
        more.append('--inductor')
    runs.all(workloads, more)
    if given.libraries:
        rows = rows_of(given.json)

        def ratio(workload: Workload) -> float:
            return rows.get('{}-b{}-model-none'.format(*workload), {}).get('ratio', math.inf)

        runs.all(sorted(begun, key=ratio), [*more, '--libraries', 'auto'])
    for key, row in rows_of(given.json).items():
        print(key, row.get('stage'), row.get('us'), row.get('ratio'), row.get('right'),
              str(row.get('error', ''))[:160])  # fmt: skip


if __name__ == '__main__':
    main()
