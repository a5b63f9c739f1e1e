"""One network for ranges of sizes beside networks for one size each: compilation, time, answers.

    python -m tilewright_lab.scripts.ranges MODEL --shape NAME=S [--part P] [--json FILE]

    python -m tilewright_lab.scripts.ranges bert_base --shape ids=1,1:512
    python -m tilewright_lab.scripts.ranges mobilenet_v2 --shape image=1:8,3,224,224
    python -m tilewright_lab.scripts.ranges detector.onnx --shape x=1,3,64:640:32,64:640:32

MODEL is a network of the zoo or an .onnx file. There are three parts, all of them unless told
otherwise. FILE is written after every size, and the same command then goes on where it stopped:
sizes that FILE has are not done again. `--seconds` ends a part in time.

    compile   of the ranges and of their largest size, each in a process of its own with empty
              caches: seconds, and seconds of processors; medians of --compilations in turns
    speed     at the points of --at, or N points of a grid (--points): both networks compute the
              same inputs in turns; medians of their calls are compared
    right     at N points (--right), drawn at random with both ends: the largest difference from
              PyTorch (zoo) or ONNX Runtime, as a share of the largest answer, how far their own
              answers move where inputs change by a millionth, and how many kernels had to be built
              that `compile` had not foreseen

`--keep` FOLDER keeps compiled networks; `--prepare` fills it, and measures nothing: timing is then
a matter of loading them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
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


def compiled(
    model: str, threads: int | None, shapes: Sequence[str], keep: Path | None = None
) -> Any:
    """A network for the sizes of these options, be they ranges or not; `keep` is a folder that has
    those of earlier runs.
    """
    sizes = read_shapes(shapes)
    if keep is None:
        return _compiled(model, threads, sizes, None)
    name = hashlib.sha256(f'{model} {threads} {sorted(shapes)}'.encode()).hexdigest()[:16]
    path = keep / f'{name}.tw'
    if not path.exists():
        keep.mkdir(parents=True, exist_ok=True)
        _compiled(model, threads, sizes, path)
    return tw.load(path, threads=threads)


def _compiled(model: str, threads: int | None, sizes: Any, save: Path | None) -> Any:
    source = model_of(model, ranged=True)
    if find_ranges(sizes) is not None:
        return tw.compile(source, shapes=sizes, threads=threads, save=save)
    return tw.compile(reader_of(source, read)(sizes), threads=threads, save=save)


def words_of(ranges: Ranges, point: Point) -> list[str]:
    """The shapes of a point, as the command line has them."""
    return [f'{n}={",".join(map(str, s))}' for n, s in ranges.at(point).items()]


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
    """What others compute: PyTorch for networks of the zoo, ONNX Runtime for files.

    One thread each, since threads that spin wait for each other on a host that has other work.
    """
    if os.path.exists(model):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(model, options, providers=['CPUExecutionProvider'])
        return lambda point, ranges, arrays: [np.asarray(a) for a in session.run(None, arrays)]
    import torch

    torch.set_num_threads(1)
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


def noise(
    reference: Callable[[Point, Ranges, Arrays], list[np.ndarray]],
    point: Point,
    ranges: Ranges,
    arrays: Arrays,
) -> dict[str, float]:
    """How far others' own answers move where inputs change by a millionth."""
    moved = {n: a * np.float32(1 + 1e-6) if a.dtype.kind == 'f' else a for n, a in arrays.items()}
    answers = [reference(point, ranges, given) for given in (arrays, moved)]
    return {'noise': difference(*answers)}


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
        'ratio': ours / own, 'range_ms': 1e3 * ours, 'exact_ms': 1e3 * own,
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


class Record:
    """What was found, by part; a file keeps it from run to run."""

    def __init__(self, path: Path | None, about: dict, seconds: float) -> None:
        self.path, self.found = path, about
        self.ends = time.monotonic() + seconds
        if path is not None and path.exists():
            self.found |= json.loads(path.read_text())

    def keep(self, part: str, value: Any) -> None:
        self.found[part] = value
        if self.path is not None:
            self.found['versions'] = versions()
            self.path.write_text(json.dumps(self.found, indent=1) + '\n')

    def rows(
        self, part: str, points: Sequence[Point], row: Callable[[Point], dict]
    ) -> list[dict]:  # fmt: skip
        """A row for each point: those that are there, and others while there is time."""
        rows = {tuple(one['point']): one for one in self.found.get(part, ())}
        for point in points:
            if point not in rows and time.monotonic() < self.ends:
                rows[point] = {'point': list(point), **row(point)}
                self.keep(part, [rows[at] for at in sorted(rows)])
        missing = sum(point not in rows for point in points)
        if missing:
            print(f'{part}: {missing} of {len(points)} sizes are left; the same command goes on')
        return [rows[point] for point in points if point in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description='networks for ranges beside those for one size')
    parser.add_argument('model')
    parser.add_argument('--shape', action='append', required=True)
    parser.add_argument('--part', action='append', choices=PARTS)
    parser.add_argument('--at', action='append', help='a point, as 64,96')
    parser.add_argument('--points', type=int, default=10)
    parser.add_argument('--right', type=int, default=200)
    parser.add_argument('--repeat', type=int, default=20)
    parser.add_argument('--compilations', type=int, default=3)
    parser.add_argument('--threads', type=int)
    parser.add_argument('--seconds', type=float, default=math.inf)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--keep', type=Path, help='a folder that keeps networks from run to run')
    parser.add_argument('--prepare', action='store_true', help='fill --keep, and measure nothing')
    parser.add_argument('--child', action='store_true', help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(given.model, given.threads, given.shape)
    parts, ranges = given.part or PARTS, find_ranges(read_shapes(given.shape))
    if ranges is None:
        sys.exit('--shape gives no range; write one as 64:640:32')
    about = {'model': Path(given.model).name, 'shapes': given.shape, 'threads': given.threads}
    record = Record(given.json, about, given.seconds)
    if 'compile' in parts:
        record.keep('compile', _compile_part(given, ranges))
    if given.prepare:
        return _prepare(given, ranges)
    if parts != ['compile']:
        net = compiled(given.model, given.threads, given.shape, given.keep)
        record.keep('certificate', net.certificate.to_json())
        print(net)
        if 'speed' in parts:
            _speed_part(given, ranges, net, record)
        if 'right' in parts:
            _right_part(given, ranges, net, record)
    return None


def _prepare(given: argparse.Namespace, ranges: Ranges) -> None:
    """Networks of the points whose speed is asked for, kept for a later run."""
    ends = time.monotonic() + given.seconds
    points = speed_points(given, ranges)
    for number, words in enumerate([given.shape, *(words_of(ranges, p) for p in points)]):
        if time.monotonic() > ends:
            print(f'{1 + len(points) - number} networks are left; the same command goes on')
            break
        compiled(given.model, given.threads, words, given.keep)
        print(f'{", ".join(words)} is kept', flush=True)


def speed_points(given: argparse.Namespace, ranges: Ranges) -> list[Point]:
    """Those of --at, or of a grid of about --points."""
    asked = [tuple(map(int, text.split(','))) for text in given.at or ()]
    return asked or spread(ranges.box, given.points)


def _compile_part(given: argparse.Namespace, ranges: Ranges) -> dict:
    largest = words_of(ranges, ranges.largest)
    threads = ['--threads', str(given.threads)] if given.threads else []
    found: dict[str, list[dict[str, float]]] = {'one': [], 'range': []}
    for _ in range(given.compilations):
        for kind, shapes in (('one', largest), ('range', given.shape)):
            words = [given.model, *threads, *(word for s in shapes for word in ('--shape', s))]
            found[kind].append(compile_seconds(words))
    for unit in ('wall_s', 'processor_s'):
        one, whole = (statistics.median(s[unit] for s in found[kind]) for kind in found)
        print(f'compiled: {unit} {whole:.1f}, one size {one:.1f}: {whole / one:.2f}', flush=True)
    return found


def _speed_part(given: argparse.Namespace, ranges: Ranges, net: Any, record: Record) -> None:
    def row(point: Point) -> dict:
        exact = compiled(given.model, given.threads, words_of(ranges, point), given.keep)
        return speed_at(net, exact, point, given.repeat)

    rows = record.rows('speed', speed_points(given, ranges), row)
    if rows:
        ratios = [row['ratio'] for row in rows]
        print(
            f'slowest {max(ratios):.3f}, mean {statistics.geometric_mean(ratios):.3f}, certified '
            f'{1 + net.certificate.within:.3f}'
        )


def _right_part(given: argparse.Namespace, ranges: Ranges, net: Any, record: Record) -> None:
    reference = reference_of(given.model)

    def row(point: Point) -> dict:
        with warnings.catch_warnings(record=True) as late:
            warnings.filterwarnings('always', '.*not built ahead')
            arrays = inputs_of(net.at(*point).inputs, sum(point))
            right = reference(point, ranges, arrays)
            off = difference(list(net.run(arrays).values()), right)
        return {'difference': off, 'built_late': len(late)} | noise(
            reference, point, ranges, arrays
        )

    rows = record.rows('right', some_points(ranges, given.right), row)
    if rows:
        worst = max(rows, key=lambda row: row['difference'])
        late = sum(row['built_late'] for row in rows)
        print(
            f'{len(rows)} sizes, largest difference {worst["difference"]:.1e} at {worst["point"]} '
            f'(own noise {worst["noise"]:.1e}); {late} kernels built late'
        )


if __name__ == '__main__':
    main()
