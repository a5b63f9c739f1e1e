/* Intrinsics of AVX-512 that SIMDe 0.7.4 lacks or has wrong, or that would touch memory behind a mask. */
#define TW_INTRINSIC static __attribute__((unused))
#define TW_SPAN(count) for (int i = 0; i < (count); i++)

#define TW_MEMORY(name, vector, number, lanes) \
    TW_INTRINSIC vector tw_load_##name(unsigned long long mask, const void *from) \
    { \
        union { vector all; number each[lanes]; } r; \
        TW_SPAN(lanes) \
            if (mask >> i & 1) \
                __builtin_memcpy(r.each + i, (const number *)from + i, sizeof(number)); \
            else \
                r.each[i] = 0; \
        return r.all; \
    } \
    TW_INTRINSIC void tw_store_##name(void *to, unsigned long long mask, vector all) \
    { \
        union { vector all; number each[lanes]; } r = {all}; \
        TW_SPAN(lanes) \
            if (mask >> i & 1) \
                __builtin_memcpy((number *)to + i, r.each + i, sizeof(number)); \
    }
TW_MEMORY(512_ps, __m512, float, 16)
TW_MEMORY(512_epi32, __m512i, int, 16)
TW_MEMORY(512_epi16, __m512i, short, 32)
TW_MEMORY(512_epi8, __m512i, signed char, 64)
TW_MEMORY(256_epi16, __m256i, short, 16)
TW_MEMORY(128_epi8, __m128i, signed char, 16)

#define TW_WIDEN(name, vector, number) \
    TW_INTRINSIC __m512i tw_widen_##name(vector all) \
    { \
        union { vector all; number each[sizeof(vector) / sizeof(number)]; } a = {all}; \
        union { __m512i all; int each[16]; } r; \
        TW_SPAN(16) r.each[i] = a.each[i]; \
        return r.all; \
    } \
    TW_INTRINSIC void tw_narrow_##name(void *to, unsigned mask, __m512i all) \
    { \
        union { __m512i all; int each[16]; } a = {all}; \
        TW_SPAN(16) { \
            const number low = (number)a.each[i]; \
            if (mask >> i & 1) \
                __builtin_memcpy((number *)to + i, &low, sizeof low); \
        } \
    }
TW_WIDEN(epi8, __m128i, signed char)
TW_WIDEN(epu8, __m128i, unsigned char)
TW_WIDEN(epi16, __m256i, short)
TW_WIDEN(epu16, __m256i, unsigned short)

#define TW_LONGER(name, number) \
    TW_INTRINSIC __m512i tw_longer_##name(__m256i all) \
    { \
        union { __m256i all; number each[32]; } a = {all}; \
        union { __m512i all; short each[32]; } r; \
        TW_SPAN(32) r.each[i] = a.each[i]; \
        return r.all; \
    }
TW_LONGER(epi8, signed char)
TW_LONGER(epu8, unsigned char)

TW_INTRINSIC __m512i tw_pairs(__m512i x, __m512i y)
{
    union { __m512i all; short each[32]; } a = {x}, b = {y};
    union { __m512i all; unsigned each[16]; } r;
    TW_SPAN(16)
        r.each[i] = (unsigned)(a.each[2 * i] * b.each[2 * i]) +
                    (unsigned)(a.each[2 * i + 1] * b.each[2 * i + 1]);
    return r.all;
}

TW_INTRINSIC __m128i tw_low_bytes(__m512i all)
{
    __m128i r;
    tw_narrow_epi8(&r, 0xffff, all);
    return r;
}

/* What is no number, or too large, becomes the least number. */
TW_INTRINSIC __m512i tw_whole(__m512 all)
{
    union { __m512 all; float each[16]; } a = {all};
    union { __m512i all; int each[16]; } r;
    TW_SPAN(16) {
        const float x = __builtin_rintf(a.each[i]);
        r.each[i] = x >= -0x1p31f && x < 0x1p31f ? (int)x : -0x7fffffff - 1;
    }
    return r.all;
}

/* Halves are joined, then their halves. */
#define TW_REDUCE(name, joined) \
    TW_INTRINSIC float tw_reduce_##name(__m512 all) \
    { \
        union { __m512 all; float each[16]; } r = {all}; \
        for (int half = 8; half; half /= 2) \
            TW_SPAN(half) { \
                const float a = r.each[i], b = r.each[i + half]; \
                r.each[i] = joined; \
            } \
        return r.each[0]; \
    }
TW_REDUCE(add, a + b)
TW_REDUCE(max, a > b ? a : b)

#undef _mm512_maskz_loadu_ps
#undef _mm512_maskz_loadu_epi32
#undef _mm512_maskz_loadu_epi16
#undef _mm512_maskz_loadu_epi8
#undef _mm256_maskz_loadu_epi16
#undef _mm_maskz_loadu_epi8
#undef _mm512_mask_storeu_ps
#undef _mm512_mask_storeu_epi32
#undef _mm512_mask_storeu_epi16
#undef _mm512_mask_storeu_epi8
#undef _mm512_mask_cvtepi32_storeu_epi16
#undef _mm512_mask_cvtepi32_storeu_epi8
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi16_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi8_epi16
#undef _mm512_cvtepu8_epi16
#undef _mm512_madd_epi16
#undef _mm512_cvtps_epi32
#undef _mm512_reduce_add_ps
#undef _mm512_reduce_max_ps
#define _mm512_maskz_loadu_ps tw_load_512_ps
#define _mm512_maskz_loadu_epi32 tw_load_512_epi32
#define _mm512_maskz_loadu_epi16 tw_load_512_epi16
#define _mm512_maskz_loadu_epi8 tw_load_512_epi8
#define _mm256_maskz_loadu_epi16 tw_load_256_epi16
#define _mm_maskz_loadu_epi8 tw_load_128_epi8
#define _mm512_mask_storeu_ps tw_store_512_ps
#define _mm512_mask_storeu_epi32 tw_store_512_epi32
#define _mm512_mask_storeu_epi16 tw_store_512_epi16
#define _mm512_mask_storeu_epi8 tw_store_512_epi8
#define _mm512_mask_cvtepi32_storeu_epi16 tw_narrow_epi16
#define _mm512_mask_cvtepi32_storeu_epi8 tw_narrow_epi8
#define _mm512_cvtepi8_epi32 tw_widen_epi8
#define _mm512_cvtepu8_epi32 tw_widen_epu8
#define _mm512_cvtepi16_epi32 tw_widen_epi16
#define _mm512_cvtepu16_epi32 tw_widen_epu16
#define _mm512_cvtepi32_epi8 tw_low_bytes
#define _mm512_cvtps_epi32 tw_whole
#define _mm512_reduce_add_ps tw_reduce_add
#define _mm512_reduce_max_ps tw_reduce_max
#define _mm512_cvtepi8_epi16 tw_longer_epi8
#define _mm512_cvtepu8_epi16 tw_longer_epu8
#define _mm512_madd_epi16 tw_pairs
