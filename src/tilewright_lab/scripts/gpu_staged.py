"""How well the costs of model/gpu/staged.py order measured kernels, and a fit of them.

Goes in: `staged.json.gz`, kernels of f16 networks at batch 1, and files of `tilewright bench
--precision fp16`, whose tasks say what each kernel takes. Comes out: by how much predictions
deviate, and how much longer the best of the first 1, 3 and 6 by prediction takes than the fastest
that was measured of its group.

    python -m tilewright_lab.scripts.gpu_staged [--fit STEPS] [--larger FILE ..]
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random

import numpy as np

from tilewright import zoo
from tilewright.errors import InputError, ScheduleError
from tilewright.graph.passes import GPU_PASSES, HALF, passes_of, with_half
from tilewright.kernels.gpu.schemas.channels.plan import NAME
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.occupancy import occupancy
from tilewright.model.gpu.staged import STAGED, StagedCosts, staged_time
from tilewright.model.gpu.transactions import work
from tilewright.network.compile import prepare
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.cost import GpuCost

FILE = Path('bench/results/h200/staged.json.gz')
NETWORKS = (
    'resnet18', 'mobilenet_v2', 'resnet50', 'inception_v3', 'densenet121', 'bert_base', 'vit_b16'
)  # fmt: skip
FIXED = ('launch_s', 'copy_cycles', 'turn_cycles')  # not fitted
WEIGHT = 3.0  # of a kernel of larger batches: only the fastest ones of these were kept
FIRST = (1, 3, 6)
STEP = 0.1  # standard deviation of a change, in logarithms


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel and the seconds that it took alone; `batch` 1 has several schedules of a group."""

    label: str
    done: Work
    held: int
    compulsory: int
    seconds: float
    batch: int

    def predicted(self, machine: GpuMachine, costs: StagedCosts) -> float:
        return staged_time(self.done, machine, self.held, self.compulsory, costs).seconds


def groups_of(network: str, batch: int, machine: GpuMachine) -> dict[str, Group]:
    """The groups of a network in f16 by their labels."""
    names = passes_of(None, None, 'cuda') | {HALF}
    passes = with_half(GPU_PASSES, 'f16')
    graph = zoo.graph(network, batch=batch)
    program = prepare(graph, None, names, GpuCost(machine), passes)
    return {task.group.label: task.group for task in program.tasks}


def schedule_of(text: str) -> GpuSchedule:
    """What a bench writes of a task's schedule: 'channels wgmma_half bk64 bp128 ..'."""
    schema, intrinsic, *words = text.split()
    pairs = [re.fullmatch(r'([a-z]+)(\d+)', word) for word in words]
    if not all(pairs):
        raise InputError(f'{text!r} is not a schedule; give SCHEMA INTRINSIC NAMEnumber ..')
    return GpuSchedule(schema, tuple((p[1], int(p[2])) for p in pairs if p), intrinsic)


def sample(
    group: Group, schedule: GpuSchedule, seconds: float, batch: int, machine: GpuMachine
) -> Sample | None:
    """None where the kernel's registers are estimated to be too many."""
    done = work(group, schedule)
    try:
        held = occupancy(machine, done.threads, done.registers, done.shared_bytes).blocks
    except ScheduleError:
        return None
    return Sample(group.label, done, held, group.compulsory_bytes, seconds, batch)


def measured(path: Path, machine: GpuMachine) -> Iterator[Sample]:
    """Kernels at batch 1."""
    kernels = json.loads(gzip.decompress(path.read_bytes()))['kernels']
    groups: dict[str, Group] = {}
    for network in NETWORKS:
        groups |= groups_of(network, 1, machine)
    for row in kernels:
        schedule = GpuSchedule.from_json(row['schedule'])
        if schedule.schema == NAME:
            made = sample(groups[row['label']], schedule, row['alone_us'] / 1e6, 1, machine)
            if made is not None:
                yield made


def larger(path: Path, machine: GpuMachine) -> Iterator[Sample]:
    """Kernels of the networks of a bench."""
    said = json.loads(path.read_text())
    for network in said['networks']:
        groups = groups_of(network['name'], said['batch'], machine)
        tasks = {
            task['label']: task
            for one in network['contestants']
            for task in (one.get('settings') or {}).get('tasks', ())
        }
        for label, task in tasks.items():
            if task['schedule'].startswith(NAME) and label in groups:
                schedule, seconds = schedule_of(task['schedule']), task['alone_us'] / 1e6
                made = sample(groups[label], schedule, seconds, said['batch'], machine)
                if made is not None:
                    yield made


def deviation(samples: Sequence[Sample], machine: GpuMachine, costs: StagedCosts) -> float:
    """Mean of the absolute logarithm of predicted over measured."""
    logs = [abs(np.log(one.predicted(machine, costs) / one.seconds)) for one in samples]
    weights = [WEIGHT if one.batch > 1 else 1.0 for one in samples]
    return float(np.average(logs, weights=weights))


def lost(samples: Sequence[Sample], machine: GpuMachine, first: int) -> float:
    """The best of the first some by prediction over the fastest of its group: geometric mean."""
    by_group = defaultdict(list)
    for one in samples:
        by_group[one.label].append((one.predicted(machine, STAGED), one.seconds))
    found = []
    for tried in by_group.values():
        if len(tried) > 3:
            best = min(seconds for _, seconds in sorted(tried)[:first])
            found.append(np.log(best / min(seconds for _, seconds in tried)))
    return float(np.exp(np.mean(found)))


def fitted(
    samples: Sequence[Sample], machine: GpuMachine, steps: int, seed: int = 0
) -> StagedCosts:
    """Costs after so many random changes of which those are kept that deviate less."""
    rng, costs = Random(seed), STAGED
    names = [field.name for field in fields(StagedCosts) if field.name not in FIXED]
    least = deviation(samples, machine, costs)
    for _ in range(steps):
        name = rng.choice(names)
        other = replace(costs, **{name: getattr(costs, name) * np.exp(rng.gauss(0, STEP))})
        if (found := deviation(samples, machine, other)) < least:
            costs, least = other, found
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--fit', type=int, default=0, metavar='STEPS')
    parser.add_argument('--larger', type=Path, nargs='*', default=(), metavar='FILE')
    asked = parser.parse_args(arguments)
    machine = known_gpu('h200')
    small = list(measured(FILE, machine))
    big = [one for path in asked.larger for one in larger(path, machine)]
    for name, some in (('batch 1', small), ('larger', big)):
        if some:
            print(f'{name}: {len(some)} kernels, deviation {deviation(some, machine, STAGED):.3f}')
    for first in FIRST:
        print(f'best of the first {first}: {lost(small, machine, first):.3f} of the fastest')
    if asked.fit:
        costs = fitted([*small, *big], machine, asked.fit)
        print(f'{costs}: deviation {deviation([*small, *big], machine, costs):.3f}')


if __name__ == '__main__':
    main()
