"""Pages: counted by hand for boxes of a small tensor, and the two levels of misses."""

import pytest

from tilewright.model.cpu.pages import (
    FIRST_PAGES,
    PAGE_BYTES,
    PAGE_WORDS,
    SECOND_PAGES,
    first_misses,
    pages,
    second_misses,
)
from tilewright.model.cpu.working_set import Loop, boxes
from tilewright.ops.group import Tensor
from tilewright.ops.stage import Access, var

OUT = Access('Out', (var('k'), var('h'), var('w')))
SLACK = (PAGE_WORDS - 1) / PAGE_WORDS  # a range that begins anywhere ends on one page more


def image(k: int, h: int, w: int) -> Tensor:
    return Tensor('Out', ('k', 'h', 'w'), (k, h, w), 'output')


@pytest.mark.parametrize(
    ('box', 'count'),
    [
        ({'k': 1, 'h': 1, 'w': 1}, 1),
        ({'k': 1, 'h': 1, 'w': 512}, 0.5 + SLACK),
        ({'k': 3, 'h': 1, 'w': 512}, 3 * (0.5 + SLACK)),  # planes lie apart
        ({'k': 1, 'h': 2, 'w': 512}, 1 + SLACK),  # rows are neighbours
        ({'k': 1, 'h': 8, 'w': 1}, (7 * 512 + 1) / PAGE_WORDS + SLACK),  # the range around them
        ({'k': 4, 'h': 64, 'w': 512}, 4 * 32 + SLACK),  # everything
    ],
)
def test_pages_of_a_box(box, count):
    assert pages(OUT, image(4, 64, 512), box) == pytest.approx(count)


def test_a_walk_within_the_first_level_costs_nothing():
    assert first_misses(FIRST_PAGES, PAGE_BYTES, 1, 1000) == 0
    assert first_misses(2 * FIRST_PAGES, PAGE_BYTES / 2, 1, 1000) == 0
    beyond = FIRST_PAGES + 1
    assert first_misses(beyond, PAGE_BYTES, 1, 1000) == 1000 * beyond


def test_results_that_stay_translated_cost_nothing():
    loops = [Loop('h', 64, 1)]
    nested = boxes(loops, {'k': 4, 'h': 1, 'w': 512})
    assert second_misses(OUT, image(4, 64, 512), loops, nested) == 0


def test_cutting_rows_of_a_large_result_costs_walks():
    """Columns outside, rows inside: every page is come to again for each piece of its rows."""
    tensor = image(64, 512, 512)
    assert pages(OUT, tensor, {'k': 64, 'h': 512, 'w': 512}) > SECOND_PAGES
    whole = [Loop('h', 512, 1)]
    cut = [Loop('w', 512, 128), Loop('h', 512, 1)]
    found = [
        second_misses(OUT, tensor, loops, boxes(loops, {'k': 64, 'h': 1, 'w': width}))
        for loops, width in ((whole, 512), (cut, 128))
    ]
    assert found[0] == pytest.approx(64 * (512 * 0.5 + SLACK))
    assert found[1] > 3 * found[0]
