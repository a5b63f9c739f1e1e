"""Random data, poison, the clamped relative difference, and guarded arrays."""

import ctypes
import faulthandler
import math
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import ArrayError
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.integer import integer_products
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.runtime import verify
from tilewright.runtime.verify import (
    Oracle,
    compare,
    guarded_empty,
    poison,
    random_arrays,
    timed_arrays,
)

GROUP = matmul(m=2, n=3, k=4)


def test_random_arrays_are_float32_of_order_one_and_follow_the_seed():
    group = conv2d(c=3, h=5, w=5, k=4, r=3, s=3, bias=True, activation='relu')
    arrays = random_arrays(group, 7)
    assert set(arrays) == {'In', 'Ker', 'Bias'}
    for name, array in arrays.items():
        assert array.dtype == np.float32
        assert array.shape == group.tensor(name).shape
        assert np.abs(array).min() >= 0.25
        assert np.abs(array).max() <= 1.0
    assert (arrays['Ker'] > 0).any()
    assert (arrays['Ker'] < 0).any()
    again, other = random_arrays(group, 7), random_arrays(group, 8)
    assert all(np.array_equal(arrays[n], again[n]) for n in arrays)
    assert not any(np.array_equal(arrays[n], other[n]) for n in arrays)


def of_bytes(image: str, zero: int) -> Group:
    group = integer_products(conv2d(c=64, k=8, h=20, w=20, r=1, s=1), zero)
    kinds = {'In': image, 'Ker': 'i8'}
    tensors = tuple(replace(t, dtype=kinds.get(t.name, t.dtype)) for t in group.tensors)
    return replace(group, tensors=tensors)


@pytest.mark.parametrize('image', ['u8', 'i8'])
def test_products_of_bytes_are_timed_with_images_as_networks_have_them(image: str) -> None:
    """Their time depends on how many numbers are large: with small ones some kernels only seem
    fast. Behind a ReLU half are 0 and few groups of four are too large; around the middle most.
    """
    ends = np.iinfo({'u8': np.uint8, 'i8': np.int8}[image])
    for zero in (int(ends.min), int(ends.min) + 128):
        group = of_bytes(image, zero)
        arrays = random_arrays(group, 3)
        timed = timed_arrays(group, arrays, 3)
        assert timed['Ker'] is arrays['Ker']
        made = timed['In']
        assert made.dtype == ends.dtype
        assert made.shape == arrays['In'].shape
        assert not made.flags.writeable
        stored = made.astype(int) - int(ends.min)
        large = np.mean(stored.reshape(-1, 4, 4, 100).sum(1) > 256)
        if zero == ends.min:
            assert 0.4 < np.mean(stored == 0) < 0.6
            assert 0.005 < large < 0.1
        else:
            assert abs(stored.mean() - 128) < 2
            assert large > 0.9
        again, other = timed_arrays(group, arrays, 3), timed_arrays(group, arrays, 4)
        assert np.array_equal(made, again['In'])
        assert not np.array_equal(made, other['In'])


def test_floats_are_timed_as_they_are_checked() -> None:
    arrays = random_arrays(GROUP, 1)
    assert timed_arrays(GROUP, arrays, 1) is arrays


def test_poison_is_nan_with_one_bit_pattern():
    array = poison(np.empty((2, 3), np.float32))
    assert np.isnan(array).all()
    assert len(set(array.view(np.uint32).ravel().tolist())) == 1


def test_a_rounded_reference_is_right_and_its_error_is_a_share_of_the_largest():
    want = np.array([[8.0, 1.0, -2.0], [0.0, 4.0, 1.0]])
    got = want.astype(np.float32)
    assert compare(GROUP, got, want) == verify.Comparison(True, 0.0)
    got[0, 1] += 2.0**-10
    found = compare(GROUP, got, want)
    assert found.ok
    assert found.max_rel_err == 2.0**-10 / 8.0


def test_large_values_are_judged_relatively_small_ones_absolutely():
    # Root mean square of the reference: sqrt((4 * 0 + 2 * 300) / 6) = 10.
    want = np.array([[0.0, 0.0, 0.0], [0.0, math.sqrt(300), math.sqrt(300)]])
    got = want.copy()
    got[0, 0] = 0.0099  # clamped to 10: 9.9e-4
    assert compare(GROUP, got, want).ok
    got[0, 0] = 0.0101
    found = compare(GROUP, got, want)
    assert not found.ok
    assert found.where == (0, 0)
    got[0, 0] = 0.0
    got[1, 2] = want[1, 2] * (1 + 0.99e-3)
    assert compare(GROUP, got, want).ok
    got[1, 2] = want[1, 2] * (1 + 1.01e-3)
    assert compare(GROUP, got, want).where == (1, 2)
    assert compare(GROUP, got, want, tolerance=1e-2).ok


def test_results_of_networks_are_judged_by_a_larger_tolerance_than_kernels_are_chosen_by():
    """A hundred kernels at the budget of one must not make a network wrong."""
    rng = np.random.default_rng(0)
    want = {'y': rng.standard_normal(1000).astype(np.float32)}
    kernels = 1e-4 * np.sqrt(100)
    off = want['y'] * np.float32(1 + 0.99 * kernels)
    assert verify.compare_results({'y': off}, want).ok
    found = verify.compare_results({'y': want['y'] * np.float32(1 + 2 * kernels)}, want)
    assert not found.ok
    assert 'the tolerance is 0.001' in found.message
    assert not verify.compare_results({'y': off}, want, tolerance=1e-4).ok


@pytest.mark.parametrize('seed', range(5))
def test_a_map_of_small_probabilities_is_not_judged_by_its_largest(seed):
    """Sigmoid as libraries compute it, 1/2 + p(x)/q(x), is right to 1.2e-7 and no better: more
    than 1e-3 of the largest value. A map that is wrong is still told apart.
    """
    rng = np.random.default_rng(seed)
    exact = 1 / (1 + np.exp(rng.uniform(9.3, 14, 1000)))
    want = {'map': exact.astype(np.float32)}
    got = {'map': (exact + 1.2e-7 * rng.uniform(-1, 1, exact.size)).astype(np.float32)}
    assert want['map'].max() < 1e-4
    found = verify.compare_results(got, want)
    assert found.max_rel_err > 1e-3
    assert found.ok
    for wrong in (np.roll(want['map'], 1), 2 * want['map'], 0 * want['map']):
        assert not verify.compare_results({'map': wrong}, want).ok


def test_results_that_are_missing_or_of_another_type_are_wrong():
    want = {'y': np.array([1.0, -4.0], np.float32)}
    assert verify.compare_results({'y': want['y'].copy()}, want) == verify.Comparison(True, 0.0)
    for wrong in (
        {'y': np.array([1.0, np.nan], np.float32)},
        {'y': np.array([1.0, np.inf], np.float32)},
        {'y': np.array([1.0], np.float32)},
        {'y': np.array([1.0, -4.0])},
        {'z': want['y']},
        {'y': want['y'], 'z': want['y']},
        {'y': poison(np.empty(2, np.float32))},
    ):
        found = verify.compare_results(wrong, want)
        assert (found.ok, found.max_rel_err, found.error) == (False, math.inf, math.inf)
        assert found.message


def test_of_several_results_the_wrong_one_is_named():
    want = {'a': np.ones(3, np.float32), 'b': np.ones(3, np.float32), 'n': np.arange(3)}
    got = {'a': want['a'] * np.float32(1.0005), 'b': want['b'] * np.float32(1.1), 'n': want['n']}
    assert verify.compare_results(got, want).message.startswith('b is 1.1')
    got = want | {'n': np.array([0, 1, 3])}
    assert verify.compare_results(got, want).message.startswith('n is 3 at index (2,)')


def test_the_message_of_a_wrong_answer_names_index_values_and_tolerance():
    want = np.ones((2, 3))
    got = want.astype(np.float32)
    got[1, 0] = 1.5
    found = compare(GROUP, got, want)
    assert found.message == (
        'C is 1.5 at index (1, 0), expected 1: a relative difference of 0.33, '
        'the tolerance is 0.001'
    )
    assert found.max_rel_err == 0.5


def test_poison_left_over_is_reported_as_not_written():
    got = np.ones((2, 3), np.float32)
    poison(got[1:])
    got[1, 0] = 1
    found = compare(GROUP, got, np.ones((2, 3)))
    assert not found.ok
    assert found.where == (1, 1)
    assert found.message == 'not written at index (1, 1) (2 of 6 elements)'


def test_adding_to_poison_is_told_apart_from_not_writing():
    got = poison(np.empty((2, 3), np.float32))
    with np.errstate(invalid='ignore'):
        got += 1
    found = compare(GROUP, got, np.ones((2, 3)))
    assert found.message.startswith('made from memory that was never written at index (0, 0)')


@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan])
def test_a_value_that_is_not_finite_is_wrong(value):
    got = np.ones((2, 3), np.float32)
    got[0, 2] = value
    found = compare(GROUP, got, np.ones((2, 3)))
    assert not found.ok
    assert found.where == (0, 2)
    assert found.max_rel_err == math.inf


def test_special_values_that_the_reference_has_too_are_right():
    want = np.array([[np.inf, np.nan, 1.0], [-np.inf, 2.0, 3.0]])
    assert compare(GROUP, want.astype(np.float32), want).ok
    got = want.copy()
    got[0, 1] = 0.0
    assert compare(GROUP, got, want).where == (0, 1)
    got = want.copy()
    got[1, 0] = np.inf
    assert compare(GROUP, got, want).where == (1, 0)


def test_an_output_that_is_zero_everywhere_must_be_exactly_zero():
    want = np.zeros((2, 3))
    assert compare(GROUP, np.zeros((2, 3), np.float32), want).ok
    assert not compare(GROUP, np.full((2, 3), 1e-30, np.float32), want).ok


def test_another_shape_is_refused():
    with pytest.raises(ArrayError, match=r'shape \(3, 2\), expected \(2, 3\)'):
        compare(GROUP, np.zeros((3, 2), np.float32), np.zeros((2, 3)))


def test_float32_sums_pass_and_a_lost_term_fails():
    """The largest reduction of the suites, 512 channels of 3 x 3: rounding is far inside the
    tolerance, one product of 4608 left out is outside."""
    group = conv2d(c=512, h=5, w=5, k=8, r=3, s=3)
    arrays = random_arrays(group, 11)
    want = reference(group, arrays)
    got = np.zeros(group.output.shape, np.float32)
    for c in range(512):  # one product after another, in float32
        for r, s in np.ndindex(3, 3):
            window = arrays['In'][0, c, r : r + 3, s : s + 3]
            got[0] += arrays['Ker'][:, c, r, s, None, None] * window
    found = compare(group, got, want)
    assert found.ok
    assert found.max_rel_err < 1e-5
    got[0, 3, 1, 1] -= arrays['Ker'][3, 100, 2, 0] * arrays['In'][0, 100, 3, 1]
    assert compare(group, got, want).where == (0, 3, 1, 1)


@pytest.mark.parametrize(
    ('index', 'value'),
    [(0, 0.0), (1, 1e-4), (1, 1.0), (2, 5.0), (0, np.nan), (1, np.inf), (2, 3e-3)],
)
def test_the_oracle_says_what_compare_says(index, value):
    want = np.linspace(-1, 2, 6).reshape(2, 3)
    got = want.astype(np.float32)
    got[1, index] += np.float32(value)
    assert Oracle.of(GROUP, want).judge(got) == compare(GROUP, got, want)
    zero = Oracle.of(GROUP, np.zeros((2, 3)))
    assert zero.judge(np.zeros((2, 3), np.float32)).ok
    assert zero.judge(poison(got)).message == 'not written at index (0, 0) (6 of 6 elements)'


def _ended_by(action) -> int:
    """The signal that ends a forked child in which `action` runs (0: none)."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        try:
            action()
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def _poke(address: int, *, write: bool):
    cell = ctypes.c_char.from_address(address)
    if write:
        cell.value = b'x'
    else:
        _ = cell.value


@pytest.mark.filterwarnings('ignore:This process')  # fork with threads, from Python 3.12
def test_pages_that_others_share_are_not_frozen():
    """A page of the heap stays writable, also where an array happens to begin with it."""
    page = os.sysconf('SC_PAGESIZE')
    whole = np.zeros(3 * page, np.uint8)
    first = -whole.ctypes.data % page
    aligned = whole[first : first + page]
    frozen = verify.freeze(aligned)
    assert frozen.ctypes.data % page == 0
    assert not frozen.flags.writeable
    assert _ended_by(lambda: _poke(frozen.ctypes.data, write=True)) == 0


@pytest.mark.filterwarnings('ignore:This process')  # fork with threads, from Python 3.12
def test_guarded_arrays_stop_what_runs_past_them():
    array = guarded_empty((1024,))  # one page
    start = array.ctypes.data
    array[:] = 1
    assert _ended_by(lambda: _poke(start, write=True)) == 0
    assert _ended_by(lambda: _poke(start + 4096 - 1, write=True)) == 0
    assert _ended_by(lambda: _poke(start - 1, write=False)) == signal.SIGSEGV
    page = os.sysconf('SC_PAGESIZE')
    assert _ended_by(lambda: _poke(start + max(page, 4096), write=False)) == signal.SIGSEGV
    verify.freeze(array)
    assert _ended_by(lambda: _poke(start, write=False)) == 0
    assert _ended_by(lambda: _poke(start, write=True)) == signal.SIGSEGV
    with pytest.raises(ValueError, match='read-only'):
        array[0] = 2
