/* g6mb1ic6ih7iw9oc6oh7ow9kh3kw3sh1sw1ph1pw1dh0dw0+bias+relu6: general schema, portable
   l2: n=1 k=6 h=7 w=9 r=3 s=3
   l1: n=1 k=6 h=7 w=9 r=3 s=3
   reg: n=1 k=3 h=7 w=9 r=3 s=3
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

/* Smallest whole number that is at least a / b, for b > 0 and any a. */
static inline long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

void tw_pack(const float *const *constants, float *packed) {
    memcpy(packed + 0, constants[0], 54 * sizeof(float));
    memcpy(packed + 64, constants[1], 6 * sizeof(float));
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 320; }

void tw_part(const tw_args *args, long part) {
    (void)part;
    float *restrict out = args->out;
    const float *restrict t0 = args->in[0];
    const float *restrict t1 = args->packed + 0;
    const float *restrict e0 = args->packed + 64;
    const long k_part = 2 * (part % 2) / 2 * 3;
    const long k_part_end = min_long(2 * ((part % 2) + 1) / 2 * 3, 6);
    if (1) {
        for (long n = 0; n < 1; n++) {
            for (long k = k_part; k < k_part_end; k++) {
                for (long h = 0; h < 7; h++) {
                    for (long w = 0; w < 9; w++) {
                        out[n * 378 + k * 63 + h * 9 + w] = 0.0f;
                    }
                }
            }
        }
    }
    for (long n = 0; n < 1; n++) {
        for (long k = k_part; k < k_part_end; k++) {
            for (long h = 0; h < 7; h++) {
                for (long r = 0; r < 3; r++) {
                    for (long s = 0; s < 3; s++) {
                        if (!((unsigned long)(h + r + -1) < 7ul))
                            continue;
                        long low = 0, high = 9;
                        low = max_long(low, ceil_div(-(s + -1), 1));
                        high = min_long(high, ceil_div(9 - (s + -1), 1));
                        for (long w = low; w < high; w++) {
                            out[n * 378 + k * 63 + h * 9 + w] = out[n * 378 + k * 63 + h * 9 + w] + (t0[n * 378 + k * 63 + h * 9 + r * 9 + w + s + -10] * t1[k * 9 + r * 3 + s]);
                        }
                    }
                }
            }
        }
    }
    if (1) {
        for (long n = 0; n < 1; n++) {
            for (long k = k_part; k < k_part_end; k++) {
                for (long h = 0; h < 7; h++) {
                    for (long w = 0; w < 9; w++) {
                        const long e0_at = k;
                        const float value = out[n * 378 + k * 63 + h * 9 + w];
                        out[n * 378 + k * 63 + h * 9 + w] = fminf(fmaxf((value + e0[e0_at]), 0.0f), 6.0f);
                    }
                }
            }
        }
    }
}
