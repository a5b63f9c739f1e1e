/* mb1ic4ih6iw6oc8oh6ow6kh1kw1sh1sw1ph0pw0dh0dw0+bias+silu: outer schema, portable
   l2: n=1 k=8 hw=36 c=4
   l1: n=1 k=8 hw=6 c=4
   reg: n=1 k=4 hw=6 c=1
   parallel: one thread; packs: l2 */
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

/* buffer[x] = source[(from + x * factor) * stride], zero where that index is not below `size`. */
static inline void copy_row(const float *restrict source, float *restrict buffer, long from,
                            long size, long count, long stride, long factor)
{
    long low = from < 0 ? (-from + factor - 1) / factor : 0;
    long high = size > from ? (size - from + factor - 1) / factor : 0;
    low = min_long(low, count);
    high = min_long(high, count);
    if (high < low)
        high = low;
    for (long x = 0; x < low; x++)
        buffer[x] = 0.0f;
    const float *restrict s = source + from * stride;
    if (stride * factor == 1)
        for (long x = low; x < high; x++)
            buffer[x] = s[x];
    else
        for (long x = low; x < high; x++)
            buffer[x] = s[x * stride * factor];
    for (long x = high; x < count; x++)
        buffer[x] = 0.0f;
}

/* copy_row, with every `strip` elements `pitch` floats apart. Asks for what lies `ahead` floats
   behind: the same piece of a later row. */
static inline __attribute__((always_inline)) void copy_strips(
    const float *restrict source, float *restrict buffer, long from, long size, long count,
    long stride, long factor, long strip, long pitch, long ahead)
{
    const int inside = from >= 0 && from + (count - 1) * factor < size;
    for (long x = 0; x < count; x += strip, buffer += pitch) {
        const float *restrict s = source + (from + x * factor) * stride;
        __builtin_prefetch(s + ahead);
        if (inside && x + strip <= count)
            for (long i = 0; i < strip; i++)
                buffer[i] = s[i * factor * stride];
        else
            copy_row(source, buffer, from + x * factor, size, min_long(strip, count - x), stride,
                     factor);
    }
}

static void pack_tile(const float *restrict source, float *restrict buffer, const long *from, const long *extent) {
    const long i_count = (extent[0] - 1) / 1 + 1;
    for (long i = 0; i < i_count; i++) {
        const long i_at = from[0] + i * 1 + 0;
        const long j_count = (extent[1] - 1) / 1 + 1;
        for (long j = 0; j < j_count; j++) {
            const long j_at = from[1] + j * 1 + 0;
            const int inside = (unsigned long)i_at < 1ul && (unsigned long)j_at < 4ul;
            copy_strips(source + (i_at * 144 + j_at * 36), buffer + i / 1 * 192 + j * 8, from[2] + 0, inside ? 36 : 0, (extent[2] - 1) / 1 + 1, 1, 1, 6, 32, 144);
        }
    }
}

static __attribute__((noinline)) void mk_portable_p1x6_v1(const float *a, const float *b, float *acc, long count, long resume)
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
    for (; count > 0; count--, a += 8, b += 4) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[1] * w0;
            s2_0 += a[2] * w0;
            s3_0 += a[3] * w0;
            s4_0 += a[4] * w0;
            s5_0 += a[5] * w0;
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
        float rows[4 * 8];
        for (long pixel = 0; pixel < pixels; pixel += 4)
            transpose4(acc + pixel * step + lane, step, rows + pixel, 8, 4);
        for (long j = 0; j < min_long(4, lanes - lane); j++) {
            float *restrict to = out + (lane + j) * 36;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 8 + pixel];
                to[pixel] = value;
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x6_v1(const float *acc, float *restrict out, long lanes, const float *e0) {
    store_row(acc + 0, out + 0, lanes, e0 + 0, 4, 6);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 4; k_row++) {
        __builtin_prefetch(out + k_row * 36, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 2; panel++) {
        const long width = panel + 1 < 2 ? 4 : 4;
        for (long c = 0; c < 4; c++) {
            for (long lane = 0; lane < width; lane++) {
                const long k = panel * 4 + lane;
                *to++ = k < 8 ? b[k * 4 + c] : 0.0f;
            }
        }
    }
    memcpy(packed + 32, constants[1], 8 * sizeof(float));
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 1024; }
long tw_packed_bytes(void) { return 192; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 208;
    const float *e0 = args->packed + 32;
    const long from[] = {0, 0, 0};
    const long extent[] = {(1 - 0 - 1) + 1, (4 - 0 - 1) + 1, (36 - 0 - 1) + 1};
    pack_tile(source, buffer, from, extent);
    for (long hw_l1 = 0; hw_l1 < 36; hw_l1 += 6) {
        const long hw_l1_end = min_long(hw_l1 + 6, 36);
        for (long n_reg = 0; n_reg < 1; n_reg += 1) {
            const long n_reg_end = min_long(n_reg + 1, 1);
            for (long k_reg = 0; k_reg < 8; k_reg += 4) {
                const long k_reg_end = min_long(k_reg + 4, 8);
                for (long hw_reg = hw_l1; hw_reg < hw_l1_end; hw_reg += 6) {
                    const long hw_reg_end = min_long(hw_reg + 6, hw_l1_end);
                    const long last = k_reg + 4 >= 8;
                    const float *weights = args->packed + 0 * 32 + k_reg * 4;
                    const float *tile = buffer + n_reg * 192 + hw_reg / 6 * 32;
                    float *acc = accumulators;
                    fetch_result(args->out + n_reg * 288 + k_reg * 36 + hw_reg);
                    mk_portable_p1x6_v1(tile + 0, weights + (0) * 1 * 4, acc, 4 - 0, 0);
                    store_p1x6_v1(acc, args->out + n_reg * 288 + k_reg * 36 + hw_reg, min_long(4, 8 - k_reg), e0 + k_reg);
                }
            }
        }
    }
}
