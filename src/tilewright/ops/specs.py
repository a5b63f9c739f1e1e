"""benchdnn's convolution notation, and ours: text in, `Conv2d` and `Group` out.

    mb1ic64ih56oc64oh56kh3ph1                       the short form: the width is like the height
    g2mb1_ic96oc256_ih27oh27kh5sh1dh0ph2_iw27...    '_' separates and means nothing
    ...n"alexnet:conv2*3"                           a name, and how often the layer occurs
    ...+bias+relu*3                                 our suffixes, as `Conv2d.label` writes them

Sizes that are missing are derived as benchdnn derives them: batch 2, one group, stride 1, dilation
0 (which means dense), output from the padding, padding from the output. Bottom and right padding
follow from the output sizes. docs/specs.md is the reference for users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.errors import SpecError
from tilewright.files import read_regular
from tilewright.ops.convolution import Conv2d, describe
from tilewright.ops.group import Group
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.windows import Window

FIELDS = ('g', 'mb', 'ic', 'oc', *(kind + axis for kind in 'ioksdp' for axis in 'dhw'))
_POSITIVE = frozenset(FIELDS) - {'pd', 'ph', 'pw', 'dd', 'dh', 'dw'}
_FIELD = re.compile(r'([a-z]+)([0-9]*)')
_NAME = re.compile(r'n(?:"([^"]*)"|([\w.:/-]+))')
_COUNTED = re.compile(r'(.*)\*([0-9]{1,9})')
_COUNT = re.compile(r'\*([0-9]{1,9})')
_EPILOGUE = re.compile(r'\+(bias|' + '|'.join(sorted(ACTIVATIONS, key=len, reverse=True)) + ')')
# benchdnn's names of the pointwise operations that we have under a name of our own
_POST_OPS = {'relu': 'relu', 'tanh': 'tanh', 'logistic': 'sigmoid'}


class RankError(SpecError):
    """The spec is a 1-D or 3-D convolution: readable, but not one that this package computes."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One line of a shape list: a convolution, what it is called, how often it occurs."""

    conv: Conv2d
    name: str = ''
    count: int = 1

    @property
    def group(self) -> Group:
        return describe(self.conv)

    def with_batch(self, batch: int | None) -> Layer:
        """The same layer at another batch size (None: unchanged)."""
        if batch is None:
            return self
        if batch < 1:
            raise SpecError(f'batch is {batch}; it must be at least 1')
        return replace(self, conv=replace(self.conv, n=batch))


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line of a shape list that is no 2-D convolution, and why."""

    line: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShapeList:
    """What a shape-list file holds: the 2-D layers, and the lines that were left out."""

    layers: tuple[Layer, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """The benchdnn options in force for the lines that follow them."""

    batch: int | None = None
    bias: bool = False
    activation: str | None = None

    def apply(self, layer: Layer) -> Layer:
        conv = layer.conv
        activation = conv.activation or self.activation
        conv = replace(conv, bias=conv.bias or self.bias, activation=activation)
        return replace(layer, conv=conv).with_batch(self.batch)


NO_OPTIONS = Options()


def parse_conv(text: str) -> Group:
    """[benchdnn notation] -> [Group]; the inverse of `Conv2d.label`."""
    return read_layer(text).group


def read_layer(text: str) -> Layer:
    """[benchdnn notation] -> [Layer]. Every refusal names the spec, the place and the remedy."""
    text = text.strip()
    body, end = _read_fields(text)
    name, count, bias, activation = _read_suffixes(text, end)
    _check_rank(text, body)
    for required in ('ic', 'oc', 'ih', 'kh'):
        if required not in body:
            raise SpecError(f'spec {text!r} lacks {required}; ic, oc, ih and kh are always needed')
    height = _axis(text, body, 'h')
    if any(field[-1] == 'w' for field in body):
        for required in ('iw', 'kw'):
            if required not in body:
                raise SpecError(
                    f'spec {text!r} gives a width but lacks {required}; give iw and kw, or leave '
                    f'every width out for a square image and filter'
                )
        width = _axis(text, body, 'w')
    else:
        width = height
    try:
        conv = Conv2d.of(
            n=body.get('mb', 2), c=body['ic'], k=body['oc'], groups=body.get('g', 1),
            h=height.size, w=width.size, r=height.taps, s=width.taps,
            stride=(height.stride, width.stride), dilation=(height.dilation, width.dilation),
            pad=(height.before, width.before, height.after, width.after),
            bias=bias, activation=activation,
        )  # fmt: skip
    except SpecError as error:
        raise SpecError(f'spec {text!r}: {error}') from None
    canonical = text[:end].replace('_', '') == conv.label.split('+')[0]
    for axis, letter in ((height, 'h'), (width, 'w')):
        if axis.after >= axis.span and axis.out != axis.symmetric and not canonical:
            raise SpecError(
                f'spec {text!r} says o{letter}{axis.out}, whose last windows lie wholly in the '
                f'padding; with p{letter}{axis.before} on both sides o{letter} is {axis.symmetric}'
            )
    return Layer(conv, name, count)


@dataclass(frozen=True, slots=True)
class _Axis(Window):
    """One spatial axis with every number filled in."""

    @property
    def symmetric(self) -> int:
        """The output size with the same padding on both sides."""
        return max(0, (self.size + 2 * self.before - self.span) // self.stride + 1)


def _axis(text: str, body: dict[str, int], letter: str) -> _Axis:
    """benchdnn's rules: output from padding, else padding from output; then the far side's padding.

    before = (needed - size) / 2 and after = needed - size - before, where
    needed = (out - 1) * stride + span is what the outputs read.
    """
    size, taps = body[f'i{letter}'], body[f'k{letter}']
    stride, dilation = body.get(f's{letter}', 1), body.get(f'd{letter}', 0) + 1
    span = (taps - 1) * dilation + 1
    out, before = body.get(f'o{letter}'), body.get(f'p{letter}')
    if out is None:
        before = before or 0
        if span > size + 2 * before:
            raise SpecError(
                f'spec {text!r}: the filter spans {span} in {letter} but the padded image has only '
                f'{size + 2 * before}; enlarge i{letter} or p{letter}'
            )
        out = (size + 2 * before - span) // stride + 1
        return _Axis(size, taps, stride, dilation, before, before, out)
    needed = (out - 1) * stride + span
    if before is None:
        before = max(0, needed - size) // 2
    after = needed - size - before
    if after <= -stride:
        fits = _Axis(size, taps, stride, dilation, before, 0, out).symmetric
        raise SpecError(
            f'spec {text!r} says o{letter}{out}, which leaves {-after} rows or columns of the '
            f'image unread; with i{letter}{size} k{letter}{taps} s{letter}{stride} '
            f'p{letter}{before} d{letter}{dilation - 1} o{letter} is {fits}'
        )
    axis = _Axis(size, taps, stride, dilation, before, max(0, after), out)
    return replace(axis, after=before) if axis.symmetric == out else axis


def _read_fields(text: str) -> tuple[dict[str, int], int]:
    """(field values, where the fields end)"""
    body: dict[str, int] = {}
    at = 0
    while at < len(text) and text[at] not in '+*':
        if text[at] == '_':
            at += 1
            continue
        if text[at] == 'n' and _NAME.match(text, at):
            break
        match = _FIELD.match(text, at)
        if match is None:
            raise _typo(text, at, text[at], 'is not part of a spec')
        field, number = match.groups()
        if field not in FIELDS:
            raise _typo(text, at, match.group(), f'is not a field; fields are {" ".join(FIELDS)}')
        if not number:
            raise _typo(text, at, field + text[match.end() : match.end() + 3], 'has no number')
        if field in body:
            raise _typo(text, at, match.group(), f'gives {field} a second time; keep one of them')
        if len(number) > 12:
            raise _typo(text, at, match.group(), 'is too large; sizes have at most 12 digits')
        body[field] = int(number)
        if field in _POSITIVE and body[field] < 1:
            raise _typo(text, at, match.group(), 'is below 1; sizes, strides and groups start at 1')
        at = match.end()
    if not body:
        raise SpecError(f'spec {text!r} has no field; an example: mb1ic64ih56oc64oh56kh3ph1')
    return body, at


def _read_suffixes(text: str, at: int) -> tuple[str, int, bool, str | None]:
    """Name, count, bias and activation behind the fields, in any order that makes sense."""
    name: str | None = None
    count: int | None = None
    bias, activation = False, None
    while at < len(text):
        if text[at] == '_':
            at += 1
            continue
        if (match := _NAME.match(text, at)) and name is None:
            name = match.group(1) if match.group(1) is not None else match.group(2)
        elif (match := _COUNT.match(text, at)) and count is None:
            count = int(match.group(1))
        elif (
            (match := _EPILOGUE.match(text, at))
            and activation is None
            and not (bias and match.group(1) == 'bias')
        ):
            bias = bias or match.group(1) == 'bias'
            activation = None if match.group(1) == 'bias' else match.group(1)
        else:
            raise _typo(
                text, at, text[at:], f'is no suffix, or one too many; use +bias, then one of '
                f'+{" +".join(ACTIVATIONS)}, n"name" and *count'
            )  # fmt: skip
        at = match.end()
    inside = _COUNTED.fullmatch(name or '')
    if inside and count is None:
        name, count = inside.group(1), int(inside.group(2))
    if count is not None and count < 1:
        raise SpecError(f'spec {text!r} occurs {count} times; *count is at least 1')
    return name or '', count or 1, bias, activation


def _check_rank(text: str, body: dict[str, int]) -> None:
    has = {letter: any(f[-1] == letter and len(f) == 2 for f in body) for letter in 'dhw'}
    flat = all(body.get(f, 1) == 1 for f in ('id', 'od', 'kd')) and body.get('pd', 0) == 0
    if has['d'] and not (flat and has['h']):
        raise RankError(
            f'spec {text!r} is a 3-D convolution (id, kd); only 2-D convolutions are supported'
        )
    if has['w'] and not has['h']:
        raise RankError(
            f'spec {text!r} is a 1-D convolution; write it as a 2-D one with ih1 oh1 kh1 ph0'
        )


def _typo(text: str, at: int, piece: str, problem: str) -> SpecError:
    return SpecError(f'spec {text!r}: at position {at}, {piece!r} {problem}')


def describe_line(line: str, options: Options = NO_OPTIONS) -> tuple[Options, tuple[Layer, ...]]:
    """One line of a shape list -> the options in force after it, and the layers on it.

    '#' starts a comment. `--mb=N`, `--dir=FWD_B` (adds a bias), `--dir=FWD_D` or `FWD_I` (none),
    `--attr-post-ops=relu|tanh|logistic` and `--reset` are honoured. Options that would change what
    is computed in a way we cannot follow are refused; the others do not matter and are ignored.
    """
    layers = []
    for word in _words(line):
        if word.startswith('--'):
            options = _option(word, options)
        else:
            layers.append(options.apply(read_layer(word)))
    return options, tuple(layers)


def _words(line: str) -> Iterator[str]:
    """Words of a line, up to a comment; a quoted name may hold blanks and '#'."""
    for match in re.finditer(r'#.*|(?:"[^"]*"|[^\s"#])+|"', line):
        if match.group().startswith('#'):
            return
        yield match.group()


def _option(word: str, options: Options) -> Options:
    key, _, value = word[2:].partition('=')
    value = value.strip('"\'')
    if key == 'reset':
        return NO_OPTIONS
    if key == 'mb':
        if not value.isdigit():
            raise SpecError(f'option {word!r} needs a whole number; --mb=0 keeps each batch')
        return replace(options, batch=int(value) or None)
    if key == 'dir':
        if value not in ('FWD_B', 'FWD_D', 'FWD_I', ''):
            raise SpecError(f'option {word!r} is not a forward pass; use FWD_B, FWD_D or FWD_I')
        return replace(options, bias=value == 'FWD_B')
    if key in ('cfg', 'dt') and set(re.split('[:,]', value)) - {'f32', ''}:
        raise SpecError(f'option {word!r} asks for {value}; only f32 is supported')
    if key == 'attr-post-ops':
        if value and value not in _POST_OPS:
            raise SpecError(f'option {word!r} is not supported; use one of {", ".join(_POST_OPS)}')
        return replace(options, activation=_POST_OPS[value] if value else None)
    if key.startswith('attr-') and value:
        raise SpecError(f'option {word!r} changes the result and is not supported; remove it')
    return options


def read_shapes(path: Path, options: Options = NO_OPTIONS) -> ShapeList:
    """A shape-list file, with the files that it includes by `--batch=FILE` (beside it)."""
    layers, skipped = [], []
    _read_into(path, options, layers, skipped, ())
    return ShapeList(tuple(layers), tuple(skipped))


def _read_into(
    path: Path,
    options: Options,
    layers: list[Layer],
    skipped: list[Skipped],
    outer: tuple[Path, ...],
) -> Options:
    if path.resolve() in outer:
        raise SpecError(f'shape list {path} includes itself; remove that --batch')
    try:
        lines = read_regular(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, 'strerror', None) or 'it is not text'
        raise SpecError(f'shape list {path} cannot be read ({reason}); check the name') from None
    for number, line in enumerate(lines, 1):
        for word in _words(line):
            try:
                if word.startswith('--batch='):
                    inner = path.parent / word[len('--batch=') :]
                    options = _read_into(inner, options, layers, skipped, (*outer, path.resolve()))
                    continue
                options, found = describe_line(word, options)
                layers.extend(found)
            except RankError as error:
                skipped.append(Skipped(number, word, str(error)))
            except SpecError as error:
                if word.startswith('--batch='):
                    raise
                raise SpecError(f'{path}, line {number}: {error}') from None
    return options
