"""DeepCuts' training workloads (PLDI'21, Table 10 and 'performance speedup'): our steps beside.

Goes in: `training.json`, which `python -m tilewright_lab.scripts.gpu_training --json` writes. Comes
out: for each of the 16 workloads the fastest step of ours that was timed, the fastest of PyTorch's,
and their ratio; those that nobody has timed say so. A contestant that was not timed beside our
fastest step counts with its best time elsewhere. The deck prints one mean for training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.files import read_json
from tilewright.report.grid import Grid
from tilewright_lab.figures.deepcuts import NONE, RESULTS, cell, mean, over
from tilewright_lab.figures.figures import Options

FILE = 'training.json'
PAPER = 1.04  # "For training: 1.04X faster than cuDNN on average"
# Networks of the deck, with the batches that we train them at: it names none.
WORKLOADS = {
    'resnet50': (16, 64), 'densenet121': (16, 64), 'inception_v3': (16, 64),
    'mobilenet_v2': (16, 64), 'deepspeech2': (8, 32), 'attention_rnn': (16, 64),
    'dlrm': (128, 2048), 'bert_base': (4, 16),
}  # fmt: skip


def training(options: Options) -> dict[str, Any]:
    """Read and compare; comes out: JSON. Without a file, every workload is missing."""
    folder = options.data or RESULTS
    file = (folder.parent if folder.is_file() else folder) / FILE
    timed = [row for row in _rows(file) if row.get('us', {}).get('ours')]
    found = []
    for network, batches in WORKLOADS.items():
        for batch in batches:
            mine = [r for r in timed if (r['network'], r['batch']) == (network, batch)]
            best = min(mine, key=lambda r: r['us']['ours'], default=None)
            found.append({'network': network, 'batch': batch} | _times(best, mine))
    return {
        'file': file.name, 'workloads': found, 'paper': PAPER,
        'best_peer_over_ours': mean(one['best_peer_over_ours'] for one in found),
        'timed': sum(one['ours_us'] is not None for one in found),
    }  # fmt: skip


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    said = read_json(file, file.name, 'write it by gpu_training --json')
    rows = said.get('rows') if isinstance(said, dict) else None
    if not isinstance(rows, dict) or not all(isinstance(r, dict) for r in rows.values()):
        raise InputError(f'{file.name} is not what gpu_training --json writes; leave it out')
    return list(rows.values())


def _times(
    row: Mapping[str, Any] | None, others: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:  # fmt: skip
    """`right`: gradients agreed with PyTorch's within what the script asks for."""
    us: dict[str, float] = {}
    for other in others:
        for who, time in other['us'].items():
            us[who] = min(time, us.get(who, time))
    us |= {} if row is None else row['us']
    ours = us.get('ours')
    peers = [time for who, time in us.items() if who != 'ours' and time]
    peer = min(peers, default=None)
    return {
        'ours_us': ours, 'peer_us': peer, 'best_peer_over_ours': over(peer, ours),
        'right': None if row is None else bool(row.get('right')),
        'gradient_error': None if row is None else _gradient_error(row),
    }  # fmt: skip


def _gradient_error(row: Mapping[str, Any]) -> float | None:
    """Of all parameters together; older files have one number."""
    return row.get('gradient_errors', {}).get('ours', row.get('gradient_error'))


def grid(found: Mapping[str, Any]) -> Grid:
    """One row for each workload, and the mean."""
    head = ('training', 'batch', 'ours', 'best peer', 'peer / ours', 'gradients differ by')
    rows = [
        (f'step of {one["network"]}', str(one['batch']), cell(one['ours_us'], 1),
         cell(one['peer_us'], 1), cell(one['best_peer_over_ours'], 2), _error(one))
        for one in found['workloads']
    ]  # fmt: skip
    return Grid(head, tuple(rows))


def _error(one: Mapping[str, Any]) -> str:
    if one['ours_us'] is None:
        return 'not timed'
    error = one['gradient_error']
    return NONE if error is None else f'{error:.1e}{"" if one["right"] else " (!)"}'


def notes(found: Mapping[str, Any]) -> list[str]:
    count, there = len(found['workloads']), found['timed']
    return [
        f'training: best peer / ours {cell(found["best_peer_over_ours"], 2)} in the geometric mean '
        f'of {there} of {count} workloads; the deck: cuDNN / DeepCuts {PAPER} on average',
        *([f'{count - there} training steps have not been timed: docs/training.md has the command']
          if there < count else []),
        *(['(!) gradients differ by more than the script allows, see docs/training.md']
          if any(one['right'] is False for one in found['workloads']) else []),
    ]  # fmt: skip
