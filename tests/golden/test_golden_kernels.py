"""Generated CUDA, byte for byte: one source for each schema, and for each way of multiplying.

A change to a generator shows here as a difference to read, and what was measured on a GPU is known
to be what is generated. `pytest tests/golden --update-golden` rewrites the expected files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import lower_all
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

FOLDER = Path(__file__).parent
HEAD = 'head'
CONV = conv2d(n=2, c=16, h=7, w=6, k=20, r=3, s=3, pad=1, bias=True, activation='relu')
WIDE = conv2d(n=2, c=18, h=7, w=6, k=40, r=3, s=3, pad=1)
DEEP = conv2d(c=6, h=9, w=8, k=6, r=3, s=3, pad=1, groups=6, bias=True)
PIECES = {'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
BOX = {'bn': 1, 'bh': 2, 'bw': 6}
MANY = {'rk': 2, 'ry': 1, 'rx': 2, 'tk': 8, 'ty': 4, 'tx': 1, 'wk': 1, 'wy': 2, 'wx': 3, 'cb': 2,
        'stages': 2, 'split': 2, 'join': 2}  # fmt: skip
CASES: dict[str, tuple[Group, GpuSchedule]] = {
    'tiled': (CONV, GpuSchedule.of('tiled', bk=16, bp=32, tk=4, tp=4, **PIECES)),
    'tiled_mma': (
        CONV, GpuSchedule.of('tiled', 'mma_tf32x3', bk=16, bp=32, tk=16, tp=16, **PIECES),
    ),
    'rs': (CONV, GpuSchedule.of('rs', **MANY)),
    'depthwise': (DEEP, GpuSchedule.of('depthwise', th=1, tw=4, bh=4, bw=2, bp=4, shared=1)),
    'patch_mma': (
        CONV, GpuSchedule.of('patch', 'mma_tf32x3', bk=16, tk=16, tp=16, **BOX, **PIECES),
    ),
    'patch_wgmma': (
        CONV, GpuSchedule.of('patch', 'wgmma_tf32x3', bk=32, tk=32, tp=64, **BOX, **PIECES),
    ),
    'strip_mixed': (
        WIDE,
        GpuSchedule.of('strip', 'wgmma_tf32_bf16', bp=64, bk=32, tk=32, tp=64, queue=2, late=1,
                       bulk=1, **PIECES),
    ),
    'winograd': (CONV, GpuSchedule.of('winograd', m=2, bk=16, bp=32, tk=4, tp=4, **PIECES)),
}  # fmt: skip


@pytest.mark.parametrize('name', [HEAD, *CASES])
def test_source_is_as_expected(name: str, request: pytest.FixtureRequest) -> None:
    """What stands before every kernel has a file of its own."""
    path = FOLDER / f'{name}.cu'
    if name == HEAD:
        made = CUDA.head
    else:
        whole = lower_all(generate(*CASES[name]).kernels, CUDA)
        assert whole.startswith(CUDA.head)
        made = whole.removeprefix(CUDA.head)
    if request.config.getoption('--update-golden'):
        path.write_text(made)
    assert path.exists(), f'{path.name} is missing: run pytest tests/golden --update-golden'
    assert made == path.read_text(), f'{path.name} differs: read it, then --update-golden'


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in FOLDER.glob('*.cu')} == {HEAD, *CASES}


@pytest.mark.parametrize('name', CASES)
def test_the_cases_compute_the_reference(name: str) -> None:
    """A golden file that is wrong would keep the error."""
    group, schedule = CASES[name]
    arrays = random_arrays(group, 5)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, schedule), HostDevice(), constants) as runner:
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()
