/* matmul-m6n12k10: general schema, portable
   l1: i=6 j=12 k=10
   reg: i=6 j=12 k=10
   parallel: one thread; packs: nothing */
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

/* Smallest whole number that is at least a / b, for b > 0 and any a. */
static inline long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

void tw_pack(const float *const *constants, float *packed) {
    memcpy(packed + 0, constants[0], 480);
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 512; }

void tw_part(const tw_args *args, long part) {
    (void)part;
    {
        const float *restrict p0_ = args->in[0];
        const float *restrict p1_ = args->packed + 0;
        float *restrict p2_ = args->out;
        for (long i = 0; i < 6; i++) {
            #pragma omp simd
            for (long j = 0; j < 12; j++) {
                float value_0 = (p0_[i * 10] * p1_[j]);
                value_0 = (value_0 + (p0_[i * 10 + 1] * p1_[j + 12]));
                value_0 = (value_0 + (p0_[i * 10 + 2] * p1_[j + 24]));
                value_0 = (value_0 + (p0_[i * 10 + 3] * p1_[j + 36]));
                value_0 = (value_0 + (p0_[i * 10 + 4] * p1_[j + 48]));
                value_0 = (value_0 + (p0_[i * 10 + 5] * p1_[j + 60]));
                value_0 = (value_0 + (p0_[i * 10 + 6] * p1_[j + 72]));
                value_0 = (value_0 + (p0_[i * 10 + 7] * p1_[j + 84]));
                value_0 = (value_0 + (p0_[i * 10 + 8] * p1_[j + 96]));
                value_0 = (value_0 + (p0_[i * 10 + 9] * p1_[j + 108]));
                p2_[i * 12 + j] = value_0;
            }
        }
    }
}
