"""MOpt's Fig. 7 (Sec. 10): our kernels and other libraries, relative to one of them, by layer.

Goes in: the JSON of `tilewright bench` (docs/contracts.md). Comes out: for every layer the time of
each column and its performance relative to the baseline, with 95% intervals; geometric means.

    MOpt-1    the direct schedule that the model puts first, whatever measuring says
    MOpt-5    the best measured of the five direct ones that the model puts first
    ours      the best kernel of all algorithms

The paper's baseline is TVM; here it is the peer of `BASELINES` that was timed on most layers, the
first of them if there are several. Files that do not say which kernel is MOpt-1 (older ones): it
follows from the direct candidates of the plan, whose times were taken in the tuning worker and are
scaled by what the best one took in the bench. Figures are medians, with flushed caches means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.ops.suites import expand
from tilewright_lab.compare.results import Contestant, LayerResult, geometric_mean, ratio_of
from tilewright_lab.figures.figures import Options, place_of
from tilewright_lab.figures.pictures import aligned, canvas, save, short

BASELINES = ('tvm', 'torch', 'onnxruntime', 'openvino')
OURS, FIRST = 'ours', 'MOpt-1'


def run(options: Options) -> dict[str, Any]:
    """Evaluate a bench file, or the one of a directory that has most of the layers."""
    if options.data is None:
        raise InputError('mopt-fig7 needs the JSON of `tilewright bench`; name it by --data')
    names = [name for name, _, _ in expand(options.layers)]
    path, bench = find(options.data, names)
    by_name = {layer['name']: layer for layer in bench['layers']}
    if not any(name in by_name for name in names):
        raise InputError(f'--data {path} has no layer of {options.layers}; it has {list(by_name)}')
    read = [Compared.of(by_name[name]) for name in names if name in by_name]
    columns = sorted({name for row in read for name in row.times_ms}, key=_place)
    baseline = _baseline(read)
    rows = [row.to_json(baseline) for row in read]
    return {
        'figure': options.name,
        'layers_asked': options.layers,
        'data': place_of(path),
        'machine': bench['machine'],
        'versions_of_data': bench.get('versions'),
        'caches': bench.get('caches'),
        'seed': bench.get('seed'),
        'baseline': baseline,
        'columns': columns,
        'missing_layers': [name for name in names if name not in by_name],
        'complete': all(name in by_name for name in names),
        'interrupted': False,
        'geometric_mean': {column: _mean(rows, column) for column in columns},
        'layers': rows,
    }  # fmt: skip


def find(path: Path, names: list[str]) -> tuple[Path, dict[str, Any]]:
    """(file, its content): a bench file by its path, or the best of a directory."""
    if not path.is_dir():
        return path, _read(path)
    found: list[tuple[int, Path, dict]] = []
    for file in sorted(path.glob('**/*.json')):
        try:
            bench = _read(file)
        except InputError:
            continue
        count = len({layer['name'] for layer in bench['layers']} & set(names))
        if count:
            found.append((count, file, bench))
    if not found:
        raise InputError(f'--data {path} holds no bench file with one of the layers asked for')
    _, file, bench = max(found, key=lambda entry: entry[0])
    return file, bench


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f'--data {path} cannot be read as JSON: {error}') from None
    if not isinstance(data, dict) or data.get('verb') not in ('bench', 'demo'):
        raise InputError(f'--data {path} was not written by `tilewright bench --json`')
    layers = data.get('layers')
    if (
        'machine' not in data
        or not isinstance(layers, list)
        or any('name' not in x for x in layers)
    ):
        raise InputError(f'--data {path} has no machine or no named layers; run the bench again')
    return data


@dataclass(frozen=True, slots=True)
class Compared:
    """One layer of a bench file: who was timed, by column, and who was not, and why.

    `estimated_ms` are times that the bench did not take, from the plan's own candidates.
    """

    name: str
    result: LayerResult | None
    timed: dict[str, Contestant]
    estimated_ms: dict[str, float]
    failed: dict[str, str]

    @classmethod
    def of(cls, layer: Mapping[str, Any]) -> Compared:
        if not layer.get('comparison'):
            return cls(layer['name'], None, {}, {}, {OURS: 'no candidate worked'})
        result = LayerResult.from_json(layer['comparison'])
        everyone = {OURS: result.ours} | {peer.name: peer for peer in result.peers}
        kernels = {FIRST: result.kernel('direct_first')}
        if result.top:
            kernels[f'MOpt-{result.top}'] = result.kernel('direct')
        timed = {name: c for name, c in (kernels | everyone).items() if c is not None and c.ok}
        failed = {name: f'{c.status}: {c.message}' for name, c in everyone.items() if not c.ok}
        estimated = {} if FIRST in timed or OURS not in timed else _from_plan(layer, result)
        return cls(layer['name'], result, timed, estimated, failed)

    @property
    def times_ms(self) -> dict[str, float]:
        found = dict(self.estimated_ms)
        for name, contestant in self.timed.items():
            time_ms = self.result.time_ms(contestant) if self.result else None
            if time_ms is not None:
                found[name] = time_ms
        return {name: found[name] for name in sorted(found, key=_place)}

    def to_json(self, baseline: str | None) -> dict[str, Any]:
        result, base = self.result, self.timed.get(baseline or '')
        columns = {}
        for name, time_ms in self.times_ms.items():
            column: dict[str, Any] = {'time_ms': time_ms, 'relative': None, 'relative95': None}
            if result is not None and base is not None and name in self.timed:
                ratio = ratio_of(self.timed[name], base, result.flush)
                column |= {'relative': ratio.value, 'relative95': [ratio.low, ratio.high]}
            elif base is not None:
                column['relative'] = self.times_ms[base.name] / time_ms
            column['algorithm'] = self.timed[name].algorithm if name in self.timed else 'direct'
            columns[name] = column
        return {
            'name': self.name,
            'flops': result.flops if result else None,
            'gflops_per_s': result.gflops if result else None,
            'columns': columns,
            'failed': self.failed,
        }


def _from_plan(layer: Mapping[str, Any], result: LayerResult) -> dict[str, float]:
    """MOpt-1 from the candidates of a plan, on the scale of the bench; nothing if it cannot be."""
    candidates = (layer.get('plan') or {}).get('candidates') or []
    timed = [c for c in candidates if (c.get('measured') or {}).get('median_ms')]
    direct = [c for c in timed if c['schedule']['schema'] != 'winograd']
    ours_ms = result.time_ms(result.ours)
    if not direct or ours_ms is None:
        return {}
    first = min(direct, key=lambda c: c['predicted']['time_ms'])['measured']['median_ms']
    best = timed[0]['measured']['median_ms']  # plans list the best one first
    return {FIRST: ours_ms * first / best}


def _place(name: str) -> tuple[int, str]:
    """MOpt's columns first, then ours, the peers, and whatever else there is."""
    known = (OURS, *BASELINES)
    if name.startswith('MOpt-'):
        return -1, name
    return (known.index(name) if name in known else len(known)), name


def _baseline(read: list[Compared]) -> str | None:
    """The one of `BASELINES` that was timed on most layers, the first of several."""
    counts = {name: sum(name in row.timed for row in read) for name in BASELINES}
    best = max(BASELINES, key=lambda name: counts[name])
    return best if counts[best] else None


def _mean(rows: list[dict], column: str) -> float | None:
    """Geometric mean of the relative performance, over the layers that have it."""
    values = [
        row['columns'][column]['relative']
        for row in rows
        if column in row['columns'] and row['columns'][column]['relative']
    ]
    return geometric_mean(values)


def text(data: dict[str, Any]) -> str:
    """Performance relative to the baseline, layer by layer."""
    columns = data['columns']
    rows = [['layer', 'GFLOP/s', *columns]]
    for row in data['layers']:
        rate = row['gflops_per_s']
        cells = [_relative(row['columns'].get(column)) for column in columns]
        rows.append([row['name'], '-' if rate is None else f'{rate:.1f}', *cells])
    means = [data['geometric_mean'][column] for column in columns]
    rows.append(['geometric mean', '', *('-' if m is None else f'{m:.2f}' for m in means)])
    lines = aligned(rows)
    lines += [
        '',
        f'performance relative to {data["baseline"]}, caches {data["caches"]}; from {data["data"]}',
    ]
    if data['missing_layers']:
        lines.append(f'not in these data: {", ".join(data["missing_layers"])}')
    for row in data['layers']:
        lines += [f'{row["name"]}: {name} {why}' for name, why in row['failed'].items()]
    return '\n'.join(lines)


def _relative(column: Mapping[str, Any] | None) -> str:
    if column is None:
        return '-'
    return (
        f'{column["time_ms"]:.3f} ms' if column['relative'] is None else f'{column["relative"]:.2f}'
    )


def plot(data: dict[str, Any], path: Path) -> None:
    """Bars of every column relative to the baseline, our GFLOP/s above them."""
    rows, columns = data['layers'], data['columns']
    figure = canvas(max(8.0, 0.55 * len(rows) + 2), 4.5)
    axes = figure.subplots()
    width = 0.85 / max(len(columns), 1)
    for place, column in enumerate(columns):
        bars = [
            (x, row['columns'][column]) for x, row in enumerate(rows) if column in row['columns']
        ]
        bars = [(x, entry) for x, entry in bars if entry['relative']]
        heights = [entry['relative'] for _, entry in bars]
        spans = [entry['relative95'] or (entry['relative'],) * 2 for _, entry in bars]
        errors = [
            [max(0.0, h - low) for h, (low, _) in zip(heights, spans, strict=True)],
            [max(0.0, high - h) for h, (_, high) in zip(heights, spans, strict=True)],
        ]
        at = [x + (place - (len(columns) - 1) / 2) * width for x, _ in bars]
        axes.bar(at, heights, width, yerr=errors, error_kw={'lw': 0.6}, label=column)
    for x, row in enumerate(rows):
        highest = max((c['relative'] or 0.0 for c in row['columns'].values()), default=0.0)
        if row['gflops_per_s']:
            axes.text(x, highest * 1.02, f'{row["gflops_per_s"]:.0f}', ha='center', fontsize=7)
    axes.axhline(1.0, color='0.4', lw=0.8, ls='--')
    axes.set_xticks(range(len(rows)), [short(row['name']) for row in rows], fontsize=8)
    axes.set_ylabel(f'performance relative to {data["baseline"]}')
    axes.set_title(
        f'{data["machine"]["name"]}, caches {data["caches"]}; our GFLOP/s above the bars'
    )
    axes.legend(fontsize=8, ncols=len(columns))
    save(figure, path)
