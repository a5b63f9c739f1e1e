"""Groups cut into parts: what is one kernel, what is stored between, what can be done ahead."""

from __future__ import annotations

import numpy as np
import pytest
from winograd_stages import lower

import tilewright as tw
from tilewright.ops.describe import group_of
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group, Tensor
from tilewright.ops.normalise import lrn, softmax
from tilewright.ops.parts import depends_on_inputs, parts
from tilewright.ops.pooling import average_pool, max_pool
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import Access, Dim, Stage, affine, call, const, read, var
from tilewright.ops.windows import windows


def names(group: Group) -> list[list[str]]:
    return [[stage.name for stage in part.stages] for part in parts(group)]


IMAGE, SLIDING = (1, 2, 6, 6), windows((6, 6), 3)


def counted_mean() -> Group:
    """A mean whose count is a stage: it needs no input."""
    line, taps = Dim('i', 6), Dim('j', 3, 'reduction')
    at, near = (var('i'),), (affine(('i', 1), ('j', 1), const=-1),)
    lines, here = (Dim('c', 2), line), (var('c'), var('i'))
    stages = [
        Stage('ones', (line,), Access('Ones', at), (), const(1.0)),
        Stage('count', (line, taps), Access('Count', at), (Access('Ones', near),), read(0), 'sum'),
        Stage('sum', (*lines, taps), Access('Sum', here), (Access('In', (var('c'), *near)),),
              read(0), 'sum'),
        Stage('mean', lines, Access('Out', here), (Access('Sum', here), Access('Count', at)),
              call('div', read(0), read(1))),
    ]  # fmt: skip
    return group_of('counted', stages, {'In': (2, 6)})


COUNTED = counted_mean()


@pytest.mark.parametrize(
    ('group', 'cut'),
    [
        (tw.matmul(m=2, n=3, k=4), [['matmul']]),
        (
            tw.conv2d(c=2, h=4, w=4, k=3, r=3, s=3, bias=True, activation='relu'),
            [['conv2d', 'bias', 'relu']],
        ),
        (max_pool(IMAGE, SLIDING), [['max_pool']]),
        (average_pool(IMAGE, SLIDING, 9), [['sum_pool', 'mean']]),
        (COUNTED, [['ones'], ['count'], ['sum', 'mean']]),
        (lrn((1, 4, 3, 3)), [['squares', 'scale']]),
        (softmax((2, 5)), [['peak'], ['total'], ['finish']]),
        (elementwise('add', (2, 3), (3,)), [['add']]),
    ],
)
def test_a_part_is_a_stage_with_its_epilogue(group: Group, cut: list[list[str]]) -> None:
    assert names(group) == cut


def test_parts_compute_the_group() -> None:
    """Each part run on what those before it left; roles say what is given and what is stored."""
    rng = np.random.default_rng(0)
    for group in (COUNTED, softmax((3, 7)), chain()):
        values = {t.name: rng.standard_normal(t.shape) for t in group.with_role('input')}
        want = reference(group, values)
        for part in parts(group):
            given = {t.name for t in part.with_role('input')}
            assert given <= set(values)
            values[part.output.name] = reference(part, values)
        np.testing.assert_array_equal(values[group.output.name], want)


def test_what_needs_no_input_is_known() -> None:
    assert depends_on_inputs(COUNTED) == (False, False, True)
    assert depends_on_inputs(softmax((2, 5))) == (True, True, True)


def test_filters_of_winograd_need_no_input() -> None:
    lowered = lower(tw.conv2d(c=3, h=8, w=8, k=4, r=3, s=3, pad=1), 2)
    moving = dict(zip((c[0] for c in names(lowered)), depends_on_inputs(lowered), strict=True))
    assert not moving['filter_rows']
    assert not moving['filter_columns']
    assert moving['input_rows']


def chain(shift: int = 0, width: int = 6, used_twice: bool = False) -> Group:
    """Square every element, sum windows of three, then add something read beside the result."""
    x, y = Dim('x', 8), Dim('y', 6)
    stages = [
        Stage('square', (x,), Access('S', (var('x'),)), (Access('In', (var('x'),)),),
              call('mul', read(0), read(0))),
        Stage('window', (y, Dim('j', 3, 'reduction')), Access('T', (var('y'),)),
              (Access('S', (affine(('y', 1), ('j', 1)),)),), read(0), 'sum'),
        Stage('finish', (y,), Access('Out', (var('y'),)),
              (Access('T', (var('y'),)), Access('Side', (affine(('y', 1), const=shift),)))
              if not used_twice else (Access('T', (var('y'),)), Access('T', (affine(const=0),))),
              call('add', read(0), read(1))),
    ]  # fmt: skip
    side = () if used_twice else (Tensor('Side', ('y',), (width,)),)
    tensors = (
        Tensor('In', ('x',), (8,)),
        *side,
        Tensor('S', ('x',), (8,), 'inner'),
        Tensor('T', ('y',), (6,), 'inner'),
        Tensor('Out', ('y',), (6,), 'output'),
    )
    return Group('chain', tensors, tuple(stages))


def test_a_stage_before_the_sum_is_a_part() -> None:
    assert names(chain()) == [['square'], ['window', 'finish']]


def test_an_epilogue_reads_inside_and_in_place() -> None:
    """What would need guards, or a value that another thread has, is a part of its own."""
    alone = [['square'], ['window'], ['finish']]
    assert names(chain(shift=1)) == alone
    assert names(chain(shift=1, width=7)) == [['square'], ['window', 'finish']]
    assert names(chain(used_twice=True)) == alone


def test_a_value_that_others_read_is_stored() -> None:
    x = (Dim('x', 4),)
    here = (var('x'),)
    first = Stage('first', x, Access('A', here), (Access('In', here),), call('neg', read(0)))
    second = Stage('second', x, Access('B', here), (Access('A', here),), call('exp', read(0)))
    turned = Stage(
        'third', (Dim('i', 3),), Access('Out', (var('i'),)),
        (Access('A', (affine(('i', 1), const=1),)), Access('B', (var('i'),))),
        call('add', read(0), call('mul', read(1), const(2.0))),
    )  # fmt: skip
    tensors = (
        Tensor('In', ('x',), (4,)),
        Tensor('A', ('x',), (4,), 'inner'),
        Tensor('B', ('x',), (4,), 'inner'),
        Tensor('Out', ('i',), (3,), 'output'),
    )
    assert names(Group('shared', tensors, (first, second, turned))) == [
        ['first'], ['second'], ['third']
    ]  # fmt: skip


def test_the_main_stage_is_the_largest_sum() -> None:
    assert COUNTED.main.name == 'sum'
    assert softmax((2, 5)).main.name == 'peak'


def test_only_the_last_part_moves_into_a_slice() -> None:
    group = into_slice(COUNTED, 0, 2, 7)
    assert group.output.shape == (7, 6)
    assert group.tensor('Count').shape == (6,)
    assert group.tensor('Sum').shape == (7, 6)
    assert names(group) == names(COUNTED)
