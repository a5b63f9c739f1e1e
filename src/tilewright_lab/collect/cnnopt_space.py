"""CNNOpt's own design space: all factor tiles of the RS and the S kernel (PACT'22, Table 3).

Goes in: a convolution and a machine. Comes out: every configuration that the paper's space has, and
how many candidates each capacity constraint removed. The paper does not print all of its rules; the
ones marked (data) are read off the authors' exhaustive measurements, which hold exactly the
configurations that these rules leave, but for some that a compiler's real register count removed.

RS kernel   all 32 lanes of a warp along k, warps along y and x only
            tiles divide K, Y and X; R^y <= R^x (data); at most 16 warps along y and along x (data)
            a staged row of the input is at most 32 wide: one warp loads it (data)
            C is split by its divisors up to 32
S kernel    blocks span whole rows: W^x = X; R^y = T_y = 1, R^k >= 2 (data)
            a block has at most half of the output channels (data); C is not split

Capacity    threads of a block; Eqs. 2-3 with the corrections of cnnopt_plan.py, per thread (20
            registers beside operands) and per block; 48 KiB of shared memory, of which the RS
            kernel takes a copy of 32 channels of its outputs for coalesced atomics (data)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.kernels.gpu.schemas.cnnopt.plan import CnnoptPlan, plan
from tilewright.kernels.gpu.work import WARP
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 20
STATIC_SHARED_BYTES = 48 * 1024  # what a kernel can declare without asking the driver for more
WIDEST_ROW = WARP
MOST_WARPS = 16
MOST_SPLITS = 32
ATOMICS = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a space: candidates, those that each constraint removed (in order), the rest."""

    candidates: int
    removed: tuple[tuple[str, int], ...]
    kept: int


CONSTRAINTS = ('threads', 'registers a thread', 'registers a block', 'shared memory')


def factor_space(
    group: Group, machine: GpuMachine, schema: str
) -> tuple[list[GpuSchedule], Counts]:
    """All configurations of a schema ('rs' or 's') under CNNOpt's conventions."""
    kept, removed, candidates = [], Counter(), 0
    for schedule in candidates_of(group, schema):
        candidates += 1
        reason = _exceeded(plan(group, schedule), machine)
        if reason is None:
            kept.append(schedule)
        else:
            removed[reason] += 1
    return kept, Counts(candidates, tuple((n, removed[n]) for n in CONSTRAINTS), len(kept))


def _exceeded(p: CnnoptPlan, machine: GpuMachine) -> str | None:
    _, y, x = p.block
    shared = 4 * p.shared_floats if p.rows else 4 * max(p.shared_floats, WARP * y * x)
    for name, need, limit in zip(
        CONSTRAINTS,
        (p.threads, p.operands + OTHER_REGISTERS, p.operands * p.threads, shared),
        (
            machine.threads_per_block,
            machine.registers_per_thread,
            machine.registers,
            min(machine.shared_bytes_per_block, STATIC_SHARED_BYTES),
        ),
        strict=True,
    ):
        if need > limit:
            return name
    return None


def candidates_of(group: Group, schema: str) -> Iterator[GpuSchedule]:
    """Factor tiles by the conventions alone, in a fixed order."""
    one = dict.fromkeys(('rk', 'ry', 'rx', 'ty', 'tx', 'wk', 'wy', 'wx', 'cb', 'stages'), 1)
    problem = plan(group, GpuSchedule.of('rs', **one, tk=WARP, split=1, join=ATOMICS))
    return _rs(problem) if schema == 'rs' else _s(problem)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _rs(problem: CnnoptPlan) -> Iterator[GpuSchedule]:
    """Nothing where 32 lanes do not divide the output channels."""
    height, width = problem.y.outputs, problem.x.outputs
    if problem.columns % WARP:
        return
    splits = [d for d in divisors(problem.channels) if d <= MOST_SPLITS]
    for rk in divisors(problem.columns // WARP):
        for ry in divisors(height):
            for rx in (d for d in divisors(width) if d >= ry):
                for wy in divisors(height // ry):
                    for wx in divisors(width // rx):
                        if max(wy, wx) > MOST_WARPS or problem.x.slice(rx * wx) > WIDEST_ROW:
                            continue
                        for split in splits:
                            yield _schedule('rs', (rk, ry, rx), (WARP, 1, 1), (1, wy, wx), split)


def _s(problem: CnnoptPlan) -> Iterator[GpuSchedule]:
    height, width, columns = problem.y.outputs, problem.x.outputs, problem.columns
    for rx in divisors(width):
        for rk in (d for d in divisors(columns) if d > 1):
            for tx in (d for d in divisors(WARP) if width // rx % d == 0):
                tk, wx = WARP // tx, width // rx // tx
                if columns // rk % tk:
                    continue
                for wk in divisors(columns // rk // tk):
                    for wy in divisors(height):
                        if 2 * rk * tk * wk <= columns and wx * wy * wk <= WARP:
                            yield _schedule('s', (rk, 1, rx), (tk, 1, tx), (wk, wy, wx), 1)


def _schedule(
    schema: str,
    registers: tuple[int, int, int],
    lanes: tuple[int, int, int],
    warps: tuple[int, int, int],
    split: int,
) -> GpuSchedule:
    levels = {
        f'{level}{dim}': value
        for level, values in (('r', registers), ('t', lanes), ('w', warps))
        for dim, value in zip('kyx', values, strict=True)
    }
    levels |= {'cb': 1, 'stages': 1, 'split': split, 'join': ATOMICS}
    return GpuSchedule(schema, tuple(levels.items()))
