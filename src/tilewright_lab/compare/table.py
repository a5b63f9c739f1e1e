"""Results as tables: text for a terminal, Markdown for pages, and the sentences below them.

Goes in: `LayerResult`s, from a run or read back from its JSON. Comes out: text. A column is there
if any layer has something in it; a contestant that could not be timed says why in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.report.grid import Grid
from tilewright_lab.compare.kinds import KINDS
from tilewright_lab.compare.results import (
    Contestant,
    LayerResult,
    failure_notes,
    geometric_mean,
    means,
    ratio_text,
    some_of,
)

NAMES = {'torch': 'PyTorch', 'onnxruntime': 'ONNX Runtime', 'openvino': 'OpenVINO', 'tvm': 'TVM'}
_MEANS = {
    'best_peer_over_ours': 'best peer / ours',
    'best_peer_over_ours_direct': 'best peer / ours direct',
    'best_direct_peer_over_ours': 'best direct peer / ours direct',
}


def grid(
    results: Sequence[LayerResult], peak_gflops: float | None = None, *, brief: bool = False
) -> Grid:
    """Layers as rows: our times, rates and shares, the peers' times, the ratios.

    `peak_gflops` is the machine's FMA peak at this thread count; with it, our share of it is shown.
    `brief` leaves out intervals and shares of bounds, for a page.
    """
    several = any(r.ours.family != 'direct' and r.kernel('direct') is not None for r in results)
    bounds = any(r.bounds for r in results) and not brief
    tops = {r.top for r in results} - {None}
    first = any(r.kernel('direct_first') for r in results) and tops != {1}
    mopt = f' (MOpt-{tops.pop()})' if len(tops) == 1 and not brief else ''
    peers = list(dict.fromkeys(p.name for r in results for p in r.peers))
    head = ['layer', 'ours ms', 'GFLOP/s', *['% peak'] * bool(peak_gflops), *['% bound'] * bounds]
    if several:
        head += [f'direct ms{mopt}', *['% peak'] * bool(peak_gflops), *['% bound'] * bounds]
    head += ['MOpt-1 ms'] * first
    head += [f'{NAMES.get(name, name) if brief else name} ms' for name in peers]
    head += ['best peer / ours', *['best peer / direct'] * several, 'best direct / direct']
    rows = []
    for result in results:
        limits = result.bounds
        cells = [
            result.name,
            *_kernel(result, result.ours, limits and limits.algorithm_ms, peak_gflops, bounds),
        ]
        if several:
            direct = result.kernel('direct')
            rate = _kernel(result, direct, limits and limits.direct_ms, peak_gflops, bounds)
            cells += [rate[0], *rate[2:]]
        cells += [_time(result, result.kernel('direct_first'))] * first
        timed = {peer.name: peer for peer in result.peers}
        cells += [_time(result, timed.get(name)) for name in peers]
        cells.append(ratio_text(result.best, brief))
        cells += [ratio_text(result.best_over_direct, True)] * several
        rows.append((*cells, ratio_text(result.best_direct, brief or several)))
    return Grid(tuple(head), tuple(rows))


def table(results: Sequence[LayerResult], peak_gflops: float | None = None) -> str:
    """The grid as text, then means, algorithms and whatever went wrong."""
    return '\n'.join([grid(results, peak_gflops).text(), '', *notes(results)])


def _kernel(
    result: LayerResult,
    kernel: Contestant | None,
    bound_ms: float | None,
    peak_gflops: float | None,
    bounds: bool,
) -> list[str]:
    """Time, rate, share of the peak and of the bound of a kernel of ours."""
    gflops, time_ms = result.gflops_of(kernel), result.time_ms(kernel)
    cells = [_time(result, kernel), f'{gflops:.1f}' if gflops else '-']
    if peak_gflops:
        cells.append(f'{100 * gflops / peak_gflops:.1f}' if gflops else '-')
    if bounds:
        cells.append(f'{100 * bound_ms / time_ms:.1f}' if bound_ms and time_ms else '-')
    return cells


def _time(result: LayerResult, contestant: Contestant | None) -> str:
    """The figure, with a letter for another family of algorithm; or why there is none.

    With flushed caches the half width of the mean's 95% interval follows it.
    """
    if contestant is None:
        return '-'
    time_ms = result.time_ms(contestant)
    if time_ms is None:
        return contestant.status
    mark = {'winograd': ' W', 'fft': ' F', '': ' ?'}.get(contestant.family, '')
    interval = contestant.mean_interval_ms if result.flush else None
    spread = f' ±{(interval[1] - interval[0]) / 2:.3f}' if interval else ''
    return f'{time_ms:.3f}{spread}{mark}'


def kind_grid(results: Sequence[LayerResult]) -> Grid:
    """Geometric means of the three ratios, by kind of convolution and over all; the least beside.

    A kind that no layer is of has no row.
    """
    rows = []
    for kind in (*KINDS, ''):
        chosen = [r for r in results if kind in ('', r.kind)]
        if not chosen:
            continue
        found = means(chosen)
        least = min((r.best.value for r in chosen if r.best), default=None)
        cells = [found[key] for key in _MEANS]
        rows.append(
            (
                kind or 'all layers',
                str(len(chosen)),
                *('-' if value is None else f'{value:.3f}' for value in (*cells, least)),
            )
        )
    return Grid(('kind', 'layers', *_MEANS.values(), 'least best peer / ours'), tuple(rows))


def notes(results: Sequence[LayerResult]) -> list[str]:
    """What the table does not show: means, algorithms, versions, failures, conditions."""
    found = [kind_grid(results).text(), ''] if results else []
    found += _model_notes(results)
    found += _used_notes('ours', '', [(r.name, r.ours) for r in results])
    for name in dict.fromkeys(p.name for r in results for p in r.peers):
        found += _peer_notes(name, results)
    for result in results:
        for kernel in (result.ours, *result.others):
            if not kernel.ok:
                which = 'ours' if kernel is result.ours else f'our {kernel.name.split(":")[-1]}'
                found.append(f'{result.name}: {which} {kernel.status}: {kernel.message}')
        found += [f'{result.name}: {result.trouble}'] * bool(result.trouble)
    everyone = [c for r in results for c in (r.ours, *r.others, *r.peers)]
    if {c.family for c in everyone if c.ok} & {'winograd', 'fft', ''}:
        found.append('W: Winograd, F: FFT, fewer multiplications than the definition; ?: not known')
    if results:
        caches, figure = 'warm', 'medians'
        if results[0].flush:
            caches, figure = 'flushed before every call', 'means of 50 calls'
        found.append(
            f'{results[0].threads} threads, float32, NCHW in and out, called from Python, weights '
            f'packed ahead by all, caches {caches}, each contestant alone; ratios of {figure} '
            f'with 95% intervals'
        )
    return found


def _model_notes(results: Sequence[LayerResult]) -> list[str]:
    """How much slower the model's first choice is than the best that was measured."""
    lines = []
    for title, chosen in (
        ('the first choice of the model, not measured (MOpt-1), over the best direct one measured',
         [(r, r.kernel('direct_first'), r.kernel('direct')) for r in results]),
        ('the first choice of the model among all algorithms over our best',
         [(r, r.kernel('first'), r.ours) for r in results]),
    ):  # fmt: skip
        ratios = [
            first / best
            for r, f, b in chosen
            if (first := r.time_ms(f)) is not None and (best := r.time_ms(b)) is not None
        ]
        mean = geometric_mean(ratios)
        if mean is not None:
            lines.append(f'{title}: geometric mean {mean:.3f}, largest {max(ratios):.3f}')
    return lines


def _peer_notes(name: str, results: Sequence[LayerResult]) -> list[str]:
    """One line with a peer's version and algorithms, one for each layer on which it failed."""
    rows = [(r.name, p) for r in results for p in r.peers if p.name == name]
    version = next((dict(p.versions).get(name, '') for _, p in rows if p.versions), '')
    lines = _used_notes(name, version, rows)
    tuned = [f'{layer} {p.tuning_s:.0f}' for layer, p in rows if p.tuning_s is not None]
    lines += [f'{name}: seconds of tuning: {", ".join(tuned)}'] * bool(tuned)
    return lines + failure_notes(name, rows, 'layers')


def _used_notes(name: str, version: str, rows: Sequence[tuple[str, Contestant]]) -> list[str]:
    """A line with the algorithms that a contestant used, if it was timed at all."""
    used: dict[str, list[str]] = {}
    for layer, contestant in rows:
        if contestant.ok:
            used.setdefault(contestant.algorithm or 'unknown', []).append(layer)
    said = '; '.join(
        f'{algorithm} ({some_of(layers, "layers")})' for algorithm, layers in used.items()
    )
    return [f'{name} {version}'.rstrip() + f': {said}'] if used else []
