"""OpenCL C 1.2, as every vendor compiles it; dialect_nvidia.py adds to it for NVIDIA's."""

from __future__ import annotations

from tilewright.kernels.gpu.dialects.table import Dialect
from tilewright.kernels.gpu.language import ALIGNED, Kernel, padded

WORDS = {
    'THREAD': '(int)get_local_id(0)',
    'BLOCK_X': '(int)get_group_id(0)',
    'BLOCK_Y': '(int)get_group_id(1)',
    'BLOCK_Z': '(int)get_group_id(2)',
    'BARRIER': 'barrier(CLK_LOCAL_MEM_FENCE)',
    'GLOBAL': '__global',
    'SHARED': '__local',
    'FUNCTION': 'static inline',
    'TABLE': '__constant int',
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

COMMON = """\
#define LOAD4(space, p) (*(const space float4 *)(p))
#define STORE4(space, p, v) (*(space float4 *)(p) = (v))
#define STORE2(space, p, a, b) (*(space float2 *)(p) = (float2)(a, b))
#define FLOAT4(a, b, c, d) ((float4)(a, b, c, d))
#define LOAD2(space, p) (*(const space float2 *)(p))
#define FLOAT2(a, b) ((float2)(a, b))
"""

# Where nothing copies beside computing.
PLAIN_COPIES = """\
#define COPY1(to, from, there) (*(to) = (there) ? *(from) : 0.0f)
#define COPY4(to, from, there) \\
    (*(__local float4 *)(to) = (there) ? *(const __global float4 *)(from) : (float4)(0.0f))
#define COPY_COMMIT
#define COPY_WAIT(n)
"""

HEAD = (
    COMMON
    + PLAIN_COPIES
    + """\
#define EACH_TURN(i, first, total, step) for (int i = first; i < total; i += step)
#define ATOMIC_COUNT(p) atomic_inc(p)
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


def _entry(kernel: Kernel, parameters: str) -> str:
    return (
        f'__kernel __attribute__((reqd_work_group_size({kernel.threads}, 1, 1)))\n'
        f'void {kernel.name}({parameters})'
    )


def _pointer(element: str, name: str, written: bool) -> str:
    return (
        f'__global {element} *{name}' if written else f'__global const {element} *restrict {name}'
    )


def local_arrays(kernel: Kernel) -> list[str]:
    """Shared memory as arrays of the kernel."""
    return [
        f'__local float {name}[{padded(count)}] __attribute__((aligned({ALIGNED})));'
        for name, count in kernel.shared
    ]


OPENCL = Dialect(
    'opencl', 'opencl', WORDS, HEAD, _entry, _pointer, local_arrays, frozenset({'device_fence'})
)
