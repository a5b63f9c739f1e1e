"""Write the tables of README.md and docs/ from the JSON that `tilewright bench` wrote.

    python -m tilewright_lab.scripts.tables            write them
    python -m tilewright_lab.scripts.tables --check    say which are not what the JSON says

A table stands between two marks, the first of which says what it is made from:

    <!-- table layers bench/results/neoverse-n1/mopt.json -->
    ...
    <!-- end of table -->

`layers` has a row for each layer, `layers-flushed` the same for flushed caches, `kinds` and
`kinds-flushed` the geometric means by kind of convolution, `full` what a terminal shows; `gpu` is a
row for each layer of a bench with --target, `networks` and `gpu-networks` a row for each network,
of all files of a pattern, `half-networks` the same with what each contestant is off by,
`half-layers` one for each kind of layer of networks in half precision on a GPU. `lists` has a row
for each file of a pattern such as `benchdnn-*.json`, `tuned` one for each layer that a tuner took
part in, of all such files. Names of a suite lose its prefix. `boda`, `pruned`, `ranked`, `table3`
and `table6` are figures of the GPU papers (src/tilewright_lab/figures/tables.py),
`deepcuts-speedup` and `deepcuts-generation-time` what `tilewright reproduce` shows of the files of
a folder; `learned-losses`, `-trials`, `-holdouts` and `-transfer` are of learned models
(figures/learned_tables.py), `training` and those with `training-` before them of training steps
(figures/training_tables.py). `fuzz` has a row for each run of `python -m tests.fuzz`, of all files
of a pattern; `overhead`, `shapes`, `tiles` and `integers` are the tables of overhead.py,
benchdnn_shapes.py, tile_networks.py and integer_networks.py. Numbers in tables are so never typed,
and a test keeps them that way.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tilewright.errors import InputError
from tilewright.report.grid import Grid
from tilewright_lab.compare.network_results import NAMES, NetworkResult, mean_ratio
from tilewright_lab.compare.network_results import grid as network_grid
from tilewright_lab.compare.results import LayerResult
from tilewright_lab.compare.table import grid, kind_grid, table
from tilewright_lab.figures import half_tables
from tilewright_lab.figures.figures import Options, figure_of
from tilewright_lab.figures.tables import FIGURES
from tilewright_lab.scripts import benchdnn_shapes, integer_networks, overhead, tile_networks

ROOT = Path(__file__).parents[3]
PAGES = (
    'README.md', 'docs/results.md', 'docs/gpu_model.md', 'docs/testing.md', 'docs/deepcuts.md',
    'docs/gpu_half.md', 'docs/transformers.md', 'docs/learned.md', 'docs/training.md',
    'docs/precision.md',
)  # fmt: skip
SCRIPTS = {
    'overhead': overhead.table, 'shapes': lambda data: benchdnn_shapes.table(data['shapes']),
    'tiles': tile_networks.table, 'integers': integer_networks.table,
}  # fmt: skip
REPRODUCED = ('deepcuts-speedup', 'deepcuts-generation-time')
_MARKED = re.compile(
    r'(<!-- table (?P<what>[\w-]+) (?P<file>\S+) -->\n)(?P<body>.*?)(<!-- end of table -->)', re.S
)


def rendered(what: str, path: Path) -> str:
    """One table as Markdown, from a file of `tilewright bench`."""
    if what in ('lists', 'tuned'):
        found = sorted(path.parent.glob(path.name))
        files = {p.name.partition('.')[0]: _read(p) for p in found}
        return list_rows(files) if what == 'lists' else tuned_rows(files)
    if what == 'networks':
        return network_rows([_read(p) for p in sorted(path.parent.glob(path.name))])
    if what == 'half-networks':
        return half_network_rows([_read(p) for p in sorted(path.parent.glob(path.name))])
    if what == 'gpu-networks':
        return gpu_network_rows([_read(p) for p in sorted(path.parent.glob(path.name))])
    if what == 'half-layers':
        return half_tables.layer_rows(_read(p) for p in sorted(path.parent.glob(path.name)))
    if what in REPRODUCED:
        figure = figure_of(what).load()
        return figure.markdown(figure.run(Options(what, None, '', 0, 1, 0, path.parent)))
    if what in FUZZ:
        return FUZZ[what]({p.stem: _read(p) for p in sorted(path.parent.glob(path.name))})
    data = _read(path)
    if what in FIGURES | SCRIPTS:
        return (FIGURES | SCRIPTS)[what](data)
    if what == 'gpu':
        return gpu_rows(data['layers'])
    kind, _, flushed = what.partition('-')
    key = 'comparison_flushed' if flushed and data['caches'] == 'both' else 'comparison'
    if flushed and data['caches'] == 'warm':
        raise InputError(f'{path} has no times with flushed caches; bench with --caches both')
    results = [LayerResult.from_json(layer[key]) for layer in data['layers'] if layer.get(key)]
    suites = {result.name.partition('/')[0] for result in results if '/' in result.name}
    if len(suites) == 1:
        results = [replace(result, name=result.name.rpartition('/')[2]) for result in results]
    peak = data['peak'].get('used_gflops_per_s')
    if kind == 'layers':
        return grid(results, peak, brief=True).markdown()
    if kind == 'kinds':
        return kind_grid(results).markdown()
    if kind == 'full':
        return f'```\n{table(results, peak)}\n```'
    raise InputError(
        f'{what!r} is not a table; use {", ".join(FUZZ)}, gpu, gpu-networks, half-layers, '
        f'half-networks, lists, networks, tuned, '
        f'{", ".join((*FIGURES, *SCRIPTS, *REPRODUCED))}, or layers, kinds and full, these three '
        f'also with -flushed'
    )


def _read(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == '.gz' else data)


def list_rows(files: dict[str, dict]) -> str:
    """Benches of whole lists: geometric means, and how many layers a peer won."""
    head = ('list', 'layers', 'best peer / ours', 'least', 'below 1.0', 'wrong or failed')
    rows, everything = [], []
    for name, data in files.items():
        compared = [layer['comparison'] for layer in data['layers'] if layer.get('comparison')]
        ratios = [one['best']['value'] for one in compared if one['best']]
        failed = len(data['layers']) - sum(one['ours']['status'] == 'ok' for one in compared)
        everything += ratios
        rows.append((name.partition('-')[2], *_spread(ratios), str(failed)))
    rows.append(('all', *_spread(everything), ''))
    return Grid(head, tuple(rows)).markdown()


def _spread(ratios: list[float]) -> tuple[str, str, str, str]:
    """How many ratios, their geometric mean, the least, and how many are below 1."""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    below = sum(ratio < 1 for ratio in ratios)
    return str(len(ratios)), f'{mean:.2f}', f'{min(ratios):.2f}', str(below)


def half_network_rows(files: list[dict]) -> str:
    """Networks of less than float32: times and errors of all, best peer / ours, its mean."""
    results = [NetworkResult.from_json(one) for data in files for one in data['networks']]
    peers = list(dict.fromkeys(peer.name for result in results for peer in result.peers))
    titles = [NAMES[peer.removesuffix('-low')] for peer in peers]
    head = ('network', 'ours', *titles, 'best peer / ours', 'off by: ours', *titles)
    rows = []
    for result in results:
        found = {contestant.name: contestant for contestant in result.peers if contestant.ok}
        shown = [result.ours, *(found.get(peer) for peer in peers)]
        times = [f'{result.time_ms(one) or math.nan:.2f}' if one else '-' for one in shown]
        errors = [f'{one.max_rel_err or 0.0:.1e}' if one else '-' for one in shown]
        ratio = f'{result.best.value:.2f}' if result.best else '-'
        rows.append((result.name, *times, ratio, *errors))
    mean = mean_ratio(results)
    last = f'{mean:.2f}' if mean else '-'
    rows.append(('geometric mean', *[''] * (1 + len(peers)), last, *[''] * (1 + len(peers))))
    return Grid(head, tuple(rows)).markdown()


def network_rows(files: list[dict]) -> str:
    """Whole networks: our time, the peers', and the geometric mean of best peer / ours."""
    results = [NetworkResult.from_json(one) for data in files for one in data['networks']]
    peaks = [data['peak'].get('used_gflops_per_s') for data in files]
    peak = None if None in peaks else max(peaks)
    shown = network_grid(results, peak, brief=True)
    mean = mean_ratio(results)
    last = ('geometric mean', *[''] * (len(shown.head) - 2), f'{mean:.2f}' if mean else '-')
    return Grid(shown.head, (*shown.rows, last)).markdown()


def tuned_rows(files: dict[str, dict]) -> str:
    """Layers that TVM tuned: its time and what that took, beside ours and the best other peer."""
    head = ('layer', 'ours ms', 'direct ms', 'TVM ms', 'tuned for s', 'TVM / ours', 'TVM / direct')
    rows = []
    for layer in (layer for data in files.values() for layer in data['layers']):
        compared = layer['comparison']
        (tvm,) = (peer for peer in compared['peers'] if peer['name'] == 'tvm')
        ours, theirs = compared['ours']['median_ms'], tvm['median_ms']
        direct = compared['mopt']['mopt_top_ms'] or ours
        rows.append((
            layer['name'].rpartition('/')[2], f'{ours:.3f}', f'{direct:.3f}', f'{theirs:.3f}',
            f'{tvm["tuning_s"]:.0f}', f'{theirs / ours:.2f}', f'{theirs / direct:.2f}',
        ))  # fmt: skip
    return Grid(head, tuple(rows)).markdown()


def fuzz_rows(files: dict[str, dict]) -> str:
    """Runs of the generator of networks: what was drawn, what it was run on, what failed."""
    head = (
        'run', 'graphs', 'operators', 'pairs', 'runs by target', 'minutes', 'processes',
        'runs not judged whole', 'failures',
    )  # fmt: skip
    rows = []
    for name, data in files.items():
        runs = ', '.join(f'{target} {count:,}' for target, count in data['runs'].items())
        kinds = len({finding['sign'] for finding in data['findings']})
        failed = f'{len(data["findings"])} of {kinds} kinds' if kinds else '0'
        rows.append((
            name, f'{data["graphs"]:,}', str(len(data['operators'])), f'{data["pairs"]:,}', runs,
            f'{data["seconds"] / 60:.0f}', str(data['workers']), str(data['unstable_runs']), failed,
        ))  # fmt: skip
    return Grid(head, tuple(rows)).markdown()


def fuzz_operators(files: dict[str, dict]) -> str:
    """How many graphs of all runs contain each operator, the most frequent first."""
    counts: Counter[str] = Counter()
    for data in files.values():
        counts.update(data['operators'])
    found = [(name, f'{count:,}') for name, count in counts.most_common()]
    found += [('', '')] * (-len(found) % 4)
    rows = [sum(found[i : i + 4], ()) for i in range(0, len(found), 4)]
    return Grid(('operator', 'graphs') * 4, tuple(rows)).markdown()


FUZZ = {'fuzz': fuzz_rows, 'fuzz-operators': fuzz_operators}
# Contestants that are shown beside the rival, by what their names begin with.
BESIDE = {'cudnn_tf32': 'cuDNN TF32 us', 'inductor': 'Inductor us'}


def gpu_rows(layers: list[dict]) -> str:
    """Layers on a GPU, and the geometric mean of all ratios there are."""
    beside = {
        name: word
        for name, word in BESIDE.items()
        if any(_fastest(layer['contestants'], name) for layer in layers)
    }
    head = ('layer', 'ours us', 'TFLOP/s', '% of fp32 peak', 'bound us', 'cuDNN us', 'ratio')
    rows = []
    for layer in layers:
        name = layer['name'].rpartition('/')[2].partition('@')[0]
        others = [_fastest(layer['contestants'], other) for other in beside]
        shown = tuple(f'{time:.2f}' if time else '-' for time in others)
        if layer['ours_us'] is None or layer['rival_us'] is None:
            rows.append((name, *['-'] * 6, *shown, layer['message']))
            continue
        numbers = (
            (layer['ours_us'], 2), (layer['tflops_per_s'], 1), (layer['percent_of_fp32_peak'], 1),
            (1e6 * layer['bound']['seconds'], 2), (layer['rival_us'], 2), (layer['ratio'], 2),
        )  # fmt: skip
        how = f'{layer["schedule"]["schema"]} {layer["schedule"]["intrinsic"]}'
        figures = (f'{value:.{digits}f}' for value, digits in numbers)
        rows.append((name, *figures, *shown, how))
    ratios = [layer['ratio'] for layer in layers if layer['ratio'] is not None]
    mean = f'{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}' if ratios else '-'
    rows.append(('geometric mean', *[''] * 5, mean, *[''] * len(beside), ''))
    return Grid((*head, *beside.values(), 'by'), tuple(rows)).markdown()


def gpu_network_rows(files: list[dict]) -> str:
    """Networks on a GPU: ours, the fastest form of each peer, and what a tuner took.

    Where ours has no time, '-' stands for its figures, and why in place of the ratio.
    """
    peers = list(dict.fromkeys(peer for data in files for peer in data['peers']))
    times_of = (f'{peer} us' for peer in peers)
    head = ('network', 'ours us', 'compiled in s', 'kernels', 'TFLOP/s', *times_of)
    rows, ratios = [], []
    for one in (one for data in files for one in data['networks']):
        timed = [c for c in one['contestants'] if c['status'] == 'ok' and c.get('median_us')]
        times = [_fastest(timed, peer) for peer in peers]
        tuned = [c.get('tuning_s') for c in timed if c['name'].startswith('inductor')]
        shown = (
            *(f'{t:.1f}' if t else '-' for t in times),
            f'{sum(t for t in tuned if t):.0f}' if any(tuned) else '-',
        )
        ours = [c for c in one['contestants'] if c['name'].startswith('tilewright')]
        mine = min((c for c in ours if c in timed), key=lambda c: c['median_us'], default=None)
        if mine is None:
            why = f'{ours[0]["status"]}: {ours[0]["message"]}' if ours else 'not there'
            rows.append((one['name'], *['-'] * 4, *shown, why))
            continue
        took, ratio = mine['median_us'], one['best_peer_over_ours']
        ratios += [ratio] * (ratio is not None)
        rows.append((
            one['name'], f'{took:.1f}', f'{mine["tuning_s"]:.1f}', str(mine['settings']['kernels']),
            f'{one["flops"] / took / 1e6:.2f}', *shown, f'{ratio:.2f}' if ratio else '-',
        ))  # fmt: skip
    mean = f'{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}' if ratios else '-'
    rows.append(('geometric mean', *[''] * len(head), mean))
    return Grid((*head, 'Inductor tuned s', 'best peer / ours'), tuple(rows)).markdown()


def _fastest(contestants: list[dict], name: str) -> float | None:
    """Least median of the contestants of this name, whatever their settings.

    One that could not be prepared has no median. Of layers those whose answers are wrong count too:
    TF32 is timed for being another precision.
    """
    times = [
        one['median_us']
        for one in contestants
        if one['name'].partition('/')[0] == name and one.get('median_us') is not None
    ]
    return min(times, default=None)


def renewed(page: str, root: Path = ROOT) -> str:
    """A page with all of its tables made again."""

    def again(match: re.Match[str]) -> str:
        made = rendered(match['what'], root / match['file'])
        return f'{match[1]}\n{made}\n\n{match[5]}'

    return _MARKED.sub(again, page)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='write nothing; exit code 1')
    check = parser.parse_args().check
    code = 0
    for name in PAGES:
        path = ROOT / name
        old = path.read_text()
        new = renewed(old)
        if old == new:
            continue
        if check:
            print(f'{name} differs from its JSON; run make tables')
            code = 1
        else:
            path.write_text(new)
            print(f'wrote {name}')
    return code


if __name__ == '__main__':
    sys.exit(main())
