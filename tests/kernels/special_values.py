"""Floats that go wrong first, and groups run with them on any target.

A target is an instruction set, run here or in an emulator, or one of `DEVICES`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from devices import device

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags
from tilewright.kernels.cpu.generate import generate as generate_c
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.gpu.generate import generate as generate_cucl
from tilewright.machine.compiler import build
from tilewright.machine.isa import ISAS, host_isas
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.gpu.modules import Runner
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.simulate.emulate import cannot_run, emulate

DEVICES = ('host', 'opencl', 'cuda')
TARGETS = (*ISAS, *DEVICES)
# Parts in the memory of a block where there are several, else lanes that share a row.
ROWS = GpuSchedule.of('rows', threads=32)
LANES = GpuSchedule.of('general', threads=64, lanes=8)
# Quiet and signalling, of both signs, with payloads at either end.
NANS = np.array(
    [
        0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FA00000,
        0xFFBFFFFF, 0x7FC00001, 0x7F80FFFF, 0xFF812345, 0x7FE01000,
    ],
    np.uint32,
).view(np.float32)  # fmt: skip
MANTISSAS = (
    0, 1, 2, 0x1FFFFF, 0x200000, 0x3504F3, 0x3FFFFF, 0x400000, 0x400001, 0x490FDB, 0x7FFFFE,
    0x7FFFFF,
)  # fmt: skip
# Zeros, subnormal numbers, the least and the largest, ones, halves, whole numbers, infinities.
NUMBERS = np.array(
    [
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000,
        0x3F800000, 0xBF800000, 0x3F000000, 0xBF000000, 0x3FC00000, 0x40000000, 0xC0000000,
        0x40400000, 0xC0400000, 0x40490FDB, 0x41200000, 0x4B000001, 0x7F7FFFFF, 0xFF7FFFFF,
        0x7F800000, 0xFF800000,
    ],
    np.uint32,
).view(np.float32)  # fmt: skip


def marks(target: str) -> list[pytest.MarkDecorator]:
    """What a test on a target is marked with."""
    if target == 'cuda':
        return [pytest.mark.gpu]
    return [pytest.mark.isa] if target in ISAS else []


EVERY = [pytest.param(target, marks=marks(target)) for target in TARGETS]


def every_exponent() -> np.ndarray:
    """Both signs and all exponents, with the corners among mantissas: NaN of many kinds too."""
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    positive = exponents | np.array(MANTISSAS, np.uint32)
    return np.concatenate([positive, positive | np.uint32(1 << 31)]).view(np.float32).reshape(-1)


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Every special value with every other."""
    one = np.concatenate([NUMBERS, NANS[:6]])
    left, right = np.meshgrid(one, one, indexing='ij')
    return left.reshape(-1).copy(), right.reshape(-1).copy()


def run(target: str, group: Group, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output of the group's kernel on a target; skips the test where that cannot run."""
    if target in DEVICES:
        return _on_device(target, group, arrays)
    reason = cannot_run(target)
    if reason:
        pytest.skip(f'{target} cannot run: {reason}')
    schedule = general_schedule(group, target, 1, 1)
    if target not in host_isas():
        return emulate(group, schedule, arrays)
    # As users have it: with all optimisations, since compilers are what loses NaN and zeros' signs.
    kernel = Kernel.load(build(generate_c(group, schedule), compiler_flags(schedule)), group)
    out = np.zeros(group.output.shape, NUMPY[group.output.dtype])
    kernel.run(dict(arrays), kernel.pack(dict(arrays)), out)
    return out


def _on_device(target: str, group: Group, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    given = {t.name: arrays[t.name] for t in group.with_role('input')}
    try:
        module = generate_cucl(group, ROWS)
    except ScheduleError:
        module = generate_cucl(group, LANES)
    with Runner(module, device(target), constants) as runner:
        return runner(**given)


def wrong(
    got: np.ndarray, want: np.ndarray, ulps: float, *, flushed: bool = False, zeros: bool = True
) -> np.ndarray:
    """Where `got` is not the float64 value `want`, rounded: not NaN, or too many units off.

    flushed  zero will do where the exact value is below the least normal number
    zeros    the sign of a zero counts
    """
    kind = got.dtype.type
    with np.errstate(all='ignore'):
        near = want.astype(kind)
        unit = np.maximum(np.spacing(np.abs(near)), np.finfo(kind).smallest_subnormal)
        off = np.abs(got.astype(np.float64) - want) > ulps * unit.astype(np.float64)
        off &= got != near  # an infinity is off by nothing from itself
        if flushed:
            off &= ~((got == 0) & (np.abs(near) < np.finfo(kind).tiny))
        if zeros:
            off |= (got == 0) & (near == 0) & (np.signbit(got) != np.signbit(near))
        infinite = np.isinf(got) != np.isinf(near)
        return (np.isnan(got) != np.isnan(near)) | (~np.isnan(near) & (off | infinite))


def words(values: np.ndarray) -> str:
    """Values as bits, for a message."""
    whole = np.uint32 if values.dtype == np.float32 else np.uint64
    return ' '.join(f'{bits:x}' for bits in values.view(whole)[:6])
