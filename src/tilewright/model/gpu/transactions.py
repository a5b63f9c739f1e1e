"""What a block of a GPU kernel does, counted from its plan: copies, reads, products, stores.

Goes in: a group and a schedule of any schema. Comes out: a `Work`, counts for one block in warp
instructions and bytes, and how many blocks there are. CNNOpt's own volumes (Sec. 4.3, which
lack the factor C x numTB at the upper level as printed) are `cnnopt_volumes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.schemas.cnnopt import join as cnnopt_join
from tilewright.kernels.gpu.schemas.cnnopt import plan as cnnopt_plan
from tilewright.kernels.gpu.schemas.depthwise import plan as depthwise_plan
from tilewright.kernels.gpu.schemas.patch import code as patch
from tilewright.kernels.gpu.schemas.patch import warpgroup as patch_warpgroup
from tilewright.kernels.gpu.schemas.patch.plan import STEP
from tilewright.kernels.gpu.schemas.tiled import code as tiled
from tilewright.kernels.gpu.schemas.winograd import plan as winograd_plan
from tilewright.kernels.gpu.space import OTHER_REGISTERS, need
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

WARP = 32
TRANSACTION = 32  # elements of one memory transaction: 128 bytes
BANKS_BYTES = 128  # what shared memory delivers in a cycle
INDEX_INSTRUCTIONS = 5  # of a product whose operands are addressed anew
CACHED = 8  # products of a thread for each four bytes that come from L2: the rest is found in L1
CUT_INSTRUCTIONS = 7  # to cut one operand of a matrix instruction in two, addresses included


@dataclass(frozen=True, slots=True)
class Work:
    """One block of the main kernel, all its warps together, over all its pieces.

    pieces         steps of the loop, each with a barrier
    products       warp multiply-adds         matrix    matrix instructions of a warp
    wide           products of warpgroups, in matrix instructions of a warp that do as much
    turns          times that a warp waits for products of its warpgroup
    reads          warp loads from shared memory        wavefronts   cycles that they take there
    copies         warp copies from global to shared memory          copied   bytes of them
    other          further warp instructions
    stored         bytes of results           joined    bytes of partial sums that one part leaves
    extra_kernels  launches of a call beside the main one   extra_bytes   bytes that they move
    bulk           whether one thread asks for the columns of a piece
    least_reads, least_wavefronts   of reads, where a compiler may merge up to four of a thread: as
                   many as that needs at least; 0 where nothing is left to merge
    """

    blocks: int
    split: int
    threads: int
    registers: int
    shared_bytes: int
    stages: int
    pieces: int
    products: float
    matrix: float
    reads: float
    wavefronts: float
    copies: float
    copied: float
    other: float
    stored: float
    joined: float
    extra_kernels: int = 0
    extra_bytes: float = 0.0
    wide: float = 0.0
    turns: float = 0.0
    bulk: bool = False
    least_reads: float = 0.0
    least_wavefronts: float = 0.0

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    @property
    def instructions(self) -> float:
        return self.products + self.matrix + self.reads + self.copies + self.other

    @property
    def global_bytes(self) -> float:
        """Bytes between L2 and the multiprocessors, all blocks together."""
        joined = 2 * self.joined if self.split > 1 else 0.0
        return self.blocks * (self.copied + self.stored / self.split + joined) + self.extra_bytes


def work(group: Group, schedule: GpuSchedule, registers: int | None = None) -> Work:
    """[Group, GpuSchedule] -> [Work]; `registers` of a thread as the compiler counted them."""
    if schedule.schema not in _COUNTS:
        raise ScheduleError(
            f'schema {schedule.schema!r} has no counts; choose one of {", ".join(_COUNTS)}'
        )
    return _COUNTS[schedule.schema](group, schedule, registers)


def _tiled(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    p, wanted = tiled.plan(group, schedule), need(group, schedule)
    warps = -(-p.threads // WARP)
    pieces = -(-p.iterations // p.split)
    depth = pieces * p.kb
    if p.matrix:
        across, down = p.tp // 8, p.tk // 16
        steps = warps * depth / 8
        matrix, products = steps * 3 * across * down, 0.0
        reads = steps * (across * 2 + down * 4)
        wavefronts, other = reads, reads * CUT_INSTRUCTIONS
    else:
        lanes = min(WARP, p.bp // p.tp)
        matrix, products = 0.0, warps * depth * p.tk * p.tp
        reads = warps * depth * (p.tp + p.tk) / 4
        wavefronts = (
            warps
            * depth
            * (
                p.tp / 4 * max(1.0, lanes * 16 / BANKS_BYTES)
                + p.tk / 4 * max(1.0, WARP / lanes * 16 / BANKS_BYTES)
            )
        )
        other = 0.0
    tile = 4.0 * p.bk * p.bp
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, products, matrix, reads, wavefronts,
        depth * (p.bp / WARP + p.bk / (4 * WARP)), 4.0 * depth * (p.bp + p.bk), other, tile, tile,
    )  # fmt: skip


def _patch(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    p, wanted = patch.plan(group, schedule), need(group, schedule)
    warps = p.threads // WARP
    pieces = -(-p.iterations // p.split)
    steps = pieces * p.depth / STEP  # of a team
    if p.wide:
        tiles = p.tp / 64
        # A product of bf16 takes as long, and as many bytes, as one of TF32 with half the depths.
        products = pieces * (p.steps + 2 * p.pairs) if p.mixed else steps * 3
        matrix, turns = warps * products * tiles, pieces * p.pairs if p.mixed else steps
        wide = warps / 4 * products * tiles * p.bk / 2
        reads = warps * steps * 4 * tiles
        # The matrix units read the columns of a step from shared memory themselves.
        wavefronts = reads + warps / 4 * products * tiles * p.bk * STEP * 4 / BANKS_BYTES
    else:
        across, down = p.tp // 8, p.tk // 16
        matrix, wide, turns = warps * steps * 3 * across * down, 0.0, 0.0
        reads = warps * steps * (across * 2 + down * 4)
        wavefronts = reads
    weights = patch_warpgroup.shared_weights(p) if p.wide else p.depth * p.bk
    tile = 4.0 * p.bk * p.bp
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, 0.0, matrix, reads, wavefronts,
        pieces * (p.kb * p.copied / WARP + (0 if p.bulk else weights / (4 * WARP))),
        4.0 * pieces * (p.kb * p.plane + weights), reads * CUT_INSTRUCTIONS, tile, tile,
        wide=wide, turns=turns, bulk=p.bulk,
    )  # fmt: skip


def _general(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """One thread for each point; operands come from the caches for every product."""
    kernel = generate(group, schedule).steps[0].kernel
    blocks = math.prod(kernel.grid)
    products = max(group.flops / 2 / blocks, 1.0) / WARP
    outputs = 4.0 * math.prod(group.output.shape) / blocks
    return Work(
        blocks, 1, kernel.threads, registers or OTHER_REGISTERS['general'], kernel.shared_bytes, 1,
        1, products, 0.0, 2 * products, 2 * products, 0.0, WARP * products / CACHED,
        INDEX_INSTRUCTIONS * products, outputs, 0.0,
    )  # fmt: skip


def _depthwise(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """A thread reads the rows under its outputs once each."""
    p = depthwise_plan.plan(group, schedule)
    warps = -(-p.threads // WARP)
    products = warps * p.th * p.tw * p.rows.taps * p.columns.taps
    reads = warps * p.rows.span(p.th) * p.columns.span(p.tw) / (4 if p.fours else 1)
    image = p.bp * p.block_rows * p.columns.span(p.bw * p.tw)
    sums = p.th * p.tw + p.columns.span(p.tw) + p.rows.taps * p.columns.taps
    return Work(
        math.prod(p.tiles), 1, p.threads, registers or sums + OTHER_REGISTERS['general'],
        4 * p.shared_floats, 1, 1, float(products), 0.0, reads, reads,
        image / WARP if p.shared else 0.0, 4.0 * image, float(products),
        4.0 * p.threads * p.th * p.tw, 0.0,
    )  # fmt: skip


def _winograd(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """The products, and two kernels beside them: image to V, M to the result."""
    p = winograd_plan.plan(group, schedule)
    done = work(p.product, p.schedule, registers)
    v, _, made = p.product.tensors
    beside = sum(t.bytes for t in group.tensors if t.role != 'inner') - p.weights.bytes
    return replace(done, extra_kernels=2, extra_bytes=float(v.bytes + made.bytes + beside))


def memory_bytes(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> int:
    """Bytes that pass through memory where L2 cannot hold them: tensors once; what kernels leave
    for each other is written and read, unless it fits L2 with what a transform moves beside it.
    """
    if schedule.schema != winograd_plan.NAME:
        return group.compulsory_bytes
    p = winograd_plan.plan(group, schedule)
    v, _, made = p.product.tensors
    pairs = ((v.bytes, p.image.bytes), (made.bytes, group.output.bytes))
    left = sum(2 * own for own, beside in pairs if own + beside > machine.l2_bytes)
    return group.compulsory_bytes + left


def _cnnopt(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    p, wanted = cnnopt_plan.plan(group, schedule), need(group, schedule)
    warps = p.threads // WARP
    pieces = -(-p.iterations // p.split)
    channels = pieces * p.cb
    (rk, ry, rx), (rows, columns) = p.registers, p.plane
    inputs, weights = thread_reads(p)
    reads = warps * channels * (inputs + weights / (1 if rk % 4 else 4))
    weight_bytes = p.taps * p.block[0]
    unit = 1 if p.block[0] % 4 else 4
    result = 4.0 * math.prod(p.block)
    outputs = 4.0 * math.prod(group.output.shape)
    way = p.join if p.split > 1 else -1
    extra = {
        cnnopt_join.ATOMICS: (1 + bool(group.epilogue), outputs * (1 + 2 * bool(group.epilogue))),
        cnnopt_join.SECOND_PASS: (1, outputs * (p.split + 1)),
    }.get(way, (0, 0.0))
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, float(warps * channels * p.taps * rk * ry * rx), 0.0, reads,
        warps * channels * (_input_wavefronts(p) * inputs + weights),
        channels * (rows * columns / WARP + weight_bytes / (unit * WARP)),
        4.0 * channels * (rows * columns + weight_bytes), 0.0, result,
        result / (2 if way == cnnopt_join.ATOMICS else 1), *extra,
        least_reads=warps * channels * (inputs + weights) / 4,
        least_wavefronts=warps * channels
        * (inputs * len(_input_places(p)) + weights * p.lanes[0]) / WARP,
    )  # fmt: skip


def thread_reads(p: cnnopt_plan.Plan) -> tuple[int, int]:
    """Elements (inputs, weights) that a thread reads from shared memory for one channel.

    RS: each once. S: a row of inputs for each of R^y outputs and F_y taps, weights for each R^y.
    """
    k, y, _ = p.registers
    if p.rows:
        return y * p.y.taps * p.slice[1], p.taps * k * y
    return p.slice[0] * p.slice[1], p.taps * k


def _input_wavefronts(p: cnnopt_plan.Plan) -> int:
    """Cycles of one read of inputs by a warp: lanes along x and y that meet in one bank."""
    banks: dict[int, int] = {}
    for place in _input_places(p):
        banks[place % WARP] = banks.get(place % WARP, 0) + 1
    return max(banks.values())


def _input_places(p: cnnopt_plan.Plan) -> set[int]:
    """Words of shared memory that the lanes of a warp read at once."""
    (_, ty, tx), (_, ry, rx), pitch = p.lanes, p.registers, p.plane[1]
    return {y * ry * p.y.stride * pitch + x * rx * p.x.stride for y in range(ty) for x in range(tx)}


_COUNTS: dict[str, Callable[[Group, GpuSchedule, int | None], Work]] = {
    'depthwise': _depthwise,
    'general': _general,
    'patch': _patch,
    'rs': _cnnopt,
    's': _cnnopt,
    'strip': _patch,
    'tiled': _tiled,
    'winograd': _winograd,
}


@dataclass(frozen=True, slots=True)
class Volumes:
    """Memory transactions of a whole call in CNNOpt's model, 32 elements each."""

    global_to_shared: int
    shared_to_register: int


def cnnopt_volumes(p: cnnopt_plan.Plan) -> Volumes:
    """Sec. 4.3: results are ignored; numTB and numWarp are blocks and warps of a block.

    Global to shared, printed without C numTB: ceil(W^y' W^x' / 32) + ceil(W^k F_x F_y / 32) for
    each channel of each block, primes with halo. Shared to register: a warp's read of one element
    for each thread is one transaction.
    """
    rows, columns = p.plane
    blocks = p.grid[0] * p.grid[1]  # those of a split share the channels
    staged = -(-rows * columns // TRANSACTION) - (-p.block[0] * p.taps // TRANSACTION)
    warps = p.threads // WARP
    return Volumes(staged * blocks * p.channels, sum(thread_reads(p)) * warps * blocks * p.channels)
