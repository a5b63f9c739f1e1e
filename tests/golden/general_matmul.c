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

/* Smallest whole number that is at least a / b, for b > 0 and any a. */
static inline long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

void tw_pack(const float *const *constants, float *packed) {
    memcpy(packed + 0, constants[0], 120 * sizeof(float));
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 512; }

void tw_part(const tw_args *args, long part) {
    (void)part;
    float *restrict out = args->out;
    const float *restrict t0 = args->in[0];
    const float *restrict t1 = args->packed + 0;
    if (1) {
        for (long i = 0; i < 6; i++) {
            for (long j = 0; j < 12; j++) {
                out[i * 12 + j] = 0.0f;
            }
        }
    }
    for (long i = 0; i < 6; i++) {
        for (long k = 0; k < 10; k++) {
            long low = 0, high = 12;
            for (long j = low; j < high; j++) {
                out[i * 12 + j] = out[i * 12 + j] + (t0[i * 10 + k] * t1[k * 12 + j]);
            }
        }
    }
}
