"""Measure on a GPU what learned rankers are judged by, and rows of every schema to learn from.

    python -m tilewright_lab.scripts.gpu_learned layers --within 120 --out layers.json \
        [--known bench/results/h200/cnnopt-repeat.json.gz]
    python -m tilewright_lab.scripts.gpu_learned networks --within 120 --out networks.json
    python -m tilewright_lab.scripts.gpu_learned rows --within 90 --out train-searched.csv.gz

layers   CNNOpt's 20 layers, each searched anew: `--trials` (16) candidates by the model `auto` and
         by `analytical`, and `--most` (110) by `analytical`, or what a bench found before
         (`--known`); then the winners again, side by side
networks each compiled by `auto` and by `analytical` with `--trials` (16) a group, three seeds, each
         in an empty store; then both again, side by side
rows     schedules of every schema that a search proposes, a third of `--trials` (24) at random and
         half as many as these of a search by the time model and of one by `auto`: where a model is
         too hopeful, its own searches measure it. Convolutions, depthwise, and fused groups of
         networks that learned models are not tested on (rank/rows.py)

Run again with the same words to go on: a file that is there is gone on from. `--target host` runs
small ones without a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tilewright import knobs, zoo
from tilewright.machine.compiler import cache_dir
from tilewright.network.compile import compile
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.suites import suite
from tilewright.rank.files import SEARCHED
from tilewright.rank.rankers import ranker_for
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright.store.records import open_store
from tilewright.targets.gpu.choose import search
from tilewright.targets.gpu.code import build
from tilewright.targets.gpu.tuning import How, Place, is_searched, tune_groups
from tilewright_lab.collect.group_data import read_catalogue
from tilewright_lab.collect.problems import random_problems
from tilewright_lab.collect.stored import StoredRows, read_rows, rows_in_store, write_rows
from tilewright_lab.compare.gpu_networks import Subject, duel
from tilewright_lab.figures.gtuner_table3 import entrant_of
from tilewright_lab.peers.contestants import Entrant

MAX_REL_ERR = 1e-4
STARTS = 4
ROUNDS = 5
TURNS = 10  # of networks
AT_ONCE = 48  # groups of one turn
CATALOGUE = Path('bench/results/h200/groups')


def starts(groups: Mapping[str, Group], place: Place) -> dict[str, Any]:
    return {
        name: search(group, place.machine, STARTS, MAX_REL_ERR) for name, group in groups.items()
    }


def tuned(
    groups: Mapping[str, Group], place: Place, trials: int, how: How, store: Path
) -> dict[str, Any]:
    """The best of each group: schedule and time, and the seconds of the whole."""
    began = time.monotonic()
    with open_store(store) as opened:
        found = tune_groups(
            groups, starts(groups, place), place, trials, MAX_REL_ERR, None, how, opened
        )
    best = {
        name: one.choices[0].schedule.to_json() for name, one in found.items() if not one.trouble
    }
    return {'seconds': round(time.monotonic() - began, 1), 'trials': trials, 'best': best}


def again(groups: Mapping[str, Group], place: Place, ways: Mapping[str, dict]) -> dict[str, dict]:
    """The winners of all ways in turn, round by round: medians in us, by group and way."""
    found: dict[str, dict] = {}
    winners = {
        name: {
            way: GpuSchedule.from_json(one['best'][name])
            for way, one in ways.items()
            if name in one['best']
        }
        for name in groups
    }
    with GpuWorker(place.target, place.name, seed=0) as worker, ThreadPoolExecutor() as pool:
        compiled = {
            (name, s): pool.submit(build, groups[name], s, place.architecture)
            for name, schedules in winners.items()
            for s in {*schedules.values()}
            if place.architecture
        }
        for name, group in groups.items():
            schedules = winners[name]
            built = {
                s: compiled[name, s].result() if place.architecture else None
                for s in schedules.values()
            }
            samples: dict[GpuSchedule, list[float]] = {s: [] for s in built}
            for _ in range(ROUNDS):
                for schedule, made in built.items():
                    answer, _ = worker.attempt(group, schedule, made, 7)
                    samples[schedule] += answer.samples_ms
            found[name] = {
                way: {
                    'us': 1e3 * statistics.median(samples[schedule]),
                    'schedule': schedule_text(schedule),
                }
                for way, schedule in schedules.items()
                if samples[schedule]
            }
    return found


def known_best(path: Path, groups: Mapping[str, Group]) -> dict[str, Any]:
    """What a bench has found of layers before, as `tuned` gives it."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
    bench = json.loads(text)
    best = {
        row['name'].split('/')[-1]: row['schedule']
        for row in bench['layers']
        if row.get('schedule')
    }
    found = {name: best[name] for name in groups if name in best}
    return {'from': path.name, 'trials': bench['trials'], 'best': found}


def layers(options: argparse.Namespace, place: Place, left: Callable[[], float]) -> None:
    groups = {layer.name: layer.group for layer in suite('cnnopt')}
    if place.target == 'host':
        groups = {'small': conv2d(c=16, h=8, w=8, k=32, r=3, s=3, pad=1)}
    found: dict[str, Any] = {'machine': place.machine.to_json(), 'ways': {}, 'layers': {}}
    if options.out.exists():
        found = json.loads(options.out.read_text())
    plan = [('auto', options.trials), ('analytical', options.trials), ('best', options.most)]
    if options.known is not None:
        found['ways'].setdefault('best', known_best(options.known, groups))
    chosen = ranker_for('auto', next(iter(groups.values())), place.machine, SEARCHED)
    found['auto'] = chosen.note
    print(chosen.note, flush=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        for way, trials in plan:
            if way in found['ways'] or left() < 10:
                continue
            how = How('analytical' if way == 'best' else way)
            found['ways'][way] = tuned(groups, place, trials, how, Path(folder) / way)
            print(way, found['ways'][way]['seconds'], 's', flush=True)
            options.out.write_text(json.dumps(found, indent=1) + '\n')
    if len(found['ways']) == len(plan) and left() > 5:
        found['layers'] = again(groups, place, found['ways'])
        rows = found['layers'].values()
        for way in ('auto', 'analytical'):
            ratios = [row[way]['us'] / row['best']['us'] for row in rows if way in row]
            found[f'{way}_over_best'] = statistics.geometric_mean(ratios)
            print(way, 'over the best of', options.most, found[f'{way}_over_best'], max(ratios))
        options.out.write_text(json.dumps(found, indent=1) + '\n')


def networks(options: argparse.Namespace, place: Place, left: Callable[[], float]) -> None:
    small = place.target == 'host'
    found: dict[str, Any] = {'machine': place.machine.to_json(), 'trials': options.trials}
    found['rows'] = {}
    if options.out.exists():
        found = json.loads(options.out.read_text())
    took = 0.0
    for seed in range(options.seeds):
        for name in options.networks.split(','):
            key = f'{name} {seed}'
            if key in found['rows'] or left() < 1.2 * took:
                continue
            began = time.monotonic()
            found['rows'][key] = one_network(name, seed, options.trials, place, small)
            took = max(took, time.monotonic() - began)
            over = [row['analytical']['us'] / row['auto']['us'] for row in found['rows'].values()]
            found['analytical_over_auto'] = statistics.geometric_mean(over)
            options.out.write_text(json.dumps(found, indent=1) + '\n')
            told = {way: (round(r['us'], 1), r['seconds']) for way, r in found['rows'][key].items()}
            print(key, told, f'{left():.0f} s left', flush=True)


def one_network(
    name: str, seed: int, trials: int, place: Place, small: bool
) -> dict[str, dict[str, Any]]:
    """A network by both ways: seconds of its compilation, and the medians of its time in turns."""
    subject = Subject.of(name, seed, 1, 'fp32', **(zoo.SMALL.get(name, {}) if small else {}))
    nets: dict[str, tuple[float, GpuNetwork]] = {}
    ways = ('auto', 'analytical') if seed % 2 == 0 else ('analytical', 'auto')
    for way in ways:
        graph = zoo.graph(**subject.arguments)
        with tempfile.TemporaryDirectory() as store, ExitStack() as stack:
            stack.enter_context(knobs.held('cache_dir', store))
            stack.enter_context(knobs.held('seed', str(seed)))
            begin = time.monotonic()
            net = compile(graph, place.target, tune='measure', trials=trials, model=way,
                          check=False)  # fmt: skip
        assert isinstance(net, GpuNetwork)
        nets[way] = time.monotonic() - begin, net
    makers = [partial(_named, way, net, subject) for way, (_, net) in nets.items()]
    timed = {row['name']: row for row in duel(subject, makers, (), TURNS).contestants}
    return {
        way: {
            'us': timed[way]['median_us'], 'seconds': round(seconds, 1),
            'status': timed[way]['status'], 'max_rel_err': timed[way].get('max_rel_err'),
            'alone_us': 1e6 * sum(task.predicted_s for task in net.gpu_tasks),
            'samples_us': timed[way]['samples_us'],
            'tasks': {t.name: schedule_text(t.schedule) for t in net.gpu_tasks},
        }
        for way, (seconds, net) in nets.items()
    }  # fmt: skip


def _named(way: str, net: GpuNetwork, subject: Subject) -> Entrant:
    return replace(entrant_of(net, subject), name=way)


def to_learn_from(small: bool) -> Iterator[Group]:
    """Groups in turns: a convolution, one with bias and activation, one of each plane; a group of a
    network.
    """
    if small:
        yield conv2d(c=16, h=8, w=8, k=32, r=3, s=3, pad=1)
        yield conv2d(c=32, h=8, w=8, k=32, r=3, s=3, pad=1, groups=32)
        return
    known = read_catalogue(CATALOGUE)
    fused = iter([one.group for one in known.values() if one.part == 'train'])
    for number, p in enumerate(random_problems(400)):
        height, width = p.h * p.stride, p.w * p.stride
        plain: dict[str, Any] = {
            'h': height,
            'w': width,
            'r': p.r,
            's': p.r,
            'stride': p.stride,
            'pad': p.pad,
        }
        if number % 4 == 0:
            yield conv2d(c=p.k, k=p.k, groups=p.k, **plain)
        elif number % 4 == 1:
            yield conv2d(c=p.c, k=p.k, bias=True, activation='relu', **plain)
        else:
            yield conv2d(c=p.c, k=p.k, **plain)
        yield from islice(fused, 1)


def rows(options: argparse.Namespace, place: Place, left: Callable[[], float]) -> None:
    kept = read_rows(options.out) if options.out.exists() else StoredRows()
    seen = set(kept.group)
    groups = [g for g in to_learn_from(place.target == 'host') if is_searched(g)]
    groups = [g for g in dict.fromkeys(groups) if g.digest not in seen]
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        path, took = Path(folder) / 'store', 0.0
        while groups and left() > 1.3 * took:
            began = time.monotonic()
            turn = {g.digest: g for g in groups[:AT_ONCE]}
            tuned(turn, place, max(options.trials // 3, 1), How('analytical', 'random'), path)
            for model in ('analytical', 'auto'):
                tuned(turn, place, max(options.trials // 2, 1), How(model), path)
            groups, took = groups[AT_ONCE:], time.monotonic() - began
            with open_store(path) as store:
                made = rows_in_store(store, (place.machine.name,))
            write_rows(options.out, kept + made)
            print(len(made), 'new rows of', len(set(made.group)), 'groups', f'{left():.0f} s left',
                  dict(made.counted), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('verb', choices=['layers', 'networks', 'rows'])
    parser.add_argument('--within', type=float, default=120.0, help='seconds')
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--trials', type=int, help='[16, of rows 24]')
    parser.add_argument('--most', type=int, default=110)
    parser.add_argument('--known', type=Path, help='a result of bench, instead of --most')
    parser.add_argument('--networks', default='squeezenet,mobilenet_v1,resnet18')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--target', default='cuda', choices=['cuda', 'host', 'opencl'])
    options = parser.parse_args()
    options.trials = options.trials or (24 if options.verb == 'rows' else 16)
    began = time.monotonic()
    place = Place.of(open_device(options.target, ''), options.target)
    verb = {'layers': layers, 'networks': networks, 'rows': rows}[options.verb]
    verb(options, place, lambda: options.within - (time.monotonic() - began))


if __name__ == '__main__':
    main()
