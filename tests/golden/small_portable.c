/* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0: outer schema, portable
   l2: n=1 k=24 h=4 w=5 c=3 r=2 s=2
   l1: n=1 k=24 h=4 w=5 c=3 r=2 s=2
   reg: n=1 k=8 h=1 w=5 c=1 r=1 s=1
   parallel: one thread; packs: l1 */
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

static void pack_tile(const float *restrict source, float *restrict buffer, const long *from, const long *extent) {
    const long i_count = (extent[0] - 1) / 1 + 1;
    for (long i = 0; i < i_count; i++) {
        const long i_at = from[0] + i * 1 + 0;
        const long j_count = (extent[1] - 1) / 1 + 1;
        for (long j = 0; j < j_count; j++) {
            const long j_at = from[1] + j * 1 + 0;
            const long k_count = (extent[2] - 1) / 1 + 1;
            for (long k = 0; k < k_count; k++) {
                const long k_at = from[2] + k * 1 + 0;
                const int inside = (unsigned long)i_at < 1ul && (unsigned long)j_at < 3ul && (unsigned long)k_at < 5ul;
                copy_row(source + (i_at * 90 + j_at * 30 + k_at * 6), buffer + i * 144 + j * 48 + k * 8, from[3] + 0, inside ? 6 : 0, (extent[3] - 1) / 1 + 1, 1, 1);
            }
        }
    }
}

static __attribute__((noinline)) void mk_portable_p1x1x5_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s1_0 = {0}, s2_0 = {0}, s3_0 = {0}, s4_0 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s1_0 = *(const vec *)(acc + 4);
        s2_0 = *(const vec *)(acc + 8);
        s3_0 = *(const vec *)(acc + 12);
        s4_0 = *(const vec *)(acc + 16);
    }
    for (; count > 0; count--, a += 48, b += 16) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[1] * w0;
            s2_0 += a[2] * w0;
            s3_0 += a[3] * w0;
            s4_0 += a[4] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 4);
            s0_0 += a[1] * w0;
            s1_0 += a[2] * w0;
            s2_0 += a[3] * w0;
            s3_0 += a[4] * w0;
            s4_0 += a[5] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 8);
            s0_0 += a[8] * w0;
            s1_0 += a[9] * w0;
            s2_0 += a[10] * w0;
            s3_0 += a[11] * w0;
            s4_0 += a[12] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 12);
            s0_0 += a[9] * w0;
            s1_0 += a[10] * w0;
            s2_0 += a[11] * w0;
            s3_0 += a[12] * w0;
            s4_0 += a[13] * w0;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s1_0;
    *(vec *)(acc + 8) = s2_0;
    *(vec *)(acc + 12) = s3_0;
    *(vec *)(acc + 16) = s4_0;
}

static __attribute__((noinline)) void mk_portable_p1x1x5_v2(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s0_1 = {0}, s1_0 = {0}, s1_1 = {0}, s2_0 = {0}, s2_1 = {0}, s3_0 = {0}, s3_1 = {0}, s4_0 = {0}, s4_1 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s0_1 = *(const vec *)(acc + 4);
        s1_0 = *(const vec *)(acc + 8);
        s1_1 = *(const vec *)(acc + 12);
        s2_0 = *(const vec *)(acc + 16);
        s2_1 = *(const vec *)(acc + 20);
        s3_0 = *(const vec *)(acc + 24);
        s3_1 = *(const vec *)(acc + 28);
        s4_0 = *(const vec *)(acc + 32);
        s4_1 = *(const vec *)(acc + 36);
    }
    for (; count > 0; count--, a += 48, b += 32) {
        {
            const vec w0 = *(const vec *)(b + 0);
            const vec w1 = *(const vec *)(b + 4);
            s0_0 += a[0] * w0;
            s0_1 += a[0] * w1;
            s1_0 += a[1] * w0;
            s1_1 += a[1] * w1;
            s2_0 += a[2] * w0;
            s2_1 += a[2] * w1;
            s3_0 += a[3] * w0;
            s3_1 += a[3] * w1;
            s4_0 += a[4] * w0;
            s4_1 += a[4] * w1;
        }
        {
            const vec w0 = *(const vec *)(b + 8);
            const vec w1 = *(const vec *)(b + 12);
            s0_0 += a[1] * w0;
            s0_1 += a[1] * w1;
            s1_0 += a[2] * w0;
            s1_1 += a[2] * w1;
            s2_0 += a[3] * w0;
            s2_1 += a[3] * w1;
            s3_0 += a[4] * w0;
            s3_1 += a[4] * w1;
            s4_0 += a[5] * w0;
            s4_1 += a[5] * w1;
        }
        {
            const vec w0 = *(const vec *)(b + 16);
            const vec w1 = *(const vec *)(b + 20);
            s0_0 += a[8] * w0;
            s0_1 += a[8] * w1;
            s1_0 += a[9] * w0;
            s1_1 += a[9] * w1;
            s2_0 += a[10] * w0;
            s2_1 += a[10] * w1;
            s3_0 += a[11] * w0;
            s3_1 += a[11] * w1;
            s4_0 += a[12] * w0;
            s4_1 += a[12] * w1;
        }
        {
            const vec w0 = *(const vec *)(b + 24);
            const vec w1 = *(const vec *)(b + 28);
            s0_0 += a[9] * w0;
            s0_1 += a[9] * w1;
            s1_0 += a[10] * w0;
            s1_1 += a[10] * w1;
            s2_0 += a[11] * w0;
            s2_1 += a[11] * w1;
            s3_0 += a[12] * w0;
            s3_1 += a[12] * w1;
            s4_0 += a[13] * w0;
            s4_1 += a[13] * w1;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s0_1;
    *(vec *)(acc + 8) = s1_0;
    *(vec *)(acc + 12) = s1_1;
    *(vec *)(acc + 16) = s2_0;
    *(vec *)(acc + 20) = s2_1;
    *(vec *)(acc + 24) = s3_0;
    *(vec *)(acc + 28) = s3_1;
    *(vec *)(acc + 32) = s4_0;
    *(vec *)(acc + 36) = s4_1;
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

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, long step, long pixels) {
    for (long lane = 0; lane < lanes; lane += 4) {
        float rows[4 * 8];
        for (long pixel = 0; pixel < pixels; pixel += 4)
            transpose4(acc + pixel * step + lane, step, rows + pixel, 8, 4);
        for (long j = 0; j < min_long(4, lanes - lane); j++) {
            float *restrict to = out + (lane + j) * 20;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 8 + pixel];
                to[pixel] = value;
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x1x5_v1(const float *acc, float *restrict out, long lanes) {
    if (lanes >= 4) {
        transpose4(acc + 0, 4, out + 0, 20, 4);
        transpose4(acc + 16, 4, out + 4, 20, 1);
        return;
    }
    store_row(acc + 0, out + 0, lanes, 4, 5);
}

static __attribute__((noinline)) void store_p1x1x5_v2(const float *acc, float *restrict out, long lanes) {
    if (lanes >= 8) {
        transpose4(acc + 0, 8, out + 0, 20, 4);
        transpose4(acc + 32, 8, out + 4, 20, 1);
        transpose4(acc + 4, 8, out + 80, 20, 4);
        transpose4(acc + 36, 8, out + 84, 20, 1);
        return;
    }
    store_row(acc + 0, out + 0, lanes, 8, 5);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 8; k_row++) {
        __builtin_prefetch(out + k_row * 20, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 3; panel++) {
        const long width = panel + 1 < 3 ? 8 : 4;
        for (long c = 0; c < 3; c++) {
            for (long r = 0; r < 2; r++) {
                for (long s = 0; s < 2; s++) {
                    for (long lane = 0; lane < width; lane++) {
                        const long k = panel * 8 + lane;
                        *to++ = k < 20 ? b[k * 12 + c * 4 + r * 2 + s] : 0.0f;
                    }
                }
            }
        }
    }
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 896; }
long tw_packed_bytes(void) { return 960; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 160;
    const long from[] = {0, 0, 0, 0};
    const long extent[] = {(1 - 0 - 1) + 1, (3 - 0 - 1) + 1, (4 - 0 - 1) + (2 - 0 - 1) + 1, (5 - 0 - 1) + (2 - 0 - 1) + 1};
    pack_tile(source, buffer, from, extent);
    for (long n_reg = 0; n_reg < 1; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, 1);
        for (long k_reg = 0; k_reg < 20; k_reg += 8) {
            const long k_reg_end = min_long(k_reg + 8, 20);
            for (long h_reg = 0; h_reg < 4; h_reg += 1) {
                const long h_reg_end = min_long(h_reg + 1, 4);
                for (long w_reg = 0; w_reg < 5; w_reg += 5) {
                    const long w_reg_end = min_long(w_reg + 5, 5);
                    const long last = k_reg + 8 >= 20;
                    const long width = last ? 4 : 8;
                    const float *weights = args->packed + 0 * 240 + k_reg * 12;
                    const float *tile = buffer + n_reg * 144 + h_reg * 8 + w_reg;
                    float *acc = accumulators;
                    fetch_result(args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg);
                    if (!last)
                        mk_portable_p1x1x5_v2(tile + 0, weights + (0) * 4 * width, acc, 3 - 0, 0);
                    else
                        mk_portable_p1x1x5_v1(tile + 0, weights + (0) * 4 * width, acc, 3 - 0, 0);
                    if (!last)
                        store_p1x1x5_v2(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(8, 20 - k_reg));
                    else
                        store_p1x1x5_v1(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(8, 20 - k_reg));
                }
            }
        }
    }
}
