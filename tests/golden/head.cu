#define INFINITY __int_as_float(0x7f800000)
#define LOAD4(space, p) (*(const float4 *)(p))
#define STORE4(space, p, v) (*(float4 *)(p) = (v))
#define STORE2(space, p, a, b) (*(float2 *)(p) = make_float2(a, b))
#define FLOAT4(a, b, c, d) make_float4(a, b, c, d)
#define LOAD2(space, p) (*(const float2 *)(p))
#define FLOAT2(a, b) make_float2(a, b)
#define EACH_TURN(i, first, total, step) for (int i = first; i < total; i += step)
#define ATOMIC_ADD(p, v) atomicAdd(p, v)
#define ATOMIC_COUNT(p) atomicAdd(p, 1)
#if __CUDA_ARCH__ >= 900
#define GRID_BEGINS asm volatile("griddepcontrol.wait;" ::: "memory")
#define GRID_ENDS asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define GRID_BEGINS
#define GRID_ENDS
#endif

#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void COPY1(float *to, const float *from, bool there)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
}
static __device__ __forceinline__ void COPY4(float *to, const float *from, bool there)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}
#define COPY_COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#else
#define COPY1(to, from, there) (*(to) = (there) ? *(from) : 0.0f)
#define COPY4(to, from, there) \
    (*(float4 *)(to) = (there) ? *(const float4 *)(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f))
#define COPY_COMMIT
#define COPY_WAIT(n)
#endif

#if __CUDA_ARCH__ >= 800
#define MMA_TF32(d0, d1, d2, d3, a, b) \
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#endif
