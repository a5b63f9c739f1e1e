"""Measure fused groups of networks on a GPU: what GTuner's model is trained and tested on.

    python -m tilewright_lab.scripts.gpu_groups list  groups.json, from the networks; no GPU
    python -m tilewright_lab.scripts.gpu_groups measure --seconds 330  rows; run again until \
        there are enough
    python -m tilewright_lab.scripts.gpu_groups repeat --to DIR --most 600  rows again, by the \
        kernels of this version, and how their times differ
    python -m tilewright_lab.scripts.gpu_groups plan  what a turn has, what it costs to compile
    python -m tilewright_lab.scripts.gpu_groups status  rows by part, network and schema
    python -m tilewright_lab.scripts.gpu_groups check  small groups on the host, twice; no GPU

Files: bench/results/h200/groups/ (src/tilewright_lab/collect/group_data.py says what is in them);
rows are in a journal beside a file until the end of a run. A run that goes on draws the turns
before once more to know what is left; `--first-turn` leaves out those that are complete. `list`
keeps the groups that a file has: there are rows of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.compiled import compile_families, cubins
from tilewright_lab.collect.group_data import (
    DECISIONS,
    Known,
    catalogue_text,
    file_name,
    read_catalogue,
    read_groups,
)
from tilewright_lab.collect.group_sample import TURNS, GroupSource, families, has_products, sources
from tilewright_lab.collect.groups import GROUPS, LAYOUT, GivenSource, given
from tilewright_lab.collect.rows import read_rows
from tilewright_lab.scripts.collecting import check_on_host, collect, collector, parser_of

# GTuner's split (Sec. 4.1), as far as networks of the zoo go.
NETWORKS = {
    'train': ('inception_v3', 'vgg11'),
    'test': ('resnet18', 'resnet34', 'mobilenet_v1', 'squeezenet'),
}
TIMING_S = 4e-3  # of one configuration on the device: check, graph, six replays
CHECKED = ('squeezenet', 'mobilenet_v1')  # small networks with every kind of group but residuals


def groups_of(name: str, machine: GpuMachine, **small: int) -> dict[str, tuple[Group, int]]:
    """The distinct groups of a network as the passes make them, and how often it has each."""
    # Not above: every process that compiles kernels imports this file, and needs no networks.
    from tilewright import zoo
    from tilewright.graph.passes import GPU_PASSES
    from tilewright.network.compile import prepare
    from tilewright.targets.gpu.cost import GpuCost

    # Learned models rank sums of products with nothing before them.
    passes = {name: made for name, made in GPU_PASSES.items() if name != 'prologue'}
    program = prepare(zoo.graph(name, **small), None, None, GpuCost(machine), passes)
    counts = Counter(task.group.digest for task in program.tasks)
    found = {task.group.digest: task.group for task in program.tasks}
    return {digest: (found[digest], count) for digest, count in counts.items()}


def catalogue(machine: GpuMachine, before: Mapping[str, Known]) -> dict[str, Known]:
    """All groups of float32; one whose core a tested network has as well is a tested one. What was
    `before` stays as it is.
    """
    from tilewright.ops.core import core

    known = dict(before)
    for part, names in reversed(NETWORKS.items()):
        tested = {core(one.group).digest for one in known.values() if one.part == 'test'}
        for name in names:
            for digest, (group, count) in groups_of(name, machine).items():
                if digest in known:
                    counts = {**known[digest].networks, name: count}
                    known[digest] = Known(group, known[digest].part, counts)
                elif group.is_plain:
                    mine = 'test' if core(group).digest in tested else part
                    known[digest] = Known(group, mine, {name: count})
    return known


def write_list(options: argparse.Namespace) -> int:
    before = read_catalogue(options.out) if (options.out / 'groups.json').exists() else {}
    known = catalogue(known_gpu(options.machine), before)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / 'groups.json').write_text(catalogue_text(known))
    print(Counter(one.part for one in known.values()), 'groups in', options.out / 'groups.json')
    return 0


def measure(options: argparse.Namespace) -> int:
    known = read_catalogue(options.out)
    chosen = {d: one for d, one in known.items() if options.part in ('', one.part)}
    wanted = list(sources(chosen, options.first_turn, options.last_turn + 1))
    return collect(collector(options, GROUPS, LAYOUT, wanted, most=options.most))


def repeat(options: argparse.Namespace) -> int:
    """Random schedules that worked, again: the files of `--to` are those of `--out` otherwise."""
    data = read_groups(options.out)
    pairs = [(rows, i) for rows in (*data.train, *data.test) for i in range(len(rows))]
    chosen = Random(options.most).sample(pairs, min(options.most, len(pairs)))
    wanted: defaultdict[str, list[GpuSchedule]] = defaultdict(list)
    before: dict[tuple[str, GpuSchedule], float] = {}
    for rows, i in chosen:
        wanted[rows.group.digest].append(rows.schedules[i])
        before[rows.group.digest, rows.schedules[i]] = float(rows.seconds[i])
    options.to.mkdir(parents=True, exist_ok=True)
    (options.to / 'groups.json').write_text((options.out / 'groups.json').read_text())
    options.out = options.to
    again = [GivenSource(digest, tuple(schedules)) for digest, schedules in wanted.items()]
    collect(collector(options, replace(GROUPS, draw=given), LAYOUT, again))
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    data = read_groups(options.to)
    for rows in (*data.train, *data.test):
        for schedule, took in zip(rows.schedules, rows.seconds, strict=True):
            ratio = float(took) / before[rows.group.digest, schedule]
            ratios[f'{schedule.schema}/{schedule.intrinsic}'].append(ratio)
    for kind, mine in sorted(ratios.items()):
        low, middle, high = np.quantile(mine, (0.1, 0.5, 0.9))
        print(f'{kind:24} {len(mine):5} again; over the time before: median {middle:.3f}, '
              f'a tenth below {low:.3f}, a tenth above {high:.3f}')  # fmt: skip
    return 0


def show_plan(options: argparse.Namespace) -> int:
    """Configurations and CPU-seconds of one turn, of some groups that stand for all."""
    machine, known = known_gpu(options.machine), read_catalogue(options.out)
    several = [d for d in sorted(known) if has_products(known[d].group)]
    chosen = several[:: max(len(several) // options.groups, 1)][: options.groups]
    rows: Counter[tuple[str, str]] = Counter()
    made: Counter[tuple[str, str]] = Counter()
    spent: defaultdict[tuple[str, str], float] = defaultdict(float)
    refused: list[str] = []
    translate = cubins(options.architecture)
    began = time.process_time()
    for digest in chosen:
        for family in families(
            GroupSource(digest, options.first_turn), known[digest].group, machine
        ):
            begin = time.process_time()
            (one,) = compile_families(known[digest].group, (family,), translate)
            refused += [text for _, text in one.refused]
            spent[family.kind] += time.process_time() - begin
            rows[family.kind] += len(family.schedules)
            made[family.kind] += 1
    total = time.process_time() - began
    for kind, count in sorted(rows.items()):
        print(f'{"/".join(kind):22} {made[kind]:5} families {count:5} configurations, '
              f'{spent[kind] / made[kind]:.2f} CPU-s a family, '
              f'{spent[kind] / count:.3f} a configuration')  # fmt: skip
    print(len(refused), 'refused', *refused[:3])
    each = total / max(sum(rows.values()), 1)
    turn = list(sources(known, 1, 2))
    print(f'{len(chosen)} groups: {sum(rows.values())} configurations, {each:.3f} CPU-s each with '
          f'drawing; a turn has {len(turn)} groups; on 16 cores as fast as this one 30,000 take '
          f'{max(30_000 * each / 15, 30_000 * TIMING_S):.0f} s')  # fmt: skip
    return 0


def show_status(options: argparse.Namespace) -> int:
    known = read_catalogue(options.out)
    parts: Counter[str] = Counter()
    networks: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    size = 0
    for kind in DECISIONS:
        path = options.out / file_name(*kind)
        rows = read_rows(path)
        if not rows:
            continue
        size += path.stat().st_size if path.exists() else 0
        print(path.name, len(rows), 'rows', dict(Counter(row['status'] for row in rows)))
        for row in rows:
            if row['status'] == 'ok':
                groups[row['group']] += 1
                parts[known[row['group']].part] += 1
                networks.update(known[row['group']].networks.keys())
    rich = sum(groups[d] >= 200 for d in groups if known[d].part == 'test')
    print(dict(parts), dict(networks), f'{len(groups)} of {len(known)} groups; {rich} tested ones '
          f'with 200 configurations or more; {size} bytes')  # fmt: skip
    return 0


def check(options: argparse.Namespace) -> int:
    """Small groups, twice, on the host."""
    machine = known_gpu(options.machine)
    found = {}
    for part, name in zip(('train', 'test'), CHECKED, strict=True):
        for digest, (group, count) in groups_of(name, machine, image=32, width=16).items():
            found.setdefault(digest, Known(group, part, {name: count}))
    with tempfile.TemporaryDirectory() as folder:
        options.out = Path(folder)
        few = dict(list(found.items())[:: max(len(found) // options.groups, 1)])
        (options.out / 'groups.json').write_text(catalogue_text(few))
        chosen = list(sources(few, 0, 1))
        if not check_on_host(
            options, GROUPS, LAYOUT, chosen, chunk=1, patience=options.seconds
        ):  # fmt: skip
            return 1
        return show_status(options)


def main() -> int:
    parser = parser_of(__doc__, seconds=330.0, chunk=3, out='bench/results/h200/groups')
    verbs = {
        'list': write_list, 'measure': measure, 'repeat': repeat, 'plan': show_plan,
        'status': show_status, 'check': check,
    }  # fmt: skip
    parser.add_argument('verb', choices=list(verbs))
    parser.add_argument('--first-turn', type=int, default=0)
    parser.add_argument('--last-turn', type=int, default=TURNS - 1)
    parser.add_argument('--most', type=int, default=0, help='rows of measure and repeat')
    parser.add_argument('--to', type=Path, help='of repeat')
    parser.add_argument('--part', default='', choices=['', *NETWORKS], help='measure this alone')
    parser.add_argument('--groups', type=int, default=6, help='of plan and check')
    options = parser.parse_args()
    return verbs[options.verb](options)


if __name__ == '__main__':
    raise SystemExit(main())
