"""The suites against the figures of the papers that they come from; what users may write."""

from __future__ import annotations

import pytest

from tilewright.errors import SpecError
from tilewright.ops.convolution import conv2d
from tilewright.ops.suites import SUITES, expand, parse, suite

# Boda, Table 1: filter size, stride, output channels, image size, input channels, FLOPs as printed.
BODA = """
5 1 32 28 16 1e+08 / 5 1 64 14 32 1e+08 / 1 1 256 7 832 1.04e+08 / 1 1 112 14 512 1.12e+08
1 1 128 14 512 1.28e+08 / 1 1 64 28 256 1.28e+08 / 1 1 64 56 64 1.28e+08
1 1 128 14 528 1.32e+08 / 1 1 144 14 512 1.45e+08 / 1 1 96 28 192 1.45e+08
1 1 384 7 832 1.57e+08 / 1 1 160 14 512 1.61e+08 / 1 1 160 14 528 1.66e+08
1 1 4096 1 4096 1.68e+08 / 1 1 192 14 480 1.81e+08 / 5 1 128 14 32 2.01e+08
3 1 320 7 160 2.26e+08 / 1 1 384 13 384 2.49e+08 / 1 1 128 28 256 2.57e+08
1 1 256 14 528 2.65e+08 / 1 1 96 54 96 2.69e+08 / 3 1 384 7 192 3.25e+08
3 1 208 14 96 3.52e+08 / 1 1 1000 6 1024 3.69e+08 / 1 1 1024 6 1024 3.77e+08
6 1 4096 6 256 3.77e+08 / 3 1 224 14 112 4.43e+08 / 1 1 256 27 256 4.78e+08
3 1 256 14 128 5.78e+08 / 5 1 96 28 32 6.02e+08 / 3 1 288 14 144 7.32e+08
3 1 128 28 96 8.67e+08 / 3 1 320 14 160 9.03e+08 / 11 4 96 224 3 1.02e+09
11 4 96 227 3 1.05e+09 / 7 2 64 224 3 1.18e+09 / 3 1 1024 6 384 1.27e+09
3 1 256 13 384 1.5e+09 / 3 1 384 13 256 1.5e+09 / 3 1 192 28 128 1.73e+09
3 1 384 13 384 2.24e+09 / 3 1 192 56 64 3.47e+09 / 5 1 256 27 96 4.48e+09
"""


def test_sizes():
    assert {name: len(suite(name)) for name in SUITES} == {
        'mopt': 32,
        'cnnopt': 20,
        'boda': 43,
        'resnet18': 11,
    }
    for name in SUITES:
        layers = suite(name)
        assert len({layer.name for layer in layers}) == len(layers)
        assert len({layer.group.digest for layer in layers}) == len(layers)


def test_boda_agrees_with_its_printed_flops():
    rows = [row.split() for line in BODA.strip().splitlines() for row in line.split(' / ')]
    assert len(rows) == 43
    for layer, (size, stride, k, image, c, flops) in zip(suite('boda'), rows, strict=True):
        conv = layer.conv
        assert (*conv.taps, conv.stride) == (int(size), int(size), (int(stride), int(stride)))
        assert (conv.n, conv.c, conv.k, *conv.size) == (
            5,
            int(c),
            int(k),
            int(image),
            int(image),
        )
        assert float(f'{layer.group.flops:.2e}') == float(flops)
        assert layer.name == f'B{size}-{stride}-{k}-{image}-{c}'


def test_mopt_corrections():
    layers = {layer.name: layer.conv for layer in suite('mopt')}
    assert (layers['R8'].taps[0], layers['R8'].stride, layers['R8'].out[0]) == (1, (2, 2), 14)
    assert layers['Y23'].k == 28269
    for name, conv in layers.items():
        assert conv.pad == (conv.taps[0] // 2,) * 4
        assert conv.is_depthwise == name.startswith('M')
        assert conv.n == 1
    strided = {name for name, conv in layers.items() if conv.stride == (2, 2)}
    assert strided == {'R1', 'R4', 'R5', 'R7', 'R8', 'R10', 'R11', 'M2', 'M4', 'M6', 'M8'}
    # Yolo's 3x3 layers all cost the same, as do ResNet's at stride 1.
    flops = {name: parse(f'mopt/{name}').flops for name in layers}
    assert {flops[name] for name in ('Y2', 'Y4', 'Y8', 'Y12', 'Y18')} == {2727346176}
    assert {flops[name] for name in ('R2', 'R6', 'R9', 'R12')} == {231211008}


def test_cnnopt_corrections():
    layers = {layer.name: layer.conv for layer in suite('cnnopt')}
    assert (layers['R10'].c, layers['R10'].size[0], layers['R10'].out[0]) == (256, 14, 7)
    for conv in layers.values():
        assert conv.out[0] == conv.size[0] // conv.stride[0]
    assert {name for name, conv in layers.items() if conv.stride[0] == 2} == {
        'R1',
        'R4',
        'R7',
        'R10',
    }
    # The layers that both papers use are the same problems.
    for name in set(layers) & {layer.name for layer in suite('mopt')}:
        assert parse(f'cnnopt/{name}').digest == parse(f'mopt/{name}').digest


def test_resnet18_has_the_published_work():
    layers = expand('resnet18')
    assert sum(count for _, _, count in layers) == 20
    # 1,814,073,344 multiply-adds in all, of which the last layer, 512 x 1000, is not a convolution.
    assert sum(group.flops * count for _, group, count in layers) == 2 * (1814073344 - 512000)


def test_parse_takes_specs_and_layers():
    r2 = conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1)
    assert parse('mopt/R2') == r2
    assert parse('mb1ic64ih56oc64oh56kh3ph1') == r2
    assert parse(' mopt/R2 ') == r2


def test_expand_takes_lists(tmp_path):
    path = tmp_path / 'shapes.txt'
    path.write_text('mb8ic4ih4oc4kh1n"a"*2\nic4ih4oc4kh1n"a"\nic3oc16_iw5ow5kw3pw1\n')
    text = f'mopt/R2, ic4ih4oc4kh1 ,benchdnn:{path},mb1ic4ih4oc4kh1n"x,y/z"'
    found = expand(text)
    assert [(name, count) for name, _, count in found] == [
        ('mopt/R2', 1),
        ('mb2ic4ih4iw4oc4oh4ow4kh1kw1sh1sw1ph0pw0dh0dw0', 1),
        ('a', 2),
        ('a#2', 1),
        ('mb2ic3iw5oc16ow5kw3sw1pw1dw0', 1),
        ('x,y/z', 1),
    ]
    assert {group.tensor('In').shape[0] for _, group, _ in expand(text, batch=3)} == {3}
    assert [name for name, _, _ in expand('mopt')][:2] == ['mopt/Y0', 'mopt/Y2']


def test_shape_lists_are_found_by_name(tmp_path, monkeypatch):
    folder = tmp_path / 'data' / 'benchdnn'
    folder.mkdir(parents=True)
    (folder / 'tiny.txt').write_text('ic4ih4oc4kh1n"a"\n')
    monkeypatch.setenv('TILEWRIGHT_SHARED', str(tmp_path))
    assert [name for name, _, _ in expand('benchdnn:tiny')] == ['a']


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('mopt/R22', 'did you mean R2, R12?'),
        ('mop/R2', 'did you mean mopt?'),
        ('mopt/r2', 'did you mean R2'),
        ('reznet18', 'did you mean resnet18?'),
        ('xyz', 'known: mopt, cnnopt, boda, resnet18'),
        ('mopt', 'names 32 layers'),
        ('', 'names no convolution'),
        ('benchdnn:none.txt', 'cannot be read'),
        (64, 'not by 64'),
    ],
)
def test_unknown_names_get_near_matches(text, said):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert said in str(caught.value)
