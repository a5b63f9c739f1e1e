/* matmul-6x10,10x12: outer schema, portable
   l2: i=6 j=12 k=10
   l1: i=6 j=12 k=10
   reg: i=3 j=4 k=1
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

static __attribute__((noinline)) void mk_portable_p3_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    typedef float vec __attribute__((vector_size(16), aligned(4), may_alias));
    vec s0_0 = {0}, s1_0 = {0}, s2_0 = {0};
    if (resume) {
        s0_0 = *(const vec *)(acc + 0);
        s1_0 = *(const vec *)(acc + 4);
        s2_0 = *(const vec *)(acc + 8);
    }
    for (; count > 0; count--, a += 1, b += 4) {
        {
            const vec w0 = *(const vec *)(b + 0);
            s0_0 += a[0] * w0;
            s1_0 += a[10] * w0;
            s2_0 += a[20] * w0;
        }
    }
    *(vec *)(acc + 0) = s0_0;
    *(vec *)(acc + 4) = s1_0;
    *(vec *)(acc + 8) = s2_0;
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
    store_row(acc + 0, out + 0, lanes, 4, 3);
}

static inline void fetch_result(const float *out) {
    for (long i_row = 0; i_row < 3; i_row++) {
        __builtin_prefetch(out + i_row * 12, 1);
    }
}

static void pack_panels(const float *restrict b, float *restrict panels, long from, long end) {
    for (long panel = from / 4; panel * 4 < end; panel++) {
        const long width = panel < 2 ? 4 : 4;
        const long lanes = min_long(width, 12 - panel * 4);
        float *to = panels + 0 * 120 + panel * 40;
        for (long k = 0; k < 10; k++) {
            const float *rows = b + k * 12 + panel * 4;
            float *step = to + (k) * width;
            for (long lane = 0; lane < lanes; lane++) {
                step[lane] = rows[lane];
            }
            for (long lane = lanes; lane < width; lane++) {
                step[lane] = 0.0f;
            }
        }
    }
}

void tw_pack(const float *const *constants, float *packed) {
    (void)constants, (void)packed;
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 704; }
long tw_packed_bytes(void) { return 0; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 16;
    float *panels = accumulators + 32;
    pack_panels(args->in[1], panels, 0, 12);
    for (long i_reg = 0; i_reg < 6; i_reg += 3) {
        const long i_reg_end = min_long(i_reg + 3, 6);
        for (long j_reg = 0; j_reg < 12; j_reg += 4) {
            const long j_reg_end = min_long(j_reg + 4, 12);
            const long last = j_reg + 4 >= 12;
            const float *weights = panels + 0 * 120 + j_reg * 10;
            const float *tile = source + i_reg * 10;
            float *acc = accumulators;
            fetch_result(args->out + i_reg * 12 + j_reg);
            mk_portable_p3_v1(tile + 0, weights + (0) * 1 * 4, acc, 10 - 0, 0);
            store_p3_v1(acc, args->out + i_reg * 12 + j_reg, min_long(4, 12 - j_reg));
        }
    }
}
