"""CUDA C++, as NVRTC compiles it without any header."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.gpu import ptx
from tilewright.kernels.gpu.dialects.table import (
    BYTE_KINDS,
    Dialect,
    matrix_units,
    what_lanes_need,
)
from tilewright.kernels.gpu.language import ALIGNED, Kernel, padded

WORDS = {
    'THREAD': '(int)threadIdx.x',
    'BLOCK_X': '(int)blockIdx.x',
    'BLOCK_Y': '(int)blockIdx.y',
    'BLOCK_Z': '(int)blockIdx.z',
    'BARRIER': '__syncthreads()',
    'GLOBAL': '',
    'SHARED': '',
    'FUNCTION': 'static __device__ __forceinline__',
    'TABLE': 'static __device__ const int',
    'FMA': 'fmaf',
    'MAXIMUM': 'fmaxf',
    'MINIMUM': 'fminf',
    'DEVICE_FENCE': '__threadfence()',
    'FLOAT_BITS': '__float_as_uint',
    'BITS_FLOAT': '__uint_as_float',
}

# Copies are asynchronous from compute capability 8.0 on. A copy of nothing writes zeros: that is
# how padding is loaded without a branch.
HEAD = f"""\
#define INFINITY __int_as_float(0x7f800000)
#define LOAD4(space, p) (*(const float4 *)(p))
#define STORE4(space, p, v) (*(float4 *)(p) = (v))
#define STORE2(space, p, a, b) (*(float2 *)(p) = make_float2(a, b))
#define FLOAT4(a, b, c, d) make_float4(a, b, c, d)
#define LOAD2(space, p) (*(const float2 *)(p))
#define FLOAT2(a, b) make_float2(a, b)
#define EACH_TURN(i, first, total, step) for (int i = first; i < total; i += step)
#define ATOMIC_ADD(p, v) atomicAdd(p, v)
#define ATOMIC_COUNT(p) atomicAdd(p, 1)
#if __CUDA_ARCH__ >= 900
#define GRID_BEGINS asm volatile("{ptx.GRID_BEGINS}" ::: "memory")
#define GRID_ENDS asm volatile("{ptx.GRID_ENDS}" ::: "memory")
#else
#define GRID_BEGINS
#define GRID_ENDS
#endif

#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void COPY1(float *to, const float *from, bool there)
{{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("{ptx.copy(4)}"
                 :: "r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
}}
static __device__ __forceinline__ void COPY4(float *to, const float *from, bool there)
{{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("{ptx.copy(16)}"
                 :: "r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}}
#define COPY_COMMIT asm volatile("{ptx.COPY_COMMIT}" ::: "memory")
#define COPY_WAIT(n) asm volatile("{ptx.COPY_WAIT} %0;" :: "n"(n) : "memory")
#else
#define COPY1(to, from, there) (*(to) = (there) ? *(from) : 0.0f)
#define COPY4(to, from, there) \\
    (*(float4 *)(to) = (there) ? *(const float4 *)(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f))
#define COPY_COMMIT
#define COPY_WAIT(n)
#endif

#if __CUDA_ARCH__ >= 800
#define MMA_TF32(d0, d1, d2, d3, a, b) \\
    asm volatile("{ptx.MMA_TF32}" \\
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) \\
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#endif
"""

# A warpgroup's product of pixels in registers and columns in shared memory, from Hopper on. Strides
# between core matrices are counted in floats.
_WARPGROUP = f"""\
#define MATRIX_BEGIN asm volatile("{ptx.MATRIX_BEGIN}" ::: "memory")
#define MATRIX_COMMIT asm volatile("{ptx.MATRIX_COMMIT}" ::: "memory")
#define MATRIX_WAIT(n) asm volatile("{ptx.MATRIX_WAIT} %0;" :: "n"(n) : "memory")
#define SHARED_TO_MATRIX asm volatile("{ptx.SHARED_TO_MATRIX}" ::: "memory")
#define WGMMA_TF32(n, d, a, b, across, row8) tw_wgmma_##n(d, a, tw_matrix(b, across, row8))

static __device__ __forceinline__ unsigned long long tw_matrix(const float *b, int across, int row8)
{{
    const unsigned long long at = __cvta_generic_to_shared(b);
    return ((at & 0x3ffff) >> 4) | (unsigned long long)(across / 4) << 16
        | (unsigned long long)(row8 / 4) << 32;
}}
"""

_BF16 = f"""\
#define WGMMA_BF16(n, d, a, b, across, row8) tw_wgmma_bf16_##n(d, a, tw_matrix(b, across, row8))
static __device__ __forceinline__ unsigned BF16_PAIR(float low, float high)
{{
    unsigned both;
    asm("{ptx.BF16_PAIR}" : "=r"(both) : "f"(high), "f"(low));
    return both;
}}
"""


_BULK = f"""\
static __device__ __forceinline__ void BULK_BEGIN(float *barrier)
{{
    asm volatile("{ptx.BULK_BEGIN}" :: "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
    asm volatile("{ptx.BULK_BEGUN}" ::: "memory");
}}
static __device__ __forceinline__ void
BULK_COPY(float *to, const float *from, int floats, float *barrier)
{{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(barrier);
    asm volatile("{ptx.BULK_EXPECT}" :: "r"(4 * floats), "r"(bar) : "memory");
    asm volatile("{ptx.BULK_COPY}"
                 :: "r"(at), "l"(from), "r"(4 * floats), "r"(bar) : "memory");
}}
static __device__ __forceinline__ void BULK_WAIT(const float *barrier, int used)
{{
    const unsigned bar = (unsigned)__cvta_generic_to_shared(barrier);
    unsigned come;
    do
        asm volatile("{ptx.BULK_TEST}" : "=r"(come) : "r"(bar), "r"(used & 1) : "memory");
    while (!come);
}}
"""


# Both operands of half types lie in shared memory, rows of kb elements with their chunks swizzled
# (schemas/channels), those of 8-bit numbers as if two were one: a descriptor says where, how far
# eight rows are apart, and by which pattern.
_HALF = """\
#define WGMMA_HALF_F16(n, kb, d, a, b, step) \\
    tw_wgmma_half_f16_##n(d, tw_rows(a, kb, step), tw_rows(b, kb, step))
#define WGMMA_HALF_BF16(n, kb, d, a, b, step) \\
    tw_wgmma_half_bf16_##n(d, tw_rows(a, kb, step), tw_rows(b, kb, step))

#define WGMMA_INT8_U8_U8(n, kb, d, a, b, step) \\
    tw_wgmma_int8_u8_u8_##n(d, tw_rows(a, kb, step), tw_rows(b, kb, step))
#define WGMMA_INT8_U8_I8(n, kb, d, a, b, step) \\
    tw_wgmma_int8_u8_i8_##n(d, tw_rows(a, kb, step), tw_rows(b, kb, step))
#define WGMMA_INT8_I8_U8(n, kb, d, a, b, step) \\
    tw_wgmma_int8_i8_u8_##n(d, tw_rows(a, kb, step), tw_rows(b, kb, step))
#define WGMMA_INT8_I8_I8(n, kb, d, a, b, step) \\
    tw_wgmma_int8_i8_i8_##n(d, tw_rows(a, kb, step), tw_rows(b, kb, step))

static __device__ __forceinline__ unsigned long long tw_rows(const float *first, int kb, int step)
{
    const unsigned long long at = __cvta_generic_to_shared(first) + 32 * step;
    const unsigned long long pattern = kb == 64 ? 1 : kb == 32 ? 2 : 3;
    return ((at & 0x3ffff) >> 4) | 1ull << 16 | (unsigned long long)kb << 32 | pattern << 62;
}
"""
HALF_ALIGNED = 1024  # bytes: where such a pattern begins anew


def _warp_int8(kind: str) -> str:
    return f"""\
#define MMA_{kind.upper()}(d0, d1, d2, d3, a, b) \\
    asm volatile("{ptx.mma_int8(kind)}" \\
                 : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) \\
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
"""


def _warp_half(kind: str) -> str:
    return f"""\
#define MMA_{kind.upper()}(d0, d1, d2, d3, a, b) \\
    asm volatile("{ptx.MMA_HALF.replace('tf32', kind)}" \\
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) \\
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
"""


def _copy_half(name: str, size: int) -> str:
    return f"""\
static __device__ __forceinline__ void {name}(float *to, const float *from, bool there)
{{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("{ptx.copy(size, near=True)}"
                 :: "r"(at), "l"(from), "r"(there ? {size} : 0) : "memory");
}}
"""


def _tiles4(name: str, text: str, down: str, across: str) -> str:
    return f"""\
static __device__ __forceinline__ void {name}(unsigned *x, const float *place, int pitch)
{{
    const int lane = threadIdx.x % 32;
    const float *const mine = place + ({down}) * pitch + {across} * 4;
    asm volatile("{text}"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned)__cvta_generic_to_shared(mine)) : "memory");
}}
"""


# Tiles of 16 x 16 halves whose rows are `pitch` words apart, as the second operand of two matrix
# instructions: rows are its columns, or, turned, its depths.
_TILES4 = (
    _tiles4('ROWS4', ptx.ROWS4, 'lane % 8 + lane / 16 * 8', 'lane / 8 % 2') +
    _tiles4('COLUMNS4', ptx.COLUMNS4, 'lane % 16', 'lane / 16')
)  # fmt: skip
# Copies that leave what they read in the first cache, for windows that overlap.
_COMMON_HALF = f"""\
#if __CUDA_ARCH__ >= 800
{_copy_half('COPY2', 8)}{_copy_half('COPY4_NEAR', 16)}
{_warp_half('f16')}{_warp_half('bf16')}{''.join(map(_warp_int8, BYTE_KINDS))}{_TILES4}#endif
"""


def _wgmma_swizzled(kind: str, columns: int) -> str:
    """d += a b, both in shared memory: halves add up floats, 8-bit numbers whole ones."""
    family, _, factors = kind.partition('_')
    halves, count = family == 'half', columns // 2
    letter, sums = ('f', 'float') if halves else ('r', 'int')
    outputs = ', '.join(f'"+{letter}"(d[{i}])' for i in range(count))
    lines = ptx.wgmma_half(columns, factors) if halves else ptx.wgmma_int8(columns, factors)
    text = '\\n'.join(lines)
    return f"""\
static __device__ __forceinline__ void
tw_wgmma_{kind}_{columns}({sums} (&d)[{count}], unsigned long long a, unsigned long long b)
{{
    asm volatile("{text}"
                 : {outputs}
                 : "l"(a), "l"(b), "r"(1));
}}
"""


def _wgmma(kind: str, columns: int) -> str:
    """d += a b for 64 pixels and `columns` columns (PTX: wgmma.mma_async.m64nN...)."""
    if kind.startswith(('half_', 'int8_')):
        return _wgmma_swizzled(kind, columns)
    name = 'tw_wgmma' if kind == 'tf32' else f'tw_wgmma_{kind}'
    count = columns // 2
    outputs = ', '.join(f'"+f"(d[{i}])' for i in range(count))
    inputs = ', '.join(f'"r"(a[{i}])' for i in range(4))
    text = '\\n'.join(ptx.wgmma(columns, kind))
    return f"""\
static __device__ __forceinline__ void
{name}_{columns}(float (&d)[{count}], const unsigned (&a)[4], unsigned long long b)
{{
    asm volatile("{text}"
                 : {outputs}
                 : {inputs}, "l"(b), "r"(1));
}}
"""


_LANES = """\
#define LANE_XOR(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
"""

# A value and the number of its step are one word, which is written and read at once. A wait that
# lasts for seconds is an error: the kernel is stopped, where it would hang for ever.
_TOGETHER = f"""\
struct PAIRS {{ unsigned long long word[2]; }};
static __device__ __forceinline__ void SEND(float *p, float value, int tag)
{{
    const unsigned long long step = (unsigned)tag, both = step << 32 | __float_as_uint(value);
    asm volatile("{ptx.SEND}" :: "l"(p), "l"(both) : "memory");
}}
static __device__ __forceinline__ void ASK1(PAIRS &r, const float *p)
{{
    asm volatile("{ptx.ASK}" : "=l"(r.word[0]) : "l"(p) : "memory");
}}
static __device__ __forceinline__ void ASK2(PAIRS &r, const float *p)
{{
    asm volatile("{ptx.ASK_TWO}" : "=l"(r.word[0]), "=l"(r.word[1]) : "l"(p) : "memory");
}}
#define HAS1(r, t) ((int)((r).word[0] >> 32) == (t))
#define HAS2(r, t) (HAS1(r, t) && (int)((r).word[1] >> 32) == (t))
#define RECEIVED(r, i) __uint_as_float((unsigned)(r).word[i])
#define PAUSE(polls) if (++polls > (1 << 24)) __trap()
"""


_CLUSTERS = f"""\
#define CLUSTER_BARRIER asm volatile("{ptx.CLUSTER_ARRIVE} {ptx.CLUSTER_WAIT}" ::: "memory")
static __device__ __forceinline__ unsigned tw_of_block(const float *p, int block)
{{
    unsigned there;
    asm volatile("{ptx.OF_BLOCK}"
                 : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(block));
    return there;
}}
static __device__ __forceinline__ float4 BESIDE4(const float *p, int block)
{{
    float4 v;
    asm volatile("{ptx.BESIDE4}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(tw_of_block(p, block)) : "memory");
    return v;
}}
static __device__ __forceinline__ float BESIDE1(const float *p, int block)
{{
    float v;
    asm volatile("{ptx.BESIDE1}" : "=f"(v) : "r"(tw_of_block(p, block)) : "memory");
    return v;
}}
"""


def _extra(kernels: Sequence[Kernel]) -> str:
    units = matrix_units(kernels, _WARPGROUP, _BF16, _BULK, _wgmma, _HALF, _COMMON_HALF)
    return units + what_lanes_need(kernels, _LANES, _TOGETHER, _CLUSTERS)


def _entry(kernel: Kernel, parameters: str) -> str:
    resident = f', {kernel.resident}' if kernel.resident else ''
    cluster = f'__cluster_dims__(1, 1, {kernel.cluster}) ' if kernel.cluster > 1 else ''
    return (
        f'extern "C" __global__ void {cluster}__launch_bounds__({kernel.threads}{resident})\n'
        f'{kernel.name}({parameters})'
    )


def _pointer(element: str, name: str, written: bool) -> str:
    return f'{element} *{name}' if written else f'const {element} *__restrict__ {name}'


def _shared(kernel: Kernel) -> list[str]:
    """All arrays in one dynamic allocation: a static one is limited to 48 KB."""
    if not kernel.shared:
        return []
    swizzled = any(need.startswith(('wgmma_half', 'wgmma_int8')) for need in kernel.needs)
    aligned = HALF_ALIGNED if swizzled else ALIGNED
    lines, offset = [f'extern __shared__ __align__({aligned}) float tw_shared[];'], 0
    for name, count in kernel.shared:
        lines.append(f'float *const {name} = tw_shared + {offset};')
        offset += padded(count)
    return lines


CUDA = Dialect(
    'cuda', 'cuda', WORDS, HEAD, _entry, _pointer, _shared,
    frozenset({
        'mma_tf32', 'wgmma_tf32', 'wgmma_bf16', 'mma_half', 'wgmma_half_f16', 'wgmma_half_bf16',
        'mma_int8', *(f'wgmma_int8_{kind}' for kind in BYTE_KINDS),
        'bulk_copy', 'cluster', 'device_fence', 'lane_xor', 'resident_grid',
    }), extra=_extra, begins=True,
)  # fmt: skip
