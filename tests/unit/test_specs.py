"""benchdnn notation: fields, defaults, suffixes, refusals, shape lists; label -> spec -> label."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright import knobs
from tilewright.errors import SpecError
from tilewright.ops.convolution import Convolution, conv1d, conv2d, conv3d, describe
from tilewright.ops.convolution_transposed import conv_transpose2d, conv_transpose3d
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.specs import (
    Options,
    describe_line,
    parse_conv,
    read_layer,
    read_shapes,
)


def _shared(folder: str) -> Path:
    """A data set beside the checkout or under TILEWRIGHT_SHARED; skips where there is none."""
    root = Path(__file__).resolve().parents[2]
    roots = [p for p in (knobs.get('shared'), root.parent / 'shared') if p is not None]
    for base in roots:
        for found in (base / 'data' / folder, base / folder):
            if found.is_dir():
                return found
    pytest.skip(f'data set {folder} is not in ../shared/data nor under TILEWRIGHT_SHARED')


def test_short_form_is_square_with_batch_two():
    conv = read_layer('ic64ih56oc32oh56kh3ph1').conv
    assert conv == Convolution(
        n=2, c=64, k=32, size=(56, 56), taps=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1),
        dilation=(1, 1),
    )  # fmt: skip


def test_every_field_of_two_dimensions():
    text = 'g2mb3_ic4ih9iw12_oc6oh3ow6_kh2kw3_sh3sw2_ph1pw2_dh2dw1'
    conv = read_layer(text).conv
    # Height: the filter spans 4 rows, 3 windows at stride 3 read 10 = 1 + 9 rows: none below.
    # Width: the filter spans 5 columns, 6 windows at stride 2 read 15 = 2 + 12 + 1 columns; with
    # two columns on both sides there would be (12 + 4 - 5) // 2 + 1 = 6 outputs as well.
    assert conv == Convolution(
        n=3, c=4, k=6, size=(9, 12), taps=(2, 3), stride=(3, 2), pad=(1, 2, 1, 2),
        dilation=(3, 2), groups=2,
    )  # fmt: skip
    assert conv.out == (3, 6)


@pytest.mark.parametrize(
    ('text', 'pad', 'out'),
    [
        ('ic3ih8oc4kh3', (0, 0), (6, 6)),  # neither: no padding
        ('ic3ih8oc4kh3ph1', (1, 1), (8, 8)),  # padding gives the output
        ('ic3ih8oc4kh3oh8', (1, 1), (8, 8)),  # output gives the padding
        ('ic3ih7oc4oh7kh1sh2ph3', (3, 3), (7, 7)),  # the first and last windows hold padding alone
        ('ic3ih8oc4kh3oh7', (0, 1), (7, 7)),  # an odd row goes to the far side
        ('ic3ih224oc4kh7sh2oh112', (2, 3), (112, 112)),  # 222 + 7 rows are read, 5 of them padding
        ('ic3ih13oc4kh3ph0oh12', (0, 1), (12, 12)),  # as in benchdnn's tails: asymmetric
        ('ic3ih8oc4kh3sh2ph1oh4', (1, 1), (4, 4)),
        ('ic3ih7oc4kh1sh2oh3', (0, -2), (3, 3)),  # the last row that a window fits is left out
        ('ic3ih8oc4kh3ph1oh12', (1, 5), (12, 12)),  # the last windows hold padding alone
        ('deconv:ic3ih8oc4kh4sh2ph1', (1, 1), (16, 16)),
        ('deconv:ic3ih8oc4kh3sh2oh16', (0, 1), (16, 16)),  # 17 rows, one of them cut off
        ('deconv:ic3ih8oc4kh3sh2ph1oh16', (1, 0), (16, 16)),  # output padding of one row
    ],
)
def test_output_and_padding_are_derived(text, pad, out):
    conv = read_layer(text).conv
    assert (conv.pad[0], conv.pad[2]) == pad
    assert conv.out == out


def test_a_given_width_is_derived_on_its_own():
    # benchdnn's dilated_conv1d:15: ow is not written; the filter spans 7 of 8 columns.
    conv = read_layer('mb20ic16ih1iw8oc6oh1kh1kw3sh1pw0ph0sw1dh0dw2').conv
    assert conv.out == (1, 2)
    # sw is 1 by default, whatever sh is.
    assert read_layer('ic1ih8iw8oc1kh1kw1sh2').conv.stride == (2, 1)


@pytest.mark.parametrize(
    ('suffix', 'name', 'count', 'bias', 'activation'),
    [
        ('', '', 1, False, None),
        ('n"a b:c/d"', 'a b:c/d', 1, False, None),
        ('_n"conv8*20"', 'conv8', 20, False, None),
        ('n"conv8"*20', 'conv8', 20, False, None),
        ('nconv8*20', 'conv8', 20, False, None),
        ('*3', '', 3, False, None),
        ('+bias', '', 1, True, None),
        ('+bias+leaky_relu*2', '', 2, True, 'leaky_relu'),
        ('+relu6n"x"', 'x', 1, False, 'relu6'),
        ('n"x"+bias+silu*4', 'x', 4, True, 'silu'),
    ],
)
def test_suffixes(suffix, name, count, bias, activation):
    layer = read_layer('mb1ic4ih4oc4kh1' + suffix)
    found = (layer.name, layer.count, layer.conv.bias, layer.conv.activation)
    assert found == (name, count, bias, activation)


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('mb1ik64', "position 3, 'ik64' is not a field"),
        ('mb1ic64ih', "position 7, 'ih' has no number"),
        ('mb1ic64ihx', "position 7, 'ihx' is not a field"),
        ('mb-1ic3', "position 0, 'mb-1i' has no number"),
        ('ic3ih5ih6oc4kh3', "position 6, 'ih6' gives ih a second time"),
        ('ic3,ih5', "position 3, ',' is not part of a spec"),
        ('ic0ih5oc4kh3', "'ic0' is below 1"),
        ('ic3ih5oc4kh3sh0', "'sh0' is below 1"),
        ('ic3ih5oc4kh1234567890123', 'too large'),
        ('', 'has no field'),
        ('ic3ih5oc4', 'lacks kh'),
        ('ih5oc4kh3', 'lacks ic'),
        ('ic3ih5iw7oc4kh3', 'lacks kw'),
        ('g2ic3ih5oc4kh3', 'groups=2 does not divide c=3'),
        ('ic3ih5oc4kh9', 'spans 9 in h but the padded image has only 5'),
        ('ic3ih56oc4oh28kh3ph1', 'oh is 56'),  # leaves half of the image unread
        ('ic3iw5oc4', 'lacks kw'),
        ('ic3id5iw5kw1oc4kd3', 'gives a height or a width but lacks ih'),
        ('deconv:ic3ih8oc4kh3sh2oh40', 'oh is 17, and at most 1 more'),
        ('deconv:ic3ih2oc4kh3ph2', 'cuts off all of the 4 outputs'),
        ('ic3ih5oc4kh3+rleu', "position 12, '+rleu' is no suffix"),
        ('ic3ih5oc4kh3+relu+bias', "position 17, '+bias'"),
        ('ic3ih5oc4kh3+bias+bias', "position 17, '+bias'"),
        ('ic3ih5oc4kh3*2*3', "position 14, '*3'"),
        ('ic3ih5oc4kh3*0', 'at least 1'),
    ],
)
def test_a_typo_says_which_part(text, said):
    with pytest.raises(SpecError) as caught:
        read_layer(text)
    assert said in str(caught.value)
    assert repr(text) in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('text', 'group'),
    [
        ('ic3oc16_iw5ow5kw3pw1', conv1d(n=2, c=3, w=5, k=16, s=3, pad=1)),
        ('ic3oc16_id5od5kd3pd1', conv3d(n=2, c=3, d=5, h=5, w=5, k=16, t=3, r=3, s=3, pad=1)),
        (
            'mb1ic2oc2id1ih2iw3od1kd1kh2kw1pd0dd0',
            conv3d(c=2, d=1, h=2, w=3, k=2, t=1, r=2, s=1),
        ),
        (
            'deconv:mb1ic4ih5oc6oh10kh3sh2ph1+bias',
            conv_transpose2d(c=4, h=5, w=5, k=6, r=3, s=3, stride=2, pad=1, output_padding=1,
                             bias=True),
        ),
        (
            'deconv:g2mb1ic4id3oc6kd2sd2',
            conv_transpose3d(c=4, d=3, h=3, w=3, k=6, t=2, r=2, s=2, stride=2, groups=2),
        ),
    ],
)  # fmt: skip
def test_every_rank_is_read(text, group):
    assert parse_conv(text) == group
    assert parse_conv(group.label).digest == group.digest


@st.composite
def problems(draw):
    small = st.integers(1, 5)
    groups = draw(st.integers(1, 3))
    try:
        rank = draw(st.integers(1, 3))
        each = st.tuples(*[small] * rank)
        return Convolution(
            draw(small), groups * draw(small), groups * draw(small),
            draw(st.tuples(*[st.integers(1, 20)] * rank)), draw(each), draw(each),
            draw(st.tuples(*[st.integers(0, 12)] * 2 * rank)), draw(each), groups,
            draw(st.booleans()), draw(st.sampled_from([None, *ACTIVATIONS])),
        )  # fmt: skip
    except SpecError:
        assume(False)


@settings(derandomize=True, deadline=None)
@given(problems())
def test_every_label_reads_back(conv):
    group = describe(conv)
    again = parse_conv(group.label)
    assert again.digest == group.digest
    assert again.label == group.label


@settings(derandomize=True, deadline=None)
@given(problems(), st.integers(1, 99))
def test_a_name_and_a_count_change_nothing_else(conv, count):
    layer = read_layer(f'{conv.label}_n"some:name*{count}"')
    assert (layer.name, layer.count) == ('some:name', count)
    assert layer.group.digest == describe(conv).digest


def test_batch_override():
    layer = read_layer('mb256ic4ih4oc4kh1')
    assert layer.with_batch(1).conv.n == 1
    assert layer.with_batch(None) is layer
    with pytest.raises(SpecError, match='batch is 0'):
        layer.with_batch(0)


def test_describe_line():
    assert describe_line('') == (Options(), ())
    assert describe_line('   # mb1ic4ih4oc4kh1') == (Options(), ())
    line = 'mb1ic4ih4oc4kh1n"a#b" ic4ih4oc4kh1 # two layers'
    names = [layer.name for layer in describe_line(line)[1]]
    assert names == ['a#b', '']


def test_options_hold_until_reset():
    options, layers = describe_line('--dir=FWD_B --mb=7 --attr-post-ops=relu mb1ic4ih4oc4kh1')
    assert options == Options(batch=7, bias=True, activation='relu')
    expected = conv2d(n=7, c=4, h=4, w=4, k=4, r=1, s=1, bias=True, activation='relu')
    assert layers[0].group == expected
    assert describe_line('--dir=FWD_I --mb=0 --attr-post-ops=', options)[0] == Options()
    assert describe_line('--reset', options)[0] == Options()
    assert describe_line('--stag=nhwc --alg=auto --cfg=f32 --mode=P')[0] == Options()


@pytest.mark.parametrize(
    'option', ['--dir=BWD_D', '--cfg=u8s8u8', '--dt=bf16', '--mb=x', '--attr-post-ops=sum:0.5']
)
def test_options_that_change_the_problem_are_refused(option):
    with pytest.raises(SpecError) as caught:
        describe_line(option)
    assert option in str(caught.value)


def test_shape_list_files_include_others(tmp_path):
    (tmp_path / 'inner.txt').write_text('mb9ic4ih4oc4kh1n"inner"\n')
    (tmp_path / 'outer.txt').write_text(
        '# a list\n\n--mb=3\n--batch=inner.txt\nic3oc16_iw5ow5kw3pw1\nic5ih4oc4kh1n"outer"*2\n'
    )
    shapes = read_shapes(tmp_path / 'outer.txt')
    assert [(x.name, x.conv.n, x.conv.rank, x.count) for x in shapes] == [
        ('inner', 3, 2, 1),
        ('', 3, 1, 1),
        ('outer', 3, 2, 2),
    ]


def test_shape_list_errors_name_the_line(tmp_path):
    path = tmp_path / 'list.txt'
    path.write_text('ic4ih4oc4kh1\nic4ih4oc4\n')
    with pytest.raises(SpecError, match=r'list\.txt, line 2: .* lacks kh'):
        read_shapes(path)
    path.write_text('--batch=list.txt\n')
    with pytest.raises(SpecError, match='includes itself'):
        read_shapes(path)
    with pytest.raises(SpecError, match='cannot be read'):
        read_shapes(tmp_path / 'missing.txt')
    path.write_bytes(b'\xff\xfe\x00')
    with pytest.raises(SpecError, match='not text'):
        read_shapes(path)


def test_real_shape_lists():
    """Every line of benchdnn's own lists is read; counts worked by hand."""
    folder = _shared('benchdnn')
    found = {path.stem: read_shapes(path) for path in sorted(folder.glob('*.txt'))}
    for path in folder.glob('*.txt'):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        shapes = found[path.stem]
        assert len(shapes) == len(lines)
        for layer in shapes:
            assert parse_conv(layer.conv.label).digest == layer.group.digest
    # The published depths: 53 convolutions in ResNet-50, 16 in VGG-19, 5 in AlexNet.
    assert sum(layer.count for layer in found['resnet_50']) == 53
    assert sum(layer.count for layer in found['vgg_19']) == 16
    assert len(found['alexnet']) == 5
    # basic.txt holds the same eighteen problems in 1-D, 2-D and 3-D.
    assert [layer.conv.rank for layer in found['basic']] == 18 * [1] + 18 * [2] + 18 * [3]
    # ResNet-50's lines state oh: the convolution that is described has that many rows.
    lines = (folder / 'resnet_50.txt').read_text().splitlines()
    stated = [int(re.search('oh([0-9]+)', line).group(1)) for line in lines]
    assert [layer.conv.out[0] for layer in found['resnet_50']] == stated
