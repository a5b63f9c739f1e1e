"""How well the GPU models rank: on CNNOpt's measurements, and on our own.

    python -m tilewright_lab.scripts.gpu_model authors  the authors' exhaustive RS files, RTX \
        2080 Ti, beside the
                                           Analytical column of CNNOpt's Table 9
    python -m tilewright_lab.scripts.gpu_model measured  bench/results/h200/layers-*.csv.gz: the \
        frozen layers
    python -m tilewright_lab.scripts.gpu_model pruned  the same: is the best kept by what a \
        ranker leaves over
    python -m tilewright_lab.scripts.gpu_model searched  bench/results/h200/cnnopt*.json: what \
        `tilewright bench`
                                           tried, beside the times that model/gpu/time.py predicts
    python -m tilewright_lab.scripts.gpu_model fit  constants of model/gpu/time.py from \
        train-*.csv.gz, and how
                                           well constants from other problems rank each fifth of it

Rankers: `volume` is CNNOpt's analytical model (Sec. 4.3: bytes over bandwidth, the larger of two
levels), `time` model/gpu/time.py, `pul` and `bound` model/gpu/pul.py. Figures: Spearman's
correlation with measured times, and loss of performance (Sec. 4.1) of the best among the top 1, 5,
10 and 30. `pruned`: the first `KEPT` of a layer's schedules by each ranker (DeepCuts keeps 1% by
PUL), where the best stands in its order, and what the bound alone excludes once those were
measured: schedules that cannot be faster than the best of them. The authors' files are in the data
directory (TILEWRIGHT_SHARED), `cnnopt-2080ti`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from tilewright import knobs
from tilewright.errors import MissingError, ScheduleError
from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS, plan
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.pul import bound_of, pul_of
from tilewright.model.gpu.time import COSTS, Costs, predict_gpu, time_of
from tilewright.model.gpu.transactions import work
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.problems import Problem, layers
from tilewright_lab.collect.rows import read_rows
from tilewright_lab.figures.cnnopt_volumes import cnnopt_volumes

TOPS = (1, 5, 10, 30)
# PACT'22, Table 9, Analytical, 2080 Ti: loss at the top 30, in percent.
PRINTED = {
    'R1': 0, 'R2': 73.6, 'R4': 10.1, 'R6': 105.5, 'R7': 1.1, 'R9': 94.3, 'R10': 15.2, 'R12': 2.1,
    'Y0': 18.2, 'Y2': 19.4, 'Y4': 13.0, 'Y8': 0.5, 'Y12': 0, 'Y18': 0, 'D1': 0, 'D2': 18.5,
    'D3': 30.5, 'D4': 51.1, 'D5': 27.6, 'D6': 18.8,
}  # fmt: skip
FOLDS = 5
# Round numbers that a fit starts from, so that no fold has seen the layers left out of it.
START = Costs(2e-6, 2.0, 2.0, 600.0, 100.0, 4.0, 2000.0, 64.0, 1.3, 120.0)
SCHEMAS = {
    'rs': 'fma', 's': 'fma', 'tiled-fma': 'fma', 'tiled-mma_tf32x3': 'mma_tf32x3',
    'patch-mma_tf32x3': 'mma_tf32x3', 'patch-wgmma_tf32x3': 'wgmma_tf32x3', 'general': 'fma',
}  # fmt: skip
MOST = 2000  # rows of one schema that a fit takes
KEPT = 0.01  # the share of a layer's schedules that is left over (DeepCuts)
# Sets of a layer whose pruning is looked at: name -> schemas.
SETS = {
    'rs and s': ('rs', 's'), 'tiled': ('tiled',), 'patch': ('patch',),
    'all': ('rs', 's', 'tiled', 'patch', 'general'),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured schedule with everything that rankers look at."""

    layer: str
    group: Group
    schedule: GpuSchedule
    seconds: float
    done: Work
    guess: Work  # by the registers that are expected before anything is compiled
    compulsory: float


def authors() -> Iterator[Sample]:
    """All rows of the RS kernel, stride 1 and 2."""
    shared = knobs.get('shared')
    folders = [f for f in (shared, shared / 'data') if f] if shared else []
    root = next((f / 'cnnopt-2080ti' for f in folders if (f / 'cnnopt-2080ti').is_dir()), None)
    if root is None:
        raise MissingError(
            'the data of CNNOpt are not there; set TILEWRIGHT_SHARED to their folder'
        )
    named = {problem.shape: name for name, problem in layers().items()}
    for path in sorted((*root.glob('dir_rs3*/Reg*'), *root.glob('dir_st2*/Reg*'))):
        stride = 2 if 'st2' in path.parent.name else 1
        with open(path) as file:
            rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
        k, h, w, c, r = (int(cell) for cell in rows[0][:5])
        problem = Problem(k, h, w, c, r, stride, 0)
        group = problem.group
        for row in rows:
            tk, th, tx, _, bh, bw, split = (int(cell) for cell in row[5:12])
            numbers = (tk, th, tx, 32, 1, 1, 1, bh, bw, 1, 1, split, 0)
            schedule = GpuSchedule('rs', tuple(zip(DECISIONS, numbers, strict=True)))
            yield _sample(named[problem.shape], group, schedule, row[12] * 1e-3)


def measured(
    folder: Path, kinds: Sequence[str], which: str = 'layers', most: int | None = None
) -> Iterator[Sample]:
    """Rows of our own data sets that are right; at most so many of each schema, seeded."""
    named = {problem.shape: name for name, problem in layers().items()}
    groups: dict[Problem, Group] = {}
    for kind in kinds:
        path = folder / f'{which}-{kind}.csv.gz'
        right = [row for row in read_rows(path) if row['status'] == 'ok'] if path.exists() else []
        if most is not None and len(right) > most:
            right = Random(kind).sample(right, most)
        for row in right:
            problem = Problem(*(int(row[n]) for n in ('k', 'h', 'w', 'c', 'r', 'stride', 'pad')))
            group = groups.setdefault(problem, problem.group)
            names = list(row)[7:-4]
            tiles = tuple((name, int(row[name])) for name in names)
            schedule = GpuSchedule(kind.partition('-')[0], tiles, SCHEMAS[kind])
            yield _sample(
                named.get(problem.shape, str(problem.shape)), group, schedule,
                float(row['time_us']) * 1e-6, int(row['registers']),
            )  # fmt: skip


def _sample(
    layer: str, group: Group, schedule: GpuSchedule, seconds: float, registers: int | None = None
) -> Sample:
    guess = work(group, schedule)
    done = replace(guess, registers=registers) if registers else guess
    return Sample(layer, group, schedule, seconds, done, guess, group.compulsory_bytes)


Ranker = Callable[[Sample], float]


def rankers(machine: GpuMachine, costs: Costs = COSTS) -> dict[str, Ranker]:
    return {
        'volume': lambda s: volume(s, machine),
        'time': lambda s: modelled(s, machine, costs),
        'pul': lambda s: -pul_of(s.guess, machine).value,
        'bound': lambda s: bound_of(s.group, s.guess, machine).seconds,
    }


def volume(sample: Sample, machine: GpuMachine) -> float:
    if sample.schedule.schema not in ('rs', 's'):
        return math.nan
    counts = cnnopt_volumes(plan(sample.group, sample.schedule))
    return max(
        128 * counts.global_to_shared / machine.global_gbps,
        128 * counts.shared_to_register / machine.shared_gbps,
    )


def modelled(sample: Sample, machine: GpuMachine, costs: Costs) -> float:
    """What does not fit by the estimate of its registers comes last."""
    try:
        return time_of(sample.done, machine, sample.compulsory, costs).seconds
    except ScheduleError:
        return math.inf


def score(samples: Sequence[Sample], ranker: Ranker) -> dict | None:
    """{rank correlation, loss at each top} of one layer."""
    values = [ranker(sample) for sample in samples]
    if any(math.isnan(value) for value in values):
        return None
    times = [sample.seconds for sample in samples]
    order = sorted(range(len(values)), key=lambda i: values[i])
    best = min(times)
    losses = {f'top{n}': min(times[i] for i in order[:n]) / best - 1 for n in TOPS}
    return {
        'spearman': statistics.correlation(values_ranked(values), values_ranked(times)),
        **losses,
    }


def values_ranked(values: Sequence[float]) -> list[float]:
    """Ranks, the mean of their places for equal values."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, place = [0.0] * len(values), 0
    while place < len(order):
        behind = place
        while behind < len(order) and values[order[behind]] == values[order[place]]:
            behind += 1
        for i in order[place:behind]:
            ranks[i] = (place + behind - 1) / 2
        place = behind
    return ranks


def by_layer(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.layer, []).append(sample)
    return dict(sorted(found.items()))


def report(samples: Sequence[Sample], machine: GpuMachine, printed: dict[str, float]) -> dict:
    """Scores of every ranker on every layer, shown and returned."""
    tables: dict[str, dict] = {}
    for name, ranker in rankers(machine).items():
        rows = {layer: score(rows, ranker) for layer, rows in by_layer(samples).items()}
        known = {layer: row for layer, row in rows.items() if row}
        if not known:
            continue
        print(f'\n{name:8s}  rows  spearman  loss at {", ".join(map(str, TOPS))}, %')
        for layer, row in known.items():
            count = len(by_layer(samples)[layer])
            beside = f'   paper {printed[layer]}' if name == 'volume' and printed else ''
            print(f'{layer:8s} {count:5d} {row["spearman"]:8.3f}   {_losses(row)}{beside}')
        mean = {key: statistics.mean(r[key] for r in known.values()) for key in (*_keys(),)}
        print(f'{"mean":14s} {mean["spearman"]:8.3f}   {_losses(mean)}')
        tables[name] = {'layers': known, 'mean': mean}
    below = sum(bound_of(s.group, s.guess, machine).seconds > s.seconds for s in samples)
    print(f'\n{below} of {len(samples)} measured times are below the bound')
    return {'rankers': tables, 'below_bound': below, 'samples': len(samples)}


def _keys() -> tuple[str, ...]:
    return ('spearman', *(f'top{n}' for n in TOPS))


def _losses(row: dict) -> str:
    return ' '.join(f'{100 * row[f"top{n}"]:7.1f}' for n in TOPS)


def error(samples: Sequence[Sample], machine: GpuMachine, costs: Costs) -> float:
    """Mean absolute logarithmic error; what is slower than twice a layer's best counts less."""
    best = {layer: min(s.seconds for s in rows) for layer, rows in by_layer(samples).items()}
    total = 0.0
    for sample in samples:
        guess = modelled(sample, machine, costs)
        if math.isfinite(guess):
            weight = min(1.0, 2 * best[sample.layer] / sample.seconds)
            total += weight * abs(math.log(guess / sample.seconds))
    return total / len(samples)


def fit(samples: Sequence[Sample], machine: GpuMachine, costs: Costs, rounds: int) -> Costs:
    """Descent over one constant at a time, with steps that shrink where nothing is gained."""
    steps = dict.fromkeys(asdict(costs), 0.5)
    least = error(samples, machine, costs)
    for _ in range(rounds):
        for name, step in steps.items():
            for factor in (1 + step, 1 / (1 + step)):
                changed = replace(costs, **{name: getattr(costs, name) * factor})
                found = error(samples, machine, changed)
                if found < least:
                    costs, least = changed, found
                    break
            else:
                steps[name] = step / 2
    return costs


def show_fit(samples: Sequence[Sample], machine: GpuMachine, rounds: int) -> dict:
    """Constants from all layers; and scores of each fifth by constants from the others."""
    costs = fit(samples, machine, START, rounds)
    print({name: float(f'{value:.4g}') for name, value in asdict(costs).items()})
    print('error', round(error(samples, machine, costs), 4))
    names = list(by_layer(samples))
    rows = {}
    for fold in range(FOLDS):
        out = set(names[fold::FOLDS])
        kept = [s for s in samples if s.layer not in out]
        learned = fit(kept, machine, START, rounds)
        for layer in out:
            held = [s for s in samples if s.layer == layer]
            rows[layer] = score(held, lambda s, c=learned: modelled(s, machine, c))
    mean = {key: statistics.mean(row[key] for row in rows.values() if row) for key in _keys()}
    print(f'left out  {mean["spearman"]:8.3f}   {_losses(mean)}')
    return {'costs': asdict(costs), 'left_out': {'layers': rows, 'mean': mean}}


def kept(rows: Sequence[Sample], ranker: Ranker) -> dict:
    """What the first `KEPT` of a layer's schedules hold: whether the best, else the loss.

    `needed` is the share that would have to be kept for the best to be among them.
    """
    count = max(1, math.ceil(KEPT * len(rows)))
    order = sorted(rows, key=lambda s: (ranker(s), s.schedule.digest))
    best, found = min(s.seconds for s in rows), min(s.seconds for s in order[:count])
    place = next(i for i, s in enumerate(order) if s.seconds == best)
    return {
        'rows': len(rows), 'kept': count, 'best': found == best, 'loss': found / best - 1,
        'needed': (place + 1) / len(rows),
    }  # fmt: skip


def excluded(rows: Sequence[Sample], ranker: Ranker) -> dict:
    """What a lower bound of the time excludes, once the first `KEPT` by it were measured."""
    first = kept(rows, ranker)
    best = min(s.seconds for s in rows)
    known = best * (1 + first['loss'])
    left = [s.seconds for s in rows if ranker(s) < known]
    return {
        'rows': len(rows), 'excluded': 1 - len(left) / len(rows), 'best': best in left,
        'loss': min([*left, known]) / best - 1,
    }  # fmt: skip


def show_pruned(
    samples: Sequence[Sample], by: Mapping[str, Ranker], sets: Mapping[str, Sequence[str]] = SETS
) -> dict:
    """Every set of every layer, by every ranker that has a value for all of it."""
    known = {name: {id(s): ranker(s) for s in samples} for name, ranker in by.items()}
    ways = {name: (kept, name) for name in known} | {'below the bound': (excluded, 'bound')}
    tables: dict[str, dict] = {}
    for title, schemas in sets.items():
        chosen = [s for s in samples if s.schedule.schema in schemas]
        for way, (judge, name) in ways.items():
            values = known[name]
            if not chosen or any(math.isnan(values[id(s)]) for s in chosen):
                continue
            rows = {
                layer: judge(of, lambda s, v=values: v[id(s)])
                for layer, of in by_layer(chosen).items()
            }
            mean = pruned_mean(list(rows.values()))
            tables.setdefault(title, {})[way] = {'layers': rows, 'mean': mean}
            needed = f', needed {100 * mean["needed"]:5.1f}%' if 'needed' in mean else ''
            print(
                f'{title:9s} {way:16s} {mean["layers"]:3d} layers {mean["rows"]:6d} rows, pruned '
                f'{100 * mean["pruned"]:5.1f}%, best kept on {mean["best_kept"]:2d}, loss mean '
                f'{100 * mean["mean_loss"]:5.1f}%, largest {100 * mean["largest_loss"]:5.1f}%'
                + needed
            )
    return tables


def pruned_mean(rows: Sequence[dict]) -> dict:
    """Of all layers: on how many the best is kept, and what is lost and pruned."""
    losses = [row['loss'] for row in rows]
    gone = [row['excluded'] if 'excluded' in row else 1 - row['kept'] / row['rows'] for row in rows]
    needed = [row['needed'] for row in rows if 'needed' in row]
    return {
        'layers': len(rows), 'rows': sum(row['rows'] for row in rows),
        'best_kept': sum(row['best'] for row in rows), 'pruned': statistics.mean(gone),
        'mean_loss': statistics.mean(losses), 'largest_loss': max(losses),
        **({'needed': statistics.mean(needed)} if needed else {}),
    }  # fmt: skip


def searched(path: Path) -> list[dict]:
    """Of each layer that `tilewright bench` wrote: the model's first choice among what was tried,
    over the best of it, and quartiles of predicted over measured time, bulk copies apart.
    """
    data = json.loads(path.read_text())
    machine, found = GpuMachine.from_json(data['machine']), []
    for layer in data['layers']:
        name, _, batch = layer['name'].partition('@')
        ((_, group, _),) = expand(name, int(batch) if batch else data['batch'])
        rows = []
        for one in layer.get('candidates', ()):
            schedule = GpuSchedule.from_json(one['schedule'])
            # What needs more registers than the model thinks there are has no prediction.
            with contextlib.suppress(ScheduleError):
                if one['us'] is not None:
                    predicted = 1e6 * predict_gpu(group, schedule, machine).seconds
                    rows.append((predicted, one['us'], dict(schedule.tiles).get('bulk', 0)))
        if not rows:
            continue
        best, first = min(us for _, us, _ in rows), min(rows)[1]
        ratios = {
            kind: statistics.quantiles([p / us for p, us, bulk in rows if bulk == flag], n=4)
            for kind, flag in (('bulk', 1), ('other', 0))
            if sum(bulk == flag for *_, bulk in rows) > 1
        }
        found.append({'layer': layer['name'], 'tried': len(rows), 'first': first / best} | ratios)
    return found


def show_searched(folder: Path) -> dict:
    found = {path.name: searched(path) for path in sorted(folder.glob('cnnopt*.json'))}
    for name, rows in found.items():
        print(f'{name}: first choice over best, quartiles of predicted over measured')
        for row in rows:
            parts = [
                f'{kind} {" ".join(f"{q:.2f}" for q in row[kind])}'
                for kind in ('bulk', 'other') if kind in row
            ]  # fmt: skip
            print(f'  {row["layer"]:15} {row["first"]:.3f}  {"; ".join(parts)}')
        print(f'  geometric mean  {statistics.geometric_mean(row["first"] for row in rows):.3f}')
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('what', choices=['authors', 'measured', 'pruned', 'searched', 'fit'])
    parser.add_argument('--folder', type=Path, default=Path('bench/results/h200'))
    parser.add_argument('--schemas', default=','.join(SCHEMAS))
    parser.add_argument('--rounds', type=int, default=16)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    if options.what == 'searched':
        result = show_searched(options.folder)
    elif options.what == 'authors':
        result = report(list(authors()), known_gpu('rtx2080ti'), PRINTED)
    else:
        fitting = options.what == 'fit'
        which, most = ('train', MOST) if fitting else ('layers', None)
        samples = list(measured(options.folder, options.schemas.split(','), which, most))
        if not samples:
            raise MissingError(f'{options.folder} has no rows; run scripts/gpu_dataset.py {which}')
        machine = known_gpu('h200')
        if fitting:
            result = show_fit(samples, machine, options.rounds)
        elif options.what == 'pruned':
            result = show_pruned(samples, rankers(machine))
        else:
            result = report(samples, machine, {})
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
