/* g2mb1ic4ih13iw21oc4oh7ow11kh3kw3sh2sw2ph1pw1dh0dw0: stencil schema, avx2
   l1: n=1 g=2 k=2 h=8 w=12 c=2 r=3 s=3
   reg: n=1 g=1 k=1 h=2 w=4 c=2 r=3 s=3
   options: lanes=4
   parallel: h/2; packs: nothing */
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
static const row_v zero_v;
/* Loads stay on their side of it: compilers that gather them in front run out of registers. */
#define IN_ORDER __asm__ volatile("" ::: "memory")

void tw_pack(const float *const *constants, float *packed) {
    float *to = packed + 0;
    for (long g = 0; g < 2; g++) {
        for (long k = 0; k < 2; k++) {
            for (long c = 0; c < 2; c++) {
                for (long r = 0; r < 3; r++) {
                    for (long s = 0; s < 3; s++) {
                        *to++ = constants[0][g * 36 + k * 18 + c * 9 + r * 3 + s];
                    }
                }
                for (int i = 0; i < 3; i++)
                    *to++ = 0.0f;
            }
        }
    }
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 384; }

static inline __attribute__((always_inline)) void rows_0(const float *a, const float *weights, float *restrict out) {
    {
        row_v s0_0 = zero_v;
        row_v s1_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x0_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a), *(const row_v *)(a + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x0_0_0 * weights[3];
            const row_v x0_1_0 = __builtin_shufflevector(*(const row_v *)(a), *(const row_v *)(a + 4), 0, 2, 4, 6);
            s0_0 += x0_1_0 * weights[4];
            const row_v x0_2_0 = __builtin_shufflevector(*(const row_v *)(a), *(const row_v *)(a + 4), 1, 3, 5, 7);
            s0_0 += x0_2_0 * weights[5];
            IN_ORDER;
            const row_v x1_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 21), *(const row_v *)(a + 21 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x1_0_0 * weights[6];
            s1_0 += x1_0_0 * weights[0];
            const row_v x1_1_0 = __builtin_shufflevector(*(const row_v *)(a + 21), *(const row_v *)(a + 21 + 4), 0, 2, 4, 6);
            s0_0 += x1_1_0 * weights[7];
            s1_0 += x1_1_0 * weights[1];
            const row_v x1_2_0 = __builtin_shufflevector(*(const row_v *)(a + 21), *(const row_v *)(a + 21 + 4), 1, 3, 5, 7);
            s0_0 += x1_2_0 * weights[8];
            s1_0 += x1_2_0 * weights[2];
            IN_ORDER;
            const row_v x2_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 42), *(const row_v *)(a + 42 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s1_0 += x2_0_0 * weights[3];
            const row_v x2_1_0 = __builtin_shufflevector(*(const row_v *)(a + 42), *(const row_v *)(a + 42 + 4), 0, 2, 4, 6);
            s1_0 += x2_1_0 * weights[4];
            const row_v x2_2_0 = __builtin_shufflevector(*(const row_v *)(a + 42), *(const row_v *)(a + 42 + 4), 1, 3, 5, 7);
            s1_0 += x2_2_0 * weights[5];
            IN_ORDER;
            const row_v x3_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 63), *(const row_v *)(a + 63 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s1_0 += x3_0_0 * weights[6];
            const row_v x3_1_0 = __builtin_shufflevector(*(const row_v *)(a + 63), *(const row_v *)(a + 63 + 4), 0, 2, 4, 6);
            s1_0 += x3_1_0 * weights[7];
            const row_v x3_2_0 = __builtin_shufflevector(*(const row_v *)(a + 63), *(const row_v *)(a + 63 + 4), 1, 3, 5, 7);
            s1_0 += x3_2_0 * weights[8];
        }
        *(row_v *)(out) = s0_0;
        *(row_v *)(out + 11) = s1_0;
    }
    {
        row_v s0_0 = zero_v;
        row_v s1_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x0_0_0 = __builtin_shufflevector(*(const row_v *)(a + 6), *(const row_v *)(a + 10), 1, 3, 5, 7);
            s0_0 += x0_0_0 * weights[3];
            const row_v x0_1_0 = __builtin_shufflevector(*(const row_v *)(a + 8), *(const row_v *)(a + 12), 0, 2, 4, 6);
            s0_0 += x0_1_0 * weights[4];
            const row_v x0_2_0 = __builtin_shufflevector(*(const row_v *)(a + 8), *(const row_v *)(a + 12), 1, 3, 5, 7);
            s0_0 += x0_2_0 * weights[5];
            IN_ORDER;
            const row_v x1_0_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 6), *(const row_v *)(a + 21 + 10), 1, 3, 5, 7);
            s0_0 += x1_0_0 * weights[6];
            s1_0 += x1_0_0 * weights[0];
            const row_v x1_1_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 8), *(const row_v *)(a + 21 + 12), 0, 2, 4, 6);
            s0_0 += x1_1_0 * weights[7];
            s1_0 += x1_1_0 * weights[1];
            const row_v x1_2_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 8), *(const row_v *)(a + 21 + 12), 1, 3, 5, 7);
            s0_0 += x1_2_0 * weights[8];
            s1_0 += x1_2_0 * weights[2];
            IN_ORDER;
            const row_v x2_0_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 6), *(const row_v *)(a + 42 + 10), 1, 3, 5, 7);
            s1_0 += x2_0_0 * weights[3];
            const row_v x2_1_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 8), *(const row_v *)(a + 42 + 12), 0, 2, 4, 6);
            s1_0 += x2_1_0 * weights[4];
            const row_v x2_2_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 8), *(const row_v *)(a + 42 + 12), 1, 3, 5, 7);
            s1_0 += x2_2_0 * weights[5];
            IN_ORDER;
            const row_v x3_0_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 6), *(const row_v *)(a + 63 + 10), 1, 3, 5, 7);
            s1_0 += x3_0_0 * weights[6];
            const row_v x3_1_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 8), *(const row_v *)(a + 63 + 12), 0, 2, 4, 6);
            s1_0 += x3_1_0 * weights[7];
            const row_v x3_2_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 8), *(const row_v *)(a + 63 + 12), 1, 3, 5, 7);
            s1_0 += x3_2_0 * weights[8];
        }
        *(row_v *)(out + 4) = s0_0;
        *(row_v *)(out + 15) = s1_0;
    }
    {
        row_v s0_0 = zero_v;
        row_v s1_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x0_0_0 = __builtin_shufflevector(*(const row_v *)(a + 12), *(const row_v *)(a + 16), 1, 3, 5, 7);
            s0_0 += x0_0_0 * weights[3];
            const row_v x0_1_0 = __builtin_shufflevector(*(const row_v *)(a + 14), *(const row_v *)(a + 17), 0, 2, 5, 7);
            s0_0 += x0_1_0 * weights[4];
            const row_v x0_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 14), *(const row_v *)(a + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x0_2_0 * weights[5];
            IN_ORDER;
            const row_v x1_0_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 12), *(const row_v *)(a + 21 + 16), 1, 3, 5, 7);
            s0_0 += x1_0_0 * weights[6];
            s1_0 += x1_0_0 * weights[0];
            const row_v x1_1_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 14), *(const row_v *)(a + 21 + 17), 0, 2, 5, 7);
            s0_0 += x1_1_0 * weights[7];
            s1_0 += x1_1_0 * weights[1];
            const row_v x1_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 21 + 14), *(const row_v *)(a + 21 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x1_2_0 * weights[8];
            s1_0 += x1_2_0 * weights[2];
            IN_ORDER;
            const row_v x2_0_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 12), *(const row_v *)(a + 42 + 16), 1, 3, 5, 7);
            s1_0 += x2_0_0 * weights[3];
            const row_v x2_1_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 14), *(const row_v *)(a + 42 + 17), 0, 2, 5, 7);
            s1_0 += x2_1_0 * weights[4];
            const row_v x2_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 42 + 14), *(const row_v *)(a + 42 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s1_0 += x2_2_0 * weights[5];
            IN_ORDER;
            const row_v x3_0_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 12), *(const row_v *)(a + 63 + 16), 1, 3, 5, 7);
            s1_0 += x3_0_0 * weights[6];
            const row_v x3_1_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 14), *(const row_v *)(a + 63 + 17), 0, 2, 5, 7);
            s1_0 += x3_1_0 * weights[7];
            const row_v x3_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 63 + 14), *(const row_v *)(a + 63 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s1_0 += x3_2_0 * weights[8];
        }
        *(row_v *)(out + 7) = s0_0;
        *(row_v *)(out + 18) = s1_0;
    }
}

static inline __attribute__((always_inline)) void rows_1(const float *a, const float *weights, float *restrict out, long h) {
    a += (h * 2 + -1) * 21;
    out += h * 11;
    {
        row_v s0_0 = zero_v;
        row_v s1_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x0_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a), *(const row_v *)(a + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x0_0_0 * weights[0];
            const row_v x0_1_0 = __builtin_shufflevector(*(const row_v *)(a), *(const row_v *)(a + 4), 0, 2, 4, 6);
            s0_0 += x0_1_0 * weights[1];
            const row_v x0_2_0 = __builtin_shufflevector(*(const row_v *)(a), *(const row_v *)(a + 4), 1, 3, 5, 7);
            s0_0 += x0_2_0 * weights[2];
            IN_ORDER;
            const row_v x1_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 21), *(const row_v *)(a + 21 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x1_0_0 * weights[3];
            const row_v x1_1_0 = __builtin_shufflevector(*(const row_v *)(a + 21), *(const row_v *)(a + 21 + 4), 0, 2, 4, 6);
            s0_0 += x1_1_0 * weights[4];
            const row_v x1_2_0 = __builtin_shufflevector(*(const row_v *)(a + 21), *(const row_v *)(a + 21 + 4), 1, 3, 5, 7);
            s0_0 += x1_2_0 * weights[5];
            IN_ORDER;
            const row_v x2_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 42), *(const row_v *)(a + 42 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x2_0_0 * weights[6];
            s1_0 += x2_0_0 * weights[0];
            const row_v x2_1_0 = __builtin_shufflevector(*(const row_v *)(a + 42), *(const row_v *)(a + 42 + 4), 0, 2, 4, 6);
            s0_0 += x2_1_0 * weights[7];
            s1_0 += x2_1_0 * weights[1];
            const row_v x2_2_0 = __builtin_shufflevector(*(const row_v *)(a + 42), *(const row_v *)(a + 42 + 4), 1, 3, 5, 7);
            s0_0 += x2_2_0 * weights[8];
            s1_0 += x2_2_0 * weights[2];
            IN_ORDER;
            const row_v x3_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 63), *(const row_v *)(a + 63 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s1_0 += x3_0_0 * weights[3];
            const row_v x3_1_0 = __builtin_shufflevector(*(const row_v *)(a + 63), *(const row_v *)(a + 63 + 4), 0, 2, 4, 6);
            s1_0 += x3_1_0 * weights[4];
            const row_v x3_2_0 = __builtin_shufflevector(*(const row_v *)(a + 63), *(const row_v *)(a + 63 + 4), 1, 3, 5, 7);
            s1_0 += x3_2_0 * weights[5];
            IN_ORDER;
            const row_v x4_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 84), *(const row_v *)(a + 84 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s1_0 += x4_0_0 * weights[6];
            const row_v x4_1_0 = __builtin_shufflevector(*(const row_v *)(a + 84), *(const row_v *)(a + 84 + 4), 0, 2, 4, 6);
            s1_0 += x4_1_0 * weights[7];
            const row_v x4_2_0 = __builtin_shufflevector(*(const row_v *)(a + 84), *(const row_v *)(a + 84 + 4), 1, 3, 5, 7);
            s1_0 += x4_2_0 * weights[8];
        }
        *(row_v *)(out) = s0_0;
        *(row_v *)(out + 11) = s1_0;
    }
    {
        row_v s0_0 = zero_v;
        row_v s1_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x0_0_0 = __builtin_shufflevector(*(const row_v *)(a + 6), *(const row_v *)(a + 10), 1, 3, 5, 7);
            s0_0 += x0_0_0 * weights[0];
            const row_v x0_1_0 = __builtin_shufflevector(*(const row_v *)(a + 8), *(const row_v *)(a + 12), 0, 2, 4, 6);
            s0_0 += x0_1_0 * weights[1];
            const row_v x0_2_0 = __builtin_shufflevector(*(const row_v *)(a + 8), *(const row_v *)(a + 12), 1, 3, 5, 7);
            s0_0 += x0_2_0 * weights[2];
            IN_ORDER;
            const row_v x1_0_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 6), *(const row_v *)(a + 21 + 10), 1, 3, 5, 7);
            s0_0 += x1_0_0 * weights[3];
            const row_v x1_1_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 8), *(const row_v *)(a + 21 + 12), 0, 2, 4, 6);
            s0_0 += x1_1_0 * weights[4];
            const row_v x1_2_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 8), *(const row_v *)(a + 21 + 12), 1, 3, 5, 7);
            s0_0 += x1_2_0 * weights[5];
            IN_ORDER;
            const row_v x2_0_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 6), *(const row_v *)(a + 42 + 10), 1, 3, 5, 7);
            s0_0 += x2_0_0 * weights[6];
            s1_0 += x2_0_0 * weights[0];
            const row_v x2_1_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 8), *(const row_v *)(a + 42 + 12), 0, 2, 4, 6);
            s0_0 += x2_1_0 * weights[7];
            s1_0 += x2_1_0 * weights[1];
            const row_v x2_2_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 8), *(const row_v *)(a + 42 + 12), 1, 3, 5, 7);
            s0_0 += x2_2_0 * weights[8];
            s1_0 += x2_2_0 * weights[2];
            IN_ORDER;
            const row_v x3_0_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 6), *(const row_v *)(a + 63 + 10), 1, 3, 5, 7);
            s1_0 += x3_0_0 * weights[3];
            const row_v x3_1_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 8), *(const row_v *)(a + 63 + 12), 0, 2, 4, 6);
            s1_0 += x3_1_0 * weights[4];
            const row_v x3_2_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 8), *(const row_v *)(a + 63 + 12), 1, 3, 5, 7);
            s1_0 += x3_2_0 * weights[5];
            IN_ORDER;
            const row_v x4_0_0 = __builtin_shufflevector(*(const row_v *)(a + 84 + 6), *(const row_v *)(a + 84 + 10), 1, 3, 5, 7);
            s1_0 += x4_0_0 * weights[6];
            const row_v x4_1_0 = __builtin_shufflevector(*(const row_v *)(a + 84 + 8), *(const row_v *)(a + 84 + 12), 0, 2, 4, 6);
            s1_0 += x4_1_0 * weights[7];
            const row_v x4_2_0 = __builtin_shufflevector(*(const row_v *)(a + 84 + 8), *(const row_v *)(a + 84 + 12), 1, 3, 5, 7);
            s1_0 += x4_2_0 * weights[8];
        }
        *(row_v *)(out + 4) = s0_0;
        *(row_v *)(out + 15) = s1_0;
    }
    {
        row_v s0_0 = zero_v;
        row_v s1_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x0_0_0 = __builtin_shufflevector(*(const row_v *)(a + 12), *(const row_v *)(a + 16), 1, 3, 5, 7);
            s0_0 += x0_0_0 * weights[0];
            const row_v x0_1_0 = __builtin_shufflevector(*(const row_v *)(a + 14), *(const row_v *)(a + 17), 0, 2, 5, 7);
            s0_0 += x0_1_0 * weights[1];
            const row_v x0_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 14), *(const row_v *)(a + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x0_2_0 * weights[2];
            IN_ORDER;
            const row_v x1_0_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 12), *(const row_v *)(a + 21 + 16), 1, 3, 5, 7);
            s0_0 += x1_0_0 * weights[3];
            const row_v x1_1_0 = __builtin_shufflevector(*(const row_v *)(a + 21 + 14), *(const row_v *)(a + 21 + 17), 0, 2, 5, 7);
            s0_0 += x1_1_0 * weights[4];
            const row_v x1_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 21 + 14), *(const row_v *)(a + 21 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x1_2_0 * weights[5];
            IN_ORDER;
            const row_v x2_0_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 12), *(const row_v *)(a + 42 + 16), 1, 3, 5, 7);
            s0_0 += x2_0_0 * weights[6];
            s1_0 += x2_0_0 * weights[0];
            const row_v x2_1_0 = __builtin_shufflevector(*(const row_v *)(a + 42 + 14), *(const row_v *)(a + 42 + 17), 0, 2, 5, 7);
            s0_0 += x2_1_0 * weights[7];
            s1_0 += x2_1_0 * weights[1];
            const row_v x2_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 42 + 14), *(const row_v *)(a + 42 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x2_2_0 * weights[8];
            s1_0 += x2_2_0 * weights[2];
            IN_ORDER;
            const row_v x3_0_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 12), *(const row_v *)(a + 63 + 16), 1, 3, 5, 7);
            s1_0 += x3_0_0 * weights[3];
            const row_v x3_1_0 = __builtin_shufflevector(*(const row_v *)(a + 63 + 14), *(const row_v *)(a + 63 + 17), 0, 2, 5, 7);
            s1_0 += x3_1_0 * weights[4];
            const row_v x3_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 63 + 14), *(const row_v *)(a + 63 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s1_0 += x3_2_0 * weights[5];
            IN_ORDER;
            const row_v x4_0_0 = __builtin_shufflevector(*(const row_v *)(a + 84 + 12), *(const row_v *)(a + 84 + 16), 1, 3, 5, 7);
            s1_0 += x4_0_0 * weights[6];
            const row_v x4_1_0 = __builtin_shufflevector(*(const row_v *)(a + 84 + 14), *(const row_v *)(a + 84 + 17), 0, 2, 5, 7);
            s1_0 += x4_1_0 * weights[7];
            const row_v x4_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 84 + 14), *(const row_v *)(a + 84 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s1_0 += x4_2_0 * weights[8];
        }
        *(row_v *)(out + 7) = s0_0;
        *(row_v *)(out + 18) = s1_0;
    }
}

static inline __attribute__((always_inline)) void rows_2(const float *a, const float *weights, float *restrict out) {
    {
        row_v s0_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x11_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 231), *(const row_v *)(a + 231 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x11_0_0 * weights[0];
            const row_v x11_1_0 = __builtin_shufflevector(*(const row_v *)(a + 231), *(const row_v *)(a + 231 + 4), 0, 2, 4, 6);
            s0_0 += x11_1_0 * weights[1];
            const row_v x11_2_0 = __builtin_shufflevector(*(const row_v *)(a + 231), *(const row_v *)(a + 231 + 4), 1, 3, 5, 7);
            s0_0 += x11_2_0 * weights[2];
            IN_ORDER;
            const row_v x12_0_0 = __builtin_shufflevector(zero_v, __builtin_shufflevector(*(const row_v *)(a + 252), *(const row_v *)(a + 252 + 4), -1, 1, 3, 5), 3, 5, 6, 7);
            s0_0 += x12_0_0 * weights[3];
            const row_v x12_1_0 = __builtin_shufflevector(*(const row_v *)(a + 252), *(const row_v *)(a + 252 + 4), 0, 2, 4, 6);
            s0_0 += x12_1_0 * weights[4];
            const row_v x12_2_0 = __builtin_shufflevector(*(const row_v *)(a + 252), *(const row_v *)(a + 252 + 4), 1, 3, 5, 7);
            s0_0 += x12_2_0 * weights[5];
        }
        *(row_v *)(out + 66) = s0_0;
    }
    {
        row_v s0_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x11_0_0 = __builtin_shufflevector(*(const row_v *)(a + 231 + 6), *(const row_v *)(a + 231 + 10), 1, 3, 5, 7);
            s0_0 += x11_0_0 * weights[0];
            const row_v x11_1_0 = __builtin_shufflevector(*(const row_v *)(a + 231 + 8), *(const row_v *)(a + 231 + 12), 0, 2, 4, 6);
            s0_0 += x11_1_0 * weights[1];
            const row_v x11_2_0 = __builtin_shufflevector(*(const row_v *)(a + 231 + 8), *(const row_v *)(a + 231 + 12), 1, 3, 5, 7);
            s0_0 += x11_2_0 * weights[2];
            IN_ORDER;
            const row_v x12_0_0 = __builtin_shufflevector(*(const row_v *)(a + 252 + 6), *(const row_v *)(a + 252 + 10), 1, 3, 5, 7);
            s0_0 += x12_0_0 * weights[3];
            const row_v x12_1_0 = __builtin_shufflevector(*(const row_v *)(a + 252 + 8), *(const row_v *)(a + 252 + 12), 0, 2, 4, 6);
            s0_0 += x12_1_0 * weights[4];
            const row_v x12_2_0 = __builtin_shufflevector(*(const row_v *)(a + 252 + 8), *(const row_v *)(a + 252 + 12), 1, 3, 5, 7);
            s0_0 += x12_2_0 * weights[5];
        }
        *(row_v *)(out + 70) = s0_0;
    }
    {
        row_v s0_0 = zero_v;
        const float *a_all = a, *weights_all = weights;
        for (long c = 0; c < 2; c++) {
            const float *a = a_all + c * 273;
            const float *weights = weights_all + c * 12;
            IN_ORDER;
            const row_v x11_0_0 = __builtin_shufflevector(*(const row_v *)(a + 231 + 12), *(const row_v *)(a + 231 + 16), 1, 3, 5, 7);
            s0_0 += x11_0_0 * weights[0];
            const row_v x11_1_0 = __builtin_shufflevector(*(const row_v *)(a + 231 + 14), *(const row_v *)(a + 231 + 17), 0, 2, 5, 7);
            s0_0 += x11_1_0 * weights[1];
            const row_v x11_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 231 + 14), *(const row_v *)(a + 231 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x11_2_0 * weights[2];
            IN_ORDER;
            const row_v x12_0_0 = __builtin_shufflevector(*(const row_v *)(a + 252 + 12), *(const row_v *)(a + 252 + 16), 1, 3, 5, 7);
            s0_0 += x12_0_0 * weights[3];
            const row_v x12_1_0 = __builtin_shufflevector(*(const row_v *)(a + 252 + 14), *(const row_v *)(a + 252 + 17), 0, 2, 5, 7);
            s0_0 += x12_1_0 * weights[4];
            const row_v x12_2_0 = __builtin_shufflevector(__builtin_shufflevector(*(const row_v *)(a + 252 + 14), *(const row_v *)(a + 252 + 17), 1, 3, 6, -1), zero_v, 0, 1, 2, 4);
            s0_0 += x12_2_0 * weights[5];
        }
        *(row_v *)(out + 73) = s0_0;
    }
}

void tw_part(const tw_args *args, long part) {
    (void)part;
    const long h_part = 4 * (part % 2) / 2 * 2;
    const long h_part_end = min_long(4 * ((part % 2) + 1) / 2 * 2, 7);
    for (long n = 0; n < 1; n++) {
        for (long g = 0; g < 2; g++) {
            for (long k = 0; k < 2; k++) {
                const float *a = args->in[0] + n * 1092 + g * 546;
                const float *weights = args->packed + g * 48 + k * 24;
                float *out = args->out + n * 308 + g * 154 + k * 77;
                if (h_part <= 0 && 0 < h_part_end)
                    rows_0(a, weights, out);
                for (long h = max_long(h_part, 2); h < min_long(h_part_end, 6); h += 2)
                    rows_1(a, weights, out, h);
                if (h_part <= 6 && 6 < h_part_end)
                    rows_2(a, weights, out);
            }
        }
    }
}
