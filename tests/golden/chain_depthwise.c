/* g6mb1ic6ih7iw9oc6oh7ow9kh3kw3sh1sw1ph1pw1dh0dw0+bias+relu6>>mb1ic6ih7iw9oc8oh7ow9kh1kw1sh1sw1ph0pw0dh0dw0+bias+relu: chain schema, avx2
   l1: n=1 k=8 h=4 w=12 c=6 r=1 s=1
   reg: n=1 k=8 h=1 w=6 c=1 r=1 s=1
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
    float *const t0 = to + row / 1 * 96;
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
        __builtin_prefetch(r2 + 63);
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r0), 7, 8, 9, 10, 11, 12, 13, 14);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_1_0 = *(const first_row_v *)(r0);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_2_0 = *(const first_row_v *)(r0 + 1);
        s0_0 += x0_2_0 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r1), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x1_0_0 * w3;
        const first_row_v x1_1_0 = *(const first_row_v *)(r1);
        s0_0 += x1_1_0 * w4;
        const first_row_v x1_2_0 = *(const first_row_v *)(r1 + 1);
        s0_0 += x1_2_0 * w5;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r2), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x2_0_0 * w6;
        const first_row_v x2_1_0 = *(const first_row_v *)(r2);
        s0_0 += x2_1_0 * w7;
        const first_row_v x2_2_0 = *(const first_row_v *)(r2 + 1);
        s0_0 += x2_2_0 * w8;
        {
            const first_row_v value = s0_0;
            *(first_row_v *)(t0) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
    }
    {
        __builtin_prefetch(r2 + 68);
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_1_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_2_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s0_0 += x0_2_0 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        s0_0 += x1_0_0 * w3;
        const first_row_v x1_1_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s0_0 += x1_1_0 * w4;
        const first_row_v x1_2_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s0_0 += x1_2_0 * w5;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        s0_0 += x2_0_0 * w6;
        const first_row_v x2_1_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s0_0 += x2_1_0 * w7;
        const first_row_v x2_2_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s0_0 += x2_2_0 * w8;
        {
            const first_row_v value = s0_0;
            *(first_row_v *)(t0 + 48) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
    }
}

static inline __attribute__((always_inline)) void slide_2(const float *a, const float *weights, first_row_v e0_v, float *restrict to, long h, long row) {
    const float *r0 = (unsigned long)(h + -1) < 7ul ? a + (h + -1) * 9 : zero_row;
    const float *r1 = (unsigned long)(h) < 7ul ? a + (h) * 9 : zero_row;
    const float *r2 = (unsigned long)(h + 1) < 7ul ? a + (h + 1) * 9 : zero_row;
    const float *r3 = (unsigned long)(h + 2) < 7ul ? a + (h + 2) * 9 : zero_row;
    float *const t0 = to + row / 1 * 96;
    float *const t1 = to + (row + 1) / 1 * 96;
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
        __builtin_prefetch(r2 + 63);
        __builtin_prefetch(r3 + 63);
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r0), 7, 8, 9, 10, 11, 12, 13, 14);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_1_0 = *(const first_row_v *)(r0);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_2_0 = *(const first_row_v *)(r0 + 1);
        s0_0 += x0_2_0 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r1), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x1_0_0 * w3;
        first_row_v s1_0 = x1_0_0 * w0;
        const first_row_v x1_1_0 = *(const first_row_v *)(r1);
        s0_0 += x1_1_0 * w4;
        s1_0 += x1_1_0 * w1;
        const first_row_v x1_2_0 = *(const first_row_v *)(r1 + 1);
        s0_0 += x1_2_0 * w5;
        s1_0 += x1_2_0 * w2;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r2), 7, 8, 9, 10, 11, 12, 13, 14);
        s0_0 += x2_0_0 * w6;
        s1_0 += x2_0_0 * w3;
        const first_row_v x2_1_0 = *(const first_row_v *)(r2);
        s0_0 += x2_1_0 * w7;
        s1_0 += x2_1_0 * w4;
        const first_row_v x2_2_0 = *(const first_row_v *)(r2 + 1);
        s0_0 += x2_2_0 * w8;
        s1_0 += x2_2_0 * w5;
        IN_ORDER;
        const first_row_v x3_0_0 = __builtin_shufflevector(first_zero_v, *(const first_row_v *)(r3), 7, 8, 9, 10, 11, 12, 13, 14);
        s1_0 += x3_0_0 * w6;
        const first_row_v x3_1_0 = *(const first_row_v *)(r3);
        s1_0 += x3_1_0 * w7;
        const first_row_v x3_2_0 = *(const first_row_v *)(r3 + 1);
        s1_0 += x3_2_0 * w8;
        {
            const first_row_v value = s0_0;
            *(first_row_v *)(t0) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
        {
            const first_row_v value = s1_0;
            *(first_row_v *)(t1) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
    }
    {
        __builtin_prefetch(r2 + 68);
        __builtin_prefetch(r3 + 68);
        IN_ORDER;
        const first_row_v x0_0_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        first_row_v s0_0 = x0_0_0 * w0;
        const first_row_v x0_1_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s0_0 += x0_1_0 * w1;
        const first_row_v x0_2_0 = __builtin_shufflevector(*(const first_row_v *)(r0 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s0_0 += x0_2_0 * w2;
        IN_ORDER;
        const first_row_v x1_0_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        s0_0 += x1_0_0 * w3;
        first_row_v s1_0 = x1_0_0 * w0;
        const first_row_v x1_1_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s0_0 += x1_1_0 * w4;
        s1_0 += x1_1_0 * w1;
        const first_row_v x1_2_0 = __builtin_shufflevector(*(const first_row_v *)(r1 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s0_0 += x1_2_0 * w5;
        s1_0 += x1_2_0 * w2;
        IN_ORDER;
        const first_row_v x2_0_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        s0_0 += x2_0_0 * w6;
        s1_0 += x2_0_0 * w3;
        const first_row_v x2_1_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s0_0 += x2_1_0 * w7;
        s1_0 += x2_1_0 * w4;
        const first_row_v x2_2_0 = __builtin_shufflevector(*(const first_row_v *)(r2 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s0_0 += x2_2_0 * w8;
        s1_0 += x2_2_0 * w5;
        IN_ORDER;
        const first_row_v x3_0_0 = __builtin_shufflevector(*(const first_row_v *)(r3 + 1), first_zero_v, 4, 5, 6, 7, 8, 9, 10, 11);
        s1_0 += x3_0_0 * w6;
        const first_row_v x3_1_0 = __builtin_shufflevector(*(const first_row_v *)(r3 + 1), first_zero_v, 5, 6, 7, 8, 9, 10, 11, 12);
        s1_0 += x3_1_0 * w7;
        const first_row_v x3_2_0 = __builtin_shufflevector(*(const first_row_v *)(r3 + 1), first_zero_v, 6, 7, 8, 9, 10, 11, 12, 13);
        s1_0 += x3_2_0 * w8;
        {
            const first_row_v value = s0_0;
            *(first_row_v *)(t0 + 48) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
        {
            const first_row_v value = s1_0;
            *(first_row_v *)(t1 + 48) = first_vec_min_number(first_vec_max_number((value + e0_v), (0.0f - first_zero_v)), (6.0f - first_zero_v));
        }
    }
}

/* A tile of the first part, in the strips that the second part reads. */
static __attribute__((noinline)) void fill_tile(const float *in, const float *ker, const float *e0, float *restrict buffer, const long *from, const long *extent) {
    for (long i0 = 0; i0 < extent[0]; i0++) {
        for (long i1 = 0; i1 < extent[1]; i1++) {
            const float *a = in + (from[0] + i0) * 378 + (from[1] + i1) * 63;
            const float *weights = ker + (from[1] + i1) * 9;
            float *to = buffer + i0 / 1 * 384 + i1 * 8;
            const first_row_v e0_v = *(e0 + (from[1] + i1)) - first_zero_v;
            const long height = extent[2];
            long row = 0;
            for (; row + 2 <= height; row += 2)
                slide_2(a, weights, e0_v, to, from[2] + row, row);
            if (row + 1 == height)
                slide_1(a, weights, e0_v, to, from[2] + row, row);
        }
    }
}

static __attribute__((noinline)) void mk_avx2_p1x1x3_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    __asm__ volatile(
        "test %[resume], %[resume]\n\t"
        "jnz 1f\n\t"
        "vxorps %%xmm0, %%xmm0, %%xmm0\n\t"
        "vxorps %%xmm1, %%xmm1, %%xmm1\n\t"
        "vxorps %%xmm2, %%xmm2, %%xmm2\n\t"
        "jmp 2f\n\t"
        "1:\n\t"
        "vmovups 0(%[acc]), %%ymm0\n\t"
        "vmovups 32(%[acc]), %%ymm1\n\t"
        "vmovups 64(%[acc]), %%ymm2\n\t"
        "2:\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "prefetcht0 1280(%[a])\n\t"
        "prefetcht0 1288(%[a])\n\t"
        "vmovups 0(%[b]), %%ymm3\n\t"
        "vbroadcastss 0(%[a]), %%ymm4\n\t"
        "vfmadd231ps %%ymm4, %%ymm3, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm3, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm3, %%ymm2\n\t"
        "add $32, %[b]\n\t"
        "add $32, %[a]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%ymm0, 0(%[acc])\n\t"
        "vmovups %%ymm1, 32(%[acc])\n\t"
        "vmovups %%ymm2, 64(%[acc])\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

static __attribute__((noinline)) void mk_avx2_p1x1x6_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    __asm__ volatile(
        "test %[resume], %[resume]\n\t"
        "jnz 1f\n\t"
        "vxorps %%xmm0, %%xmm0, %%xmm0\n\t"
        "vxorps %%xmm1, %%xmm1, %%xmm1\n\t"
        "vxorps %%xmm2, %%xmm2, %%xmm2\n\t"
        "vxorps %%xmm3, %%xmm3, %%xmm3\n\t"
        "vxorps %%xmm4, %%xmm4, %%xmm4\n\t"
        "vxorps %%xmm5, %%xmm5, %%xmm5\n\t"
        "jmp 2f\n\t"
        "1:\n\t"
        "vmovups 0(%[acc]), %%ymm0\n\t"
        "vmovups 32(%[acc]), %%ymm1\n\t"
        "vmovups 64(%[acc]), %%ymm2\n\t"
        "vmovups 96(%[acc]), %%ymm3\n\t"
        "vmovups 128(%[acc]), %%ymm4\n\t"
        "vmovups 160(%[acc]), %%ymm5\n\t"
        "2:\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "prefetcht0 640(%[a])\n\t"
        "prefetcht0 660(%[a])\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vbroadcastss 0(%[a]), %%ymm7\n\t"
        "vfmadd231ps %%ymm7, %%ymm6, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm2\n\t"
        "vbroadcastss 12(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm3\n\t"
        "vbroadcastss 16(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm4\n\t"
        "vbroadcastss 20(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm5\n\t"
        "add $32, %[b]\n\t"
        "add $32, %[a]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%ymm0, 0(%[acc])\n\t"
        "vmovups %%ymm1, 32(%[acc])\n\t"
        "vmovups %%ymm2, 64(%[acc])\n\t"
        "vmovups %%ymm3, 96(%[acc])\n\t"
        "vmovups %%ymm4, 128(%[acc])\n\t"
        "vmovups %%ymm5, 160(%[acc])\n\t"
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

typedef vec4 row_v;
static const row_v zero_v;
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif
typedef int mask_v __attribute__((vector_size(16), aligned(4), may_alias));

static inline row_v vec_max_number(row_v a, row_v number) {
#if defined(__AVX__)
    row_v result;
    __asm__("vmaxps %2, %1, %0" : "=x"(result) : "x"(number), "x"(a));
    return result;
#elif defined(__ARM_NEON)
    return vmaxq_f32(a, number);
#else
    const mask_v mask = a < number;
    return (row_v)((mask & (mask_v)number) | (~mask & (mask_v)a));
#endif
}

/* transpose4, or copy4 of what is turned, through what follows the sums. */
static inline __attribute__((always_inline)) void finish4(int turned, const float *from, long step, float *to, long pitch, long count, const float *e0) {
    vec4 rows[4];
    (turned ? take4 : turn4)(from, step, rows);
    for (long j = 0; j < 4; j++) {
        const vec4 value = rows[j];
        const vec4 e0_v = *(e0 + j) - zero_v;
        const vec4 result = vec_max_number((value + e0_v), (0.0f - zero_v));
        memcpy(to + j * pitch, &result, 4 * (unsigned long)count);
    }
}

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, const float *e0, long step, long pixels) {
    for (long lane = 0; lane < lanes; lane += 4) {
        float rows[4 * 8];
        for (long pixel = 0; pixel < pixels; pixel += 4)
            transpose4(acc + pixel * step + lane, step, rows + pixel, 8, 4);
        for (long j = 0; j < min_long(4, lanes - lane); j++) {
            float *restrict to = out + (lane + j) * 63;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 8 + pixel];
                const long e0_at = (lane + j);
                to[pixel] = max_number_f32((value + e0[e0_at]), 0.0f);
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x1x3_v1(const float *acc, float *restrict out, long lanes, const float *e0) {
    if (lanes >= 8) {
        finish4(0, acc + 0, 8, out + 0, 63, 3, e0 + 0);
        finish4(0, acc + 4, 8, out + 252, 63, 3, e0 + 4);
        return;
    }
    store_row(acc + 0, out + 0, lanes, e0 + 0, 8, 3);
}

static __attribute__((noinline)) void store_p1x1x6_v1(const float *acc, float *restrict out, long lanes, const float *e0) {
    if (lanes >= 8) {
        finish4(0, acc + 0, 8, out + 0, 63, 4, e0 + 0);
        finish4(0, acc + 32, 8, out + 4, 63, 2, e0 + 0);
        finish4(0, acc + 4, 8, out + 252, 63, 4, e0 + 4);
        finish4(0, acc + 36, 8, out + 256, 63, 2, e0 + 4);
        return;
    }
    store_row(acc + 0, out + 0, lanes, e0 + 0, 8, 6);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 8; k_row++) {
        __builtin_prefetch(out + k_row * 63, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[2];
    float *to = packed;
    for (long panel = 0; panel < 1; panel++) {
        const long width = panel + 1 < 1 ? 8 : 8;
        for (long c = 0; c < 6; c++) {
            for (long r = 0; r < 1; r++) {
                for (long s = 0; s < 1; s++) {
                    for (long lane = 0; lane < width; lane++) {
                        const long k = panel * 8 + lane;
                        *to++ = k < 8 ? b[k * 6 + c + r + s] : 0.0f;
                    }
                }
            }
        }
    }
    memcpy(packed + 48, constants[0], 54 * sizeof(float));
    memcpy(packed + 112, constants[1], 6 * sizeof(float));
    memcpy(packed + 128, constants[3], 8 * sizeof(float));
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 1920; }
long tw_packed_bytes(void) { return 576; }

void tw_part(const tw_args *args, long part) {
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 400;
    const float *e0 = args->packed + 128;
    const long h_part = 7 * (part % 2) / 2 * 1;
    const long h_part_end = min_long(7 * ((part % 2) + 1) / 2 * 1, 7);
    const long from[] = {0, 0, h_part, 0};
    const long extent[] = {(1 - 0 - 1) + 1, (6 - 0 - 1) + 1, (h_part_end - h_part - 1) + (1 - 0 - 1) + 1, (9 - 0 - 1) + (1 - 0 - 1) + 1};
    fill_tile(args->in[0], args->packed + 48, args->packed + 112, buffer, from, extent);
    for (long n_reg = 0; n_reg < 1; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, 1);
        for (long k_reg = 0; k_reg < 8; k_reg += 8) {
            const long k_reg_end = min_long(k_reg + 8, 8);
            for (long h_reg = h_part; h_reg < h_part_end; h_reg += 1) {
                const long h_reg_end = min_long(h_reg + 1, h_part_end);
                for (long w_reg = 0; w_reg < 9; w_reg += 6) {
                    const long w_reg_end = min_long(w_reg + 6, 9);
                    const long last = k_reg + 8 >= 8;
                    const float *weights = args->packed + 0 * 48 + k_reg * 6;
                    const float *tile = buffer + n_reg * 384 + (h_reg - h_part) * 96 + w_reg / 6 * 48;
                    float *acc = accumulators;
                    fetch_result(args->out + n_reg * 504 + k_reg * 63 + h_reg * 9 + w_reg);
                    if (w_reg_end - w_reg == 6)
                        mk_avx2_p1x1x6_v1(tile + 0, weights + (0) * 1 * 8, acc, 6 - 0, 0);
                    else
                        mk_avx2_p1x1x3_v1(tile + 0, weights + (0) * 1 * 8, acc, 6 - 0, 0);
                    if (w_reg_end - w_reg == 6)
                        store_p1x1x6_v1(acc, args->out + n_reg * 504 + k_reg * 63 + h_reg * 9 + w_reg, min_long(8, 8 - k_reg), e0 + k_reg);
                    else
                        store_p1x1x3_v1(acc, args->out + n_reg * 504 + k_reg * 63 + h_reg * 9 + w_reg, min_long(8, 8 - k_reg), e0 + k_reg);
                }
            }
        }
    }
}
