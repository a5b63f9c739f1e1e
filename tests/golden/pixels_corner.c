/* mb1ic8ih5iw7oc6oh5ow7kh1kw1sh1sw1ph0pw0dh0dw0+bias+relu: pixels schema, avx2
   l2: n=1 k=6 hw=48 c=8
   reg: n=1 k=3 hw=16 c=1
   parallel: k/2; packs: l2 */
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

static inline __attribute__((always_inline)) float max_number_f32(float x, float number) { return pick_f32(x < number, number, x); }

typedef float row_v __attribute__((vector_size(32), aligned(4), may_alias));

/* to[x] = from[first + x * step] for x < count, zero where that index is not below `size`. */
static inline void copy_row(const float *restrict from, float *restrict to, long first, long size,
                            long count, long step)
{
    long low = first < 0 ? (step - 1 - first) / step : 0;
    long high = size > first ? (size - first + step - 1) / step : 0;
    low = min_long(low, count);
    high = max_long(low, min_long(high, count));
    for (long x = 0; x < low; x++)
        to[x] = 0.0f;
    if (step == 1)
        memcpy(to + low, from + first + low, 4 * (unsigned long)(high - low));
    else
        for (long x = low; x < high; x++)
            to[x] = from[first + x * step];
    for (long x = high; x < count; x++)
        to[x] = 0.0f;
}

static void copy_tile(const float *restrict image, float *restrict buffer, long first, long end) {
    const long past = 4;
    for (long c = 0; c < 8; c++) {
        const float *row = image + c * 35;
        float *to = buffer + c * 16;
        long x = first;
        for (; x + 16 <= end; x += 16, to += 144) {
            *(row_v *)(to + 0) = *(const row_v *)(row + x + 0);
            *(row_v *)(to + 8) = *(const row_v *)(row + x + 8);
            if (c < past) {
                __builtin_prefetch(row + x + 140);
            }
        }
        if (x == 32 && x < end) {
            float *last = to - c * 13;
            for (long i = 0; i < 3; i++)
                last[i] = row[x + i];
            continue;
        }
        if (x < end && c < 7) {
            *(row_v *)(to + 0) = *(const row_v *)(row + x + 0);
            if (x + 8 < end) *(row_v *)(to + 8) = *(const row_v *)(row + x + 8);
            continue;
        }
        if (x < end)
            copy_row(row, to, x, end, 16, 1);
    }
}

static __attribute__((noinline)) void rows_avx2_k3_p1x2(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vbroadcastss 0(%[bias]), %%ymm0\n\t"
        "vmovaps %%ymm0, %%ymm1\n\t"
        "vbroadcastss 4(%[bias]), %%ymm2\n\t"
        "vmovaps %%ymm2, %%ymm3\n\t"
        "vbroadcastss 8(%[bias]), %%ymm4\n\t"
        "vmovaps %%ymm4, %%ymm5\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vmovups 32(%[b]), %%ymm7\n\t"
        "vbroadcastss 0(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm8, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm9, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm10, %%ymm7, %%ymm5\n\t"
        "vmovups 64(%[b]), %%ymm6\n\t"
        "vmovups 96(%[b]), %%ymm7\n\t"
        "vbroadcastss 12(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 16(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 20(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm5\n\t"
        "vmovups 128(%[b]), %%ymm6\n\t"
        "vmovups 160(%[b]), %%ymm7\n\t"
        "vbroadcastss 24(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 28(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm15, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 32(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm8, %%ymm7, %%ymm5\n\t"
        "vmovups 192(%[b]), %%ymm6\n\t"
        "vmovups 224(%[b]), %%ymm7\n\t"
        "vbroadcastss 36(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm9, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 40(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm10, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 44(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm5\n\t"
        "add $48, %[a]\n\t"
        "add $256, %[b]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vmovups 32(%[b]), %%ymm7\n\t"
        "vbroadcastss 0(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm5\n\t"
        "add $12, %[a]\n\t"
        "add $64, %[b]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm15\n\t"
        "vbroadcastss %%xmm15, %%ymm15\n\t"
        "vmaxps %%ymm0, %%ymm15, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm15, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm15, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm15, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm15, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm15, %%ymm5\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 32(%[out])\n\t"
        "vmovups %%ymm2, 140(%[out])\n\t"
        "vmovups %%ymm3, 172(%[out])\n\t"
        "vmovups %%ymm4, 280(%[out])\n\t"
        "vmovups %%ymm5, 312(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm14\n\t"
        "vbroadcastss %%xmm14, %%ymm14\n\t"
        "vmaxps %%ymm0, %%ymm14, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm14, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm14, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm14, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm14, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm14, %%ymm5\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmaskmovps %%ymm1, %%ymm15, 32(%[out])\n\t"
        "vmovups %%ymm2, 140(%[out])\n\t"
        "vmaskmovps %%ymm3, %%ymm15, 172(%[out])\n\t"
        "vmovups %%ymm4, 280(%[out])\n\t"
        "vmaskmovps %%ymm5, %%ymm15, 312(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [out] "r"(out), [bias] "r"(bias), [mask] "r"(mask), [lanes] "r"(lanes)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)more;
    (void)next;
}

static __attribute__((noinline)) void rows_avx2_k3_p1x1(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vbroadcastss 0(%[bias]), %%ymm0\n\t"
        "vbroadcastss 4(%[bias]), %%ymm1\n\t"
        "vbroadcastss 8(%[bias]), %%ymm2\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[b]), %%ymm3\n\t"
        "vbroadcastss 0(%[a]), %%ymm4\n\t"
        "vfmadd231ps %%ymm4, %%ymm3, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm3, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm3, %%ymm2\n\t"
        "vmovups 64(%[b]), %%ymm3\n\t"
        "vbroadcastss 12(%[a]), %%ymm7\n\t"
        "vfmadd231ps %%ymm7, %%ymm3, %%ymm0\n\t"
        "vbroadcastss 16(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm3, %%ymm1\n\t"
        "vbroadcastss 20(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm3, %%ymm2\n\t"
        "vmovups 128(%[b]), %%ymm3\n\t"
        "vbroadcastss 24(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm3, %%ymm0\n\t"
        "vbroadcastss 28(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm3, %%ymm1\n\t"
        "vbroadcastss 32(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm3, %%ymm2\n\t"
        "vmovups 192(%[b]), %%ymm3\n\t"
        "vbroadcastss 36(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm3, %%ymm0\n\t"
        "vbroadcastss 40(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm3, %%ymm1\n\t"
        "vbroadcastss 44(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm3, %%ymm2\n\t"
        "add $48, %[a]\n\t"
        "add $256, %[b]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[b]), %%ymm3\n\t"
        "vbroadcastss 0(%[a]), %%ymm4\n\t"
        "vfmadd231ps %%ymm4, %%ymm3, %%ymm0\n\t"
        "vbroadcastss 4(%[a]), %%ymm5\n\t"
        "vfmadd231ps %%ymm5, %%ymm3, %%ymm1\n\t"
        "vbroadcastss 8(%[a]), %%ymm6\n\t"
        "vfmadd231ps %%ymm6, %%ymm3, %%ymm2\n\t"
        "add $12, %[a]\n\t"
        "add $64, %[b]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm15\n\t"
        "vbroadcastss %%xmm15, %%ymm15\n\t"
        "vmaxps %%ymm0, %%ymm15, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm15, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm15, %%ymm2\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 140(%[out])\n\t"
        "vmovups %%ymm2, 280(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm14\n\t"
        "vbroadcastss %%xmm14, %%ymm14\n\t"
        "vmaxps %%ymm0, %%ymm14, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm14, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm14, %%ymm2\n\t"
        "vmaskmovps %%ymm0, %%ymm15, 0(%[out])\n\t"
        "vmaskmovps %%ymm1, %%ymm15, 140(%[out])\n\t"
        "vmaskmovps %%ymm2, %%ymm15, 280(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count)
        : [out] "r"(out), [bias] "r"(bias), [mask] "r"(mask), [lanes] "r"(lanes)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)more;
    (void)next;
}

static __attribute__((noinline)) void rows_avx2_k3_p1x2_copy(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next, const float *from)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vbroadcastss 0(%[bias]), %%ymm0\n\t"
        "vmovaps %%ymm0, %%ymm1\n\t"
        "vbroadcastss 4(%[bias]), %%ymm2\n\t"
        "vmovaps %%ymm2, %%ymm3\n\t"
        "vbroadcastss 8(%[bias]), %%ymm4\n\t"
        "vmovaps %%ymm4, %%ymm5\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[from]), %%ymm6\n\t"
        "vmovups %%ymm6, 0(%[b])\n\t"
        "prefetcht0 1180(%[from])\n\t"
        "vmovups 32(%[from]), %%ymm7\n\t"
        "vmovups %%ymm7, 32(%[b])\n\t"
        "vbroadcastss 0(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm8, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm9, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm10, %%ymm7, %%ymm5\n\t"
        "vmovups 140(%[from]), %%ymm6\n\t"
        "vmovups %%ymm6, 64(%[b])\n\t"
        "prefetcht0 1320(%[from])\n\t"
        "vmovups 172(%[from]), %%ymm7\n\t"
        "vmovups %%ymm7, 96(%[b])\n\t"
        "vbroadcastss 12(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 16(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 20(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm5\n\t"
        "vmovups 280(%[from]), %%ymm6\n\t"
        "vmovups %%ymm6, 128(%[b])\n\t"
        "prefetcht0 1460(%[from])\n\t"
        "vmovups 312(%[from]), %%ymm7\n\t"
        "vmovups %%ymm7, 160(%[b])\n\t"
        "vbroadcastss 24(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 28(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm15, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 32(%[a]), %%ymm8\n\t"
        "vfmadd231ps %%ymm8, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm8, %%ymm7, %%ymm5\n\t"
        "vmovups 420(%[from]), %%ymm6\n\t"
        "vmovups %%ymm6, 192(%[b])\n\t"
        "prefetcht0 1600(%[from])\n\t"
        "vmovups 452(%[from]), %%ymm7\n\t"
        "vmovups %%ymm7, 224(%[b])\n\t"
        "vbroadcastss 36(%[a]), %%ymm9\n\t"
        "vfmadd231ps %%ymm9, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm9, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 40(%[a]), %%ymm10\n\t"
        "vfmadd231ps %%ymm10, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm10, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 44(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm5\n\t"
        "add $48, %[a]\n\t"
        "add $256, %[b]\n\t"
        "add $560, %[from]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[from]), %%ymm6\n\t"
        "vmovups %%ymm6, 0(%[b])\n\t"
        "prefetcht0 1180(%[from])\n\t"
        "vmovups 32(%[from]), %%ymm7\n\t"
        "vmovups %%ymm7, 32(%[b])\n\t"
        "vbroadcastss 0(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm5\n\t"
        "add $12, %[a]\n\t"
        "add $64, %[b]\n\t"
        "add $140, %[from]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm15\n\t"
        "vbroadcastss %%xmm15, %%ymm15\n\t"
        "vmaxps %%ymm0, %%ymm15, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm15, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm15, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm15, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm15, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm15, %%ymm5\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 32(%[out])\n\t"
        "vmovups %%ymm2, 140(%[out])\n\t"
        "vmovups %%ymm3, 172(%[out])\n\t"
        "vmovups %%ymm4, 280(%[out])\n\t"
        "vmovups %%ymm5, 312(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm14\n\t"
        "vbroadcastss %%xmm14, %%ymm14\n\t"
        "vmaxps %%ymm0, %%ymm14, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm14, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm14, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm14, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm14, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm14, %%ymm5\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmaskmovps %%ymm1, %%ymm15, 32(%[out])\n\t"
        "vmovups %%ymm2, 140(%[out])\n\t"
        "vmaskmovps %%ymm3, %%ymm15, 172(%[out])\n\t"
        "vmovups %%ymm4, 280(%[out])\n\t"
        "vmaskmovps %%ymm5, %%ymm15, 312(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count), [from] "+r"(from)
        : [out] "r"(out), [bias] "r"(bias), [mask] "r"(mask), [lanes] "r"(lanes)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)more;
    (void)next;
}

static __attribute__((noinline)) void rows_avx2_k3_p1x2_c3(const float *a, const float *b, float *out, long count, long lanes, const float *bias, const float *more, const float *next, const float *last, float *sums)
{
    static const int masks[] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    const int *mask = masks + 8 - lanes;
    __asm__ volatile(
        "vxorps %%ymm8, %%ymm8, %%ymm8\n\t"
        "vxorps %%ymm9, %%ymm9, %%ymm9\n\t"
        "vxorps %%ymm10, %%ymm10, %%ymm10\n\t"
        "vbroadcastss 0(%[bias]), %%ymm0\n\t"
        "vmovaps %%ymm0, %%ymm1\n\t"
        "vbroadcastss 4(%[bias]), %%ymm2\n\t"
        "vmovaps %%ymm2, %%ymm3\n\t"
        "vbroadcastss 8(%[bias]), %%ymm4\n\t"
        "vmovaps %%ymm4, %%ymm5\n\t"
        "sub $4, %[count]\n\t"
        "jl 5f\n\t"
        ".p2align 4\n\t"
        "6:\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vmovups 32(%[b]), %%ymm7\n\t"
        "vbroadcastss 0(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm5\n\t"
        "vbroadcastss 0(%[last]), %%ymm14\n\t"
        "vfmadd231ps 0(%[a]), %%ymm14, %%ymm8\n\t"
        "vbroadcastss 4(%[last]), %%ymm15\n\t"
        "vfmadd231ps 0(%[a]), %%ymm15, %%ymm9\n\t"
        "vbroadcastss 8(%[last]), %%ymm11\n\t"
        "vfmadd231ps 0(%[a]), %%ymm11, %%ymm10\n\t"
        "vmovups 64(%[b]), %%ymm6\n\t"
        "vmovups 96(%[b]), %%ymm7\n\t"
        "vbroadcastss 12(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 16(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 20(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm5\n\t"
        "vbroadcastss 12(%[last]), %%ymm15\n\t"
        "vfmadd231ps 12(%[a]), %%ymm15, %%ymm8\n\t"
        "vbroadcastss 16(%[last]), %%ymm11\n\t"
        "vfmadd231ps 12(%[a]), %%ymm11, %%ymm9\n\t"
        "vbroadcastss 20(%[last]), %%ymm12\n\t"
        "vfmadd231ps 12(%[a]), %%ymm12, %%ymm10\n\t"
        "vmovups 128(%[b]), %%ymm6\n\t"
        "vmovups 160(%[b]), %%ymm7\n\t"
        "vbroadcastss 24(%[a]), %%ymm13\n\t"
        "vfmadd231ps %%ymm13, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm13, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 28(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 32(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm15, %%ymm7, %%ymm5\n\t"
        "vbroadcastss 24(%[last]), %%ymm11\n\t"
        "vfmadd231ps 24(%[a]), %%ymm11, %%ymm8\n\t"
        "vbroadcastss 28(%[last]), %%ymm12\n\t"
        "vfmadd231ps 24(%[a]), %%ymm12, %%ymm9\n\t"
        "vbroadcastss 32(%[last]), %%ymm13\n\t"
        "vfmadd231ps 24(%[a]), %%ymm13, %%ymm10\n\t"
        "vmovups 192(%[b]), %%ymm6\n\t"
        "vmovups 224(%[b]), %%ymm7\n\t"
        "vbroadcastss 36(%[a]), %%ymm14\n\t"
        "vfmadd231ps %%ymm14, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm14, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 40(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm15, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 44(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm5\n\t"
        "vbroadcastss 36(%[last]), %%ymm12\n\t"
        "vfmadd231ps 36(%[a]), %%ymm12, %%ymm8\n\t"
        "vbroadcastss 40(%[last]), %%ymm13\n\t"
        "vfmadd231ps 36(%[a]), %%ymm13, %%ymm9\n\t"
        "vbroadcastss 44(%[last]), %%ymm14\n\t"
        "vfmadd231ps 36(%[a]), %%ymm14, %%ymm10\n\t"
        "add $48, %[last]\n\t"
        "add $48, %[a]\n\t"
        "add $256, %[b]\n\t"
        "sub $4, %[count]\n\t"
        "jge 6b\n\t"
        "5:\n\t"
        "add $4, %[count]\n\t"
        "test %[count], %[count]\n\t"
        "jz 4f\n\t"
        ".p2align 4\n\t"
        "3:\n\t"
        "vmovups 0(%[b]), %%ymm6\n\t"
        "vmovups 32(%[b]), %%ymm7\n\t"
        "vbroadcastss 0(%[a]), %%ymm15\n\t"
        "vfmadd231ps %%ymm15, %%ymm6, %%ymm0\n\t"
        "vfmadd231ps %%ymm15, %%ymm7, %%ymm1\n\t"
        "vbroadcastss 4(%[a]), %%ymm11\n\t"
        "vfmadd231ps %%ymm11, %%ymm6, %%ymm2\n\t"
        "vfmadd231ps %%ymm11, %%ymm7, %%ymm3\n\t"
        "vbroadcastss 8(%[a]), %%ymm12\n\t"
        "vfmadd231ps %%ymm12, %%ymm6, %%ymm4\n\t"
        "vfmadd231ps %%ymm12, %%ymm7, %%ymm5\n\t"
        "vbroadcastss 0(%[last]), %%ymm13\n\t"
        "vfmadd231ps 0(%[a]), %%ymm13, %%ymm8\n\t"
        "vbroadcastss 4(%[last]), %%ymm14\n\t"
        "vfmadd231ps 0(%[a]), %%ymm14, %%ymm9\n\t"
        "vbroadcastss 8(%[last]), %%ymm15\n\t"
        "vfmadd231ps 0(%[a]), %%ymm15, %%ymm10\n\t"
        "add $12, %[last]\n\t"
        "add $12, %[a]\n\t"
        "add $64, %[b]\n\t"
        "dec %[count]\n\t"
        "jnz 3b\n\t"
        "4:\n\t"
        "vmovups %%ymm8, 0(%[sums])\n\t"
        "vmovups %%ymm9, 32(%[sums])\n\t"
        "vmovups %%ymm10, 64(%[sums])\n\t"
        "cmp $8, %[lanes]\n\t"
        "jne 7f\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm15\n\t"
        "vbroadcastss %%xmm15, %%ymm15\n\t"
        "vmaxps %%ymm0, %%ymm15, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm15, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm15, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm15, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm15, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm15, %%ymm5\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmovups %%ymm1, 32(%[out])\n\t"
        "vmovups %%ymm2, 140(%[out])\n\t"
        "vmovups %%ymm3, 172(%[out])\n\t"
        "vmovups %%ymm4, 280(%[out])\n\t"
        "vmovups %%ymm5, 312(%[out])\n\t"
        "jmp 8f\n\t"
        "7:\n\t"
        "vmovups (%[mask]), %%ymm15\n\t"
        "mov $0, %k[count]\n\t"
        "vmovd %k[count], %%xmm14\n\t"
        "vbroadcastss %%xmm14, %%ymm14\n\t"
        "vmaxps %%ymm0, %%ymm14, %%ymm0\n\t"
        "vmaxps %%ymm1, %%ymm14, %%ymm1\n\t"
        "vmaxps %%ymm2, %%ymm14, %%ymm2\n\t"
        "vmaxps %%ymm3, %%ymm14, %%ymm3\n\t"
        "vmaxps %%ymm4, %%ymm14, %%ymm4\n\t"
        "vmaxps %%ymm5, %%ymm14, %%ymm5\n\t"
        "vmovups %%ymm0, 0(%[out])\n\t"
        "vmaskmovps %%ymm1, %%ymm15, 32(%[out])\n\t"
        "vmovups %%ymm2, 140(%[out])\n\t"
        "vmaskmovps %%ymm3, %%ymm15, 172(%[out])\n\t"
        "vmovups %%ymm4, 280(%[out])\n\t"
        "vmaskmovps %%ymm5, %%ymm15, 312(%[out])\n\t"
        "8:\n\t"
        "vzeroupper\n\t"
        : [a] "+r"(a), [b] "+r"(b), [count] "+r"(count), [last] "+r"(last)
        : [out] "r"(out), [bias] "r"(bias), [mask] "r"(mask), [lanes] "r"(lanes), [sums] "r"(sums)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    (void)more;
    (void)next;
}

static __attribute__((noinline)) void corner_avx2_k3_p3(const float *a, const float *b, float *to, long count) {
    row_v s0_0 = {0}, s0_1 = {0}, s0_2 = {0};
    row_v s1_0 = {0}, s1_1 = {0}, s1_2 = {0};
    row_v s2_0 = {0}, s2_1 = {0}, s2_2 = {0};
    row_v s3_0 = {0}, s3_1 = {0}, s3_2 = {0};
    for (; count >= 4; count -= 4, a += 12, b += 12) {
        const row_v w0 = *(const row_v *)(a + 0);
        s0_0 += w0 * b[0];
        s0_1 += w0 * b[1];
        s0_2 += w0 * b[2];
        const row_v w1 = *(const row_v *)(a + 3);
        s1_0 += w1 * b[3];
        s1_1 += w1 * b[4];
        s1_2 += w1 * b[5];
        const row_v w2 = *(const row_v *)(a + 6);
        s2_0 += w2 * b[6];
        s2_1 += w2 * b[7];
        s2_2 += w2 * b[8];
        const row_v w3 = *(const row_v *)(a + 9);
        s3_0 += w3 * b[9];
        s3_1 += w3 * b[10];
        s3_2 += w3 * b[11];
    }
    for (; count > 0; count--, a += 3, b += 3) {
        const row_v w0 = *(const row_v *)(a + 0);
        s0_0 += w0 * b[0];
        s0_1 += w0 * b[1];
        s0_2 += w0 * b[2];
    }
    *(row_v *)(to + 0) = s0_0 + s1_0 + s2_0 + s3_0;
    *(row_v *)(to + 8) = s0_1 + s1_1 + s2_1 + s3_1;
    *(row_v *)(to + 16) = s0_2 + s1_2 + s2_2 + s3_2;
}

void tw_pack(const float *const *constants, float *packed) {
    const float *from = constants[0];
    float *to = packed;
    static const long starts[] = {0, 3, 6};
    for (long tile = 0; tile < 2; tile++) {
        for (long c = 0; c < 8; c++) {
            for (long k = starts[tile]; k < starts[tile + 1]; k++)
                *to++ = from[k * 8 + c];
        }
    }
    memcpy(packed + 64, constants[1], 6 * sizeof(float));
}

long tw_parts(void) { return 2; }
long tw_scratch_bytes(void) { return 1920; }
long tw_packed_bytes(void) { return 320; }

static inline void fetch_result(const float *out, long channels, long rows) {
    for (long k = 0; k < channels; k++) {
        for (long row = 0; row < rows; row++) {
            const float *at = out + k * 35;
            __builtin_prefetch(at + 0, 1);
        }
    }
}

static __attribute__((noinline)) void store_corner(const float *restrict sums, float *restrict out, long channels, const float *e0) {
    for (long k = 0; k < channels; k++) {
        for (long x = 0; x < 3; x++) {
            const long e0_at = k;
            const float value = sums[x * 8 + k];
            out[k * 35 + x] = max_number_f32((value + e0[e0_at]), 0.0f);
        }
    }
}

void tw_part(const tw_args *args, long part) {
    float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());
    const float *e0 = args->packed + 64;
    const long n_low = 1 * 0 / 1, n_high = 1 * (0 + 1) / 1;
    const long tile_low = 2 * (part % 2) / 2, tile_high = 2 * ((part % 2) + 1) / 2;
    const long x_low = 5 * 0 / 1 * 8, x_high = min_long(5 * (0 + 1) / 1 * 8, 35);
    for (long n = n_low; n < n_high; n++) {
        for (long block = x_low; block < x_high; block += 48) {
            const long end = min_long(block + 48, x_high);
            const float *image = args->in[0] + n * 280;
            for (long tile = tile_low; tile < tile_high; tile++) {
                const long k = tile * 3;
                const long channels = 3;
                const float *weights = args->packed + k * 8;
                const float *pixels = buffer;
                for (long x = block; x < end; x += 16, pixels += 144) {
                    if (tile == tile_low) {
                        if (x + 16 <= end && x != 16) {
                            const long lanes = 8;
                            float *out = args->out + n * 210 + k * 35 + x;
                            fetch_result(out, channels, 1);
                            rows_avx2_k3_p1x2_copy(weights, pixels, out, 8, lanes, e0 + k, NULL, NULL, image + x);
                            continue;
                        }
                        copy_tile(image, (float *)pixels, x, end);
                    }
                    if (x == 32) {
                        float *sums = buffer + 448;
                        corner_avx2_k3_p3(weights, pixels, sums, 8);
                        store_corner(sums, args->out + n * 210 + k * 35 + x, channels, e0 + k);
                        continue;
                    }
                    if (x == 16 && end == 35) {
                        const long lanes = 8;
                        float *sums = buffer + 448;
                        float *out = args->out + n * 210 + k * 35 + x;
                        fetch_result(out, channels, 1);
                        rows_avx2_k3_p1x2_c3(weights, pixels, out, 8, lanes, e0 + k, NULL, NULL, pixels + 144, sums);
                        {
                            store_corner(sums, args->out + n * 210 + k * 35 + (x + 16), channels, e0 + k);
                        }
                        break;
                    }
                    const long vectors = min_long(2, (end - x + 7) / 8);
                    const long lanes = min_long(8, end - x - (vectors - 1) * 8);
                    float *out = args->out + n * 210 + k * 35 + x;
                    fetch_result(out, channels, 1);
                    if (vectors == 2)
                        rows_avx2_k3_p1x2(weights, pixels, out, 8, lanes, e0 + k, NULL, NULL);
                    else
                        rows_avx2_k3_p1x1(weights, pixels, out, 8, lanes, e0 + k, NULL, NULL);
                }
            }
        }
    }
}
