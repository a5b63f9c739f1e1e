/* g2mb2ic4ih5iw5oc16oh4ow6kh3kw1sh1sw1ph1pw0dh0dw0: outer schema, portable
   l2: n=2 g=2 k=8 h=4 w=6 c=2 r=3 s=1
   l1: n=2 g=2 k=8 h=4 w=6 c=2 r=3 s=1
   reg: n=1 g=1 k=8 h=1 w=3 c=1 r=1 s=1
   parallel: n/2 g/2; packs: l1 */
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
            const long k_count = (extent[2] - 1) / 1 + 1;
            for (long k = 0; k < k_count; k++) {
                const long k_at = from[2] + k * 1 + 0;
                const int inside = (unsigned long)i_at < 2ul && (unsigned long)j_at < 4ul && (unsigned long)k_at < 5ul;
                copy_strips(source + (i_at * 100 + j_at * 25 + k_at * 5), buffer + i / 1 * 96 + j * 24 + k * 4, from[3] + 0, inside ? 5 : 0, (extent[3] - 1) / 1 + 1, 1, 1, 3, 48, 20);
            }
        }
    }
}

static __attribute__((noinline)) void mk_portable_p1x1x3_v2(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s0_1 = {0}, s1_0 = {0}, s1_1 = {0}, s2_0 = {0}, s2_1 = {0}, s3_0 = {0}, s3_1 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s0_1 = *(const vec *)(acc + 4);
        s1_0 = *(const vec *)(acc + 8);
        s1_1 = *(const vec *)(acc + 12);
        s2_0 = *(const vec *)(acc + 16);
        s2_1 = *(const vec *)(acc + 20);
        s3_0 = *(const vec *)(acc + 24);
        s3_1 = *(const vec *)(acc + 28);
    }
    for (; count > 0; count--, a += 24, b += 24) {
        {
            const vec w0 = *(const vec *)(b + 0);
            const vec w1 = *(const vec *)(b + 4);
            s0_0 += *(const vec *)(a + 0) * w0[0];
            s0_1 += *(const vec *)(a + 0) * w1[0];
            s1_0 += *(const vec *)(a + 0) * w0[1];
            s1_1 += *(const vec *)(a + 0) * w1[1];
            s2_0 += *(const vec *)(a + 0) * w0[2];
            s2_1 += *(const vec *)(a + 0) * w1[2];
            s3_0 += *(const vec *)(a + 0) * w0[3];
            s3_1 += *(const vec *)(a + 0) * w1[3];
        }
        {
            const vec w0 = *(const vec *)(b + 8);
            const vec w1 = *(const vec *)(b + 12);
            s0_0 += *(const vec *)(a + 4) * w0[0];
            s0_1 += *(const vec *)(a + 4) * w1[0];
            s1_0 += *(const vec *)(a + 4) * w0[1];
            s1_1 += *(const vec *)(a + 4) * w1[1];
            s2_0 += *(const vec *)(a + 4) * w0[2];
            s2_1 += *(const vec *)(a + 4) * w1[2];
            s3_0 += *(const vec *)(a + 4) * w0[3];
            s3_1 += *(const vec *)(a + 4) * w1[3];
        }
        {
            const vec w0 = *(const vec *)(b + 16);
            const vec w1 = *(const vec *)(b + 20);
            s0_0 += *(const vec *)(a + 8) * w0[0];
            s0_1 += *(const vec *)(a + 8) * w1[0];
            s1_0 += *(const vec *)(a + 8) * w0[1];
            s1_1 += *(const vec *)(a + 8) * w1[1];
            s2_0 += *(const vec *)(a + 8) * w0[2];
            s2_1 += *(const vec *)(a + 8) * w1[2];
            s3_0 += *(const vec *)(a + 8) * w0[3];
            s3_1 += *(const vec *)(a + 8) * w1[3];
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
        float rows[4 * 4];
        for (long pixel = 0; pixel < pixels; pixel += 4)
            transpose4(acc + pixel * step + lane, step, rows + pixel, 4, 4);
        for (long j = 0; j < min_long(4, lanes - lane); j++) {
            float *restrict to = out + (lane + j) * 24;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 4 + pixel];
                to[pixel] = value;
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x1x3_v2(const float *acc, float *restrict out, long lanes) {
    (void)lanes;
    copy4(acc + 0, 8, out + 0, 24, 3);
    copy4(acc + 4, 8, out + 96, 24, 3);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 8; k_row++) {
        __builtin_prefetch(out + k_row * 24, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long g = 0; g < 2; g++) {
        for (long panel = 0; panel < 1; panel++) {
            const long width = panel + 1 < 1 ? 8 : 8;
            for (long c = 0; c < 2; c++) {
                for (long r = 0; r < 3; r++) {
                    for (long s = 0; s < 1; s++) {
                        for (long lane = 0; lane < width; lane++) {
                            const long k = panel * 8 + lane;
                            *to++ = k < 8 ? b[g * 48 + k * 6 + c * 3 + r + s] : 0.0f;
                        }
                    }
                }
            }
        }
    }
}

long tw_parts(void) { return 4; }
long tw_scratch_bytes(void) { return 640; }
long tw_packed_bytes(void) { return 384; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 112;
    const long n_part = 2 * (part % 2) / 2 * 1;
    const long n_part_end = min_long(2 * ((part % 2) + 1) / 2 * 1, 2);
    const long g_part = 2 * ((part / 2) % 2) / 2 * 1;
    const long g_part_end = min_long(2 * (((part / 2) % 2) + 1) / 2 * 1, 2);
    const long from[] = {n_part, g_part * 2, -1, 0};
    const long extent[] = {(n_part_end - n_part - 1) + 1, (g_part_end - g_part - 1) * 2 + (2 - 0 - 1) + 1, (4 - 0 - 1) + (3 - 0 - 1) + 1, (6 - 0 - 1) + (1 - 0 - 1) + 1};
    pack_tile(source, buffer, from, extent);
    for (long n_reg = n_part; n_reg < n_part_end; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, n_part_end);
        for (long g_reg = g_part; g_reg < g_part_end; g_reg += 1) {
            const long g_reg_end = min_long(g_reg + 1, g_part_end);
            for (long k_reg = 0; k_reg < 8; k_reg += 8) {
                const long k_reg_end = min_long(k_reg + 8, 8);
                for (long h_reg = 0; h_reg < 4; h_reg += 1) {
                    const long h_reg_end = min_long(h_reg + 1, 4);
                    for (long w_reg = 0; w_reg < 6; w_reg += 3) {
                        const long w_reg_end = min_long(w_reg + 3, 6);
                        const long last = k_reg + 8 >= 8;
                        const float *weights = args->packed + g_reg * 48 + k_reg * 6;
                        const float *tile = buffer + (g_reg - g_part) * 48 + (n_reg - n_part) * 96 + h_reg * 4 + w_reg / 3 * 48;
                        float *acc = accumulators;
                        fetch_result(args->out + n_reg * 384 + g_reg * 192 + k_reg * 24 + h_reg * 6 + w_reg);
                        mk_portable_p1x1x3_v2(tile + 0, weights + (0) * 3 * 8, acc, 2 - 0, 0);
                        store_p1x1x3_v2(acc, args->out + n_reg * 384 + g_reg * 192 + k_reg * 24 + h_reg * 6 + w_reg, min_long(8, 8 - k_reg));
                    }
                }
            }
        }
    }
}
