
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
patch_pack(const float *__restrict__ Ker, float *Ker_packed)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 4608)
        return;
    const int g_ = 0;
    const int depths = (flat / 32) % 144;
    const int k = flat % 32;
    const int piece = depths / 72, e = depths % 72;
    const int inner = e % 8, window = e / 8;
    const int c = piece * 8 + inner;
    const int r = window / 3;
    const int s = window % 3;
    const bool there = k < 20 && c < 16 && inner < 8 && window < 9;
    const float weight = there ? Ker[k * 144 + c * 9 + r * 3 + s] : 0.0f;
    Ker_packed[flat] = weight;
}
extern "C" __global__ void __launch_bounds__(32)
patch_conv2d(const float *__restrict__ In, const float *__restrict__ Ker_packed, const float *__restrict__ e0, float *Out)
{
    extern __shared__ __align__(128) float tw_shared[];
    float *const a_tile = tw_shared + 0;
    float *const b_tile = tw_shared + 640;
    GRID_BEGINS;
    const int tile_n = (int)blockIdx.x / 4;
    const int tile_h = (int)blockIdx.x % 4;
    const int tile_w = 0;
    const int first_n = tile_n * 1;
    const int first_h = tile_h * 2;
    const int first_w = tile_w * 6;
    const int group = 0;
    const int first_column = ((int)blockIdx.y - group * 2) * 16;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int owner = (int)threadIdx.x / 32;
    const int first_pixel = owner % 1 * 16;
    const int own_column = owner / 1 * 16;
    const int begin = 0, end = 2;
    const int place0 = (int)threadIdx.x % 32 + 0;
    const int place0_0 = 0;
    const int place0_2 = (place0 / 8) % 4;
    const int place0_3 = place0 % 8;
    const int spot0 = place0;
    const int at0_0 = first_n + place0_0;
    const int at0_2 = first_h + place0_2 + -1;
    const int at0_3 = first_w + place0_3 + -1;
    const bool inside0 = (unsigned)at0_2 < 7u && (unsigned)at0_3 < 6u;
    const int from0 = inside0 ? at0_0 * 672 + at0_2 * 6 + at0_3 : 0;
    int offset[2];
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        const int pixel = first_pixel + j * 8 + lane / 4;
        const int my_n = 0;
        const int my_h = (pixel / 6) % 2;
        const int my_w = pixel % 6;
        offset[j] = pixel < 12 ? my_n * 32 + my_h * 8 + my_w : 0;
    }
    float acc[2][4];
    #pragma unroll
    for (int i = 0; i < 2; i++)
    #pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;
    for (int now = begin - 1; now < end; now++) {
        COPY_WAIT(0);
        __syncthreads();
        const int next = now + 1;
        if (next < end) {
             float *const to_a = a_tile + next % 2 * 320;
             float *const to_b = b_tile + next % 2 * 1728;
            const int team = 0;
            const  float *const image = In + next * 336;
            #pragma unroll
            EACH_TURN(channel, team, 8, 1) {
                COPY1(to_a + channel * 40 + spot0, (inside0) ? image + from0 + channel * 42 : In, inside0);
            }
            const  float *const from_b = Ker_packed + (group * 144 + next * 72) * 32 + first_column;
            #pragma unroll
            EACH_TURN(four, (int)threadIdx.x, 288, 32) {
                COPY4(to_b + four / 4 * 24 + four % 4 * 4, from_b + four / 4 * 32 + four % 4 * 4, true);
            }
        }
        COPY_COMMIT;
        if (now >= begin) {
            const  float *const a = a_tile + now % 2 * 320;
            const  float *const b = b_tile + now % 2 * 1728 + lane % 4 * 24 + own_column + lane / 4;
            #pragma unroll
            for (int window = 0; window < 9; window++) {
                const int r = window / 3;
                const int s = window % 3;
            #pragma unroll
            for (int e = 0; e < 8; e += 8) {
                const int depth = window * 8 + e;
                const int at0 = (e + lane % 4 + 0) * 40 + r * 8 + s;
                const int at1 = (e + lane % 4 + 4) * 40 + r * 8 + s;
                unsigned high_x[2][2], low_x[2][2];
                unsigned high_y[1][4], low_y[1][4];
            #pragma unroll
                for (int j = 0; j < 2; j++) {
                    {
                        const float whole = a[at0 + offset[j]];
                        const unsigned high = __float_as_uint(whole) & 0xffffe000u;
                        high_x[j][0] = high;
                        low_x[j][0] = __float_as_uint(whole - __uint_as_float(high));
                    }
                    {
                        const float whole = a[at1 + offset[j]];
                        const unsigned high = __float_as_uint(whole) & 0xffffe000u;
                        high_x[j][1] = high;
                        low_x[j][1] = __float_as_uint(whole - __uint_as_float(high));
                    }
                }
            #pragma unroll
                for (int i = 0; i < 1; i++) {
                    {
                        const float whole = b[(depth + 0) * 24 + i * 16 + 0];
                        const unsigned high = __float_as_uint(whole) & 0xffffe000u;
                        high_y[i][0] = high;
                        low_y[i][0] = __float_as_uint(whole - __uint_as_float(high));
                    }
                    {
                        const float whole = b[(depth + 0) * 24 + i * 16 + 8];
                        const unsigned high = __float_as_uint(whole) & 0xffffe000u;
                        high_y[i][1] = high;
                        low_y[i][1] = __float_as_uint(whole - __uint_as_float(high));
                    }
                    {
                        const float whole = b[(depth + 4) * 24 + i * 16 + 0];
                        const unsigned high = __float_as_uint(whole) & 0xffffe000u;
                        high_y[i][2] = high;
                        low_y[i][2] = __float_as_uint(whole - __uint_as_float(high));
                    }
                    {
                        const float whole = b[(depth + 4) * 24 + i * 16 + 8];
                        const unsigned high = __float_as_uint(whole) & 0xffffe000u;
                        high_y[i][3] = high;
                        low_y[i][3] = __float_as_uint(whole - __uint_as_float(high));
                    }
                }
                #pragma unroll
                for (int i = 0; i < 1; i++)
                #pragma unroll
                    for (int j = 0; j < 2; j++)
                        MMA_TF32(acc[2 * i][2 * j], acc[2 * i][2 * j + 1], acc[2 * i + 1][2 * j], acc[2 * i + 1][2 * j + 1], low_y[i], high_x[j]);
                #pragma unroll
                for (int i = 0; i < 1; i++)
                #pragma unroll
                    for (int j = 0; j < 2; j++)
                        MMA_TF32(acc[2 * i][2 * j], acc[2 * i][2 * j + 1], acc[2 * i + 1][2 * j], acc[2 * i + 1][2 * j + 1], high_y[i], low_x[j]);
                #pragma unroll
                for (int i = 0; i < 1; i++)
                #pragma unroll
                    for (int j = 0; j < 2; j++)
                        MMA_TF32(acc[2 * i][2 * j], acc[2 * i][2 * j + 1], acc[2 * i + 1][2 * j], acc[2 * i + 1][2 * j + 1], high_y[i], high_x[j]);
            }
            }
        }
    }
    #pragma unroll
    for (int j = 0; j < 4; j += 2) {
        const int pixel = first_pixel + j / 2 * 8 + lane % 4 * 2 + j % 2;
        const int my_n = 0;
        const int my_h = (pixel / 6) % 2;
        const int my_w = pixel % 6;
        const int n = first_n + my_n;
        const int h = first_h + my_h;
        const int w = first_w + my_w;
        if (!(pixel < 12 && h < 7))
            continue;
    #pragma unroll
        for (int i = 0; i < 2; i++) {
            const int k = first_column + own_column + lane / 4 + i * 8;
            if (k >= 20)
                continue;
            const int e0_at = k;
            const float value0 = acc[i][j + 0];
            const float value1 = acc[i][j + 1];
            STORE2(, &Out[n * 840 + k * 42 + h * 6 + w], max_number_f32((value0 + e0[e0_at]), 0.0f), max_number_f32((value1 + e0[e0_at]), 0.0f));
        }
    }
}
