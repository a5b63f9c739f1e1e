"""Two runs side by side: before and after, or ours and the peers of `tilewright bench`.

Goes in: a page, and another page or the JSON of a comparison. Comes out: a `Comparison`, rows of
milliseconds by who took them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import InputError
from tilewright.report.page.data import Page

Times = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows` are (what, milliseconds of each); the first of `who` is ours."""

    who: tuple[str, ...]
    rows: tuple[tuple[str, Times], ...]
    totals: Times
    note: str


def compare_pages(page: Page, other: Page) -> Comparison:
    """Our groups, the longest first, beside the same tasks or the same kernels of the other."""
    times = {task.name: task.time_ms for task in other.tasks}
    alike = {group.label: group.time_ms for group in other.groups}
    left, rows = set(times), []
    for group in sorted(page.groups, key=lambda one: -one.total_ms):
        theirs = None
        if times.keys() >= set(group.tasks):
            theirs = sum(times[name] for name in group.tasks)
            left -= set(group.tasks)
        elif group.label in alike:
            theirs = len(group.tasks) * alike[group.label]
            left -= {n for g in other.groups if g.label == group.label for n in g.tasks}
        rows.append((group.name, (group.total_ms, theirs)))
    if left:
        rows.append(('tasks of the other alone', (None, sum(times[name] for name in left))))
    kinds = ['measured' if p.total_ms is not None else 'predicted' for p in (page, other)]
    return Comparison(
        _who(page, other), tuple(rows), (page.time_ms, other.time_ms),
        f'The same tasks of both, {kinds[0]} for the first and {kinds[1]} for the second.',
    )  # fmt: skip


def _who(page: Page, other: Page) -> tuple[str, str]:
    """What tells the two runs apart, as short as it can be said."""
    if page.title != other.title:
        return page.title, other.title
    pieces = [p.place.split(', ') for p in (page, other)]
    apart = [', '.join(x for x in mine if x not in its) for mine, its in (pieces, pieces[::-1])]
    return (apart[0], apart[1]) if all(apart) else ('this run', 'the other')


def compare_bench(page: Page, data: Mapping[str, Any], path: object) -> Comparison:
    """Ours and the peers as `tilewright bench --json` measured them, of what the page shows."""
    try:
        measured = {
            one['name']: _contestants(one.get('comparison', one))
            for one in data.get('networks') or data['layers']
        }
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f'{path} is not a comparison of bench: {error!r}') from None
    wanted = {page.title, *(task.name for task in page.tasks)}
    rows = {name: times for name, times in measured.items() if name in wanted}
    if not rows:
        raise InputError(
            f'{path} compares {", ".join(measured)}, and not {page.title}; give a file of the same '
            f'network or layers'
        )
    who = tuple(dict.fromkeys(name for times in rows.values() for name in times))
    table = tuple((name, tuple(times.get(one) for one in who)) for name, times in rows.items())
    totals = tuple(_total([times[n] for _, times in table]) for n in range(len(who)))
    ours, *peers = range(len(who))
    peers.sort(key=lambda n: (totals[n] is None, totals[n] or 0.0))
    order = (ours, *peers)
    return Comparison(
        tuple(who[n] for n in order),
        tuple((name, tuple(times[n] for n in order)) for name, times in table),
        tuple(totals[n] for n in order),
        'Medians of interleaved rounds on one machine, as bench measured them.',
    )


def _contestants(one: Mapping[str, Any]) -> dict[str, float | None]:
    """name -> milliseconds, ours first."""
    if 'contestants' in one:
        return {c['name']: _scaled(c.get('median_us')) for c in one['contestants']}
    return {c['name']: c.get('median_ms') for c in (one['ours'], *one['peers'])}


def _scaled(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / 1e3


def _total(times: Sequence[float | None]) -> float | None:
    known = [t for t in times if t is not None]
    return sum(known) if len(known) == len(times) else None
