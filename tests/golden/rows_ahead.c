/* matmul-m9n20k10: outer schema, avx2
   l2: i=10 j=24 k=10
   l1: i=10 j=8 k=10
   reg: i=2 j=8 k=1
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

static __attribute__((noinline)) void mk_avx2_p1_v1(const float *a, const float *b, float *acc, long count, long resume, const float *next)
{
    __asm__ volatile(
        "test %[resume], %[resume]\n\t"
        "jnz 1f\n\t"
        "vxorps %%xmm0, %%xmm0, %%xmm0\n\t"
        "jmp 2f\n\t"
        "1:\n\t"
        "vmovups 0(%[acc]), %%ymm0\n\t"
        "2:\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "prefetcht1 (%[next])\n\t"
        "add $32, %[next]\n\t"
        "vmovups 0(%[b]), %%ymm1\n\t"
        "vbroadcastss 0(%[a]), %%ymm2\n\t"
        "vfmadd231ps %%ymm2, %%ymm1, %%ymm0\n\t"
        "vmovups 32(%[b]), %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm3\n\t"
        "vfmadd231ps %%ymm3, %%ymm1, %%ymm0\n\t"
        "vmovups 64(%[b]), %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm4\n\t"
        "vfmadd231ps %%ymm4, %%ymm1, %%ymm0\n\t"
        "vmovups 96(%[b]), %%ymm1\n\t"
        "vbroadcastss 12(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm1, %%ymm0\n\t"
        "add $128, %[b]\n\t"
        "add $16, %[a]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "prefetcht1 (%[next])\n\t"
        "add $8, %[next]\n\t"
        "vmovups 0(%[b]), %%ymm1\n\t"
        "vbroadcastss 0(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm1, %%ymm0\n\t"
        "add $32, %[b]\n\t"
        "add $4, %[a]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%ymm0, 0(%[acc])\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count), [next] "+r"(next)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

static __attribute__((noinline)) void mk_avx2_p2_v1(const float *a, const float *b, float *acc, long count, long resume, const float *next)
{
    __asm__ volatile(
        "test %[resume], %[resume]\n\t"
        "jnz 1f\n\t"
        "vxorps %%xmm0, %%xmm0, %%xmm0\n\t"
        "vxorps %%xmm1, %%xmm1, %%xmm1\n\t"
        "jmp 2f\n\t"
        "1:\n\t"
        "vmovups 0(%[acc]), %%ymm0\n\t"
        "vmovups 32(%[acc]), %%ymm1\n\t"
        "2:\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "prefetcht1 (%[next])\n\t"
        "add $32, %[next]\n\t"
        "vmovups 0(%[b]), %%ymm2\n\t"
        "vbroadcastss 0(%[a]), %%ymm3\n\t"
        "vfmadd231ps %%ymm3, %%ymm2, %%ymm0\n\t"
        "vbroadcastss 40(%[a]), %%ymm4\n\t"
        "vfmadd231ps %%ymm4, %%ymm2, %%ymm1\n\t"
        "vmovups 32(%[b]), %%ymm2\n\t"
        "vbroadcastss 4(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm2, %%ymm0\n\t"
        "vbroadcastss 44(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm2, %%ymm1\n\t"
        "vmovups 64(%[b]), %%ymm2\n\t"
        "vbroadcastss 8(%[a]), %%ymm7\n\t"
        "vfmadd231ps %%ymm7, %%ymm2, %%ymm0\n\t"
        "vbroadcastss 48(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm2, %%ymm1\n\t"
        "vmovups 96(%[b]), %%ymm2\n\t"
        "vbroadcastss 12(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm2, %%ymm0\n\t"
        "vbroadcastss 52(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm2, %%ymm1\n\t"
        "add $128, %[b]\n\t"
        "add $16, %[a]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "prefetcht1 (%[next])\n\t"
        "add $8, %[next]\n\t"
        "vmovups 0(%[b]), %%ymm2\n\t"
        "vbroadcastss 0(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm2, %%ymm0\n\t"
        "vbroadcastss 40(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm2, %%ymm1\n\t"
        "add $32, %[b]\n\t"
        "add $4, %[a]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%ymm0, 0(%[acc])\n\t"
        "vmovups %%ymm1, 32(%[acc])\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count), [next] "+r"(next)
        : [acc] "r"(acc), [resume] "r"(resume)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

static inline __attribute__((always_inline)) void store_row(const float *acc, float *restrict out, long lanes, long step, long pixels) {
    for (long pixel = 0; pixel < pixels; pixel++) {
        for (long lane = 0; lane < lanes; lane++) {
            const float value = acc[pixel * step + lane];
            out[lane + pixel * 20] = value;
        }
    }
}

static __attribute__((noinline)) void store_p1_v1(const float *acc, float *restrict out, long lanes) {
    store_row(acc + 0, out + 0, lanes, 8, 1);
}

static __attribute__((noinline)) void store_p2_v1(const float *acc, float *restrict out, long lanes) {
    store_row(acc + 0, out + 0, lanes, 8, 2);
}

static inline void fetch_result(const float *out) {
    for (long i_row = 0; i_row < 2; i_row++) {
        __builtin_prefetch(out + i_row * 20, 1);
    }
}

void tw_pack(const float *const *constants, float *packed) {
    const float *b = constants[0];
    float *to = packed;
    for (long panel = 0; panel < 3; panel++) {
        const long width = panel + 1 < 3 ? 8 : 8;
        for (long k = 0; k < 10; k++) {
            for (long lane = 0; lane < width; lane++) {
                const long j = panel * 8 + lane;
                *to++ = j < 20 ? b[k * 20 + j] : 0.0f;
            }
        }
    }
}

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 256; }
long tw_packed_bytes(void) { return 960; }

void tw_part(const tw_args *args, long part) {
    const float *source = args->in[0];
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    float *accumulators = buffer + 16;
    for (long j_l1 = 0; j_l1 < 20; j_l1 += 8) {
        const long j_l1_end = min_long(j_l1 + 8, 20);
        for (long i_reg = 0; i_reg < 9; i_reg += 2) {
            const long i_reg_end = min_long(i_reg + 2, 9);
            for (long j_reg = j_l1; j_reg < j_l1_end; j_reg += 8) {
                const long j_reg_end = min_long(j_reg + 8, j_l1_end);
                const long last = j_reg + 8 >= 20;
                const float *weights = args->packed + 0 * 240 + j_reg * 10;
                const float *tile = source + i_reg * 10;
                float *acc = accumulators;
                fetch_result(args->out + i_reg * 20 + j_reg);
                const float *next = weights + (0) * 8 + 80 + (i_reg - 0) / 2 * (10 - 0) * 2;
                if (i_reg_end - i_reg == 2)
                    mk_avx2_p2_v1(tile + 0, weights + (0) * 1 * 8, acc, 10 - 0, 0, next);
                else
                    mk_avx2_p1_v1(tile + 0, weights + (0) * 1 * 8, acc, 10 - 0, 0, next);
                if (i_reg_end - i_reg == 2)
                    store_p2_v1(acc, args->out + i_reg * 20 + j_reg, min_long(8, 20 - j_reg));
                else
                    store_p1_v1(acc, args->out + i_reg * 20 + j_reg, min_long(8, 20 - j_reg));
            }
        }
    }
}
