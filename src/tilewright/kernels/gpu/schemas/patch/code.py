"""The patch and strip schemas: a block's piece of the image is in shared memory for all windows.

Goes in: a group whose main stage is a sum of products, and a schedule. Comes out: a module, which
packs the operand of columns ahead if it is constant, else in every call. Where the tiled schema
gathers a row once for each window point, here the patch under a block's pixels is copied once for a
piece of channels, and every window point reads it at an offset: a 3x3 convolution moves its input a
ninth as often. Decisions of a schedule:

    bk, b<pixel>   columns of a block, and its extent along every pixel dimension (bn bh bw)
    bp             in the strip schema, instead: pixels of a block, through rows and images
    tk tp          columns and pixels of a warp, or of a warpgroup (then tk is bk)
    kb stages      channels of a piece, pieces in flight
    split          blocks that share a tile's channels
    gap            floats between two images of a patch beside their own, against collisions of
                   pixels of neighbouring images in a bank; 0 where it is not said
    queue          steps that a warpgroup's matrix units are handed at once, 1 where it is not said
    late           1: a later piece is asked for once the matrix units of this one have work, not
                   before; 0 where it is not said
    bulk           1: one thread asks for the whole of a piece's columns, 0 where it is not said:
                   all threads copy sixteen bytes at a time
                   Where the channels of a pixel lie side by side (matrix products) a strip's pixels
                   are rows, copied four channels at a time
    fresh          1: matrix units begin at zero, those of a warp every eight depths, those of a
                   warpgroup every piece, and what they find is added up in fp32; 0 where it is
                   not said
    joint          1: depths run across channels and window points together (few channels),
                   0: each window point takes eight channels at a time

Products are those of matrix instructions in fp32 precision (see tiled/code.py): of a warp,
`mma_tf32x3`, warp.py, or of Hopper's warpgroups, `wgmma_tf32x3`, warpgroup.py, and
`wgmma_tf32_bf16`, mixed.py, which takes two thirds of their time. A lane keeps the offsets of its
pixels in registers, so that a tile may have any shape, whole rows of odd length included; `tp`
pixels that a tile does not fill are computed and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.product import module_of, pack_kernel, workspace
from tilewright.kernels.gpu.schemas.patch import mixed as patch_mixed
from tilewright.kernels.gpu.schemas.patch import pixels as patch_pixels
from tilewright.kernels.gpu.schemas.patch import warp as patch_warp
from tilewright.kernels.gpu.schemas.patch import warpgroup as patch_warpgroup
from tilewright.kernels.gpu.schemas.patch.plan import PatchPlan, plan
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    sums = workspace(p.split, p.tiles, p.bk * p.bp)
    return module_of(p, [p.packed, *sums], _pack_kernel(p), [main_kernel(p, sums)])


def how(p: PatchPlan) -> ModuleType:
    """What is particular to the instructions of a schedule: its file has one function for each."""
    if p.mixed:
        return patch_mixed
    return patch_warpgroup if p.wide else patch_warp


def _pack_kernel(p: PatchPlan) -> Kernel:
    """The operand of columns as pieces of it will lie in shared memory, zeros where nothing is."""
    c, packed = p.contraction, p.packed
    channel, window = (
        (f'e / {p.window_points}', f'e % {p.window_points}')
        if p.joint
        else (f'e % {p.kb}', f'e / {p.kb}')
    )
    lines, value = how(p).packed_element(p)
    one = [
        f'const int inner = {channel}, window = {window};',
        f'const int {c.loop} = piece * {p.kb} + inner;',
        *(pieces.decode('window', p.windows) if p.windows else []),
        f'const bool there = {c.vector} < {p.columns} && {c.loop} < {p.channels} && '
        f'inner < {p.kb} && window < {p.window_points};',
        f'const float weight = there ? {pieces.element(p.group, c.b)} : 0.0f;',
    ]
    body = [
        *lines,
        *(pieces.decode('g_', p.batch) if p.batch else []),
        *(patch_mixed.both(one) if p.mixed else one),
        f'{packed.name}[flat] = {value};',
    ]
    return pack_kernel('patch_pack', p, replace(packed, written=True), body)


def main_kernel(p: PatchPlan, sums: Sequence[Array]) -> Kernel:
    columns, rows = p.own
    args = [
        pieces.argument(p.group.tensor(p.contraction.a.tensor)),
        p.packed,
        *pieces.epilogue_arrays(p.group, p.epilogue),
        *sums,
        pieces.argument(p.group.output, written=True),
    ]
    shared = [
        ('a_tile', p.stages * p.piece_floats),
        ('b_tile', p.stages * how(p).shared_weights(p)),
    ]
    if p.bulk:
        shared.append(('full', 2 * p.stages))
    if p.split > 1:
        shared.append(('arrived', 4))
    body = [
        *_place(p),
        *patch_pixels.copied(p),
        *how(p).offsets(p),
        *_accumulate(p),
        *(pieces.joined(columns, rows, p.threads, p.tiles, p.split) if p.split > 1 else []),
        *how(p).store(p),
    ]
    needs = {f'{need}/{p.bk}' if p.wide else need for need in how(p).NEEDS}
    needs |= ({'device_fence'} if p.split > 1 else set()) | ({'bulk_copy'} if p.bulk else set())
    return Kernel(
        f'patch_{p.group.main.name}', tuple(args), '\n'.join(body),
        (p.pixel_tiles, p.column_tiles * p.groups, p.split), p.threads, tuple(shared),
        helpers(p.group, p.epilogue), frozenset(needs),
    )  # fmt: skip


def _place(p: PatchPlan) -> list[str]:
    """Which tile this block owns, and which part of it this warp."""
    across, share = p.bp // p.tp, -(-p.iterations // p.split)
    return [
        *patch_pixels.begun(p),
        f'const int group = {f"BLOCK_Y / {p.column_tiles}" if p.groups > 1 else "0"};',
        f'const int first_column = (BLOCK_Y - group * {p.column_tiles}) * {p.bk};',
        *(pieces.decode('group', p.batch) if p.batch else []),
        f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP};',
        f'const int owner = THREAD / {p.team};',
        f'const int first_pixel = owner % {across} * {p.tp};',
        f'const int own_column = owner / {across} * {p.tk};',
        *(_part(p, share) if p.split > 1 else [f'const int begin = 0, end = {p.iterations};']),
    ]


def _part(p: PatchPlan, share: int) -> list[str]:
    """The pieces of this block, where several blocks share a tile."""
    return [
        f'const int tile = BLOCK_Y * {p.pixel_tiles} + BLOCK_X;',
        f'const int begin = BLOCK_Z * {share};',
        f'const int end = min(begin + {share}, {p.iterations});',
    ]


def _accumulate(p: PatchPlan) -> list[str]:
    """The loop over pieces: copy one that is needed later, multiply the one that is here."""
    columns, rows = p.own
    cleared = [f'float acc[{columns}][{rows}];', *pieces.cleared(columns, rows)]
    if p.wide and p.fresh:
        cleared += [f'float fresh[{columns}][{rows}];', *pieces.cleared(columns, rows, 'fresh')]
    begun = [
        'if (THREAD == 0) {',
        *(f'    BULK_BEGIN(full + {2 * stage});' for stage in range(p.stages)),
        '}',
        'BARRIER;',
    ]
    return [*cleared, *(begun if p.bulk else []), *(_late(p) if p.late else _early(p))]


def _asked(p: PatchPlan) -> list[str]:
    """Ask for the piece that is `stages - 1` further on."""
    return pieces.asked(p.stages - 1, _copies(p))


def _arrived(p: PatchPlan, others: int, now: bool = True) -> list[str]:
    """Until all but the youngest `others` pieces are here, for all threads to see; the one that is
    multiplied `now` among them, unless it is asked for only then.
    """
    used = f'(now - begin) / {p.stages}'
    slot = f' + now % {p.stages} * 2' if p.stages > 1 else ''
    return [
        f'COPY_WAIT({others});',
        *(['SHARED_TO_MATRIX;'] if p.wide else []),
        *([f'BULK_WAIT(full{slot}, {used});'] if p.bulk and now else []),
        'BARRIER;',
    ]


def _early(p: PatchPlan) -> list[str]:
    """A later piece is asked for before this one is multiplied; the first turns only ask."""
    ahead = p.stages - 1
    early = _arrived(p, max(ahead - 1, 0), now=False)
    return pieces.pipelined(ahead, early, _copies(p), _arrived(p, 0), _multiplied(p))


def _late(p: PatchPlan) -> list[str]:
    """A later piece is asked for while the first step of this one is multiplied."""
    return [
        f'for (int now = begin - {p.stages - 1}; now < begin; now++) {{',
        *(f'    {line}' for line in _asked(p)),
        '}',
        'for (int now = begin; now < end; now++) {',
        *(f'    {line}' for line in _arrived(p, p.stages - 2)),
        *(f'    {line}' for line in _multiplied(p, _asked(p))),
        '}',
    ]


def _multiplied(p: PatchPlan, *meanwhile: Sequence[str]) -> list[str]:
    """One piece; sums that warpgroups begin anew with each are added in fp32 behind it."""
    lines = how(p).multiply(p, *meanwhile)
    return [*lines, *pieces.added(*p.own)] if p.wide and p.fresh else lines


def _copies(p: PatchPlan) -> list[str]:
    """Copy piece `next`: channels of the patch, depths of the packed operand."""
    c = p.contraction
    strides, _ = access_strides(p.group, c.a)
    step = strides[c.loop]
    slot = pieces.slot('next', p.stages)
    to = [
        f'SHARED float *const to_a = a_tile + {slot} * {p.piece_floats};',
        f'SHARED float *const to_b = b_tile + {slot} * {how(p).shared_weights(p)};',
    ]
    if p.pixels_are_rows:
        return [*to, *patch_pixels.row_copies(p), *how(p).weight_copies(p)]
    teams = p.threads // p.lanes  # channels that are copied at the same time
    lines = [
        *to,
        f'const int team = {f"THREAD / {p.lanes}" if teams > 1 else "0"};',
        f'const GLOBAL float *const image = @{c.a.tensor} + next * {p.kb * step};',
    ]
    ragged = p.channels % p.kb
    short = p.threads % p.lanes
    copies = []
    for i in range(p.places):
        there = f'inside{i}' + (f' && next * {p.kb} + channel < {p.channels}' if ragged else '')
        copy = (
            f'COPY{p.unit}(to_a + channel * {p.plane_pitch} + spot{i}, '
            f'{f"({there}) ? image + from{i} + channel * {step} : @{c.a.tensor}"}, {there});'
        )
        beyond = p.lanes * p.places > p.copied and i == p.places - 1
        copies.append(f'if (place{i} < {p.plane}) {copy}' if beyond else copy)
    loop = pieces.dealt('channel', 'team', p.kb, teams, copies)
    lines += [f'if (team < {teams}) {{', *loop, '}'] if short else loop
    return [*lines, *how(p).weight_copies(p)]
