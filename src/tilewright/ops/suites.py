"""Named suites of layers, and what users may write where a layer or a list of layers is wanted.

    mopt            the 32 layers of MOpt's Table 1       mopt/R2      one of them
    cnnopt, boda    the 20 and the 43 of those papers     resnet18     with counts
    benchdnn:FILE   a shape-list file                     mb1ic64...   a spec (ops/specs.py)

and lists of these, separated by commas. A suite is a shape-list file of this package, in `suites/`.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from importlib import resources
from pathlib import Path

from tilewright import knobs
from tilewright.errors import SpecError
from tilewright.ops.group import Group
from tilewright.ops.specs import (
    FIELDS,
    Layer,
    describe_line,
    read_layer,
    read_shapes,
)

SUITES = ('mopt', 'cnnopt', 'boda', 'resnet18')
_FILE = 'benchdnn:'
_SPEC = re.compile(f'_*({"|".join(FIELDS)})[0-9]')
_EXAMPLE = 'mb1ic64ih56oc64oh56kh3ph1'


@cache
def suite(name: str) -> tuple[Layer, ...]:
    """The layers of a named suite, in the order of its source."""
    if name not in SUITES:
        raise SpecError(f'suite {name!r} is not known{_near(name, SUITES)}')
    text = resources.files('tilewright.ops').joinpath('suites', f'{name}.txt').read_text()
    return tuple(layer for line in text.splitlines() for layer in describe_line(line)[1])


def parse(text: str) -> Group:
    """One layer: benchdnn notation, or 'suite/NAME'. The public `tilewright.parse`."""
    layers = expand(text)
    if len(layers) != 1:
        raise SpecError(f'{text!r} names {len(layers)} layers; name one, such as {layers[0][0]}')
    return layers[0][1]


def expand(text: str, batch: int | None = None) -> list[tuple[str, Group, int]]:
    """(name, group, count) of every layer that `text` names. `batch` overrides each batch size."""
    if not isinstance(text, str):
        raise SpecError(f'a layer is named by text, not by {text!r}; an example: {_EXAMPLE}')
    named: list[tuple[str, Layer]] = []
    for piece in _pieces(text):
        if piece.startswith(_FILE):
            named += [(layer.name, layer) for layer in _shape_list(piece[len(_FILE) :])]
        else:
            named += _layers(piece)
    if not named:
        raise SpecError(f'{text!r} names no convolution; an example: mopt/R2')
    names = _distinct([name or layer.conv.label for name, layer in named])
    return [
        (name, changed.group, changed.count)
        for name, (_, layer) in zip(names, named, strict=True)
        for changed in (layer.with_batch(batch),)
    ]


def _pieces(text: str) -> list[str]:
    """Split at commas that are not inside a quoted name."""
    found = re.findall(r'(?:"[^"]*"|[^,"]|")+', text)
    return [piece.strip() for piece in found if piece.strip()]


def _layers(piece: str) -> list[tuple[str, Layer]]:
    first, slash, layer_name = piece.partition('/')
    if piece in SUITES:
        return [(f'{piece}/{layer.name}', layer) for layer in suite(piece)]
    if slash and re.fullmatch(r'[A-Za-z]\w*', first) and not _SPEC.match(first):
        layers = {layer.name: layer for layer in suite(first)}
        if layer_name not in layers:
            raise SpecError(
                f'suite {first} has no layer {layer_name!r}{_near(layer_name, tuple(layers))}'
            )
        return [(piece, layers[layer_name])]
    if re.fullmatch(r'[A-Za-z]+', piece) or difflib.get_close_matches(piece, SUITES):
        raise SpecError(f'{piece!r} is neither a spec nor a suite{_near(piece, SUITES)}')
    layer = read_layer(piece)
    return [(layer.name, layer)]


def _shape_list(name: str) -> tuple[Layer, ...]:
    """A shape list by path, or by name in the directory of data sets (TILEWRIGHT_SHARED)."""
    path = Path(name)
    shared = knobs.get('shared')
    if not path.exists() and shared is not None:
        for folder in (shared / 'benchdnn', shared / 'data' / 'benchdnn'):
            for candidate in (folder / name, folder / f'{name}.txt'):
                if candidate.is_file():
                    return read_shapes(candidate)
    return read_shapes(path)


def _distinct(names: list[str]) -> list[str]:
    """Names with '#2', '#3', ... behind those that occur again."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f'{name}#{seen[name]}')
    return out


def _near(word: str, known: tuple[str, ...]) -> str:
    """'; did you mean ...' for an error message."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(lowered), 3, 0.5)
    if near:
        return f'; did you mean {", ".join(lowered[n] for n in near)}?'
    shown = ', '.join(known[:12]) + (', ...' if len(known) > 12 else '')
    return f'; known: {shown}'
