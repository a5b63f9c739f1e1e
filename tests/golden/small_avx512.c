/* mb1ic3ih5iw6oc20oh4ow5kh2kw2sh1sw1ph0pw0dh0dw0: outer schema, avx512
   l2: n=1 k=32 h=4 w=5 c=3 r=2 s=2
   l1: n=1 k=32 h=4 w=5 c=3 r=2 s=2
   reg: n=1 k=16 h=1 w=5 c=1 r=1 s=1
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

static __attribute__((noinline)) void mk_avx512_p1x1x5_v1(const float *a, const float *b, float *acc, long count, long resume)
{
    __asm__ volatile(
        "test %[resume], %[resume]\n\t"
        "jnz 1f\n\t"
        "vxorps %%xmm0, %%xmm0, %%xmm0\n\t"
        "vxorps %%xmm1, %%xmm1, %%xmm1\n\t"
        "vxorps %%xmm2, %%xmm2, %%xmm2\n\t"
        "vxorps %%xmm3, %%xmm3, %%xmm3\n\t"
        "vxorps %%xmm4, %%xmm4, %%xmm4\n\t"
        "jmp 2f\n\t"
        "1:\n\t"
        "vmovups 0(%[acc]), %%zmm0\n\t"
        "vmovups 64(%[acc]), %%zmm1\n\t"
        "vmovups 128(%[acc]), %%zmm2\n\t"
        "vmovups 192(%[acc]), %%zmm3\n\t"
        "vmovups 256(%[acc]), %%zmm4\n\t"
        "2:\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "prefetcht0 1152(%[a])\n\t"
        "prefetcht0 1204(%[a])\n\t"
        "vmovups 0(%[b]), %%zmm5\n\t"
        "vbroadcastss 0(%[a]), %%zmm6\n\t"
        "vfmadd231ps %%zmm6, %%zmm5, %%zmm0\n\t"
        "vbroadcastss 4(%[a]), %%zmm7\n\t"
        "vfmadd231ps %%zmm7, %%zmm5, %%zmm1\n\t"
        "vbroadcastss 8(%[a]), %%zmm8\n\t"
        "vfmadd231ps %%zmm8, %%zmm5, %%zmm2\n\t"
        "vbroadcastss 12(%[a]), %%zmm9\n\t"
        "vfmadd231ps %%zmm9, %%zmm5, %%zmm3\n\t"
        "vbroadcastss 16(%[a]), %%zmm10\n\t"
        "vfmadd231ps %%zmm10, %%zmm5, %%zmm4\n\t"
        "vmovups 64(%[b]), %%zmm5\n\t"
        "vbroadcastss 4(%[a]), %%zmm11\n\t"
        "vfmadd231ps %%zmm11, %%zmm5, %%zmm0\n\t"
        "vbroadcastss 8(%[a]), %%zmm12\n\t"
        "vfmadd231ps %%zmm12, %%zmm5, %%zmm1\n\t"
        "vbroadcastss 12(%[a]), %%zmm13\n\t"
        "vfmadd231ps %%zmm13, %%zmm5, %%zmm2\n\t"
        "vbroadcastss 16(%[a]), %%zmm14\n\t"
        "vfmadd231ps %%zmm14, %%zmm5, %%zmm3\n\t"
        "vbroadcastss 20(%[a]), %%zmm15\n\t"
        "vfmadd231ps %%zmm15, %%zmm5, %%zmm4\n\t"
        "vmovups 128(%[b]), %%zmm5\n\t"
        "vbroadcastss 32(%[a]), %%zmm16\n\t"
        "vfmadd231ps %%zmm16, %%zmm5, %%zmm0\n\t"
        "vbroadcastss 36(%[a]), %%zmm17\n\t"
        "vfmadd231ps %%zmm17, %%zmm5, %%zmm1\n\t"
        "vbroadcastss 40(%[a]), %%zmm18\n\t"
        "vfmadd231ps %%zmm18, %%zmm5, %%zmm2\n\t"
        "vbroadcastss 44(%[a]), %%zmm19\n\t"
        "vfmadd231ps %%zmm19, %%zmm5, %%zmm3\n\t"
        "vbroadcastss 48(%[a]), %%zmm20\n\t"
        "vfmadd231ps %%zmm20, %%zmm5, %%zmm4\n\t"
        "vmovups 192(%[b]), %%zmm5\n\t"
        "vbroadcastss 36(%[a]), %%zmm21\n\t"
        "vfmadd231ps %%zmm21, %%zmm5, %%zmm0\n\t"
        "vbroadcastss 40(%[a]), %%zmm22\n\t"
        "vfmadd231ps %%zmm22, %%zmm5, %%zmm1\n\t"
        "vbroadcastss 44(%[a]), %%zmm23\n\t"
        "vfmadd231ps %%zmm23, %%zmm5, %%zmm2\n\t"
        "vbroadcastss 48(%[a]), %%zmm24\n\t"
        "vfmadd231ps %%zmm24, %%zmm5, %%zmm3\n\t"
        "vbroadcastss 52(%[a]), %%zmm25\n\t"
        "vfmadd231ps %%zmm25, %%zmm5, %%zmm4\n\t"
        "add $256, %[b]\n\t"
        "add $192, %[a]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%zmm0, 0(%[acc])\n\t"
        "vmovups %%zmm1, 64(%[acc])\n\t"
        "vmovups %%zmm2, 128(%[acc])\n\t"
        "vmovups %%zmm3, 192(%[acc])\n\t"
        "vmovups %%zmm4, 256(%[acc])\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31", "cc", "memory");
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
    if (lanes >= 16) {
        transpose4(acc + 0, 16, out + 0, 20, 4);
        transpose4(acc + 64, 16, out + 4, 20, 1);
        transpose4(acc + 4, 16, out + 80, 20, 4);
        transpose4(acc + 68, 16, out + 84, 20, 1);
        transpose4(acc + 8, 16, out + 160, 20, 4);
        transpose4(acc + 72, 16, out + 164, 20, 1);
        transpose4(acc + 12, 16, out + 240, 20, 4);
        transpose4(acc + 76, 16, out + 244, 20, 1);
        return;
    }
    store_row(acc + 0, out + 0, lanes, 16, 5);
}

static inline void fetch_result(const float *out) {
    for (long k_row = 0; k_row < 16; k_row++) {
        __builtin_prefetch(out + k_row * 20, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 2; panel++) {
        const long width = panel + 1 < 2 ? 16 : 16;
        for (long c = 0; c < 3; c++) {
            for (long r = 0; r < 2; r++) {
                for (long s = 0; s < 2; s++) {
                    for (long lane = 0; lane < width; lane++) {
                        const long k = panel * 16 + lane;
                        *to++ = k < 20 ? b[k * 12 + c * 4 + r * 2 + s] : 0.0f;
                    }
                }
            }
        }
    }
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 1152; }
long tw_packed_bytes(void) { return 1536; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 160;
    const long from[] = {0, 0, 0, 0};
    const long extent[] = {(1 - 0 - 1) + 1, (3 - 0 - 1) + 1, (4 - 0 - 1) + (2 - 0 - 1) + 1, (5 - 0 - 1) + (2 - 0 - 1) + 1};
    pack_tile(source, buffer, from, extent);
    for (long n_reg = 0; n_reg < 1; n_reg += 1) {
        const long n_reg_end = min_long(n_reg + 1, 1);
        for (long k_reg = 0; k_reg < 20; k_reg += 16) {
            const long k_reg_end = min_long(k_reg + 16, 20);
            for (long h_reg = 0; h_reg < 4; h_reg += 1) {
                const long h_reg_end = min_long(h_reg + 1, 4);
                for (long w_reg = 0; w_reg < 5; w_reg += 5) {
                    const long w_reg_end = min_long(w_reg + 5, 5);
                    const long last = k_reg + 16 >= 20;
                    const float *weights = args->packed + 0 * 384 + k_reg * 12;
                    const float *tile = buffer + n_reg * 144 + h_reg * 8 + w_reg;
                    float *acc = accumulators;
                    fetch_result(args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg);
                    mk_avx512_p1x1x5_v1(tile + 0, weights + (0) * 4 * 16, acc, 3 - 0, 0);
                    store_p1x1x5_v1(acc, args->out + n_reg * 400 + k_reg * 20 + h_reg * 5 + w_reg, min_long(16, 20 - k_reg));
                }
            }
        }
    }
}
