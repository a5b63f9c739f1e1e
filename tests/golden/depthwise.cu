
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

extern "C" __global__ void __launch_bounds__(32)
depthwise_conv2d(const float *__restrict__ In, const float *__restrict__ Ker, const float *__restrict__ e0, float *Out)
{
    extern __shared__ __align__(128) float tw_shared[];
    float *const tile = tw_shared + 0;
    GRID_BEGINS;
    const int block_plane = (int)blockIdx.x / 3;
    const int block_y = (int)blockIdx.x % 3;
    const int block_x = 0;
    const int my_plane = (int)threadIdx.x / 8;
    const int my_y = ((int)threadIdx.x / 2) % 4;
    const int my_x = (int)threadIdx.x % 2;
    const int plane = block_plane * 4 + my_plane;
    const int my_row = (block_y * 4 + my_y) * 1;
    const int my_column = (block_x * 2 + my_x) * 4;
    const int n = 0;
    const int k = plane % 6;
    for (int at = (int)threadIdx.x; at < 96; at += 32) {
        const int q = at / 24;
        const int line = (at / 4) % 6;
        const int x = at % 4;
        const int from_plane = block_plane * 4 + q;
        const int from_n = 0;
        const int from_k = from_plane % 6;
        const int from_row = block_y * 4 + (-1) + line, from_column = block_x * 8 + (-4) + x * 4;
        const bool there = block_plane * 4 + q < 6 && (unsigned)from_row < 9u && (unsigned)from_column < 8u;
        const int from = there ? from_n * 432 + from_k * 72 + from_row * 8 + from_column : 0;
        COPY4(tile + at * 4, In + from, there);
    }
    COPY_COMMIT;
    COPY_WAIT(0);
    __syncthreads();
    if (plane >= 6 || my_row >= 9)
        return;
    float weight[9];
    #pragma unroll
    for (int i = 0; i < 3; i++)
    #pragma unroll
        for (int j = 0; j < 3; j++)
            weight[i * 3 + j] = Ker[k * 9 + i * 3 + j];
    float acc[1][4];
    #pragma unroll
    for (int i = 0; i < 1; i++)
    #pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;
    const  float *const from = tile + 3 + my_x * 4 + (my_plane * 6 + my_y * 1) * 16;
    {
        float x[6];
        x[0] = from[0];
        {
            const float4 v = LOAD4(, from + (1));
            x[1] = v.x;
            x[2] = v.y;
            x[3] = v.z;
            x[4] = v.w;
        }
        x[5] = from[5];
    #pragma unroll
        for (int q = 0; q < 3; q++)
    #pragma unroll
            for (int j = 0; j < 4; j++)
                acc[0][j] = fmaf(x[j * 1 + q * 1], weight[0 + q], acc[0][j]);
    }
    {
        float x[6];
        x[0] = from[16];
        {
            const float4 v = LOAD4(, from + (17));
            x[1] = v.x;
            x[2] = v.y;
            x[3] = v.z;
            x[4] = v.w;
        }
        x[5] = from[21];
    #pragma unroll
        for (int q = 0; q < 3; q++)
    #pragma unroll
            for (int j = 0; j < 4; j++)
                acc[0][j] = fmaf(x[j * 1 + q * 1], weight[3 + q], acc[0][j]);
    }
    {
        float x[6];
        x[0] = from[32];
        {
            const float4 v = LOAD4(, from + (33));
            x[1] = v.x;
            x[2] = v.y;
            x[3] = v.z;
            x[4] = v.w;
        }
        x[5] = from[37];
    #pragma unroll
        for (int q = 0; q < 3; q++)
    #pragma unroll
            for (int j = 0; j < 4; j++)
                acc[0][j] = fmaf(x[j * 1 + q * 1], weight[6 + q], acc[0][j]);
    }
    const int w = my_column;
    {
        const int h = my_row + 0;
        const int e0_at = k;
         float *const to = &Out[n * 432 + k * 72 + h * 8 + w];
        STORE4(, to + 0, FLOAT4((acc[0][0] + e0[e0_at]), (acc[0][1] + e0[e0_at]), (acc[0][2] + e0[e0_at]), (acc[0][3] + e0[e0_at])));
    }
}
