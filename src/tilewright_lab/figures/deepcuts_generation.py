"""DeepCuts' Fig. 7 (PLDI'21): how long it takes to generate the code of a network.

Goes in: files of `tilewright bench` (tilewright_lab/figures/deepcuts.py). Comes out: seconds from
the graph to the network that runs, by network, batch size and version: planning, searching,
compiling, measuring and, where libraries compete, selecting. Inductor's seconds beside them.

Of Fig. 7 the deck's text has one number: 13.53 times faster than TVM's AutoTVM, on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.report.grid import Grid
from tilewright_lab.figures.deepcuts import NONE, VERSIONS, bars, cell, mean, workloads
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import save

PAPER = {'autotvm_over_deepcuts': 13.53}


def run(options: Options) -> dict[str, Any]:
    """Read; comes out: JSON."""
    found, facts = workloads(options)
    seconds = {
        name: mean(w.versions[name].seconds for w in found if name in w.versions)
        for name in VERSIONS
    }
    return facts | {
        'workloads': [w.to_json() for w in found], 'mean_seconds': seconds, 'paper': PAPER,
        'missing': sum(name not in w.versions for w in found for name in VERSIONS),
    }  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """The table, and what it does not show."""
    lines = [
        f'{found["device"]}: seconds from the graph to the network that runs', '',
        table(found).text(), '',
        '*: the cache directory was not empty, so that some of it may have been done before',
        'm: chosen by the model, nothing was measured',
        f'the deck: AutoTVM took {found["paper"]["autotvm_over_deepcuts"]} times as long as '
        f'DeepCuts; its bars have no numbers',
    ]  # fmt: skip
    lines += stage_lines(found)
    if found['inductor_ahead_s']:
        lines.append(
            f'inductor: of its fastest form, after {found["inductor_ahead_s"]:.0f} s in which '
            f'kernels of all networks of a file were compiled ahead'
        )
    if found['missing']:
        lines.append(f'{found["missing"]} times are missing (-): docs/reproduce.md measures them')
    return '\n'.join(lines)


def stage_lines(found: Mapping[str, Any]) -> list[str]:
    """Of each version, what share of all seconds its stages take, where files have them."""
    lines = []
    for name in VERSIONS:
        ours = [w['ours'][name] for w in found['workloads'] if name in w['ours']]
        told = [one for one in ours if one['stages_s']]
        total = sum(one['seconds'] for one in told)
        stages = dict.fromkeys(stage for one in told for stage in one['stages_s'])
        shares = [
            f'{stage} {sum(one["stages_s"].get(stage, 0.0) for one in told) / total:.0%}'
            for stage in stages
        ]
        if shares:
            lines.append(f'{name}: {", ".join(shares)} of the seconds')
    return lines


def markdown(found: Mapping[str, Any]) -> str:
    """The table for a page."""
    return table(found).markdown()


def table(found: Mapping[str, Any]) -> Grid:
    """Seconds by workload and version, and geometric means."""
    rows = [
        (w['network'], str(w['batch']), *(_seconds(w['ours'].get(name)) for name in VERSIONS),
         cell(w['peers_tuning_s'].get('inductor'), 1))
        for w in found['workloads']
    ]  # fmt: skip
    means = (cell(found['mean_seconds'][name], 1) for name in VERSIONS)
    rows.append(('geometric mean', '', *means, ''))
    return Grid(('network', 'batch', *VERSIONS, 'inductor'), tuple(rows))


def _seconds(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return NONE
    mark = ('' if one['tune'] == 'measure' else 'm') + ('' if one['cold'] else '*')
    return cell(one['seconds'], 1, mark)


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Seconds of every workload, a bar for each version that was measured."""
    save(bars(found, 'seconds', 'seconds'), path)
