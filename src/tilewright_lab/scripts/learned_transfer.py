"""Leave-one-GPU-out: a model of one GPU ranks the layers of another.

    python -m tilewright_lab.scripts.learned_transfer FROM FROM_MACHINE TO TO_MACHINE [--kind rs] \
        [--json FILE]

FROM and TO are folders of measured configurations (docs/learned.md). Shown are the analytical
order, the model of FROM as it is, and the same after a calibration by 50 rows of TO's training
problems (train/transfer.py): means over the layers of TO with stride 1, and seeds; and the last of
these over training problems of TO that gave no row, by which rules are chosen. What a seed gave is
written at once, and a file that has it is gone on from; after `--within` seconds no other is begun.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright_lab.collect.datasets import Data, Measured, read_data, rows_in
from tilewright_lab.train.evaluate import judged, means, ranking_of
from tilewright_lab.train.forest import table_of, train
from tilewright_lab.train.transfer import (
    RULE,
    TIMES,
    Scale,
    Transferred,
    calibrated,
    to_measure,
)


def judge(model: Transferred, layers: list[Measured], machine: GpuMachine) -> dict[str, float]:
    return means(ranking_of(model.scores(m.batch, machine), m.seconds) for m in layers)


@dataclass(frozen=True)
class Side:
    """One GPU's measurements of a kind of kernels."""

    data: Data
    gpu: GpuMachine

    @classmethod
    def of(cls, folder: Path, machine: str, kind: str) -> Side:
        return cls(read_data(folder).of([kind]), known_gpu(machine))


class Comparison:
    """Two GPUs' measurements, and the models of one seed after the other."""

    def __init__(self, source: Side, target: Side) -> None:
        tested = {m.problem for m in (*source.data.layers, *target.data.layers)}
        self.source, self.target = source, target
        self.layers = [m for m in target.data.layers if m.problem[5] == 1]
        self.foreign = [m for m in source.data.train if m.problem not in tested]
        largest = max(m.batch.group.flops for m in target.data.layers)
        self.own = [
            m for m in target.data.train
            if m.problem not in tested and m.problem[4] > 1 and m.batch.group.flops <= largest
        ]  # fmt: skip
        own = table_of(self.own, target.gpu)
        problems = {own.problems[number] for number in judged(own)}
        self.validation = [m for m in self.own if m.problem in problems]
        self.table = table_of(self.foreign, source.gpu)

    def analytical(self) -> dict[str, float]:
        tested = table_of(self.layers, self.target.gpu)
        rows = [np.flatnonzero(tested.group == g) for g in range(len(tested.problems))]
        return means(ranking_of(tested.base[r], tested.slower[r]) for r in rows)

    def seed(self, seed: int) -> dict[str, dict[str, float]]:
        home, gpu = self.source.gpu, self.target.gpu
        made = train(self.foreign, home, TIMES, seed=seed, table=self.table)
        scale = Scale.of(self.own, gpu, made.header['features'])
        few = to_measure(self.own, made, home, gpu, scale)
        taught = calibrated(made, home, few, gpu, scale)
        used = {m.problem for m in few}
        others = [m for m in self.validation if m.problem not in used]
        return {
            'transferred': judge(Transferred(made, home), self.layers, gpu),
            'calibrated': judge(taught, self.layers, gpu) | {'rows': rows_in(few)},
            'validation': judge(taught, others, gpu) | {'problems': len(others)},
        }


def table(found: dict) -> str:
    lines = ['model         loss at 1   at 10   at 30  trials to 95%  to 100%']
    rows = {'analytical': [found['analytical']]}
    for name in ('transferred', 'calibrated', 'validation'):
        rows[name] = [seed[name] for seed in found['seeds'].values()]
    for name, seeds in rows.items():
        mean = {key: statistics.fmean(one[key] for one in seeds) for key in seeds[0]}
        losses = '  '.join(f'{100 * mean[f"loss_{n}"]:6.2f}' for n in (1, 10, 30))
        lines.append(
            f'{name:12s}     {losses}  {mean["trials_95"]:13.1f}  {mean["trials_100"]:7.1f}'
        )
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('source', type=Path)
    parser.add_argument('source_machine')
    parser.add_argument('target', type=Path)
    parser.add_argument('target_machine')
    parser.add_argument('--kind', default='rs')
    parser.add_argument('--seeds', type=int, default=10)
    parser.add_argument('--within', type=float, default=1e9)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    comparison = Comparison(
        Side.of(options.source, options.source_machine, options.kind),
        Side.of(options.target, options.target_machine, options.kind),
    )
    head = {
        'from': options.source_machine, 'to': options.target_machine, 'kind': options.kind,
        'foreign_rows': len(comparison.table), 'layers': len(comparison.layers),
        'rule': RULE, 'analytical': comparison.analytical(),
    }  # fmt: skip
    seeds: dict[str, dict] = {}
    if options.json and options.json.exists():
        kept = json.loads(options.json.read_text())
        if all(kept.get(key) == head[key] for key in head):
            seeds = kept['seeds']
    for seed in range(options.seeds):
        if str(seed) not in seeds and time.monotonic() - began <= options.within:
            seeds[str(seed)] = comparison.seed(seed)
            if options.json:
                options.json.write_text(json.dumps(head | {'seeds': seeds}, indent=1) + '\n')
    print(table(head | {'seeds': seeds}))


if __name__ == '__main__':
    main()
