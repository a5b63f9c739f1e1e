"""OpenCL C for NVIDIA: what a device and its driver have together, its PTX, and how it gets there.

No NVIDIA driver is needed: clang compiles the OpenCL text to PTX and NVIDIA's assembler reads that,
where they are installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CompilerError, ScheduleError
from tilewright.kernels.gpu.dialects.nvidia import (
    LATER,
    MARK,
    STATIC_SHARED_BYTES,
    needs_own_target,
    nvidia_opencl,
    uncovered,
)
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import ALIGNED, Array, Kernel, lower
from tilewright.machine.gpu import GpuMachine, known_by, known_gpu
from tilewright.machine.nvidia import nvidia_gpu
from tilewright.runtime.gpu.opencl_nvidia import OWN_SHARED_BYTES, find_route, register_limit
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright_lab.collect.space import excluded

GROUP = tw.conv2d(c=16, h=14, w=14, k=64, r=3, s=3, pad=1, bias=True, activation='relu')
TILED = {'bk': 32, 'bp': 32, 'tk': 16, 'tp': 16, 'kb': 16, 'stages': 3, 'split': 2, 'joint': 0}
PATCH = {'bn': 1, 'bh': 4, 'bw': 14, 'kb': 8, 'stages': 2, 'split': 2, 'joint': 0}
WARPS = GpuSchedule.of('tiled', 'mma_tf32x3', **TILED)
LARGE = GpuSchedule.of('tiled', 'mma_tf32x3', **(TILED | {'bk': 64, 'bp': 128, 'kb': 32}))
GROUPS = GpuSchedule.of('patch', 'wgmma_tf32x3', **PATCH, bk=32, tk=32, tp=64)


def main_kernel(schedule: GpuSchedule) -> Kernel:
    return generate(GROUP, schedule).steps[0].kernel


def test_a_dialect_has_what_device_and_driver_have_together() -> None:
    assert nvidia_opencl((7, 5)).capabilities == {'device_fence', 'lane_xor', 'nvptx'}
    assert nvidia_opencl((8, 6)).capabilities == {
        'device_fence', 'lane_xor', 'nvptx', 'mma_tf32',
    }  # fmt: skip
    assert 'wgmma_tf32' not in nvidia_opencl((9, 0)).capabilities
    assert 'wgmma_tf32' in nvidia_opencl((9, 0), own_target=True).capabilities
    assert 'cp.async' not in nvidia_opencl((7, 5)).head
    with pytest.raises(ScheduleError, match='needs wgmma_tf32, which opencl-nvidia does not have'):
        lower(main_kernel(GROUPS), nvidia_opencl((9, 0)))


def test_registers_are_limited_where_more_blocks_would_be_resident() -> None:
    """128 threads with 100 registers (104 by eights): 4 blocks of 65536 registers, 5 with 96."""
    machine = known_gpu('h200')

    def limit(blocks: int, floats: int, registers: int | None) -> int | None:
        kernel = Kernel('k', (), '', (blocks, 1, 1), 128, (('memory', floats),))
        return register_limit(kernel, registers, machine)

    assert limit(5 * 132, 1024, 100) == 96
    assert limit(4 * 132, 1024, 100) is None  # there are no more blocks
    assert limit(5 * 132, 12 * 1024, 100) is None  # shared memory holds four
    assert limit(5 * 132, 1024, 96) is None
    assert limit(5 * 132, 1024, None) is None


def test_shared_memory_begins_at_a_line_of_banks() -> None:
    for schedule in (WARPS, LARGE, GROUPS):
        kernel = main_kernel(schedule)
        text = lower(kernel, nvidia_opencl((9, 0), own_target=True))
        found = re.findall(r'aligned\((\d+)\)\)\);|\.shared \.align (\d+) ', text)
        assert len(found) == (1 if schedule == LARGE else len(kernel.shared))
        assert {int(a or b) for a, b in found} == {ALIGNED}


def test_what_needs_the_own_target() -> None:
    assert [needs_own_target(main_kernel(s)) for s in (WARPS, LARGE, GROUPS)] == [False, True, True]


def test_hidden_instructions_are_uncovered() -> None:
    text = f'.version 8.0\n.target sm_90, texmode_independent\n{MARK}wgmma.fence;\nmov.u32 a, b;\n'
    made = uncovered(text, 'sm_90a')
    assert '.target sm_90a, texmode_independent' in made
    assert '\nwgmma.fence;\n' in made
    with pytest.raises(CompilerError, match='is no PTX'):
        uncovered('.target sm_90\nmov.u32 a, b;', 'sm_90a')  # its comments were taken away
    with pytest.raises(CompilerError, match='is no PTX'):
        uncovered(f'\x7fELF {MARK}', 'sm_90a')


@pytest.mark.parametrize(
    ('works', 'name', 'shared'),
    [
        ({('option', True), ('option', False)}, 'option', OWN_SHARED_BYTES),
        ({('uncovered', True), ('option', False)}, 'uncovered', OWN_SHARED_BYTES),
        ({('uncovered', False)}, 'uncovered', STATIC_SHARED_BYTES),
        (set(), '', 0),
    ],
)
def test_the_route_that_can_do_most_is_taken(works: set, name: str, shared: int) -> None:
    def run(kernel: Kernel, route: str) -> np.ndarray:
        if (route, kernel.shared_bytes > 48 * 1024) in works:
            return np.arange(kernel.threads, dtype=np.float32)[::-1]
        if route == 'option':
            raise CompilerError('no such target')
        return np.zeros(kernel.threads, np.float32)

    found = find_route(run)
    assert (found.name, found.shared_bytes) == (name, shared)
    assert found.notes
    if not name:
        assert any('no such target' in note for note in found.notes)
        assert any('a wrong answer' in note for note in found.notes)


def plain_h200() -> GpuMachine:
    """An H200 whose driver takes nothing but the plain target."""
    h200 = known_gpu('h200').to_json()
    plain = {'instructions': ['mma_tf32'], 'shared_bytes_per_block': 48 * 1024}
    return GpuMachine.from_json(h200 | plain)


def test_the_search_offers_only_what_can_be_lowered() -> None:
    machine = plain_h200()
    space = moves(GROUP, machine)
    assert ('patch', 'wgmma_tf32x3') not in space.tables
    assert ('patch', 'mma_tf32x3') in space.tables
    assert not space.legal(GROUPS)
    assert not space.legal(LARGE)
    assert space.legal(WARPS)
    assert excluded(GROUP, GROUPS, machine) == 'instructions'
    assert ('patch', 'wgmma_tf32x3') in moves(GROUP, known_gpu('h200')).tables
    assert {i for _, i in moves(GROUP, known_gpu('pocl')).tables} == {'fma'}


def test_gpus_that_are_not_known_are_described_by_what_they_say() -> None:
    made = nvidia_gpu(
        'NVIDIA A100-SXM4-80GB', (8, 0), 108, 1.41, global_gbps=2039.0, l2_bytes=40 << 20
    )
    assert made.fp32_lanes == 64
    assert made.peak_gflops == pytest.approx(19_490, rel=1e-3)
    assert made.shared_bytes_per_block == 163 << 10
    assert made.instructions == ('mma_half', 'mma_int8', 'mma_tf32', 'resident_grid')
    assert made.assumed == ('l2_gbps',)
    future = nvidia_gpu('NVIDIA X', (99, 0), 200, 2.0)
    assert {'fp32_lanes', 'global_gbps', 'shared_bytes', 'threads'} <= set(future.assumed)
    ours = nvidia_gpu('NVIDIA H200', (9, 0), 132, 1.98, global_gbps=4915.0, l2_bytes=60 << 20)
    assert ours == known_gpu('h200').__class__.from_json(
        known_gpu('h200').to_json() | {'name': 'NVIDIA H200', 'shared_gbps': 128 * 132 * 1.98}
    )


@pytest.mark.parametrize(
    ('label', 'name'),
    [
        ('NVIDIA H200', 'h200'),
        ('Tesla V100-SXM2-16GB', 'v100'),
        ('NVIDIA GeForce RTX 2080 Ti', 'rtx2080ti'),
        ('NVIDIA GH200 480GB', None),
        ('NVIDIA GeForce RTX 2080', None),
    ],
)
def test_known_gpus_by_their_full_names(label: str, name: str | None) -> None:
    found = known_by(label)
    assert (found.name if found else None) == name


# What NVIDIA's compiler knows by itself, for clang.
BUILTINS = """\
#define get_local_id(i) __nvvm_read_ptx_sreg_tid_x()
static inline int tw_group(int i)
{
    return i == 0 ? __nvvm_read_ptx_sreg_ctaid_x()
         : i == 1 ? __nvvm_read_ptx_sreg_ctaid_y() : __nvvm_read_ptx_sreg_ctaid_z();
}
#define get_group_id(i) tw_group(i)
#define barrier(x) __syncthreads()
#define as_uint(x) __builtin_astype((x), uint)
#define as_float(x) __builtin_astype((x), float)
#define fma(a, b, c) __builtin_fmaf(a, b, c)
#define fmax(a, b) __builtin_fmaxf(a, b)
#define min(a, b) ((a) < (b) ? (a) : (b))
static inline int atomic_inc(__global int *p)
{
    int v;
    asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(v) : "l"((ulong)p) : "memory");
    return v;
}
"""


def _has_nvptx() -> bool:
    if not shutil.which('clang') or not shutil.which('ptxas'):
        return False
    answer = subprocess.run(
        ['clang', '-print-targets'], capture_output=True, text=True, check=False
    )
    return 'nvptx64' in answer.stdout


def to_ptx(source: str, folder: Path, *options: str, known: str = 'sm_80') -> str:
    """PTX for sm_90 that uses what clang knows of the target `known`."""
    (folder / 'builtins.h').write_text(BUILTINS)
    (folder / 'kernel.cl').write_text(source)
    words = ['-x', 'cl', '-cl-std=CL1.2', '-target', 'nvptx64-nvidia-nvcl', '-O2', '-S', '-w']
    for feature in ('-target-cpu', known, '-target-feature', '+ptx70'):
        words += ['-Xclang', feature]
    words += ['-Dasm=__asm__', '-include', str(folder / 'builtins.h'), *options]
    made = subprocess.run(
        ['clang', *words, str(folder / 'kernel.cl'), '-o', '-'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout.replace('.version 7.0', '.version 8.0').replace(known, 'sm_90')


def assembled(text: str, target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / 'kernel.ptx').write_text(text)
    return subprocess.run(
        ['ptxas', '-v', f'-arch={target}', str(folder / 'kernel.ptx'), '-o', str(folder / 'out')],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not _has_nvptx(), reason='clang with NVPTX and ptxas are not installed')
@pytest.mark.parametrize('schedule', [WARPS, LARGE, GROUPS], ids=['warps', 'large', 'groups'])
def test_the_text_becomes_machine_code(schedule: GpuSchedule, tmp_path: Path) -> None:
    """As the driver does it: with hidden lines for the plain target, then uncovered."""
    dialect = nvidia_opencl((9, 0), own_target=True)
    for kernel in generate(GROUP, schedule).kernels:
        source = lower(kernel, dialect)
        special = needs_own_target(kernel)
        text = to_ptx(source, tmp_path, *([f'-D{LATER}'] if special else []))
        first = assembled(text, 'sm_90', tmp_path)
        assert first.returncode == 0, first.stderr
        if special:
            plain = assembled(text.replace(MARK, ''), 'sm_90', tmp_path)
            assert plain.returncode != 0  # that is why lines are hidden
            first = assembled(uncovered(text, 'sm_90a'), 'sm_90a', tmp_path)
            assert first.returncode == 0, first.stderr
        assert ' 0 bytes spill stores' in first.stderr
        registers = re.search(r'Used (\d+) registers', first.stderr)
        assert registers
        assert int(registers[1]) <= 168
    if special:
        used = re.search(r'(\d+) bytes smem', first.stderr)
        assert used
        assert kernel.shared_bytes - ALIGNED < int(used[1]) <= kernel.shared_bytes


@pytest.mark.skipif(not _has_nvptx(), reason='clang with NVPTX and ptxas are not installed')
def test_older_devices_get_plain_copies(tmp_path: Path) -> None:
    tiles = TILED | {'tk': 4, 'tp': 4}
    kernel = main_kernel(GpuSchedule.of('tiled', **tiles))
    source = lower(kernel, nvidia_opencl((7, 5)))
    text = to_ptx(source, tmp_path, known='sm_75').replace('sm_90', 'sm_75')
    made = assembled(text, 'sm_75', tmp_path)
    assert made.returncode == 0, made.stderr
    assert 'cp.async' not in text


def test_foreign_opencl_runs_in_nvidias_dialect_too() -> None:
    out = Array('Out', ('i',), (4,), written=True)
    theirs = Kernel('theirs', (out,), 'Out[0] = 1.0f;', (1, 1, 1), 1, language='opencl')
    assert 'Out[0] = 1.0f;' in lower(theirs, nvidia_opencl((9, 0)))
