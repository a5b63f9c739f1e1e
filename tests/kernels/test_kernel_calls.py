"""What a built kernel accepts, what it copies, and what it refuses: one sentence, never a crash."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tilewright.errors import ArrayError, CheckError
from tilewright.machine.compiler import build
from tilewright.machine.measure import load_machine
from tilewright.ops.convolution import conv2d
from tilewright.ops.reference import reference
from tilewright.runtime import array_layout
from tilewright.runtime.callable import BuiltGroup
from tilewright.runtime.cpu import calls
from tilewright.runtime.cpu.calls import MOST_KEPT, Results, aligned_empty
from tilewright.runtime.cpu.kernel import Kernel, as_operand
from tilewright.search.cpu.rank import rank
from tilewright.targets.plan import Candidate, Plan


@pytest.fixture
def arrays(outer_kernel, whole_numbers):
    return whole_numbers(outer_kernel.group, 5)


@pytest.fixture
def want(outer_kernel, arrays):
    return reference(outer_kernel.group, arrays)


def misaligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at an odd address."""
    raw = np.empty(array.nbytes + 1, np.uint8)
    copy = raw[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert not copy.flags.aligned
    return copy


def run(kernel: Kernel, arrays: dict, out: np.ndarray | None = None) -> np.ndarray:
    out = np.full(kernel.group.output.shape, np.nan, np.float32) if out is None else out
    kernel.run(arrays, kernel.pack(arrays), out)
    return out


ACCEPTED = {
    'float32': lambda a: a,
    'float64': lambda a: a.astype(np.float64),
    'float16': lambda a: a.astype(np.float16),
    'int8': lambda a: a.astype(np.int8),
    'int64': lambda a: a.astype(np.int64),
    'big-endian': lambda a: a.astype('>f4'),
    'fortran': np.asfortranarray,
    'transposed': lambda a: np.ascontiguousarray(a.T).T,
    'reversed': lambda a: a[..., ::-1].copy()[..., ::-1],
    'strided': lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    'misaligned': misaligned,
    'read-only': lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    'list': lambda a: a.tolist(),
    'cache line offset': lambda a: aligned_empty((a.size + 1,))[1:].reshape(a.shape),
}


@pytest.mark.parametrize('tensor', ['In', 'Ker', 'Bias'])
@pytest.mark.parametrize('how', ACCEPTED)
def test_other_kinds_of_arrays_are_copied(outer_kernel, arrays, want, tensor, how):
    given = ACCEPTED[how](arrays[tensor])
    if how == 'cache line offset':
        given[...] = arrays[tensor]
    before = np.array(given)
    got = run(outer_kernel, arrays | {tensor: given})
    assert np.array_equal(got, want)
    assert np.array_equal(np.array(given), before)


@pytest.mark.parametrize('tensor', ['In', 'Ker', 'Bias'])
@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (lambda a: a[..., :-1], 'has shape'),
        (lambda a: a[None], 'has shape'),
        (lambda a: a.reshape(-1)[0], 'has shape'),
        (lambda a: None, 'has shape'),
        (lambda a: a.astype(complex), 'has dtype complex128'),
        (lambda a: a.astype(str), 'has dtype'),
        (lambda a: a.astype(object), 'has dtype object'),
    ],
)
def test_what_cannot_be_meant_is_refused(outer_kernel, arrays, tensor, change, says):
    with pytest.raises(ArrayError, match=f'{tensor} {says}') as caught:
        run(outer_kernel, arrays | {tensor: change(arrays[tensor])})
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('tensor', ['In', 'Ker', 'Bias'])
def test_a_missing_array_is_named(outer_kernel, arrays, tensor):
    rest = {name: array for name, array in arrays.items() if name != tensor}
    with pytest.raises(ArrayError, match=f'needs {tensor} of shape'):
        run(outer_kernel, rest)


@pytest.mark.parametrize(
    'change',
    [
        lambda out: out[:, :, :, :-1],
        lambda out: out.astype(np.float64),
        lambda out: out.astype('>f4'),
        lambda out: out[..., ::-1],
        np.asfortranarray,
        misaligned,
    ],
)
def test_an_output_that_cannot_be_written_directly_is_refused(outer_kernel, arrays, change):
    """A copy would be written instead, and the caller would never see it."""
    out = change(np.zeros(outer_kernel.group.output.shape, np.float32))
    with pytest.raises(ArrayError, match='out '):
        run(outer_kernel, arrays, out)
    assert not out.any()


def test_a_read_only_output_is_refused(outer_kernel, arrays):
    out = np.zeros(outer_kernel.group.output.shape, np.float32)
    out.setflags(write=False)
    with pytest.raises(ArrayError, match='writeable'):
        run(outer_kernel, arrays, out)
    assert not out.any()


def test_an_output_inside_a_larger_array_leaves_the_rest_alone(outer_kernel, arrays, want):
    shape = outer_kernel.group.output.shape
    whole = np.full((shape[0] + 2, *shape[1:]), 7.0, np.float32)
    run(outer_kernel, arrays, whole[1:-1])
    assert np.array_equal(whole[1:-1], want)
    assert (whole[[0, -1]] == 7.0).all()


def test_inputs_and_constants_are_left_alone(outer_kernel, arrays):
    before = {name: array.copy() for name, array in arrays.items()}
    run(outer_kernel, arrays)
    for name, array in arrays.items():
        assert np.array_equal(array, before[name])


def test_one_kernel_serves_several_sets_of_constants(outer_kernel, whole_numbers):
    group = outer_kernel.group
    sets = [whole_numbers(group, seed) for seed in range(3)]
    packed = [outer_kernel.pack(arrays) for arrays in sets]
    for arrays, constants in zip(sets, packed, strict=True):
        out = np.full(group.output.shape, np.nan, np.float32)
        outer_kernel.run(arrays, constants, out)
        assert np.array_equal(out, reference(group, arrays))


def test_times_are_positive_and_the_result_is_still_right(outer_kernel, arrays, want):
    out = np.full(outer_kernel.group.output.shape, np.nan, np.float32)
    packed = outer_kernel.pack(arrays)
    seconds = outer_kernel.time(arrays, packed, out, repeats=3)
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert np.array_equal(out, want)


def test_operands_that_are_ready_are_not_copied(outer_kernel):
    tensor = outer_kernel.group.tensor('In')
    ready = np.zeros(tensor.shape, np.float32)
    assert as_operand(tensor, ready) is ready


def test_a_library_that_is_not_a_kernel_is_refused(outer_kernel, tmp_path):
    with pytest.raises(CheckError, match='cannot be loaded'):
        Kernel.load(build('int nothing;\n', name='nothing'), outer_kernel.group)
    broken = tmp_path / 'broken.so'
    broken.write_bytes(b'not a library')
    with pytest.raises(CheckError, match=r'broken\.so'):
        Kernel.load(broken, outer_kernel.group)


@pytest.mark.parametrize('shift', [0, 1, 3 * 36, -36])
def test_out_that_overlaps_an_input_is_no_trap(whole_numbers, shift):
    """The output is written over its own input, or some elements beside it; again and again."""
    group = conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1)
    machine, _ = load_machine(measure=False)
    ranked = rank(group, machine, 1, 1)[0]
    plan = Plan(group, machine, 1, (Candidate(ranked.schedule, ranked.prediction),))
    arrays = whole_numbers(group, 7)
    conv = plan.build(weights=arrays['Ker'])
    size = arrays['In'].size
    buffer = np.zeros(3 * size, np.float32)
    x = buffer[size : 2 * size].reshape(arrays['In'].shape)
    out = x if shift == 0 else buffer[size + shift : 2 * size + shift].reshape(x.shape)
    for _ in range(3):
        x[...] = arrays['In']
        conv(x, out=out)
        np.testing.assert_array_equal(out, reference(group, arrays))


def test_what_was_not_packed_by_this_kernel_is_refused(outer_kernel, arrays):
    out = np.empty(outer_kernel.group.output.shape, np.float32)
    short = outer_kernel.pack(arrays)[:-16]
    with pytest.raises(ArrayError, match='what pack'):
        outer_kernel.run(arrays, short, out)
    with pytest.raises(ArrayError, match='numpy array'):
        outer_kernel.run(arrays, outer_kernel.pack(arrays), [1.0])  # type: ignore[arg-type]
    with pytest.raises(ArrayError, match='not an array'):
        outer_kernel.run({**arrays, 'In': [[1.0], [2.0, 3.0]]}, outer_kernel.pack(arrays), out)


def built(outer_kernel: Kernel, arrays: dict) -> BuiltGroup:
    constants = {t.name: arrays[t.name] for t in outer_kernel.group.with_role('constant')}
    return BuiltGroup(outer_kernel, outer_kernel.group, constants)


def test_arrays_that_are_ready_take_the_short_way(outer_kernel, arrays, want):
    """Any array that kernels can use is checked in C, the same or another."""
    conv = built(outer_kernel, arrays)
    for x in (arrays['In'], arrays['In'].copy(), np.array(arrays['In'])[:]):
        out = np.empty(want.shape, np.float32)
        assert conv._calls.run((x, out))
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(conv(x), want)


def test_all_other_arrays_are_looked_at(outer_kernel, arrays, want):
    conv = built(outer_kernel, arrays)
    x, out = arrays['In'], np.empty(want.shape, np.float32)

    class Other(np.ndarray):
        """Of another type."""

    apart = np.empty((*x.shape[:-1], 2 * x.shape[-1]), np.float32)[..., ::2]
    strange = (
        x.astype(np.float64), x[..., :-1], x[None], apart, x.view(Other), x.tolist(), None,
        x.astype('>f4'), memoryview(x),
    )  # fmt: skip
    assert not any(conv._calls.run((item, out)) for item in strange)
    assert not conv._calls.run((x,))
    assert not conv._calls.run((x, x, out))
    assert not conv._calls.run((x, out[:, ::-1]))
    out.flags.writeable = False
    assert not conv._calls.run((x, out))
    with pytest.raises(ArrayError, match='writeable'):
        conv(x, out=out)
    both = np.zeros(x.size + want.size - 1, np.float32)
    overlap = (both[: x.size].reshape(x.shape), both[x.size - 1 :].reshape(want.shape))
    assert not conv._calls.run(overlap)


class OnlyDlpack:
    """Has memory, and no other way to it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_other_arrays_are_read_where_they_are(outer_kernel, arrays, want):
    x, conv = arrays['In'], built(outer_kernel, arrays)
    (tensor,) = outer_kernel.group.with_role('input')
    for given in (OnlyDlpack(x), memoryview(x)):
        assert as_operand(tensor, given).ctypes.data == x.ctypes.data
        np.testing.assert_array_equal(conv(given), want)


def test_memory_of_a_result_is_used_again_when_nobody_holds_it():
    """Else a caller would see a result change, or every call would pay for new pages."""
    results = Results((3, 5), np.float32)
    first = results.new()
    place, part = first.ctypes.data, first[1:, ::2]
    assert place % calls.ALIGNMENT == 0
    del first
    second = results.new()
    assert second.ctypes.data != place  # a view of the first is held
    del part
    assert results.new().ctypes.data == place
    view = memoryview(results.new())
    assert results.new().ctypes.data != place
    del view
    held = [results.new() for _ in range(3 * MOST_KEPT)]
    assert len({array.ctypes.data for array in held}) == len(held)
    assert len(results._kept) == MOST_KEPT


def test_results_that_are_held_do_not_change(outer_kernel, arrays, want):
    conv = built(outer_kernel, arrays)
    held = [conv(number * arrays['In']) for number in range(2 * MOST_KEPT)]
    for number, result in enumerate(held):
        np.testing.assert_array_equal(
            result, reference(outer_kernel.group, {**arrays, 'In': number * arrays['In']})
        )


# What Python can do to an array that stays the same object.
CHANGES_IN_PLACE = {
    'strides': lambda a: setattr(a, 'strides', (*a.strides[:-1], 0)),
    'strides of rows': lambda a: setattr(a, 'strides', (*a.strides[:-2], 0, a.strides[-1])),
    'shape': lambda a: setattr(a, 'shape', a.shape[::-1]),
    'rank': lambda a: setattr(a, 'shape', (1, *a.shape)),
    'dtype': lambda a: setattr(a, 'dtype', np.int32),
    'byte order': lambda a: setattr(a, 'dtype', np.dtype('>f4')),
    'memory': lambda a: a.__setstate__((1, a.shape, a.dtype, False, a[::-1].tobytes())),
}


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('how', CHANGES_IN_PLACE)
def test_an_input_that_was_changed_in_place_is_looked_at_again(outer_kernel, arrays, want, how):
    """Else the memory of the call before is read: an answer to another question."""
    conv = built(outer_kernel, arrays)
    x, out = arrays['In'].copy(), np.empty(want.shape, np.float32)
    conv(x, out=out)
    CHANGES_IN_PLACE[how](x)
    out.fill(np.nan)
    if x.shape != arrays['In'].shape:
        with pytest.raises(ArrayError, match='In has shape'):
            conv(x, out=out)
        assert np.isnan(out).all()
        return
    x[...] = 2 * arrays['In']  # whole numbers, however they are read
    conv(x, out=out)
    np.testing.assert_array_equal(out, reference(outer_kernel.group, {**arrays, 'In': x}))


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize('how', CHANGES_IN_PLACE)
def test_an_output_that_was_changed_in_place_is_looked_at_again(outer_kernel, arrays, want, how):
    conv = built(outer_kernel, arrays)
    x, out = arrays['In'].copy(), np.empty(want.shape, np.float32)
    conv(x, out=out)
    if how == 'memory':
        out.__setstate__((1, out.shape, out.dtype, False, bytes(out.nbytes)))
        np.testing.assert_array_equal(conv(x, out=out), want)
        return
    CHANGES_IN_PLACE[how](out)
    with pytest.raises(ArrayError, match='out has shape'):
        conv(x, out=out)


def test_memory_that_was_exchanged_is_not_written(outer_kernel, arrays, want):
    """The memory that an output had before may belong to somebody else by now."""
    conv = built(outer_kernel, arrays)
    x, pages = arrays['In'].copy(), bytearray(4 * want.size)
    out = np.frombuffer(pages, np.float32).reshape(want.shape)
    conv(x, out=out)
    out.__setstate__((1, out.shape, out.dtype, False, bytes(out.nbytes)))
    pages[:] = bytes(len(pages))
    np.testing.assert_array_equal(conv(x, out=out), want)
    assert not any(pages)


def test_where_arrays_cannot_be_looked_into_every_call_is_checked(
    outer_kernel, arrays, want, monkeypatch
):
    monkeypatch.setattr(calls, 'is_laid_out_so', lambda: False)
    conv = built(outer_kernel, arrays)
    x, out = arrays['In'].copy(), np.empty(want.shape, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(conv(x, out=out), want)
        assert not conv._calls.run((x, out))


def test_the_fields_of_an_array_are_where_they_are_looked_for():
    """A numpy with another layout would lose the short way."""
    assert array_layout.is_laid_out_so()


def test_a_converted_input_is_converted_every_time(outer_kernel, arrays, want):
    conv = built(outer_kernel, arrays)
    x, out = arrays['In'].astype(np.float64), np.empty(want.shape, np.float32)
    conv(x, out=out)
    x *= 2
    doubled = reference(outer_kernel.group, {**arrays, 'In': x})
    np.testing.assert_array_equal(conv(x, out=out), doubled)


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork on this system')
@pytest.mark.filterwarnings('ignore:.*multi-threaded:DeprecationWarning')
@pytest.mark.parametrize('again', [False, True])
def test_a_forked_child_computes_what_its_parent_does(
    outer_kernel, arrays, want, agrees_in_children, again
):
    """Also while another thread of the parent holds the kernel."""
    conv = built(outer_kernel, arrays)
    x, out = arrays['In'].copy(), np.empty(want.shape, np.float32) if again else None
    agrees_in_children(lambda: conv(x, out=out))
