/* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0>>maxpool-1x20x4x5k3x3s2x2p1x1d1x1: chain schema, portable
   l1: n=1 c=20 h=2 w=3 r=3 s=3
   reg: n=1 c=20 h=1 w=3 r=3 s=3
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
                    if (!((unsigned long)(h * 2 + r + -1) < 4ul))
                        continue;
                    long from_ = 0, to_ = count_;
                    from_ = max_long(from_, ceil_div(-(s + -1 + at_ * 2), 2));
                    to_ = min_long(to_, ceil_div(5 - (s + -1 + at_ * 2), 2));
                    #pragma omp simd
                    for (long j_ = from_; j_ < to_; j_++) {
                        const long w = at_ + j_;
                        partial_[j_] = max_f32(partial_[j_], p0_[c * 15 + h * 10 + r * 5 + w * 2 + s + -6]);
                    }
                }
            }
            #pragma omp simd
            for (long j_ = 0; j_ < count_; j_++) {
                const long w = at_ + j_;
                const float value_0 = partial_[j_];
                p1_[c * 6 + h * 3 + w] = value_0;
            }
        }
    }
}

void tw_pack(const float *const *constants, float *packed) {
    memcpy(packed + 0, constants[0], 240 * sizeof(float));
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 1216; }
long tw_packed_bytes(void) { return 960; }

void tw_part(const tw_args *args, long part) {
    float *scratch = (float *)(args->scratch + part * tw_scratch_bytes());
    for (long h_reg = 0; h_reg < 2; h_reg += 1) {
        const long h_reg_end = min_long(h_reg + 1, 2);
        /* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0>>maxpool-1x20x4x5k3x3s2x2p1x1d1x1/conv2d */
        {
            const long h_first = h_reg * 2 + -1;
            const long h_from = max_long(0, h_first), h_to = min_long(h_first + 3, 4);
            const float *restrict p0_ = args->in[0];
            const float *restrict p1_ = args->packed + 0;
            float *restrict p2_ = scratch - ((h_reg * 2 + -1) * 5);
            for (long k = 0; k < 20; k++) {
                for (long h = h_from; h < h_to; h++) {
                    #pragma omp simd
                    for (long w = 0; w < 5; w++) {
                        float value_0 = (p0_[h * 6 + w] * p1_[k * 12]);
                        value_0 = (value_0 + (p0_[h * 6 + w + 1] * p1_[k * 12 + 1]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 6] * p1_[k * 12 + 2]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 7] * p1_[k * 12 + 3]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 30] * p1_[k * 12 + 4]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 31] * p1_[k * 12 + 5]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 36] * p1_[k * 12 + 6]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 37] * p1_[k * 12 + 7]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 60] * p1_[k * 12 + 8]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 61] * p1_[k * 12 + 9]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 66] * p1_[k * 12 + 10]));
                        value_0 = (value_0 + (p0_[h * 6 + w + 67] * p1_[k * 12 + 11]));
                        p2_[k * 15 + h * 5 + w] = value_0;
                    }
                }
            }
        }
        /* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0>>maxpool-1x20x4x5k3x3s2x2p1x1d1x1/max_pool */
        {
            const long h_from = h_reg, h_to = h_reg_end;
            const float *restrict p0_ = scratch - ((h_reg * 2 + -1) * 5);
            float *restrict p1_ = args->out;
            for (long c = 0; c < 20; c++) {
                for (long h = h_from; h < h_to; h++) {
                    if (h >= 1) {
                        {
                            const long w = 0;
                            float value_0 = p0_[c * 15 + h * 10 + w * 2 + -5];
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + -4]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 1]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 5]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 6]);
                            p1_[c * 6 + h * 3 + w] = value_0;
                        }
                        #pragma omp simd
                        for (long w = 1; w < 2; w++) {
                            float value_0 = p0_[c * 15 + h * 10 + w * 2 + -6];
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + -5]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + -4]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + -1]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 1]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 4]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 5]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 6]);
                            p1_[c * 6 + h * 3 + w] = value_0;
                        }
                        {
                            const long w = 2;
                            float value_0 = p0_[c * 15 + h * 10 + w * 2 + -6];
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + -5]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + -1]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 4]);
                            value_0 = max_f32(value_0, p0_[c * 15 + h * 10 + w * 2 + 5]);
                            p1_[c * 6 + h * 3 + w] = value_0;
                        }
                    }
                    else
                        border_0(p0_, p1_, c, h, 0, 3);
                }
            }
        }
    }
}
