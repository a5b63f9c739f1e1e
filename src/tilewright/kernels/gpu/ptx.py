"""PTX that CUDA C++ and NVIDIA's OpenCL C both take as inline assembly, operands left as %0, %1 ...

Copies from global to shared memory that run beside computing (from compute capability 8.0 on), the
matrix instructions of a warp (8.0) and those of Hopper's warpgroups (9.0). Sections of the PTX ISA:
cp.async, mma, wgmma.mma_async.
"""

from __future__ import annotations

COPY_COMMIT = 'cp.async.commit_group;'
COPY_WAIT = 'cp.async.wait_group'
MATRIX_BEGIN = 'wgmma.fence.sync.aligned;'
MATRIX_COMMIT = 'wgmma.commit_group.sync.aligned;'
MATRIX_WAIT = 'wgmma.wait_group.sync.aligned'
SHARED_TO_MATRIX = 'fence.proxy.async.shared::cta;'

# d += a b for a 16 x 8 by an 8 x 8 tile, spread over a warp
MMA_TF32 = (
    'mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 '
    '{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};'
)

# The same for a 16 x 16 by a 16 x 8 tile of f16 or bf16, two depths in each word.
MMA_HALF = MMA_TF32.replace('m16n8k8', 'm16n8k16')


_SIGNS = {'u8': 'u8', 'i8': 's8'}


def mma_int8(kind: str) -> str:
    """The same for a 16 x 32 by a 32 x 8 tile of 8-bit numbers, four depths in each word."""
    a, b = (_SIGNS[one] for one in kind.split('_'))
    return MMA_TF32.replace('m16n8k8', 'm16n8k32').replace('f32.tf32.tf32.f32', f's32.{a}.{b}.s32')


# A kernel that was started early goes on when those before it have ended and what they wrote can be
# seen (runtime/gpu/recorded.py); from the second line on those behind it may be started, once all
# its blocks are there. Nothing happens where a launch does not ask for it. The second comes behind
# the first: else all kernels of a network would be let in, and wait where others are to compute.
GRID_BEGINS = 'griddepcontrol.wait;'
GRID_ENDS = 'griddepcontrol.launch_dependents;'

# Four tiles of 8 x 8 halves at the address %4 of each lane's row: a lane has two neighbours along a
# row of each, or, turned, down a column.
ROWS4 = 'ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];'
COLUMNS4 = 'ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];'


def copy(size: int, near: bool = False) -> str:
    """%0 in shared memory, %1 in global memory, %2 bytes that are read; the rest become zeros.

    Sixteen bytes bypass the first cache, unless they are to stay `near`.
    """
    kept = 'cg' if size == 16 and not near else 'ca'
    return f'cp.async.{kept}.shared.global [%0], [%1], {size}, %2;'


# Copies of any length by one thread; a barrier in shared memory, eight bytes, counts what has come.
# Operands: the barrier; bytes and barrier; to, from, bytes and barrier.
BULK_BEGIN = 'mbarrier.init.shared::cta.b64 [%0], 1;'
BULK_BEGUN = 'fence.mbarrier_init.release.cluster;'
BULK_EXPECT = 'mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %0;'
BULK_COPY = (
    'cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];'
)
# %0 whether all bytes have come, %1 barrier, %2 how often it has been used before, odd or even
BULK_TEST = (
    '{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }'
)

# %0 what the lane whose number differs by the mask %2 has as %1
LANE_XOR = 'shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;'
# Words of eight bytes between blocks, each seen whole or not at all: %0 where, %1 what; %0 what, or
# %0 and %1, then where.
SEND = 'st.relaxed.gpu.global.u64 [%0], %1;'
ASK = 'ld.relaxed.gpu.global.u64 %0, [%1];'
ASK_TWO = 'ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];'

# Blocks of a cluster: all their threads arrive, and see what the others wrote before; %0 where the
# block %2 has what this one has at %1, both in shared memory; sixteen bytes, or four, from there.
CLUSTER_ARRIVE = 'barrier.cluster.arrive.release.aligned;'
CLUSTER_WAIT = 'barrier.cluster.wait.acquire.aligned;'
OF_BLOCK = 'mapa.shared::cluster.u32 %0, %1, %2;'
BESIDE4 = 'ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];'
BESIDE1 = 'ld.shared::cluster.f32 %0, [%1];'

# What rounds two floats to bf16 in one word, %1 in its upper half, and the depths of a warpgroup's
# instruction with what stands behind its operands: bf16's also say that b is not transposed.
BF16_PAIR = 'cvt.rn.bf16x2.f32 %0, %1, %2;'
_WARPGROUP_KINDS = {'tf32': ('k8', ''), 'bf16': ('k16', ', 0')}


def wgmma(columns: int, kind: str = 'tf32') -> list[str]:
    """d += a b for 64 pixels and `columns` columns, lines of one block.

    Operands: columns / 2 sums, four factors, the descriptor of b, a number that is not zero.
    """
    depths, behind = _WARPGROUP_KINDS[kind]
    count = columns // 2
    sums = ', '.join(f'%{i}' for i in range(count))
    factors = ', '.join(f'%{count + i}' for i in range(4))
    return [
        '{',
        '.reg .pred p;',
        f'setp.ne.b32 p, %{count + 5}, 0;',
        f'wgmma.mma_async.sync.aligned.m64n{columns}{depths}.f32.{kind}.{kind} '
        f'{{{sums}}}, {{{factors}}}, %{count + 4}, p, 1, 1{behind};',
        '}',
    ]


def wgmma_half(columns: int, kind: str) -> list[str]:
    """d += a b for 64 rows, `columns` columns and 16 depths of f16 or bf16, lines of one block.

    Operands: columns / 2 sums, the descriptors of a and b, a number that is not zero.
    """
    count = columns // 2
    sums = ', '.join(f'%{i}' for i in range(count))
    return [
        '{',
        '.reg .pred p;',
        f'setp.ne.b32 p, %{count + 2}, 0;',
        f'wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} '
        f'{{{sums}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;',
        '}',
    ]


def wgmma_int8(columns: int, kind: str) -> list[str]:
    """d += a b for 64 rows, `columns` columns and 32 depths of 8-bit numbers, as `wgmma_half`."""
    count = columns // 2
    sums = ', '.join(f'%{i}' for i in range(count))
    a, b = (_SIGNS[one] for one in kind.split('_'))
    return [
        '{',
        '.reg .pred p;',
        f'setp.ne.b32 p, %{count + 2}, 0;',
        f'wgmma.mma_async.sync.aligned.m64n{columns}k32.s32.{a}.{b} '
        f'{{{sums}}}, %{count}, %{count + 1}, p;',
        '}',
    ]
