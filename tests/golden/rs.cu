
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
cnnopt_pack(const float *__restrict__ Ker, float *Ker_packed)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 4608)
        return;
    const int g_ = 0;
    const int c = (flat / 288) % 16;
    const int r = (flat / 96) % 3;
    const int s = (flat / 32) % 3;
    const int k = flat % 32;
    Ker_packed[flat] = k < 20 ? Ker[k * 144 + c * 9 + r * 3 + s] : 0.0f;
}
extern "C" __global__ void __launch_bounds__(192)
rs_conv2d(const float *__restrict__ In, const float *__restrict__ Ker_packed, const float *__restrict__ e0, float *partial, int *counter, float *Out)
{
    extern __shared__ __align__(128) float tw_shared[];
    float *const in_tile = tw_shared + 0;
    float *const w_tile = tw_shared + 320;
    float *const arrived = tw_shared + 896;
    GRID_BEGINS;
    const int n = (int)blockIdx.x;
    const int tile_y = 0;
    const int tile_x = 0;
    const int group = 0;
    const int first_k = ((int)blockIdx.y - group * 2) * 16;
    const int first_y = tile_y * 8, first_x = tile_x * 6;
    const int in_y = first_y + -1, in_x = first_x + -1;
    const int base = (n) * 672;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int my_k = warp % 1 * 16 + lane % 8 * 1;
    const int my_x = (warp / 1 % 3 * 1 + lane / 8 % 1) * 2;
    const int my_y = (warp / 3 * 4 + lane / 8) * 1;
    const int begin = (int)blockIdx.z * 4;
    const int end = begin + 4 < 8 ? begin + 4 : 8;
    float acc[2][1][2];
    #pragma unroll
    for (int i = 0; i < 2; i++)
    #pragma unroll
        for (int j = 0; j < 1; j++)
    #pragma unroll
            for (int l = 0; l < 2; l++)
                acc[i][j][l] = 0.0f;
    for (int now = begin - 1; now < end; now++) {
        if (now >= begin) {
            COPY_WAIT(0);
            __syncthreads();
        }
        const int next = now + 1;
        if (next < end) {
             float *const to_in = in_tile + next % 2 * 160;
             float *const to_w = w_tile + next % 2 * 288;
            const  float *const from_w = &Ker_packed[group * 4608 + (next * 2) * 288 + first_k];
            #pragma unroll 4
            for (int at = (int)threadIdx.x; at < 160; at += 192) {
                const int channel = at / 80;
                const int row = in_y + at % 80 / 8, column = in_x + at % 8;
                COPY1(to_in + at, In + (base + (next * 2 + channel) * 42 + row * 6 + column), (unsigned)row < 7u && (unsigned)column < 6u);
            }
            #pragma unroll 4
            for (int at = (int)threadIdx.x; at < 72; at += 192)
                COPY4(to_w + at * 4, from_w + at / 4 * 32 + at % 4 * 4, true);
        }
        COPY_COMMIT;
        if (now >= begin) {
            const  float *const in_at = in_tile + now % 2 * 160 + my_y * 8 + my_x * 1;
            const  float *const w_at = w_tile + now % 2 * 288 + my_k;
            #pragma unroll 1
            for (int channel = 0; channel < 2; channel++) {
                const  float *const input = in_at + channel * 80;
                const  float *const weight = w_at + channel * 144;
                float v[3][4];
                #pragma unroll
                for (int j = 0; j < 3; j++)
                #pragma unroll
                    for (int l = 0; l < 4; l++)
                        v[j][l] = input[j * 8 + l];
                #pragma unroll
                for (int a = 0; a < 3; a++)
                #pragma unroll
                    for (int b = 0; b < 3; b++) {
                        float u[2];
                        #pragma unroll
                        for (int i = 0; i < 2; i++)
                            u[i] = weight[(a * 3 + b) * 16 + i * 8];
                    #pragma unroll
                    for (int i = 0; i < 2; i++)
                    #pragma unroll
                        for (int j = 0; j < 1; j++)
                    #pragma unroll
                            for (int l = 0; l < 2; l++)
                                acc[i][j][l] = fmaf(v[j + a][l + b], u[i], acc[i][j][l]);
                    }
            }
        }
    }
    const int tile = (int)blockIdx.y * 2 + (int)blockIdx.x;
     float *const mine = partial + ((int)blockIdx.z * 4 + tile) * 768;
    #pragma unroll
    for (int i = 0; i < 2; i++)
    #pragma unroll
        for (int j = 0; j < 1; j++)
    #pragma unroll
            for (int l = 0; l < 2; l++)
                mine[((i * 1 + j) * 2 + l) * 192 + (int)threadIdx.x] = acc[i][j][l];
    __threadfence();
    __syncthreads();
    if ((int)threadIdx.x == 0)
        arrived[0] = (float)ATOMIC_COUNT(counter + tile);
    __syncthreads();
    if (arrived[0] != 1.0f)
        return;
    __threadfence();
    if ((int)threadIdx.x == 0)
        counter[tile] = 0;
    #pragma unroll
    for (int i = 0; i < 2; i++)
    #pragma unroll
        for (int j = 0; j < 1; j++)
    #pragma unroll
            for (int l = 0; l < 2; l++)
                acc[i][j][l] = 0.0f;
    for (int part = 0; part < 2; part++) {
        const  float *const from = partial + (part * 4 + tile) * 768;
        #pragma unroll
        for (int i = 0; i < 2; i++)
        #pragma unroll
            for (int j = 0; j < 1; j++)
        #pragma unroll
                for (int l = 0; l < 2; l++)
                    acc[i][j][l] += from[((i * 1 + j) * 2 + l) * 192 + (int)threadIdx.x];
    }
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int k = first_k + my_k + i * 8;
    #pragma unroll
        for (int j = 0; j < 1; j++) {
            const int h = first_y + my_y + j;
    #pragma unroll
            for (int l = 0; l < 2; l += 2) {
                const int w = first_x + my_x + l;
                if (k < 20 && h < 7) {
                const int e0_at = k;
                const float value0 = acc[i][j][l + 0];
                const float value1 = acc[i][j][l + 1];
                STORE2(, &Out[n * 840 + k * 42 + h * 6 + w], max_number_f32((value0 + e0[e0_at]), 0.0f), max_number_f32((value1 + e0[e0_at]), 0.0f));
                }
            }
        }
    }
}
