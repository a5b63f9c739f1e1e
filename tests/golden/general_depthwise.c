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

static inline __attribute__((always_inline)) float max_number_f32(float x, float number) { return pick_f32(x < number, number, x); }

static inline __attribute__((always_inline)) float min_number_f32(float x, float number) { return pick_f32(x > number, number, x); }

static __attribute__((noinline, unused)) void border_0(const float *restrict p0_, const float *restrict p1_, const float *restrict p2_, float *restrict p3_, long k, long h, long low_, long high_) {
    for (long at_ = low_; at_ < high_; at_ += 16) {
        const long count_ = min_long(16, high_ - at_);
        {
            float partial_[16];
            #pragma omp simd
            for (long j_ = 0; j_ < 16; j_++)
                partial_[j_] = 0.0f;
            for (long r = 0; r < 3; r++) {
                for (long s = 0; s < 3; s++) {
                    if (!((unsigned long)(h + r + -1) < 7ul))
                        continue;
                    long from_ = 0, to_ = count_;
                    from_ = max_long(from_, ceil_div(-(s + -1 + at_), 1));
                    to_ = min_long(to_, ceil_div(9 - (s + -1 + at_), 1));
                    #pragma omp simd
                    for (long j_ = from_; j_ < to_; j_++) {
                        const long w = at_ + j_;
                        partial_[j_] = (partial_[j_] + (p0_[k * 63 + h * 9 + r * 9 + w + s + -10] * p1_[k * 9 + r * 3 + s]));
                    }
                }
            }
            #pragma omp simd
            for (long j_ = 0; j_ < count_; j_++) {
                const long w = at_ + j_;
                const float value_0 = partial_[j_];
                const float value_1 = (value_0 + p2_[k]);
                const float value_2 = min_number_f32(max_number_f32(value_1, 0.0f), 6.0f);
                p3_[k * 63 + h * 9 + w] = value_2;
            }
        }
    }
}

void tw_pack(const float *const *constants, float *packed) {
    memcpy(packed + 0, constants[0], 216);
    memcpy(packed + 64, constants[1], 24);
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 320; }

void tw_part(const tw_args *args, long part) {
    (void)part;
    const long k_part = 2 * (part % 2) / 2 * 3;
    const long k_part_end = min_long(2 * ((part % 2) + 1) / 2 * 3, 6);
    {
        const float *restrict p0_ = args->in[0];
        const float *restrict p1_ = args->packed + 0;
        const float *restrict p2_ = args->packed + 64;
        float *restrict p3_ = args->out;
        for (long k = k_part; k < k_part_end; k++) {
            for (long h = 0; h < 7; h++) {
                if (h >= 1 && h < 6) {
                    {
                        const long w = 0;
                        float value_0 = (p0_[k * 63 + h * 9 + w + -9] * p1_[k * 9 + 1]);
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + -8] * p1_[k * 9 + 2]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w] * p1_[k * 9 + 4]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 1] * p1_[k * 9 + 5]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 9] * p1_[k * 9 + 7]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 10] * p1_[k * 9 + 8]));
                        const float value_1 = (value_0 + p2_[k]);
                        const float value_2 = min_number_f32(max_number_f32(value_1, 0.0f), 6.0f);
                        p3_[k * 63 + h * 9 + w] = value_2;
                    }
                    #pragma omp simd
                    for (long w = 1; w < 8; w++) {
                        float value_0 = (p0_[k * 63 + h * 9 + w + -10] * p1_[k * 9]);
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + -9] * p1_[k * 9 + 1]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + -8] * p1_[k * 9 + 2]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + -1] * p1_[k * 9 + 3]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w] * p1_[k * 9 + 4]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 1] * p1_[k * 9 + 5]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 8] * p1_[k * 9 + 6]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 9] * p1_[k * 9 + 7]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 10] * p1_[k * 9 + 8]));
                        const float value_1 = (value_0 + p2_[k]);
                        const float value_2 = min_number_f32(max_number_f32(value_1, 0.0f), 6.0f);
                        p3_[k * 63 + h * 9 + w] = value_2;
                    }
                    {
                        const long w = 8;
                        float value_0 = (p0_[k * 63 + h * 9 + w + -10] * p1_[k * 9]);
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + -9] * p1_[k * 9 + 1]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + -1] * p1_[k * 9 + 3]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w] * p1_[k * 9 + 4]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 8] * p1_[k * 9 + 6]));
                        value_0 = (value_0 + (p0_[k * 63 + h * 9 + w + 9] * p1_[k * 9 + 7]));
                        const float value_1 = (value_0 + p2_[k]);
                        const float value_2 = min_number_f32(max_number_f32(value_1, 0.0f), 6.0f);
                        p3_[k * 63 + h * 9 + w] = value_2;
                    }
                }
                else
                    border_0(p0_, p1_, p2_, p3_, k, h, 0, 9);
            }
        }
    }
}
