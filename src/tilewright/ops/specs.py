"""benchdnn's convolution notation, and ours: text in, `Convolution` and `Group` out.

    mb1ic64ih56oc64oh56kh3ph1                       the short form: the width is like the height
    mb1ic64iw56oc64ow56kw3pw1                       widths alone: one axis
    mb1ic64id8oc64od8kd3pd1                         with a depth: three, here of the same size
    deconv:mb1ic64ih28oc32oh56kh4sh2ph1             a transposed convolution
    g2mb1_ic96oc256_ih27oh27kh5sh1dh0ph2_iw27...    '_' separates and means nothing
    ...n"alexnet:conv2*3"                           a name, and how often the layer occurs
    ...+bias+relu*3                                 our suffixes, as `Convolution.label` writes them

Sizes that are missing are derived as benchdnn derives them: batch 2, one group, stride 1, dilation
0 (which means dense), output from the padding, padding from the output. Bottom and right padding
follow from the output sizes. docs/specs.md is the reference for users.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.errors import SpecError
from tilewright.files import read_regular
from tilewright.ops.convolution import DECONV, Convolution, describe
from tilewright.ops.convolution_transposed import describe_transposed
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


@dataclass(frozen=True, slots=True)
class Layer:
    """One line of a shape list: a convolution, what it is called, how often it occurs."""

    conv: Convolution
    name: str = ''
    count: int = 1

    @property
    def group(self) -> Group:
        return describe_transposed(self.conv) if self.conv.transposed else describe(self.conv)

    def with_batch(self, batch: int | None) -> Layer:
        """The same layer at another batch size (None: unchanged)."""
        if batch is None:
            return self
        if batch < 1:
            raise SpecError(f'batch is {batch}; it must be at least 1')
        return replace(self, conv=replace(self.conv, n=batch))


@dataclass(frozen=True, slots=True)
class Options:
    """The benchdnn options in force for the lines that follow them."""

    batch: int | None = None
    bias: bool = False
    activation: str | None = None
    transposed: bool = False

    def apply(self, layer: Layer) -> Layer:
        conv = layer.conv
        activation = conv.activation or self.activation
        conv = replace(conv, bias=conv.bias or self.bias, activation=activation)
        return replace(layer, conv=conv).with_batch(self.batch)


NO_OPTIONS = Options()


def parse_conv(text: str) -> Group:
    """[benchdnn notation] -> [Group]; the inverse of `Convolution.label`."""
    return read_layer(text).group


def read_layer(text: str, transposed: bool = False) -> Layer:
    """[benchdnn notation] -> [Layer]. Every refusal names the spec, the place and the remedy.

    transposed: also without `deconv:`, as in lists of such problems
    """
    text = text.strip()
    start = len(DECONV) if text.startswith(DECONV) else 0
    transposed = transposed or start > 0
    body, end = _read_fields(text, start)
    name, count, bias, activation = _read_suffixes(text, end)
    letters = _letters(text, body)
    axes = [(_spread if transposed else _axis)(text, body, letter) for letter in letters]
    if len(letters) < _rank(body):
        axes *= _rank(body)
    size, taps, stride, dilation, before, after = (
        tuple(getattr(axis, name) for axis in axes)
        for name in ('size', 'taps', 'stride', 'dilation', 'before', 'after')
    )
    try:
        conv = Convolution(
            body.get('mb', 2), body['ic'], body['oc'], size, taps, stride, (*before, *after),
            dilation, body.get('g', 1), bias, activation, transposed,
        )  # fmt: skip
    except SpecError as error:
        raise SpecError(f'spec {text!r}: {error}') from None
    return Layer(conv, name, count)


def _rank(body: dict[str, int]) -> int:
    """Axes of the image: three with a depth, two with a height, else one."""
    given = {field[-1] for field in body if len(field) == 2 and field[-1] in 'dhw'}
    return 3 if 'd' in given else 2 if 'h' in given or not given else 1


def _letters(text: str, body: dict[str, int]) -> str:
    """The axes that are given, the first of them alone where the others are like it.

    As in benchdnn: a height may stand for the width, a depth for both of the others.
    """
    whole = 'dhw'[3 - _rank(body) :]
    first, *others = whole
    for required in ('ic', 'oc', f'i{first}', f'k{first}'):
        if required not in body:
            raise SpecError(
                f'spec {text!r} lacks {required}; ic, oc, i{first} and k{first} are always needed'
            )
    if not any(field[-1] in others for field in body if len(field) == 2 and field[0] in 'ioksdp'):
        return first
    for letter in others:
        for required in (f'i{letter}', f'k{letter}'):
            if required not in body:
                raise SpecError(
                    f'spec {text!r} gives {_and(others)} but lacks {required}; give '
                    f'{" ".join(f"i{a} k{a}" for a in others)}, or leave all of them out for an '
                    f'image and a filter of the same size along every axis'
                )
    return whole


def _and(letters: Sequence[str]) -> str:
    return 'a width' if len(letters) == 1 else 'a height or a width'


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
    if after < -stride:
        fits = _Axis(size, taps, stride, dilation, before, 0, out).symmetric
        raise SpecError(
            f'spec {text!r} says o{letter}{out}, which leaves {-after} rows or columns of the '
            f'image unread; with i{letter}{size} k{letter}{taps} s{letter}{stride} '
            f'p{letter}{before} d{letter}{dilation - 1} o{letter} is {fits}'
        )
    # One window less than fit needs padding below 0; fewer rows of padding change nothing.
    axis = _Axis(
        size, taps, stride, dilation, before, after if after == -stride else max(0, after), out
    )
    return replace(axis, after=before) if axis.symmetric == out else axis


def _spread(text: str, body: dict[str, int], letter: str) -> _Axis:
    """The same of a transposed convolution: of `whole` outputs the padding is cut off.

    before = (whole - out) / 2 and after = whole - out - before; below 0, zeros are added.
    """
    size, taps = body[f'i{letter}'], body[f'k{letter}']
    stride, dilation = body.get(f's{letter}', 1), body.get(f'd{letter}', 0) + 1
    whole = (size - 1) * stride + (taps - 1) * dilation + 1
    out, before = body.get(f'o{letter}'), body.get(f'p{letter}')
    if out is None:
        before = before or 0
        out = whole - 2 * before
        if out < 1:
            raise SpecError(
                f'spec {text!r}: p{letter}{before} on both sides cuts off all of the {whole} '
                f'outputs; enlarge i{letter}, or use a smaller p{letter}'
            )
    if before is None:
        before = max(0, whole - out) // 2
    after, most = whole - out - before, max(stride, dilation)
    if after <= before - most or after > before + most:
        raise SpecError(
            f'spec {text!r} says o{letter}{out}; with i{letter}{size} k{letter}{taps} '
            f's{letter}{stride} p{letter}{before} d{letter}{dilation - 1} o{letter} is '
            f'{max(0, whole - 2 * before)}, and at most {most - 1} more'
        )
    return _Axis(size, taps, stride, dilation, before, after, out)


def _read_fields(text: str, at: int) -> tuple[dict[str, int], int]:
    """(field values, where the fields end)"""
    body: dict[str, int] = {}
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


def _typo(text: str, at: int, piece: str, problem: str) -> SpecError:
    return SpecError(f'spec {text!r}: at position {at}, {piece!r} {problem}')


def describe_line(line: str, options: Options = NO_OPTIONS) -> tuple[Options, tuple[Layer, ...]]:
    """One line of a shape list -> the options in force after it, and the layers on it.

    '#' starts a comment. `--mb=N`, `--dir=FWD_B` (adds a bias), `--dir=FWD_D` or `FWD_I` (none),
    `--attr-post-ops=relu|tanh|logistic`, `--deconv`, `--conv` and `--reset` are honoured.
    Options that would change what is computed in a way we cannot follow are refused; the others do
    not matter and are ignored.
    """
    layers = []
    for word in _words(line):
        if word.startswith('--'):
            options = _option(word, options)
        else:
            layers.append(options.apply(read_layer(word, options.transposed)))
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
    if key in ('conv', 'deconv'):
        return replace(options, transposed=key == 'deconv')
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


def read_shapes(path: Path, options: Options = NO_OPTIONS) -> tuple[Layer, ...]:
    """A shape-list file, with the files that it includes by `--batch=FILE` (beside it)."""
    layers: list[Layer] = []
    _read_into(path, options, layers, ())
    return tuple(layers)


def _read_into(
    path: Path, options: Options, layers: list[Layer], outer: tuple[Path, ...]
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
                    options = _read_into(inner, options, layers, (*outer, path.resolve()))
                    continue
                options, found = describe_line(word, options)
                layers.extend(found)
            except SpecError as error:
                if word.startswith('--batch='):
                    raise
                raise SpecError(f'{path}, line {number}: {error}') from None
    return options
