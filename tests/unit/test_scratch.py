"""Threads that worked in another place for every kernel would fetch it from each other's caches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.kernels.cpu.scratch import LINE_BYTES, Scratch, rooms

KERNELS = st.lists(
    st.tuples(st.integers(1, 64), st.integers(0, 1 << 16).map(lambda n: n * LINE_BYTES)), max_size=8
)


@given(KERNELS)
def test_a_part_has_the_same_memory_in_every_kernel(kernels: list[tuple[int, int]]) -> None:
    made = Scratch.of(kernels)
    for parts, size in kernels:
        begins = [part * (size + made.shift(parts, size)) for part in range(parts)]
        assert begins == [part * made.step for part in range(parts)] or not size
        assert parts == 1 or made.step >= size  # and ends before the next one begins
        assert begins[-1] + size == made.end(parts, size) <= made.bytes


@given(KERNELS)
def test_there_is_no_more_than_the_largest_part_wants(kernels: list[tuple[int, int]]) -> None:
    made = Scratch.of(kernels)
    several = [size for parts, size in kernels if parts > 1]
    assert made.step <= max(several, default=0) + 2 * LINE_BYTES
    assert made.bytes == max((made.end(*kernel) for kernel in kernels), default=0)


def test_parts_that_share_their_memory_are_not_moved() -> None:
    kernels = [rooms(2, 640, shared=True), rooms(2, 6400, shared=False)]
    made = Scratch.of(kernels)
    assert kernels[0] == (1, 1280)
    assert made.shift(*kernels[0]) == 0
    assert made.shift(*kernels[1]) > 0
    assert made.bytes >= 2 * 6400
