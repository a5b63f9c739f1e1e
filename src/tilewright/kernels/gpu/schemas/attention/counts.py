"""What a block of an attention kernel takes and does, counted from its plan."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.gpu.language import padded
from tilewright.kernels.gpu.schemas.attention.plan import EIGHT, FOUR, AttentionPlan, plan
from tilewright.kernels.gpu.work import BANKS_BYTES, CUT_INSTRUCTIONS, WARP, Need, Work
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 40  # beside operands, scores and sums: addresses, bounds, peaks
WEIGHT_INSTRUCTIONS = 14  # of a score: its exponential, its place, the mask of its key
HALF_WEIGHT_INSTRUCTIONS = 8  # with a power of two by the hardware
ROW_INSTRUCTIONS = 24  # of a row in a turn: peak, two exponentials, bounds
BARRIERS = 3  # of a turn


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    return need_of(plan(group, schedule))


def need_of(p: AttentionPlan) -> Need:
    registers = (
        p.own * (p.keys // p.sharing + p.columns) // WARP
        + 4 * p.own // EIGHT
        + (p.own * p.depth // (2 * WARP) if p.halves else 16)
        + OTHER_REGISTERS
    )
    if not p.matrix:
        registers = p.own * (FOUR * p.fours + p.scores + FOUR + 2) + 2 * FOUR + OTHER_REGISTERS
    whole = p.key_blocks * p.keys * p.row_tiles * p.rows
    used = p.size(ROW) * p.size(KEY) * (p.size(DEPTH) + p.size(COLUMN))
    return Need(
        p.threads, 4 * sum(padded(floats) for _, floats in p.shared), registers, p.blocks, 1,
        whole * (p.depth + p.columns) / used,
        2 * FOUR * p.own * (p.scores + FOUR * p.fours),
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    p = plan(group, schedule)
    wanted = need_of(p)
    warps, turns = -(-p.threads // WARP), p.key_blocks
    per = _matrix(p) if p.matrix else _plain(p)
    scores = p.rows * p.keys / p.threads
    functions = sum(len(list(s.expr.functions())) for s in p.form.between)
    masks = sum(a.tensor not in _inner(p) for s in p.form.between for a in s.reads)
    weight = HALF_WEIGHT_INSTRUCTIONS if p.halves else WEIGHT_INSTRUCTIONS
    other = per.other + scores * (weight + functions + 2 * masks)
    run = {
        access.tensor: p.copied(access, along)
        for access, along in (
            (p.form.queries, DEPTH), (p.form.keys, DEPTH), (p.form.columns, COLUMN)
        )
    }  # fmt: skip
    copies = turns * p.keys * (p.depth / run[p.form.keys.tensor] +
                               p.columns / run[p.form.columns.tensor])  # fmt: skip
    copies += p.rows * p.depth / run[p.form.queries.tensor]
    size = DTYPES[p.dtype(p.form.queries)]
    copied = size * (turns * p.keys * (p.size(DEPTH) + p.size(COLUMN)) + p.rows * p.size(DEPTH))
    copied += 4.0 * masks * turns * p.rows * p.keys
    return Work(
        wanted.blocks, 1, p.threads, registers or wanted.registers, wanted.shared_bytes, 2,
        max(round(BARRIERS * turns), 1), turns * warps * per.products, turns * warps * per.matrix,
        turns * warps * per.reads, turns * warps * per.fronts, copies / WARP, copied,
        turns * warps * other + 4 * copies / WARP, 4.0 * p.rows * p.size(COLUMN), 0.0,
        waits=0.5 * turns,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one warp does with a block of keys, in its instructions."""

    products: float
    matrix: float
    reads: float
    fronts: float
    other: float


def _plain(p: AttentionPlan) -> _Turn:
    # A row's operands are the same for its lanes; keys and values differ from lane to lane.
    apart = max(1.0, min(p.lanes, WARP) * 16 / BANKS_BYTES)
    deep, steps = p.depth / FOUR, p.keys / FOUR
    scores = p.own * p.scores
    reads = deep * (p.own + p.scores) + steps * (p.own + FOUR * p.fours)
    reads += scores + p.own * (1 + p.lanes / FOUR)  # weights and peaks
    fronts = deep * (p.own + p.scores * apart) + steps * (p.own + FOUR * p.fours * apart)
    fronts += scores + p.own * (1 + p.lanes / FOUR)
    products = FOUR * (deep * scores + steps * p.own * FOUR * p.fours)
    return _Turn(products, 0.0, reads, fronts, p.own * (ROW_INSTRUCTIONS + FOUR * p.fours))


def _matrix(p: AttentionPlan) -> _Turn:
    """Three instructions for each product of tiles; both operands are cut, weights in registers.

    Halves are not cut: one instruction does twice the depth.
    """
    down, keys = p.own / 16, p.keys / p.sharing / EIGHT
    deep, columns = p.depth / EIGHT, p.columns / EIGHT
    reads = deep * (4 * down + 2 * keys) + 2 * keys * columns
    cuts = reads + 4 * down * keys
    rows = 2 * down * (ROW_INSTRUCTIONS + 2 * columns)
    if p.halves:
        matrix, rounded = down * keys * (deep + columns) / 2, 2 * down * keys
        reads = keys * (deep + columns) / 2
        return _Turn(0.0, matrix, reads, 2 * reads, rounded + rows)
    matrix = 3 * down * keys * (deep + columns)
    return _Turn(0.0, matrix, reads, reads, CUT_INSTRUCTIONS * cuts + rows)


def _inner(p: AttentionPlan) -> set[str]:
    return {t.name for t in p.group.tensors if t.role == 'inner'}
