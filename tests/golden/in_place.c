/* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0: outer schema, portable
   l2: n=1 k=20 h=4 w=6 c=3 r=2 s=2
   l1: n=1 k=20 h=4 w=6 c=3 r=2 s=2
   reg: n=1 k=4 h=1 w=3 c=1 r=1 s=1
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

static __attribute__((noinline)) void mk_portable_p1x1x2_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s1_0 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s1_0 = *(const vec *)(acc + 4);
    }
    for (; count > 0; count--, a += 30, b += 16) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[1] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 4);
            s0_0 += a[1] * w0;
            s1_0 += a[2] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 8);
            s0_0 += a[6] * w0;
            s1_0 += a[7] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 12);
            s0_0 += a[7] * w0;
            s1_0 += a[8] * w0;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s1_0;
}

static __attribute__((noinline)) void mk_portable_p1x1x3_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s1_0 = {0}, s2_0 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s1_0 = *(const vec *)(acc + 4);
        s2_0 = *(const vec *)(acc + 8);
    }
    for (; count > 0; count--, a += 30, b += 16) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[1] * w0;
            s2_0 += a[2] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 4);
            s0_0 += a[1] * w0;
            s1_0 += a[2] * w0;
            s2_0 += a[3] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 8);
            s0_0 += a[6] * w0;
            s1_0 += a[7] * w0;
            s2_0 += a[8] * w0;
        }
        {
            const vec w0 = *(const vec *)(b + 12);
            s0_0 += a[7] * w0;
            s1_0 += a[8] * w0;
            s2_0 += a[9] * w0;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s1_0;
    *(vec *)(acc + 8) = s2_0;
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
            float *restrict to = out + (lane + j) * 20;
            for (long pixel = 0; pixel < pixels; pixel++) {
                const float value = rows[j * 4 + pixel];
                to[pixel] = value;
            }
        }
    }
}

static __attribute__((noinline)) void store_p1x1x2_v1(const float *acc, float *restrict out, long lanes) {
    if (lanes >= 4) {
        transpose4(acc + 0, 4, out + 0, 20, 2);
        return;
    }
    store_row(acc + 0, out + 0, lanes, 4, 2);
}

static __attribute__((noinline)) void store_p1x1x3_v1(const float *acc, float *restrict out, long lanes) {
    if (lanes >= 4) {
        transpose4(acc + 0, 4, out + 0, 20, 3);
        return;
    }
    store_row(acc + 0, out + 0, lanes, 4, 3);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 4; k_row++) {
        __builtin_prefetch(out + k_row * 20, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 5; panel++) {
        const long width = panel + 1 < 5 ? 4 : 4;
        for (long c = 0; c < 3; c++) {
            for (long r = 0; r < 2; r++) {
                for (long s = 0; s < 2; s++) {
                    for (long lane = 0; lane < width; lane++) {
                        const long k = panel * 4 + lane;
                        *to++ = k < 20 ? b[k * 12 + c * 4 + r * 2 + s] : 0.0f;
                    }
                }
            }
        }
    }
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 192; }
long tw_packed_bytes(void) { return 960; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 16;
    for (long n_reg = 0; n_reg < 1; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, 1);
        for (long k_reg = 0; k_reg < 20; k_reg += 4) {
            const long k_reg_end = min_long(k_reg + 4, 20);
            for (long h_reg = 0; h_reg < 4; h_reg += 1) {
                const long h_reg_end = min_long(h_reg + 1, 4);
                for (long w_reg = 0; w_reg < 5; w_reg += 3) {
                    const long w_reg_end = min_long(w_reg + 3, 5);
                    const long last = k_reg + 4 >= 20;
                    const float *weights = args->packed + 0 * 240 + k_reg * 12;
                    const float *tile = source + n_reg * 90 + h_reg * 6 + w_reg + 0 * 30;
                    float *acc = accumulators;
                    fetch_result(args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg);
                    if (w_reg_end - w_reg == 3)
                        mk_portable_p1x1x3_v1(tile + 0, weights + (0) * 4 * 4, acc, 3 - 0, 0);
                    else
                        mk_portable_p1x1x2_v1(tile + 0, weights + (0) * 4 * 4, acc, 3 - 0, 0);
                    if (w_reg_end - w_reg == 3)
                        store_p1x1x3_v1(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(4, 20 - k_reg));
                    else
                        store_p1x1x2_v1(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(4, 20 - k_reg));
                }
            }
        }
    }
}
