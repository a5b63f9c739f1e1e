"""Tables of the GPU papers' figures, as Markdown, from the JSON of the scripts that measured them.

Goes in: what src/tilewright_lab/scripts/boda_figures.py, gpu_model.py, gpu_profile.py, gpu_dfg.py
and cnnopt_table3.py wrote. Comes out: the text of a table. `FIGURES` names them as the marks of a
page do (src/tilewright_lab/scripts/tables.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.report.grid import Grid
from tilewright_lab.figures.learned_tables import TABLES as LEARNED
from tilewright_lab.figures.training_tables import TABLES as TRAINING

NEAR = 1.1  # times the best of the others up to which dfg counts as near it
_WAYS = {
    'pul': 'PUL, first 1%', 'bound': 'the bound, first 1%', 'time': 'time, first 1%',
    'below the bound': 'below the bound',
}  # fmt: skip
_RANKERS = {'time': 'time', 'bound': 'the bound of `model/gpu/pul.py`', 'pul': 'PUL'}
_COUNTS = {
    'shared_transactions': 'shared-memory transactions',
    'global_sectors': 'global sectors',
    'occupancy_limit_pct': 'theoretical occupancy',
    'occupancy_pct': 'achieved occupancy',
    'waves': 'waves',
    'registers': 'registers',
    'instructions': 'instructions',
}


def boda(data: Mapping[str, Any]) -> str:
    """Boda's Figs. 5 and 7-9: an operation through three runtimes, beside less tuned kernels."""
    head = (
        'operation', 'CUDA us', 'OpenCL us', 'OpenCL / CUDA', 'PoCL ms', 'general us',
        'one setting us', 'cuDNN us',
    )  # fmt: skip
    single, rows = data['fig8']['single_us'], []
    for r in data['rows']:
        rows.append((
            _short(r['name']), _us(r['winner_cuda_us']), _us(r['winner_opencl_us']),
            _ratio(r['winner_opencl_us'], r['winner_cuda_us']), _ms(r['pocl_us']),
            _us(r['general_cuda_us']), _us(single.get(r['name'])), _us(r['cudnn_us']),
        ))  # fmt: skip
    rows.append(('geometric mean', *(_mean(column) for column in _columns(data, single))))
    return Grid(head, tuple(rows)).markdown()


def _columns(data: Mapping[str, Any], single: Mapping[str, float]) -> Iterable[tuple[list, int]]:
    """The numbers of each column, and their digits."""
    rows = data['rows']
    yield [r['winner_cuda_us'] for r in rows], 2
    yield [r['winner_opencl_us'] for r in rows], 2
    pairs = [(r['winner_opencl_us'], r['winner_cuda_us']) for r in rows]
    yield [a / b for a, b in pairs if a and b], 3
    yield [1e-3 * r['pocl_us'] for r in rows if r['pocl_us']], 0
    yield [r['general_cuda_us'] for r in rows], 2
    yield [single[r['name']] for r in rows if r['name'] in single], 2
    yield [r['cudnn_us'] for r in rows], 2


def pruned(data: Mapping[str, Any]) -> str:
    """What the first percent by a ranker keeps, and what the bound excludes; of pruners.py, too."""
    head = (
        'schedules', 'pruned by', 'pruned', 'best kept on', 'loss, mean', 'loss, largest',
        'needed, mean',
    )  # fmt: skip
    rows = []
    for title, ways in data.get('pruned', data).items():
        for number, (way, word) in enumerate(_WAYS.items()):
            mean = ways[way]['mean']
            rows.append((
                f'{title}, {mean["rows"]:,}' if number == 0 else '', word,
                _percent(mean['pruned']), f'{mean["best_kept"]} of {mean["layers"]}',
                _percent(mean['mean_loss']), _percent(mean['largest_loss']),
                _percent(mean['needed']) if 'needed' in mean else '',
            ))  # fmt: skip
    return Grid(head, tuple(rows)).markdown()


def ranked(data: Mapping[str, Any]) -> str:
    """Means over layers of each ranker: correlation, and loss at each top."""
    means = {word: data['rankers'][name]['mean'] for name, word in _RANKERS.items()}
    tops = [key for key in next(iter(means.values())) if key.startswith('top')]
    head = ('ranker', 'correlation', *(key.replace('top', 'top ') for key in tops))
    rows = (
        (word, f'{mean["spearman"]:.3f}', *(_percent(mean[key]) for key in tops))
        for word, mean in means.items()
    )
    return Grid(head, tuple(rows)).markdown()


def table6(data: Mapping[str, Any]) -> str:
    """CNNOpt's Table 6: Pearson's correlation of counts with each other and with times."""
    head = (
        'count', 'modelled with measured', 'measured with time', 'modelled with time',
        'winners: measured with time', 'winners: modelled with time',
    )  # fmt: skip
    rows = []
    for name, word in _COUNTS.items():
        found = data['table6'][name]
        cells = [_number(data['agreement'].get(name), 3)]
        for kind in ('best_rs_of_layers', 'winners_of_layers'):
            for source in ('measured', 'modelled'):
                cells.append(_number(found.get(source, {}).get(kind), 2))
        rows.append((word, *cells))
    return Grid(head, tuple(rows)).markdown()


def table3(data: Mapping[str, Any]) -> str:
    """CNNOpt's Table 3 on the last machine: what each constraint removes, and what is left."""
    found = list(data.values())[-1]
    removed = list(found[0]['removed'])
    rows = []
    for row in found:
        gone = (str(row['removed'][name]) for name in removed)
        kept = (str(row[name]) for name in ('rs', 's', 'kept', 'paper'))
        rows.append((row['layer'], str(row['candidates']), *gone, *kept))
    head = ('layer', 'candidates', *(f'less {name}' for name in removed), 'RS', 'S', 'left')
    return Grid((*head, 'paper'), tuple(rows)).markdown()


def dfg(data: Mapping[str, Any]) -> str:
    """Layer by layer, the best kernel from a data-flow graph beside the best of all schemas."""
    head = ('layer', 'dfg us', 'others us', 'dfg / others', 'worked', 'by dfg', 'by others')
    rows = [
        (
            r['layer'], _us(r['dfg_us']), _us(r['others_us']),
            _ratio(r['dfg_us'], r['others_us']),
            f'{r["dfg_worked"]} of {r["dfg_tried"]}, {r["others_worked"]} of {r["others_tried"]}',
            _kind(r['dfg_schedule']), _kind(r['others_schedule']),
        )
        for r in data['rows']
    ]  # fmt: skip
    ratios = [r['dfg_over_others'] for r in data['rows'] if r['dfg_over_others']]
    near = sum(ratio <= NEAR for ratio in ratios)
    rows.append(('geometric mean', '', '', _mean((ratios, 2)), '', '', ''))
    rows.append((f'within {NEAR - 1:.0%}', '', '', f'{near} of {len(ratios)}', '', '', ''))
    return Grid(head, tuple(rows)).markdown()


def _kind(schedule: Mapping[str, Any] | None) -> str:
    return '-' if schedule is None else f'{schedule["schema"]} {schedule["intrinsic"]}'


FIGURES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    'boda': boda, 'pruned': pruned, 'ranked': ranked, 'table6': table6, 'table3': table3,
    'dfg': dfg, **LEARNED, **TRAINING,
}  # fmt: skip


def _short(name: str) -> str:
    return name.rpartition('/')[2].partition('@')[0]


def _number(value: float | None, digits: int) -> str:
    return '-' if value is None else f'{value:.{digits}f}'


def _us(value: float | None) -> str:
    return _number(value, 2)


def _ms(us: float | None) -> str:
    return _number(us and 1e-3 * us, 0)


def _ratio(above: float | None, below: float | None) -> str:
    return f'{above / below:.2f}' if above and below else '-'


def _percent(share: float) -> str:
    return f'{100 * share:.1f}%'


def _mean(column: tuple[list[float], int]) -> str:
    values, digits = column
    known = [value for value in values if value]
    if not known:
        return '-'
    return f'{math.exp(sum(map(math.log, known)) / len(known)):.{digits}f}'
