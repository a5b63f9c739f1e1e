
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
winograd_filter(const float *__restrict__ Ker, float *Ker_points)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 320)
        return;
    const  float *const from = Ker + flat * 9;
     float *const to = Ker_points + flat;
    const double g0 = from[0];
    const double g1 = from[1];
    const double g2 = from[2];
    const double g3 = from[3];
    const double g4 = from[4];
    const double g5 = from[5];
    const double g6 = from[6];
    const double g7 = from[7];
    const double g8 = from[8];
    const double x0_0 = -1.0 * g0;
    const double x0_1 = -1.0 * g1;
    const double x0_2 = -1.0 * g2;
    const double x1_0 = 0.5 * g0 + 0.5 * g3 + 0.5 * g6;
    const double x1_1 = 0.5 * g1 + 0.5 * g4 + 0.5 * g7;
    const double x1_2 = 0.5 * g2 + 0.5 * g5 + 0.5 * g8;
    const double x2_0 = 0.5 * g0 + -0.5 * g3 + 0.5 * g6;
    const double x2_1 = 0.5 * g1 + -0.5 * g4 + 0.5 * g7;
    const double x2_2 = 0.5 * g2 + -0.5 * g5 + 0.5 * g8;
    const double x3_0 = 1.0 * g6;
    const double x3_1 = 1.0 * g7;
    const double x3_2 = 1.0 * g8;
    to[0] = (float)(-1.0 * x0_0);
    to[320] = (float)(0.5 * x0_0 + 0.5 * x0_1 + 0.5 * x0_2);
    to[640] = (float)(0.5 * x0_0 + -0.5 * x0_1 + 0.5 * x0_2);
    to[960] = (float)(1.0 * x0_2);
    to[1280] = (float)(-1.0 * x1_0);
    to[1600] = (float)(0.5 * x1_0 + 0.5 * x1_1 + 0.5 * x1_2);
    to[1920] = (float)(0.5 * x1_0 + -0.5 * x1_1 + 0.5 * x1_2);
    to[2240] = (float)(1.0 * x1_2);
    to[2560] = (float)(-1.0 * x2_0);
    to[2880] = (float)(0.5 * x2_0 + 0.5 * x2_1 + 0.5 * x2_2);
    to[3200] = (float)(0.5 * x2_0 + -0.5 * x2_1 + 0.5 * x2_2);
    to[3520] = (float)(1.0 * x2_2);
    to[3840] = (float)(-1.0 * x3_0);
    to[4160] = (float)(0.5 * x3_0 + 0.5 * x3_1 + 0.5 * x3_2);
    to[4480] = (float)(0.5 * x3_0 + -0.5 * x3_1 + 0.5 * x3_2);
    to[4800] = (float)(1.0 * x3_2);
}
extern "C" __global__ void __launch_bounds__(256)
tiled_pack(const float *__restrict__ Ker_points, float *Ker_points_packed)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 8192)
        return;
    const int g_ = flat / 512;
    const int e = (flat / 32) % 16;
    const int k = flat % 32;
    const int g = g_;
    const int window = 0;
    const int c = e - window * 16;
    const bool there = k < 20 && c < 16 && window < 1;
    Ker_points_packed[g_ * 512 + e * 32 + k] = there ? Ker_points[g * 320 + k * 16 + c] : 0.0f;
}
extern "C" __global__ void __launch_bounds__(256)
winograd_input(const float *__restrict__ In, float *In_points)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 384)
        return;
    const int c = flat / 24;
    const int n = (flat / 12) % 2;
    const int py = (flat / 3) % 4;
    const int px = flat % 3;
    const int top = py * 2 - 1;
    const int left = px * 2 - 1;
    const int at = (n * 16 + c) * 42 + top * 6 + left;
     float *const to = In_points + flat;
    const bool row0 = (unsigned)(top + 0) < 7u;
    const bool row2 = (unsigned)(top + 2) < 7u;
    const bool row3 = (unsigned)(top + 3) < 7u;
    const bool column0 = (unsigned)(left + 0) < 6u;
    const bool column3 = (unsigned)(left + 3) < 6u;
    const float x0_0 = row0 && column0 ? (In)[at + 0] : 0.0f;
    const float2 q0_1 = row0 ? LOAD2(, In + (at + 1)) : FLOAT2(0.0f, 0.0f);
    const float x0_1 = q0_1.x;
    const float x0_2 = q0_1.y;
    const float x0_3 = row0 && column3 ? (In)[at + 3] : 0.0f;
    const float y0_0 = x0_2 - x0_0;
    const float y0_1 = x0_1 + x0_2;
    const float y0_2 = x0_2 - x0_1;
    const float y0_3 = x0_3 - x0_1;
    const float x1_0 = column0 ? (In)[at + 6] : 0.0f;
    const float2 q1_1 = LOAD2(, In + (at + 7));
    const float x1_1 = q1_1.x;
    const float x1_2 = q1_1.y;
    const float x1_3 = column3 ? (In)[at + 9] : 0.0f;
    const float y1_0 = x1_2 - x1_0;
    const float y1_1 = x1_1 + x1_2;
    const float y1_2 = x1_2 - x1_1;
    const float y1_3 = x1_3 - x1_1;
    const float x2_0 = row2 && column0 ? (In)[at + 12] : 0.0f;
    const float2 q2_1 = row2 ? LOAD2(, In + (at + 13)) : FLOAT2(0.0f, 0.0f);
    const float x2_1 = q2_1.x;
    const float x2_2 = q2_1.y;
    const float x2_3 = row2 && column3 ? (In)[at + 15] : 0.0f;
    const float y2_0 = x2_2 - x2_0;
    const float y2_1 = x2_1 + x2_2;
    const float y2_2 = x2_2 - x2_1;
    const float y2_3 = x2_3 - x2_1;
    const float x3_0 = row3 && column0 ? (In)[at + 18] : 0.0f;
    const float2 q3_1 = row3 ? LOAD2(, In + (at + 19)) : FLOAT2(0.0f, 0.0f);
    const float x3_1 = q3_1.x;
    const float x3_2 = q3_1.y;
    const float x3_3 = row3 && column3 ? (In)[at + 21] : 0.0f;
    const float y3_0 = x3_2 - x3_0;
    const float y3_1 = x3_1 + x3_2;
    const float y3_2 = x3_2 - x3_1;
    const float y3_3 = x3_3 - x3_1;
    const float v0_0 = y2_0 - y0_0;
    const float v1_0 = y1_0 + y2_0;
    const float v2_0 = y2_0 - y1_0;
    const float v3_0 = y3_0 - y1_0;
    to[0] = v0_0;
    to[1536] = v1_0;
    to[3072] = v2_0;
    to[4608] = v3_0;
    const float v0_1 = y2_1 - y0_1;
    const float v1_1 = y1_1 + y2_1;
    const float v2_1 = y2_1 - y1_1;
    const float v3_1 = y3_1 - y1_1;
    to[384] = v0_1;
    to[1920] = v1_1;
    to[3456] = v2_1;
    to[4992] = v3_1;
    const float v0_2 = y2_2 - y0_2;
    const float v1_2 = y1_2 + y2_2;
    const float v2_2 = y2_2 - y1_2;
    const float v3_2 = y3_2 - y1_2;
    to[768] = v0_2;
    to[2304] = v1_2;
    to[3840] = v2_2;
    to[5376] = v3_2;
    const float v0_3 = y2_3 - y0_3;
    const float v1_3 = y1_3 + y2_3;
    const float v2_3 = y2_3 - y1_3;
    const float v3_3 = y3_3 - y1_3;
    to[1152] = v0_3;
    to[2688] = v1_3;
    to[4224] = v2_3;
    to[5760] = v3_3;
}
extern "C" __global__ void __launch_bounds__(32)
tiled_points(const float *__restrict__ In_points, const float *__restrict__ Ker_points_packed, float *Acc0_points)
{
    extern __shared__ __align__(128) float tw_shared[];
    float *const a_tile = tw_shared + 0;
    float *const b_tile = tw_shared + 512;
    GRID_BEGINS;
    const int first_row = (int)blockIdx.x * 32;
    const int group = (int)blockIdx.y / 2;
    const int first_column = ((int)blockIdx.y - group * 2) * 16;
    const int my_rows = (int)threadIdx.x % 8 * 4;
    const int my_columns = (int)threadIdx.x / 8 * 4;
    const int begin = 0, end = 2;
    const int g = group;
    const int row0 = first_row + (int)threadIdx.x % 32;
    const int r0_p = row0;
    const int base0 = g * 384 + r0_p;
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
            const int window = 0;
            const int c = next * 8 - window * 16;
            const int channel = c + 0;
            const bool inside0 = row0 < 24;
            const  float *const from0 = In_points + (base0 + channel * 24);
            COPY1(to_a + (0 + 0) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 0 : In_points, inside0);
            COPY1(to_a + (0 + 1) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 24 : In_points, inside0);
            COPY1(to_a + (0 + 2) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 48 : In_points, inside0);
            COPY1(to_a + (0 + 3) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 72 : In_points, inside0);
            COPY1(to_a + (0 + 4) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 96 : In_points, inside0);
            COPY1(to_a + (0 + 5) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 120 : In_points, inside0);
            COPY1(to_a + (0 + 6) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 144 : In_points, inside0);
            COPY1(to_a + (0 + 7) * 32 + (int)threadIdx.x % 32, (inside0) ? from0 + 168 : In_points, inside0);
            const  float *const from_b = Ker_points_packed + (group * 16 + next * 8) * 32 + first_column;
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
    for (int j = 0; j < 4; j += 4) {
        const int row = first_row + my_rows + j % 4;
        const int p = row;
    #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int k = first_column + my_columns + i % 4;
            if (row < 24 && k < 20) {
            const float value0 = acc[i][j + 0];
            const float value1 = acc[i][j + 1];
            const float value2 = acc[i][j + 2];
            const float value3 = acc[i][j + 3];
            STORE4(, &Acc0_points[g * 480 + k * 24 + p], FLOAT4(value0, value1, value2, value3));
            }
        }
    }
}
extern "C" __global__ void __launch_bounds__(256)
winograd_output(const float *__restrict__ Acc0_points, const float *__restrict__ e0, float *Out)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 480)
        return;
    const int k = flat / 24;
    const int n = (flat / 12) % 2;
    const int py = (flat / 3) % 4;
    const int px = flat % 3;
    const  float *const from = Acc0_points + flat;
    const int w = px * 2;
    const float x0_0 = from[0];
    const float x1_0 = from[1920];
    const float x2_0 = from[3840];
    const float x3_0 = from[5760];
    const float y0_0 = x0_0 + x1_0 + x2_0;
    const float y1_0 = x1_0 + x3_0 - x2_0;
    const float x0_1 = from[480];
    const float x1_1 = from[2400];
    const float x2_1 = from[4320];
    const float x3_1 = from[6240];
    const float y0_1 = x0_1 + x1_1 + x2_1;
    const float y1_1 = x1_1 + x3_1 - x2_1;
    const float x0_2 = from[960];
    const float x1_2 = from[2880];
    const float x2_2 = from[4800];
    const float x3_2 = from[6720];
    const float y0_2 = x0_2 + x1_2 + x2_2;
    const float y1_2 = x1_2 + x3_2 - x2_2;
    const float x0_3 = from[1440];
    const float x1_3 = from[3360];
    const float x2_3 = from[5280];
    const float x3_3 = from[7200];
    const float y0_3 = x0_3 + x1_3 + x2_3;
    const float y1_3 = x1_3 + x3_3 - x2_3;
    {
        const int h = py * 2 + 0;
        const float value0 = y0_0 + y0_1 + y0_2;
        const float value1 = y0_1 + y0_3 - y0_2;
        const int e0_at = k;
         float *const to = &Out[n * 840 + k * 42 + h * 6 + w];
        STORE2(, to + 0, max_number_f32((value0 + e0[e0_at]), 0.0f), max_number_f32((value1 + e0[e0_at]), 0.0f));
    }
    if (py * 2 + 1 < 7) {
        const int h = py * 2 + 1;
        const float value0 = y1_0 + y1_1 + y1_2;
        const float value1 = y1_1 + y1_3 - y1_2;
        const int e0_at = k;
         float *const to = &Out[n * 840 + k * 42 + h * 6 + w];
        STORE2(, to + 0, max_number_f32((value0 + e0[e0_at]), 0.0f), max_number_f32((value1 + e0[e0_at]), 0.0f));
    }
}
