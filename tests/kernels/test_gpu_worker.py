"""Candidates in a process of their own: whatever one does, it is an answer, and the next one works.

On the host dialect, so that no GPU and no OpenCL is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from marks import needs_nvrtc

import tilewright as tw
from tilewright.errors import InputError, MissingError
from tilewright.ops.reference import reference
from tilewright.runtime.gpu import session as gpu_session
from tilewright.runtime.gpu.build import read
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.store.records import Store
from tilewright_lab.compare.gpu_compiler import Compiler, build
from tilewright_lab.compare.gpu_layers import GpuBench, GpuOptions

GROUP = tw.conv2d(c=4, h=8, w=8, k=8, r=3, s=3, pad=1)
GOOD = GpuSchedule.of('general', threads=64)
SESSION = (str(Path(__file__).parents[1] / 'clib' / 'gpu_session.py'),)


@pytest.fixture(scope='module')
def worker() -> Iterator[GpuWorker]:
    with GpuWorker('host', seed=3, time_limit=20, command=SESSION) as made:
        yield made


def test_a_good_candidate_is_checked_and_timed(worker: GpuWorker) -> None:
    answer, said = worker.attempt(GROUP, GOOD, repeats=2)
    assert answer.ok, answer.message
    assert len(answer.samples_ms) == 2
    assert answer.max_rel_err is not None
    assert answer.max_rel_err < 1e-6
    assert said['resources'][0]['kernel'] == 'general_conv2d'


@pytest.mark.parametrize(
    ('kind', 'status', 'part'),
    [
        ('unwritten', 'wrong', 'not written at index'),
        ('wrong', 'wrong', 'a relative difference'),
        ('crashes', 'crashed', 'SIGSEGV'),
        ('refused', 'failed', 'error:'),
        ('hungry', 'failed', 'bytes of shared memory a block'),
        ('nowhere', 'failed', 'is not a GPU schema'),
    ],
)
def test_a_bad_candidate_is_an_answer_and_the_next_one_works(
    worker: GpuWorker, kind: str, status: str, part: str
) -> None:
    answer, _ = worker.attempt(GROUP, GpuSchedule.of(kind), repeats=1)
    assert answer.status == status
    assert part in answer.message
    assert not answer.samples_ms
    assert worker.attempt(GROUP, GOOD, repeats=1)[0].ok


def test_a_kernel_that_never_ends_is_stopped() -> None:
    with GpuWorker('host', seed=3, time_limit=20, command=SESSION) as worker:
        assert worker.attempt(GROUP, GOOD, repeats=1)[0].ok
        worker.time_limit = 1.0
        answer, _ = worker.attempt(GROUP, GpuSchedule.of('endless'), repeats=1)
        assert answer.status == 'hung'
        worker.time_limit = 20.0
        assert worker.attempt(GROUP, GOOD, repeats=1)[0].ok
        assert worker.starts == 2


def test_what_is_missing_is_said_when_the_device_is_opened() -> None:
    with GpuWorker('opencl', 'no such device') as worker, pytest.raises(MissingError) as caught:
        worker.open()
    assert 'OpenCL' in str(caught.value)
    with GpuWorker('vulkan') as worker, pytest.raises(InputError, match='choose one of cuda'):
        worker.open()


def test_the_reference_by_images_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    group = tw.conv2d(n=3, c=4, h=6, w=7, k=5, r=3, s=3, pad=1, bias=True, activation='relu')
    arrays = random_arrays(group, 4)
    monkeypatch.setattr(gpu_session, 'BY_IMAGE_FLOPS', 0)
    np.testing.assert_allclose(
        gpu_session._reference(group, arrays), reference(group, arrays), rtol=0, atol=1e-12
    )


def test_a_judge_sees_one_wrong_element_and_the_poison() -> None:
    arrays = random_arrays(GROUP, 1)
    judge = gpu_session.Judge(GROUP, arrays, 1e-4)
    right = reference(GROUP, arrays).astype(np.float32)
    assert judge.verdict(right)['status'] == 'ok'
    off = right.copy()
    off[0, 7, 7, 7] += 0.1
    assert 'at index (0, 7, 7, 7)' in judge.verdict(off)['message']
    off[0, 7, 7, 7] = np.nan
    assert judge.verdict(off)['status'] == 'wrong'


@pytest.mark.slow
def test_a_layer_is_searched_compared_and_resumed() -> None:
    """All of it on the host: search, store, duel with the fallback; then again from the store."""
    options = GpuOptions('host', peers=('general',), trials=5, rounds=2, repeats=1, finalists=2)
    store = Store(None)
    with GpuBench(options, store, seed=5) as bench:
        first = bench.layer('small', GROUP)
        assert first.tried == 5
        assert first.ours_us is not None
        assert first.ratio('general') is not None
        assert [len(c['samples_us']) for c in first.contestants] == [2] * len(first.contestants)
        count = len(store)
        assert count == 5
        starts = bench.worker.starts
        again = bench.layer('small', GROUP)
        assert {c['schedule']['schema'] for c in again.extra['candidates']}
        assert bench.worker.starts == starts
    written = first.to_json()
    assert written['schedule'] == first.best['settings']['schedule']  # type: ignore[index]
    assert written['bound']['by'] in ('compute', 'L2', 'DRAM')


@needs_nvrtc
def test_kernels_are_compiled_in_processes(tmp_path: Path) -> None:
    tiles = {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 4, 'stages': 2, 'split': 1, 'joint': 0}
    schedule = GpuSchedule.of('tiled', **tiles)
    with Compiler('sm_90', processes=1) as compiler:
        built = compiler.submit(GROUP, schedule).result()
        assert not built.error
        binaries = [read(file) for file in built.files]
        assert all(binary.startswith(b'\x7fELF') for binary, _ in binaries)
        assert all(resources.registers for _, resources in binaries)
        illegal = compiler.submit(GROUP, GpuSchedule.of('tiled', **(tiles | {'tk': 3}))).result()
        assert 'tk divides bk' in illegal.error
    again = build(GROUP.to_json(), schedule.to_json(), 'sm_90', str(tmp_path))
    assert [file[1:] for file in again.files] == [file[1:] for file in built.files]
