"""GTuner's Figure 8 (DAC'22, Sec. 4.3): the searches of Figure 7, subgraph by subgraph.

Goes in: measured groups, or what `gtuner-fig7` wrote. Comes out: for each test group the best time
of each search after ten and after all trials over the best that was measured, means over seeds; the
JSON is that of Figure 7 (tilewright_lab/figures/gtuner_fig7.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.rank.counts import Array
from tilewright_lab.figures.gtuner_fig7 import run
from tilewright_lab.figures.pictures import aligned, canvas, save

__all__ = ['plot', 'run', 'text']
EARLY = 10  # trials after which searches differ most


def _means(found: Mapping[str, Any], trials: int) -> dict[str, Array]:
    """By search, of each group: the best of so many trials over the best of all, mean of seeds."""
    return {
        row['search']: np.array(row['curves'])[:, :, trials - 1].mean(0) for row in found['layers']
    }


def _names(found: Mapping[str, Any]) -> list[str]:
    """Groups by channels, image, window and what follows the products; the label where it says
    something else.
    """
    return [_short(group['label']) for group in found['groups']]


def _short(label: str) -> str:
    sizes, _, rest = label.partition('+')
    numbers = _sizes(sizes)
    if not {'ic', 'ih', 'oc', 'kh', 'sh'} <= set(numbers):
        return label
    stride = f'/{numbers["sh"]}' if numbers['sh'] > 1 else ''
    window = f'{numbers["kh"]}x{numbers.get("kw", numbers["kh"])}{stride}'
    return f'{numbers["ic"]}-{numbers["oc"]} {numbers["ih"]}^2 {window} {rest}'.strip()


def _sizes(text: str) -> dict[str, int]:
    """Sizes of a label in benchdnn's form: mb1ic64ih56... -> {'mb': 1, 'ic': 64, ...}"""
    found: dict[str, int] = {}
    name = digits = ''
    for letter in text + 'x':
        if letter.isdigit():
            digits += letter
            continue
        if digits:
            found[name], name, digits = int(digits), '', ''
        name += letter
    return found


def rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(head, a row for each subgraph): two columns a search."""
    last = found['trials']
    early, late = _means(found, min(EARLY, last)), _means(found, last)
    head = ['subgraph', 'networks', 'best us']
    head += [f'{name} {n}' for name in early for n in (min(EARLY, last), last)]
    body = []
    for number, (name, group) in enumerate(zip(_names(found), found['groups'], strict=True)):
        pairs = zip(early.values(), late.values(), strict=True)
        cells = [f'{values[number]:.3f}' for pair in pairs for values in pair]
        body.append([name, ', '.join(group['networks']), f'{group["best_us"]:.2f}', *cells])
    return head, body


def text(found: dict[str, Any]) -> str:
    """The figure in numbers."""
    last = found['trials']
    head, body = rows(found)
    return '\n'.join(
        [
            f'best time after {min(EARLY, last)} and {last} trials over the best measured, mean of '
            f'{len(found["seeds"])} seeds, by subgraph',
            '', *aligned([head, *body]),
        ]
    )  # fmt: skip


def plot(found: dict[str, Any], path: Path) -> None:
    """After ten trials, a group of bars for each subgraph."""
    figure = canvas(12, 5)
    axis = figure.subplots()
    searches = _means(found, min(EARLY, found['trials']))
    at, width = np.arange(len(found['groups'])), 0.8 / len(searches)
    for number, (name, values) in enumerate(searches.items()):
        axis.bar(at + width * number, values, width, label=name)
    axis.set_xticks(at + 0.4 - width / 2, _names(found), rotation=60, ha='right', fontsize=7)
    axis.set_ylabel(f'best of {EARLY} trials over the best measured')
    axis.set_ylim(bottom=0.98)
    axis.legend()
    save(figure, path)
