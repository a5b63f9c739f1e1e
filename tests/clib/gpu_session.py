"""A session whose schemas misbehave, each in its own way; a script for tests of the worker."""

import sys
from dataclasses import replace

from tilewright.kernels.gpu.registry import GPU_SCHEMAS
from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.general import code as general
from tilewright.runtime.gpu.session import Session, serve
from tilewright.schedule.gpu import GpuSchedule

BODIES = {
    'endless': 'for (;;) { }',
    'unwritten': '',
    'wrong': 'GLOBAL float *to = @Out; to[BLOCK_X * 64 + THREAD] = 1.0f;',
    'crashes': '*(volatile int *)8 = 1;',
    'refused': 'int a = 1;\nthis is not C;',
}


def bad(kind: str):
    def generate(group, schedule):
        module = general.generate(group, GpuSchedule.of('general', threads=64))
        step = module.steps[0]
        kernel = replace(step.kernel, body=BODIES.get(kind, step.kernel.body))
        if kind == 'hungry':
            kernel = replace(kernel, shared=(('much', 1 << 20),))
        return replace(module, steps=(replace(step, kernel=kernel),))

    return generate


if __name__ == '__main__':
    for kind in (*BODIES, 'hungry'):
        GPU_SCHEMAS.register(GpuSchema(name=kind, words='misbehaves', generate=bad(kind)))
    serve(Session, sys.argv[1:])
