"""Boda's Figs. 5 and 7-9 on this host: runtimes side by side, tuning against fallback and against
the single best parameter setting.

    PYTHONPATH=src python bench/boda_figures.py boda.json --json boda-figures.json
    PYTHONPATH=src python bench/boda_figures.py boda.json --pocl pocl.json --no-measure

`boda.json` is what `tilewright bench boda --target cuda --against cudnn,general,opencl --json F`
wrote; `pocl.json` the same with `--target opencl`, on a host with PoCL. Fig. 8 needs measurements:
for every operation its best schedule of the common schema, each of them timed on all operations; a
setting that is not legal on an operation falls back to the general kernel there, as in Boda.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from tilewright.bench.gpu_layers import GpuBench, GpuOptions
from tilewright.bench.suites import expand
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu_moves import moves, schedule_text
from tilewright.store.records import open_store

WITHIN = 1.10
COMMON = 'tiled'


def time_us(layer: dict, name: str) -> float | None:
    found = [
        c['median_us'] for c in layer['contestants']
        if c['name'].split('/')[0] == name and c.get('median_us')
    ]  # fmt: skip
    return min(found, default=None)


def mean(values: list[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def side_by_side(layers: list[dict], pocl: dict[str, dict]) -> list[dict]:
    """Figs. 5, 7 and 9: one row for each operation; None where there is no figure."""
    rows = []
    for layer in layers:
        opencl = next((c for c in layer['contestants'] if c['name'] == 'opencl'), {})
        other = pocl.get(layer['name'], {})
        rows.append(
            {
                'name': layer['name'],
                'flops': layer['flops'],
                'cuda_us': time_us(layer, 'ours'),
                'opencl_us': time_us(layer, 'opencl'),
                'opencl_message': opencl.get('message', ''),
                'general_us': time_us(layer, 'general'),
                'cudnn_us': time_us(layer, 'cudnn'),
                'pocl_us': other.get('ours_us'),
                'pocl_general_us': time_us(other, 'general') if other else None,
            }
        )
    return rows


def _best_common(layer: dict) -> GpuSchedule | None:
    """The fastest schedule of the common schema that the search tried."""
    found = [
        c for c in layer['candidates'] if c['us'] and c['schedule']['schema'] == COMMON
    ]  # fmt: skip
    return GpuSchedule.from_json(min(found, key=lambda c: c['us'])['schedule']) if found else None


def single_setting(layers: list[dict], settings: int, target: str) -> dict:
    """Fig. 8: every candidate setting on every operation; the best by geometric mean."""
    groups: dict[str, Group] = {name: group for name, group, _ in expand('boda')}
    chosen = {s.digest: s for layer in layers if (s := _best_common(layer)) is not None}
    with open_store() as store, GpuBench(GpuOptions(target, peers=()), store, seed=0) as bench:
        spaces = {layer['name']: moves(groups[layer['name']], bench.opened.machine)
                  for layer in layers}  # fmt: skip
        covering = sorted(
            chosen.values(), key=lambda s: -sum(space.legal(s) for space in spaces.values())
        )[:settings]
        table: dict[str, dict[str, float]] = {}
        for layer in layers:
            name = layer['name']
            legal = [s for s in covering if spaces[name].legal(s)]
            measured = bench.measured(name, groups[name], legal)
            general = time_us(layer, 'general') or math.inf
            table[name] = {
                s.digest: 1e6 * seconds if (seconds := measured.get(s.digest)) else general
                for s in covering
            }
    usable = [s for s in covering if all(row[s.digest] < math.inf for row in table.values())]
    if not usable:
        return {'message': 'no setting works on all operations', 'table_us': table}
    best = min(usable, key=lambda s: mean([row[s.digest] for row in table.values()]) or math.inf)
    ratios = [
        table[layer['name']][best.digest] / layer['ours_us'] for layer in layers if layer['ours_us']
    ]
    return {
        'setting': best.to_json(),
        'text': schedule_text(best),
        'single_over_tuned': mean(ratios),
        'table_us': table,
        'settings': {s.digest: s.to_json() for s in covering},
    }


def summary(rows: list[dict], single: dict | None) -> dict:
    both = [(r['opencl_us'], r['cuda_us']) for r in rows if r['opencl_us'] and r['cuda_us']]
    fallback = [r['general_us'] / r['cuda_us'] for r in rows if r['general_us'] and r['cuda_us']]
    return {
        'operations': len(rows),
        'opencl_within_10_percent': sum(a <= WITHIN * b for a, b in both),
        'opencl_timed': len(both),
        'opencl_over_cuda': mean([a / b for a, b in both]),
        'general_over_tuned': mean(fallback),
        'single_over_tuned': single and single.get('single_over_tuned'),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('data', type=Path)
    parser.add_argument('--pocl', type=Path)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--settings', type=int, default=12, help='settings tried for Fig. 8')
    parser.add_argument('--no-measure', action='store_true', help='leave out Fig. 8')
    options = parser.parse_args()
    data = json.loads(options.data.read_text())
    pocl = json.loads(options.pocl.read_text())['layers'] if options.pocl else []
    rows = side_by_side(data['layers'], {layer['name']: layer for layer in pocl})
    single = (
        None
        if options.no_measure
        else single_setting(data['layers'], options.settings, data['target'])
    )
    found = summary(rows, single)
    names = ('cuda_us', 'opencl_us', 'general_us', 'cudnn_us', 'pocl_us')
    print('operation'.ljust(28), *(name.rjust(12) for name in names))
    for row in rows:
        cells = ('-' if row[name] is None else f'{row[name]:.2f}' for name in names)
        print(row['name'].ljust(28), *(cell.rjust(12) for cell in cells), row['opencl_message'])
    print(json.dumps(found, indent=1))
    if options.json:
        whole = {'device': data['device'], 'rows': rows, 'single_setting': single, **found}
        options.json.write_text(json.dumps(whole, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
