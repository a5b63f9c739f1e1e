"""Measured schedules beside their predictions: what the constants of outer_time.py rest on.

    python -m tilewright_lab.scripts.calibrate --layers mopt/R2,mopt/R6,mopt/R9 --samples 25 \
        --json F

draws seeded log-uniform schedules (register tiles near the best, any cache tiles, any derived loop
order), builds and times each alone on one core, and prints for every layer the rank correlation,
the loss of the predicted best, and the mean ratio of measured to predicted time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from random import Random

import numpy as np

from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.outer.space import assemble
from tilewright.machine.compiler import build
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.model.cpu.orders import order_classes
from tilewright.model.cpu.predict import predict
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_outer import shapes


def draw(group: Group, contraction: Contraction, machine: Machine, random: Random) -> Schedule:
    """One schedule: a register tile among the best thirty, log-uniform cache tiles, any order."""
    shape = random.choice(shapes(group, contraction, machine, 1)[:30])
    sizes = group.main.sizes
    tiles, inner = [], dict(shape.reg)
    for _ in machine.caches:
        tile = {}
        for name, size in sizes.items():
            low, high = inner[name], max(size, inner[name])
            drawn = round(math.exp(random.uniform(math.log(low), math.log(high))))
            whole = name in contraction.unrolled or random.random() < 0.3
            tile[name] = high if whole else min(max(drawn, low), high)
        tiles.append(tile)
        inner = tile
    orders = [c.representative() for c in order_classes(group.main)]
    return assemble(
        group, machine.isa, contraction.vector, shape.reg, tuple(tiles),
        tuple(random.choice(orders) for _ in tiles), (), 'l2',
    )  # fmt: skip


def measure(group: Group, schedule: Schedule, seconds: float) -> list[float]:
    """Milliseconds of every call made in about `seconds`."""
    kernel = Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
    arrays = random_arrays(group, 0)
    packed, out = kernel.pack(arrays), np.zeros(group.output.shape, np.float32)
    first = kernel.time(arrays, packed, out, repeats=2)[1]
    repeats = max(3, int(seconds / first))
    return [1e3 * s for s in kernel.time(arrays, packed, out, repeats=repeats)]


def spearman(a: list[float], b: list[float]) -> float:
    first, second = (np.argsort(np.argsort(v)) for v in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n', 1)[0])
    parser.add_argument('--layers', default='mopt/R2,mopt/R4,mopt/R6,mopt/R9,mopt/R12,mopt/Y5')
    parser.add_argument('--samples', type=int, default=25)
    parser.add_argument('--seconds', type=float, default=0.1)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    machine, _ = load_machine()
    rows = []
    for name, group, _ in expand(options.layers):
        group = flatten(group)
        random = Random(f'{options.seed}/{name}')
        contraction = contract(group, vector_candidates(group)[0])
        layer = []
        for _ in range(options.samples):
            schedule = draw(group, contraction, machine, random)
            samples = measure(group, schedule, options.seconds)
            prediction = predict(group, schedule, machine)
            layer.append((prediction.seconds * 1e3, min(samples)))
            rows.append(
                {
                    'layer': name,
                    'schedule': schedule.to_json(),
                    'predicted': prediction.to_json(),
                    'samples_ms': samples,
                }
            )
        predicted, measured = [p for p, _ in layer], [m for _, m in layer]
        loss = measured[int(np.argmin(predicted))] / min(measured) - 1
        ratio = statistics.mean(m / p for p, m in layer)
        print(
            f'{name}: rank correlation {spearman(predicted, measured):.2f}, '
            f'loss of the predicted best {100 * loss:.1f}%, measured/predicted {ratio:.2f}, '
            f'best {min(measured):.3f} ms, worst {max(measured):.3f} ms',
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({'machine': machine.to_json(), 'rows': rows}, indent=1))


if __name__ == '__main__':
    main()
