"""Plain C on the CPU: a block's threads are coroutines of one thread (runtime/hosted.c runs them).

So that every kernel can be run, and its barriers, bounds and shared memory checked, on any machine
with a C compiler. It is slow, and meant to be: the definition of what a kernel computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.gpu.dialects.table import BYTE_KINDS, Dialect, what_lanes_need
from tilewright.kernels.gpu.language import ELEMENT, Kernel, Scalar, padded

WORDS = {
    'THREAD': 'tw_thread',
    'BLOCK_X': 'tw_block[0]',
    'BLOCK_Y': 'tw_block[1]',
    'BLOCK_Z': 'tw_block[2]',
    'BARRIER': 'tw_barrier()',
    'GLOBAL': '',
    'SHARED': '',
    'FUNCTION': 'static inline',
    'TABLE': 'static const int',
    'MAXIMUM': 'fmaxf',
    'MINIMUM': 'fminf',
    'DEVICE_FENCE': '(void)0',
}

HEAD = """\
#include <math.h>
#include <stdbool.h>
#include <string.h>

extern int tw_thread, tw_block[3];
extern float *tw_shared_memory;
void tw_barrier(void);
void tw_mma_tf32(float *d, const unsigned *a, const unsigned *b);

typedef struct { float x, y, z, w; } __attribute__((aligned(16))) float4;
#define FLOAT4(a, b, c, d) ((float4){(a), (b), (c), (d)})
typedef struct { float x, y; } __attribute__((aligned(8))) float2;
#define FLOAT2(a, b) ((float2){(a), (b)})
#define LOAD2(space, p) (*(const float2 *)(p))
#define LOAD4(space, p) (*(const float4 *)(p))
#define STORE4(space, p, v) (*(float4 *)(p) = (v))
#define STORE2(space, p, a, b) ((p)[0] = (a), (p)[1] = (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define FMA(a, b, c) ((a) * (b) + (c))
#define EACH_TURN(i, first, total, step) for (int i = first; i < total; i += step)
#define ATOMIC_ADD(p, v) (*(p) += (v))
#define ATOMIC_COUNT(p) ((*(p))++)
void tw_copy(float *to, const float *from, int floats);
void tw_copy_commit(void);
void tw_copy_wait(int others);
void tw_bulk_begin(float *barrier);
void tw_bulk_copy(float *to, const float *from, int floats, float *barrier);
void tw_bulk_wait(const float *barrier, int used);
#define COPY1(to, from, there) tw_copy(to, (there) ? (from) : 0, 1)
#define COPY4(to, from, there) tw_copy(to, (there) ? (from) : 0, 4)
#define COPY2(to, from, there) tw_copy(to, (there) ? (from) : 0, 2)
#define COPY4_NEAR COPY4
#define BULK_BEGIN tw_bulk_begin
#define BULK_COPY tw_bulk_copy
#define BULK_WAIT tw_bulk_wait
#define COPY_COMMIT tw_copy_commit()
#define COPY_WAIT(n) tw_copy_wait(n)
#define MMA_TF32(d0, d1, d2, d3, a, b) \\
    do { \\
        float tw_d[] = {d0, d1, d2, d3}; \\
        tw_mma_tf32(tw_d, a, b); \\
        d0 = tw_d[0], d1 = tw_d[1], d2 = tw_d[2], d3 = tw_d[3]; \\
    } while (0)
void tw_wgmma_tf32(int n, float *d, const unsigned *a, const float *b, int across, int row8);
void tw_wgmma_bf16(int n, float *d, const unsigned *a, const float *b, int across, int row8);
#define MATRIX_BEGIN
#define MATRIX_COMMIT
#define MATRIX_WAIT(n)
#define SHARED_TO_MATRIX
#define WGMMA_TF32(n, d, a, b, across, row8) tw_wgmma_tf32(n, d, a, b, across, row8)
#define WGMMA_BF16(n, d, a, b, across, row8) tw_wgmma_bf16(n, d, a, b, across, row8)
void tw_mma_half(int wide, float *d, const unsigned *a, const unsigned *b);
void tw_wgmma_half(int wide, int n, int kb, float *d, const float *a, const float *b, int step);
#define MMA_HALF(wide, d0, d1, d2, d3, a, b) \\
    do { \\
        float tw_d[] = {d0, d1, d2, d3}; \\
        tw_mma_half(wide, tw_d, a, b); \\
        d0 = tw_d[0], d1 = tw_d[1], d2 = tw_d[2], d3 = tw_d[3]; \\
    } while (0)
#define MMA_F16(d0, d1, d2, d3, a, b) MMA_HALF(0, d0, d1, d2, d3, a, b)
#define MMA_BF16(d0, d1, d2, d3, a, b) MMA_HALF(1, d0, d1, d2, d3, a, b)
void tw_mma_int8(int kinds, int *d, const unsigned *a, const unsigned *b);
void tw_wgmma_int8(int kinds, int n, int kb, int *d, const float *a, const float *b, int step);
#define MMA_INT8(kinds, d0, d1, d2, d3, a, b) \\
    do { \\
        int tw_d[] = {d0, d1, d2, d3}; \\
        tw_mma_int8(kinds, tw_d, a, b); \\
        d0 = tw_d[0], d1 = tw_d[1], d2 = tw_d[2], d3 = tw_d[3]; \\
    } while (0)
#define MMA_U8_U8(d0, d1, d2, d3, a, b) MMA_INT8(0, d0, d1, d2, d3, a, b)
#define MMA_U8_I8(d0, d1, d2, d3, a, b) MMA_INT8(1, d0, d1, d2, d3, a, b)
#define MMA_I8_U8(d0, d1, d2, d3, a, b) MMA_INT8(2, d0, d1, d2, d3, a, b)
#define MMA_I8_I8(d0, d1, d2, d3, a, b) MMA_INT8(3, d0, d1, d2, d3, a, b)
#define WGMMA_INT8_U8_U8(n, kb, d, a, b, step) tw_wgmma_int8(0, n, kb, d, a, b, step)
#define WGMMA_INT8_U8_I8(n, kb, d, a, b, step) tw_wgmma_int8(1, n, kb, d, a, b, step)
#define WGMMA_INT8_I8_U8(n, kb, d, a, b, step) tw_wgmma_int8(2, n, kb, d, a, b, step)
#define WGMMA_INT8_I8_I8(n, kb, d, a, b, step) tw_wgmma_int8(3, n, kb, d, a, b, step)
#define COLUMNS4(x, place, pitch) tw_columns4(x, place, pitch)
#define ROWS4(x, place, pitch) tw_rows4(x, place, pitch)
void tw_columns4(unsigned *x, const float *place, int pitch);
void tw_rows4(unsigned *x, const float *place, int pitch);
#define WGMMA_HALF_F16(n, kb, d, a, b, step) tw_wgmma_half(0, n, kb, d, a, b, step)
#define WGMMA_HALF_BF16(n, kb, d, a, b, step) tw_wgmma_half(1, n, kb, d, a, b, step)
static inline unsigned FLOAT_BITS(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float BITS_FLOAT(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline unsigned BF16(float x)
{
    const unsigned u = FLOAT_BITS(x);
    return x != x ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
static inline unsigned BF16_PAIR(float low, float high) { return BF16(low) | BF16(high) << 16; }
"""


# Lanes that exchange values; values with the number of their step that blocks send to each other.
_LANES = """\
float tw_lane_xor(float value, int mask);
#define LANE_XOR(value, mask) tw_lane_xor(value, mask)
"""
_TOGETHER = """\
typedef struct { float value[2]; int tag[2]; } PAIRS;
void tw_send(float *p, float value, int tag);
void tw_yield(void);
static inline void tw_ask(PAIRS *r, const float *p, int count)
{
    for (int i = 0; i < count; i++)
        r->value[i] = p[2 * i], memcpy(&r->tag[i], p + 2 * i + 1, 4);
}
#define SEND(p, v, t) tw_send(p, v, t)
#define ASK1(r, p) tw_ask(&(r), p, 1)
#define ASK2(r, p) tw_ask(&(r), p, 2)
#define HAS1(r, t) ((r).tag[0] == (t))
#define HAS2(r, t) ((r).tag[0] == (t) && (r).tag[1] == (t))
#define RECEIVED(r, i) ((r).value[i])
#define PAUSE(polls) tw_yield()
"""

_CLUSTERS = """\
void tw_cluster_barrier(void);
const float *tw_of_block(const float *p, int block);
#define CLUSTER_BARRIER tw_cluster_barrier()
#define BESIDE4(p, block) (*(const float4 *)tw_of_block(p, block))
#define BESIDE1(p, block) (*tw_of_block(p, block))
"""


def _extra(kernels: Sequence[Kernel]) -> str:
    return what_lanes_need(kernels, _LANES, _TOGETHER, _CLUSTERS)


def _entry(kernel: Kernel, parameters: str) -> str:
    return f'static void {kernel.name}({parameters})'


def _pointer(element: str, name: str, written: bool) -> str:
    return f'{element} *{name}' if written else f'const {element} *{name}'


def _shared(kernel: Kernel) -> list[str]:
    lines, offset = [], 0
    for name, count in kernel.shared:
        lines.append(f'float *const {name} = tw_shared_memory + {offset};')
        offset += padded(count)
    return lines


def _tail(kernel: Kernel) -> str:
    """`tw_item` calls the kernel for the current thread with arguments behind pointers."""
    texts, place = [], 0
    for argument in kernel.args:
        if isinstance(argument, Scalar):
            texts.append(f'*({ELEMENT[argument.dtype]} *)args[{place}]')
            place += 1
            continue
        texts.append(f'args[{place}]')
        place += 1
        for _ in argument.numbers() if argument.dynamic else ():
            texts.append(f'*(int *)args[{place}]')
            place += 1
    return f'\nvoid tw_item(void **args)\n{{\n    {kernel.name}({", ".join(texts)});\n}}'


HOST = Dialect(
    'host', 'c', WORDS, HEAD, _entry, _pointer, _shared,
    frozenset({
        'mma_tf32', 'wgmma_tf32', 'wgmma_bf16', 'mma_half', 'wgmma_half_f16', 'wgmma_half_bf16',
        'mma_int8', *(f'wgmma_int8_{kind}' for kind in BYTE_KINDS),
        'bulk_copy', 'cluster', 'device_fence', 'lane_xor', 'resident_grid',
    }), extra=_extra, tail=_tail,
)  # fmt: skip
