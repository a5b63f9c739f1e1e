/* mb1ic4ih4iw6oc16oh4ow6kh1kw3sh1sw1ph0pw1dh0dw0@In4,Out8: outer schema, portable
   l2: n=1 kb=2 h=4 w=8 kl=8 cb=1 r=1 s=3 cl=4
   l1: n=1 kb=2 h=4 w=8 kl=8 cb=1 r=1 s=3 cl=4
   reg: n=1 kb=1 h=1 w=4 kl=8 cb=1 r=1 s=1 cl=1
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
                const long l_count = (extent[4] - 1) / 1 + 1;
                for (long l = 0; l < l_count; l++) {
                    const long l_at = from[4] + l * 1 + 0;
                    const int inside = (unsigned long)i_at < 1ul && (unsigned long)j_at < 1ul && (unsigned long)k_at < 4ul && (unsigned long)l_at < 4ul;
                    copy_row(source + (i_at * 96 + j_at * 96 + k_at * 24 + l_at * 1), buffer + i * 128 + j * 128 + k * 32 + l * 8, from[3] + 0, inside ? 6 : 0, (extent[3] - 1) / 1 + 1, 4, 1);
                }
            }
        }
    }
}

static __attribute__((noinline)) void mk_portable_p1x1x2_v2(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s0_1 = {0}, s1_0 = {0}, s1_1 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s0_1 = *(const vec *)(acc + 4);
        s1_0 = *(const vec *)(acc + 8);
        s1_1 = *(const vec *)(acc + 12);
    }
    for (; count > 0; count--, a += 8, b += 24) {
        {
            const vec w0 = *(const vec *)(b + 0);
            const vec w1 = *(const vec *)(b + 4);
            s0_0 += a[0] * w0;
            s0_1 += a[0] * w1;
            s1_0 += a[1] * w0;
            s1_1 += a[1] * w1;
        }
        {
            const vec w0 = *(const vec *)(b + 8);
            const vec w1 = *(const vec *)(b + 12);
            s0_0 += a[1] * w0;
            s0_1 += a[1] * w1;
            s1_0 += a[2] * w0;
            s1_1 += a[2] * w1;
        }
        {
            const vec w0 = *(const vec *)(b + 16);
            const vec w1 = *(const vec *)(b + 20);
            s0_0 += a[2] * w0;
            s0_1 += a[2] * w1;
            s1_0 += a[3] * w0;
            s1_1 += a[3] * w1;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s0_1;
    *(vec *)(acc + 8) = s1_0;
    *(vec *)(acc + 12) = s1_1;
}

static __attribute__((noinline)) void mk_portable_p1x1x4_v2(const float *a, const float *b, float *acc, long count, long resume)
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
    for (; count > 0; count--, a += 8, b += 24) {
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
        }
        {
            const vec w0 = *(const vec *)(b + 16);
            const vec w1 = *(const vec *)(b + 20);
            s0_0 += a[2] * w0;
            s0_1 += a[2] * w1;
            s1_0 += a[3] * w0;
            s1_1 += a[3] * w1;
            s2_0 += a[4] * w0;
            s2_1 += a[4] * w1;
            s3_0 += a[5] * w0;
            s3_1 += a[5] * w1;
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

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, long step, long pixels) {
    for (long pixel = 0; pixel < pixels; pixel++) {
        for (long lane = 0; lane < lanes; lane++) {
            const float value = acc[pixel * step + lane];
            out[lane + pixel * 8] = value;
        }
    }
}

static __attribute__((noinline)) void store_p1x1x2_v2(const float *acc, float *restrict out, long lanes) {
    store_row(acc + 0, out + 0, lanes, 8, 2);
}

static __attribute__((noinline)) void store_p1x1x4_v2(const float *acc, float *restrict out, long lanes) {
    store_row(acc + 0, out + 0, lanes, 8, 4);
}

static inline void fetch_result(const float *out) {
    for (long w_row = 0; w_row < 4; w_row++) {
        __builtin_prefetch(out + w_row * 8, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long kb = 0; kb < 2; kb++) {
        for (long panel = 0; panel < 1; panel++) {
            const long width = panel + 1 < 1 ? 8 : 8;
            for (long cl = 0; cl < 4; cl++) {
                for (long cb = 0; cb < 1; cb++) {
                    for (long r = 0; r < 1; r++) {
                        for (long s = 0; s < 3; s++) {
                            for (long lane = 0; lane < width; lane++) {
                                const long kl = panel * 8 + lane;
                                *to++ = kl < 8 ? b[kb * 96 + kl * 12 + cb * 12 + cl * 3 + r * 3 + s] : 0.0f;
                            }
                        }
                    }
                }
            }
        }
    }
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 832; }
long tw_packed_bytes(void) { return 768; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 144;
    const long from[] = {0, 0, 0, -1, 0};
    const long extent[] = {(1 - 0 - 1) + 1, (1 - 0 - 1) + 1, (4 - 0 - 1) + (1 - 0 - 1) + 1, (6 - 0 - 1) + (3 - 0 - 1) + 1, (4 - 0 - 1) + 1};
    pack_tile(source, buffer, from, extent);
    for (long n_reg = 0; n_reg < 1; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, 1);
        for (long kb_reg = 0; kb_reg < 2; kb_reg += 1) {
            const long kb_reg_end = min_long(kb_reg + 1, 2);
            for (long h_reg = 0; h_reg < 4; h_reg += 1) {
                const long h_reg_end = min_long(h_reg + 1, 4);
                for (long w_reg = 0; w_reg < 6; w_reg += 4) {
                    const long w_reg_end = min_long(w_reg + 4, 6);
                    for (long kl_reg = 0; kl_reg < 8; kl_reg += 8) {
                        const long kl_reg_end = min_long(kl_reg + 8, 8);
                        const long last = kl_reg + 8 >= 8;
                        const float *weights = args->packed + kb_reg * 96 + kl_reg * 12;
                        const float *tile = buffer + n_reg * 128 + h_reg * 32 + w_reg;
                        float *acc = accumulators;
                        fetch_result(args->out + n_reg * 384 + kb_reg * 192 + h_reg * 48 + w_reg * 8 + kl_reg);
                        if (w_reg_end - w_reg == 4)
                            mk_portable_p1x1x4_v2(tile + 0, weights + (0) * 3 * 8, acc, 4 - 0, 0);
                        else
                            mk_portable_p1x1x2_v2(tile + 0, weights + (0) * 3 * 8, acc, 4 - 0, 0);
                        if (w_reg_end - w_reg == 4)
                            store_p1x1x4_v2(acc, args->out + n_reg * 384 + kb_reg * 192 + h_reg * 48 + w_reg * 8 + kl_reg, min_long(8, 8 - kl_reg));
                        else
                            store_p1x1x2_v2(acc, args->out + n_reg * 384 + kb_reg * 192 + h_reg * 48 + w_reg * 8 + kl_reg, min_long(8, 8 - kl_reg));
                    }
                }
            }
        }
    }
}
