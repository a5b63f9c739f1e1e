"""One network for ranges of sizes beside networks for one size each: time, answers, compilation.

    python -m tilewright_lab.scripts.ranges MODEL --shape NAME=S [--points N] [--json FILE]

    python -m tilewright_lab.scripts.ranges bert_base --shape ids=1,1:512
    python -m tilewright_lab.scripts.ranges mobilenet_v2 --shape image=1:8,3,224,224
    python -m tilewright_lab.scripts.ranges detector.onnx --shape x=1,3,64:640:32,64:640:32

MODEL is a network of the zoo or an .onnx file. At N points of the ranges [10] both networks compute
the same random inputs, turn by turn; what is compared is the median of their calls, and what comes
out. Compilations are counted with empty caches, each in a process of its own: that of the ranges,
and that of their largest size. `--right N` compares answers at so many more points, untimed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.compile import model_of, read_shapes
from tilewright.cli.output import versions
from tilewright.graph.graph import DTYPES, Value
from tilewright.graph.ranges import Point, find_ranges, spread
from tilewright.network.compile import read
from tilewright.network.ranged import reader_of

ROUNDS = 5
COMPILED = """
import sys, time
import tilewright as tw
from tilewright.cli.compile import model_of, read_shapes
from tilewright.network.compile import read
from tilewright.network.ranged import reader_of
model, threads = model_of(sys.argv[1], ranged=True), int(sys.argv[2]) or None
shapes = read_shapes(sys.argv[3:])
start = time.perf_counter()
if any(isinstance(size, range) for shape in shapes.values() for size in shape):
    tw.compile(model, shapes=shapes, threads=threads)
else:
    tw.compile(reader_of(model, read)(shapes), threads=threads)
print(time.perf_counter() - start)
"""


def compile_seconds(model: str, threads: int, shapes: list[str]) -> float:
    """Of a compilation with empty caches."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, '-c', COMPILED, model, str(threads), *shapes],
            env=os.environ | {'TILEWRIGHT_CACHE_DIR': scratch}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def inputs_of(values: tuple[Value, ...], seed: int) -> dict[str, np.ndarray]:
    """Random floats; whole numbers are 0 to 7, which tables of words have."""
    rng = np.random.default_rng(seed)
    return {
        value.name: (
            rng.standard_normal(value.shape)
            if np.dtype(DTYPES[value.dtype]).kind == 'f'
            else rng.integers(0, 8, value.shape)
        ).astype(DTYPES[value.dtype])
        for value in values
    }


def compared(net: Any, exact: Any, point: Point, repeat: int) -> dict:
    """Medians of both, turn by turn, and the largest difference."""
    arrays = inputs_of(exact.inputs, sum(point))
    got, right = net.run(arrays), exact.run(arrays)
    difference = max(
        float(np.abs(got[name] - right[name]).max() / max(np.abs(right[name]).max(), 1e-30))
        for name in right
    )
    samples: dict[str, list[float]] = {'range': [], 'exact': []}
    for _ in range(ROUNDS if repeat else 0):
        samples['range'] += net.time(arrays, repeat)
        samples['exact'] += exact.time(arrays, repeat)
    return {'point': list(point), 'difference': difference, 'samples_s': samples}


def main() -> None:
    parser = argparse.ArgumentParser(description='networks for ranges beside those for one size')
    parser.add_argument('model')
    parser.add_argument('--shape', action='append', required=True)
    parser.add_argument('--points', type=int, default=10)
    parser.add_argument('--right', type=int, default=0)
    parser.add_argument('--repeat', type=int, default=20)
    parser.add_argument('--threads', type=int, default=0)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    shapes, threads = read_shapes(given.shape), given.threads or None
    ranges = find_ranges(shapes)
    if ranges is None:
        sys.exit('--shape gives no range; write one as 64:640:32')
    largest = [f'{n}={",".join(map(str, s))}' for n, s in ranges.at(ranges.largest).items()]
    compiling = {
        'range': compile_seconds(given.model, given.threads, given.shape),
        'one': compile_seconds(given.model, given.threads, largest),
    }
    ratio = compiling['range'] / compiling['one']
    print(
        f'compiled in {compiling["range"]:.1f} s, one size in {compiling["one"]:.1f} s: {ratio:.2f}'
    )
    model = model_of(given.model, ranged=True)
    net: Any = tw.compile(model, shapes=shapes, threads=threads)
    graph_at = reader_of(model, read)
    print(net)
    rows = []
    timed = spread(ranges.box, given.points)
    for point in dict.fromkeys([*timed, *spread(ranges.box, given.right or 1)]):
        exact = tw.compile(graph_at(ranges.at(point)), threads=threads)
        rows.append(compared(net, exact, point, given.repeat if point in timed else 0))
        row, said = rows[-1], ''
        if point in timed:
            ours, own = (statistics.median(row['samples_s'][k]) for k in ('range', 'exact'))
            row['ratio'] = ours / own
            said = f'{1e3 * ours:.3f} ms, its own {1e3 * own:.3f} ms: {ours / own:.3f}; '
        print(f'{point}: {said}difference {row["difference"]:.1e}', flush=True)
    ratios = [row['ratio'] for row in rows if 'ratio' in row]
    wrong = max(row['difference'] for row in rows)
    print(
        f'slowest {max(ratios):.3f}, mean {statistics.geometric_mean(ratios):.3f}, certified '
        f'{1 + net.certificate.loss:.3f}; largest difference {wrong:.1e}'
    )
    if given.json is not None:
        result = {
            'model': given.model, 'shapes': given.shape, 'threads': threads,
            'compile_s': compiling, 'certificate': net.certificate.to_json(), 'points': rows,
            'versions': versions(),
        }  # fmt: skip
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
