"""The pictures of a page: matplotlib draws them, as SVG text whose colours follow the page.

Goes in: a `Page`. Comes out: inline SVG. Colours are marks that become CSS variables, so that light
and dark share one drawing; text stays text, and what belongs to a group can be reached by keyboard:
`data-group` is its number.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from typing import Any

from tilewright.machine.machine import bytes_text
from tilewright.report.page.data import Page, PageGroup
from tilewright.report.pictures import canvas

# Colours that nobody would draw with -> the variable of page.css.
INK, MUTED, PAPER, LINE = '#010101', '#020202', '#030303', '#040404'
KINDS = ('#050101', '#050202', '#050303', '#050404', '#050505', '#050606')
_VARIABLES = {INK: 'ink', MUTED: 'muted', PAPER: 'paper', LINE: 'line'} | {
    colour: f'kind{number}' for number, colour in enumerate(KINDS)
}
_BOX = 2.9, 0.52  # inches of a task in the graph
_GAP = 0.5, 0.24
_NAME = 30  # letters of a task's name
_BARS = 16  # groups that a chart of bars shows, the longest
_LANES = 16  # threads that the timeline shows apart


def kinds_of(page: Page) -> list[str]:
    """Algorithms without their sizes, the one that takes most time first: one colour each."""
    spent: dict[str, float] = {}
    for group in page.groups:
        spent[kind_of(group)] = spent.get(kind_of(group), 0.0) + group.total_ms
    return sorted(spent, key=lambda kind: -spent[kind])


def kind_of(group: PageGroup) -> str:
    return re.split(r'[ ,(]', group.algorithm)[0]


def colour_of(page: Page, group: PageGroup) -> str:
    return KINDS[min(kinds_of(page).index(kind_of(group)), len(KINDS) - 1)]


def words_of(group: PageGroup) -> str:
    """A group in one line, for titles and screen readers."""
    taken = f'predicted {group.predicted_ms:.3f} ms'
    if group.measured_ms is not None:
        taken += f', measured {group.measured_ms:.3f} ms'
    return f'{group.name}, {group.algorithm}: {taken}, bound {group.bound_ms:.3f} ms'


def graph_svg(page: Page) -> str:
    """Tasks in layers from the top; the darker a box, the more of the time it takes."""
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path

    places = _layout(page)
    columns = max(x for x, _ in places) + 1
    rows = max(y for _, y in places) + 1
    wide, high = _BOX[0] + _GAP[0], _BOX[1] + _GAP[1]
    figure = canvas(columns * wide + 0.6, rows * high)
    axes = _bare(figure, (0, columns * wide + 0.6), (rows * high, 0))
    most = max(page.groups[t.group].time_ms for t in page.tasks)
    at = [(x * wide + _GAP[0] / 2, y * high + _GAP[1] / 2) for x, y in places]
    for number, task in enumerate(page.tasks):
        x, y = at[number]
        for before in task.after:
            from_x, from_y = at[before][0], at[before][1] + _BOX[1]
            spans = places[number][1] - places[before][1]
            start, end = (from_x + _BOX[0] / 2, from_y), (x + _BOX[0] / 2, y)
            middle = [(start[0], (start[1] + end[1]) / 2), (end[0], (start[1] + end[1]) / 2)]
            if spans > 1 and places[number][0] == places[before][0]:
                start, end = (
                    (from_x + _BOX[0], from_y - _BOX[1] / 2),
                    (x + _BOX[0], y + _BOX[1] / 2),
                )
                out = _BOX[0] + min(0.55, 0.18 + 0.08 * spans)
                middle = [(from_x + out, start[1]), (x + out, end[1])]
            curve = Path([start, *middle, end], [Path.MOVETO, *[Path.CURVE4] * 3])
            axes.add_patch(PathPatch(curve, fill=False, edgecolor=LINE, linewidth=1.2))
            tip = [(-0.05, -0.09), (0.05, -0.09)] if end[1] == y else [(0.09, -0.05), (0.09, 0.05)]
            arrow = [end, *((end[0] + dx, end[1] + dy) for dx, dy in tip)]
            axes.fill(*zip(*arrow, strict=True), color=LINE, linewidth=0)
    for number, task in enumerate(page.tasks):
        group, (x, y) = page.groups[task.group], at[number]
        style = 'round,pad=0,rounding_size=0.06'
        axes.add_patch(
            FancyBboxPatch((x, y), *_BOX, boxstyle=style, facecolor=PAPER, edgecolor='none')
        )
        axes.add_patch(
            FancyBboxPatch(
                (x, y), *_BOX, boxstyle=style, facecolor=colour_of(page, group),
                alpha=0.12 + 0.5 * group.time_ms / most, edgecolor='none',
            )
        )  # fmt: skip
        axes.add_patch(
            FancyBboxPatch(
                (x, y), *_BOX, boxstyle=style, fill=False, edgecolor=colour_of(page, group),
                linewidth=1, gid=f'hit-{task.group}-{number}',
            )
        )  # fmt: skip
        axes.text(x + 0.09, y + 0.22, task.name[-_NAME:], fontsize=9.5, weight='bold', color=INK)
        said = [f'{task.time_ms:.3f} ms', bytes_text(group.bytes), group.precision, kind_of(group)]
        axes.text(x + 0.09, y + 0.42, '  ·  '.join(said), fontsize=8, color=INK)
    return _svg(figure, 'graph', page)


def _layout(page: Page) -> list[tuple[float, float]]:
    """(column, layer) of every task: layers by longest path, columns near those that are read."""
    layers: list[int] = []
    for task in page.tasks:
        layers.append(max((layers[b] + 1 for b in task.after), default=0))
    columns: list[float] = [0.0] * len(page.tasks)
    for layer in range(max(layers) + 1):
        here = [n for n, at in enumerate(layers) if at == layer]

        def near(number: int) -> float:
            before = page.tasks[number].after
            return min((columns[b] for b in before), default=0.0)

        for column, number in enumerate(sorted(here, key=near)):
            columns[number] = max(float(column), 0.0)
    return list(zip(columns, map(float, layers), strict=True))


def timeline_svg(page: Page) -> str:
    """A row for each thread or stream, a bar for each task on the rows that it uses."""
    lanes = page.lanes[:_LANES]
    figure = canvas(12, 0.8 + 0.34 * len(lanes))
    axes = figure.subplots()
    _plain(axes)
    for number, task in enumerate(page.tasks):
        group = page.groups[task.group]
        axes.barh(
            range(min(group.threads, len(lanes))), task.time_ms, left=task.start_ms, height=0.8,
            color=colour_of(page, group), edgecolor=PAPER, linewidth=0.4,
            gid=f'hit-{task.group}-{number}',
        )  # fmt: skip
    for container, task in zip(axes.containers, page.tasks, strict=True):
        for bar in container:
            bar.set_gid(f'hit-{task.group}-{id(bar)}')
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlabel('milliseconds since the call began')
    return _svg(figure, 'timeline', page)


def roofline_svg(page: Page) -> str:
    """Operations a second over operations a byte, under the peak and every memory's bandwidth."""
    figure = canvas(7.2, 5.6)
    axes = figure.subplots()
    _plain(axes)
    counted = [(n, g) for n, g in enumerate(page.groups) if g.flops and g.bytes]
    intensities = [g.flops / g.bytes for _, g in counted] or [1.0]
    low, high = min(*intensities, 1.0) / 2, max(*intensities, 10.0) * 3
    rates = [g.flops / ms / 1e6 for _, g in counted for ms in {g.time_ms, g.predicted_ms}]
    rates = rates or [page.peak_gflops]
    floor, top = min(*rates, page.peak_gflops) / 2, max(*rates, page.peak_gflops) * 1.6
    # Along a line of one decade up for one to the right, in the part of the figure that axes have.
    decades = math.log(top / floor), math.log(high / low)
    angle = math.degrees(math.atan2(4.9 / decades[0], 6.4 / decades[1]))
    for name, gbps in page.roofs:
        knee = min(page.peak_gflops / gbps, high)
        if knee > low:
            axes.plot([low, knee], [gbps * low, gbps * knee], color=MUTED, linewidth=1)
            at = max(low, floor / gbps)
            axes.text(
                at, gbps * at, f'    {name} {gbps:.0f} GB/s', fontsize=8, color=MUTED, va='bottom',
                rotation=angle, rotation_mode='anchor',
            )  # fmt: skip
    start = min((page.peak_gflops / gbps for _, gbps in page.roofs), default=low)
    axes.plot([start, high], [page.peak_gflops] * 2, color=INK, linewidth=1.4)
    axes.annotate(
        f'peak {page.peak_gflops:.0f} GFLOP/s', (max(start, low), page.peak_gflops), fontsize=8,
        color=INK, xytext=(4, 4), textcoords='offset points',
    )  # fmt: skip
    for number, group in counted:
        at, colour = group.flops / group.bytes, colour_of(page, group)
        size = 50 + 500 * group.total_ms / max(page.time_ms, 1e-9)
        done = group.flops / group.time_ms / 1e6
        axes.scatter(
            [at], [done], s=size, color=colour, alpha=0.75, edgecolors=PAPER, zorder=3,
            gid=f'hit-{number}-{number}',
        )  # fmt: skip
        if group.measured_ms is not None:
            said = group.flops / group.predicted_ms / 1e6
            axes.plot([at, at], [said, done], color=colour, linewidth=1)
            axes.plot([at], [said], marker='_', markersize=9, color=colour)
    axes.set_xscale('log')
    axes.set_yscale('log')
    axes.set_xlim(low, high)
    axes.set_ylim(floor, top)
    axes.set_xlabel('operations for each byte that must be moved')
    axes.set_ylabel('GFLOP/s of the definition')
    return _svg(figure, 'roofline', page)


def times_svg(page: Page) -> str:
    """Predicted, measured and bound of the groups that take longest."""
    shown = sorted(enumerate(page.groups), key=lambda item: -item[1].total_ms)[:_BARS]
    figure = canvas(7.2, 0.8 + 0.34 * len(shown))
    axes = figure.subplots()
    _plain(axes)
    for row, (number, group) in enumerate(shown):
        count, colour = len(group.tasks), colour_of(page, group)
        both = group.measured_ms is not None
        for offset, time, alpha in (
            (-0.2, group.predicted_ms, 0.45), (0.2, group.measured_ms, 0.95)
        ):  # fmt: skip
            if time is not None:
                (bar,) = axes.barh(
                    row + (offset if both else 0), count * time, height=0.38 if both else 0.7,
                    color=colour, alpha=alpha,
                )  # fmt: skip
                bar.set_gid(f'hit-{number}-{row}-{offset}')
        axes.plot([count * group.bound_ms] * 2, [row - 0.42, row + 0.42], color=INK, linewidth=2)
    names = [f'{len(g.tasks)}× {g.name[-24:]}' for _, g in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.invert_yaxis()
    axes.set_xlabel('milliseconds of all tasks of a kind; the upright line is the bound')
    return _svg(figure, 'times', page)


def compare_svg(
    page: Page, rows: Sequence[tuple[str, Sequence[float | None]]], who: Sequence[str]
) -> str:
    """Bars side by side: a row for each thing that both runs have."""
    shown = rows[:_BARS]
    figure = canvas(7.2, 0.9 + 0.2 * len(who) * len(shown) + 0.12 * len(shown))
    axes = figure.subplots()
    _plain(axes)
    height = 0.8 / len(who)
    for number, name in enumerate(who):
        for row, (_, times) in enumerate(shown):
            if times[number] is not None:
                axes.barh(
                    row - 0.4 + height * (number + 0.5), times[number], height=0.9 * height,
                    color=KINDS[number % len(KINDS)], label=name if row == 0 else None,
                )  # fmt: skip
    axes.set_yticks(range(len(shown)), [name[-28:] for name, _ in shown])
    axes.invert_yaxis()
    axes.set_xlabel('milliseconds')
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = axes.legend(handles, labels, frameon=False, fontsize=8)
        for text in legend.get_texts():
            text.set_color(INK)
    return _svg(figure, 'compare', page)


def _bare(figure: Any, x: tuple[float, float], y: tuple[float, float]) -> Any:
    """Axes that are not drawn, with one inch for one unit."""
    figure.set_layout_engine('none')
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    return axes


def _plain(axes: Any) -> None:
    axes.set_facecolor('none')
    for side, spine in axes.spines.items():
        spine.set_visible(side in ('left', 'bottom'))
        spine.set_color(LINE)
    axes.tick_params(colors=INK, which='both', labelsize=9)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    axes.grid(axis='x', color=LINE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def _svg(figure: Any, name: str, page: Page) -> str:
    """The figure as an element of the page: no header, names of its own, colours as variables."""
    import matplotlib

    figure.patch.set_alpha(0)
    made = io.StringIO()
    with matplotlib.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name}):
        figure.savefig(made, format='svg', metadata={'Date': None})
    text = made.getvalue()
    text = text[text.index('<svg') :]
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
    text = re.sub(r' id="hit-(\d+)[^"]*"', lambda m: _hit(page, int(m[1])), text)
    text = re.sub(r' id="((?!p[0-9a-f]{10}|m[0-9a-f]{10})[^"]*)"', '', text)
    text = re.sub(r'(id="|#)([pm][0-9a-f]{10})', rf'\1{name}-\2', text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f'var(--{variable})')
    text = re.sub(r"font: ([^;\"]*?)'[^;\"]*", r'font: \1system-ui, sans-serif', text)
    return re.sub(r'<svg ', '<svg aria-hidden="false" ', text, count=1)


def _hit(page: Page, number: int) -> str:
    label = html.escape(words_of(page.groups[number]), quote=True)
    return f' class="hit" data-group="{number}" tabindex="0" role="button" aria-label="{label}"'
