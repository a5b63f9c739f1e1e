
#define MATRIX_BEGIN asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define MATRIX_COMMIT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define MATRIX_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(n) : "memory")
#define SHARED_TO_MATRIX asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define WGMMA_TF32(n, d, a, b, across, row8) tw_wgmma_##n(d, a, tw_matrix(b, across, row8))

static __device__ __forceinline__ unsigned long long tw_matrix(const float *b, int across, int row8)
{
    const unsigned long long at = __cvta_generic_to_shared(b);
    return ((at & 0x3ffff) >> 4) | (unsigned long long)(across / 4) << 16
        | (unsigned long long)(row8 / 4) << 32;
}

static __device__ __forceinline__ void
tw_wgmma_32(float (&d)[16], const unsigned (&a)[4], unsigned long long b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

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
    if (flat >= 9216)
        return;
    const int g_ = 0;
    const int piece = (flat / 4608) % 2;
    const int tile = 0;
    const int step = (flat / 512) % 9;
    const int low = (flat / 256) % 2;
    const int four = (flat / 128) % 2;
    const int row8 = (flat / 32) % 4;
    const int row = (flat / 4) % 8;
    const int q = flat % 4;
    const int e = step * 8 + four * 4 + q;
    const int k = tile * 32 + row8 * 8 + row;
    const int inner = e % 8, window = e / 8;
    const int c = piece * 8 + inner;
    const int r = window / 3;
    const int s = window % 3;
    const bool there = k < 20 && c < 16 && inner < 8 && window < 9;
    const float weight = there ? Ker[k * 144 + c * 9 + r * 3 + s] : 0.0f;
    Ker_packed[flat] = low ? weight - __uint_as_float(__float_as_uint(weight) & 0xffffe000u) : weight;
}
extern "C" __global__ void __launch_bounds__(128)
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
    const int first_column = ((int)blockIdx.y - group * 1) * 32;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int owner = (int)threadIdx.x / 128;
    const int first_pixel = owner % 1 * 64;
    const int own_column = owner / 1 * 32;
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
    int offset[1][2];
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        const int pixel = first_pixel + j / 2 * 64 + warp % 4 * 16 + j % 2 * 8 + lane / 4;
        const int my_n = 0;
        const int my_h = (pixel / 6) % 2;
        const int my_w = pixel % 6;
        offset[j / 2][j % 2] = pixel < 12 ? my_n * 32 + my_h * 8 + my_w : 0;
    }
    float acc[1][16];
    #pragma unroll
    for (int i = 0; i < 1; i++)
    #pragma unroll
        for (int j = 0; j < 16; j++)
            acc[i][j] = 0.0f;
    for (int now = begin - 1; now < end; now++) {
        COPY_WAIT(0);
        SHARED_TO_MATRIX;
        __syncthreads();
        const int next = now + 1;
        if (next < end) {
             float *const to_a = a_tile + next % 2 * 320;
             float *const to_b = b_tile + next % 2 * 4608;
            const int team = (int)threadIdx.x / 32;
            const  float *const image = In + next * 336;
            #pragma unroll
            EACH_TURN(channel, team, 8, 4) {
                COPY1(to_a + channel * 40 + spot0, (inside0) ? image + from0 + channel * 42 : In, inside0);
            }
            const  float *const from_b = Ker_packed + ((group * 2 + next) * 1 + first_column / 32) * 4608;
            #pragma unroll
            EACH_TURN(four, (int)threadIdx.x * 4, 4608, 512) {
                COPY4(to_b + four, from_b + four, true);
            }
        }
        COPY_COMMIT;
        if (now >= begin) {
            const  float *const a = a_tile + now % 2 * 320;
            const  float *const b = b_tile + now % 2 * 4608;
            unsigned high_x[1][4], low_x[1][4];
            {
                const int step = 0;
                const int window0 = step / 1;
                const int q0_r = window0 / 3;
                const int q0_s = window0 % 3;
                const int at0 = (step % 1 * 8 + lane % 4 + 0) * 40 + q0_r * 8 + q0_s;
                const int window1 = step / 1;
                const int q1_r = window1 / 3;
                const int q1_s = window1 % 3;
                const int at1 = (step % 1 * 8 + lane % 4 + 4) * 40 + q1_r * 8 + q1_s;
                #pragma unroll
                for (int i = 0; i < 1; i++) {
                    {
                        const float whole = a[at0 + offset[i][0]];
                        const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                        high_x[i][0] = upper;
                        low_x[i][0] = __float_as_uint(whole - __uint_as_float(upper));
                    }
                    {
                        const float whole = a[at0 + offset[i][1]];
                        const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                        high_x[i][1] = upper;
                        low_x[i][1] = __float_as_uint(whole - __uint_as_float(upper));
                    }
                    {
                        const float whole = a[at1 + offset[i][0]];
                        const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                        high_x[i][2] = upper;
                        low_x[i][2] = __float_as_uint(whole - __uint_as_float(upper));
                    }
                    {
                        const float whole = a[at1 + offset[i][1]];
                        const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                        high_x[i][3] = upper;
                        low_x[i][3] = __float_as_uint(whole - __uint_as_float(upper));
                    }
                }
            }
            #pragma unroll
            for (int now_step = 0; now_step < 9; now_step++) {
                MATRIX_BEGIN;
                #pragma unroll
                for (int i = 0; i < 1; i++)
                    WGMMA_TF32(32, acc[i], low_x[i], b + now_step * 512, 128, 32);
                #pragma unroll
                for (int i = 0; i < 1; i++)
                    WGMMA_TF32(32, acc[i], high_x[i], b + now_step * 512 + 256, 128, 32);
                #pragma unroll
                for (int i = 0; i < 1; i++)
                    WGMMA_TF32(32, acc[i], high_x[i], b + now_step * 512, 128, 32);
                MATRIX_COMMIT;
                unsigned next_high[1][4], next_low[1][4];
                if (now_step + 1 < 9) {
                    const int step = now_step + 1;
                    const int window0 = step / 1;
                    const int q0_r = window0 / 3;
                    const int q0_s = window0 % 3;
                    const int at0 = (step % 1 * 8 + lane % 4 + 0) * 40 + q0_r * 8 + q0_s;
                    const int window1 = step / 1;
                    const int q1_r = window1 / 3;
                    const int q1_s = window1 % 3;
                    const int at1 = (step % 1 * 8 + lane % 4 + 4) * 40 + q1_r * 8 + q1_s;
                    #pragma unroll
                    for (int i = 0; i < 1; i++) {
                        {
                            const float whole = a[at0 + offset[i][0]];
                            const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                            next_high[i][0] = upper;
                            next_low[i][0] = __float_as_uint(whole - __uint_as_float(upper));
                        }
                        {
                            const float whole = a[at0 + offset[i][1]];
                            const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                            next_high[i][1] = upper;
                            next_low[i][1] = __float_as_uint(whole - __uint_as_float(upper));
                        }
                        {
                            const float whole = a[at1 + offset[i][0]];
                            const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                            next_high[i][2] = upper;
                            next_low[i][2] = __float_as_uint(whole - __uint_as_float(upper));
                        }
                        {
                            const float whole = a[at1 + offset[i][1]];
                            const unsigned upper = __float_as_uint(whole) & 0xffffe000u;
                            next_high[i][3] = upper;
                            next_low[i][3] = __float_as_uint(whole - __uint_as_float(upper));
                        }
                    }
                }
                MATRIX_WAIT(0);
                if (now_step + 1 < 9) {
            #pragma unroll
                    for (int i = 0; i < 1; i++)
            #pragma unroll
                        for (int q = 0; q < 4; q++) {
                            high_x[i][q] = next_high[i][q];
                            low_x[i][q] = next_low[i][q];
                        }
                }
            }
        }
    }
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        const int pixel = first_pixel + j / 2 * 64 + warp % 4 * 16 + j % 2 * 8 + lane / 4;
        const int my_n = 0;
        const int my_h = (pixel / 6) % 2;
        const int my_w = pixel % 6;
        const int n = first_n + my_n;
        const int h = first_h + my_h;
        const int w = first_w + my_w;
        if (!(pixel < 12 && h < 7))
            continue;
    #pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = first_column + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (k >= 20)
                continue;
            const int e0_at = k;
            const float value = acc[j / 2][i / 2 * 4 + j % 2 * 2 + i % 2];
            Out[n * 840 + k * 42 + h * 6 + w] = max_number_f32((value + e0[e0_at]), 0.0f);
        }
    }
}
