"""Measure the GPU data sets: compile in many processes, check and time in one; go on later.

    python -m tilewright_lab.scripts.gpu_dataset layers --schemas rs,s --seconds 300
    python -m tilewright_lab.scripts.gpu_dataset train --seconds 300
    python -m tilewright_lab.scripts.gpu_dataset train --schemas s --tiles 24 --seconds 60
    python -m tilewright_lab.scripts.gpu_dataset layers --schemas tiled,patch,general --seconds 540
    python -m tilewright_lab.scripts.gpu_dataset proposed --problems 176 --turns 2 --seconds 200
    python -m tilewright_lab.scripts.gpu_dataset proposed --problems 90 --pointwise --seconds 100
    python -m tilewright_lab.scripts.gpu_dataset plan  what would be measured, and about how long \
        that takes
    python -m tilewright_lab.scripts.gpu_dataset status      rows of every file
    python -m tilewright_lab.scripts.gpu_dataset check  all of it on small problems and the host, \
        twice

Run again with the same arguments until it says that nothing is left. Files: bench/results/h200/,
one for each set and schema (src/tilewright_lab/collect/layers.py); rows are in a journal beside a
file until the end of a run. plan, status and check need no GPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tilewright.machine.gpu import known_gpu
from tilewright_lab.collect.compiled import compile_families, cubins
from tilewright_lab.collect.layers import LAYERS, SHAPE, layout
from tilewright_lab.collect.problems import (
    SAMPLED,
    TILES,
    LayerSource,
    Problem,
    ProposedSource,
    families_of,
    layer_sources,
    pointwise_problems,
    random_problems,
    train_sources,
)
from tilewright_lab.collect.rows import read_rows
from tilewright_lab.collect.sets import chunks
from tilewright_lab.scripts.collecting import (
    check_on_host,
    collect,
    collector,
    has_nvrtc,
    parser_of,
)

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


def proposed_sources(options: argparse.Namespace) -> list[ProposedSource]:
    draw = pointwise_problems if options.pointwise else random_problems
    problems = draw(options.problems)[options.first_problem :]
    return [ProposedSource(p, turn) for turn in range(options.turns) for p in problems]


def sources(options: argparse.Namespace) -> list[LayerSource]:
    if options.set == 'train':
        return train_sources(
            options.problems, kinds=kinds(options.schemas), tiles=options.tiles,
            first=options.first_problem,
        )  # fmt: skip
    return layer_sources(kinds(options.schemas), tuple(filter(None, options.layers.split(','))))


def measure(options: argparse.Namespace) -> int:
    chosen = proposed_sources(options) if options.set == 'proposed' else sources(options)
    return collect(collector(options, LAYERS, layout(options.set), chosen))


def compile_seconds(
    some: Sequence[LayerSource], machine_name: str, architecture: str
) -> float | None:
    """Core-seconds of one schedule, compiled here in a chunk; None without NVRTC."""
    if not has_nvrtc():
        return None
    drawn = families_of(some[0], known_gpu(machine_name))
    chunk = chunks(drawn[:: max(len(drawn) // 6, 1)][:6], 6)[0]
    group, translate = some[0].problem.group, cubins(architecture)
    compile_families(group, chunk[:1], translate)  # the compiler starts
    began = time.monotonic()
    compile_families(group, chunk, translate)
    return (time.monotonic() - began) / sum(len(family.schedules) for family in chunk)


def show_plan(options: argparse.Namespace) -> int:
    """Problems and schedules by set and schema, with the time that 15 cores and a GPU take."""
    machine = known_gpu(options.machine)
    for name in ('layers', 'train'):
        chosen = sources(argparse.Namespace(**vars(options) | {'set': name}))
        counts: Counter[tuple[str, str]] = Counter()
        by_kind: dict[tuple[str, str], list[LayerSource]] = {}
        for source in chosen:
            kind = (source.schema, source.intrinsic)
            by_kind.setdefault(kind, []).append(source)
            counts[kind] += sum(len(family.schedules) for family in families_of(source, machine))
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
    sets = ('layers', 'train', 'proposed')
    files = [p for name in sets for p in options.out.glob(f'{name}-*.csv.gz*')]
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
    """Every kind of schedule on small problems, twice, on the host."""
    chosen = [
        LayerSource(problem.prepadded if schema in TILES else problem, schema, intrinsic, 2)
        for problem in SMALL
        for schema, intrinsic in KINDS
    ]
    with tempfile.TemporaryDirectory() as folder:
        options.out = Path(folder)
        if not check_on_host(options, LAYERS, layout('layers'), chosen):
            return 1
        return show_status(options)


def main() -> int:
    parser = parser_of(__doc__, seconds=540.0, chunk=8, out='bench/results/h200')
    parser.add_argument('set', choices=['layers', 'train', 'proposed', 'plan', 'status', 'check'])
    parser.add_argument('--schemas', default='rs,s,tiled,patch,general')
    parser.add_argument('--layers', default='', help='names such as R2,Y4; all where empty')
    parser.add_argument('--problems', type=int, default=176)
    parser.add_argument('--first-problem', type=int, default=0, help='of train and proposed')
    parser.add_argument('--pointwise', action='store_true', help='1x1 convolutions, of proposed')
    parser.add_argument('--turns', type=int, default=2, help='of proposed')
    parser.add_argument('--tiles', type=int, default=0, help='of rs and s in train [18 and 6]')
    options = parser.parse_args()
    verbs = {'plan': show_plan, 'status': show_status, 'check': check}
    return verbs.get(options.set, measure)(options)


if __name__ == '__main__':
    raise SystemExit(main())
