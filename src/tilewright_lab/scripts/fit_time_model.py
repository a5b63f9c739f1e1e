"""Fit the constants of the time model (model/cpu/outer_time.py) to measured schedules.

Goes in: samples of `tilewright reproduce mopt-fig5` (random schedules, one thread), and a result of
`tilewright bench mopt` (the few best predicted, all threads). Comes out: the constants, how well
they explain the times, and the same for layers that were left out of the fit.

    python -m tilewright_lab.scripts.fit_time_model \
        bench/results/neoverse-n1/mopt-auto-2threads.json \\
        bench/results/neoverse-n1/mopt-fig5-samples*.jsonl.gz

Predictions are linear in all constants but few, so that every schedule is priced once for each
constant and never again. What is minimised, for each layer: the weighted variance of the logarithm
of measured over predicted, so that a factor that a whole layer has in common hardly counts. Fast
schedules weigh more: (time / best)^-4. Random schedules are far from the best ones, which differ in
other ways; so both kinds take part, the second with four times the weight. A pull towards the
values that the source has keeps constants that the data say little about where they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.machine.machine import Machine
from tilewright.model.cpu import outer_time as model
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule
from tilewright_lab.figures.dataset import read

LINEAR = (
    'CALL_CYCLES', 'ACCUMULATOR_CYCLES', 'TILE_CYCLES', 'SWITCH_CYCLES', 'RESUME_CYCLES',
    'RESUME_PIXEL_CYCLES', 'STORE_CYCLES', 'STORE_TURNED_CYCLES', 'STORE_APART_CYCLES',
    'PACK_CALL_CYCLES', 'PACK_CYCLES', 'PACK_ROW_CYCLES', 'PACK_STRIP_CYCLES',
    'PACK_BROKEN_CYCLES', 'PACK_APART_CYCLES', 'PACK_FROM', 'PACK_INTO', 'VECTOR_CYCLES',
    'IN_PLACE_CYCLES',
)  # fmt: skip
WEIGHTS = ('WRITTEN', 'RESUMED')  # of lines beside those that are read
PULL = 3e-3
CANDIDATES = 4.0  # weight of candidates beside samples
FOLDS = 3


@dataclass(frozen=True)
class Rows:
    """Priced schedules: one row each. `parts` is (compute, pack, store) with all constants zero,
    `slopes` what one unit of each constant adds to them; `traffic` the seconds over each boundary
    of what is read, and of what each of WEIGHTS counts, once.
    """

    layers: tuple[str, ...]
    layer: np.ndarray
    seconds: np.ndarray
    parts: np.ndarray
    slopes: np.ndarray
    traffic: np.ndarray
    fork: np.ndarray
    bound: np.ndarray

    def predicted(self, x: np.ndarray) -> np.ndarray:
        """Seconds under the constants exp(x): LINEAR, WEIGHTS, EXPOSED."""
        ends = [len(LINEAR), len(LINEAR) + len(WEIGHTS)]
        linear, weights, exposed = np.split(np.exp(x), ends)
        parts = self.parts + np.einsum('nkp,k->np', self.slopes, linear)
        moved = self.traffic[:, 0] + np.einsum('nwb,w->nb', self.traffic[:, 1:], weights)
        return np.maximum(parts.sum(1) + (moved * exposed).sum(1) + self.fork, self.bound)


def current() -> np.ndarray:
    """Logarithms of the constants as the source has them."""
    values = [getattr(model, name) for name in (*LINEAR, *WEIGHTS)]
    return np.log([*values, *model.EXPOSED])


def price(cases: Sequence[tuple[str, Group, Schedule, Machine, float]]) -> Rows:
    """[(layer, group, schedule, machine, seconds)] -> [Rows]"""
    kept = {name: getattr(model, name) for name in (*LINEAR, *WEIGHTS, 'EXPOSED')}
    model.EXPOSED = (1.0,) * len(model.EXPOSED)
    found = []
    try:
        for _, group, schedule, machine, _ in cases:
            rows = []
            for chosen in (None, *LINEAR):
                for name in LINEAR:
                    setattr(model, name, float(name == chosen))
                p = model.predict_outer(group, schedule, machine)
                rows.append((p.compute_s, p.pack_s, p.store_s))
            table, moved = np.array(rows), []
            for chosen in (None, *WEIGHTS):
                for name in WEIGHTS:
                    setattr(model, name, float(name == chosen))
                p = model.predict_outer(group, schedule, machine)
                moved.append([b.seconds for b in p.boundaries[1:]])
            traffic = np.array(moved)
            traffic[1:] -= traffic[0]
            p = model.predict_outer(group, schedule, machine)
            found.append((table[0], table[1:] - table[0], traffic, p.fork_s, p.bound_s))
    finally:
        for name, value in kept.items():
            setattr(model, name, value)
    layers = tuple(dict.fromkeys(case[0] for case in cases))
    parts, slopes, traffic, fork, bound = (np.array(column) for column in zip(*found, strict=True))
    return Rows(
        layers, np.array([layers.index(case[0]) for case in cases]),
        np.array([case[4] for case in cases]), parts, slopes, traffic, fork, bound,
    )  # fmt: skip


def samples(paths: Sequence[Path]) -> Rows:
    """A layer of every file counts by itself, under the number of the file and its name."""
    cases = []
    for number, path in enumerate(paths):
        data = read(path)
        for name, layer in data.layers.items():
            for key, time_ms in layer.times_ms().items():
                schedule, seconds = layer.samples[key].schedule, 1e-3 * time_ms
                if schedule.schema == 'outer':
                    row = f'{number}:{name}', layer.group, schedule, data.machine, seconds
                    cases.append(row)
    return price(cases)


def candidates(path: Path) -> Rows:
    data, cases = json.loads(path.read_text()), []
    machine = Machine.from_json(data['machine'])
    for layer in data['layers']:
        for plan in filter(None, (layer['plan'], layer.get('direct_plan'))):
            group = Group.from_json(plan['group'])
            for candidate in plan['candidates']:
                schedule = Schedule.from_json(candidate['schedule'])
                measured = candidate['measured']
                if schedule.schema == 'outer' and measured and measured['status'] == 'ok':
                    seconds = 1e-3 * measured['median_ms']
                    cases.append((layer['name'], group, schedule, machine, seconds))
    return price(cases)


def misfit(x: np.ndarray, rows: Rows, common: float, chosen: Sequence[int] | None = None) -> float:
    """Mean over layers of the weighted variance, and `common` of the squared mean."""
    error = np.log(rows.seconds / rows.predicted(x))
    total = []
    for number in range(len(rows.layers)) if chosen is None else chosen:
        here = rows.layer == number
        weight = (rows.seconds[here] / rows.seconds[here].min()) ** -4.0
        weight /= weight.sum()
        mean = (weight * error[here]).sum()
        total.append((weight * (error[here] - mean) ** 2).sum() + common * mean**2)
    return float(np.mean(total))


def fit(drawn: Rows, best: Rows, chosen: Sequence[int] | None, steps: int, seed: int) -> np.ndarray:
    """Random descent from the present constants."""
    rng, start = np.random.default_rng(seed), current()

    def price_of(x: np.ndarray) -> float:
        pull = PULL * ((x - start) ** 2).mean()
        return misfit(x, drawn, 0.05, chosen) + CANDIDATES * misfit(x, best, 0.2) + pull

    x, least, width = start.copy(), price_of(start), 0.25
    for step in range(steps):
        trial = x.copy()
        moved = rng.integers(0, len(x), size=rng.integers(1, 4))
        trial[moved] += width * rng.normal(size=len(moved))
        price_now = price_of(trial)
        if price_now < least:
            x, least = trial, price_now
        if step % (steps // 5) == steps // 5 - 1:
            width *= 0.65
    return x


def losses(x: np.ndarray, rows: Rows, chosen: Sequence[int] | None = None) -> np.ndarray:
    """For each layer: loss of the best of the first 1, 2 and 5 predicted, and rank correlation."""
    predicted, found = rows.predicted(x), []
    for number in range(len(rows.layers)) if chosen is None else chosen:
        here = rows.layer == number
        times = rows.seconds[here][np.argsort(predicted[here], kind='stable')]
        ranks = np.argsort(np.argsort(times))
        rank = np.corrcoef(ranks, np.arange(len(times)))[0, 1] if len(times) > 2 else np.nan
        found.append([*(times[:n].min() / times.min() - 1 for n in (1, 2, 5)), rank])
    return np.array(found)


def show(title: str, found: np.ndarray) -> None:
    top = '  '.join(f'{100 * loss:.2f}%' for loss in found[:, :3].mean(0))
    print(f'{title}: loss at top 1, 2, 5: {top}; rank correlation {np.nanmean(found[:, 3]):.3f}')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('bench', type=Path, help='JSON of bench mopt')
    parser.add_argument('samples', type=Path, nargs='+', help='samples of reproduce mopt-fig5')
    parser.add_argument('--steps', type=int, default=4000)
    parser.add_argument('--seed', type=int, default=1)
    given = parser.parse_args()
    drawn, best = samples(given.samples), candidates(given.bench)
    print(f'{len(drawn.seconds)} samples of {len(drawn.layers)} layers, '
          f'{len(best.seconds)} candidates of {len(best.layers)}')  # fmt: skip
    show('samples, constants as they are', losses(current(), drawn))
    show('candidates, constants as they are', losses(current(), best))
    names, held_out = [name.partition(':')[2] for name in drawn.layers], []
    folds = {name: number % FOLDS for number, name in enumerate(dict.fromkeys(names))}
    for fold in range(FOLDS):
        kept = [n for n, name in enumerate(names) if folds[name] != fold]
        left = [n for n, name in enumerate(names) if folds[name] == fold]
        x = fit(drawn, best, kept, given.steps // 2, given.seed)
        held_out.append(losses(x, drawn, left))
    show('samples of layers left out of the fit', np.concatenate(held_out))
    x = fit(drawn, best, None, given.steps, given.seed)
    show('samples, fitted', losses(x, drawn))
    show('candidates, fitted', losses(x, best))
    values = np.exp(x)
    for name, value in zip((*LINEAR, *WEIGHTS), values, strict=False):
        print(f'{name:20} {value:.3g}')
    print(f'{"EXPOSED":20} {", ".join(f"{v:.2g}" for v in values[-len(model.EXPOSED) :])}')


if __name__ == '__main__':
    main()
