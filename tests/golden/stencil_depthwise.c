/* g6mb1ic6ih7iw9oc6oh7ow9kh3kw3sh1sw1ph1pw1dh0dw0+bias+relu6: stencil schema, neon
   l1: n=1 k=6 h=9 w=16 r=3 s=3
   reg: n=1 k=1 h=3 w=8 r=3 s=3
   options: lanes=4
   parallel: k/2; packs: nothing */
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

typedef float row_v __attribute__((vector_size(16), aligned(4), may_alias));
typedef float quad_v __attribute__((vector_size(16), aligned(4), may_alias));
static const row_v zero_v;
/* Loads stay on their side of it: compilers that gather them in front run out of registers. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

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

static inline row_v vec_min_number(row_v a, row_v number) {
#if defined(__AVX__)
    row_v result;
    __asm__("vminps %2, %1, %0" : "=x"(result) : "x"(number), "x"(a));
    return result;
#elif defined(__ARM_NEON)
    return vminq_f32(a, number);
#else
    const mask_v mask = number < a;
    return (row_v)((mask & (mask_v)number) | (~mask & (mask_v)a));
#endif
}

void tw_pack(const float *const *constants, float *packed) {
    float *to = packed + 0;
    for (long k = 0; k < 6; k++) {
        for (long r = 0; r < 3; r++) {
            for (long s = 0; s < 3; s++) {
                *to++ = constants[0][k * 9 + r * 3 + s];
            }
        }
        for (int i = 0; i < 3; i++)
            *to++ = 0.0f;
    }
    memcpy(packed + 80, constants[1], 6 * sizeof(float));
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 384; }

static inline __attribute__((always_inline)) void rows_0(const float *a, const float *weights, float *restrict out, const float *e0) {
    const quad_v kernel_0 = *(const quad_v *)(weights);
    const quad_v kernel_1 = *(const quad_v *)(weights + 4);
    const quad_v kernel_2 = *(const quad_v *)(weights + 8);
    {
        IN_ORDER;
        const row_v x0_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a), 3, 4, 5, 6);
        row_v s0_0 = x0_0_0 * kernel_0[3];
        row_v s1_0 = x0_0_0 * kernel_0[0];
        const row_v x0_0_1 = *(const row_v *)(a + 3);
        row_v s0_1 = x0_0_1 * kernel_0[3];
        row_v s1_1 = x0_0_1 * kernel_0[0];
        IN_ORDER;
        const row_v x0_1_0 = *(const row_v *)(a);
        s0_0 += x0_1_0 * kernel_1[0];
        s1_0 += x0_1_0 * kernel_0[1];
        const row_v x0_1_1 = *(const row_v *)(a + 4);
        s0_1 += x0_1_1 * kernel_1[0];
        s1_1 += x0_1_1 * kernel_0[1];
        IN_ORDER;
        const row_v x0_2_0 = *(const row_v *)(a + 1);
        s0_0 += x0_2_0 * kernel_1[1];
        s1_0 += x0_2_0 * kernel_0[2];
        const row_v x0_2_1 = *(const row_v *)(a + 5);
        s0_1 += x0_2_1 * kernel_1[1];
        s1_1 += x0_2_1 * kernel_0[2];
        IN_ORDER;
        const row_v x1_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 9), 3, 4, 5, 6);
        s0_0 += x1_0_0 * kernel_1[2];
        s1_0 += x1_0_0 * kernel_0[3];
        row_v s2_0 = x1_0_0 * kernel_0[0];
        const row_v x1_0_1 = *(const row_v *)(a + 9 + 3);
        s0_1 += x1_0_1 * kernel_1[2];
        s1_1 += x1_0_1 * kernel_0[3];
        row_v s2_1 = x1_0_1 * kernel_0[0];
        IN_ORDER;
        const row_v x1_1_0 = *(const row_v *)(a + 9);
        s0_0 += x1_1_0 * kernel_1[3];
        s1_0 += x1_1_0 * kernel_1[0];
        s2_0 += x1_1_0 * kernel_0[1];
        const row_v x1_1_1 = *(const row_v *)(a + 9 + 4);
        s0_1 += x1_1_1 * kernel_1[3];
        s1_1 += x1_1_1 * kernel_1[0];
        s2_1 += x1_1_1 * kernel_0[1];
        IN_ORDER;
        const row_v x1_2_0 = *(const row_v *)(a + 9 + 1);
        s0_0 += x1_2_0 * kernel_2[0];
        s1_0 += x1_2_0 * kernel_1[1];
        s2_0 += x1_2_0 * kernel_0[2];
        const row_v x1_2_1 = *(const row_v *)(a + 9 + 5);
        s0_1 += x1_2_1 * kernel_2[0];
        s1_1 += x1_2_1 * kernel_1[1];
        s2_1 += x1_2_1 * kernel_0[2];
        IN_ORDER;
        const row_v x2_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 18), 3, 4, 5, 6);
        s1_0 += x2_0_0 * kernel_1[2];
        s2_0 += x2_0_0 * kernel_0[3];
        const row_v x2_0_1 = *(const row_v *)(a + 18 + 3);
        s1_1 += x2_0_1 * kernel_1[2];
        s2_1 += x2_0_1 * kernel_0[3];
        IN_ORDER;
        const row_v x2_1_0 = *(const row_v *)(a + 18);
        s1_0 += x2_1_0 * kernel_1[3];
        s2_0 += x2_1_0 * kernel_1[0];
        const row_v x2_1_1 = *(const row_v *)(a + 18 + 4);
        s1_1 += x2_1_1 * kernel_1[3];
        s2_1 += x2_1_1 * kernel_1[0];
        IN_ORDER;
        const row_v x2_2_0 = *(const row_v *)(a + 18 + 1);
        s1_0 += x2_2_0 * kernel_2[0];
        s2_0 += x2_2_0 * kernel_1[1];
        const row_v x2_2_1 = *(const row_v *)(a + 18 + 5);
        s1_1 += x2_2_1 * kernel_2[0];
        s2_1 += x2_2_1 * kernel_1[1];
        IN_ORDER;
        const row_v x3_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 27), 3, 4, 5, 6);
        s2_0 += x3_0_0 * kernel_1[2];
        const row_v x3_0_1 = *(const row_v *)(a + 27 + 3);
        s2_1 += x3_0_1 * kernel_1[2];
        IN_ORDER;
        const row_v x3_1_0 = *(const row_v *)(a + 27);
        s2_0 += x3_1_0 * kernel_1[3];
        const row_v x3_1_1 = *(const row_v *)(a + 27 + 4);
        s2_1 += x3_1_1 * kernel_1[3];
        IN_ORDER;
        const row_v x3_2_0 = *(const row_v *)(a + 27 + 1);
        s2_0 += x3_2_0 * kernel_2[0];
        const row_v x3_2_1 = *(const row_v *)(a + 27 + 5);
        s2_1 += x3_2_1 * kernel_2[0];
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 4) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s1_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 9) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s1_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 13) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s2_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 18) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s2_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 22) = result_v;
        }
    }
    {
        IN_ORDER;
        const row_v x0_0_0 = *(const row_v *)(a + 4);
        row_v s0_0 = x0_0_0 * kernel_0[3];
        row_v s1_0 = x0_0_0 * kernel_0[0];
        IN_ORDER;
        const row_v x0_1_0 = *(const row_v *)(a + 5);
        s0_0 += x0_1_0 * kernel_1[0];
        s1_0 += x0_1_0 * kernel_0[1];
        IN_ORDER;
        const row_v x0_2_0 = __builtin_shufflevector(*(const row_v *)(a + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x0_2_0 * kernel_1[1];
        s1_0 += x0_2_0 * kernel_0[2];
        IN_ORDER;
        const row_v x1_0_0 = *(const row_v *)(a + 9 + 4);
        s0_0 += x1_0_0 * kernel_1[2];
        s1_0 += x1_0_0 * kernel_0[3];
        row_v s2_0 = x1_0_0 * kernel_0[0];
        IN_ORDER;
        const row_v x1_1_0 = *(const row_v *)(a + 9 + 5);
        s0_0 += x1_1_0 * kernel_1[3];
        s1_0 += x1_1_0 * kernel_1[0];
        s2_0 += x1_1_0 * kernel_0[1];
        IN_ORDER;
        const row_v x1_2_0 = __builtin_shufflevector(*(const row_v *)(a + 9 + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x1_2_0 * kernel_2[0];
        s1_0 += x1_2_0 * kernel_1[1];
        s2_0 += x1_2_0 * kernel_0[2];
        IN_ORDER;
        const row_v x2_0_0 = *(const row_v *)(a + 18 + 4);
        s1_0 += x2_0_0 * kernel_1[2];
        s2_0 += x2_0_0 * kernel_0[3];
        IN_ORDER;
        const row_v x2_1_0 = *(const row_v *)(a + 18 + 5);
        s1_0 += x2_1_0 * kernel_1[3];
        s2_0 += x2_1_0 * kernel_1[0];
        IN_ORDER;
        const row_v x2_2_0 = __builtin_shufflevector(*(const row_v *)(a + 18 + 5), zero_v, 1, 2, 3, 4);
        s1_0 += x2_2_0 * kernel_2[0];
        s2_0 += x2_2_0 * kernel_1[1];
        IN_ORDER;
        const row_v x3_0_0 = *(const row_v *)(a + 27 + 4);
        s2_0 += x3_0_0 * kernel_1[2];
        IN_ORDER;
        const row_v x3_1_0 = *(const row_v *)(a + 27 + 5);
        s2_0 += x3_1_0 * kernel_1[3];
        IN_ORDER;
        const row_v x3_2_0 = __builtin_shufflevector(*(const row_v *)(a + 27 + 5), zero_v, 1, 2, 3, 4);
        s2_0 += x3_2_0 * kernel_2[0];
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 5) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s1_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 14) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s2_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 23) = result_v;
        }
    }
}

static inline __attribute__((always_inline)) void rows_1(const float *a, const float *weights, float *restrict out, const float *e0) {
    const quad_v kernel_0 = *(const quad_v *)(weights);
    const quad_v kernel_1 = *(const quad_v *)(weights + 4);
    const quad_v kernel_2 = *(const quad_v *)(weights + 8);
    {
        IN_ORDER;
        const row_v x2_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 18), 3, 4, 5, 6);
        row_v s0_0 = x2_0_0 * kernel_0[0];
        const row_v x2_0_1 = *(const row_v *)(a + 18 + 3);
        row_v s0_1 = x2_0_1 * kernel_0[0];
        IN_ORDER;
        const row_v x2_1_0 = *(const row_v *)(a + 18);
        s0_0 += x2_1_0 * kernel_0[1];
        const row_v x2_1_1 = *(const row_v *)(a + 18 + 4);
        s0_1 += x2_1_1 * kernel_0[1];
        IN_ORDER;
        const row_v x2_2_0 = *(const row_v *)(a + 18 + 1);
        s0_0 += x2_2_0 * kernel_0[2];
        const row_v x2_2_1 = *(const row_v *)(a + 18 + 5);
        s0_1 += x2_2_1 * kernel_0[2];
        IN_ORDER;
        const row_v x3_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 27), 3, 4, 5, 6);
        s0_0 += x3_0_0 * kernel_0[3];
        row_v s1_0 = x3_0_0 * kernel_0[0];
        const row_v x3_0_1 = *(const row_v *)(a + 27 + 3);
        s0_1 += x3_0_1 * kernel_0[3];
        row_v s1_1 = x3_0_1 * kernel_0[0];
        IN_ORDER;
        const row_v x3_1_0 = *(const row_v *)(a + 27);
        s0_0 += x3_1_0 * kernel_1[0];
        s1_0 += x3_1_0 * kernel_0[1];
        const row_v x3_1_1 = *(const row_v *)(a + 27 + 4);
        s0_1 += x3_1_1 * kernel_1[0];
        s1_1 += x3_1_1 * kernel_0[1];
        IN_ORDER;
        const row_v x3_2_0 = *(const row_v *)(a + 27 + 1);
        s0_0 += x3_2_0 * kernel_1[1];
        s1_0 += x3_2_0 * kernel_0[2];
        const row_v x3_2_1 = *(const row_v *)(a + 27 + 5);
        s0_1 += x3_2_1 * kernel_1[1];
        s1_1 += x3_2_1 * kernel_0[2];
        IN_ORDER;
        const row_v x4_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 36), 3, 4, 5, 6);
        s0_0 += x4_0_0 * kernel_1[2];
        s1_0 += x4_0_0 * kernel_0[3];
        row_v s2_0 = x4_0_0 * kernel_0[0];
        const row_v x4_0_1 = *(const row_v *)(a + 36 + 3);
        s0_1 += x4_0_1 * kernel_1[2];
        s1_1 += x4_0_1 * kernel_0[3];
        row_v s2_1 = x4_0_1 * kernel_0[0];
        IN_ORDER;
        const row_v x4_1_0 = *(const row_v *)(a + 36);
        s0_0 += x4_1_0 * kernel_1[3];
        s1_0 += x4_1_0 * kernel_1[0];
        s2_0 += x4_1_0 * kernel_0[1];
        const row_v x4_1_1 = *(const row_v *)(a + 36 + 4);
        s0_1 += x4_1_1 * kernel_1[3];
        s1_1 += x4_1_1 * kernel_1[0];
        s2_1 += x4_1_1 * kernel_0[1];
        IN_ORDER;
        const row_v x4_2_0 = *(const row_v *)(a + 36 + 1);
        s0_0 += x4_2_0 * kernel_2[0];
        s1_0 += x4_2_0 * kernel_1[1];
        s2_0 += x4_2_0 * kernel_0[2];
        const row_v x4_2_1 = *(const row_v *)(a + 36 + 5);
        s0_1 += x4_2_1 * kernel_2[0];
        s1_1 += x4_2_1 * kernel_1[1];
        s2_1 += x4_2_1 * kernel_0[2];
        IN_ORDER;
        const row_v x5_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 45), 3, 4, 5, 6);
        s1_0 += x5_0_0 * kernel_1[2];
        s2_0 += x5_0_0 * kernel_0[3];
        const row_v x5_0_1 = *(const row_v *)(a + 45 + 3);
        s1_1 += x5_0_1 * kernel_1[2];
        s2_1 += x5_0_1 * kernel_0[3];
        IN_ORDER;
        const row_v x5_1_0 = *(const row_v *)(a + 45);
        s1_0 += x5_1_0 * kernel_1[3];
        s2_0 += x5_1_0 * kernel_1[0];
        const row_v x5_1_1 = *(const row_v *)(a + 45 + 4);
        s1_1 += x5_1_1 * kernel_1[3];
        s2_1 += x5_1_1 * kernel_1[0];
        IN_ORDER;
        const row_v x5_2_0 = *(const row_v *)(a + 45 + 1);
        s1_0 += x5_2_0 * kernel_2[0];
        s2_0 += x5_2_0 * kernel_1[1];
        const row_v x5_2_1 = *(const row_v *)(a + 45 + 5);
        s1_1 += x5_2_1 * kernel_2[0];
        s2_1 += x5_2_1 * kernel_1[1];
        IN_ORDER;
        const row_v x6_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 54), 3, 4, 5, 6);
        s2_0 += x6_0_0 * kernel_1[2];
        const row_v x6_0_1 = *(const row_v *)(a + 54 + 3);
        s2_1 += x6_0_1 * kernel_1[2];
        IN_ORDER;
        const row_v x6_1_0 = *(const row_v *)(a + 54);
        s2_0 += x6_1_0 * kernel_1[3];
        const row_v x6_1_1 = *(const row_v *)(a + 54 + 4);
        s2_1 += x6_1_1 * kernel_1[3];
        IN_ORDER;
        const row_v x6_2_0 = *(const row_v *)(a + 54 + 1);
        s2_0 += x6_2_0 * kernel_2[0];
        const row_v x6_2_1 = *(const row_v *)(a + 54 + 5);
        s2_1 += x6_2_1 * kernel_2[0];
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 27) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 31) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s1_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 36) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s1_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 40) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s2_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 45) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s2_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 49) = result_v;
        }
    }
    {
        IN_ORDER;
        const row_v x2_0_0 = *(const row_v *)(a + 18 + 4);
        row_v s0_0 = x2_0_0 * kernel_0[0];
        IN_ORDER;
        const row_v x2_1_0 = *(const row_v *)(a + 18 + 5);
        s0_0 += x2_1_0 * kernel_0[1];
        IN_ORDER;
        const row_v x2_2_0 = __builtin_shufflevector(*(const row_v *)(a + 18 + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x2_2_0 * kernel_0[2];
        IN_ORDER;
        const row_v x3_0_0 = *(const row_v *)(a + 27 + 4);
        s0_0 += x3_0_0 * kernel_0[3];
        row_v s1_0 = x3_0_0 * kernel_0[0];
        IN_ORDER;
        const row_v x3_1_0 = *(const row_v *)(a + 27 + 5);
        s0_0 += x3_1_0 * kernel_1[0];
        s1_0 += x3_1_0 * kernel_0[1];
        IN_ORDER;
        const row_v x3_2_0 = __builtin_shufflevector(*(const row_v *)(a + 27 + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x3_2_0 * kernel_1[1];
        s1_0 += x3_2_0 * kernel_0[2];
        IN_ORDER;
        const row_v x4_0_0 = *(const row_v *)(a + 36 + 4);
        s0_0 += x4_0_0 * kernel_1[2];
        s1_0 += x4_0_0 * kernel_0[3];
        row_v s2_0 = x4_0_0 * kernel_0[0];
        IN_ORDER;
        const row_v x4_1_0 = *(const row_v *)(a + 36 + 5);
        s0_0 += x4_1_0 * kernel_1[3];
        s1_0 += x4_1_0 * kernel_1[0];
        s2_0 += x4_1_0 * kernel_0[1];
        IN_ORDER;
        const row_v x4_2_0 = __builtin_shufflevector(*(const row_v *)(a + 36 + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x4_2_0 * kernel_2[0];
        s1_0 += x4_2_0 * kernel_1[1];
        s2_0 += x4_2_0 * kernel_0[2];
        IN_ORDER;
        const row_v x5_0_0 = *(const row_v *)(a + 45 + 4);
        s1_0 += x5_0_0 * kernel_1[2];
        s2_0 += x5_0_0 * kernel_0[3];
        IN_ORDER;
        const row_v x5_1_0 = *(const row_v *)(a + 45 + 5);
        s1_0 += x5_1_0 * kernel_1[3];
        s2_0 += x5_1_0 * kernel_1[0];
        IN_ORDER;
        const row_v x5_2_0 = __builtin_shufflevector(*(const row_v *)(a + 45 + 5), zero_v, 1, 2, 3, 4);
        s1_0 += x5_2_0 * kernel_2[0];
        s2_0 += x5_2_0 * kernel_1[1];
        IN_ORDER;
        const row_v x6_0_0 = *(const row_v *)(a + 54 + 4);
        s2_0 += x6_0_0 * kernel_1[2];
        IN_ORDER;
        const row_v x6_1_0 = *(const row_v *)(a + 54 + 5);
        s2_0 += x6_1_0 * kernel_1[3];
        IN_ORDER;
        const row_v x6_2_0 = __builtin_shufflevector(*(const row_v *)(a + 54 + 5), zero_v, 1, 2, 3, 4);
        s2_0 += x6_2_0 * kernel_2[0];
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 32) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s1_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 41) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s2_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 50) = result_v;
        }
    }
}

static inline __attribute__((always_inline)) void rows_2(const float *a, const float *weights, float *restrict out, const float *e0) {
    const quad_v kernel_0 = *(const quad_v *)(weights);
    const quad_v kernel_1 = *(const quad_v *)(weights + 4);
    const quad_v kernel_2 = *(const quad_v *)(weights + 8);
    {
        IN_ORDER;
        const row_v x5_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 45), 3, 4, 5, 6);
        row_v s0_0 = x5_0_0 * kernel_0[0];
        const row_v x5_0_1 = *(const row_v *)(a + 45 + 3);
        row_v s0_1 = x5_0_1 * kernel_0[0];
        IN_ORDER;
        const row_v x5_1_0 = *(const row_v *)(a + 45);
        s0_0 += x5_1_0 * kernel_0[1];
        const row_v x5_1_1 = *(const row_v *)(a + 45 + 4);
        s0_1 += x5_1_1 * kernel_0[1];
        IN_ORDER;
        const row_v x5_2_0 = *(const row_v *)(a + 45 + 1);
        s0_0 += x5_2_0 * kernel_0[2];
        const row_v x5_2_1 = *(const row_v *)(a + 45 + 5);
        s0_1 += x5_2_1 * kernel_0[2];
        IN_ORDER;
        const row_v x6_0_0 = __builtin_shufflevector(zero_v, *(const row_v *)(a + 54), 3, 4, 5, 6);
        s0_0 += x6_0_0 * kernel_0[3];
        const row_v x6_0_1 = *(const row_v *)(a + 54 + 3);
        s0_1 += x6_0_1 * kernel_0[3];
        IN_ORDER;
        const row_v x6_1_0 = *(const row_v *)(a + 54);
        s0_0 += x6_1_0 * kernel_1[0];
        const row_v x6_1_1 = *(const row_v *)(a + 54 + 4);
        s0_1 += x6_1_1 * kernel_1[0];
        IN_ORDER;
        const row_v x6_2_0 = *(const row_v *)(a + 54 + 1);
        s0_0 += x6_2_0 * kernel_1[1];
        const row_v x6_2_1 = *(const row_v *)(a + 54 + 5);
        s0_1 += x6_2_1 * kernel_1[1];
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 54) = result_v;
        }
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_1;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 58) = result_v;
        }
    }
    {
        IN_ORDER;
        const row_v x5_0_0 = *(const row_v *)(a + 45 + 4);
        row_v s0_0 = x5_0_0 * kernel_0[0];
        IN_ORDER;
        const row_v x5_1_0 = *(const row_v *)(a + 45 + 5);
        s0_0 += x5_1_0 * kernel_0[1];
        IN_ORDER;
        const row_v x5_2_0 = __builtin_shufflevector(*(const row_v *)(a + 45 + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x5_2_0 * kernel_0[2];
        IN_ORDER;
        const row_v x6_0_0 = *(const row_v *)(a + 54 + 4);
        s0_0 += x6_0_0 * kernel_0[3];
        IN_ORDER;
        const row_v x6_1_0 = *(const row_v *)(a + 54 + 5);
        s0_0 += x6_1_0 * kernel_1[0];
        IN_ORDER;
        const row_v x6_2_0 = __builtin_shufflevector(*(const row_v *)(a + 54 + 5), zero_v, 1, 2, 3, 4);
        s0_0 += x6_2_0 * kernel_1[1];
        {
            const row_v e0_v = *(e0) - zero_v;
            const row_v value = s0_0;
            const row_v result_v = vec_min_number(vec_max_number((value + e0_v), (0.0f - zero_v)), (6.0f - zero_v));
            *(row_v *)(out + 59) = result_v;
        }
    }
}

void tw_part(const tw_args *args, long part) {
    (void)part;
    const long k_part = 6 * (part % 2) / 2 * 1;
    const long k_part_end = min_long(6 * ((part % 2) + 1) / 2 * 1, 6);
    for (long n = 0; n < 1; n++) {
        for (long k = k_part; k < k_part_end; k++) {
            const float *a = args->in[0] + n * 378 + k * 63;
            const float *weights = args->packed + k * 12;
            float *out = args->out + n * 378 + k * 63;
            const float *e0 = args->packed + 80 + k;
            rows_0(a, weights, out, e0);
            rows_1(a, weights, out, e0);
            rows_2(a, weights, out, e0);
        }
    }
}
