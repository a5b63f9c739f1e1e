"""Tables 3 and 4 of GTuner for people: what was measured here, rivals, and the paper's columns."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright_lab.figures.pictures import aligned, canvas, save

RIVALS = ('torch', 'inductor')
# Table 3, latencies in ms on an RTX 3090; Table 4, minutes of tuning. By names of the zoo.
PAPER_MS = {
    'resnet18': {'PyTorch': 27.180, 'PyTorch-JIT': 4.119, 'AutoTVM': 1.056, 'Ansor': 1.073,
                 'MHSA': 0.963, 'GTuner': 0.923},
    'resnet34': {'PyTorch': 48.988, 'PyTorch-JIT': 5.929, 'AutoTVM': 1.180, 'Ansor': 0.968,
                 'MHSA': 0.907, 'GTuner': 0.872},
    'squeezenet': {'PyTorch': 16.658, 'PyTorch-JIT': 3.648, 'AutoTVM': 0.311, 'Ansor': 0.207,
                   'MHSA': 0.201, 'GTuner': 0.197},
    'mobilenet_v1': {'PyTorch': 30.324, 'PyTorch-JIT': 6.972, 'AutoTVM': 0.513, 'Ansor': 0.242,
                     'MHSA': 0.252, 'GTuner': 0.227},
}  # fmt: skip
PAPER_MINUTES = {
    'resnet18': {'Ansor': 45.57, 'MHSA': 45.95, 'GTuner': 46.94, 'AutoTVM': 65.22},
    'resnet34': {'Ansor': 46.66, 'MHSA': 48.89, 'GTuner': 50.71, 'AutoTVM': 54.86},
    'squeezenet': {'Ansor': 43.53, 'MHSA': 44.40, 'GTuner': 45.91, 'AutoTVM': 63.90},
    'mobilenet_v1': {'Ansor': 42.88, 'MHSA': 43.80, 'GTuner': 44.20, 'AutoTVM': 61.60},
}
_NONE = '-'


def paper_of(networks: Sequence[str]) -> dict[str, Any]:
    """What the paper prints of these networks."""
    return {
        'ms': {n: PAPER_MS[n] for n in networks if n in PAPER_MS},
        'minutes': {n: PAPER_MINUTES[n] for n in networks if n in PAPER_MINUTES},
    }


def rivals_of(path: Path) -> dict[str, dict[str, Any]]:
    """[JSON of `tilewright bench .. --target cuda`, or a folder of such] -> by network and rival:
    the fastest variant whose answer was right, and the seconds of its tuning.
    """
    files = [path] if path.is_file() else sorted(path.glob('*.json'))
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for network in _networks(file, strict=file == path):
            for one in network['contestants']:
                rival, time_us = one['name'].split('/')[0], one.get('median_us')
                if rival not in RIVALS or one.get('status') != 'ok' or not time_us:
                    continue
                known = found.setdefault(network['name'], {}).get(rival)
                if known is None or time_us < known['median_us']:
                    found[network['name']][rival] = {
                        'variant': one['name'], 'median_us': time_us,
                        'tuning_s': one.get('tuning_s'), 'file': file.name,
                    }  # fmt: skip
    if not found:
        raise InputError(
            f'--data {path} has no times of {" or ".join(RIVALS)} on networks; give what '
            f'tilewright bench NETWORKS --target cuda --against torch,inductor --json FILE wrote'
        )
    return found


def _networks(file: Path, strict: bool) -> list[Mapping[str, Any]]:
    """Networks of a file with a time for each contestant; others of a folder are passed over."""
    try:
        said = json.loads(file.read_text())
        return [
            n for n in said.get('networks', ())
            if isinstance(n, Mapping) and 'name' in n and 'contestants' in n
        ]  # fmt: skip
    except (OSError, ValueError, AttributeError) as error:
        if strict:
            raise InputError(f'--data {file} cannot be read: {error}') from None
        return []


def line(row: Mapping[str, Any]) -> str:
    """A row while others are made."""
    name = f'{row["network"]}, {row["method"]}, seed {row["seed"]}'
    if row['status'] != 'ok':
        return f'{name}: {row["message"]}'
    return f'{name}: {row["median_us"]:.1f} us after {row["seconds"]:.1f} s'


def means_of(layers: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """By network and method, means over the seeds that worked, and the samples of each."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in layers:
        if row['status'] == 'ok':
            found.setdefault((row['network'], row['method']), []).append(row)
    return {
        pair: {
            'groups': mine[0]['groups'], 'seeds': [row['median_us'] for row in mine],
            'median_us': statistics.fmean(row['median_us'] for row in mine),
            'seconds': statistics.fmean(row['seconds'] for row in mine),
        }
        for pair, mine in found.items()
    }  # fmt: skip


def text(found: dict[str, Any]) -> str:
    """Both tables."""
    rows = means_of(found['layers'])
    ways = ', '.join(
        f'{name}: {how["search"]}'
        + ('' if how['search'] == 'online' else f' by the {how["model"]} model')
        for name, how in found['methods'].items()
    )
    several = max((len(row['seeds']) for row in rows.values()), default=0) > 1
    failed = [line(r) for r in found['layers'] if r['status'] != 'ok']
    return '\n'.join(
        [
            f'{found["device"]}, float32, batch 1, {found["trials"]} trials a group, '
            f'{found["candidates"]} candidates, {found["cores"]} cores ({ways})',
            '', 'latency in ms (the paper\'s: RTX 3090)', '', *aligned(latencies(found, rows)),
            *(f'online / {m}: {ratio}' for m, ratio in ratios(found, rows)), '',
            'seconds of the whole compilation (the paper\'s: minutes)', '',
            *aligned(seconds(found, rows)),
            '', 'means over the seeds, least and most in brackets' if several else 'one seed',
            'networks are tuned together; seconds are a share by the number of groups, and those '
            'of the network itself', *failed,
            *([] if found['complete'] else
              ['not all of it has been measured: the same command goes on']),
        ]
    )  # fmt: skip


def latencies(found: Mapping[str, Any], rows: Mapping[tuple, Any]) -> list[list[str]]:
    """A head, and a row for each network, in ms."""
    methods, paper = list(found['methods']), found['paper']['ms']
    printed = list(dict.fromkeys(name for one in paper.values() for name in one))
    body = [['network', *methods, *RIVALS, *(f'[{name}]' for name in printed)]]
    for network in found['networks']:
        ours = [_spread(rows.get((network, m))) for m in methods]
        theirs = [found['rivals'].get(network, {}).get(r, {}).get('median_us') for r in RIVALS]
        body.append(
            [network, *ours, *(_cell(v, 1e-3, 4) for v in theirs),
             *(_cell(paper.get(network, {}).get(name), 1, 3) for name in printed)]
        )  # fmt: skip
    return body


def ratios(found: Mapping[str, Any], rows: Mapping[tuple, Any]) -> list[tuple[str, str]]:
    """How much faster than the online baseline each method's networks are, on average."""
    said = []
    for method in found['methods']:
        logs = [
            math.log(rows[n, 'online']['median_us'] / rows[n, method]['median_us'])
            for n in found['networks']
            if (n, 'online') in rows and (n, method) in rows
        ]
        if logs and method != 'online':
            mean = math.exp(sum(logs) / len(logs))
            said.append((method, f'{mean:.3f} (geometric mean over {len(logs)} networks)'))
    return said


def seconds(found: Mapping[str, Any], rows: Mapping[tuple, Any]) -> list[list[str]]:
    """A head, and a row for each network, in seconds; the paper's in minutes."""
    methods, paper = list(found['methods']), found['paper']['minutes']
    printed = list(dict.fromkeys(name for one in paper.values() for name in one))
    body = [['network', 'groups', *methods, 'inductor', *(f'[{name}]' for name in printed)]]
    for network in found['networks']:
        mine = [rows.get((network, m), {}) for m in methods]
        groups = next((str(r['groups']) for r in mine if r), _NONE)
        inductor = found['rivals'].get(network, {}).get('inductor', {}).get('tuning_s')
        body.append(
            [network, groups, *(_cell(v, 1, 1) for v in (*(r.get('seconds') for r in mine),
                                                         inductor)),
             *(_cell(paper.get(network, {}).get(name), 1, 1) for name in printed)]
        )  # fmt: skip
    return body


def _spread(row: Mapping[str, Any] | None) -> str:
    """The mean in ms, and least and most of several seeds."""
    if row is None:
        return _NONE
    values = (row['median_us'], min(row['seeds']), max(row['seeds']))
    mean, least, most = (f'{1e-3 * value:.4f}' for value in values)
    return mean if len(row['seeds']) == 1 else f'{mean} ({least}-{most})'


def _cell(value: float | None, factor: float, digits: int) -> str:
    return _NONE if value is None else f'{factor * value:.{digits}f}'


def plot(found: dict[str, Any], path: Path) -> None:
    """Latencies of every network over that of the online baseline."""
    rows = means_of(found['layers'])
    networks = [n for n in found['networks'] if (n, 'online') in rows]
    figure = canvas(8, 4)
    axis = figure.subplots()
    bars = [*found['methods'], *RIVALS]
    width = 0.8 / len(bars)
    for number, name in enumerate(bars):
        values = [
            (found['rivals'].get(n, {}) if name in RIVALS else rows.get((n, name), {}))
            for n in networks
        ]
        heights = [
            (v.get(name, {}) if name in RIVALS else v).get('median_us') or 0.0 for v in values
        ]
        over = [h / rows[n, 'online']['median_us'] for h, n in zip(heights, networks, strict=True)]
        axis.bar(np.arange(len(networks)) + width * number, over, width, label=name)
    axis.set_xticks(np.arange(len(networks)) + 0.4, networks)
    axis.set_ylabel('latency over that of the online baseline')
    axis.legend(ncols=3)
    save(figure, path)
