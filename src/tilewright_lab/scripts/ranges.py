"""One network for ranges of sizes beside networks for one size each: compilation, time, answers.

    python -m tilewright_lab.scripts.ranges MODEL --shape NAME=S [--part P] [--json FILE]

    python -m tilewright_lab.scripts.ranges bert_base --shape ids=1,1:512
    python -m tilewright_lab.scripts.ranges mobilenet_v2 --shape image=1:8,3,224,224
    python -m tilewright_lab.scripts.ranges detector.onnx --shape x=1,3,64:640:32,64:640:32

MODEL is a network of the zoo or an .onnx file. There are three parts, all of them unless told
otherwise; results of a part take the place of earlier ones in FILE.

    compile   of the ranges and of their largest size, each in a process of its own with empty
              caches: seconds, and seconds of processors
    speed     at the points of --at, or N points of a grid (--points): both networks compute the
              same inputs in turns; medians of their calls are compared
    right     at N points (--right), drawn at random with both ends: the largest difference from
              PyTorch (zoo) or ONNX Runtime, as a share of the largest answer
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.cli.compile import model_of, read_shapes
from tilewright.cli.output import versions
from tilewright.graph.graph import DTYPES, Value
from tilewright.graph.ranges import Point, Ranges, count, find_ranges, points, spread
from tilewright.machine.compiler import cache_dir
from tilewright.network.compile import read
from tilewright.network.ranged import reader_of

ROUNDS = 5
PARTS = ('compile', 'speed', 'right')
Arrays = dict[str, np.ndarray]


def compiled(model: str, threads: int | None, shapes: Sequence[str]) -> Any:
    """A network for the sizes of these options, be they ranges or not."""
    source, sizes = model_of(model, ranged=True), read_shapes(shapes)
    if find_ranges(sizes) is not None:
        return tw.compile(source, shapes=sizes, threads=threads)
    return tw.compile(reader_of(source, read)(sizes), threads=threads)


def compile_seconds(words: Sequence[str]) -> dict[str, float]:
    """Of a compilation with empty caches, in another process; the machine's record is kept."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = cache_dir() / 'machine'
        if kept.exists():
            shutil.copytree(kept, Path(scratch) / 'machine')
        done = subprocess.run(
            [sys.executable, '-m', 'tilewright_lab.scripts.ranges', '--child', *words],
            env=os.environ | {'TILEWRIGHT_CACHE_DIR': scratch}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def child(model: str, threads: int | None, shapes: Sequence[str]) -> None:
    """Compile, and say how long it took."""
    start, before = time.perf_counter(), _processor_seconds()
    compiled(model, threads, shapes)
    took = time.perf_counter() - start, _processor_seconds() - before
    print(json.dumps(dict(zip(('wall_s', 'processor_s'), took, strict=True))))


def _processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    kinds = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in kinds)


def inputs_of(values: Sequence[Value], seed: int) -> Arrays:
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


def difference(got: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """The largest, as a share of the largest answer."""
    pairs = zip(got, right, strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def reference_of(model: str) -> Callable[[Point, Ranges, Arrays], list[np.ndarray]]:
    """What others compute: PyTorch for networks of the zoo, ONNX Runtime for files."""
    if os.path.exists(model):
        import onnxruntime as ort

        session = ort.InferenceSession(model, providers=['CPUExecutionProvider'])
        return lambda point, ranges, arrays: [np.asarray(a) for a in session.run(None, arrays)]
    import torch

    drawn: Arrays = {}

    def answer(point: Point, ranges: Ranges, arrays: Arrays) -> list[np.ndarray]:
        (shape,) = ranges.at(point).values()
        made = zoo.network(model, shape[0], shape[-1])
        if isinstance(made, zoo.WrittenNetwork):
            drawn.update(made.draw_weights(0, drawn))
            module = made.to_torch({name: drawn[name] for name in made.weights})
        else:
            module = zoo.torch_module(model, 0, shape[0], shape[-1])
        with torch.no_grad():
            found = module(*map(torch.from_numpy, arrays.values()))
        return [part.numpy() for part in (found if isinstance(found, tuple) else (found,))]

    return answer


def speed_at(net: Any, exact: Any, point: Point, repeat: int) -> dict:
    """Samples of both, turn by turn, and the largest difference."""
    arrays = inputs_of(exact.inputs, sum(point))
    off = difference(list(net.run(arrays).values()), list(exact.run(arrays).values()))
    samples: dict[str, list[float]] = {'range': [], 'exact': []}
    for _ in range(ROUNDS):
        samples['range'] += net.time(arrays, 1 + repeat)[1:]
        samples['exact'] += exact.time(arrays, 1 + repeat)[1:]
    ours, own = (statistics.median(samples[kind]) for kind in ('range', 'exact'))
    print(f'{point}: {1e3 * ours:.3f} ms, its own {1e3 * own:.3f} ms: {ours / own:.3f}', flush=True)
    return {
        'point': list(point), 'ratio': ours / own, 'range_ms': 1e3 * ours, 'exact_ms': 1e3 * own,
        'difference': off,
        'predicted_ratio': _predicted(net.at(*point)) / _predicted(exact),
    }  # fmt: skip


def _predicted(network: Any) -> float:
    return sum(network.kernels[task.group.digest].predicted_s for task in network.tasks)


def some_points(ranges: Ranges, most: int) -> list[Point]:
    """Both ends, and others drawn at random."""
    every = count(ranges.box)
    if every <= most:
        return list(points(ranges.box))
    rng = np.random.default_rng(0)
    found = dict.fromkeys([tuple(sizes[0] for sizes in ranges.box), ranges.largest])
    while len(found) < most:
        found[tuple(int(rng.choice(sizes)) for sizes in ranges.box)] = None
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description='networks for ranges beside those for one size')
    parser.add_argument('model')
    parser.add_argument('--shape', action='append', required=True)
    parser.add_argument('--part', action='append', choices=PARTS)
    parser.add_argument('--at', action='append', help='a point, as 64,96')
    parser.add_argument('--points', type=int, default=10)
    parser.add_argument('--right', type=int, default=200)
    parser.add_argument('--repeat', type=int, default=20)
    parser.add_argument('--threads', type=int)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--child', action='store_true', help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.model, given.threads, given.shape)
    parts, ranges = given.part or PARTS, find_ranges(read_shapes(given.shape))
    if ranges is None:
        sys.exit('--shape gives no range; write one as 64:640:32')
    result = {'model': Path(given.model).name, 'shapes': given.shape, 'threads': given.threads}
    if given.json is not None and given.json.exists():
        result |= json.loads(given.json.read_text())
    if 'compile' in parts:
        result['compile'] = _compile_part(given, ranges)
    if parts != ['compile']:
        net = compiled(given.model, given.threads, given.shape)
        result['certificate'] = net.certificate.to_json()
        print(net)
        if 'speed' in parts:
            result['speed'] = _speed_part(given, ranges, net)
        if 'right' in parts:
            result['right'] = _right_part(given, ranges, net)
    if given.json is not None:
        result['versions'] = versions()
        given.json.write_text(json.dumps(result, indent=1) + '\n')
    return None


def _compile_part(given: argparse.Namespace, ranges: Ranges) -> dict:
    largest = [f'{n}={",".join(map(str, s))}' for n, s in ranges.at(ranges.largest).items()]
    threads = ['--threads', str(given.threads)] if given.threads else []
    found = {
        kind: compile_seconds(
            [given.model, *threads, *(word for s in shapes for word in ('--shape', s))]
        )
        for kind, shapes in (('one', largest), ('range', given.shape))
    }
    for unit in ('wall_s', 'processor_s'):
        one, whole = found['one'][unit], found['range'][unit]
        print(f'compiled: {unit} {whole:.1f}, one size {one:.1f}: {whole / one:.2f}', flush=True)
    return found


def _speed_part(given: argparse.Namespace, ranges: Ranges, net: Any) -> list[dict]:
    asked = [tuple(map(int, text.split(','))) for text in given.at or ()]
    graph_at, rows = reader_of(model_of(given.model, ranged=True), read), []
    for point in asked or spread(ranges.box, given.points):
        exact = tw.compile(graph_at(ranges.at(point)), threads=given.threads)
        rows.append(speed_at(net, exact, point, given.repeat))
        del exact  # its weights, before the next one's
    ratios = [row['ratio'] for row in rows]
    print(
        f'slowest {max(ratios):.3f}, mean {statistics.geometric_mean(ratios):.3f}, certified '
        f'{1 + net.certificate.loss:.3f}'
    )
    return rows


def _right_part(given: argparse.Namespace, ranges: Ranges, net: Any) -> dict:
    reference, found = reference_of(given.model), {}
    with warnings.catch_warnings(record=True) as late:
        warnings.filterwarnings('always', '.*not built ahead')
        for point in some_points(ranges, given.right):
            arrays = inputs_of(net.at(*point).inputs, sum(point))
            right = reference(point, ranges, arrays)
            found[point] = difference(list(net.run(arrays).values()), right)
    worst = max(found, key=lambda point: found[point])
    print(f'{len(found)} sizes, largest difference {found[worst]:.1e} at {worst}; {len(late)} late')
    return {
        'points': len(found), 'difference': found[worst], 'at': list(worst),
        'built_late': len(late),
    }  # fmt: skip


if __name__ == '__main__':
    main()
