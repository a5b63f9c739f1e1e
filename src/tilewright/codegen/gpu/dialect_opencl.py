"""OpenCL C 1.2, and NVIDIA's, whose compiler takes the same inline PTX as CUDA's."""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.gpu.dialects import Dialect
from tilewright.codegen.gpu.language import Kernel, padded

WORDS = {
    'THREAD': '(int)get_local_id(0)',
    'BLOCK_X': '(int)get_group_id(0)',
    'BLOCK_Y': '(int)get_group_id(1)',
    'BLOCK_Z': '(int)get_group_id(2)',
    'BARRIER': 'barrier(CLK_LOCAL_MEM_FENCE)',
    'GLOBAL': '__global',
    'SHARED': '__local',
    'FUNCTION': 'static inline',
    'FMA': 'fma',
    'MAXIMUM': 'fmax',
    'MINIMUM': 'fmin',
    'expf': 'exp',
    'tanhf': 'tanh',
    'sqrtf': 'sqrt',
    'fabsf': 'fabs',
    'powf': 'pow',
    'fmaxf': 'fmax',
    'fminf': 'fmin',
    'FLOAT_BITS': 'as_uint',
    'BITS_FLOAT': 'as_float',
    'DEVICE_FENCE': 'TW_FENCE',
}

_COMMON = """\
#define LOAD4(space, p) (*(const space float4 *)(p))
#define STORE4(space, p, v) (*(space float4 *)(p) = (v))
#define STORE2(space, p, a, b) (*(space float2 *)(p) = (float2)(a, b))
#define FLOAT4(a, b, c, d) ((float4)(a, b, c, d))
#define ATOMIC_COUNT(p) atomic_inc(p)
"""

HEAD = (
    _COMMON
    + """\
#define COPY1(to, from, there) (*(to) = (there) ? *(from) : 0.0f)
#define COPY4(to, from, there) \\
    (*(__local float4 *)(to) = (there) ? *(const __global float4 *)(from) : (float4)(0.0f))
#define COPY_COMMIT
#define COPY_WAIT(n)
#if __OPENCL_C_VERSION__ >= 200
#define TW_FENCE \\
    atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acq_rel, memory_scope_device)
#else
#define TW_FENCE mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

/* OpenCL 1.2 adds integers only: floats are exchanged until nobody came between. */
static inline void ATOMIC_ADD(volatile __global float *p, float v)
{
    int seen = *(volatile __global int *)p, old;
    do {
        old = seen;
        seen = atomic_cmpxchg((volatile __global int *)p, old, as_int(as_float(old) + v));
    } while (seen != old);
}
"""
)

NVIDIA_HEAD = (
    _COMMON
    + """\
#define TW_FENCE asm volatile("membar.gl;" ::: "memory")
static inline void ATOMIC_ADD(__global float *p, float v)
{
    asm volatile("red.global.add.f32 [%0], %1;" :: "l"(p), "f"(v) : "memory");
}
static inline void COPY1(__local float *to, const __global float *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"((unsigned)(size_t)to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
static inline void COPY4(__local float *to, const __global float *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((unsigned)(size_t)to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
#define COPY_COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
#define MMA_TF32(d0, d1, d2, d3, a, b) \\
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " \\
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \\
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) \\
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
"""
)


def _entry(kernel: Kernel, parameters: str) -> str:
    return (
        f'__kernel __attribute__((reqd_work_group_size({kernel.threads}, 1, 1)))\n'
        f'void {kernel.name}({parameters})'
    )


def _pointer(element: str, name: str, written: bool) -> str:
    return (
        f'__global {element} *{name}' if written else f'__global const {element} *restrict {name}'
    )


def _shared(kernel: Kernel) -> list[str]:
    return [
        f'__local float {name}[{padded(count)}] __attribute__((aligned(16)));'
        for name, count in kernel.shared
    ]


OPENCL = Dialect(
    'opencl', 'opencl', WORDS, HEAD, _entry, _pointer, _shared, frozenset({'device_fence'})
)
NVIDIA_OPENCL = replace(
    OPENCL,
    name='opencl-nvidia',
    head=NVIDIA_HEAD,
    capabilities=frozenset({'mma_tf32', 'device_fence'}),
)
