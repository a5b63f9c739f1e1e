"""Data -> one HTML file that needs nothing else: style, script, pictures and tables are in it.

Every picture stands beside a table or a list with the same figures, so that nothing is said by a
picture alone; all that can be clicked can be reached by keyboard.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from tilewright.machine.machine import bytes_text
from tilewright.report.page.charts import (
    KINDS,
    compare_svg,
    graph_svg,
    kind_of,
    kinds_of,
    roofline_svg,
    timeline_svg,
    times_svg,
    words_of,
)
from tilewright.report.page.compare import Comparison
from tilewright.report.page.data import Page, PageGroup
from tilewright.version import VERSION

_GRAPH_TASKS = 400  # more are a list only: nobody finds anything in a picture of them


def compose(page: Page, other: Comparison | None = None) -> str:
    """[Page] -> [HTML]"""
    links = [('network', 'Network'), ('timeline', 'Timeline'), ('roofline', 'Roofline'),
             ('groups', 'Groups'), ('what-if', 'What if')]  # fmt: skip
    parts = [_network(page), _timeline(page), _roofline(page), _groups(page), _what_if(page)]
    if other is not None:
        links.insert(0, ('compare', 'Comparison'))
        parts.insert(0, _compare(page, other))
    nav = ''.join(f'<a href="#{to}">{name}</a>' for to, name in links)
    style, script = _file('page.css'), _file('page.js')
    notes = ''.join(f'<p>{escape(note)}</p>' for note in page.notes)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f'<title>{escape(page.title)}: Tilewright report</title><style>{style}</style></head><body>'
        f'<header><a class="skip" href="#main">Skip to the figures</a><h1>{escape(page.title)}</h1>'
        f'<p class="place">{escape(page.place)}</p>{_tiles(page)}'
        f'<nav aria-label="Sections">{nav}</nav></header>'
        f'<main id="main"><div id="said" role="status" class="skip"></div>{"".join(parts)}</main>'
        f'<footer>{notes}<p>Made by Tilewright {VERSION}.</p></footer>'
        f'<script>{script}</script></body></html>\n'
    )


def _file(name: str) -> str:
    return (resources.files('tilewright.report.page') / name).read_text()


def _ms(value: float | None) -> str:
    if value is None:
        return '–'
    return f'{value:.3f}' if value >= 0.01 else f'{value:.2g}'


def _tiles(page: Page) -> str:
    left = max(0.0, 1 - page.bound_ms / max(page.time_ms, 1e-12))
    tiles = [
        (f'{_ms(page.predicted_ms)} ms', 'predicted'),
        (f'{_ms(page.total_ms)} ms' if page.total_ms is not None else 'not measured', 'measured'),
        (f'{_ms(page.bound_ms)} ms', 'sum of the bounds'),
        (f'{left:.0%}', 'of the time above the bound'),
        (str(len(page.tasks)), f'tasks of {len(page.groups)} kinds'),
    ]
    made = ''.join(f'<div class="tile"><b>{b}</b><span>{s}</span></div>' for b, s in tiles)
    return f'<div class="tiles">{made}</div>'


def _section(name: str, title: str, body: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>'
        f'{body}</section>'
    )


def _figure(svg: str, label: str, caption: str) -> str:
    svg = svg.replace('<svg aria-hidden="false"', f'<svg role="group" aria-label="{escape(label)}"')
    return f'<figure>{svg}<figcaption>{caption}</figcaption></figure>'


def _legend(page: Page) -> str:
    items = ''.join(
        f'<li><i style="background:var(--kind{min(n, len(KINDS) - 1)})"></i>{escape(kind)}</li>'
        for n, kind in enumerate(kinds_of(page))
    )
    return f'<ul class="legend">{items}</ul>'


def _network(page: Page) -> str:
    ordered = sorted(enumerate(page.groups), key=lambda item: -item[1].total_ms)
    details = ''.join(_details(page, *item, is_open=n == 0) for n, item in enumerate(ordered))
    if len(page.tasks) <= _GRAPH_TASKS:
        svg = graph_svg(page).replace(
            '<svg aria-hidden="false"', '<svg role="group" aria-label="Graph of the tasks"'
        )
        graph = (
            f'<div class="pane" tabindex="0" role="region" aria-label="Graph of tasks">{svg}</div>'
        )
    else:
        graph = f'<p class="note">{len(page.tasks)} tasks are too many for a picture.</p>'
    return _section(
        'network',
        'Network',
        f'{_legend(page)}<div class="two"><div>{graph}<p class="note">Each box is one task: time, '
        f'bytes that it must move, precision, algorithm. The stronger the colour, the longer it '
        f'takes. Choose one, or move by arrow keys and press Enter.</p></div>'
        '<div><div class="pane list" tabindex="0" role="region" aria-label="Groups, longest first">'
        f'{details}</div></div></div>',
    )


def _details(page: Page, number: int, group: PageGroup, *, is_open: bool) -> str:
    count = len(group.tasks)
    total = max(sum(ms for _, ms in group.parts), 1e-12)
    bars = ''.join(
        f'<i style="width:{100 * ms / total:.2f}%;background:var(--kind{n % len(KINDS)})"></i>'
        for n, (_, ms) in enumerate(group.parts)
    )
    made = ', '.join(f'{_ms(ms)} ms {escape(name)}' for name, ms in group.parts)
    taken = f'predicted {_ms(group.predicted_ms)} ms'
    if group.measured_ms is not None:
        ratio = group.measured_ms / group.predicted_ms
        taken += f', measured {_ms(group.measured_ms)} ms ({ratio:.2f} of it)'
    why = ' '.join(escape(line) for line in group.why)
    loops = escape('\n'.join(group.loops))
    share = group.total_ms / max(page.time_ms, 1e-12)
    return (
        f'<details id="group-{number}" data-group="{number}"{" open" if is_open else ""} '
        f'data-words="{escape(words_of(group), quote=True)}">'
        f'<summary><b>{escape(group.name)}</b>{f" and {count - 1} more" if count > 1 else ""}'
        f'<span>{_ms(group.total_ms)} ms, {share:.1%}</span></summary>'
        f'<p>{escape(group.label)}</p>'
        f'<p><b>{escape(group.algorithm)}</b>, limited by {escape(group.limit)}: {taken}, '
        f'bound {_ms(group.bound_ms)} ms, so that {_ms(group.left_ms)} ms of all its tasks '
        f'are left to the bound.</p>'
        + (f'<p>{why}</p>' if why else '')
        + f'<div class="parts" aria-hidden="true">{bars}</div><p>Predicted: {made}.</p>'
        f'<p>{"<br>".join(map(escape, group.runner_up))}</p><pre>{loops}</pre></details>'
    )


def _timeline(page: Page) -> str:
    note = 'measured' if page.total_ms is not None else 'predicted'
    rows = [
        [_pick(t.group, t.name), _number(t.start_ms), _number(t.time_ms),
         str(min(page.groups[t.group].threads, len(page.lanes))),
         escape(kind_of(page.groups[t.group]))]
        for t in page.tasks
    ]  # fmt: skip
    table = _table(
        'Tasks in the order in which they run', ['task', 'start ms', 'ms', 'lanes', 'how'], rows
    )
    return _section(
        'timeline',
        'Timeline',
        _figure(
            timeline_svg(page),
            'Tasks over time on each thread or stream',
            f'{note.capitalize()} times, one task after the other on the threads that it uses.',
        )
        + f'<details><summary>As a table</summary>{table}</details>',
    )


def _roofline(page: Page) -> str:
    rows = [
        [_pick(n, g.name), f'{g.flops / g.bytes if g.bytes else 0.0:.2f}',
         f'{g.flops / g.time_ms / 1e6:.1f}',
         f'{100 * g.flops / g.time_ms / 1e6 / page.peak_gflops:.1f}', escape(g.limit)]
        for n, g in enumerate(page.groups)
    ]  # fmt: skip
    head = ['group', 'operations a byte', 'GFLOP/s', '% of peak', 'limit']
    left = _figure(
        roofline_svg(page), 'Roofline of all groups',
        'Area is the share of the time. Winograd and FFT may stand above the peak: they perform '
        'fewer operations than the definition has.',
    )  # fmt: skip
    right = _figure(
        times_svg(page), 'Time and bound of all groups',
        'Light is predicted, full is measured where it was; the line is what nothing can beat.',
    )  # fmt: skip
    table = _table('Every group of the roofline', head, rows)
    return _section(
        'roofline',
        'Roofline, and predicted beside measured',
        f'{_legend(page)}<div class="two"><div>{left}</div><div>{right}</div></div>'
        f'<details><summary>As a table</summary>{table}</details>',
    )


def _groups(page: Page) -> str:
    rows = []
    for number, g in sorted(enumerate(page.groups), key=lambda item: -item[1].total_ms):
        n = len(g.tasks)
        rows.append(
            [_pick(number, g.name), str(n), _number(n * g.predicted_ms),
             '–' if g.measured_ms is None else _number(n * g.measured_ms),
             _number(n * g.bound_ms), f'{100 * g.bound_ms / g.time_ms:.1f}', _number(g.left_ms),
             bytes_text(g.bytes), escape(g.precision),
             escape(g.limit), escape(g.algorithm)]
        )  # fmt: skip
    head = ['group', 'tasks', 'predicted ms', 'measured ms', 'bound ms', '% of bound', 'left ms',
            'bytes each', 'precision', 'limit', 'how']  # fmt: skip
    return _section('groups', 'Groups', _table('Times of all tasks of a kind together', head, rows))


def _what_if(page: Page) -> str:
    grid = page.what_if
    if grid is None:
        return _section('what-if', 'What if', '<p class="note">There is no grid in this file.</p>')
    sliders = ''.join(
        f'<div class="slider"><label for="axis-{n}">{escape(axis["name"])}</label>'
        f'<input type="range" id="axis-{n}" min="0" max="{len(axis["values"]) - 1}" step="1" '
        f'value="{axis["now"]}" list="ticks-{n}"><output id="shown-{n}" for="axis-{n}"></output>'
        f'</div>'
        for n, axis in enumerate(grid['axes'])
    )
    data = json.dumps({'axes': grid['axes'], 'values': grid['values']}).replace('<', '\\u003c')
    return _section(
        'what-if',
        'What if',
        f'{sliders}<p class="answer" role="status"><b id="what-if-time"></b> predicted, '
        f'<span id="what-if-ratio"></span></p><div class="parts" aria-hidden="true">'
        f'<i id="what-if-compute" style="background:var(--kind0)"></i>'
        f'<i style="background:var(--kind1);flex:1"></i></div>'
        f'<p class="note"><span id="what-if-share"></span>; the rest is memory, copies and '
        f'threads. <button class="link" id="what-if-reset" type="button">Back to this machine'
        f'</button></p><p class="note">{escape(grid["fixed"])} Answers were computed by the model '
        f'for all {len(grid["values"])} combinations when the page was made.</p>'
        f'<script type="application/json" id="what-if-data">{data}</script>',
    )


def _compare(page: Page, other: Comparison) -> str:
    rows = [
        [escape(name), *(_number(t) if t is not None else '–' for t in times),
         _ratio(times[0], times[1])]
        for name, times in (*other.rows, ('total', other.totals))
    ]  # fmt: skip
    head = ['what', *(f'{who} ms' for who in other.who), 'times as fast']
    picture = _figure(
        compare_svg(page, other.rows or [('total', other.totals)], other.who),
        f'{other.who[0]} against {", ".join(other.who[1:])}', escape(other.note),
    )  # fmt: skip
    lead = ''
    if other.totals[0] and other.totals[1]:
        ratio = other.totals[1] / other.totals[0]
        word = 'better' if ratio >= 1 else 'worse'
        lead = (
            f'<p class="answer">{escape(other.who[0])} takes {_ms(other.totals[0])} ms and '
            f'{escape(other.who[1])} {_ms(other.totals[1])} ms: <b class="{word}">{ratio:.2f}'
            f'</b> times as fast.</p>'
        )
    table = _table('Milliseconds', head, rows)
    return _section(
        'compare',
        'Comparison',
        f'{lead}<div class="two"><div>{picture}</div><div>{table}</div></div>',
    )


def _ratio(ours: float | None, theirs: float | None) -> str:
    if not ours or not theirs:
        return '–'
    ratio = theirs / ours
    word = 'better' if ratio > 1.01 else 'worse' if ratio < 0.99 else ''
    return f'<span class="{word}">{ratio:.2f}</span>'


def _pick(number: int, name: str) -> str:
    return f'<button class="link" type="button" data-select="{number}">{escape(name)}</button>'


def _number(value: float) -> str:
    return _ms(value) if value < 1000 else f'{value:,.0f}'


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = ''.join(
        f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in head
    )
    body = ''.join('<tr>' + ''.join(f'<td>{cell}</td>' for cell in row) + '</tr>' for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f'<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>'
        f'</table></div>'
    )
