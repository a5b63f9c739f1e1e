"""The thread pool: any number of parts, several callers, fork, idling, growth."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from importlib import resources

import numpy as np
import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.runtime.cpu.kernel import Kernel, pool
from tilewright_lab.simulate.emulate import native, run_text

PRODUCT = matmul(m=24, n=24, k=24)
COUNTER = """\
/* Counts how often each part ran; `spin` makes parts last. */
typedef struct { _Atomic int runs[64]; long spin; } tally;

void count_part(const void *args, long part)
{
    tally *t = (tally *)args;
    for (volatile long i = 0; i < t->spin; i++)
        ;
    t->runs[part]++;
}
"""


class Tally(ctypes.Structure):
    _fields_ = [('runs', ctypes.c_int * 64), ('spin', ctypes.c_long)]


@pytest.fixture(scope='module')
def count_part():
    library = ctypes.CDLL(str(build(COUNTER, name='counter')))
    return ctypes.cast(library.count_part, ctypes.c_void_p)


def kernel_of(group: Group, parts: int) -> Kernel:
    schedule = general_schedule(group, host_isas()[-1], parts, 1)
    assert schedule.threads == parts
    flags = (*compiler_flags(schedule), '-O1')
    return Kernel.load(build(generate(group, schedule), flags), group)


def answer(kernel: Kernel, arrays: dict, packed: np.ndarray) -> np.ndarray:
    out = np.full(kernel.group.output.shape, np.nan, np.float32)
    kernel.run(arrays, packed, out)
    return out


@pytest.mark.parametrize('parts', range(1, 9))
def test_results_are_right_with_any_number_of_parts(parts, whole_numbers):
    group = conv2d(c=3, k=8, h=210, w=3, r=3, s=3) if parts in (5, 7) else PRODUCT
    kernel, arrays = kernel_of(group, parts), whole_numbers(group, parts)
    assert kernel.parts == parts
    packed = kernel.pack(arrays)
    for _ in range(20):
        assert np.array_equal(answer(kernel, arrays, packed), reference(group, arrays))


@pytest.mark.parametrize('spin', [0, 2000])
def test_every_part_runs_exactly_once_while_the_number_of_parts_changes(count_part, spin):
    """Workers that are late for one run must not take part in the next one by mistake."""
    for number in range(3000 if spin == 0 else 300):
        parts = (2, 8, 3, 5, 2, 7)[number % 6]
        tally = Tally(spin=spin)
        pool().tw_pool_run(count_part, ctypes.addressof(tally), parts)
        assert list(tally.runs) == [1] * parts + [0] * (64 - parts), number


@pytest.mark.parametrize('spin', [0, 500])
def test_few_parts_have_owners_and_many_are_counted(count_part, spin):
    """Up to 32 parts have a bit each; late workers of such a run are followed by counted ones."""
    for number in range(300):
        parts = (2, 33, 32, 64, 3, 31)[number % 6]
        tally = Tally(spin=spin)
        pool().tw_pool_run(count_part, ctypes.addressof(tally), parts)
        assert list(tally.runs) == [1] * parts + [0] * (64 - parts), number


CHOICES = """
#include <stdio.h>

int main(void)
{
    for (long parts = 2; parts <= 40; parts++)
        for (long own = 0; own < parts; own++) {
            uint32_t taken = 0;
            unsigned long long seen = 0;
            for (long i = 0; i < parts; i++) {
                const long part = choose(&taken, parts, own);
                const int wrong = i == 0 && parts <= 32 && part != own;
                if (wrong || part < 0 || part >= parts || seen >> part & 1) {
                    printf("choice %ld of thread %ld is part %ld of %ld\\n", i, own, part, parts);
                    return 1;
                }
                seen |= 1ull << part;
            }
            if (choose(&taken, parts, own) >= 0)
                return 1;
        }
    return 0;
}
"""


def test_a_thread_begins_with_its_own_part():
    """What it read and wrote there before is in its caches; then come parts that are left, once."""
    source = resources.files('tilewright.runtime').joinpath('pool.c').read_text()
    run_text(source + CHOICES, native(), ('-pthread',))


STRESS = """
#include <stdio.h>

typedef struct { _Atomic int runs[8]; } tally;
static void count(const void *args, long part) { ((tally *)args)->runs[part]++; }

int main(void)
{
    static const int parts[] = {2, 8, 2, 5, 3, 7};
    for (long i = 0; i < 60000; i++) {
        tally t = {0};
        tw_pool_run(count, &t, parts[i % 6]);
        for (int part = 0; part < 8; part++)
            if (t.runs[part] != (part < parts[i % 6])) {
                printf("part %d of %d ran %d times\\n", part, parts[i % 6], t.runs[part]);
                return 1;
            }
    }
    return 0;
}
"""


def test_a_late_worker_takes_nothing_from_the_next_run():
    """As above, with the moment in which a new job is published drawn out."""
    source = resources.files('tilewright.runtime').joinpath('pool.c').read_text()
    moment = '    atomic_store_explicit(&pool.parts, parts, memory_order_relaxed);\n'
    assert source.count(moment) == 1
    slow = moment + '    for (volatile int wait = 0; wait < 3000; wait++)\n        ;\n'
    run_text(source.replace(moment, slow) + STRESS, native(), ('-pthread',))


SLEEP = """
#include <stdio.h>

typedef struct { pthread_t caller; _Atomic int ran, others; } job;

/* The caller's part lasts until somebody else has one, and those last until the caller sleeps. */
static void last(const void *args, long part)
{
    job *j = (job *)args;
    const int mine = pthread_equal(pthread_self(), j->caller);
    (void)part;
    if (!mine)
        j->others++;
    for (int turns = 0; turns < 1000; turns++) {
        if (mine ? j->others > 0 : atomic_load(&pool.asleep))
            break;
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
    if (!mine)
        slept += atomic_load(&pool.asleep);
    j->ran++;
}

int main(void)
{
    for (int i = 0; i < 300; i++) {
        job j = {pthread_self(), 0, 0};
        tw_pool_run(last, &j, 2 + i % 3);
        if (j.ran != 2 + i % 3 || atomic_load(&pool.asleep)) {
            printf("run %d: %d parts ran, asleep: %d\\n", i, j.ran, pool.asleep);
            return 1;
        }
    }
    return slept > 0 ? 0 : 2;
}
"""


@pytest.mark.parametrize('drawn', ['', 'before it sleeps', 'before it wakes'])
def test_a_caller_that_sleeps_wakes_when_all_parts_are_done(drawn):
    """The moments in which both must see what the other one did are drawn out in turn."""
    source = resources.files('tilewright.runtime').joinpath('pool.c').read_text()
    moment = {
        '': '',
        'before it sleeps': '        atomic_store(&pool.asleep, 1);\n',
        'before it wakes': '        atomic_fetch_add(&pool.done, 1);\n',
    }[drawn]
    assert not moment or source.count(moment) == 1
    slow = moment + '        nanosleep(&(struct timespec){0, 100000}, NULL);\n'
    text = source.replace(moment, slow) if moment else source
    run_text(text + '\nstatic _Atomic int slept;\n' + SLEEP, native(), ('-pthread',))


def test_more_parts_than_cores_and_none_at_all(count_part):
    for parts in (0, 1, 64):
        tally = Tally()
        pool().tw_pool_run(count_part, ctypes.addressof(tally), parts)
        assert sum(tally.runs) == parts


def in_threads(count: int, work) -> list:
    """Run work(0), work(1), ... at once; comes out: the exceptions that were raised."""
    errors, start = [], threading.Barrier(count)

    def body(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_two_threads_may_call_two_kernels_at_once(whole_numbers):
    def work(number: int) -> None:
        kernel, arrays = kernel_of(PRODUCT, 2 + number), whole_numbers(PRODUCT, number)
        packed, want = kernel.pack(arrays), reference(PRODUCT, arrays)
        for _ in range(200):
            assert np.array_equal(answer(kernel, arrays, packed), want)

    assert in_threads(2, work) == []


def test_two_threads_may_call_one_kernel_at_once(whole_numbers, outer_kernel):
    """Scratch belongs to a call, not to the kernel."""
    kernel = outer_kernel
    group = kernel.group

    def work(number: int) -> None:
        arrays = whole_numbers(group, number)
        packed, want = kernel.pack(arrays), reference(group, arrays)
        for _ in range(200):
            assert np.array_equal(answer(kernel, arrays, packed), want)

    assert in_threads(2, work) == []


def test_every_part_runs_once_when_callers_collide(count_part):
    def work(number: int) -> None:
        for _ in range(500):
            tally = Tally(spin=50)
            pool().tw_pool_run(count_part, ctypes.addressof(tally), 4 + number)
            assert sum(tally.runs) == 4 + number
            assert max(tally.runs) == 1

    assert in_threads(3, work) == []


def in_child(work) -> int:
    """Fork, do the work in the child; comes out: its exit code."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError('the child never ended')


@pytest.mark.filterwarnings('ignore:.*multi-threaded.*fork:DeprecationWarning')
def test_a_child_after_fork_has_a_working_pool(whole_numbers):
    kernel, arrays = kernel_of(PRODUCT, 3), whole_numbers(PRODUCT, 1)
    packed, want = kernel.pack(arrays), reference(PRODUCT, arrays)

    def work() -> None:
        for _ in range(50):
            assert np.array_equal(answer(kernel, arrays, packed), want)

    work()
    assert in_child(work) == 0
    assert in_child(lambda: in_child(work) == 0 or os._exit(2)) == 0
    work()


@pytest.mark.filterwarnings('ignore:.*multi-threaded.*fork:DeprecationWarning')
def test_fork_while_another_thread_runs_a_kernel(count_part):
    """The child may inherit a run that is half done; it must start from nothing."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            tally = Tally(spin=20000)
            pool().tw_pool_run(count_part, ctypes.addressof(tally), 6)

    def work() -> None:
        for _ in range(50):
            tally = Tally(spin=2000)
            pool().tw_pool_run(count_part, ctypes.addressof(tally), 4)
            assert list(tally.runs[:5]) == [1, 1, 1, 1, 0]

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert [in_child(work) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize('limit', [0, 1, 200])
def test_workers_park_and_wake(count_part, limit):
    """A limit of 0 parks at once, so that every run has to wake somebody."""
    pool().tw_pool_spin(limit)
    try:
        for number in range(30):
            tally = Tally(spin=100)
            pool().tw_pool_run(count_part, ctypes.addressof(tally), 4)
            assert list(tally.runs[:5]) == [1, 1, 1, 1, 0]
            if number % 10 == 9:
                time.sleep(0.05)  # long enough for every worker to fall asleep
    finally:
        pool().tw_pool_spin(200)
