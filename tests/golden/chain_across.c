/* g6mb1ic6ih7iw9oc6oh7ow9kh3kw3sh1sw1ph1pw1dh0dw0+bias+relu6>>mb1ic6ih7iw9oc8oh7ow9kh1kw1sh1sw1ph0pw0dh0dw0+bias+relu: chain schema, avx2
   l1: n=1 k=8 h=2 w=16 c=6 r=1 s=1
   reg: n=1 k=4 h=1 w=16 c=1 r=1 s=1
   options: rows=2 lanes=8
   parallel: h/2; packs: l1 */
#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const float *const *in; /* 'input' tensors, in group order */
    const float *packed;    /* constants, packed by tw_pack */
    float *out;
    char *scratch;          /* tw_parts() * tw_scratch_bytes() */
} tw_args;

long tw_parts(void);
long tw_scratch_bytes(void);
long tw_packed_bytes(void);
void tw_pack(const float *const *constants, float *packed);
void tw_part(const tw_args *args, long part);

static inline long min_long(long a, long b) { return a < b ? a : b; }
static inline long max_long(long a, long b) { return a > b ? a : b; }

typedef float row_v __attribute__((vector_size(32), aligned(4), may_alias));

/* to[x] = from[first + x * step] for x < count, zero where that index is not below `size`. */
static inline void copy_row(const float *restrict from, float *restrict to, long first, long size,
                            long count, long step)
{
    long low = first < 0 ? (step - 1 - first) / step : 0;
    long high = size > first ? (size - first + step - 1) / step : 0;
    low = min_long(low, count);
    high = max_long(low, min_long(high, count));
    for (long x = 0; x < low; x++)
        to[x] = 0.0f;
    if (step == 1)
        memcpy(to + low, from + first + low, 4 * (unsigned long)(high - low));
    else
        for (long x = low; x < high; x++)
            to[x] = from[first + x * step];
    for (long x = high; x < count; x++)
        to[x] = 0.0f;
}

static inline void spread_plane(const float *restrict plane, float *restrict to, long count) {
    long x = 0;
    for (; x + 16 <= count; x += 16, to += 112) {
        *(row_v *)(to + 0) = *(const row_v *)(plane + x + 0);
        *(row_v *)(to + 8) = *(const row_v *)(plane + x + 8);
    }
    if (x < count)
        copy_row(plane, to, x, count, 16, 1);
}

typedef float first_row_v __attribute__((vector_size(32), aligned(4), may_alias));
static const first_row_v first_zero_v;
static const float zero_row[9];
/* Loads stay on their side of it: compilers that gather them in front run out of registers. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

typedef int first_mask_v __attribute__((vector_size(32), aligned(4), may_alias));

static inline first_row_v first_vec_max_number(first_row_v a, first_row_v number) {
#if defined(__AVX__)
    first_row_v result;
    __asm__("vmaxps %2, %1, %0" : "=x"(result) : "x"(number), "x"(a));
    return result;
#else
    const first_mask_v mask = a < number;
    return (first_row_v)((mask & (first_mask_v)number) | (~mask & (first_mask_v)a));
#endif
}

static inline first_row_v first_vec_min_number(first_row_v a, first_row_v number) {
#if defined(__AVX__)
    first_row_v result;
    __asm__("vminps %2, %1, %0" : "=x"(result) : "x"(number), "x"(a));
    return result;
#else
    const first_mask_v mask = number < a;
    return (first_row_v)((mask & (first_mask_v)number) | (~mask & (first_mask_v)a));
#endif
}

static inline __attribute__((always_inline)) void slide_1(const float *a, const float *weights, first_row_v e0_v, float *restrict to, long h, long row) {
    const float *r0 = (unsigned long)(h + -1) < 7ul ? a + (h + -1) * 9 : zero_row;
    const float *r1 = (unsigned long)(h) < 7ul ? a + (h) * 9 : zero_row;
    const float *r2 = (unsigned long)(h + 1) < 7ul ? a + (h + 1) * 9 : zero_row;
    float *const t0 = to + row * 9;
    const first_row_v w0 = weights[0] - first_zero_v;
    const first_row_v w1 = weights[1] - first_zero_v;
    const first_row_v w2 = weights[2] - first_zero_v;
    const first_row_v w3 = weights[3] - first_zero_v;
    const first_row_v w4 = weights[4] - first_zero_v;
    const first_row_v w5 = weights[5] - first_zero_v;
    const first_row_v w6 = weights[6] - first_zero_v;
    const first_row_v w7 = weights[7] - first_zero_v;
    const first_row_v w8 = weights[8] - first_zero_v;
    {
        __builtin_prefetch(r0 + 63);
        __builtin_prefetch(r1 + 63);
        __builtin_prefetch(r2 + 63);
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r0), 7, 8, 9, 10, 11, 12, 13, 14);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_0_1 = *(const first_row_v *)(r0);
        first_row_v s0_1 = x0_0_1 * w0;
        const first_row_v x0_1_0 = *(const first_row_v *)(r0);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_1_1 = *(const first_row_v *)(r0 + 1);
        s0_1 += x0_1_1 * w1;
        const first_row_v x0_2_0 = *(const first_row_v *)(r0 + 1);
        s0_0 += x0_2_0 * w2;
        const first_row_v x0_2_1 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s0_1 += x0_2_1 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r1), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x1_0_0 * w3;
        const first_row_v x1_0_1 = *(const first_row_v *)(r1);
        s0_1 += x1_0_1 * w3;
        const first_row_v x1_1_0 = *(const first_row_v *)(r1);
        s0_0 += x1_1_0 * w4;
        const first_row_v x1_1_1 = *(const first_row_v *)(r1 + 1);
        s0_1 += x1_1_1 * w4;
        const first_row_v x1_2_0 = *(const first_row_v *)(r1 + 1);
        s0_0 += x1_2_0 * w5;
        const first_row_v x1_2_1 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s0_1 += x1_2_1 * w5;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r2), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x2_0_0 * w6;
        const first_row_v x2_0_1 = *(const first_row_v *)(r2);
        s0_1 += x2_0_1 * w6;
        const first_row_v x2_1_0 = *(const first_row_v *)(r2);
        s0_0 += x2_1_0 * w7;
        const first_row_v x2_1_1 = *(const first_row_v *)(r2 + 1);
        s0_1 += x2_1_1 * w7;
        const first_row_v x2_2_0 = *(const first_row_v *)(r2 + 1);
        s0_0 += x2_2_0 * w8;
        const first_row_v x2_2_1 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s0_1 += x2_2_1 * w8;
        {
            const first_row_v value = s0_0;
            *(first_row_v *)(t0) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
        {
            const first_row_v value = s0_1;
            *(first_row_v *)(t0 + 1) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
    }
}

static inline __attribute__((always_inline)) void slide_2(const float *a, const float *weights, first_row_v e0_v, float *restrict to, long h, long row) {
    const float *r0 = (unsigned long)(h + -1) < 7ul ? a + (h + -1) * 9 : zero_row;
    const float *r1 = (unsigned long)(h) < 7ul ? a + (h) * 9 : zero_row;
    const float *r2 = (unsigned long)(h + 1) < 7ul ? a + (h + 1) * 9 : zero_row;
    const float *r3 = (unsigned long)(h + 2) < 7ul ? a + (h + 2) * 9 : zero_row;
    float *const t0 = to + row * 9;
    float *const t1 = to + (row + 1) * 9;
    const first_row_v w0 = weights[0] - first_zero_v;
    const first_row_v w1 = weights[1] - first_zero_v;
    const first_row_v w2 = weights[2] - first_zero_v;
    const first_row_v w3 = weights[3] - first_zero_v;
    const first_row_v w4 = weights[4] - first_zero_v;
    const first_row_v w5 = weights[5] - first_zero_v;
    const first_row_v w6 = weights[6] - first_zero_v;
    const first_row_v w7 = weights[7] - first_zero_v;
    const first_row_v w8 = weights[8] - first_zero_v;
    {
        __builtin_prefetch(r0 + 63);
        __builtin_prefetch(r1 + 63);
        __builtin_prefetch(r2 + 63);
        __builtin_prefetch(r3 + 63);
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r0), 7, 8, 9, 10, 11, 12, 13, 14);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_0_1 = *(const first_row_v *)(r0);
        first_row_v s0_1 = x0_0_1 * w0;
        const first_row_v x0_1_0 = *(const first_row_v *)(r0);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_1_1 = *(const first_row_v *)(r0 + 1);
        s0_1 += x0_1_1 * w1;
        const first_row_v x0_2_0 = *(const first_row_v *)(r0 + 1);
        s0_0 += x0_2_0 * w2;
        const first_row_v x0_2_1 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s0_1 += x0_2_1 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r1), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x1_0_0 * w3;
        first_row_v s1_0 = x1_0_0 * w0;
        const first_row_v x1_0_1 = *(const first_row_v *)(r1);
        s0_1 += x1_0_1 * w3;
        first_row_v s1_1 = x1_0_1 * w0;
        const first_row_v x1_1_0 = *(const first_row_v *)(r1);
        s0_0 += x1_1_0 * w4;
        s1_0 += x1_1_0 * w1;
        const first_row_v x1_1_1 = *(const first_row_v *)(r1 + 1);
        s0_1 += x1_1_1 * w4;
        s1_1 += x1_1_1 * w1;
        const first_row_v x1_2_0 = *(const first_row_v *)(r1 + 1);
        s0_0 += x1_2_0 * w5;
        s1_0 += x1_2_0 * w2;
        const first_row_v x1_2_1 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s0_1 += x1_2_1 * w5;
        s1_1 += x1_2_1 * w2;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r2), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x2_0_0 * w6;
        s1_0 += x2_0_0 * w3;
        const first_row_v x2_0_1 = *(const first_row_v *)(r2);
        s0_1 += x2_0_1 * w6;
        s1_1 += x2_0_1 * w3;
        const first_row_v x2_1_0 = *(const first_row_v *)(r2);
        s0_0 += x2_1_0 * w7;
        s1_0 += x2_1_0 * w4;
        const first_row_v x2_1_1 = *(const first_row_v *)(r2 + 1);
        s0_1 += x2_1_1 * w7;
        s1_1 += x2_1_1 * w4;
        const first_row_v x2_2_0 = *(const first_row_v *)(r2 + 1);
        s0_0 += x2_2_0 * w8;
        s1_0 += x2_2_0 * w5;
        const first_row_v x2_2_1 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s0_1 += x2_2_1 * w8;
        s1_1 += x2_2_1 * w5;
        IN_ORDER;
        const first_row_v x3_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r3), 7, 8, 9, 10, 11, 12, 13, 14);
        s1_0 += x3_0_0 * w6;
        const first_row_v x3_0_1 = *(const first_row_v *)(r3);
        s1_1 += x3_0_1 * w6;
        const first_row_v x3_1_0 = *(const first_row_v *)(r3);
        s1_0 += x3_1_0 * w7;
        const first_row_v x3_1_1 = *(const first_row_v *)(r3 + 1);
        s1_1 += x3_1_1 * w7;
        const first_row_v x3_2_0 = *(const first_row_v *)(r3 + 1);
        s1_0 += x3_2_0 * w8;
        const first_row_v x3_2_1 = __builtin_shufflevector(*(const first_row_v *)(r3 + 1), first_zero_v, 1, 2, 3, 4, 5, 6, 7, 8);
        s1_1 += x3_2_1 * w8;
        {
            const first_row_v value = s0_0;
            *(first_row_v *)(t0) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
        {
            const first_row_v value = s0_1;
            *(first_row_v *)(t0 + 1) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
        {
            const first_row_v value = s1_0;
            *(first_row_v *)(t1) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
        {
            const first_row_v value = s1_1;
            *(first_row_v *)(t1 + 1) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
    }
}

/* A tile of the first part, in the strips that the second part reads. */
static __attribute__((noinline)) void fill_tile(const float *in, const float *ker, const float *e0, float *restrict buffer, float *restrict strips, const long *from, const long *extent) {
    for (long i0 = 0; i0 < extent[0]; i0++) {
        for (long i1 = 0; i1 < extent[1]; i1++) {
            const float *a = in + (from[0] + i0) * 378 + (from[1] + i1) * 63;
            const float *weights = ker + (from[1] + i1) * 9;
            float *to = buffer + 0;
            const first_row_v e0_v = *(e0 + (from[1] + i1)) - first_zero_v;
            const long height = extent[2];
            long row = 0;
            for (; row + 2 <= height; row += 2)
                slide_2(a, weights, e0_v, to, from[2] + row, row);
            if (row + 1 == height)
                slide_1(a, weights, e0_v, to, from[2] + row, row);
            spread_plane(buffer, strips + i1 * 16, height * 9);
        }
    }
}

static __attribute__((noinline)) void rows_avx2_k4_p1x2(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vbroadcastss 0(%[bias]), %%ymm0\n\t"
        "vmovaps %%ymm0, %%ymm1\n\t"
        "vbroadcastss 4(%[bias]), %%ymm2\n\t"
        "vmovaps %%ymm2, %%ymm3\n\t"
        "vbroadcastss 8(%[bias]), %%ymm4\n\t"
        "vmovaps %%ymm4, %%ymm5\n\t"
        "vbroadcastss 12(%[bias]), %%ymm6\n\t"
        "vmovaps %%ymm6, %%ymm7\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[b]), %%ymm8\n\t"
        "vmovups 32(%[b]), %%ymm9\n\t"
        "vbroadcastss 0(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm8, %%ymm0\n\t"
        "vfmadd231ps %%ymm10, %%ymm9, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm8, %%ymm2\n\t"
        "vfmadd231ps %%ymm11, %%ymm9, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm8, %%ymm4\n\t"
        "vfmadd231ps %%ymm12, %%ymm9, %%ymm5\n\t"
        "vbroadcastss 12(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm8, %%ymm6\n\t"
        "vfmadd231ps %%ymm13, %%ymm9, %%ymm7\n\t"
        "vmovups 64(%[b]), %%ymm8\n\t"
        "vmovups 96(%[b]), %%ymm9\n\t"
        "vbroadcastss 16(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm8, %%ymm0\n\t"
        "vfmadd231ps %%ymm14, %%ymm9, %%ymm1\n\t"
        "vbroadcastss 20(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm8, %%ymm2\n\t"
        "vfmadd231ps %%ymm15, %%ymm9, %%ymm3\n\t"
        "vbroadcastss 24(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm8, %%ymm4\n\t"
        "vfmadd231ps %%ymm10, %%ymm9, %%ymm5\n\t"
        "vbroadcastss 28(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm8, %%ymm6\n\t"
        "vfmadd231ps %%ymm11, %%ymm9, %%ymm7\n\t"
        "vmovups 128(%[b]), %%ymm8\n\t"
        "vmovups 160(%[b]), %%ymm9\n\t"
        "vbroadcastss 32(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm8, %%ymm0\n\t"
        "vfmadd231ps %%ymm12, %%ymm9, %%ymm1\n\t"
        "vbroadcastss 36(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm8, %%ymm2\n\t"
        "vfmadd231ps %%ymm13, %%ymm9, %%ymm3\n\t"
        "vbroadcastss 40(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm8, %%ymm4\n\t"
        "vfmadd231ps %%ymm14, %%ymm9, %%ymm5\n\t"
        "vbroadcastss 44(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm8, %%ymm6\n\t"
        "vfmadd231ps %%ymm15, %%ymm9, %%ymm7\n\t"
        "vmovups 192(%[b]), %%ymm8\n\t"
        "vmovups 224(%[b]), %%ymm9\n\t"
        "vbroadcastss 48(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm8, %%ymm0\n\t"
        "vfmadd231ps %%ymm10, %%ymm9, %%ymm1\n\t"
        "vbroadcastss 52(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm8, %%ymm2\n\t"
        "vfmadd231ps %%ymm11, %%ymm9, %%ymm3\n\t"
        "vbroadcastss 56(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm8, %%ymm4\n\t"
        "vfmadd231ps %%ymm12, %%ymm9, %%ymm5\n\t"
        "vbroadcastss 60(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm8, %%ymm6\n\t"
        "vfmadd231ps %%ymm13, %%ymm9, %%ymm7\n\t"
        "add $64, %[a]\n\t"
        "add $256, %[b]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[b]), %%ymm8\n\t"
        "vmovups 32(%[b]), %%ymm9\n\t"
        "vbroadcastss 0(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm8, %%ymm0\n\t"
        "vfmadd231ps %%ymm14, %%ymm9, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm8, %%ymm2\n\t"
        "vfmadd231ps %%ymm15, %%ymm9, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm8, %%ymm4\n\t"
        "vfmadd231ps %%ymm10, %%ymm9, %%ymm5\n\t"
        "vbroadcastss 12(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm8, %%ymm6\n\t"
        "vfmadd231ps %%ymm11, %%ymm9, %%ymm7\n\t"
        "add $16, %[a]\n\t"
        "add $64, %[b]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm15\n\t"
        "vbroadcastss %%xmm15, %%ymm15\n\t"
        "vmaxps %%ymm0, %%ymm15, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm15, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm15, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm15, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm15, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm15, %%ymm5\n\t"
        "vmaxps %%ymm6, %%ymm15, %%ymm6\n\t"
        "vmaxps %%ymm7, %%ymm15, %%ymm7\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 32(%[out])\n\t"
        "vmovups %%ymm2, 252(%[out])\n\t"
        "vmovups %%ymm3, 284(%[out])\n\t"
        "vmovups %%ymm4, 504(%[out])\n\t"
        "vmovups %%ymm5, 536(%[out])\n\t"
        "vmovups %%ymm6, 756(%[out])\n\t"
        "vmovups %%ymm7, 788(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm14\n\t"
        "vbroadcastss %%xmm14, %%ymm14\n\t"
        "vmaxps %%ymm0, %%ymm14, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm14, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm14, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm14, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm14, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm14, %%ymm5\n\t"
        "vmaxps %%ymm6, %%ymm14, %%ymm6\n\t"
        "vmaxps %%ymm7, %%ymm14, %%ymm7\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmaskmovps %%ymm1, %%ymm15, 32(%[out])\n\t"
        "vmovups %%ymm2, 252(%[out])\n\t"
        "vmaskmovps %%ymm3, %%ymm15, 284(%[out])\n\t"
        "vmovups %%ymm4, 504(%[out])\n\t"
        "vmaskmovps %%ymm5, %%ymm15, 536(%[out])\n\t"
        "vmovups %%ymm6, 756(%[out])\n\t"
        "vmaskmovps %%ymm7, %%ymm15, 788(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [out] "r"(out), [bias] "r"(bias), [mask] "r"(mask), [lanes] "r"(lanes)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)more;
    (void)next;
}

static __attribute__((noinline)) void rows_avx2_k4_p1x1(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vbroadcastss 0(%[bias]), %%ymm0\n\t"
        "vbroadcastss 4(%[bias]), %%ymm1\n\t"
        "vbroadcastss 8(%[bias]), %%ymm2\n\t"
        "vbroadcastss 12(%[bias]), %%ymm3\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[b]), %%ymm4\n\t"
        "vbroadcastss 0(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm4, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm4, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm7\n\t"
        "vfmadd231ps %%ymm7, %%ymm4, %%ymm2\n\t"
        "vbroadcastss 12(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm4, %%ymm3\n\t"
        "vmovups 64(%[b]), %%ymm4\n\t"
        "vbroadcastss 16(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm4, %%ymm0\n\t"
        "vbroadcastss 20(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm4, %%ymm1\n\t"
        "vbroadcastss 24(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm4, %%ymm2\n\t"
        "vbroadcastss 28(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm4, %%ymm3\n\t"
        "vmovups 128(%[b]), %%ymm4\n\t"
        "vbroadcastss 32(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm4, %%ymm0\n\t"
        "vbroadcastss 36(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm4, %%ymm1\n\t"
        "vbroadcastss 40(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm4, %%ymm2\n\t"
        "vbroadcastss 44(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm4, %%ymm3\n\t"
        "vmovups 192(%[b]), %%ymm4\n\t"
        "vbroadcastss 48(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm4, %%ymm0\n\t"
        "vbroadcastss 52(%[a]), %%ymm7\n\t"
        "vfmadd231ps %%ymm7, %%ymm4, %%ymm1\n\t"
        "vbroadcastss 56(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm4, %%ymm2\n\t"
        "vbroadcastss 60(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm4, %%ymm3\n\t"
        "add $64, %[a]\n\t"
        "add $256, %[b]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[b]), %%ymm4\n\t"
        "vbroadcastss 0(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm4, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm4, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm4, %%ymm2\n\t"
        "vbroadcastss 12(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm4, %%ymm3\n\t"
        "add $16, %[a]\n\t"
        "add $64, %[b]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm15\n\t"
        "vbroadcastss %%xmm15, %%ymm15\n\t"
        "vmaxps %%ymm0, %%ymm15, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm15, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm15, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm15, %%ymm3\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 252(%[out])\n\t"
        "vmovups %%ymm2, 504(%[out])\n\t"
        "vmovups %%ymm3, 756(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm14\n\t"
        "vbroadcastss %%xmm14, %%ymm14\n\t"
        "vmaxps %%ymm0, %%ymm14, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm14, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm14, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm14, %%ymm3\n\t"
        "vmaskmovps %%ymm0, %%ymm15, 0(%[out])\n\t"
        "vmaskmovps %%ymm1, %%ymm15, 252(%[out])\n\t"
        "vmaskmovps %%ymm2, %%ymm15, 504(%[out])\n\t"
        "vmaskmovps %%ymm3, %%ymm15, 756(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [out] "r"(out), [bias] "r"(bias), [mask] "r"(mask), [lanes] "r"(lanes)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)more;
    (void)next;
}

void tw_pack(const float *const *constants, float *packed) {
    const float *from = constants[2];
    float *to = packed;
    static const long starts[] = {0, 4, 8};
    for (long tile = 0; tile < 2; tile++) {
        for (long c = 0; c < 6; c++) {
            for (long k = starts[tile]; k < starts[tile + 1]; k++)
                *to++ = from[k * 6 + c];
        }
    }
    memcpy(packed + 48, constants[0], 54 * sizeof(float));
    memcpy(packed + 112, constants[1], 6 * sizeof(float));
    memcpy(packed + 128, constants[3], 8 * sizeof(float));
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 1088; }
long tw_packed_bytes(void) { return 576; }

static inline void fetch_result(const float *out, long channels, long rows) {
    for (long k = 0; k < channels; k++) {
        for (long row = 0; row < rows; row++) {
            const float *at = out + k * 63;
            __builtin_prefetch(at + 0, 1);
        }
    }
}

void tw_part(const tw_args *args, long part) {
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *plane = buffer + 240;
    const float *e0 = args->packed + 128;
    const long n_low = 1 * 0 / 1, n_high = 1 * (0 + 1) / 1;
    const long tile_low = 2 * 0 / 1, tile_high = 2 * (0 + 1) / 1;
    const long x_low = 7 * (part % 2) / 2 * 9, x_high = min_long(7 * ((part % 2) + 1) / 2 * 9, 63);
    for (long n = n_low; n < n_high; n++) {
        for (long block = x_low; block < x_high; block += 18) {
            const long end = min_long(block + 18, x_high);
            const long from[] = {n, 0, block / 9, 0};
            const long extent[] = {1, 6, (end - block) / 9, 9};
            fill_tile(args->in[0], args->packed + 48, args->packed + 112, plane, buffer, from, extent);
            for (long tile = tile_low; tile < tile_high; tile++) {
                const long k = tile * 4;
                const long channels = 4;
                const float *weights = args->packed + k * 6;
                const float *pixels = buffer;
                for (long x = block; x < end; x += 16, pixels += 112) {
                    const long vectors = min_long(2, (end - x + 7) / 8);
                    const long lanes = min_long(8, end - x - (vectors - 1) * 8);
                    float *out = args->out + n * 504 + k * 63 + x;
                    fetch_result(out, channels, 1);
                    if (vectors == 2)
                        rows_avx2_k4_p1x2(weights, pixels, out, 6, lanes, e0 + k, NULL, NULL);
                    else
                        rows_avx2_k4_p1x1(weights, pixels, out, 6, lanes, e0 + k, NULL, NULL);
                }
            }
        }
    }
}
