"""Generated C, byte for byte: one source for each feature and family of instruction sets.

A change to a generator shows here as a difference to read. `pytest tests/golden --update-golden`
rewrites the expected files; look at the difference before committing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.schemas.chain.space import (
    across_schedule,
    nest_schedule,
    product_schedule,
)
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.pixels.space import pixels_schedule
from tilewright.kernels.cpu.schemas.stencil.space import stencil_schedule
from tilewright.kernels.cpu.schemas.strassen_pixels.space import strassen_pixels_schedule
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.isa import ISAS
from tilewright.ops.blocked import blocked
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.normalise import softmax
from tilewright.ops.pooling import max_pool
from tilewright.ops.products import stacked_product
from tilewright.ops.windows import windows
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.simulate.emulate import cannot_run

FOLDER = Path(__file__).parent
SMALL = conv2d(c=3, h=5, w=6, k=20, r=2, s=2)
STRIDED = conv2d(c=4, h=9, w=11, k=8, r=3, s=3, stride=2, pad=1)
FUSED = conv2d(c=4, h=6, w=6, k=8, r=1, s=1, bias=True, activation='silu')
DEPTHWISE = conv2d(c=6, h=7, w=9, k=6, r=3, s=3, pad=1, groups=6, bias=True, activation='relu6')
GROUPED = conv2d(n=2, c=4, h=5, w=5, k=16, r=3, s=1, pad=(1, 0, 0, 1), groups=2)
SLIDING = conv2d(c=4, h=13, w=21, k=4, r=3, s=3, stride=2, pad=1, groups=2)
FLAT = flatten(conv2d(c=8, h=5, w=7, k=6, r=1, s=1, bias=True, activation='relu'))
PRODUCT = matmul(m=6, n=12, k=10)
TALL = matmul(m=9, n=20, k=10)
POOLED = max_pool((1, 3, 6, 9), windows((6, 9), 3, 2, 1))
LINES = softmax((4, 20))
MOVING = stacked_product((6, 10), (10, 12))
BLOCKED = blocked(conv2d(c=4, h=4, w=6, k=16, r=1, s=3, pad=(0, 1)), {'In': 4, 'Out': 8})


def tied(first: Group, second: Group) -> Group:
    made = chain(first, second, 'In')
    assert made is not None
    return made.group


CHAINED = tied(DEPTHWISE, conv2d(c=6, h=7, w=9, k=8, r=1, s=1, bias=True, activation='relu'))
EXPANDED = tied(
    tied(
        conv2d(c=3, h=6, w=8, k=5, r=1, s=1, bias=True, activation='relu'),
        conv2d(c=5, h=6, w=8, k=5, r=3, s=3, pad=1, groups=5),
    ),
    conv2d(c=5, h=6, w=8, k=8, r=1, s=1),
)
CHAINED_POOL = tied(SMALL, max_pool((1, 20, 4, 5), windows((4, 5), 3, 2, 1)))


def packed(
    group: Group, isa: str, vector: str, reg: dict[str, int], *,
    inner: dict[str, int] | None = None, parallel: tuple = (), pack: str = 'l1',
) -> Schedule:  # fmt: skip
    """The outer schema with one cache level inside another; `reg` counts vectors of `vector`."""
    stage, order = group.main, register_order(group.main)
    tile = dict.fromkeys(stage.sizes, 1) | reg | {vector: reg[vector] * ISAS[isa].lanes}
    whole = whole_tile(stage, tile)
    levels = (
        Level.of('reg', order, tile),
        Level.of('l1', order, whole | (inner or {})),
        Level.of('l2', order, whole),
    )
    return Schedule('outer', isa, vector, levels, parallel, pack)


CASES: dict[str, tuple[Group, Schedule]] = {
    'small_neon': (SMALL, packed(SMALL, 'neon', 'k', {'w': 5, 'k': 2})),
    'small_avx512': (SMALL, packed(SMALL, 'avx512', 'k', {'w': 5, 'k': 1})),
    'small_avx2': (SMALL, packed(SMALL, 'avx2', 'k', {'w': 5, 'k': 2})),
    'small_portable': (SMALL, packed(SMALL, 'portable', 'k', {'w': 5, 'k': 2})),
    'in_place': (SMALL, packed(SMALL, 'portable', 'k', {'w': 3, 'k': 1}, pack='')),
    'strided_phases': (STRIDED, packed(STRIDED, 'portable', 'k', {'w': 3, 'k': 1}, pack='l2')),
    'reduction_tiled': (
        STRIDED,
        packed(STRIDED, 'portable', 'k', {'w': 2, 'k': 1}, inner={'c': 2}),
    ),
    'epilogue': (FUSED, packed(FUSED, 'portable', 'k', {'h': 2, 'w': 3, 'k': 1}, pack='')),
    'strips': (
        FUSED,
        packed(flatten(FUSED), 'portable', 'k', {'hw': 6, 'k': 1}, inner={'hw': 6}, pack='l2'),
    ),
    'grouped_parallel': (
        GROUPED,
        packed(GROUPED, 'portable', 'k', {'w': 3, 'k': 2}, parallel=(('n', 2), ('g', 2))),
    ),
    'matmul': (PRODUCT, packed(PRODUCT, 'portable', 'j', {'i': 3, 'j': 2}, inner={'k': 4})),
    'blocked': (BLOCKED, packed(BLOCKED, 'portable', 'kl', {'w': 4, 'kl': 2})),
    'stencil_depthwise': (DEPTHWISE, stencil_schedule(DEPTHWISE, 'neon', 4, 3, 2, (('k', 2),))),
    'stencil_strided': (SLIDING, stencil_schedule(SLIDING, 'avx2', 4, 2, 1, (('h', 2),))),
    'general_depthwise': (DEPTHWISE, general_schedule(DEPTHWISE, 'portable', 2, 2)),
    'general_matmul': (PRODUCT, general_schedule(PRODUCT, 'portable', 1, 1)),
    'general_pool': (POOLED, general_schedule(POOLED, 'portable', 2, 1)),
    'general_softmax': (LINES, general_schedule(LINES, 'portable', 2, 1)),
    'chain_depthwise': (
        CHAINED,
        product_schedule(
            CHAINED, 'avx2', {'w': 6, 'k': 8}, {'h': 4}, rows=2, lanes=8, parallel=(('h', 2),)
        ),
    ),
    'chain_across': (
        CHAINED,
        across_schedule(CHAINED, 'avx2', (4, 2), 2, rows=2, lanes=8, parallel=(('h', 2),)),
    ),
    'chain_expand': (
        EXPANDED,
        product_schedule(EXPANDED, 'avx2', {'w': 4, 'k': 8}, {'h': 2}, rows=2, lanes=4),
    ),
    'chain_pool': (CHAINED_POOL, nest_schedule(CHAINED_POOL, 'portable', {'h': 1})),
    'pixels_corner': (FLAT, pixels_schedule(FLAT, 'avx2', (3, 1, 2), 64, (('k', 2),), 'l2')),
    'strassen_pixels': (FLAT, strassen_pixels_schedule(FLAT, 'avx2', (3, 2), 1, (), 'l2')),
    'rows_ahead': (TALL, packed(TALL, 'avx2', 'j', {'i': 2, 'j': 1}, inner={'j': 8}, pack='')),
    'rows_avx512': (TALL, packed(TALL, 'avx512', 'j', {'i': 2, 'j': 1}, inner={'j': 16}, pack='')),
    'moving_product': (MOVING, packed(MOVING, 'portable', 'j', {'i': 3, 'j': 1}, pack='')),
}


@pytest.mark.parametrize('name', CASES)
def test_source_is_as_expected(name, request):
    path = FOLDER / f'{name}.c'
    made = generate(*CASES[name])
    if request.config.getoption('--update-golden'):
        path.write_text(made)
    assert path.exists(), f'{path.name} is missing: run pytest tests/golden --update-golden'
    assert made == path.read_text(), f'{path.name} differs: read it, then --update-golden'


def test_every_golden_file_belongs_to_a_case():
    assert {path.stem for path in FOLDER.glob('*.c')} == set(CASES)


@pytest.mark.isa
@pytest.mark.parametrize('name', CASES)
def test_the_cases_compute_the_reference(name, check):
    """A golden file that is wrong would keep the error; whatever runs here is run."""
    group, schedule = CASES[name]
    if cannot_run(schedule.isa):
        pytest.skip(cannot_run(schedule.isa))
    check(group, schedule, 1)


PRINT = """\
import hashlib
from random import Random
from tilewright.kernels.cpu.generate import generate
from tilewright.ops.convolution import conv2d
from tilewright.kernels.cpu.space import random_schedule
for isa in ('neon', 'avx512', 'avx2', 'portable'):
    for seed in range(4):
        group = conv2d(c=5, h=9, w=13, k=19, r=3, s=3, pad=1, groups=1, bias=True,
                       activation='relu', stride=1 + seed % 2)
        source = generate(group, random_schedule(group, isa, Random(seed)))
        print(hashlib.sha256(source.encode()).hexdigest())
"""


RANKED = """
import hashlib
from tilewright.kernels.cpu.generate import generate
from tilewright.machine.known import known_machine
from tilewright.ops.convolution import conv2d
from tilewright.search.cpu.rank import rank
group = conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
for candidate in rank(group, known_machine('i7-9700k'), 2, 2):
    print(candidate.schedule.digest)
    print(hashlib.sha256(generate(group, candidate.schedule).encode()).hexdigest())
"""


@pytest.mark.parametrize(
    ('script', 'count'),
    [(PRINT, 16), pytest.param(RANKED, 2, marks=pytest.mark.slow)],
    ids=['drawn', 'ranked'],
)
def test_source_does_not_depend_on_the_process(script: str, count: int):
    """Two processes whose sets and dictionaries of strings are ordered differently agree."""
    printed = []
    for seed in ('0', '4242'):
        environment = os.environ | {'PYTHONHASHSEED': seed}
        done = subprocess.run(
            [sys.executable, '-c', script], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines())
    assert printed[0] == printed[1]
    assert len(printed[0]) >= count
