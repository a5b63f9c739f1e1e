"""Fused chains on a GPU beside the kernels of their parts, both tuned alike.

Goes in: a GPU. Comes out: for each chain the microseconds of one fused kernel (the `dfg` schema),
of its parts one after the other, and what the model says of it: a table, and JSON that is written
after every chain, with every trial of the fused kernel: its schedule, measured and predicted time,
registers, spilled and shared bytes. DeepCuts' fused kinds, at shapes of MobileNet-v2, ResNet-50 and
DenseNet-121; `--only` takes those whose names contain one of some words. With `--near N` the best
predicted fused schedule is timed as well, and N that differ from it in one decision: what each
decision is worth, whatever the model says.

    python -m tilewright_lab.scripts.gpu_chains --json c.json --only dw --trials 8 --near 20
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import median

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import LARGEST_ERROR
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.worker import GpuWorker, Opened
from tilewright.runtime.measure import Measurement
from tilewright.runtime.pool import each
from tilewright.runtime.worker import Answer
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, schedule_text
from tilewright.targets.gpu.choose import prediction_of, search
from tilewright.targets.gpu.code import build, cubins
from tilewright.targets.plan import Plan

BATCHES = (1, 16)


def chains(n: int) -> dict[str, tuple[Group, ...]]:
    """Name -> the groups of a chain, at a batch of n images."""
    stem = conv2d(n=n, c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3, bias=True,
                  activation='relu')  # fmt: skip
    pool = max_pool((n, 64, 112, 112), windows((112, 112), 3, 2, 1))
    return {
        'dw 3x3 + 1x1, 32-64, 112x112': (_depthwise(n, 32, 112), _conv(n, 32, 64, 112)),
        'dw 3x3 + 1x1, 96-24, 56x56': (_depthwise(n, 96, 56), _conv(n, 96, 24, 56)),
        '1x1 + dw 3x3 + 1x1, 24-144-24, 56x56': (
            _conv(n, 24, 144, 56), _depthwise(n, 144, 56), _conv(n, 144, 24, 56)
        ),
        '1x1 + 3x3, 256-128-32, 28x28': (_conv(n, 256, 128, 28), _conv(n, 128, 32, 28, 3)),
        '7x7/2 + max pool, 3-64, 224x224': (stem, pool),
    }  # fmt: skip


def _conv(n: int, c: int, k: int, h: int, r: int = 1) -> Group:
    return conv2d(n=n, c=c, h=h, w=h, k=k, r=r, s=r, pad=r // 2, bias=True, activation='relu')


def _depthwise(n: int, c: int, h: int) -> Group:
    return conv2d(
        n=n, c=c, h=h, w=h, k=c, r=3, s=3, pad=1, groups=c, bias=True, activation='relu'
    )  # fmt: skip


def tied(groups: tuple[Group, ...]) -> Group:
    """One group of them all, every inner edge in shared memory."""
    joined, *rest = groups
    for group in rest:
        made = chain(joined, group, group.main.reads[0].tensor)
        if made is None:
            raise ValueError(f'{joined.label} and {group.label} do not fit together')
        joined = made.group
    return joined


def trial(
    group: Group, schedule: GpuSchedule, found: Answer | Measurement, opened: Opened
) -> dict:  # fmt: skip
    """What is known of one kernel for a chain: measured, by the compiler, and by the model."""
    kernel = generate(group, schedule).steps[0].kernel
    _, resources = cubins([kernel], str(opened.architecture))[kernel]
    said = prediction_of(group, schedule, opened.machine)
    samples = found.samples_ms if found.status == 'ok' else ()
    return {
        'schedule': schedule_text(schedule), 'us': 1e3 * median(samples) if samples else None,
        'predicted_us': 1e6 * said.seconds,
        'parts_us': {n: 1e6 * s for n, s in getattr(said, 'parts', {}).items()},
        'blocks': math.prod(kernel.grid), 'registers': resources.registers,
        'spill_bytes': resources.spill_bytes, 'shared_bytes': kernel.shared_bytes,
        'error': found.max_rel_err, 'message': found.message,
    }  # fmt: skip


def near(group: Group, count: int, worker: GpuWorker, opened: Opened) -> list[dict]:
    """The best predicted schedule, and up to `count` that differ from it in one decision."""
    best, *_ = search(group, opened.machine, 1, LARGEST_ERROR)
    space = moves(group, opened.machine)
    beside = sorted(
        space.neighbours(best.schedule),
        key=lambda s: prediction_of(group, s, opened.machine).seconds,
    )
    wanted = [best.schedule, *beside[:count]]
    built = each(build, [(group, s, str(opened.architecture)) for s in wanted])
    return [
        trial(group, schedule, worker.attempt(group, schedule, made)[0], opened)
        for schedule, made in zip(wanted, built, strict=True)
        if not made.error
    ]


def row(
    name: str, batch: int, groups: tuple[Group, ...], trials: int, beside: int, worker: GpuWorker,
    opened: Opened,
) -> dict:  # fmt: skip
    """Both ways, tuned with as many trials for each kernel."""

    def tuned(group: Group) -> Plan:
        return tw.optimize(group, target='cuda', trials=trials, top=trials)

    said: dict = {'chain': name, 'batch': batch}
    whole = tied(groups)
    try:
        plan, apart = tuned(whole), [tuned(group).best for group in groups]
    except TilewrightError as error:
        return said | {'message': str(error)}
    fused = plan.best
    times = [1e3 * (one.time_ms or math.nan) for one in (fused, *apart)]
    together, *alone = times
    return said | {
        'fused_us': together, 'fused_predicted_us': 1e6 * fused.prediction.seconds,
        'apart_us': alone, 'apart_over_fused': sum(alone) / together,
        'schedule': fused.schedule.to_json(),
        'apart_schedules': [one.schedule.to_json() for one in apart],
        'tried': [
            trial(whole, one.schedule, one.measurement, opened)
            for one in plan.candidates if one.measurement
        ],
        'near': near(whole, beside, worker, opened) if beside else [],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description='Fused chains beside their parts, on a GPU.')
    parser.add_argument('--json', type=Path, required=True, help='where to write the rows')
    parser.add_argument('--trials', type=int, default=12, help='kernels timed for each group')
    parser.add_argument('--seconds', type=float, default=600.0, help='no new chain after these')
    parser.add_argument('--near', type=int, default=0, help='neighbours of the best predicted one')
    parser.add_argument('--only', nargs='*', default=[''], help='words of the chains wanted')
    words = parser.parse_args()
    end, rows = time.monotonic() + words.seconds, []
    wanted = [
        (name, batch, groups)
        for batch in BATCHES
        for name, groups in chains(batch).items()
        if any(word in name for word in words.only)
    ]
    with GpuWorker(seed=0) as worker:
        opened = worker.open()
        for name, batch, groups in wanted:
            if time.monotonic() > end:
                return
            made = row(name, batch, groups, words.trials, words.near, worker, opened)
            rows.append(made)
            said = {'trials': words.trials, 'rows': rows}
            words.json.write_text(json.dumps(said, indent=1) + '\n')
            print(f'{name}, batch {batch}: {_line(made)}', flush=True)


def _line(made: dict) -> str:
    if 'message' in made:
        return made['message']
    best = min((one['us'] for one in made['near'] if one['us']), default=math.nan)
    return (
        f'fused {made["fused_us"]:.2f} us (predicted {made["fused_predicted_us"]:.2f}; near '
        f'{best:.2f}), apart {sum(made["apart_us"]):.2f} us'
    )


if __name__ == '__main__':
    main()
