/* maxpool-1x3x6x9k3x3s2x2p1x1d1x1: general schema, portable
   l1: n=1 c=3 h=3 w=5 r=3 s=3
   reg: n=1 c=3 h=3 w=3 r=3 s=3
   parallel: w/2; packs: nothing */
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

static inline __attribute__((always_inline)) float max_f32(float a, float b) { return pick_f32((a < b) | (b != b), b, a); }

static __attribute__((noinline, unused)) void border_0(const float *restrict p0_, float *restrict p1_, long c, long h, long low_, long high_) {
    for (long at_ = low_; at_ < high_; at_ += 16) {
        const long count_ = min_long(16, high_ - at_);
        {
            float partial_[16];
            #pragma omp simd
            for (long j_ = 0; j_ < 16; j_++)
                partial_[j_] = -INFINITY;
            for (long r = 0; r < 3; r++) {
                for (long s = 0; s < 3; s++) {
                    if (!((unsigned long)(h * 2 + r + -1) < 6ul))
                        continue;
                    long from_ = 0, to_ = count_;
                    from_ = max_long(from_, ceil_div(-(s + -1 + at_ * 2), 2));
                    to_ = min_long(to_, ceil_div(9 - (s + -1 + at_ * 2), 2));
                    #pragma omp simd
                    for (long j_ = from_; j_ < to_; j_++) {
                        const long w = at_ + j_;
                        partial_[j_] = max_f32(partial_[j_], p0_[c * 54 + h * 18 + r * 9 + w * 2 + s + -10]);
                    }
                }
            }
            #pragma omp simd
            for (long j_ = 0; j_ < count_; j_++) {
                const long w = at_ + j_;
                const float value_0 = partial_[j_];
                p1_[c * 15 + h * 5 + w] = value_0;
            }
        }
    }
}

void tw_pack(const float *const *constants, float *packed) {
    (void)constants, (void)packed;
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 0; }
long tw_packed_bytes(void) { return 0; }

void tw_part(const tw_args *args, long part) {
    (void)part;
    const long w_part = 2 * (part % 2) / 2 * 3;
    const long w_part_end = min_long(2 * ((part % 2) + 1) / 2 * 3, 5);
    {
        const float *restrict p0_ = args->in[0];
        float *restrict p1_ = args->out;
        for (long c = 0; c < 3; c++) {
            for (long h = 0; h < 3; h++) {
                if (h >= 1) {
                    const long first_ = min_long(max_long(w_part, 1), w_part_end);
                    const long last_ = max_long(first_, min_long(4, w_part_end));
                    border_0(p0_, p1_, c, h, w_part, first_);
                    #pragma omp simd
                    for (long w = first_; w < last_; w++) {
                        float value_0 = p0_[c * 54 + h * 18 + w * 2 + -10];
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + -9]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + -8]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + -1]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + 1]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + 8]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + 9]);
                        value_0 = max_f32(value_0, p0_[c * 54 + h * 18 + w * 2 + 10]);
                        p1_[c * 15 + h * 5 + w] = value_0;
                    }
                    border_0(p0_, p1_, c, h, last_, w_part_end);
                }
                else
                    border_0(p0_, p1_, c, h, w_part, w_part_end);
            }
        }
    }
}
