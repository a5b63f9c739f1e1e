"""Random problems x random legal schedules against the reference, for every ISA this host can run.

    python -m tilewright_lab.scripts.check_isas --count 200 --seed 1 --json F

Needs nothing but numpy and a C compiler: made for hosts where the test suite cannot be installed.
Exit code 1 if any kernel is wrong; the first one is printed with its schedule.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random

import numpy as np

import tilewright as tw
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.space import random_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.verify import compare, guarded_empty, poison, random_arrays


def draw_problem(random: Random) -> Group:
    """A small convolution or matrix product with every feature drawn at random."""
    if random.random() < 0.2:
        return tw.matmul(m=random.randint(1, 40), n=random.randint(1, 70), k=random.randint(1, 40))
    groups = random.choice((1, 1, 1, 2, 3))
    c, k = groups * random.randint(1, 9), groups * random.randint(1, 40)
    if random.random() < 0.2:
        groups = c = k = random.randint(2, 9)
    r, s = random.choice(((1, 1), (3, 3), (3, 1), (1, 3), (5, 5), (7, 7), (2, 3)))
    return tw.conv2d(
        n=random.choice((1, 1, 2, 3)),
        c=c,
        h=random.randint(8, 20),
        w=random.randint(8, 34),
        k=k,
        r=r,
        s=s,
        stride=(random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 3))),
        pad=tuple(random.randint(0, 3) for _ in range(4)),
        dilation=(1, random.choice((1, 1, 2)) if s < 4 else 1),
        groups=groups,
        bias=random.random() < 0.5,
        activation=random.choice((None, 'relu', 'silu', 'relu6')),
    )


def check(group: Group, isa: str, random: Random, seed: int) -> tuple[float, str, str]:
    """(largest relative error, complaint or '', the schema) of one random schedule."""
    schedule = random_schedule(group, isa, random)
    flags = (*compiler_flags(schedule), '-O1')
    kernel = Kernel.load(build(generate(group, schedule), flags), group)
    arrays = random_arrays(group, seed)
    out = poison(guarded_empty(group.output.shape))
    kernel.run(arrays, kernel.pack(arrays), out)
    verdict = compare(group, out, reference(group, arrays))
    complaint = '' if verdict.ok else f'{group.label} {verdict.message} {schedule.to_json()}'
    return verdict.max_rel_err, complaint, schedule.schema


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n', 1)[0])
    parser.add_argument('--count', type=int, default=100, help='kernels for each ISA')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    rows, wrong = [], []
    for isa in host_isas():
        random = Random(f'{options.seed}/{isa}')
        begin, errors, schemas = time.perf_counter(), [], []
        for number in range(options.count):
            error, complaint, schema = check(draw_problem(random), isa, random, number)
            errors.append(error)
            schemas.append(schema)
            if complaint:
                wrong.append(complaint)
        row = {
            'isa': isa,
            'kernels': options.count,
            'outer': schemas.count('outer'),
            'wrong': len(wrong),
            'largest_rel_err': float(np.max(errors)),
            'time_s': time.perf_counter() - begin,
        }
        rows.append(row)
        print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps({'seed': options.seed, 'rows': rows}, indent=1))
    if wrong:
        sys.exit(f'{len(wrong)} kernels were wrong; the first: {wrong[0]}')


if __name__ == '__main__':
    main()
