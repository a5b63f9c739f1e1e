/* mb1ic3ih6iw8oc5oh6ow8kh1kw1sh1sw1ph0pw0dh0dw0+bias+relu>>g5mb1ic5ih6iw8oc5oh6ow8kh3kw3sh1sw1ph1pw1dh0dw0>>mb1ic5ih6iw8oc8oh6ow8kh1kw1sh1sw1ph0pw0dh0dw0: chain schema, avx2
   l1: n=1 k=8 h=2 w=8 c=5 r=1 s=1
   reg: n=1 k=8 h=1 w=4 c=1 r=1 s=1
   options: rows=2 lanes=4
   parallel: one thread; packs: l1 */
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

typedef float first_row_v __attribute__((vector_size(16), aligned(4), may_alias));
static const first_row_v first_zero_v;
static const float zero_row[8];
/* Loads stay on their side of it: compilers that gather them in front run out of registers. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

static inline __attribute__((always_inline)) void slide_2(const float *a, const float *weights, float *restrict to, long h, long row) {
    const float *r0 = (unsigned long)(h + -1) < 6ul ? a + (h + -1) * 8 : zero_row;
    const float *r1 = (unsigned long)(h) < 6ul ? a + (h) * 8 : zero_row;
    const float *r2 = (unsigned long)(h + 1) < 6ul ? a + (h + 1) * 8 : zero_row;
    const float *r3 = (unsigned long)(h + 2) < 6ul ? a + (h + 2) * 8 : zero_row;
    float *const t0 = to + row / 1 * 40;
    float *const t1 = to + (row + 1) / 1 * 40;
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
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r0), 3, 4, 5, 6);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_1_0 = *(const first_row_v *)(r0);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_2_0 = *(const first_row_v *)(r0 + 1);
        s0_0 += x0_2_0 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r1), 3, 4, 5, 6);
        s0_0 += x1_0_0 * w3;
        first_row_v s1_0 = x1_0_0 * w0;
        const first_row_v x1_1_0 = *(const first_row_v *)(r1);
        s0_0 += x1_1_0 * w4;
        s1_0 += x1_1_0 * w1;
        const first_row_v x1_2_0 = *(const first_row_v *)(r1 + 1);
        s0_0 += x1_2_0 * w5;
        s1_0 += x1_2_0 * w2;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r2), 3, 4, 5, 6);
        s0_0 += x2_0_0 * w6;
        s1_0 += x2_0_0 * w3;
        const first_row_v x2_1_0 = *(const first_row_v *)(r2);
        s0_0 += x2_1_0 * w7;
        s1_0 += x2_1_0 * w4;
        const first_row_v x2_2_0 = *(const first_row_v *)(r2 + 1);
        s0_0 += x2_2_0 * w8;
        s1_0 += x2_2_0 * w5;
        IN_ORDER;
        const first_row_v x3_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r3), 3, 4, 5, 6);
        s1_0 += x3_0_0 * w6;
        const first_row_v x3_1_0 = *(const first_row_v *)(r3);
        s1_0 += x3_1_0 * w7;
        const first_row_v x3_2_0 = *(const first_row_v *)(r3 + 1);
        s1_0 += x3_2_0 * w8;
        *(first_row_v *)(t0) = s0_0;
        *(first_row_v *)(t1) = s1_0;
    }
    {
        IN_ORDER;
        const first_row_v x0_0_0 = *(const first_row_v *)(r0 + 3);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_1_0 = *(const first_row_v *)(r0 + 4);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_2_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 4), first_zero_v, 1, 2, 3, 4);
        s0_0 += x0_2_0 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = *(const first_row_v *)(r1 + 3);
        s0_0 += x1_0_0 * w3;
        first_row_v s1_0 = x1_0_0 * w0;
        const first_row_v x1_1_0 = *(const first_row_v *)(r1 + 4);
        s0_0 += x1_1_0 * w4;
        s1_0 += x1_1_0 * w1;
        const first_row_v x1_2_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 4), first_zero_v, 1, 2, 3, 4);
        s0_0 += x1_2_0 * w5;
        s1_0 += x1_2_0 * w2;
        IN_ORDER;
        const first_row_v x2_0_0 = *(const first_row_v *)(r2 + 3);
        s0_0 += x2_0_0 * w6;
        s1_0 += x2_0_0 * w3;
        const first_row_v x2_1_0 = *(const first_row_v *)(r2 + 4);
        s0_0 += x2_1_0 * w7;
        s1_0 += x2_1_0 * w4;
        const first_row_v x2_2_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 4), first_zero_v, 1, 2, 3, 4);
        s0_0 += x2_2_0 * w8;
        s1_0 += x2_2_0 * w5;
        IN_ORDER;
        const first_row_v x3_0_0 = *(const first_row_v *)(r3 + 3);
        s1_0 += x3_0_0 * w6;
        const first_row_v x3_1_0 = *(const first_row_v *)(r3 + 4);
        s1_0 += x3_1_0 * w7;
        const first_row_v x3_2_0 = __builtin_shufflevector(*(const first_row_v *)(r3 + 4), first_zero_v, 1, 2, 3, 4);
        s1_0 += x3_2_0 * w8;
        *(first_row_v *)(t0 + 20) = s0_0;
        *(first_row_v *)(t1 + 20) = s1_0;
    }
}

/* A tile of the first part, in the strips that the second part reads. */
static __attribute__((noinline)) void fill_tile(const float *in, const float *ker, float *restrict buffer, const long *from, const long *extent) {
    for (long i0 = 0; i0 < extent[0]; i0++) {
        for (long i1 = 0; i1 < extent[1]; i1++) {
            const float *a = in + (from[1] + i1) * 32;
            const float *weights = ker + (from[1] + i1) * 9;
            float *to = buffer + i0 / 1 * 80 + i1 * 4;
            const long height = extent[2];
            long row = 0;
            for (; row + 2 <= height; row += 2)
                slide_2(a, weights, to, from[2] + row, row);
        }
    }
}

typedef float expand_row_v __attribute__((vector_size(32), aligned(4), may_alias));
static const expand_row_v expand_zero_v;
typedef int expand_mask_v __attribute__((vector_size(32), aligned(4), may_alias));

static inline expand_row_v expand_vec_max_number(expand_row_v a, expand_row_v number) {
#if defined(__AVX__)
    expand_row_v result;
    __asm__("vmaxps %2, %1, %0" : "=x"(result) : "x"(number), "x"(a));
    return result;
#else
    const expand_mask_v mask = a < number;
    return (expand_row_v)((mask & (expand_mask_v)number) | (~mask & (expand_mask_v)a));
#endif
}

static inline __attribute__((always_inline)) void expand_4(const float *image, const float *weights, const float *e0, float *out) {
    expand_row_v s0_0, s0_1, s0_2, s1_0, s1_1, s1_2, s2_0, s2_1, s2_2, s3_0, s3_1, s3_2;
    {
        const float *row = image + 0 * 48;
        __builtin_prefetch(row + 47);
        const expand_row_v x0 = *(const expand_row_v *)(row + 0);
        const expand_row_v x1 = *(const expand_row_v *)(row + 8);
        const expand_row_v x2 = *(const expand_row_v *)(row + 16);
        const expand_row_v w0 = weights[0 * 4] - expand_zero_v;
        s0_0 = x0 * w0;
        s0_1 = x1 * w0;
        s0_2 = x2 * w0;
        IN_ORDER;
        const expand_row_v w1 = weights[0 * 4 + 1] - expand_zero_v;
        s1_0 = x0 * w1;
        s1_1 = x1 * w1;
        s1_2 = x2 * w1;
        IN_ORDER;
        const expand_row_v w2 = weights[0 * 4 + 2] - expand_zero_v;
        s2_0 = x0 * w2;
        s2_1 = x1 * w2;
        s2_2 = x2 * w2;
        IN_ORDER;
        const expand_row_v w3 = weights[0 * 4 + 3] - expand_zero_v;
        s3_0 = x0 * w3;
        s3_1 = x1 * w3;
        s3_2 = x2 * w3;
        IN_ORDER;
    }
    for (long c = 1; c < 3; c++) {
        const float *row = image + c * 48;
        __builtin_prefetch(row + 47);
        const expand_row_v x0 = *(const expand_row_v *)(row + 0);
        const expand_row_v x1 = *(const expand_row_v *)(row + 8);
        const expand_row_v x2 = *(const expand_row_v *)(row + 16);
        const expand_row_v w0 = weights[c * 4] - expand_zero_v;
        s0_0 += x0 * w0;
        s0_1 += x1 * w0;
        s0_2 += x2 * w0;
        IN_ORDER;
        const expand_row_v w1 = weights[c * 4 + 1] - expand_zero_v;
        s1_0 += x0 * w1;
        s1_1 += x1 * w1;
        s1_2 += x2 * w1;
        IN_ORDER;
        const expand_row_v w2 = weights[c * 4 + 2] - expand_zero_v;
        s2_0 += x0 * w2;
        s2_1 += x1 * w2;
        s2_2 += x2 * w2;
        IN_ORDER;
        const expand_row_v w3 = weights[c * 4 + 3] - expand_zero_v;
        s3_0 += x0 * w3;
        s3_1 += x1 * w3;
        s3_2 += x2 * w3;
        IN_ORDER;
    }
    {
        const expand_row_v e0_v = *(e0) - expand_zero_v;
        {
            const expand_row_v value = s0_0;
            *(expand_row_v *)(out) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s0_1;
            *(expand_row_v *)(out + 8) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s0_2;
            *(expand_row_v *)(out + 16) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
    }
    {
        const expand_row_v e0_v = *(e0 + 1) - expand_zero_v;
        {
            const expand_row_v value = s1_0;
            *(expand_row_v *)(out + 32) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s1_1;
            *(expand_row_v *)(out + 40) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s1_2;
            *(expand_row_v *)(out + 48) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
    }
    {
        const expand_row_v e0_v = *(e0 + 2) - expand_zero_v;
        {
            const expand_row_v value = s2_0;
            *(expand_row_v *)(out + 64) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s2_1;
            *(expand_row_v *)(out + 72) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s2_2;
            *(expand_row_v *)(out + 80) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
    }
    {
        const expand_row_v e0_v = *(e0 + 3) - expand_zero_v;
        {
            const expand_row_v value = s3_0;
            *(expand_row_v *)(out + 96) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s3_1;
            *(expand_row_v *)(out + 104) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s3_2;
            *(expand_row_v *)(out + 112) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
    }
}

static inline __attribute__((always_inline)) void expand_1(const float *image, const float *weights, const float *e0, float *out) {
    expand_row_v s0_0, s0_1, s0_2;
    {
        const float *row = image + 0 * 48;
        __builtin_prefetch(row + 47);
        const expand_row_v x0 = *(const expand_row_v *)(row + 0);
        const expand_row_v x1 = *(const expand_row_v *)(row + 8);
        const expand_row_v x2 = *(const expand_row_v *)(row + 16);
        const expand_row_v w0 = weights[0] - expand_zero_v;
        s0_0 = x0 * w0;
        s0_1 = x1 * w0;
        s0_2 = x2 * w0;
        IN_ORDER;
    }
    for (long c = 1; c < 3; c++) {
        const float *row = image + c * 48;
        __builtin_prefetch(row + 47);
        const expand_row_v x0 = *(const expand_row_v *)(row + 0);
        const expand_row_v x1 = *(const expand_row_v *)(row + 8);
        const expand_row_v x2 = *(const expand_row_v *)(row + 16);
        const expand_row_v w0 = weights[c] - expand_zero_v;
        s0_0 += x0 * w0;
        s0_1 += x1 * w0;
        s0_2 += x2 * w0;
        IN_ORDER;
    }
    {
        const expand_row_v e0_v = *(e0) - expand_zero_v;
        {
            const expand_row_v value = s0_0;
            *(expand_row_v *)(out) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s0_1;
            *(expand_row_v *)(out + 8) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
        {
            const expand_row_v value = s0_2;
            *(expand_row_v *)(out + 16) = expand_vec_max_number((value + e0_v), (0.0f - expand_zero_v));
        }
    }
}

static __attribute__((noinline)) void expand(const float *image, const float *weights, const float *e0, float *out, long first, long end) {
    for (long block = 0; block < 2; block++) {
        const long x = min_long(block * 24, 8);
        long k = first;
        for (; k + 4 <= end; k += 4)
            expand_4(image + x, weights + k * 3, e0 + k, out + (k - first) * 32 + x);
        if (k < end)
            expand_1(image + x, weights + k * 3, e0 + k, out + (k - first) * 32 + x);
    }
}

static __attribute__((noinline)) void mk_avx2_p1x1x4_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    __asm__ volatile(
        "test %[resume], %[resume]\n\t"
        "jnz 1f\n\t"
        "vxorps %%xmm0, %%xmm0, %%xmm0\n\t"
        "vxorps %%xmm1, %%xmm1, %%xmm1\n\t"
        "vxorps %%xmm2, %%xmm2, %%xmm2\n\t"
        "vxorps %%xmm3, %%xmm3, %%xmm3\n\t"
        "jmp 2f\n\t"
        "1:\n\t"
        "vmovups 0(%[acc]), %%ymm0\n\t"
        "vmovups 32(%[acc]), %%ymm1\n\t"
        "vmovups 64(%[acc]), %%ymm2\n\t"
        "vmovups 96(%[acc]), %%ymm3\n\t"
        "2:\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "prefetcht0 480(%[a])\n\t"
        "prefetcht0 492(%[a])\n\t"
        "vmovups 0(%[b]), %%ymm4\n\t"
        "vbroadcastss 0(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm4, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm4, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm7\n\t"
        "vfmadd231ps %%ymm7, %%ymm4, %%ymm2\n\t"
        "vbroadcastss 12(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm4, %%ymm3\n\t"
        "add $32, %[b]\n\t"
        "add $16, %[a]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%ymm0, 0(%[acc])\n\t"
        "vmovups %%ymm1, 32(%[acc])\n\t"
        "vmovups %%ymm2, 64(%[acc])\n\t"
        "vmovups %%ymm3, 96(%[acc])\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

/* rows[j][i] = from[i * step + j] for i, j < 4. */
static inline __attribute__((always_inline)) void turn4(const float *from, long step, vec4 *rows)
{
    const vec4 a = *(const vec4 *)from, b = *(const vec4 *)(from + step);
    const vec4 c = *(const vec4 *)(from + 2 * step), d = *(const vec4 *)(from + 3 * step);
    const vec4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const vec4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const vec4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const vec4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* rows[j][i] = from[j * step + i] for i, j < 4. */
static inline __attribute__((always_inline)) void take4(const float *from, long step, vec4 *rows)
{
    for (long j = 0; j < 4; j++)
        rows[j] = *(const vec4 *)(from + j * step);
}

/* to[j * pitch + i] = from[j * step + i] for j < 4 and i < count, count at most 4. */
static inline __attribute__((always_inline)) void copy4(const float *from, long step, float *to,
                                                        long pitch, long count)
{
    for (long j = 0; j < 4; j++)
        memcpy(to + j * pitch, from + j * step, 4 * (unsigned long)count);
}

/* to[j * pitch + i] = from[i * step + j] for j < 4 and i < count, count at most 4; reads 4 x 4. */
static inline __attribute__((always_inline)) void transpose4(const float *from, long step,
                                                             float *to, long pitch, long count)
{
    vec4 rows[4];
    turn4(from, step, rows);
    for (long j = 0; j < 4; j++)
        memcpy(to + j * pitch, &rows[j], 4 * (unsigned long)count);
}

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, long step, long pixels) {
    for (long lane = 0; lane < lanes; lane += 4) {
        float rows[4 * 4];
        for (long pixel = 0; pixel < pixels; pixel += 4)
            transpose4(acc + pixel * step + lane, step, rows + pixel, 4, 4);
        for (long j = 0; j < min_long(4, lanes - lane); j++) {
            float *restrict to = out + (lane + j) * 48;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 4 + pixel];
                to[pixel] = value;
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x1x4_v1(const float *acc, float *restrict out, long lanes) {
    if (lanes >= 8) {
        transpose4(acc + 0, 8, out + 0, 48, 4);
        transpose4(acc + 4, 8, out + 192, 48, 4);
        return;
    }
    store_row(acc + 0, out + 0, lanes, 8, 4);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 8; k_row++) {
        __builtin_prefetch(out + k_row * 48, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[3];
    float *to = packed;
    for (long panel = 0; panel < 1; panel++) {
        const long width = panel + 1 < 1 ? 8 : 8;
        for (long c = 0; c < 5; c++) {
            for (long r = 0; r < 1; r++) {
                for (long s = 0; s < 1; s++) {
                    for (long lane = 0; lane < width; lane++) {
                        const long k = panel * 8 + lane;
                        *to++ = k < 8 ? b[k * 5 + c + r + s] : 0.0f;
                    }
                }
            }
        }
    }
    {
        const float *b = constants[0];
        float *to = packed + 48;
        for (long first = 0; first < 5; first += 4) {
            for (long c = 0; c < 3; c++) {
                for (long k = first; k < min_long(first + 4, 5); k++) {
                    *to++ = b[k * 3 + c];
                }
            }
        }
    }
    memcpy(packed + 64, constants[1], 5 * sizeof(float));
    memcpy(packed + 80, constants[2], 45 * sizeof(float));
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 1280; }
long tw_packed_bytes(void) { return 512; }

void tw_part(const tw_args *args, long part) {
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 96;
    for (long h_l1 = 0; h_l1 < 6; h_l1 += 2) {
        const long h_l1_end = min_long(h_l1 + 2, 6);
        const long from[] = {0, 0, h_l1, 0};
        const long extent[] = {(1 - 0 - 1) + 1, (5 - 0 - 1) + 1, (h_l1_end - h_l1 - 1) + (1 - 0 - 1) + 1, (8 - 0 - 1) + (1 - 0 - 1) + 1};
        const long begin = max_long(0, min_long(from[2] * 1 + (-1), 2)); float *region = buffer + 160; for (long first = 0; first < 5; first += 5) { const long end = min_long(first + 5, 5); expand(args->in[0] + from[0] * 144 + begin * 8, args->packed + 48, args->packed + 64, region, first, end); const float *rows = region - begin * 8 - first * 32; const long some[4] = {from[0], first, from[2], from[3]}; const long many[4] = {extent[0], end - first, extent[2], extent[3]}; fill_tile(rows, args->packed + 80, buffer + first * 4, some, many); }
        for (long n_reg = 0; n_reg < 1; n_reg += 1) {
            const long n_reg_end = min_long(n_reg + 1, 1);
            for (long k_reg = 0; k_reg < 8; k_reg += 8) {
                const long k_reg_end = min_long(k_reg + 8, 8);
                for (long h_reg = h_l1; h_reg < h_l1_end; h_reg += 1) {
                    const long h_reg_end = min_long(h_reg + 1, h_l1_end);
                    for (long w_reg = 0; w_reg < 8; w_reg += 4) {
                        const long w_reg_end = min_long(w_reg + 4, 8);
                        const long last = k_reg + 8 >= 8;
                        const float *weights = args->packed + 0 * 40 + k_reg * 5;
                        const float *tile = buffer + n_reg * 80 + (h_reg - h_l1) * 40 + w_reg / 4 * 20;
                        float *acc = accumulators;
                        fetch_result(args->out + n_reg * 384 + k_reg * 48 + h_reg * 8 + w_reg);
                        mk_avx2_p1x1x4_v1(tile + 0, weights + (0) * 1 * 8, acc, 5 - 0, 0);
                        store_p1x1x4_v1(acc, args->out + n_reg * 384 + k_reg * 48 + h_reg * 8 + w_reg, min_long(8, 8 - k_reg));
                    }
                }
            }
        }
    }
}
