/* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0: outer schema, neon
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

static __attribute__((noinline)) void mk_neon_p1x1x5_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    __asm__ volatile(
        "cbnz %[resume], 1f\n\t"
        "movi v0.4s, #0\n\t"
        "movi v1.4s, #0\n\t"
        "movi v2.4s, #0\n\t"
        "movi v3.4s, #0\n\t"
        "movi v4.4s, #0\n\t"
        "b 2f\n\t"
        "1:\n\t"
        "ldr q0, [%[acc], #0]\n\t"
        "ldr q1, [%[acc], #16]\n\t"
        "ldr q2, [%[acc], #32]\n\t"
        "ldr q3, [%[acc], #48]\n\t"
        "ldr q4, [%[acc], #64]\n\t"
        "2:\n\t"
        "cbz %[count], 4f\n\t"
        "3:\n\t"
        "add x14, %[a], #1152\n\t"
        "prfm pldl1keep, [x14, #0]\n\t"
        "prfm pldl1keep, [x14, #48]\n\t"
        "ldr q5, [%[b], #0]\n\t"
        "ldr q6, [%[a], #0]\n\t"
        "fmla v0.4s, v5.4s, v6.s[0]\n\t"
        "fmla v1.4s, v5.4s, v6.s[1]\n\t"
        "fmla v2.4s, v5.4s, v6.s[2]\n\t"
        "fmla v3.4s, v5.4s, v6.s[3]\n\t"
        "ldr s7, [%[a], #16]\n\t"
        "fmla v4.4s, v5.4s, v7.s[0]\n\t"
        "ldr q5, [%[b], #16]\n\t"
        "ldr q8, [%[a], #4]\n\t"
        "fmla v0.4s, v5.4s, v8.s[0]\n\t"
        "fmla v1.4s, v5.4s, v8.s[1]\n\t"
        "fmla v2.4s, v5.4s, v8.s[2]\n\t"
        "fmla v3.4s, v5.4s, v8.s[3]\n\t"
        "ldr s9, [%[a], #20]\n\t"
        "fmla v4.4s, v5.4s, v9.s[0]\n\t"
        "ldr q5, [%[b], #32]\n\t"
        "ldr q10, [%[a], #32]\n\t"
        "fmla v0.4s, v5.4s, v10.s[0]\n\t"
        "fmla v1.4s, v5.4s, v10.s[1]\n\t"
        "fmla v2.4s, v5.4s, v10.s[2]\n\t"
        "fmla v3.4s, v5.4s, v10.s[3]\n\t"
        "ldr s11, [%[a], #48]\n\t"
        "fmla v4.4s, v5.4s, v11.s[0]\n\t"
        "ldr q5, [%[b], #48]\n\t"
        "ldr q12, [%[a], #36]\n\t"
        "fmla v0.4s, v5.4s, v12.s[0]\n\t"
        "fmla v1.4s, v5.4s, v12.s[1]\n\t"
        "fmla v2.4s, v5.4s, v12.s[2]\n\t"
        "fmla v3.4s, v5.4s, v12.s[3]\n\t"
        "ldr s13, [%[a], #52]\n\t"
        "fmla v4.4s, v5.4s, v13.s[0]\n\t"
        "add %[b], %[b], #64\n\t"
        "add %[a], %[a], #192\n\t"
        "subs %[count], %[count], #1\n\t"
        "b.ne 3b\n\t"
        "4:\n\t"
        "str q0, [%[acc], #0]\n\t"
        "str q1, [%[acc], #16]\n\t"
        "str q2, [%[acc], #32]\n\t"
        "str q3, [%[acc], #48]\n\t"
        "str q4, [%[acc], #64]\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "x9", "x10", "x11", "x12", "x13", "x14", "cc", "memory");
}

static __attribute__((noinline)) void mk_neon_p1x1x5_v2(const float *a, const float *b, float *acc, long count, long resume)
{
    __asm__ volatile(
        "cbnz %[resume], 1f\n\t"
        "movi v0.4s, #0\n\t"
        "movi v1.4s, #0\n\t"
        "movi v2.4s, #0\n\t"
        "movi v3.4s, #0\n\t"
        "movi v4.4s, #0\n\t"
        "movi v5.4s, #0\n\t"
        "movi v6.4s, #0\n\t"
        "movi v7.4s, #0\n\t"
        "movi v8.4s, #0\n\t"
        "movi v9.4s, #0\n\t"
        "b 2f\n\t"
        "1:\n\t"
        "ldr q0, [%[acc], #0]\n\t"
        "ldr q1, [%[acc], #16]\n\t"
        "ldr q2, [%[acc], #32]\n\t"
        "ldr q3, [%[acc], #48]\n\t"
        "ldr q4, [%[acc], #64]\n\t"
        "ldr q5, [%[acc], #80]\n\t"
        "ldr q6, [%[acc], #96]\n\t"
        "ldr q7, [%[acc], #112]\n\t"
        "ldr q8, [%[acc], #128]\n\t"
        "ldr q9, [%[acc], #144]\n\t"
        "2:\n\t"
        "cbz %[count], 4f\n\t"
        "3:\n\t"
        "add x14, %[a], #576\n\t"
        "prfm pldl1keep, [x14, #0]\n\t"
        "prfm pldl1keep, [x14, #48]\n\t"
        "ldr q10, [%[b], #0]\n\t"
        "ldr q11, [%[b], #16]\n\t"
        "ldr q12, [%[a], #0]\n\t"
        "fmla v0.4s, v10.4s, v12.s[0]\n\t"
        "fmla v1.4s, v11.4s, v12.s[0]\n\t"
        "fmla v2.4s, v10.4s, v12.s[1]\n\t"
        "fmla v3.4s, v11.4s, v12.s[1]\n\t"
        "fmla v4.4s, v10.4s, v12.s[2]\n\t"
        "fmla v5.4s, v11.4s, v12.s[2]\n\t"
        "fmla v6.4s, v10.4s, v12.s[3]\n\t"
        "fmla v7.4s, v11.4s, v12.s[3]\n\t"
        "ldr s13, [%[a], #16]\n\t"
        "fmla v8.4s, v10.4s, v13.s[0]\n\t"
        "fmla v9.4s, v11.4s, v13.s[0]\n\t"
        "ldr q10, [%[b], #32]\n\t"
        "ldr q11, [%[b], #48]\n\t"
        "ldr q14, [%[a], #4]\n\t"
        "fmla v0.4s, v10.4s, v14.s[0]\n\t"
        "fmla v1.4s, v11.4s, v14.s[0]\n\t"
        "fmla v2.4s, v10.4s, v14.s[1]\n\t"
        "fmla v3.4s, v11.4s, v14.s[1]\n\t"
        "fmla v4.4s, v10.4s, v14.s[2]\n\t"
        "fmla v5.4s, v11.4s, v14.s[2]\n\t"
        "fmla v6.4s, v10.4s, v14.s[3]\n\t"
        "fmla v7.4s, v11.4s, v14.s[3]\n\t"
        "ldr s15, [%[a], #20]\n\t"
        "fmla v8.4s, v10.4s, v15.s[0]\n\t"
        "fmla v9.4s, v11.4s, v15.s[0]\n\t"
        "ldr q10, [%[b], #64]\n\t"
        "ldr q11, [%[b], #80]\n\t"
        "ldr q16, [%[a], #32]\n\t"
        "fmla v0.4s, v10.4s, v16.s[0]\n\t"
        "fmla v1.4s, v11.4s, v16.s[0]\n\t"
        "fmla v2.4s, v10.4s, v16.s[1]\n\t"
        "fmla v3.4s, v11.4s, v16.s[1]\n\t"
        "fmla v4.4s, v10.4s, v16.s[2]\n\t"
        "fmla v5.4s, v11.4s, v16.s[2]\n\t"
        "fmla v6.4s, v10.4s, v16.s[3]\n\t"
        "fmla v7.4s, v11.4s, v16.s[3]\n\t"
        "ldr s17, [%[a], #48]\n\t"
        "fmla v8.4s, v10.4s, v17.s[0]\n\t"
        "fmla v9.4s, v11.4s, v17.s[0]\n\t"
        "ldr q10, [%[b], #96]\n\t"
        "ldr q11, [%[b], #112]\n\t"
        "ldr q18, [%[a], #36]\n\t"
        "fmla v0.4s, v10.4s, v18.s[0]\n\t"
        "fmla v1.4s, v11.4s, v18.s[0]\n\t"
        "fmla v2.4s, v10.4s, v18.s[1]\n\t"
        "fmla v3.4s, v11.4s, v18.s[1]\n\t"
        "fmla v4.4s, v10.4s, v18.s[2]\n\t"
        "fmla v5.4s, v11.4s, v18.s[2]\n\t"
        "fmla v6.4s, v10.4s, v18.s[3]\n\t"
        "fmla v7.4s, v11.4s, v18.s[3]\n\t"
        "ldr s19, [%[a], #52]\n\t"
        "fmla v8.4s, v10.4s, v19.s[0]\n\t"
        "fmla v9.4s, v11.4s, v19.s[0]\n\t"
        "add %[b], %[b], #128\n\t"
        "add %[a], %[a], #192\n\t"
        "subs %[count], %[count], #1\n\t"
        "b.ne 3b\n\t"
        "4:\n\t"
        "str q0, [%[acc], #0]\n\t"
        "str q1, [%[acc], #16]\n\t"
        "str q2, [%[acc], #32]\n\t"
        "str q3, [%[acc], #48]\n\t"
        "str q4, [%[acc], #64]\n\t"
        "str q5, [%[acc], #80]\n\t"
        "str q6, [%[acc], #96]\n\t"
        "str q7, [%[acc], #112]\n\t"
        "str q8, [%[acc], #128]\n\t"
        "str q9, [%[acc], #144]\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "x9", "x10", "x11", "x12", "x13", "x14", "cc", "memory");
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
                        mk_neon_p1x1x5_v2(tile + 0, weights + (0) * 4 * width, acc, 3 - 0, 0);
                    else
                        mk_neon_p1x1x5_v1(tile + 0, weights + (0) * 4 * width, acc, 3 - 0, 0);
                    if (!last)
                        store_p1x1x5_v2(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(8, 20 - k_reg));
                    else
                        store_p1x1x5_v1(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(8, 20 - k_reg));
                }
            }
        }
    }
}
