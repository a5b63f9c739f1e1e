"""Strassen's matrix products beside direct ones: time, prediction and error, in turns.

    python -m tilewright_lab.scripts.strassen_time [MxNxK ..] [--dtype f32|f16] [--threads N]
        [--rounds 15] [--json F]

Goes in: sizes of products of an input of M x K with constant weights, of float32 or f16 (1x1
convolutions of images with their channels last, say). Comes out: milliseconds of
the first choice of either algorithm, medians over rounds that take both in turn, each on an input
that no call has seen before; what was predicted; the largest error against float64 as a share of
the largest result; and the bytes of packed weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.files import replacing
from tilewright.machine.detect import describe_host
from tilewright.targets.cpu.fitting import packed_bytes

SIZES = (
    '128x768x768', '128x2304x768', '128x3072x768', '128x768x3072', '197x768x768', '197x3072x768',
    '197x768x3072', '384x768x768', '384x3072x768', '384x768x3072', '64x512x512', '256x256x256',
    '512x1024x1024', '1024x1024x1024', '32x1000x2048', '400x1600x1312',
)  # fmt: skip
# 1x1 layers of stride 1 of ResNet-50, MobileNet-v1 and DarkNet-19: pixels x channels.
HALF_SIZES = (
    '3136x64x256', '3136x128x128', '784x128x512', '784x512x128', '784x256x256', '196x256x1024',
    '196x1024x256', '196x512x512', '196x512x1024', '49x512x2048', '49x2048x512', '49x1024x1024',
)  # fmt: skip
NUMBERS = {'f32': 'f4', 'f16': 'f2'}
ALGORITHMS = ('direct', 'strassen')
FRESH = 24 << 20  # bytes that are written between two calls, so that weights come from memory


def compared(size: str, threads: int, rounds: int, dtype: str = 'f32') -> dict[str, Any]:
    """One row of the table."""
    m, n, k = map(int, size.split('x'))
    group, random = tw.matmul(m=m, n=n, k=k), np.random.default_rng(0)
    weights = (random.standard_normal((k, n)) / k**0.5).astype(NUMBERS[dtype])
    row: dict[str, Any] = {'size': size}
    calls, taken = {}, {name: [] for name in ALGORITHMS}
    for name in ALGORITHMS:
        plan = tw.optimize(group, threads=threads, measure=False, algorithm=name, dtype=dtype)
        calls[name] = plan.build(constants={'B': weights})
        best = plan.best
        row[name] = {
            'predicted_ms': 1e3 * best.prediction.seconds,
            'packed_bytes': packed_bytes(plan.group, best.schedule),
            'options': dict(best.schedule.options),
        }
    swept = np.zeros(FRESH, 'u1')
    for number in range(rounds + 1):
        x = random.standard_normal((m, k)).astype(NUMBERS[dtype])
        for name, call in calls.items():
            swept += 1
            start = time.perf_counter()
            found = call(x)
            spent = time.perf_counter() - start
            if number:
                taken[name].append(1e3 * spent)
                continue
            want = x.astype('f8') @ weights.astype('f8')
            row[name]['error'] = float(np.abs(found - want).max() / np.abs(want).max())
    for name in ALGORITHMS:
        row[name]['ms'] = statistics.median(taken[name])
    row['ratio'] = row['direct']['ms'] / row['strassen']['ms']
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description='matrix products by Strassen beside direct ones')
    parser.add_argument('sizes', nargs='*', help='MxNxK of each product')
    parser.add_argument('--dtype', choices=NUMBERS, default='f32')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args(arguments)
    rows = []
    print('M x N x K         direct ms  strassen ms  ratio  predicted  errors            weights')
    for size in given.sizes or {'f32': SIZES, 'f16': HALF_SIZES}[given.dtype]:
        row = compared(size, given.threads, given.rounds, given.dtype)
        rows.append(row)
        direct, other = row['direct'], row['strassen']
        print(
            f'{size:16s} {direct["ms"]:10.3f} {other["ms"]:12.3f} {row["ratio"]:6.2f} '
            f'{direct["predicted_ms"] / other["predicted_ms"]:10.2f}  {direct["error"]:.1e} '
            f'{other["error"]:.1e}  {other["packed_bytes"] / direct["packed_bytes"]:.2f}x',
            flush=True,
        )
    mean = statistics.geometric_mean(row['ratio'] for row in rows)
    print(f'geometric mean {mean:.3f} over {len(rows)} products, threads: {given.threads}')
    if given.json:
        made = {'host': str(describe_host()), 'threads': given.threads, 'dtype': given.dtype}
        made['rows'] = rows
        with replacing(given.json) as path:
            path.write_text(json.dumps(made, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
