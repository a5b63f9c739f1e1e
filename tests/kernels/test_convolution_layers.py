"""Convolutions of one and three axes and transposed ones as layers, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.ops.convolution import Convolution
from tilewright.ops.reference import reference
from tilewright.ops.specs import Layer, read_layer
from tilewright.runtime.callable import made_of
from tilewright_lab.peers.contestants import layer_arrays
from tilewright_lab.scripts.benchdnn_shapes import images_of, torch_answer

pytest.importorskip('torch')

LAYERS = (
    'mb2ic5iw37oc19kw3pw1+bias+relu',
    'g18mb1ic18iw40oc18kw5sw2pw2',
    'mb1ic5id4ih5iw9oc17kd2kh3kw3ph1pw1',
    'mb1ic16ih7iw7oc20oh7ow7kh1kw1sh2sw2ph3pw3',  # windows that hold padding alone
    'mb1ic3ih6oc18kh3ph1oh11',  # and more of them behind the image
    'deconv:mb1ic5ih9oc18kh4sh2ph1+bias+relu',
    'deconv:mb2ic4iw20oc17kw8sw4pw2',
    'deconv:g2mb1ic6ih7oc8kh3dh1ph2',
    'deconv:mb1ic4ih5oc6kh3sh2ph1',  # an output that is no multiple of its stride
)


@pytest.mark.parametrize('text', LAYERS)
def test_a_layer_computes_what_pytorch_does(text):
    layer = read_layer(text)
    arrays = layer_arrays(layer.group, 7)
    plan = tw.optimize(layer.group, measure=False, threads=2)
    got = plan.build(arrays['Ker'], arrays.get('Bias'))(arrays['In'])
    np.testing.assert_allclose(got, torch_answer(layer.conv, arrays), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('text', LAYERS[:3] + LAYERS[5:8])
def test_layers_of_every_rank_have_more_than_plain_loops(text):
    plan = tw.optimize(tw.parse(text), measure=False, threads=2)
    assert plan.best.schedule.schema != 'general'
    assert tw.parse(text).label in plan.explain()


@st.composite
def transposed(draw):
    rank, groups, small = draw(st.integers(1, 3)), draw(st.integers(1, 3)), st.integers(1, 4)
    each = st.tuples(*[small] * rank)
    try:
        return Convolution(
            draw(st.integers(1, 2)), groups * draw(small), groups * draw(small), draw(each),
            draw(st.tuples(*[st.integers(1, 6)] * rank)), draw(each),
            draw(st.tuples(*[st.integers(0, 4)] * rank, *[st.integers(-2, 4)] * rank)),
            draw(each), groups, draw(st.booleans()), None, True,
        )  # fmt: skip
    except SpecError:
        assume(False)


@settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(transposed())
def test_a_transposed_convolution_is_described_by_its_residues(conv):
    layer = Layer(conv)
    arrays = layer_arrays(layer.group, 7)
    want = torch_answer(conv, arrays)
    got = reference(layer.group, made_of(layer.group, arrays))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_plan_keeps_how_filters_are_given():
    group = tw.conv_transpose1d(c=2, w=4, k=3, s=2, stride=2)
    again = type(group).from_json(group.to_json())
    assert again == group
    assert again.given == group.given


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        (lambda: tw.conv1d(c=1, w=4, k=1, s=9), 'spans 9 in width but the padded image has only 4'),
        (lambda: tw.conv3d(c=1, d=2, h=2, w=2, k=1, t=1, r=1, s=1, pad=(1, 2)), 'front, top, left'),
        (
            lambda: tw.conv_transpose2d(c=1, h=4, w=4, k=1, r=2, s=2, output_padding=1),
            'output_padding (height) is 1; it must be below 1',
        ),
        (lambda: tw.conv_transpose1d(c=1, w=1, k=1, s=1, pad=3), 'the padding leaves -5'),
    ],
)
def test_refusals_say_what_to_change(call, said):
    with pytest.raises(SpecError) as caught:
        call()
    assert said in str(caught.value)


def test_a_part_of_a_large_batch_is_compared():
    assert images_of(3, 1.0, 4e9) == [0, 1, 2]
    assert images_of(64, 64e9, 4e9) == [0, 21, 42, 63]
    assert images_of(64, 1e15, 4e9) == [0, 63]
