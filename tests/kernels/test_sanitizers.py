"""The C around the micro-kernels under the address and undefined-behaviour sanitizers.

Sanitizers do not look into assembly, so these are the portable micro-kernels and the general
schema; assembly has guard pages (test_guard_pages.py).
"""

from __future__ import annotations

from random import Random

import pytest
from sampling import covering

from tilewright.errors import CheckError, TilewrightError
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.space import random_schedule
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright_lab.simulate.emulate import native, run_program, run_text

FLAGS = ('-fsanitize=address,undefined', '-fno-sanitize-recover=all', '-g')
GROUPS = [
    conv2d(c=5, h=9, w=11, k=13, r=3, s=3, pad=1, bias=True, activation='relu'),
    conv2d(n=2, c=4, h=11, w=10, k=6, r=3, s=5, stride=(2, 3), pad=(2, 0, 1, 3), groups=2),
    conv2d(c=7, h=8, w=9, k=7, r=3, s=3, stride=2, pad=1, groups=7, bias=True),
    matmul(m=9, n=13, k=11),
]


@pytest.fixture(scope='module', autouse=True)
def _sanitizers():
    patch = pytest.MonkeyPatch()
    patch.setenv('ASAN_OPTIONS', 'detect_leaks=0')
    try:
        run_text('int main(void) { return 0; }\n', native(), FLAGS)
    except TilewrightError as error:
        pytest.skip(f'the compiler has no working sanitizers: {error}')
    yield
    patch.undo()


@pytest.mark.parametrize(('number', 'seed'), covering(range(len(GROUPS)), [1, 2, 3]))
def test_random_schedules_are_clean(number, seed, whole_numbers, agrees):
    group = GROUPS[number]
    schedule = random_schedule(group, 'portable', Random(seed))
    arrays = whole_numbers(group, seed)
    (out,) = run_program(group, generate(group, schedule), arrays, native(), FLAGS, ('end',))
    assert agrees(group, out, reference(group, arrays))


@pytest.mark.parametrize('group', GROUPS, ids=[g.label for g in GROUPS])
def test_the_general_schema_is_clean(group, whole_numbers, agrees):
    schedule = general_schedule(group, 'portable', 2, 3)
    arrays = whole_numbers(group, 1)
    (out,) = run_program(group, generate(group, schedule), arrays, native(), FLAGS, ('end',))
    assert agrees(group, out, reference(group, arrays))


def test_the_sanitizers_would_have_seen_it(whole_numbers):
    group = GROUPS[3]
    source = generate(group, general_schedule(group, 'portable', 1, 1))
    broken = source.replace('float *restrict p2_ = args->out;', 'float *p2_ = args->out + 1;')
    assert broken != source
    with pytest.raises(CheckError, match='ended with code'):
        run_program(group, broken, whole_numbers(group, 1), native(), FLAGS, ('end',))
