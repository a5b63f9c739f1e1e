/* matmul-m6n12k10: outer schema, portable
   l2: i=6 j=16 k=10
   l1: i=6 j=16 k=4
   reg: i=3 j=8 k=1
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
    const long i_count = (extent[1] - 1) / 1 + 1;
    for (long i = 0; i < i_count; i++) {
        const long i_at = from[1] + i * 1 + 0;
        const int inside = (unsigned long)i_at < 10ul;
        copy_strips(source + (i_at * 1), buffer + i * 4, from[0] + 0, inside ? 6 : 0, (extent[0] - 1) / 1 + 1, 10, 1, 3, 16, 4);
    }
}

static __attribute__((noinline)) void mk_portable_p3_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s1_0 = {0}, s2_0 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s1_0 = *(const vec *)(acc + 12);
        s2_0 = *(const vec *)(acc + 24);
    }
    for (; count > 0; count--, a += 4, b += 4) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[1] * w0;
            s2_0 += a[2] * w0;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 12) = s1_0;
    *(vec *)(acc + 24) = s2_0;
}

static __attribute__((noinline)) void mk_portable_p3_v2(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s0_1 = {0}, s1_0 = {0}, s1_1 = {0}, s2_0 = {0}, s2_1 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s0_1 = *(const vec *)(acc + 4);
        s1_0 = *(const vec *)(acc + 12);
        s1_1 = *(const vec *)(acc + 16);
        s2_0 = *(const vec *)(acc + 24);
        s2_1 = *(const vec *)(acc + 28);
    }
    for (; count > 0; count--, a += 4, b += 8) {
        {
            const vec w0 = *(const vec *)(b + 0);
            const vec w1 = *(const vec *)(b + 4);
            s0_0 += a[0] * w0;
            s0_1 += a[0] * w1;
            s1_0 += a[1] * w0;
            s1_1 += a[1] * w1;
            s2_0 += a[2] * w0;
            s2_1 += a[2] * w1;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s0_1;
    *(vec *)(acc + 12) = s1_0;
    *(vec *)(acc + 16) = s1_1;
    *(vec *)(acc + 24) = s2_0;
    *(vec *)(acc + 28) = s2_1;
}

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, long step, long pixels) {
    for (long pixel = 0; pixel < pixels; pixel++) {
        for (long lane = 0; lane < lanes; lane++) {
            const float value = acc[pixel * step + lane];
            out[lane + pixel * 12] = value;
        }
    }
}

static __attribute__((noinline)) void store_p3_v1(const float *acc, float *restrict out, long lanes) {
    store_row(acc + 0, out + 0, lanes, 12, 3);
}

static __attribute__((noinline)) void store_p3_v2(const float *acc, float *restrict out, long lanes) {
    store_row(acc + 0, out + 0, lanes, 12, 3);
}

static inline void fetch_result(const float *out) {
    for (long i_row = 0; i_row < 3; i_row++) {
        __builtin_prefetch(out + i_row * 12, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 2; panel++) {
        const long width = panel + 1 < 2 ? 8 : 4;
        for (long k = 0; k < 10; k++) {
            for (long lane = 0; lane < width; lane++) {
                const long j = panel * 8 + lane;
                *to++ = j < 12 ? b[k * 12 + j] : 0.0f;
            }
        }
    }
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 640; }
long tw_packed_bytes(void) { return 512; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 48;
    for (long k_l1 = 0; k_l1 < 10; k_l1 += 4) {
        const long k_l1_end = min_long(k_l1 + 4, 10);
        const long from[] = {0, k_l1};
        const long extent[] = {(6 - 0 - 1) + 1, (k_l1_end - k_l1 - 1) + 1};
        pack_tile(source, buffer, from, extent);
        for (long i_reg = 0; i_reg < 6; i_reg += 3) {
            const long i_reg_end = min_long(i_reg + 3, 6);
            for (long j_reg = 0; j_reg < 12; j_reg += 8) {
                const long j_reg_end = min_long(j_reg + 8, 12);
                const long last = j_reg + 8 >= 12;
                const long width = last ? 4 : 8;
                const float *weights = args->packed + 0 * 120 + j_reg * 10;
                const float *tile = buffer + i_reg / 3 * 16;
                float *acc = accumulators + (i_reg - 0) * 12 + (j_reg - 0);
                if (k_l1_end == 10)
                    fetch_result(args->out + i_reg * 12 + j_reg);
                if (!last)
                    mk_portable_p3_v2(tile + 0, weights + (k_l1) * 1 * width, acc, k_l1_end - k_l1, !(k_l1 == 0));
                else
                    mk_portable_p3_v1(tile + 0, weights + (k_l1) * 1 * width, acc, k_l1_end - k_l1, !(k_l1 == 0));
                if (k_l1_end == 10) {
                    if (!last)
                        store_p3_v2(acc, args->out + i_reg * 12 + j_reg, min_long(8, 12 - j_reg));
                    else
                        store_p3_v1(acc, args->out + i_reg * 12 + j_reg, min_long(8, 12 - j_reg));
                }
            }
        }
    }
}
