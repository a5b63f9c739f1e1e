"""Portable micro-kernels: the same tile in C with compiler vector extensions, for any processor."""

from __future__ import annotations

from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.operand import LINE_FLOATS


def emit(kernel: micro.MicroKernel) -> str:
    """[MicroKernel] -> [C function]"""
    pixels, vectors, lanes = len(kernel.pixels), kernel.vectors, kernel.lanes
    kind = 'int' if kernel.dtype == 'i32' else 'float'
    tiles = [(p, v) for p in range(pixels) for v in range(vectors)]
    one = 'a[{}]' if kind == 'float' else '(*(const vec *)(a + {}))[0]'
    names = ', '.join(f's{p}_{v} = {{0}}' for p, v in tiles)
    body = [
        f'typedef {kind} vec __attribute__((vector_size({4 * lanes}), aligned(4), may_alias));',
        f'vec {names};',
        'if (resume) {',
        *(f'    s{p}_{v} = *(const vec *)(acc + {kernel.acc[p] + v * lanes});' for p, v in tiles),
        '}',
        f'for (; count > 0; count--, a += {kernel.a_step}, '
        f'b += {len(kernel.steps) * vectors * lanes}) {{',
    ]
    if kernel.fetch:
        step = 'stride / (long)sizeof *next' if kernel.varies else kernel.fetch
        further = range(LINE_FLOATS, kernel.fetch, LINE_FLOATS)
        body += [f'    __builtin_prefetch(next + {place}, 0, 2);' for place in further]
        body.append(f'    __builtin_prefetch(next, 0, 2), next += {step};')
    for number, step in enumerate(kernel.steps):
        body.append('    {')
        for v in range(vectors):
            body.append(
                f'        const vec w{v} = *(const vec *)(b + {(number * vectors + v) * lanes});'
            )
        for p, pixel in enumerate(kernel.pixels):
            run, lane = kernel.pixels[p // micro.BLOCK * micro.BLOCK], p % micro.BLOCK
            for v in range(vectors):
                if kernel.turned:
                    four = f'*(const vec *)(a + {step + run})'
                    body.append(f'        s{p}_{v} += {four} * w{v}[{lane}];')
                else:
                    body.append(f'        s{p}_{v} += {one.format(step + pixel)} * w{v};')
        body.append('    }')
    body.append('}')
    body += [f'*(vec *)(acc + {kernel.acc[p] + v * lanes}) = s{p}_{v};' for p, v in tiles]
    return micro.function(kernel, body)
