"""What CUDA and NVIDIA's OpenCL do with a kernel beside running it: resident blocks and launches.

    PYTHONPATH=src python -m tilewright_lab.scripts.gpu_residency --json \
        bench/results/h200/residency.json

For blocks with growing shared memory, through both runtimes: how many blocks a multiprocessor holds
(blocks that wait for a fixed number of cycles, as many as 32 for each multiprocessor: the time over
that of one block is the number of waves), and what one more launch of an empty kernel takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.runtime.gpu.device import Call, Device
from tilewright.runtime.gpu.session import open_device
from tilewright_lab.peers.gpu_runtimes import per_launch

KIBIBYTES = (1, 8, 20, 31, 42, 58, 72, 90, 111, 150, 174, 198)
THREADS, CYCLES, EACH = 128, 40_000, 32

# Both compilers take the same inline PTX.
BODY = """\
unsigned long tw_begin, tw_now;
asm volatile("mov.u64 %0, %%clock64;" : "=l"(tw_begin));
memory[THREAD] = (float)THREAD;
BARRIER;
do {{
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(tw_now));
}} while (tw_now - tw_begin < {cycles});
if (BLOCK_X == 0)
    @Out[i=THREAD] = memory[{last} - THREAD];"""


def kernel(kibibytes: int, blocks: int, cycles: int, warpgroups: bool = False) -> Kernel:
    out = Array('Out', ('i',), (THREADS,), written=True)
    body = BODY.format(cycles=cycles, last=THREADS - 1)
    if warpgroups:
        body = f'MATRIX_BEGIN;\nMATRIX_COMMIT;\nMATRIX_WAIT(0);\n{body}'
    return Kernel(
        'waiting', (out,), body, (blocks, 1, 1), THREADS, (('memory', kibibytes * 256),),
        needs=frozenset({'wgmma_tf32/16'} if warpgroups else ()),
    )  # fmt: skip


def measured(device: Device, kibibytes: int) -> dict:
    """Resident blocks, and microseconds of one more launch of a kernel that does nothing."""
    count = device.machine.multiprocessors
    out = device.empty(('i',), (THREADS,))

    def time(blocks: int, cycles: int, launches: int, wide: bool = False) -> float:
        program = device.compile(kernel(kibibytes, blocks, cycles, wide))
        return 1e6 * per_launch(device, [Call(program, {'Out': out})], launches)['batched'][0]

    one, all_ = time(count, CYCLES, 4), time(count * EACH, CYCLES, 4)
    return {
        'kibibytes': kibibytes,
        'resident': EACH * one / all_,
        'empty_us': time(count, 0, 200),
        'empty_warpgroup_us': time(count, 0, 200, wide=True),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict]] = {}
    for target, name in (('cuda', ''), ('opencl', 'nvidia')):
        device = open_device(target, name)
        for kibibytes in KIBIBYTES:
            try:
                one = measured(device, kibibytes)
            except TilewrightError as error:
                one = {'kibibytes': kibibytes, 'message': str(error)}
            found.setdefault(target, []).append(one)
            print(target, json.dumps(one), flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
