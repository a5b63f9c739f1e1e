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
    """Groups with the same description in both, the longest first."""
    mine, its = _by_label(page), _by_label(other)
    who = (page.title, other.title)
    if who[0] == who[1]:
        who = (page.place, other.place) if page.place != other.place else ('this run', 'the other')
    names = {g.label: g.name for g in (*other.groups, *page.groups)}
    labels = sorted({*mine, *its}, key=lambda one: -max(mine.get(one, 0), its.get(one, 0)))
    rows = tuple((names[one], (mine.get(one), its.get(one))) for one in labels)
    kinds = ['measured' if p.total_ms is not None else 'predicted' for p in (page, other)]
    note = f'Groups that compute the same, {kinds[0]} for the first and {kinds[1]} for the second.'
    return Comparison(who, rows, (page.time_ms, other.time_ms), note)


def _by_label(page: Page) -> dict[str, float]:
    found: dict[str, float] = {}
    for group in page.groups:
        found[group.label] = found.get(group.label, 0.0) + group.total_ms
    return found


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
