"""DeepCuts' speed-ups of CNN inference (PLDI'21, evaluation): three versions beside libraries.

Goes in: files of `tilewright bench` (tilewright_lab/figures/deepcuts.py). Comes out: our time by
network, batch size and version, the peers', best peer / ours, and geometric means beside the
deck's, which are of a V100 and an RTX 2080 against cuDNN. Training steps have a table of their own
(deepcuts_training.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.report.grid import Grid
from tilewright_lab.figures import deepcuts_training
from tilewright_lab.figures.deepcuts import (
    FUSED,
    NONE,
    PEERS,
    VERSIONS,
    bars,
    cell,
    mean,
    over,
    workloads,
)
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import save

# "1.3X faster than cuDNN for CNN inferences, 1.18X without using cuDNN primitives"; all 32
# workloads, also RNNs, MLPs and training: 1.13 and 1.03. Not fused: in a picture alone.
PAPER = {
    'cnn_inference': {'fused': 1.18, 'with libraries': 1.30},
    'all_workloads': {'fused': 1.03, 'with libraries': 1.13},
}
GROUPS = {'not fused': ('not fused',), 'fused': FUSED, 'with libraries': ('with libraries',)}


def run(options: Options) -> dict[str, Any]:
    """Read and compare; comes out: JSON."""
    found, facts = workloads(options)
    means = {
        name: {
            'best_peer_over_ours': mean(w.ratio(*versions) for w in found),
            'least': min((r for w in found if (r := w.ratio(*versions))), default=None),
            'workloads': sum(w.ratio(*versions) is not None for w in found),
        }
        for name, versions in GROUPS.items()
    }
    gains = [over(w.us('not fused'), w.us(*FUSED)) for w in found]
    best = [(w, min(filter(None, (w.us(*FUSED), w.best_peer)), default=None)) for w in found]
    behind = [over(w.us('with libraries'), least) for w, least in best if least]
    return facts | {
        'workloads': [w.to_json() for w in found], 'means': means, 'paper': PAPER,
        'fused_over_not_fused': {
            'mean': mean(gains), 'workloads': sum(g is not None for g in gains),
        },
        'libraries_behind_the_better': max((b - 1 for b in behind if b), default=None),
        'missing': sum(name not in w.versions for w in found for name in VERSIONS),
        'training': deepcuts_training.training(options),
    }  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """The table by workload, then means beside the paper's."""
    return '\n'.join(
        [f'{found["device"]}, float32 with TF32 off, CUDA graphs; us', '',
         _times(found).text(), '', _means(found).text(), '', *_notes(found), '',
         deepcuts_training.grid(found['training']).text(), '',
         *deepcuts_training.notes(found['training'])]
    )  # fmt: skip


def markdown(found: Mapping[str, Any]) -> str:
    """The tables for a page."""
    grids = _times(found), _means(found), deepcuts_training.grid(found['training'])
    return '\n\n'.join(grid.markdown() for grid in grids)


def _times(found: Mapping[str, Any]) -> Grid:
    head = ('network', 'batch', *VERSIONS, *PEERS, *(f'peer / {name}' for name in GROUPS))
    rows = []
    for w in found['workloads']:
        ours, peers = w['ours'], w['peers_us']
        times = [_time(ours.get(name)) for name in VERSIONS]
        times += [cell(peers.get(name), 1) for name in PEERS]
        best = min(peers.values(), default=None)
        ratios = [
            cell(over(best, min((ours[n]['us'] for n in names if n in ours), default=None)), 2)
            for names in GROUPS.values()
        ]
        rows.append((w['network'], str(w['batch']), *times, *ratios))
    return Grid(head, tuple(rows))


def _time(one: Mapping[str, Any] | None) -> str:
    return NONE if one is None else cell(one['us'], 1, '' if one['tune'] == 'measure' else 'm')


def _means(found: Mapping[str, Any]) -> Grid:
    head = ('version', 'best peer / ours', 'least', 'workloads', 'deck: cuDNN / DeepCuts, CNNs')
    rows = [
        (name, cell(one['best_peer_over_ours'], 2), cell(one['least'], 2), str(one['workloads']),
         cell(found['paper']['cnn_inference'].get(name), 2))
        for name, one in found['means'].items()
    ]  # fmt: skip
    return Grid(head, tuple(rows))


def _notes(found: Mapping[str, Any]) -> list[str]:
    gain, behind = found['fused_over_not_fused'], found['libraries_behind_the_better']
    lines = [
        'fused: the faster of elementwise and all; m: chosen by the model, nothing was measured',
        f'fused over not fused: geometric mean {cell(gain["mean"], 3)} of {gain["workloads"]} '
        f'workloads',
        f'with libraries, time over the better of fused and the best peer, largest: '
        f'{NONE if behind is None else f"{100 * behind:+.1f}%"}',
        'the deck: V100 and RTX 2080, four CNNs; its bars by network and batch size have no '
        'numbers',
    ]
    if found['missing']:
        lines.append(f'{found["missing"]} times are missing (-): docs/reproduce.md measures them')
    return lines


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Best peer / ours of every workload, a bar for each version that was measured."""
    figure = bars(found, 'best_peer_over_ours', 'best peer / ours')
    figure.axes[0].axhline(1.0, color='black', linewidth=0.5)
    save(figure, path)
