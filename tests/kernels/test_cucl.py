"""CUCL: references to arguments, dialects, checks at the call, foreign functions."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArrayError, CheckError, InputError, ScheduleError
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.dialects.host import HOST
from tilewright.kernels.gpu.dialects.nvidia import nvidia_opencl
from tilewright.kernels.gpu.dialects.opencl import OPENCL
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import (
    Array,
    Kernel,
    Scalar,
    check_call,
    lower,
    lower_all,
    resolve,
)
from tilewright.kernels.gpu.typed import definitions
from tilewright.machine.gpu import GpuMachine, known_gpu, known_gpus
from tilewright.runtime.gpu.device import Call
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

IMAGE = Array('In', ('n', 'c', 'h', 'w'), (2, 3, 5, 7))


def kernel(body: str, *args: Array | Scalar, threads: int = 1, **other) -> Kernel:
    return Kernel('k', args or (IMAGE,), body, (1, 1, 1), threads, **other)


@pytest.mark.parametrize(
    ('text', 'want'),
    [
        ('@In[n=0, c=ci, h=y + 1, w=x]', 'In[ci * 35 + (y + 1) * 7 + x]'),
        ('@In[w=0, h=0, c=0, n=0]', 'In[0]'),
        ('@In[n=a[1], c=0, h=0, w=f(1, 2)]', 'In[(a[1]) * 105 + (f(1, 2))]'),
        ('@In[n=@In[n=0, c=0, h=0, w=0], c=0, h=0, w=1]', 'In[(In[0]) * 105 + 1]'),
        ('@In.size(h) + @In.stride(c)', '5 + 35'),
        ('p = @In + 4;', 'p = In + 4;'),
    ],
)
def test_references_become_plain_indices(text: str, want: str) -> None:
    assert resolve(kernel(text), text) == want


@pytest.mark.parametrize(
    ('text', 'part'),
    [
        ('@In[n=0, c=0, h=0]', "leaves out ['w']"),
        ('@In[n=0, c=0, h=0, w=0, q=1]', "'q=1' does not"),
        ('@In[n=0, n=0, h=0, w=0]', 'once'),
        ('@In.size(k)', "no dimension 'k'"),
        ('@Out[n=0]', "no array 'Out'"),
        ('@In[n=0', 'not closed'),
        ('a @ b', 'lone @'),
    ],
)
def test_a_wrong_reference_says_what_is_wrong(text: str, part: str) -> None:
    with pytest.raises(ScheduleError, match='kernel k') as caught:
        resolve(kernel(text), text)
    assert part in str(caught.value)


def test_dynamic_sizes_are_parameters() -> None:
    image = Array('In', ('h', 'w'), (5, 7), dynamic=True)
    source = lower(kernel('x = @In[h=y, w=x] + @In.size(w);', image), CUDA)
    assert 'In[y * In_h_stride + x] + In_w_size' in source
    assert 'int In_h_size, int In_h_stride, int In_w_size, int In_w_stride' in source


def test_every_dialect_has_its_own_words() -> None:
    body = 'SHARED float *p = buffer; BARRIER; p[THREAD] = @In[n=0, c=0, h=0, w=BLOCK_X];'
    made = kernel(body, threads=64, shared=(('buffer', 5),))
    cuda, opencl, host = (lower(made, d) for d in (CUDA, OPENCL, HOST))
    assert '__syncthreads()' in cuda
    assert 'extern __shared__' in cuda
    assert '__launch_bounds__(64)' in cuda
    assert 'barrier(CLK_LOCAL_MEM_FENCE)' in opencl
    assert '__local float *p' in opencl
    assert '__local float buffer[32]' in opencl
    assert 'tw_barrier()' in host
    for text in (cuda, opencl, host):
        assert 'THREAD;' not in text.replace('THREADS', '')
        assert '@' not in text.split('k(', 1)[1]


def test_what_a_dialect_does_not_have_is_named() -> None:
    made = kernel('', needs=frozenset({'mma_tf32'}))
    assert lower(made, CUDA)
    assert lower(made, nvidia_opencl((8, 0)))
    with pytest.raises(ScheduleError, match='needs mma_tf32, which opencl-nvidia does not have'):
        lower(made, nvidia_opencl((7, 5)))
    with pytest.raises(ScheduleError, match='needs mma_tf32, which opencl does not have'):
        lower(made, OPENCL)


def test_a_foreign_function_runs_with_only_its_interface_declared() -> None:
    """Boda Sec. 3.2: here a C function for the host; CUDA and OpenCL ones go the same way."""
    out = Array('Out', ('i',), (6,), written=True)
    body = 'for (int i = 0; i < 6; i++) Out[i] = scale * i;'
    made = Kernel('theirs', (out, Scalar('scale', 'f32')), body, (1, 1, 1), 1, language='c')
    device = HostDevice()
    result = device.empty(('i',), (6,))
    device.launch(Call(device.compile(made), {'Out': result, 'scale': 1.5}))
    np.testing.assert_array_equal(result.numpy(), 1.5 * np.arange(6, dtype=np.float32))
    with pytest.raises(ScheduleError, match='is written in c; it cannot run on cuda'):
        lower(made, CUDA)


def given(dims: str, sizes: tuple[int, ...] = (2, 3, 5, 7), dtype: str = 'f32') -> dict:
    return {'In': (tuple(dims.split(':')), sizes, dtype)}


def test_arguments_are_checked_by_the_names_of_their_dimensions() -> None:
    made = kernel('')
    check_call(made, given('n:c:h:w'))
    with pytest.raises(ArrayError, match=r'declared n:c:h:w, but an array k:c:r:s was passed'):
        check_call(made, given('k:c:r:s'))
    with pytest.raises(ArrayError, match=r'compiled for sizes \(2, 3, 5, 7\), but \(1, 3, 5, 7\)'):
        check_call(made, given('n:c:h:w', (1, 3, 5, 7)))
    with pytest.raises(ArrayError, match='declared f32, but the array passed is i32'):
        check_call(made, given('n:c:h:w', dtype='i32'))
    with pytest.raises(ArrayError, match=r"not given: \['In'\], not known: \['X'\]"):
        check_call(made, {'X': ((), (), 'f32')})


def test_a_dynamic_kernel_serves_all_sizes() -> None:
    image = Array('In', ('h', 'w'), (1, 1), dynamic=True)
    out = Array('Out', ('h',), (1,), written=True, dynamic=True)
    body = """\
float sum = 0.0f;
for (int x = 0; x < @In.size(w); x++)
    sum += @In[h=BLOCK_X, w=x];
@Out[h=BLOCK_X] = sum;"""
    device = HostDevice()
    program = device.compile(kernel(body, image, out))
    for sizes in ((3, 4), (5, 2)):
        values = np.random.default_rng(1).random(sizes, np.float32)
        result = device.empty(('h',), sizes[:1])
        arrays = {'In': device.upload(values, ('h', 'w')), 'Out': result}
        device.launch(Call(program, arrays, (sizes[0], 1, 1)))
        np.testing.assert_allclose(result.numpy(), values.sum(1), rtol=1e-6)


def test_arrays_of_another_device_are_refused() -> None:
    first, second = HostDevice(), HostDevice()
    array = second.upload(np.zeros(IMAGE.sizes, np.float32), IMAGE.dims)
    program = first.compile(kernel(''))
    with pytest.raises(ArrayError, match='lives on host'):
        first.launch(Call(program, {'In': array}))
    with pytest.raises(ArrayError, match='upload it'):
        first.launch(Call(program, {'In': np.zeros(3)}))  # type: ignore[dict-item]
    with pytest.raises(ArrayError, match='names 1 dimensions, but the array has 2'):
        first.upload(np.zeros((2, 2), np.float32), ('h',))
    with pytest.raises(ArrayError, match='not float64'):
        first.upload(np.zeros(2), ('h',))


def test_an_array_is_no_number() -> None:
    device = HostDevice()
    out = Array('Out', ('i',), (4,), written=True)
    program = device.compile(kernel('@Out[i=0] = by;', out, Scalar('by', 'f32')))
    array = device.empty(('i',), (4,))
    with pytest.raises(ArrayError, match='argument by of k is a number f32, but NDArray was'):
        device.launch(Call(program, {'Out': array, 'by': array}))
    device.launch(Call(program, {'Out': array, 'by': np.float32(2.0)}))
    assert array.numpy()[0] == 2.0


def test_kernels_of_one_source() -> None:
    """What they share is written once; equal names are refused."""
    first, second = (
        kernel('x = @In.size(h);', needs=frozenset({f'wgmma_tf32/{n}'})) for n in (16, 32)
    )
    text = lower_all((first, replace(second, name='other')), CUDA)
    assert text.count('tw_matrix(const float *b') == 1
    assert 'tw_wgmma_16(' in text
    assert 'tw_wgmma_32(' in text
    assert text.count('extern "C"') == 2
    with pytest.raises(ScheduleError, match='names of their own'):
        lower_all((first, second), CUDA)


def test_functions_that_several_kernels_of_a_source_bring_are_defined_once() -> None:
    """Each brings what it needs itself, of floats and of whole numbers."""
    names = ('max_i32',), ('max_f32', 'mod_i32', 'max_i32', 'lookup'), ('pow_i64', 'max_f32')
    out = Array('Out', ('i',), (3,), written=True)
    body = """
        @Out[i=0] = max_i32(3, 4);
        @Out[i=1] = mod_i32(-7, 5);
        @Out[i=2] = max_f32(0.5f, (float)pow_i64(3, 4));
    """
    device = HostDevice()
    program = device.compile(kernel(body, out, helpers='\n'.join(map(definitions, names))))
    array = device.empty(('i',), (3,))
    device.launch(Call(program, {'Out': array}))
    assert array.numpy().tolist() == [4.0, 3.0, 81.0]
    assert definitions(('max_f32',)).count('#ifndef') == 3  # types, NaN, functions


def test_a_runner_gives_its_memory_back() -> None:
    class Counting(HostDevice):
        freed = 0

        def free(self, array: object) -> None:
            self.freed += 1

    device = Counting()
    group = tw.conv2d(c=2, h=4, w=4, k=2, r=1, s=1)
    arrays = random_arrays(group, 1)
    module = generate(group, GpuSchedule.of('general', threads=32))
    with Runner(module, device, arrays) as runner:
        runner(In=arrays['In'])
    assert device.freed == len(module.buffers)
    runner.close()
    assert device.freed == len(module.buffers)  # once
    forgotten = Runner(module, device, arrays)
    del forgotten
    gc.collect()
    assert device.freed == 2 * len(module.buffers)


def test_the_host_is_described_by_itself() -> None:
    device = HostDevice()
    assert device.machine.name == 'host'
    assert device.machine.multiprocessors == 1
    assert device.machine.peak_gflops < 50
    assert 'l2_gbps' in device.machine.assumed
    assert device.machine.has('wgmma_tf32x3')
    assert device.limits == known_gpu('h200')


def test_threads_that_miss_a_barrier_are_found() -> None:
    made = kernel('if (THREAD < 3) BARRIER;', threads=4)
    device = HostDevice()
    array = device.upload(np.zeros(IMAGE.sizes, np.float32), IMAGE.dims)
    with pytest.raises(CheckError, match='every thread has to reach every barrier'):
        device.launch(Call(device.compile(made), {'In': array}))


def test_threads_of_a_block_meet_at_barriers() -> None:
    """Every thread reads what its neighbour wrote before the barrier."""
    out = Array('Out', ('i',), (48,), written=True)
    body = """\
buffer[THREAD] = THREAD + 100.0f * BLOCK_X;
BARRIER;
@Out[i=BLOCK_X * 16 + THREAD] = buffer[(THREAD + 1) % 16];"""
    made = Kernel('ring', (out,), body, (3, 1, 1), 16, (('buffer', 16),))
    device = HostDevice()
    result = device.empty(('i',), (48,))
    device.launch(Call(device.compile(made), {'Out': result}))
    want = [(i + 1) % 16 + 100.0 * b for b in range(3) for i in range(16)]
    np.testing.assert_array_equal(result.numpy(), want)


def copied(body: str) -> np.ndarray:
    """What one thread leaves in `Out` that copies `In`, 16 numbers from 1 on, in four pieces."""
    arrays = (Array('In', ('i',), (16,)), Array('Out', ('i',), (16,), written=True))
    shared = (('buffer', 16), ('full', 4))
    made = Kernel(
        'copies', arrays, body, (1, 1, 1), 1, shared, needs=frozenset({'bulk_copy'})
    )  # fmt: skip
    device = HostDevice()
    given = device.upload(np.arange(1, 17, dtype=np.float32), ('i',))
    result = device.upload(np.zeros(16, np.float32), ('i',))
    device.launch(Call(device.compile(made), {'In': given, 'Out': result}))
    return result.numpy()


@pytest.mark.parametrize('others', range(4))
def test_copies_are_there_once_they_are_waited_for(others: int) -> None:
    """Four groups are asked for; all but the youngest `others` have come, the rest are poison."""
    found = copied(f"""\
for (int piece = 0; piece < 4; piece++) {{
    COPY4(buffer + 4 * piece, @In + 4 * piece, piece != 1);
    COPY_COMMIT;
}}
COPY_WAIT({others});
for (int i = 0; i < 16; i++)
    @Out[i=i] = buffer[i];""")
    come = 4 * (4 - others)
    want = np.where(np.arange(16) // 4 == 1, 0, np.arange(1, 17))
    np.testing.assert_array_equal(found[:come], want[:come])
    assert np.isnan(found[come:]).all()


BULK = """\
BULK_BEGIN(full);
for (int piece = 0; piece < 4; piece++) {{
    BULK_COPY(buffer, @In + 4 * piece, 4, full);
    {wait}
    for (int i = 0; i < 4; i++)
        @Out[i=4 * piece + i] = buffer[i];
}}"""


def test_copies_in_bulk_are_counted_by_their_barrier() -> None:
    found = copied(BULK.format(wait='BULK_WAIT(full, piece);'))
    np.testing.assert_array_equal(found, np.arange(1, 17))


@pytest.mark.parametrize(
    ('wait', 'said'),
    [
        ('BULK_WAIT(full, piece + 1);', 'while its barrier counts another'),
        ('', 'while its barrier counts another'),
        ('BULK_WAIT(full, piece); BULK_WAIT(full, piece + 1);', 'every thread has to reach'),
    ],
)
def test_waits_for_the_wrong_copy_in_bulk_are_found(wait: str, said: str) -> None:
    """The other parity does not wait, so that the next copy meets this one; one wait too many never
    ends.
    """
    with pytest.raises(CheckError, match=said):
        copied(BULK.format(wait=wait))


def test_a_block_beyond_the_limits_is_refused() -> None:
    device = HostDevice('rtx2080ti')
    with pytest.raises(ScheduleError, match='needs 2048 threads a block, and rtx2080ti has 1024'):
        device.compile(kernel('', threads=2048))
    with pytest.raises(ScheduleError, match='bytes of shared memory a block'):
        device.compile(kernel('', shared=(('buffer', 65536 // 4 + 1),)))


def test_gpu_machines_make_the_round_trip() -> None:
    assert {'h200', 'pocl', 'rtx2080ti', 'v100'} <= set(known_gpus())
    for name in known_gpus():
        machine = known_gpu(name)
        assert GpuMachine.from_json(machine.to_json()) == machine
    assert known_gpu('h200').peak_gflops == pytest.approx(66_908, rel=1e-3)
    with pytest.raises(InputError, match='known: h200'):
        known_gpu('h201')
    with pytest.raises(InputError, match='keys'):
        GpuMachine.from_json({'name': 'x'})


def test_gpu_schedules_make_the_round_trip() -> None:
    schedule = GpuSchedule.of('tiled', 'mma_tf32x3', bk=32, bp=64)
    assert GpuSchedule.from_json(schedule.to_json()) == schedule
    assert schedule['bp'] == 64
    with pytest.raises(ScheduleError, match="needs a value for 'kb'"):
        schedule['kb']
    with pytest.raises(ScheduleError, match='cannot be read'):
        GpuSchedule.from_json({'schema': 'tiled'})
    with pytest.raises(ScheduleError, match='not numbers from 0 on'):
        GpuSchedule.of('tiled', bk=-1)
