"""A machine as a plain text page, and its bandwidth curve as a plot: `tilewright machine`.

Goes in: a `Machine`, what the host reports, a curve. Comes out: text, or a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.machine.detect import HostFacts
from tilewright.machine.machine import Machine, bytes_text
from tilewright.report.pictures import canvas, save

Table = Sequence[Sequence[str]]


def aligned(rows: Table) -> list[str]:
    """Rows as lines, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append('  ' + '  '.join(cells).rstrip())
    return lines


def machine_text(
    machine: Machine, facts: HostFacts | None = None, warning: str | None = None,
    calibration: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The page: what was found (`facts`, for this host only) and what was measured."""
    how = 'measured' if machine.measured else 'nominal figures, not measured'
    lines = [f'{machine.name}: {_count(machine.cores, "core")}, {machine.isa} ({how})']
    if facts is not None:
        lines += _facts_lines(facts)
    lines += ['', *aligned(_cache_rows(machine)), '', *aligned(_rate_rows(machine)), '']
    lines.append(
        f'  clock {machine.clock_ghz:.4g} GHz, fork and join {machine.fork_join_us:.3g} us'
    )
    if calibration:
        lines += _calibration_lines(calibration)
    if machine.fingerprint:
        lines.append(f'  fingerprint {machine.fingerprint}')
    if warning:
        lines += ['', f'warning: {warning}']
    return '\n'.join(lines)


def _calibration_lines(found: Mapping[str, Any]) -> list[str]:
    def told(name: str) -> str:
        score = found[name]
        return f'rank correlation {score["rank"]:.3f}, top-1 loss {100 * score["loss"]:.1f}%'

    after, trained = found['after'], found['trained']
    lines = [
        f'  time model fitted to {trained["schedules"]} schedules of {trained["layers"]} layers; '
        f'{after["schedules"]} of {after["layers"]} others:',
        f'    {told("after")} (with the defaults {told("before")})',
    ]
    return lines + ([f'    doubtful: {found["doubtful"]}'] if found['doubtful'] else [])


def _count(number: int, noun: str) -> str:
    return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def _facts_lines(facts: HostFacts) -> list[str]:
    quota = 'none' if facts.quota is None else f'{facts.quota:g} CPUs'
    return [
        f'  {facts.arch}; can run {", ".join(facts.isas)}',
        f'  {_count(len(facts.allowed), "logical CPU")} allowed, {_count(facts.cores, "core")} '
        f'usable; cgroup quota: {quota}; caches from {facts.cache_source}',
    ]


def _cache_rows(machine: Machine) -> Table:
    rows = [['cache', 'reported', 'usable', 'line', 'ways', 'cores']]
    for cache in machine.caches:
        sizes = (bytes_text(n) for n in (cache.bytes, cache.usable_bytes, cache.line_bytes))
        rows.append([cache.name.upper(), *sizes, str(cache.ways), str(cache.shared_by)])
    return rows


def boundary_names(machine: Machine) -> list[str]:
    """'L1 -> registers', 'L2 -> L1', ..., 'memory -> L3'."""
    levels = ['registers', *(cache.name.upper() for cache in machine.caches), 'memory']
    return [f'{outer} -> {inner}' for inner, outer in pairwise(levels)]


def _rate_rows(machine: Machine) -> Table:
    rows = [['', 'one core', 'all cores', 'unit']]
    rows.append(['FMA peak', *_pair(machine.peak_one_gflops, machine.peak_all_gflops), 'GFLOP/s'])
    if machine.dot_one_gops:
        word = f'peak of {machine.dot_dtype} products'
        rows.append([word, *_pair(machine.dot_one_gops, machine.dot_all_gops), 'Gop/s'])
    if machine.tiles:
        pair = _pair(machine.tile_one_gops, machine.tile_all_gops)
        rows.append(['peak of bytes in tiles', *pair, 'Gop/s'])
    if machine.bf16:
        pair = _pair(machine.bf16_one_gflops, machine.bf16_all_gflops)
        rows.append(['peak of bf16 in tiles', *pair, 'GFLOP/s'])
    if machine.half:
        pair = _pair(machine.half_one_gflops, machine.half_all_gflops)
        rows.append(['FMA peak of f16', *pair, 'GFLOP/s'])
    rates = zip(machine.bandwidth_one_gbps, machine.bandwidth_all_gbps, strict=True)
    for name, (one, every) in zip(boundary_names(machine), rates, strict=True):
        rows.append([name, *_pair(one, every), 'GB/s'])
    return rows


def _pair(one: float, every: float) -> tuple[str, str]:
    return f'{one:.1f}', f'{every:.1f}'


def plot_curve(
    curve: Sequence[tuple[int, float, float]], machine: Machine, path: str | Path
) -> None:
    """Bandwidth over the working set of a core, with every cache's reported and usable size.

    The suffix of `path` chooses the format (.png, .svg, .pdf).
    """
    if not curve:
        raise InputError(
            f'machine {machine.name} has no bandwidth curve to plot; only a measured host has one'
        )
    figure = canvas(8, 4.5)
    axes = figure.add_subplot()
    sizes = [size for size, _, _ in curve]
    axes.plot(sizes, [one for _, one, _ in curve], 'o-', ms=3, label='one core')
    if machine.cores > 1:
        label = f'all {machine.cores} cores'
        axes.plot(sizes, [every for _, _, every in curve], 's-', ms=3, label=label)
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
    for cache in machine.caches:
        axes.axvline(cache.bytes, color='0.6', lw=0.8, ls='--')
        axes.axvline(cache.usable_bytes, color='0.2', lw=0.8)
        name = f' {cache.name.upper()} {bytes_text(cache.usable_bytes)}'
        top = axes.get_xaxis_transform()
        axes.text(cache.usable_bytes, 0.02, name, transform=top, rotation=90, va='bottom')
    ticks = [size for size in sizes if size & (size - 1) == 0][::2]
    axes.set_xticks(ticks, [bytes_text(size) for size in ticks], rotation=30)
    axes.set_xlabel('working set of each core (dashed: cache as reported, solid: usable)')
    axes.set_ylabel('read bandwidth, GB/s')
    axes.set_title(f'{machine.name}, {machine.isa}')
    axes.legend()
    save(figure, Path(path))
