"""Tables of training steps, as Markdown, from the JSON of the scripts that measured them.

Goes in: what src/tilewright_lab/scripts/gpu_training.py (`training`, `training-libraries`),
gpu_training_memory.py, gradient_errors.py and cpu_training.py wrote. Comes out: the text of a
table; `TABLES` names them as the marks of a page do (src/tilewright_lab/scripts/tables.py).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.report.grid import Grid

_NAMES = {
    'resnet50': 'ResNet-50', 'densenet121': 'DenseNet-121', 'inception_v3': 'Inception-v3',
    'mobilenet_v2': 'MobileNetV2', 'bert_base': 'BERT-base', 'dlrm': 'DLRM',
    'attention_rnn': 'Attention-RNN', 'deepspeech2': 'DeepSpeech2', 'resnet18': 'ResNet-18',
    'lstm': 'LSTM classifier', 'transformer': 'two-layer transformer',
}  # fmt: skip
Row = Mapping[str, Any]


def training(data: Mapping[str, Any]) -> str:
    """Steps on a GPU without libraries beside PyTorch's and Inductor's, and errors of gradients."""
    head = (
        'workload', 'ours, us', 'PyTorch, us', 'Inductor, us', 'ratio', 'gradients off by',
        "PyTorch's by", 'right',
    )  # fmt: skip
    found = _timed(data, 'none')
    rows = []
    for row in found:
        us, off = row['us'], row['gradient_errors']
        theirs = max(off['torch'], off['torch_nudged'])
        rows.append((
            _workload(row), *(f'{us[who]:,.0f}' for who in ('ours', 'torch', 'inductor')),
            f'{row["ratio"]:.2f}', f'{off["ours"]:.1e}', f'{theirs:.1e}',
            'yes' if row['right'] else 'no',
        ))  # fmt: skip
    rows.append(('geometric mean', '', '', '', _mean(row['ratio'] for row in found), '', '', ''))
    return Grid(head, tuple(rows)).markdown()


def with_libraries(data: Mapping[str, Any]) -> str:
    """Those that were timed with libraries, beside the same without."""
    head = ('workload', 'with libraries, us', 'without', 'ratio', 'gradients off by', 'right')
    without = {_workload(row): row for row in _timed(data, 'none')}
    found = _timed(data, 'auto')
    rows = [
        (
            _workload(row), f'{row["us"]["ours"]:,.0f}',
            f'{without[_workload(row)]["us"]["ours"]:,.0f}', f'{row["ratio"]:.2f}',
            f'{row["gradient_errors"]["ours"]:.1e}', 'yes' if row['right'] else 'no',
        )
        for row in found
    ]  # fmt: skip
    rows.append(('geometric mean', '', '', _mean(row['ratio'] for row in found), '', ''))
    return Grid(head, tuple(rows)).markdown()


def memory(data: Mapping[str, Any]) -> str:
    """What a limit leaves and costs, beside PyTorch's peak."""
    head = ('step', 'limit, MB', 'MB', 'tasks', 'ms', 'time')
    rows = [
        (
            'no limit' if name == 'none' else f"{name} of PyTorch's peak",
            '' if row['limit_bytes'] is None else f'{row["limit_bytes"] / 1e6:,.0f}',
            f'{row["bytes"] / 1e6:,.0f}', str(row['tasks']), f'{row["us"] / 1e3:.1f}',
            f'{row["time"]:.3f}',
        )
        for name, row in data['rows'].items()
    ]  # fmt: skip
    theirs = data['torch_bytes']
    for kind, text in (('graph', 'captured as a graph, peak'), ('eager', 'eager, peak'),
                       ('reserved', 'held of the device')):  # fmt: skip
        rows.append((f'PyTorch, {text}', '', f'{theirs[kind] / 1e6:,.0f}', '', '', ''))
    return Grid(head, tuple(rows)).markdown()


def gradients(data: Mapping[str, Any]) -> str:
    """Networks of the zoo with small layers: errors of gradients against float64."""
    head = ('network', 'batch', 'max_rel_err', 'gradients off by', "PyTorch's by", 'right')
    rows = []
    for name, row in data['rows'].items():
        if 'error' in row:
            rows.append((name, '', '', row['error'], '', ''))
            continue
        off = row['gradient_errors']
        theirs = max(off['torch'], off['torch_nudged'])
        said = 'yes' if row['right'] else 'no'
        limit = 'default' if row['max_rel_err'] is None else f'{row["max_rel_err"]:g}'
        rows.append((
            name, str(row['batch']), limit, f'{off["ours"]:.1e}', f'{theirs:.1e}', said
        ))  # fmt: skip
    return Grid(head, tuple(rows)).markdown()


def on_cpu(data: Mapping[str, Any]) -> str:
    """Steps on a CPU beside PyTorch's."""
    head = ('network', 'ours, ms', 'eager, ms', 'torch.compile, ms', 'better of both / ours')
    rows = [
        (
            _NAMES[row['name']],
            *(f'{1e3 * statistics.median(row["samples_s"][who]):.1f}'
              for who in ('tilewright', 'eager', 'compile')),
            f'{row["ratio"]:.2f}',
        )
        for row in data['rows']
    ]  # fmt: skip
    rows.append(('geometric mean', '', '', '', _mean(row['ratio'] for row in data['rows'])))
    return Grid(head, tuple(rows)).markdown()


def _timed(data: Mapping[str, Any], libraries: str) -> list[Row]:
    order = list(_NAMES)
    found = [
        row for key, row in data['rows'].items()
        if key.endswith(f'-{libraries}') and row['stage'] == 'timed'
    ]  # fmt: skip
    return sorted(found, key=lambda row: (order.index(row['network']), row['batch']))


def _workload(row: Row) -> str:
    return f'{_NAMES[row["network"]]}, batch {row["batch"]}'


def _mean(ratios: Iterable[float]) -> str:
    return f'{statistics.geometric_mean(ratios):.2f}'


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    'training': training, 'training-libraries': with_libraries, 'training-memory': memory,
    'training-gradients': gradients, 'training-cpu': on_cpu,
}  # fmt: skip
