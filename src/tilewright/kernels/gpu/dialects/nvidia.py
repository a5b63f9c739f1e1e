"""OpenCL C for NVIDIA's compiler, which takes the same inline PTX as CUDA's (ptx.py).

Goes in: the compute capability of a device, and whether its OpenCL runs code of the device's own
target (sm_90a). Comes out: `nvidia_opencl(...)`, a dialect with what the two have together. A
pointer to __local memory is an address of shared memory: its low 32 bits are what PTX wants.

NVIDIA's OpenCL compiles for sm_90, whose assembler knows neither warpgroup instructions nor blocks
with more than 48 KiB of shared memory; sm_90a has both. Text that needs that target is marked by
`TW_OWN`: with TW_LATER defined such lines become comments of the PTX, which `uncovered` takes away
again once the text names the right target (runtime/gpu/opencl_nvidia.py builds it so).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import CompilerError
from tilewright.kernels.gpu import ptx
from tilewright.kernels.gpu.dialects.opencl import COMMON, OPENCL, PLAIN_COPIES, local_arrays
from tilewright.kernels.gpu.dialects.table import Dialect, matrix_units, what_lanes_need
from tilewright.kernels.gpu.language import ALIGNED, Kernel, padded
from tilewright.machine.nvidia import instructions_of

# What a kernel may declare: of 48 KiB the driver keeps 16 bytes, and arrays begin behind them.
STATIC_SHARED_BYTES = 48 * 1024 - ALIGNED
LATER = 'TW_LATER'
MARK = '//@'

_HEAD = f"""\
#ifdef {LATER}
#define TW_OWN(text) "{MARK}" text "\\n"
#else
#define TW_OWN(text) text "\\n"
#endif
/* A constant number of turns: this compiler unrolls no loop that begins at a variable. */
#define EACH_TURN(i, first, total, step) \\
    for (int tw_turn = 0; tw_turn < ((total) + (step) - 1) / (step); tw_turn++) \\
        for (int i = (first) + tw_turn * (step); i < (total); i = (total))
#define TW_BARRIER asm volatile("bar.sync 0;" ::: "memory")
#define TW_FENCE asm volatile("membar.gl;" ::: "memory")
static inline int ATOMIC_COUNT(__global int *p)
{{
    int before;
    asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"((ulong)p) : "memory");
    return before;
}}
static inline void ATOMIC_ADD(__global float *p, float v)
{{
    asm volatile("red.global.add.f32 [%0], %1;" :: "l"((ulong)p), "f"(v) : "memory");
}}
"""

_COPIES = f"""\
static inline void COPY1(__local float *to, const __global float *from, bool there)
{{
    asm volatile("{ptx.copy(4)}"
                 :: "r"((uint)(size_t)to), "l"((ulong)from), "r"(there ? 4 : 0) : "memory");
}}
static inline void COPY4(__local float *to, const __global float *from, bool there)
{{
    asm volatile("{ptx.copy(16)}"
                 :: "r"((uint)(size_t)to), "l"((ulong)from), "r"(there ? 16 : 0) : "memory");
}}
#define COPY_COMMIT asm volatile("{ptx.COPY_COMMIT}" ::: "memory")
#define COPY_WAIT(n) asm volatile("{ptx.COPY_WAIT} " #n ";" ::: "memory")
"""

_WARP = f"""\
#define MMA_TF32(d0, d1, d2, d3, a, b) \\
    asm volatile("{ptx.MMA_TF32}" \\
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) \\
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
"""

_WARPGROUP = f"""\
#define MATRIX_BEGIN asm volatile(TW_OWN("{ptx.MATRIX_BEGIN}") ::: "memory")
#define MATRIX_COMMIT asm volatile(TW_OWN("{ptx.MATRIX_COMMIT}") ::: "memory")
#define MATRIX_WAIT(n) asm volatile(TW_OWN("{ptx.MATRIX_WAIT} " #n ";") ::: "memory")
#define SHARED_TO_MATRIX asm volatile("{ptx.SHARED_TO_MATRIX}" ::: "memory")
#define WGMMA_TF32(n, d, a, b, across, row8) tw_wgmma_##n(d, a, tw_matrix(b, across, row8))

static inline ulong tw_matrix(const __local float *b, int across, int row8)
{{
    const ulong at = (ulong)(size_t)b & 0x3ffff;
    return at >> 4 | (ulong)(across / 4) << 16 | (ulong)(row8 / 4) << 32;
}}
"""

_BF16 = f"""\
#define WGMMA_BF16(n, d, a, b, across, row8) tw_wgmma_bf16_##n(d, a, tw_matrix(b, across, row8))
static inline uint BF16_PAIR(float low, float high)
{{
    uint both;
    asm("{ptx.BF16_PAIR}" : "=r"(both) : "f"(high), "f"(low));
    return both;
}}
"""


_BULK = f"""\
static inline void BULK_BEGIN(__local float *barrier)
{{
    asm volatile(TW_OWN("{ptx.BULK_BEGIN}") :: "r"((uint)(size_t)barrier) : "memory");
    asm volatile(TW_OWN("{ptx.BULK_BEGUN}") ::: "memory");
}}
static inline void
BULK_COPY(__local float *to, const __global float *from, int floats, __local float *barrier)
{{
    const uint bar = (uint)(size_t)barrier;
    asm volatile(TW_OWN("{ptx.BULK_EXPECT}") :: "r"(4 * floats), "r"(bar) : "memory");
    asm volatile(TW_OWN("{ptx.BULK_COPY}")
                 :: "r"((uint)(size_t)to), "l"((ulong)from), "r"(4 * floats), "r"(bar) : "memory");
}}
static inline void BULK_WAIT(const __local float *barrier, int used)
{{
    const uint bar = (uint)(size_t)barrier;
    uint come;
    do
        asm volatile("mov.u32 %0, 1;" TW_OWN("{ptx.BULK_TEST}")
                     : "=&r"(come) : "r"(bar), "r"(used & 1) : "memory");
    while (!come);
}}
"""


def _wgmma(kind: str, columns: int) -> str:
    """A macro: sums are elements of a private array, which a call might move to memory."""
    name, count = 'tw_wgmma' if kind == 'tf32' else f'tw_wgmma_{kind}', columns // 2
    text = ' '.join(f'TW_OWN("{line}")' for line in ptx.wgmma(columns, kind))
    outputs = ', '.join(f'"+f"((d)[{i}])' for i in range(count))
    inputs = ', '.join(f'"r"((a)[{i}])' for i in range(4))
    return (
        f'#define {name}_{columns}(d, a, b) \\\n    asm volatile({text} \\\n'
        f'                 : {outputs} \\\n                 : {inputs}, "l"(b), "r"(1))\n'
    )


_LANES = f"""\
static inline float LANE_XOR(float value, int mask)
{{
    float other;
    asm volatile("{ptx.LANE_XOR}" : "=f"(other) : "f"(value), "r"(mask));
    return other;
}}
"""


def _extra(kernels: Sequence[Kernel]) -> str:
    units = matrix_units(kernels, _WARPGROUP, _BF16, _BULK, _wgmma)
    return units + what_lanes_need(kernels, _LANES, '')


def _shared(kernel: Kernel) -> list[str]:
    """Arrays of the kernel, or one of the assembler's where it is too much for them."""
    if kernel.shared_bytes <= STATIC_SHARED_BYTES:
        return local_arrays(kernel)
    lines = [
        'uint tw_shared;',
        'asm volatile("mov.u32 %0, 0;\\n" '
        f'TW_OWN(".shared .align {ALIGNED} .b8 tw_shared_bytes[{kernel.shared_bytes}];") '
        'TW_OWN("mov.u32 %0, tw_shared_bytes;") : "=r"(tw_shared));',
    ]
    offset = 0
    for name, count in kernel.shared:
        place = f'(__local float *)(size_t)tw_shared + {offset}'
        lines.append(f'__local float *const {name} = {place};')
        offset += padded(count)
    return lines


def nvidia_opencl(capability: tuple[int, int], own_target: bool = False) -> Dialect:
    """The dialect of one device; `own_target` is whether its OpenCL runs code for sm_90a."""
    found = instructions_of(capability) & {'mma_tf32', *(['wgmma_tf32'] if own_target else [])}
    if 'wgmma_tf32' in found:
        found |= {'wgmma_bf16', 'bulk_copy'}
    modern = capability >= (8, 0)
    return replace(
        OPENCL,
        name='opencl-nvidia',
        words={**OPENCL.words, 'BARRIER': 'TW_BARRIER'},
        head=COMMON + _HEAD + (_COPIES + _WARP if modern else PLAIN_COPIES),
        capabilities=frozenset({'device_fence', 'lane_xor', 'nvptx'}) | found,
        extra=_extra,
        shared=_shared,
    )


def needs_own_target(kernel: Kernel) -> bool:
    """Whether a kernel can only be assembled for the device's own target."""
    warpgroups = any(need.startswith('wgmma') for need in kernel.needs)
    return warpgroups or kernel.shared_bytes > STATIC_SHARED_BYTES


def uncovered(text: str, target: str) -> str:
    """PTX of a build with TW_LATER, its marked lines uncovered, for `target` such as 'sm_90a'."""
    found, lines = text.count(MARK), text.replace(MARK, '')
    wanted, count = re.subn(r'^(\s*\.target\s+)sm_\w+', rf'\g<1>{target}', lines, flags=re.M)
    if not found or count != 1:
        raise CompilerError(
            f'what the OpenCL driver gave back is no PTX with {MARK} and one .target, so it cannot '
            f'be assembled for {target}'
        )
    return wanted
