/* softmax-4x20@1: general schema, portable
   l1: d0=4 d1=20
   reg: d0=2 d1=20
   parallel: d0/2; packs: nothing */
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

/* e^x = 2^n e^r with |r| <= ln(2) / 2. Results below the least normal number are 0. What is too
   large, and NaN, whose bits the sum of exponents spoils, are x + infinity. */
static inline __attribute__((always_inline)) float exp_f32(float x)
{
    const float shifted = x * 1.44269504f + 12582912.0f; /* n in the lowest bits */
    const float whole = shifted - 12582912.0f;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const uint32_t bits = (uint32_t)bits_f32(p) + ((uint32_t)bits_f32(shifted) << 23);
    const float result = pick_f32(x < -87.33654f, 0.0f, f32_bits((int32_t)bits));
    return pick_f32(x <= 88.72283f, result, x + INFINITY);
}

static inline __attribute__((always_inline)) float max_f32(float a, float b) { return pick_f32((a < b) | (b != b), b, a); }

void tw_pack(const float *const *constants, float *packed) {
    (void)constants, (void)packed;
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 128; }
long tw_packed_bytes(void) { return 0; }

void tw_part(const tw_args *args, long part) {
    (void)part;
    const long d0_part = 2 * (part % 2) / 2 * 2;
    const long d0_part_end = min_long(2 * ((part % 2) + 1) / 2 * 2, 4);
    for (long d0 = d0_part; d0 < d0_part_end; d0++) {
        {
            const float *restrict p0_ = args->in[0];
            float *restrict p1_ = (float *)((args->scratch + part * tw_scratch_bytes() + 0));
            {
                float partial_[8];
                #pragma omp simd
                for (long j_ = 0; j_ < 8; j_++)
                    partial_[j_] = -INFINITY;
                for (long at_ = 0; at_ < 16; at_ += 8) {
                    #pragma omp simd
                    for (long j_ = 0; j_ < 8; j_++) {
                        const long d1 = at_ + j_;
                        partial_[j_] = max_f32(partial_[j_], p0_[d0 * 20 + d1]);
                    }
                }
                #pragma omp simd
                for (long j_ = 0; j_ < 4; j_++) {
                    const long d1 = 16 + j_;
                    partial_[j_] = max_f32(partial_[j_], p0_[d0 * 20 + d1]);
                }
                float value_0 = partial_[0];
                for (long j_ = 1; j_ < 8; j_++)
                    value_0 = max_f32(value_0, partial_[j_]);
                p1_[0] = value_0;
            }
        }
        {
            const float *restrict p0_ = args->in[0];
            const float *restrict p1_ = (const float *)((args->scratch + part * tw_scratch_bytes() + 0));
            float *restrict p2_ = (float *)((args->scratch + part * tw_scratch_bytes() + 64));
            {
                float partial_[8];
                #pragma omp simd
                for (long j_ = 0; j_ < 8; j_++)
                    partial_[j_] = 0.0f;
                for (long at_ = 0; at_ < 16; at_ += 8) {
                    #pragma omp simd
                    for (long j_ = 0; j_ < 8; j_++) {
                        const long d1 = at_ + j_;
                        partial_[j_] = (partial_[j_] + exp_f32((p0_[d0 * 20 + d1] - p1_[0])));
                    }
                }
                #pragma omp simd
                for (long j_ = 0; j_ < 4; j_++) {
                    const long d1 = 16 + j_;
                    partial_[j_] = (partial_[j_] + exp_f32((p0_[d0 * 20 + d1] - p1_[0])));
                }
                float value_0 = partial_[0];
                for (long j_ = 1; j_ < 8; j_++)
                    value_0 = (value_0 + partial_[j_]);
                p2_[0] = value_0;
            }
        }
        {
            const float *restrict p0_ = args->in[0];
            const float *restrict p1_ = (const float *)((args->scratch + part * tw_scratch_bytes() + 0));
            const float *restrict p2_ = (const float *)((args->scratch + part * tw_scratch_bytes() + 64));
            float *restrict p3_ = args->out;
            #pragma omp simd
            for (long d1 = 0; d1 < 20; d1++) {
                const float value_0 = (exp_f32((p0_[d0 * 20 + d1] - p1_[0])) / p2_[0]);
                p3_[d0 * 20 + d1] = value_0;
            }
        }
    }
}
