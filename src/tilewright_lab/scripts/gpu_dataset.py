"""Measure the GPU data sets: compile in many processes, check and time in one; go on later.

    python -m tilewright_lab.scripts.gpu_dataset layers --schemas rs,s --seconds 300
    python -m tilewright_lab.scripts.gpu_dataset train --seconds 300
    python -m tilewright_lab.scripts.gpu_dataset layers --schemas tiled,patch,general --seconds 540
    python -m tilewright_lab.scripts.gpu_dataset plan  what would be measured, and about how long \
        that takes
    python -m tilewright_lab.scripts.gpu_dataset status      rows of every file
    python -m tilewright_lab.scripts.gpu_dataset check  all of it on small problems and the host, \
        twice

Run again with the same arguments until it says that nothing is left. Files: bench/results/h200/,
one for each set and schema (src/tilewright_lab/collect/sets.py); rows are in a journal beside a
file until the end of a run. plan, status and check need no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tilewright.machine.gpu import known_gpu
from tilewright_lab.collect.layers import Flow
from tilewright_lab.collect.problems import (
    SAMPLED,
    TILES,
    Problem,
    Source,
    layer_sources,
    train_sources,
    units_of,
)
from tilewright_lab.collect.rows import read_rows
from tilewright_lab.collect.sets import SHAPE, Sets, chunks
from tilewright_lab.compare.gpu_measure import compile_units, cubins

KINDS = [*((schema, 'fma') for schema in TILES), *SAMPLED]
TIMING_S = 2.5e-3  # of one configuration on the device: check, warm-up, three runs
SMALL = (Problem(32, 6, 8, 16, 3, 1, 0), Problem(32, 5, 7, 3, 3, 2, 1))


def kinds(text: str) -> list[tuple[str, str]]:
    """'rs,tiled,patch/mma_tf32x3' -> (schema, intrinsic) each; a schema alone is all of its."""
    found = []
    for word in filter(None, text.split(',')):
        schema, _, intrinsic = word.partition('/')
        named = [k for k in KINDS if k[0] == schema and intrinsic in ('', k[1])]
        if not named:
            raise SystemExit(f'{word!r} is not a schema of the sets; known: {KINDS}')
        found += named
    return found


def sources(options: argparse.Namespace) -> list[Source]:
    if options.set == 'train':
        return train_sources(options.problems)
    return layer_sources(kinds(options.schemas), tuple(filter(None, options.layers.split(','))))


def measure(options: argparse.Namespace) -> int:
    flow = Flow(
        sources(options), Sets(options.out, options.set), known_gpu(options.machine),
        options.target, options.architecture, options.workers, options.chunk, options.seconds,
        lambda text: print(text, flush=True),
    )  # fmt: skip
    began = time.monotonic()
    whole = flow.run()
    print(dict(flow.counts), f'in {time.monotonic() - began:.0f} s:',
          'nothing is left' if whole else 'run again for the rest')  # fmt: skip
    return 0


def compile_seconds(some: Sequence[Source], machine_name: str, architecture: str) -> float | None:
    """Core-seconds of one schedule, compiled here in a chunk; None without NVRTC."""
    if importlib.util.find_spec('cuda') is None:
        return None
    units = units_of(some[0], known_gpu(machine_name))
    chunk = chunks(units[:: max(len(units) // 6, 1)][:6], 6)[0]
    translate = cubins(architecture)
    compile_units(chunk[:1], translate)  # the compiler starts
    began = time.monotonic()
    compile_units(chunk, translate)
    return (time.monotonic() - began) / sum(len(unit.schedules) for unit in chunk)


def show_plan(options: argparse.Namespace) -> int:
    """Problems and schedules by set and schema, with the time that 15 cores and a GPU take."""
    machine = known_gpu(options.machine)
    for name in ('layers', 'train'):
        chosen = sources(argparse.Namespace(**vars(options) | {'set': name}))
        counts: Counter[tuple[str, str]] = Counter()
        by_kind: dict[tuple[str, str], list[Source]] = {}
        for source in chosen:
            kind = (source.schema, source.intrinsic)
            by_kind.setdefault(kind, []).append(source)
            counts[kind] += sum(len(unit.schedules) for unit in units_of(source, machine))
        print(name, len({source.problem.shape for source in chosen}), 'problems,',
              sum(counts.values()), 'schedules')  # fmt: skip
        total = 0.0
        for kind, some in by_kind.items():
            middle = some[len(some) // 2 :]
            core = compile_seconds(middle, options.machine, options.architecture)
            seconds = max((core or 0.0) * counts[kind] / 15, TIMING_S * counts[kind])
            total += seconds
            told = 'not compiled here' if core is None else f'{core:.3f} core-s each'
            print(f'  {"/".join(kind):22} {counts[kind]:7} schedules, {told}, {seconds:.0f} s')
        print(f'  about {total:.0f} s on 15 cores as fast as this one, and a GPU', flush=True)
    return 0


def show_status(options: argparse.Namespace) -> int:
    total = 0
    files = [p for name in ('layers', 'train') for p in options.out.glob(f'{name}-*.csv.gz*')]
    for path in sorted(files):
        total += path.stat().st_size
        if path.suffix != '.journal' or not path.with_suffix('').exists():
            rows = read_rows(path.with_suffix('') if path.suffix == '.journal' else path)
            problems = {tuple(row[c] for c in SHAPE) for row in rows}
            states = dict(Counter(row['status'] for row in rows))
            print(path.name, len(rows), 'rows', len(problems), 'problems', states)
    print(total, 'bytes in all')
    return 0


def check(options: argparse.Namespace) -> int:
    """Every kind of schedule on small problems, compiled where NVRTC is there, run by the host;
    the second run must find nothing to do, and all answers must be right.
    """
    architecture = options.architecture if importlib.util.find_spec('cuda') else ''
    chosen = [
        Source(problem.prepadded if schema in TILES else problem, schema, intrinsic, 2)
        for problem in SMALL
        for schema, intrinsic in KINDS
    ]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(2):
            flow = Flow(
                chosen, Sets(Path(folder), 'layers'), known_gpu(options.machine), 'host',
                architecture, options.workers or os.cpu_count() or 1, options.chunk,
                options.seconds, lambda text: print(text, flush=True),
            )  # fmt: skip
            whole = flow.run()
            print('run', turn + 1, dict(flow.counts), 'whole' if whole else 'cut off')
            done = flow.counts['ok']
            if not whole or flow.counts['wrong'] or (turn and done) or not (turn or done):
                return 1
        show_status(argparse.Namespace(out=Path(folder)))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('set', choices=['layers', 'train', 'plan', 'status', 'check'])
    parser.add_argument('--schemas', default='rs,s,tiled,patch,general')
    parser.add_argument('--layers', default='', help='names such as R2,Y4; all where empty')
    parser.add_argument('--problems', type=int, default=176)
    parser.add_argument('--seconds', type=float, default=540.0)
    parser.add_argument('--workers', type=int, default=0)
    parser.add_argument('--chunk', type=int, default=8, help='units of one compilation')
    parser.add_argument('--machine', default='h200', help='whose limits the spaces keep')
    parser.add_argument('--architecture', default='sm_90a')
    parser.add_argument('--target', default='cuda', choices=['cuda', 'host'])
    parser.add_argument('--out', type=Path, default=Path('bench/results/h200'))
    options = parser.parse_args()
    verbs = {'plan': show_plan, 'status': show_status, 'check': check}
    return verbs.get(options.set, measure)(options)


if __name__ == '__main__':
    raise SystemExit(main())
