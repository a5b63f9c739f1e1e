
#ifndef TW_TYPES
#define TW_TYPES
typedef long int64_t;
typedef unsigned long uint64_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
#ifndef NAN
#define NAN (INFINITY - INFINITY)
#endif
#endif

#ifndef TW_FUNCTIONS_f32
#define TW_FUNCTIONS_f32
static __device__ __forceinline__ float max_f32(float a, float b) { return (a < b) | (b != b) ? b : a; }
static __device__ __forceinline__ float min_f32(float a, float b) { return (b < a) | (b != b) ? b : a; }
static __device__ __forceinline__ float max_number_f32(float x, float number) { return x < number ? number : x; }
static __device__ __forceinline__ float min_number_f32(float x, float number) { return x > number ? number : x; }
static __device__ __forceinline__ float sign_f32(float x) { return x > 0 ? 1 : x < 0 ? -1 : x + 0; }
static __device__ __forceinline__ float sigmoid_f32(float x) { return 1 / (1 + exp(-x)); }
static __device__ __forceinline__ float mod_f32(float a, float b)
{
    const float rest = fmod(a, b);
    return rest == 0 ? copysign(rest, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}
/* x to the power of so many quarters, at most 28, a number. What is no whole power takes zero and
   infinity of either sign as positive ones. */
static __device__ __forceinline__ float quarters_f32(float x, int quarters)
{
    if (quarters & 3)
        x = x == -INFINITY ? INFINITY : x + 0;
    const float root = sqrt(x), square = x * x;
    return (quarters & 1 ? sqrt(root) : 1) * (quarters & 2 ? root : 1)
        * (quarters & 4 ? x : 1) * (quarters & 8 ? square : 1)
        * (quarters & 16 ? square * square : 1);
}
#endif

extern "C" __global__ void __launch_bounds__(256)
tiled_pack(const float *__restrict__ Ker, float *Ker_packed)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 4608)
        return;
    const int g_ = 0;
    const int e = (flat / 32) % 144;
    const int k = flat % 32;
    const int window = e / 16;
    const int c = e - window * 16;
    const int r = window / 3;
    const int s = window % 3;
    const bool there = k < 20 && c < 16 && window < 9;
    Ker_packed[g_ * 4608 + e * 32 + k] = there ? Ker[k * 144 + c * 9 + r * 3 + s] : 0.0f;
}
extern "C" __global__ void __launch_bounds__(32)
tiled_conv2d(const float *__restrict__ In, const float *__restrict__ Ker_packed, const float *__restrict__ e0, float *Out)
{
    extern __shared__ __align__(128) float tw_shared[];
    float *const a_tile = tw_shared + 0;
    float *const b_tile = tw_shared + 512;
    GRID_BEGINS;
    const int first_row = (int)blockIdx.x * 32;
    const int group = 0;
    const int first_column = ((int)blockIdx.y - group * 2) * 16;
    const int my_rows = (int)threadIdx.x % 8 * 4;
    const int my_columns = (int)threadIdx.x / 8 * 4;
    const int begin = 0, end = 18;
    const int row0 = first_row + (int)threadIdx.x % 32;
    const int r0_n = row0 / 42;
    const int r0_h = (row0 / 6) % 7;
    const int r0_w = row0 % 6;
    const int base0 = r0_n * 672 + r0_h * 6 + r0_w + -7;
    const int at0_2 = r0_h + -1;
    const int at0_3 = r0_w + -1;
    float acc[4][4];
    #pragma unroll
    for (int i = 0; i < 4; i++)
    #pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;
    for (int now = begin - 1; now < end; now++) {
        COPY_WAIT(0);
        __syncthreads();
        const int next = now + 1;
        if (next < end) {
             float *const to_a = a_tile + next % 2 * 256;
             float *const to_b = b_tile + next % 2 * 128;
            const int window = next * 8 / 16;
            const int c = next * 8 - window * 16;
            const int r = window / 3;
            const int s = window % 3;
            const int channel = c + 0;
            const bool inside0 = row0 < 84 && (unsigned)(at0_2 + r) < 7u && (unsigned)(at0_3 + s) < 6u;
            const  float *const from0 = In + (base0 + r * 6 + s + channel * 42);
            COPY1(to_a + (0 + 0) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 0 : In, inside0);
            COPY1(to_a + (0 + 1) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 42 : In, inside0);
            COPY1(to_a + (0 + 2) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 84 : In, inside0);
            COPY1(to_a + (0 + 3) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 126 : In, inside0);
            COPY1(to_a + (0 + 4) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 168 : In, inside0);
            COPY1(to_a + (0 + 5) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 210 : In, inside0);
            COPY1(to_a + (0 + 6) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 252 : In, inside0);
            COPY1(to_a + (0 + 7) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 294 : In, inside0);
            const  float *const from_b = Ker_packed + (group * 144 + next * 8) * 32 + first_column;
            COPY4(to_b + ((int)threadIdx.x + 0) / 4 * 16 + ((int)threadIdx.x + 0) % 4 * 4, from_b + ((int)threadIdx.x + 0) / 4 * 32 + ((int)threadIdx.x + 0) % 4 * 4, true);
        }
        COPY_COMMIT;
        if (now >= begin) {
            const  float *const a = a_tile + now % 2 * 256 + my_rows;
            const  float *const b = b_tile + now % 2 * 128 + my_columns;
            #pragma unroll
            for (int e = 0; e < 8; e++) {
                float x[4], y[4];
                {
                    const float4 v = LOAD4(, a + e * 32 + 0);
                    x[0] = v.x;
                    x[1] = v.y;
                    x[2] = v.z;
                    x[3] = v.w;
                }
                {
                    const float4 v = LOAD4(, b + e * 16 + 0);
                    y[0] = v.x;
                    y[1] = v.y;
                    y[2] = v.z;
                    y[3] = v.w;
                }
            #pragma unroll
                for (int i = 0; i < 4; i++)
            #pragma unroll
                    for (int j = 0; j < 4; j++)
                        acc[i][j] = fmaf(x[j], y[i], acc[i][j]);
            }
        }
    }
    #pragma unroll
    for (int j = 0; j < 4; j += 1) {
        const int row = first_row + my_rows + j % 4;
        const int n = row / 42;
        const int h = (row / 6) % 7;
        const int w = row % 6;
    #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int k = first_column + my_columns + i % 4;
            if (row < 84 && k < 20) {
            const int e0_at = k;
            const float value0 = acc[i][j + 0];
            Out[n * 840 + k * 42 + h * 6 + w] = max_number_f32((value0 + e0[e0_at]), 0.0f);
            }
        }
    }
}
