"""Fused chains on a GPU beside the kernels of their parts, both tuned alike.

Goes in: a GPU. Comes out: for each chain the microseconds of one fused kernel (the `dfg` schema),
of its parts one after the other, and what the model says of it: a table, and JSON that is written
after every chain, with every trial of the fused kernel: its schedule, measured and predicted time,
registers, spilled and shared bytes. DeepCuts' fused kinds, at shapes of MobileNet-v2, ResNet-50 and
DenseNet-121; `--only` takes those whose names contain one of some words.

    python -m tilewright_lab.scripts.gpu_chains --json chains.json --trials 16 --seconds 450
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.cuda import CudaDevice
from tilewright.search.gpu.moves import schedule_text
from tilewright.targets.gpu.code import cubins
from tilewright.targets.plan import Candidate, Plan

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


def trial(group: Group, one: Candidate, architecture: str) -> dict:
    """What is known of one candidate for a chain, the compiler's figures and the model's parts."""
    kernel = generate(group, one.schedule).steps[0].kernel
    _, resources = cubins([kernel], architecture)[kernel]
    return {
        'schedule': schedule_text(one.schedule),
        'us': 1e3 * one.time_ms if one.time_ms else None,
        'predicted_us': 1e6 * one.prediction.seconds,
        'parts_us': {n: 1e6 * s for n, s in getattr(one.prediction, 'parts', {}).items()},
        'blocks': math.prod(kernel.grid), 'registers': resources.registers,
        'spill_bytes': resources.spill_bytes, 'shared_bytes': kernel.shared_bytes,
        'error': one.measurement.max_rel_err if one.measurement else None,
        'message': one.measurement.message if one.measurement else '',
    }  # fmt: skip


def row(name: str, batch: int, groups: tuple[Group, ...], trials: int, architecture: str) -> dict:
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
        'tried': [trial(whole, one, architecture) for one in plan.candidates],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description='Fused chains beside their parts, on a GPU.')
    parser.add_argument('--json', type=Path, required=True, help='where to write the rows')
    parser.add_argument('--trials', type=int, default=12, help='kernels timed for each group')
    parser.add_argument('--seconds', type=float, default=600.0, help='no new chain after these')
    parser.add_argument('--only', nargs='*', default=[''], help='words of the chains wanted')
    words = parser.parse_args()
    end, rows = time.monotonic() + words.seconds, []
    architecture = CudaDevice().architecture
    for batch in BATCHES:
        for name, groups in chains(batch).items():
            if time.monotonic() > end:
                return
            if not any(word in name for word in words.only):
                continue
            rows.append(row(name, batch, groups, words.trials, architecture))
            said = {'trials': words.trials, 'rows': rows}
            words.json.write_text(json.dumps(said, indent=1) + '\n')
            if 'message' in rows[-1]:
                print(f'{name}, batch {batch}: {rows[-1]["message"]}', flush=True)
                continue
            print(
                f'{name}, batch {batch}: fused {rows[-1]["fused_us"]:.2f} us (predicted '
                f'{rows[-1]["fused_predicted_us"]:.2f}), apart {sum(rows[-1]["apart_us"]):.2f} us',
                flush=True,
            )


if __name__ == '__main__':
    main()
