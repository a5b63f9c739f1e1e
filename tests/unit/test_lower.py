"""Lowering: what programs are made of, and what is said about graphs that cannot be lowered."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_graphs import f32, graph, node, run

from tilewright.errors import ModelError
from tilewright.graph.graph import Graph, Value
from tilewright.graph.lower import lower, shape_inputs, types
from tilewright.graph.lowering.result import Known


def test_views_have_no_tasks_and_are_not_nested() -> None:
    made = graph([
        node('Flatten', 'x', 'a'), node('Unsqueeze', 'a axes', 'b'), node('Reshape', 'b to', 'c'),
        node('Identity', 'c', 'd'), node('Relu', 'd'),
    ], axes=[0], to=[-1, 6])  # fmt: skip
    program = lower(made)
    assert [task.group.stages[0].name for task in program.tasks] == ['relu']
    assert program.views == {'c': 'x'}
    assert program.values['c'].shape == (4, 6)
    x = f32(2, 3, 4)
    np.testing.assert_array_equal(run(made, x=x)['y'], np.maximum(x, 0).reshape(4, 6))


def test_shape_arithmetic_disappears() -> None:
    made = graph([
        node('Shape', 'x', 's'), node('Gather', 's first', 'n'), node('Mul', 'n two', 'm'),
        node('Unsqueeze', 'm axes', 'u'), node('Concat', 'u minus', 'to', axis=0),
        node('Reshape', 'x to', 'r'), node('Exp', 'r'),
    ], first=1, two=2, axes=[0], minus=[-1])  # fmt: skip
    program = lower(made)
    assert [task.group.stages[0].name for task in program.tasks] == ['exp']
    assert program.values['y'].shape == (6, 4)
    assert not program.constants


def test_whole_numbers_are_exact_when_they_are_folded() -> None:
    large = 2**53 + 1
    made = graph([node('Add', 'a b', 's'), node('Mul', 'x c')], {'x': Value('x', (1,), 'i64')},
                 ('y', 's'), a=large, b=np.int64(2), c=np.int64(large))  # fmt: skip
    found = run(made, x=np.array([3]))
    assert found['s'] == large + 2
    assert found['y'].tolist() == [3 * large]


def test_whole_numbers_shrink_by_a_fraction() -> None:
    """3 - 0.5 is 2.5, and 2 as a whole number: the bias is not cut before it is subtracted."""
    made = graph([node('Shrink', 'x', bias=0.5, lambd=1.5)], {'x': Value('x', (5,), 'i64')})
    assert run(made, x=np.array([-3, -1, 0, 2, 9]))['y'].tolist() == [-2, 0, 0, 1, 8]


def test_constants_fold_inside_a_lowering() -> None:
    """A transposed convolution rearranges its weights: ahead where they are known."""
    known = graph(
        [node('ConvTranspose', 'x w', strides=(2, 2))], {'x': (1, 3, 4, 4)}, w=f32(3, 2, 3, 3)
    )
    given = graph(
        [node('ConvTranspose', 'x w', strides=(2, 2))], {'x': (1, 3, 4, 4), 'w': (3, 2, 3, 3)}
    )
    assert [t.group.stages[0].name for t in lower(known).tasks] == ['conv2d', 'interleave']
    assert [t.group.stages[0].name for t in lower(given).tasks] == ['taps', 'conv2d', 'interleave']
    x, w = f32(1, 3, 4, 4), known.constants['w']
    np.testing.assert_allclose(run(known, x=x)['y'], run(given, x=x, w=w)['y'], rtol=1e-6)


def test_roles_follow_from_what_is_known() -> None:
    nodes = [node('Gemm', 'x w', transB=1)]
    known = lower(graph(nodes, {'x': (2, 3)}, w=f32(5, 3)))
    given = lower(graph(nodes, {'x': (2, 3), 'w': (5, 3)}))
    assert [p.tasks[0].group.tensor('Ker').role for p in (known, given)] == ['constant', 'input']


def test_single_numbers_are_part_of_the_expression() -> None:
    program = lower(graph([node('Mul', 'x c')], c=np.float32(2)))
    assert list(program.tasks[0].operands) == ['In']
    assert not program.constants


def test_scalars_are_views_of_one_element() -> None:
    made = graph([
        node('ReduceSum', 'x', 's', keepdims=0), node('Add', 's k', 't'), node('Mul', 'x t'),
    ], {'x': (2, 3), 'k': ()}, ('y', 's'))  # fmt: skip
    program = lower(made)
    assert program.values['s'].shape == ()
    assert all(t.shape for task in program.tasks for t in task.group.tensors)
    x = f32(2, 3)
    found = run(made, x=x, k=np.float32(1))
    np.testing.assert_allclose(found['s'], x.sum(), rtol=1e-6)
    np.testing.assert_allclose(found['y'], x * (x.sum() + 1), rtol=1e-6)


def test_empty_tensors_are_constants() -> None:
    made = graph([
        node('Concat', 'x e', 'c', axis=0), node('ReduceMax', 'e', 'm'), node('Relu', 'e', 'r'),
        node('Neg', 'c'),
    ], {'x': (2, 3), 'e': (0, 3)}, ('y', 'm', 'r'))  # fmt: skip
    program = lower(made)
    assert [t.group.stages[0].name for t in program.tasks] == ['neg']
    assert program.inputs == ('x', 'e')
    x = f32(2, 3)
    found = run(made, x=x, e=np.zeros((0, 3), np.float32))
    np.testing.assert_array_equal(found['y'], -x)
    assert found['m'].tolist() == [[-np.inf]]
    assert found['r'].shape == (0, 3)


def test_a_concatenation_is_copies_into_one_result() -> None:
    made = graph([node('Concat', 'x z x', axis=-1)], {'x': (2, 3), 'z': (2, 1)})
    program = lower(made)
    assert [(t.result, t.writes_part) for t in program.tasks] == [('y', True)] * 3
    assert len({t.name for t in program.tasks}) == 3
    x, z = f32(2, 3), f32(2, 1)
    np.testing.assert_array_equal(run(made, x=x, z=z)['y'], np.concatenate([x, z, x], -1))


@pytest.mark.parametrize('middle', [128, 200])
@pytest.mark.parametrize('groups', [1, 2])
def test_zero_points_that_only_a_run_knows(middle: int, groups: int) -> None:
    """Weights of 8 bits after they were centred or not: products stay those of 8 bits."""
    rng = np.random.default_rng(0)
    w = rng.integers(0, 256, (6, 4 // groups, 3, 3)).astype(np.uint8)
    conv = node('ConvInteger', 'x w zero middle', pads=(1, 1, 1, 1), strides=(2, 1), group=groups)
    kinds = {'x': Value('x', (1, 4, 7, 6), 'u8'), 'zero': Value('zero', (), 'u8')}
    x = rng.integers(0, 256, (1, 4, 7, 6)).astype(np.uint8)
    made = graph([conv], kinds, w=w, middle=np.uint8(middle))
    image = np.pad(x.astype(int) - 77, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (2, 3))[:, :, ::2]
    parts = zip(np.split(views, groups, 1), np.split(w.astype(int) - middle, groups), strict=True)
    want = np.concatenate([np.einsum('nchwrs,kcrs->nkhw', v, k) for v, k in parts], 1)
    np.testing.assert_array_equal(run(made, x=x, zero=np.uint8(77))['y'], want)
    dtypes = {t.dtype for task in lower(made).tasks for t in task.group.with_role('constant')}
    assert ('i8' in dtypes) == (groups == 1 or middle == 128)


def test_long_windows_over_one_channel_are_cut_into_frames() -> None:
    """Spectra: the frames are copied out, and what is left is a convolution of one tap."""
    x, w = f32(2, 1, 200), f32(33, 1, 40)
    made = graph([node('Conv', 'x w', strides=(5,), pads=(3, 2))], {'x': x.shape}, w=w)
    assert lower(made).tasks[0].group.stages[0].name == 'frames'
    padded = np.pad(x[:, 0], ((0, 0), (3, 2)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, 40, axis=1)[:, ::5]
    want = np.einsum('nft,kt->nkf', frames, w[:, 0])
    np.testing.assert_allclose(run(made, x=x)['y'], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('mode', ['reflect', 'edge', 'wrap'])
@pytest.mark.parametrize('pads', [(3, 4), (0, 2), (2, -5)])
def test_long_axes_are_padded_by_parts(
    mode: str, pads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the borders come out of a table, which is never longer than tables may be."""
    monkeypatch.setattr('tilewright.graph.lowering.moving.MAX_TABLE', 8)
    made = graph([node('Pad', 'x pads', mode=mode)], {'x': (2, 12)}, pads=[1, pads[0], 0, pads[1]])
    x = f32(2, 12)
    cut = x[:, : 12 + min(0, pads[1])]
    want = np.pad(cut, ((1, 0), (pads[0], max(0, pads[1]))), mode)
    np.testing.assert_array_equal(run(made, x=x)['y'], want)


def test_only_what_outputs_need_remains() -> None:
    made = graph([node('Exp', 'x', 'a'), node('Split', 'a', 'p q r', axis=1), node('Neg', 'q')],
                 {'x': (2, 3), 'idle': (1,)}, w=f32(3))  # fmt: skip
    program = lower(made)
    assert [t.group.stages[0].name for t in program.tasks] == ['exp', 'slice', 'neg']
    assert program.inputs == ('x', 'idle')
    assert not program.constants


def test_outputs_that_are_inputs_constants_and_each_other() -> None:
    made = graph([
        node('Identity', 'x', 'a'), node('Relu', 'x'), node('Identity', 'y', 'b'),
        node('Add', 'c c', 'd'),
    ], outputs=('a', 'y', 'b', 'd', 'x'), c=f32(2))  # fmt: skip
    program = lower(made)
    assert dict(program.outputs) == {'a': 'x', 'y': 'y', 'b': 'y', 'd': 'd', 'x': 'x'}
    x = f32(2, 3, 4)
    np.testing.assert_array_equal(run(made, x=x)['d'], 2 * made.constants['c'])


def test_the_same_transposition_costs_nothing_where_sizes_are_one() -> None:
    made = graph(
        [node('Transpose', 'x', 'a', perm=(0, 2, 3, 1)), node('Relu', 'a')], {'x': (1, 1, 5, 6)}
    )
    program = lower(made)
    assert len(program.tasks) == 1
    assert program.views == {'a': 'x'}


@pytest.mark.parametrize(
    ('equation', 'shapes'),
    [
        ('bij, bjk', [(2, 3, 4), (2, 4, 5)]),
        ('...ii->...i', [(2, 3, 3)]),
        ('ij->', [(2, 3)]),
        ('...ij,...jk->...ik', [(5, 1, 2, 3), (6, 3, 4)]),
        ('i,j,k->kij', [(2,), (3,), (4,)]),
        ('ij,...->...ij', [(2, 3), (2, 2)]),
    ],
)
def test_sums_of_products(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = {name: f32(*shape) for name, shape in zip('abc', shapes, strict=False)}
    given = {name: array.shape for name, array in arrays.items()}
    made = graph([node('Einsum', ' '.join(arrays), equation=equation)], given)
    assert len(lower(made).tasks) == 1
    want = np.einsum(equation, *arrays.values())
    np.testing.assert_allclose(run(made, **arrays)['y'], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    'equation', ['ij,jk->il', 'ij->ij', 'ij,jk->ii', 'i1,jk', 'ijk,jk', 'ii,jk->i']
)
def test_equations_that_do_not_fit(equation: str) -> None:
    made = graph([node('Einsum', 'a b', equation=equation)], {'a': (2, 3), 'b': (3, 4)})
    with pytest.raises(ModelError, match='its equation'):
        lower(made)


def test_everything_unsupported_is_one_message() -> None:
    made = graph([
        node('NonMaxSuppression', 'x', 'a'), node('Relu', 'a', 'b'),
        node('NonMaxSuppression', 'x', 'c'), node('org.test::Special', 'b', 'd'),
        node('If', 'd', 'e'), node('Resize', 'x roi s', 'f', mode='sinc'), node('Add', 'e f'),
    ], roi=f32(0), s=np.ones(3, np.float32))  # fmt: skip
    with pytest.raises(ModelError) as caught:
        lower(made)
    text = str(caught.value)
    for part in (
        "2 x NonMaxSuppression (first: 'n_a')", "1 x org.test::Special (first: 'n_d')",
        "1 x If (first: 'n_e')", "1 x Resize with mode 'sinc' (first: 'n_f')",
    ):  # fmt: skip
        assert part in text
    assert 'Relu' not in text
    assert 'Add' not in text


@pytest.mark.parametrize(
    ('made', 'part'),
    [
        (graph([node('Relu', 'x')], {'x': Value('x', (2,), 'f16')}), '1 x Relu of f16'),
        (graph([node('Conv', 'x w')], {'x': (1, 2, 4, 4)}, w=f32(3, 1, 3, 3)), 'do not fit'),
        (graph([node('Conv', 'x w')], {'x': (1, 1, 2, 4)}, w=f32(3, 1, 3, 3)), 'does not fit'),
        (graph([node('Add', 'x c')], c=f32(5)), 'do not broadcast'),
        (graph([node('Reshape', 'x c')], c=[5, 5]), r'cannot be reshaped to \[5, 5\]'),
        (graph([node('Reshape', 'x z')], {'x': (4,), 'z': Value('z', (1,), 'i64')}),
         "with 'z', on which shapes depend, known only when it runs"),
        (graph([node('Softmax', 'x', axis=3)]), 'axis 3 is none of 3 dimensions'),
        (graph([node('Softmax', 'x', axis='last')]), "is 'last'; it must be a whole number"),
        (graph([node('Expand', 'x c')], c=[2**40, 2, 3, 4]), 'elements; the limit is'),
        (graph([node('ConstantOfShape', 'c')], c=[2**40]), 'elements; the limit is'),
        (graph([node('Range', 'a b c')], a=0.0, b=1e18, c=1e-3), 'elements; the limit is'),
        (graph([node('Gather', 'x c')], c=[2]), 'outside the 2 elements'),
        (graph([node('MatMul', 'x c')], c=f32(5, 5)), 'cannot be multiplied'),
        (graph([node('Split', 'x', 'y z')], {'x': (3, 2)}, num_outputs=np.array(0)), None),
        (graph([node('BatchNormalization', 'x c c c c', training_mode=1)], c=f32(4)), 'do not fit'),
    ],
)  # fmt: skip
def test_graphs_that_cannot_be_lowered(made: Graph, part: str | None) -> None:
    if part is None:
        assert lower(made).values['y'].shape == (2, 2)
        return
    with pytest.raises(ModelError, match=part) as caught:
        lower(made)
    assert str(caught.value).startswith('test')


def test_constants_cannot_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('tilewright.graph.lower.MAX_FOLDED', 1000)
    nodes = [node('Add', f'c{i} one', f'c{i + 1}') for i in range(20)]
    one = np.ones(100, np.float32)
    assert lower(graph(nodes[:9], outputs=('c9',), c0=one, one=one)).constants['c9'][0] == 10
    with pytest.raises(ModelError, match='grow to more than the model holds'):
        lower(graph(nodes, outputs=('c20',), c0=one, one=one))


def test_one_repeated_value_is_held_once() -> None:
    made = graph([node('ConstantOfShape', 'n', 'c'), node('Add', 'x c')], {'x': (2**11, 2**11)},
                 n=[2**11, 2**11])  # fmt: skip
    found = types(made)['c']
    assert isinstance(found, Known)
    assert found.array.strides == (0, 0)


def test_inputs_that_decide_shapes_are_found() -> None:
    made = graph(
        [node('Add', 'p q', 'r'), node('Reshape', 'x r', 'a'), node('Shape', 'z', 's'),
         node('Expand', 'a s', 'b'), node('Gather', 'b g')],
        {'x': (4,), 'z': (2, 4), **{n: Value(n, (1,), 'i64') for n in 'pqg'}},
    )  # fmt: skip
    assert shape_inputs(made) == ('p', 'q')


def test_types_of_every_value() -> None:
    made = graph([node('Shape', 'x', 's'), node('ArgMax', 'x', axis=-1, keepdims=0)])
    found = types(made)
    assert isinstance(found['s'], Known)
    assert (found['y'].shape, found['y'].dtype) == ((2, 3), 'i64')
