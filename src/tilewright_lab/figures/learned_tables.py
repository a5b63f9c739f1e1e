"""Tables of learned models (docs/learned.md) from their JSON: Markdown.

learned-losses     cnnopt-table9: every part's models, and all sets together
learned-trials     cnnopt-table8: trials of every part beside an online search and random order
learned-holdouts   scripts/learned_holdouts.py: chosen recipe beside the plain forest
learned-transfer   scripts/learned_transfer.py: a foreign model, and corrected by some rows
gtuner-ablation    scripts/gtuner_ablation.py: learning curves, layers, a graph that is destroyed
gtuner-resnet18    the same file: ResNet-18 after so many trials (Tables 1 and 2)
gtuner-networks    gtuner-table3: latencies of networks (Table 3)
gtuner-seconds     gtuner-table3: seconds of compilation (Table 4)
gtuner-models      gtuner-table1: models of groups, with the spread of seeds
gtuner-searches    gtuner-fig7: the best found over the best measured, by trials
gtuner-latencies   gtuner-fig7: what networks take after so many trials of each group
gtuner-subgraphs   gtuner-fig8: searches by subgraph
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.report.grid import Grid
from tilewright_lab.figures import (
    gtuner,
    gtuner_fig7,
    gtuner_fig8,
    gtuner_table1,
    gtuner_table2,
    gtuner_table3_text,
)
from tilewright_lab.train.evaluate import TOPS

KEYS = (*(f'loss_{n}' for n in TOPS), 'trials_95', 'trials_100')
HEAD = (*(f'loss at {n}' for n in TOPS), 'trials to 95%', 'to 100%')


def _cell(key: str, values: Sequence[float], spread: str = '') -> str:
    scale, unit, digits = (1, '', 1) if 'trials' in key else (100, '%', 2)
    return f'{scale * statistics.fmean(values):.{digits}f}{unit}{spread}'


def _with_error(key: str, values: Sequence[float]) -> str:
    """The mean and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    scale, digits = (1, 1) if 'trials' in key else (100, 2)
    return _cell(key, values, f' ± {scale * error:.{digits}f}')


def losses(data: Mapping[str, Any]) -> str:
    """Means over layers and seeds; least and most of the seeds of ours in brackets."""
    rows = []
    for part in data['layers']:
        count = sum(row['configurations'] for row in part['layers'])
        for model, seeds in part['averages'].items():
            ours = model == 'ours'
            name = f'{part["name"]}: {part["chosen"]["name"]}' if ours else model
            cells = []
            for key in KEYS:
                values = [one[key] for one in seeds]
                scale = 1 if 'trials' in key else 100
                span = f' ({scale * min(values):.1f}-{scale * max(values):.1f})' if ours else ''
                cells.append(_cell(key, values, span))
            rows.append((name, f'{len(part["layers"])}, {count}' if ours else '', *cells))
    ours = data['all_sets']['ours']
    cells = [_cell(key, [ours[key]['mean']]) for key in KEYS]
    rows.append(('all sets: ours', str(data['all_sets']['sets']), *cells))
    return Grid(('', 'layers, configurations', *HEAD), tuple(rows)).markdown()


def trials(data: Mapping[str, Any]) -> str:
    """Means over layers and seeds, to 95% and to 100% of the best."""
    rows = []
    for part in data['layers']:
        cells = []
        for which in (0, 1):
            for searcher in ('ours', 'online'):
                found = [seed[which] for row in part['layers'] for seed in row[searcher]]
                cells.append(f'{statistics.fmean(found):.1f}')
            order = statistics.fmean(row['random'][which] for row in part['layers'])
            cells.append(f'{order:.1f}')
        rows.append((f'{part["name"]}: {part["chosen"]}', *cells))
    three = ('ours', 'online', 'random')
    head = (
        data['machine']['name'],
        *(f'{share}: {one}' for share in ('95%', '100%') for one in three),
    )
    return Grid(head, tuple(rows)).markdown()


def holdouts(data: Mapping[str, Any]) -> str:
    """Means and standard errors over the holdouts."""
    found = list(data['holdouts'].values())
    rows = []
    for model in ('ours', 'plain'):
        cells = []
        for key in KEYS:
            cells.append(_with_error(key, [one[model][key] for one in found]))
        names = [one['chosen'] for one in found]
        said = ', '.join(f'{name} {names.count(name)}x' for name in dict.fromkeys(names))
        rows.append((said if model == 'ours' else 'plain forest', *cells))
    kind, of = data['kind'].upper(), f'{len(found)} holdouts of {found[0]["held_out"]} problems'
    return Grid((f'{data["machine"]}, {kind}, {of}', *HEAD), tuple(rows)).markdown()


def transfer(data: Mapping[str, Any]) -> str:
    """Means over seeds, with standard errors where rows were chosen."""
    seeds = list(data['seeds'].values())
    few = seeds[0]['calibrated']['rows']
    rows = [('analytical', *(_cell(key, [data['analytical'][key]]) for key in KEYS))]
    rows.append(
        ('the other GPU', *(_cell(key, [s['transferred'][key] for s in seeds]) for key in KEYS))
    )
    named = {'calibrated': f'with {few} rows', 'validation': 'training problems without rows'}
    for model, name in named.items():
        rows.append((name, *(_with_error(key, [s[model][key] for s in seeds]) for key in KEYS)))
    said = f'{data["kind"].upper()}: {data["from"]} to {data["to"]}, {len(seeds)} seeds'
    return Grid((said, *HEAD), tuple(rows)).markdown()


def _of_models(data: Mapping[str, Any]) -> dict[tuple[str, float], list[Mapping[str, Any]]]:
    """The rows of an ablation by model and share of the groups."""
    found: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for row in data['rows'].values():
        found.setdefault((row['model'], row['share']), []).append(row)
    return found


def ablation(data: Mapping[str, Any]) -> str:
    """Means over test groups and seeds; least and most of the seeds in brackets."""
    keys = ('spearman', 'cost', *(f'loss_{n}' for n in TOPS), 'trials_95')
    rows = []
    for (model, _), mine in _of_models(data).items():
        cells = []
        for key in keys:
            values = [row['worth'][key] for row in mine]
            scale, digits = {'spearman': (1, 3), 'trials_95': (1, 1)}.get(key, (100, 1))
            mean, least, most = (
                f'{scale * f(values):.{digits}f}' for f in (statistics.fmean, min, max)
            )
            cells.append(f'{mean} ({least}-{most})')
        rows.append((model, str(mine[0]['groups']), *cells))
    losses = (f'loss at {n}, %' for n in TOPS)
    head = (f'{data["epochs"]} epochs', 'groups', 'Spearman', 'cost, %', *losses, 'trials to 95%')
    return Grid(head, tuple(rows)).markdown()


def resnet18(data: Mapping[str, Any]) -> str:
    """Milliseconds of ResNet-18's groups by trials of each, of models that saw all groups."""
    printed = gtuner_table1.PAPER | gtuner_table2.PAPER
    rows = []
    for (model, share), mine in _of_models(data).items():
        if share == 1:
            times = [[row['resnet18_ms'][str(n)] for row in mine] for n in gtuner.TRIALS]
            paper = f'{printed[model]:.3f}' if model in printed else ''
            rows.append((model, *(f'{statistics.fmean(t):.4f}' for t in times), paper))
    head = ('ms after trials of a group', *map(str, gtuner.TRIALS), 'paper, 80, RTX 3090')
    return Grid(head, tuple(rows)).markdown()


def models(data: Mapping[str, Any]) -> str:
    """Means over test groups and seeds; least and most of the seeds in brackets."""
    rows = []
    for row in data['layers']:
        means = [[one['means'][name] for one in row['seeds']] for name in gtuner.METRICS]
        cells = (
            gtuner.spread_text(values, name != 'spearman')
            for name, values in zip(gtuner.METRICS, means, strict=True)
        )
        rows.append((row['about'], *cells))
    head = (f'{data["training"]["epochs"]} epochs', 'Spearman', 'pairs', 'loss at 10', 'at 30')
    return Grid(head, tuple(rows)).markdown()


def searches(data: Mapping[str, Any]) -> str:
    """Means over seeds of geometric means over groups."""
    rows = []
    for row in data['layers']:
        means = [statistics.fmean(one[n - 1] for one in row['means']) for n in gtuner_fig7.SHOWN]
        rows.append((row['search'], *(f'{mean:.3f}' for mean in means)))
    head = (f'best over best of all, {len(data["groups"])} groups', *map(str, gtuner_fig7.SHOWN))
    return Grid(head, tuple(rows)).markdown()


def networks(data: Mapping[str, Any]) -> str:
    """Milliseconds beside rivals and the paper's."""
    return _grid(gtuner_table3_text.latencies(data, gtuner_table3_text.means_of(data['layers'])))


def seconds(data: Mapping[str, Any]) -> str:
    """Seconds of the whole compilation beside the paper's minutes."""
    return _grid(gtuner_table3_text.seconds(data, gtuner_table3_text.means_of(data['layers'])))


def _grid(body: Sequence[Sequence[str]]) -> str:
    head, *rows = (tuple(row) for row in body)
    return Grid(head, tuple(rows)).markdown()


def network_latencies(data: Mapping[str, Any]) -> str:
    """In microseconds, means over seeds: a row for each network and search."""
    head = ('µs after so many trials of a group', *map(str, gtuner_fig7.SHOWN))
    rows = [
        (f'{network}: {search}', *(f'{1e3 * ms[:, n - 1].mean():.1f}' for n in gtuner_fig7.SHOWN))
        for network, searches in gtuner_fig7.latencies(data).items()
        for search, ms in searches.items()
    ]
    return Grid(head, tuple(rows)).markdown()


def subgraphs(data: Mapping[str, Any]) -> str:
    head, body = gtuner_fig8.rows(data)
    return Grid(tuple(head), tuple(map(tuple, body))).markdown()


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    'learned-losses': losses, 'learned-trials': trials, 'learned-holdouts': holdouts,
    'learned-transfer': transfer, 'gtuner-ablation': ablation, 'gtuner-resnet18': resnet18,
    'gtuner-models': models, 'gtuner-searches': searches, 'gtuner-networks': networks,
    'gtuner-seconds': seconds,
    'gtuner-latencies': network_latencies, 'gtuner-subgraphs': subgraphs,
}  # fmt: skip
