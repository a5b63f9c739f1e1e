
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

#define WGMMA_BF16(n, d, a, b, across, row8) tw_wgmma_bf16_##n(d, a, tw_matrix(b, across, row8))
static __device__ __forceinline__ unsigned BF16_PAIR(float low, float high)
{
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

static __device__ __forceinline__ void BULK_BEGIN(float *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void
BULK_COPY(float *to, const float *from, int floats, float *barrier)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const unsigned bar = (unsigned)__cvta_generic_to_shared(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %0;" :: "r"(4 * floats), "r"(bar) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at), "l"(from), "r"(4 * floats), "r"(bar) : "memory");
}
static __device__ __forceinline__ void BULK_WAIT(const float *barrier, int used)
{
    const unsigned bar = (unsigned)__cvta_generic_to_shared(barrier);
    unsigned come;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(come) : "r"(bar), "r"(used & 1) : "memory");
    while (!come);
}

static __device__ __forceinline__ void
tw_wgmma_bf16_32(float (&d)[16], const unsigned (&a)[4], unsigned long long b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

static __device__ __forceinline__ void
tw_wgmma_32(float (&d)[16], const unsigned (&a)[4], unsigned long long b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

extern "C" __global__ void __launch_bounds__(256)
patch_pack(const float *__restrict__ Ker, float *Ker_packed)
{
    GRID_BEGINS;
    const int flat = (int)blockIdx.x * 256 + (int)threadIdx.x;
    if (flat >= 29184)
        return;
    const int g_ = 0;
    const int piece = (flat / 9728) % 3;
    const int tile = (flat / 4864) % 2;
    const int part = (flat / 256) % 19;
    const int four = (flat / 128) % 2;
    const int row8 = (flat / 32) % 4;
    const int row = (flat / 4) % 8;
    const int q = flat % 4;
    const bool whole = part < 9;
    const int pair = (part - 9) / 2, low = (part - 9) % 2;
    const int first = whole ? part * 8 + four * 4 + q : pair * 16 + four * 8 + q;
    const int k = tile * 32 + row8 * 8 + row;
    unsigned highs[2], rounds[2], lows[2];
    for (int i = 0; i < 2; i++) {
        const int e = first + 4 * i;
        const int inner = e % 8, window = e / 8;
        const int c = piece * 8 + inner;
        const int r = window / 3;
        const int s = window % 3;
        const bool there = k < 40 && c < 18 && inner < 8 && window < 9;
        const float weight = there ? Ker[k * 162 + c * 9 + r * 3 + s] : 0.0f;
        highs[i] = (__float_as_uint(weight) + 0x1000u) & 0xffffe000u;
        const unsigned all = __float_as_uint(weight);
        const unsigned left = __float_as_uint(weight - __uint_as_float(highs[i]));
        rounds[i] = weight == weight ? (all + 0x7fffu + (all >> 16 & 1u)) >> 16 : 0x7fffu;
        lows[i] = weight == weight ? (left + 0x7fffu + (left >> 16 & 1u)) >> 16 : 0x7fffu;
    }
    Ker_packed[flat] = __uint_as_float(whole ? highs[0] : (low ? lows : rounds)[0] | (low ? lows : rounds)[1] << 16);
}
extern "C" __global__ void __launch_bounds__(128)
patch_conv2d(const float *__restrict__ In, const float *__restrict__ Ker_packed, float *Out)
{
    extern __shared__ __align__(128) float tw_shared[];
    float *const a_tile = tw_shared + 0;
    float *const b_tile = tw_shared + 2176;
    float *const full = tw_shared + 11904;
    GRID_BEGINS;
    const int tile_strip = (int)blockIdx.x;
    const int first_strip = tile_strip * 64;
    const int first_row = first_strip / 6 / 7 * 9 + first_strip / 6 % 7 * 1;
    const int last_strip = min(first_strip + 64, 84) - 1;
    const int last_row = last_strip / 6 / 7 * 9 + last_strip / 6 % 7 * 1;
    const int group = 0;
    const int first_column = ((int)blockIdx.y - group * 2) * 32;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int owner = (int)threadIdx.x / 128;
    const int first_pixel = owner % 1 * 64;
    const int own_column = owner / 1 * 32;
    const int begin = 0, end = 3;
    const int place0 = (int)threadIdx.x % 128 + 0;
    const int row0 = first_row + place0 / 8;
    const int image0 = row0 / 9;
    const int at0_2 = row0 % 9 + -1;
    const int at0_3 = place0 % 8 + -1;
    const int spot0 = place0;
    const bool inside0 = place0 < 120 && row0 < last_row + 3 && (unsigned)at0_2 < 7u && (unsigned)at0_3 < 6u;
    const int from0 = inside0 ? image0 * 756 + at0_2 * 6 + at0_3 : 0;
    int offset[1][2];
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        const int pixel = first_pixel + j / 2 * 64 + warp % 4 * 16 + j % 2 * 8 + lane / 4;
        const int my_strip = min(first_strip + pixel, 83);
        const int my_row = my_strip / 6 / 7 * 9 + my_strip / 6 % 7 * 1;
        const int my_column = my_strip % 6;
        offset[j / 2][j % 2] = (my_row - first_row) * 8 + my_column;
    }
    float acc[1][16];
    #pragma unroll
    for (int i = 0; i < 1; i++)
    #pragma unroll
        for (int j = 0; j < 16; j++)
            acc[i][j] = 0.0f;
    if ((int)threadIdx.x == 0) {
        BULK_BEGIN(full + 0);
        BULK_BEGIN(full + 2);
    }
    __syncthreads();
    for (int now = begin - 1; now < begin; now++) {
        const int next = now + 1;
        if (next < end) {
             float *const to_a = a_tile + next % 2 * 1088;
             float *const to_b = b_tile + next % 2 * 4864;
            const int team = 0;
            const  float *const image = In + next * 336;
            #pragma unroll
            EACH_TURN(channel, team, 8, 1) {
                if (place0 < 120) COPY1(to_a + channel * 136 + spot0, (inside0 && next * 8 + channel < 18) ? image + from0 + channel * 42 : In, inside0 && next * 8 + channel < 18);
            }
            const  float *const from_b = Ker_packed + ((group * 3 + next) * 2 + first_column / 32) * 4864;
            if ((int)threadIdx.x == 0)
                BULK_COPY(to_b, from_b, 4864, full + next % 2 * 2);
        }
        COPY_COMMIT;
    }
    for (int now = begin; now < end; now++) {
        COPY_WAIT(0);
        SHARED_TO_MATRIX;
        BULK_WAIT(full + now % 2 * 2, (now - begin) / 2);
        __syncthreads();
        const  float *const a = a_tile + now % 2 * 1088;
        const  float *const b = b_tile + now % 2 * 4864;
        unsigned high_x[2][2][1][4];
        unsigned round_x[2][1][4], low_x[2][1][4];
        {
            const int pair = 0;
            #pragma unroll
            for (int two = 0; two < 2; two++) {
                const int step = 2 * pair + two;
                const int window0 = step / 1;
                const int q0_r = window0 / 3;
                const int q0_s = window0 % 3;
                const int at0 = (step % 1 * 8 + lane % 4 + 0) * 136 + q0_r * 8 + q0_s;
                const int window1 = step / 1;
                const int q1_r = window1 / 3;
                const int q1_s = window1 % 3;
                const int at1 = (step % 1 * 8 + lane % 4 + 4) * 136 + q1_r * 8 + q1_s;
            #pragma unroll
                for (int i = 0; i < 1; i++) {
                    float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    if (2 * pair + two < 9) {
                        values[0] = a[at0 + offset[i][0]];
                        values[1] = a[at0 + offset[i][1]];
                        values[2] = a[at1 + offset[i][0]];
                        values[3] = a[at1 + offset[i][1]];
                    }
                    high_x[0][two][i][0] = (__float_as_uint(values[0]) + 0x1000u) & 0xffffe000u;
                    high_x[0][two][i][2] = (__float_as_uint(values[2]) + 0x1000u) & 0xffffe000u;
                    round_x[0][i][0 + 2 * two] = BF16_PAIR(values[0], values[2]);
                    low_x[0][i][0 + 2 * two] = BF16_PAIR(values[0] - __uint_as_float(high_x[0][two][i][0]), values[2] - __uint_as_float(high_x[0][two][i][2]));
                    high_x[0][two][i][1] = (__float_as_uint(values[1]) + 0x1000u) & 0xffffe000u;
                    high_x[0][two][i][3] = (__float_as_uint(values[3]) + 0x1000u) & 0xffffe000u;
                    round_x[0][i][1 + 2 * two] = BF16_PAIR(values[1], values[3]);
                    low_x[0][i][1 + 2 * two] = BF16_PAIR(values[1] - __uint_as_float(high_x[0][two][i][1]), values[3] - __uint_as_float(high_x[0][two][i][3]));
                }
            }
        }
        #pragma unroll
        for (int now_pair = 0; now_pair < 5; now_pair++) {
            MATRIX_BEGIN;
            #pragma unroll
            for (int i = 0; i < 1; i++)
                WGMMA_BF16(32, acc[i], low_x[now_pair % 2][i], b + 2304 + now_pair * 512, 128, 32);
            #pragma unroll
            for (int i = 0; i < 1; i++)
                WGMMA_BF16(32, acc[i], round_x[now_pair % 2][i], b + 2304 + now_pair * 512 + 256, 128, 32);
            #pragma unroll
            for (int i = 0; i < 1; i++)
                WGMMA_TF32(32, acc[i], high_x[now_pair % 2][0][i], b + now_pair * 512, 128, 32);
            if (now_pair + 1 < 5)
            #pragma unroll
            for (int i = 0; i < 1; i++)
                WGMMA_TF32(32, acc[i], high_x[now_pair % 2][1][i], b + now_pair * 512 + 256, 128, 32);
            MATRIX_COMMIT;
            if (now_pair == 0) {
                const int next = now + 1;
                if (next < end) {
                     float *const to_a = a_tile + next % 2 * 1088;
                     float *const to_b = b_tile + next % 2 * 4864;
                    const int team = 0;
                    const  float *const image = In + next * 336;
                    #pragma unroll
                    EACH_TURN(channel, team, 8, 1) {
                        if (place0 < 120) COPY1(to_a + channel * 136 + spot0, (inside0 && next * 8 + channel < 18) ? image + from0 + channel * 42 : In, inside0 && next * 8 + channel < 18);
                    }
                    const  float *const from_b = Ker_packed + ((group * 3 + next) * 2 + first_column / 32) * 4864;
                    if ((int)threadIdx.x == 0)
                        BULK_COPY(to_b, from_b, 4864, full + next % 2 * 2);
                }
                COPY_COMMIT;
            }
            if (now_pair + 1 < 5) {
                MATRIX_WAIT(1);
                const int pair = now_pair + 1;
                #pragma unroll
                for (int two = 0; two < 2; two++) {
                    const int step = 2 * pair + two;
                    const int window0 = step / 1;
                    const int q0_r = window0 / 3;
                    const int q0_s = window0 % 3;
                    const int at0 = (step % 1 * 8 + lane % 4 + 0) * 136 + q0_r * 8 + q0_s;
                    const int window1 = step / 1;
                    const int q1_r = window1 / 3;
                    const int q1_s = window1 % 3;
                    const int at1 = (step % 1 * 8 + lane % 4 + 4) * 136 + q1_r * 8 + q1_s;
                #pragma unroll
                    for (int i = 0; i < 1; i++) {
                        float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        if (2 * pair + two < 9) {
                            values[0] = a[at0 + offset[i][0]];
                            values[1] = a[at0 + offset[i][1]];
                            values[2] = a[at1 + offset[i][0]];
                            values[3] = a[at1 + offset[i][1]];
                        }
                        high_x[pair % 2][two][i][0] = (__float_as_uint(values[0]) + 0x1000u) & 0xffffe000u;
                        high_x[pair % 2][two][i][2] = (__float_as_uint(values[2]) + 0x1000u) & 0xffffe000u;
                        round_x[pair % 2][i][0 + 2 * two] = BF16_PAIR(values[0], values[2]);
                        low_x[pair % 2][i][0 + 2 * two] = BF16_PAIR(values[0] - __uint_as_float(high_x[pair % 2][two][i][0]), values[2] - __uint_as_float(high_x[pair % 2][two][i][2]));
                        high_x[pair % 2][two][i][1] = (__float_as_uint(values[1]) + 0x1000u) & 0xffffe000u;
                        high_x[pair % 2][two][i][3] = (__float_as_uint(values[3]) + 0x1000u) & 0xffffe000u;
                        round_x[pair % 2][i][1 + 2 * two] = BF16_PAIR(values[1], values[3]);
                        low_x[pair % 2][i][1 + 2 * two] = BF16_PAIR(values[1] - __uint_as_float(high_x[pair % 2][two][i][1]), values[3] - __uint_as_float(high_x[pair % 2][two][i][3]));
                    }
                }
            }
        }
        MATRIX_WAIT(0);
    }
    #pragma unroll
    for (int j = 0; j < 2; j++) {
        const int pixel = first_pixel + j / 2 * 64 + warp % 4 * 16 + j % 2 * 8 + lane / 4;
        const int strip = first_strip + pixel;
        const int n = strip / 42;
        const int h = (strip / 6) % 7;
        const int w = strip % 6;
        if (!(strip < 84))
            continue;
    #pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = first_column + i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (k >= 40)
                continue;
            const float value = acc[j / 2][i / 2 * 4 + j % 2 * 2 + i % 2];
            Out[n * 1680 + k * 42 + h * 6 + w] = value;
        }
    }
}
