/* mb1ic8ih5iw7oc6oh5ow7kh1kw1sh1sw1ph0pw0dh0dw0+bias+relu: strassen_pixels schema, avx2
   l2: n=1 k=6 hw=32 c=8
   reg: n=1 k=3 hw=16 c=1
   options: levels=1
   parallel: one thread; packs: l2 */
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

#include <stdint.h>

static inline __attribute__((always_inline)) int32_t bits_f32(float x)
{
    const union { float x; int32_t bits; } both = {.x = x};
    return both.bits;
}
static inline __attribute__((always_inline)) float f32_bits(int32_t bits)
{
    const union { int32_t bits; float x; } both = {.bits = bits};
    return both.x;
}
/* a or b by masks: one instruction, where compilers turn a conditional into several for NaN. */
static inline __attribute__((always_inline)) float pick_f32(int first, float a, float b)
{
    const int32_t mask = -(int32_t)first;
    return f32_bits((mask & bits_f32(a)) | (~mask & bits_f32(b)));
}

static inline __attribute__((always_inline)) float max_number_f32(float x, float number) { return pick_f32(x < number, number, x); }

typedef float row_v __attribute__((vector_size(32), aligned(4), may_alias));
static const row_v zero_v;

typedef int mask_v __attribute__((vector_size(32), aligned(4), may_alias));

static inline row_v vec_max_number(row_v a, row_v number) {
#if defined(__AVX__)
    row_v result;
    __asm__("vmaxps %2, %1, %0" : "=x"(result) : "x"(number), "x"(a));
    return result;
#else
    const mask_v mask = a < number;
    return (row_v)((mask & (mask_v)number) | (~mask & (mask_v)a));
#endif
}

static __attribute__((noinline)) void rows_avx2_k3_p1x2(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vxorps %%ymm0, %%ymm0, %%ymm0\n\t"
        "vxorps %%ymm1, %%ymm1, %%ymm1\n\t"
        "vxorps %%ymm2, %%ymm2, %%ymm2\n\t"
        "vxorps %%ymm3, %%ymm3, %%ymm3\n\t"
        "vxorps %%ymm4, %%ymm4, %%ymm4\n\t"
        "vxorps %%ymm5, %%ymm5, %%ymm5\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vmovups 32(%[b]), %%ymm7\n\t"
        "vbroadcastss 0(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm8, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm9, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm10, %%ymm7, %%ymm5\n\t"
        "vmovups 64(%[b]), %%ymm6\n\t"
        "vmovups 96(%[b]), %%ymm7\n\t"
        "vbroadcastss 12(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 16(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 20(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm5\n\t"
        "vmovups 128(%[b]), %%ymm6\n\t"
        "vmovups 160(%[b]), %%ymm7\n\t"
        "vbroadcastss 24(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 28(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm15, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 32(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm8, %%ymm7, %%ymm5\n\t"
        "vmovups 192(%[b]), %%ymm6\n\t"
        "vmovups 224(%[b]), %%ymm7\n\t"
        "vbroadcastss 36(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm9, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 40(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm10, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 44(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm5\n\t"
        "add $48, %[a]\n\t"
        "add $256, %[b]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vmovups 32(%[b]), %%ymm7\n\t"
        "vbroadcastss 0(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm5\n\t"
        "add $12, %[a]\n\t"
        "add $64, %[b]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 32(%[out])\n\t"
        "vmovups %%ymm2, 64(%[out])\n\t"
        "vmovups %%ymm3, 96(%[out])\n\t"
        "vmovups %%ymm4, 128(%[out])\n\t"
        "vmovups %%ymm5, 160(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 32(%[out])\n\t"
        "vmovups %%ymm2, 64(%[out])\n\t"
        "vmovups %%ymm3, 96(%[out])\n\t"
        "vmovups %%ymm4, 128(%[out])\n\t"
        "vmovups %%ymm5, 160(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [out] "r"(out), [mask] "r"(mask), [lanes] "r"(lanes)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)bias;
    (void)more;
    (void)next;
}

static __attribute__((noinline)) void corner_avx2_k3_p3(const float *a, const float *b, float *to, long count) {
    row_v s0_0 = {0}, s0_1 = {0}, s0_2 = {0};
    row_v s1_0 = {0}, s1_1 = {0}, s1_2 = {0};
    row_v s2_0 = {0}, s2_1 = {0}, s2_2 = {0};
    row_v s3_0 = {0}, s3_1 = {0}, s3_2 = {0};
    for (; count >= 4; count -= 4, a += 12, b += 12) {
        const row_v w0 = *(const row_v *)(a + 0);
        s0_0 += w0 * b[0];
        s0_1 += w0 * b[1];
        s0_2 += w0 * b[2];
        const row_v w1 = *(const row_v *)(a + 3);
        s1_0 += w1 * b[3];
        s1_1 += w1 * b[4];
        s1_2 += w1 * b[5];
        const row_v w2 = *(const row_v *)(a + 6);
        s2_0 += w2 * b[6];
        s2_1 += w2 * b[7];
        s2_2 += w2 * b[8];
        const row_v w3 = *(const row_v *)(a + 9);
        s3_0 += w3 * b[9];
        s3_1 += w3 * b[10];
        s3_2 += w3 * b[11];
    }
    for (; count > 0; count--, a += 3, b += 3) {
        const row_v w0 = *(const row_v *)(a + 0);
        s0_0 += w0 * b[0];
        s0_1 += w0 * b[1];
        s0_2 += w0 * b[2];
    }
    *(row_v *)(to + 0) = s0_0 + s1_0 + s2_0 + s3_0;
    *(row_v *)(to + 8) = s0_1 + s1_1 + s2_1 + s3_1;
    *(row_v *)(to + 16) = s0_2 + s1_2 + s2_2 + s3_2;
}

static inline __attribute__((always_inline)) void sum_pair(float *to, row_v u0, row_v u1, row_v l0, row_v l1) {
    const row_v s1 = u0 + l1;
    const row_v s2 = u1 - l1;
    const row_v s3 = - u0 + l0;
    const row_v s4 = u0 + u1;
    const row_v s5 = l0 + l1;
    *(row_v *)(to + 0) = s1;
    *(row_v *)(to + 80) = u0;
    *(row_v *)(to + 160) = s2;
    *(row_v *)(to + 240) = s3;
    *(row_v *)(to + 320) = l1;
    *(row_v *)(to + 400) = s4;
    *(row_v *)(to + 480) = s5;
}

static inline __attribute__((always_inline)) void sum_single(float *to, row_v u, row_v l) {
    *(row_v *)(to + 80) = u;
    const row_v s1 = u - l;
    *(row_v *)(to + 160) = s1;
    const row_v s2 = - u + l;
    *(row_v *)(to + 240) = s2;
    *(row_v *)(to + 320) = l;
}

static void fill(const float *restrict image, float *restrict v, long first, long end) {
    for (long c = 0; c < 4; c++) {
        const float *u = image + c * 35;
        const float *l = u + 140;
        float *to = v + c * 16;
        long x = first;
        for (; x + 32 <= end; x += 32, to += 560) {
            if (c < 0) {
                __builtin_prefetch(u + x + 140);
                __builtin_prefetch(u + x + 156);
                __builtin_prefetch(l + x + 140);
                __builtin_prefetch(l + x + 156);
            }
            sum_pair(to + 0, *(const row_v *)(u + x + 0), *(const row_v *)(u + x + 16), *(const row_v *)(l + x + 0), *(const row_v *)(l + x + 16));
            sum_pair(to + 8, *(const row_v *)(u + x + 8), *(const row_v *)(u + x + 24), *(const row_v *)(l + x + 8), *(const row_v *)(l + x + 24));
        }
        if (x == end)
            continue;
        row_v us = zero_v, ls = zero_v;
        for (int i = 0; i < 3; i++) {
            us[i] = u[x + 0 + i];
            ls[i] = l[x + 0 + i];
        }
        sum_single(to + 0 - c * 13, us, ls);
    }
}

static inline __attribute__((always_inline)) row_v after(row_v value, row_v e0_v) {
    return vec_max_number((value + e0_v), (0.0f - zero_v));
}

static inline __attribute__((always_inline)) void fetch_quarter(const float *out, long channels) {
    for (long k = 0; k < channels; k++) {
        __builtin_prefetch(out + k * 35, 1);
    }
}

static __attribute__((noinline)) void results_2(const float *restrict m, float *out, long channels, const float *e0) {
    for (long k = 0; k < channels; k++) {
        for (long x = 0; x < 16; x += 8) {
            const row_v p0 = *(const row_v *)(m + k * 16 + x + 0);
            const row_v p1 = *(const row_v *)(m + k * 16 + x + 48);
            const row_v p2 = *(const row_v *)(m + k * 16 + x + 96);
            const row_v p3 = *(const row_v *)(m + k * 16 + x + 144);
            const row_v p4 = *(const row_v *)(m + k * 16 + x + 192);
            const row_v p5 = *(const row_v *)(m + k * 16 + x + 240);
            const row_v p6 = *(const row_v *)(m + k * 16 + x + 288);
            const row_v s1 = p0 + p3 - p4 + p6;
            const row_v s2 = p2 + p4;
            const row_v s3 = p1 + p3;
            const row_v s4 = p0 - p1 + p2 + p5;
            *(row_v *)(out + k * 35 + x) = after(s1, e0[k] - zero_v);
            *(row_v *)(out + k * 35 + x + 16) = after(s2, e0[k] - zero_v);
            *(row_v *)(out + k * 35 + x + 105) = after(s3, e0[k + 3] - zero_v);
            *(row_v *)(out + k * 35 + x + 121) = after(s4, e0[k + 3] - zero_v);
        }
    }
}

static __attribute__((noinline)) void results_corner(const float *restrict m, float *out, long channels, const float *e0) {
    float sums[48];
    for (long x = 0; x < 24; x += 8) {
        *(row_v *)(sums + x + 0) = *(const row_v *)(m + x + 96) + *(const row_v *)(m + x + 192);
        *(row_v *)(sums + x + 24) = *(const row_v *)(m + x + 48) + *(const row_v *)(m + x + 144);
    }
    for (long k = 0; k < channels; k++) {
        for (long x = 0; x < 3; x++) {
            const long e0_at = k;
            const float value = sums[x * 8 + k + 0];
            out[k * 35 + x] = max_number_f32((value + e0[e0_at]), 0.0f);
        }
    }
    for (long k = 0; k < channels; k++) {
        for (long x = 0; x < 3; x++) {
            const long e0_at = k + 3;
            const float value = sums[x * 8 + k + 24];
            out[k * 35 + x + 105] = max_number_f32((value + e0[e0_at]), 0.0f);
        }
    }
}

static inline __attribute__((always_inline)) void sum_weights(float *to, long apart, const float *from) {
    const double w0_0 = from[0];
    const double w0_1 = from[4];
    const double w1_0 = from[24];
    const double w1_1 = from[28];
    const double s1 = w0_0 + w1_1;
    const double s2 = w1_0 + w1_1;
    const double s3 = w0_0 + w0_1;
    const double s4 = - w0_0 + w1_0;
    const double s5 = w0_1 - w1_1;
    to[0 * apart] = (float)(s1);
    to[1 * apart] = (float)(s2);
    to[2 * apart] = (float)(w0_0);
    to[3 * apart] = (float)(w1_1);
    to[4 * apart] = (float)(s3);
    to[5 * apart] = (float)(s4);
    to[6 * apart] = (float)(s5);
}

void tw_pack(const float *const *constants, float *packed) {
    const float *from = constants[0];
    for (long tile = 0; tile < 1; tile++) {
        const long first = tile * 3 / 1;
        const long channels = (tile + 1) * 3 / 1 - first;
        float *to = packed + first * 28;
        for (long c = 0; c < 4; c++) {
            for (long k = 0; k < channels; k++, to++) {
                sum_weights(to, channels * 4, from + (first + k) * 8 + c);
            }
        }
    }
    memcpy(packed + 96, constants[1], 6 * sizeof(float));
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 7168; }
long tw_packed_bytes(void) { return 448; }

void tw_part(const tw_args *args, long part) {
    float *v = (float *)(args->scratch + part * tw_scratch_bytes());
    float *m = v + 1120;
    const float *e0 = args->packed + 96;
    const long n_low = 1 * 0 / 1, n_high = 1 * (0 + 1) / 1;
    const long tile_low = 1 * 0 / 1, tile_high = 1 * (0 + 1) / 1;
    const long x_low = 2 * 0 / 1 * 32, x_high = min_long(2 * (0 + 1) / 1 * 32, 35);
    for (long n = n_low; n < n_high; n++) {
        for (long block = x_low; block < x_high; block += 32) {
            const long end = min_long(block + 32, x_high);
            float *to = v;
            for (long x = block; x < end; x += 32, to += 560)
                fill(args->in[0] + n * 280, to, x, min_long(x + 32, end));
            for (long tile = tile_low; tile < tile_high; tile++) {
                const long k = tile * 3;
                const long channels = 3;
                const float *weights = args->packed + k * 28;
                for (long t = 0; t < 7; t++) {
                    const float *next = weights + channels * 4;
                    const float *pixels = v + t * 80;
                    float *at = m + t * 48;
                    long x = block;
                    for (; x + 32 <= end; x += 32, pixels += 560, at += 336, next += 16) {
                        if (t < 4)
                            fetch_quarter(args->out + k * 35 + x + n * 210 + t / 2 * 105 + t % 2 * 16, channels);
                        rows_avx2_k3_p1x2(weights, pixels, at, 4, 8, NULL, NULL, next);
                    }
                    if (x < end) {
                        if (t >= 1 && t <= 4) {
                            corner_avx2_k3_p3(weights, pixels, at, 4);
                        }
                    }
                    weights += channels * 4;
                }
                const float *at = m;
                long x = block;
                for (; x + 32 <= end; x += 32, at += 336)
                    results_2(at, args->out + k * 35 + x + n * 210, channels, e0 + k);
                if (x < end) {
                    results_corner(at, args->out + k * 35 + x + n * 210, channels, e0 + k);
                }
            }
        }
    }
}
