"""What a call costs beside its kernel: `conv(x)` and `net(x)` as people make them.

    python -m tilewright_lab.scripts.overhead --json F [--layers mopt/M7,..] [--rounds 15]

Goes in: layers, which are planned without measuring, and a network of two small ones. Comes out,
in microseconds: the kernel by itself, timed in C; `conv(x, out=y)` on the same arrays; `conv(x)`,
whose result is new; the same on inputs that no call has seen before; and how many calls a second
eight threads of Python make, beside one, with kernels of one thread. Rounds take all of them in
turn; a turn is the median of its calls, and what is above the kernel the median over rounds of the
difference within a round, so that a slow round counts for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.files import replacing
from tilewright.machine.detect import describe_host
from tilewright.ops.suites import expand

LAYERS = 'mb1ic4ih2oc4kh1n"1x1 of 2x2",mopt/M7,mopt/M9,mopt/R11,mopt/R12,mopt/R9'
PYTHON_THREADS = 8
TURN_S = 0.02
WAYS = ('kernel', 'same', 'new', 'fresh')


def _built(group: Any, threads: int) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    plan = tw.optimize(group, measure=False, threads=threads)
    arrays = {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    return plan.build(arrays['Ker'], arrays.get('Bias')), arrays['In']


def _network(threads: int) -> tuple[Any, np.ndarray]:
    import torch

    layers = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)
    x = torch.zeros(1, 3, 8, 8)
    return tw.compile(
        torch.nn.Sequential(*layers).eval(), example_inputs=(x,), threads=threads
    ), x.numpy()


def ways_of(call: Any, x: np.ndarray) -> dict[str, Callable[[int], float]]:
    """way -> [calls] -> median seconds of one of them.

    Every way writes into memory that nobody holds, so that it is the same for all of them: where
    results lie changes the time of some kernels by microseconds.
    """

    def kernel(count: int) -> float:
        if hasattr(call, 'run'):
            return statistics.median(call.time({call.inputs[0].name: x}, count))
        name, out = call.group.with_role('input')[0].name, call(x)
        return statistics.median(call._kernel.time({name: x}, call._packed, out, repeats=count))

    def timed(arrays: list[np.ndarray], **words: Any) -> float:
        seconds = []
        for array in arrays:
            begin = time.perf_counter()
            call(array, **words)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)

    return {
        'kernel': kernel,
        'same': lambda count: timed([x] * count, out=call(x)),
        'new': lambda count: timed([x] * count),
        # Other objects; what they hold is the same memory, so that caches are as they were.
        'fresh': lambda count: timed([x.view() for _ in range(count)]),
    }


def measure(name: str, call: Any, x: np.ndarray, rounds: int) -> dict[str, Any]:
    ways = ways_of(call, x)
    count = max(10, int(TURN_S / max(ways['same'](20), 1e-7)))
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            samples[way].append(1e6 * ways[way](count))
    above = {
        way: statistics.median(a - b for a, b in zip(samples[way], samples['kernel'], strict=True))
        for way in WAYS[1:]
    }
    medians = {way: statistics.median(times) for way, times in samples.items()}
    return {'name': name, 'us': medians, 'above_us': above, 'samples_us': samples, 'calls': count}


def side_by_side(name: str, call: Any, x: np.ndarray, rounds: int) -> dict[str, Any]:
    """Calls a second of one thread of Python, and of eight; every answer is checked."""
    want, wrong = call(x).copy(), []

    def work(count: int) -> None:
        for _ in range(count - 1):
            call(x)
        if not np.array_equal(call(x), want):
            wrong.append(name)

    begin = time.perf_counter()
    work(20)
    count = max(10, int(4 * TURN_S / ((time.perf_counter() - begin) / 20)))
    rates: dict[int, list[float]] = {1: [], PYTHON_THREADS: []}
    for _ in range(max(3, rounds // 3)):
        for threads, found in rates.items():
            workers = [
                threading.Thread(target=work, args=(count // threads,)) for _ in range(threads)
            ]
            begin = time.perf_counter()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            found.append(threads * (count // threads) / (time.perf_counter() - begin))
    one, many = (statistics.median(found) for found in rates.values())
    return {
        'name': name, 'one_per_s': one, 'eight_per_s': many, 'right': not wrong,
        'samples_per_s': {str(threads): found for threads, found in rates.items()},
    }  # fmt: skip


def table(data: Mapping[str, Any]) -> str:
    beside = {row['name']: row for row in data['side_by_side']}
    lines = [
        '| call | kernel | same arrays | new result | fresh arrays | eight threads of Python |',
        '|---' * 6 + '|',
    ]
    for row in data['rows']:
        cells = [
            f'{row["us"]["kernel"]:.1f}',
            *(f'+{row["above_us"][way]:.1f}' for way in WAYS[1:]),
        ]
        found = beside.get(row['name'])
        many = '-' if found is None else f'{found["eight_per_s"] / found["one_per_s"]:.2f}x one'
        lines.append(f'| {row["name"]} | {" | ".join(cells)} | {many} |')
    return '\n'.join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument('--layers', default=LAYERS)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    calls: dict[str, Callable[[int], tuple[Any, np.ndarray]]] = {
        name: partial(_built, group) for name, group, _ in expand(given.layers)
    }
    calls['net: two 3x3 layers'] = _network
    rows = [measure(name, *make(given.threads), given.rounds) for name, make in calls.items()]
    beside = [side_by_side(name, *make(1), given.rounds) for name, make in calls.items()]
    data = {
        'host': str(describe_host()), 'threads': given.threads, 'rounds': given.rounds,
        'rows': rows, 'side_by_side': beside,
    }  # fmt: skip
    print(table(data))
    if given.json:
        with replacing(given.json) as path:
            path.write_text(json.dumps(data, indent=1) + '\n')
    return int(not all(row['right'] for row in beside))


if __name__ == '__main__':
    sys.exit(main())
