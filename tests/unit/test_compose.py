"""Groups joined into one compute what they did one behind the other; names are kept apart."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ops.compose import append, prepend
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.moving import transpose
from tilewright.ops.parts import parts
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.pooling import average_pool, max_pool, window_counts
from tilewright.ops.reduction import REDUCTIONS, reduce
from tilewright.ops.reference import reference
from tilewright.ops.stage import call, const, read
from tilewright.ops.windows import windows

CLIP = call('min', call('max', read(0), const(-1.0)), const(1.0))

PADDED = windows((9, 9), 3, 3, 1)


def activate(name: str, shape: tuple[int, ...]) -> Group:
    return elementwise(ACTIVATIONS[name], shape, name=name)


def arrays(group: Group, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    given = [t for t in group.tensors if t.role in ('input', 'constant')]
    return {t.name: rng.standard_normal(t.shape) for t in given}


def joined(first: Group, second: Group, tensor: str, join=append) -> Group:
    """Both as one group, checked against one behind the other."""
    made = join(first, second, tensor)
    assert made is not None
    early, late = arrays(first, 1), arrays(second, 2)
    late[tensor] = reference(first, early)
    want = reference(second, late)
    given = {made.producer_names[n]: v for n, v in early.items()}
    given |= {made.consumer_names[n]: v for n, v in late.items() if n != tensor}
    assert set(given) == set(arrays(made.group, 0))
    np.testing.assert_allclose(reference(made.group, given), want, rtol=1e-12, atol=1e-12)
    return made.group


@pytest.mark.parametrize('groups', [1, 2, 8])
def test_a_chain_behind_a_convolution(groups: int) -> None:
    """Bias, residual, activation, clip: one part, whatever the order of its inputs."""
    group = conv2d(c=8, h=6, w=7, k=8, r=3, s=3, pad=1, groups=groups, bias=True)
    shape = group.output.shape
    group = joined(group, elementwise('add', shape, shape), 'In1')
    group = joined(group, activate('relu', shape), 'In')
    group = joined(group, elementwise('mul', shape, (8, 1, 1)), 'In0')
    group = joined(group, elementwise(CLIP, shape, name='clip'), 'In')
    assert parts(group) == (group,)
    assert group.output.name == 'Out'
    assert group.label.endswith('+bias+add+relu+mul+clip')
    assert len({s.name for s in group.stages}) == len(group.stages)


def test_two_of_the_same_keep_their_names_apart() -> None:
    group = conv2d(c=3, h=5, w=5, k=4, r=1, s=1)
    shape = group.output.shape
    for _ in range(3):
        group = joined(group, elementwise('add', shape, shape), 'In0')
    assert len(group.with_role('input')) == 4


def test_behind_pooling_and_element_by_element() -> None:
    for pool in (
        max_pool((1, 3, 9, 9), windows((9, 9), 3, 2)),
        average_pool((1, 3, 9, 9), PADDED, window_counts(PADDED, padding_counts=False)),
    ):
        joined(pool, activate('relu', pool.output.shape), 'In')
    group = joined(elementwise('mul', (4, 5), (5,)), elementwise('sub', (1,), (4, 5)), 'In1')
    joined(group, activate('silu', (4, 5)), 'In')
    joined(REDUCTIONS['mean'].group('mean', (3, 4, 5), (2,)), activate('tanh', (3, 4)), 'In')


def test_what_is_no_epilogue_stays_apart() -> None:
    group = conv2d(c=3, h=5, w=5, k=4, r=1, s=1)
    shape = group.output.shape
    assert append(group, transpose(shape, (0, 1, 3, 2)), 'In') is None
    assert append(group, max_pool((1, 4, 5, 5), windows((5, 5), 2)), 'In') is None
    assert append(group, activate('relu', (1, 4, 5, 6)), 'In') is None
    wider = elementwise('add', shape, (3, *shape[1:]))
    assert append(group, wider, 'In0') is None
    whole = elementwise('eq', shape, shape)
    assert append(group, whole, 'In0') is None, 'sums of products have float32 results'
    assert append(max_pool((1, 4, 5, 5), windows((5, 5), 1)), elementwise('floor', shape), 'In')


def test_before_a_reduction() -> None:
    scale = elementwise(call('add', call('mul', read(0), read(1)), read(2)), (2, 3, 4, 5),
                        (3, 1, 1), (3, 1, 1))  # fmt: skip
    group = joined(scale, reduce('sum', (2, 3, 4, 5), (2, 3), 'sum'), 'In', prepend)
    assert parts(group) == (group,)
    joined(
        activate('relu', (2, 3, 8, 8)), max_pool((2, 3, 8, 8), windows((8, 8), 2, 2)), 'In', prepend
    )
    padded = max_pool((2, 3, 8, 8), windows((8, 8), 3, 3, 1))
    assert prepend(activate('sigmoid', (2, 3, 8, 8)), padded, 'In') is None
