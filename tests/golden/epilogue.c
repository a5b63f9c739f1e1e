/* mb1ic4ih6iw6oc8oh6ow6kh1kw1sh1sw1ph0pw0dh0dw0+bias+silu: outer schema, portable
   l2: n=1 k=8 h=6 w=6 c=4 r=1 s=1
   l1: n=1 k=8 h=6 w=6 c=4 r=1 s=1
   reg: n=1 k=4 h=2 w=3 c=1 r=1 s=1
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

static inline __attribute__((always_inline)) float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

static __attribute__((noinline)) void mk_portable_p1x2x3_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s1_0 = {0}, s2_0 = {0}, s3_0 = {0}, s4_0 = {0}, s5_0 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s1_0 = *(const vec *)(acc + 4);
        s2_0 = *(const vec *)(acc + 8);
        s3_0 = *(const vec *)(acc + 12);
        s4_0 = *(const vec *)(acc + 16);
        s5_0 = *(const vec *)(acc + 20);
    }
    for (; count > 0; count--, a += 36, b += 4) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[1] * w0;
            s2_0 += a[2] * w0;
            s3_0 += a[6] * w0;
            s4_0 += a[7] * w0;
            s5_0 += a[8] * w0;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s1_0;
    *(vec *)(acc + 8) = s2_0;
    *(vec *)(acc + 12) = s3_0;
    *(vec *)(acc + 16) = s4_0;
    *(vec *)(acc + 20) = s5_0;
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

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, const float *e0, long step, long pixels) {
    for (long pixel = 0; pixel < pixels; pixel++) {
        float *restrict sums = (float *)acc + pixel * step;
        for (long lane = 0; lane < lanes; lane++) {
            const float value = sums[lane];
            const long e0_at = lane;
            sums[lane] = ((value + e0[e0_at]) * sigmoid_f32((value + e0[e0_at])));
        }
    }
    for (long lane = 0; lane < lanes; lane += 4) {
        float rows[4 * 4];
        for (long pixel = 0; pixel < pixels; pixel += 4)
            transpose4(acc + pixel * step + lane, step, rows + pixel, 4, 4);
        for (long j = 0; j < min_long(4, lanes - lane); j++) {
            float *restrict to = out + (lane + j) * 36;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 4 + pixel];
                to[pixel] = value;
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x2x3_v1(const float *acc, float *restrict out, long lanes, const float *e0) {
    store_row(acc + 0, out + 0, lanes, e0 + 0, 4, 3);
    store_row(acc + 12, out + 6, lanes, e0 + 0, 4, 3);
}

static inline void fetch_result(const float *out) {
    for (long h_row = 0; h_row < 2; h_row++) {
        for (long k_row = 0; k_row < 4; k_row++) {
            __builtin_prefetch(out + h_row * 6 + k_row * 36, 1);
        }
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 2; panel++) {
        const long width = panel + 1 < 2 ? 4 : 4;
        for (long c = 0; c < 4; c++) {
            for (long r = 0; r < 1; r++) {
                for (long s = 0; s < 1; s++) {
                    for (long lane = 0; lane < width; lane++) {
                        const long k = panel * 4 + lane;
                        *to++ = k < 8 ? b[k * 4 + c + r + s] : 0.0f;
                    }
                }
            }
        }
    }
    memcpy(packed + 32, constants[1], 8 * sizeof(float));
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 256; }
long tw_packed_bytes(void) { return 192; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 16;
    const float *e0 = args->packed + 32;
    for (long n_reg = 0; n_reg < 1; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, 1);
        for (long k_reg = 0; k_reg < 8; k_reg += 4) {
            const long k_reg_end = min_long(k_reg + 4, 8);
            for (long h_reg = 0; h_reg < 6; h_reg += 2) {
                const long h_reg_end = min_long(h_reg + 2, 6);
                for (long w_reg = 0; w_reg < 6; w_reg += 3) {
                    const long w_reg_end = min_long(w_reg + 3, 6);
                    const long last = k_reg + 4 >= 8;
                    const float *weights = args->packed + 0 * 32 + k_reg * 4;
                    const float *tile = source + n_reg * 144 + h_reg * 6 + w_reg + 0 * 36;
                    float *acc = accumulators;
                    fetch_result(args->out + n_reg * 288 + k_reg * 36 + h_reg * 6 + w_reg);
                    mk_portable_p1x2x3_v1(tile + 0, weights + (0) * 1 * 4, acc, 4 - 0, 0);
                    store_p1x2x3_v1(acc, args->out + n_reg * 288 + k_reg * 36 + h_reg * 6 + w_reg, min_long(4, 8 - k_reg), e0 + k_reg);
                }
            }
        }
    }
}
