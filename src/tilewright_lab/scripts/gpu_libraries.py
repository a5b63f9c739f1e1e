"""cuDNN and cuBLASLt on a GPU: each checked against float64 and timed beside our model's choice.

    python -m tilewright_lab.scripts.gpu_libraries --json bench/results/h200/libraries.json
    python -m tilewright_lab.scripts.gpu_libraries --networks resnet18 --batch 16

Every algorithm that a library proposes for a layer runs once for its result and then in a CUDA
graph for its time; errors are shares of the largest output. With --networks a network is compiled
with `libraries=` none, auto and only, checked, written and loaded again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.module import with_own_dims
from tilewright.kernels.gpu.registry import is_library
from tilewright.kernels.gpu.schemas.library import why_not
from tilewright.network.compile import compile as compile_network
from tilewright.network.compile import load
from tilewright.ops.convolution import conv2d
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.report.grid import Grid
from tilewright.runtime.gpu.libraries.table import MODES, available
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.session import Session
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright.targets.gpu.choose import choose_all

TOLERANCE = 1e-4
REPEATS = 9
CALLS = 50


def layers() -> dict[str, Group]:
    """Name -> group: every kind that a library is asked for, small and large."""
    three: dict[str, Any] = {'c': 64, 'h': 56, 'w': 56, 'k': 64, 'r': 3, 's': 3, 'pad': 1}
    one: dict[str, Any] = {'c': 256, 'h': 14, 'w': 14, 'k': 1024, 'r': 1, 's': 1}
    ends: dict[str, Any] = {'bias': True, 'activation': 'relu'}
    return {
        '3x3': conv2d(**three),
        '3x3 bias relu': conv2d(**three, **ends),
        '3x3 bias relu, 16': conv2d(n=16, **three, **ends),
        '3x3 bias sigmoid': conv2d(**three, bias=True, activation='sigmoid'),
        '1x1 bias relu': conv2d(**one, **ends),
        '1x1 bias, 16': conv2d(n=16, **one, bias=True),
        '1x1': conv2d(**one),
        'strided 7x7': conv2d(c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3, **ends),
        'strided, unequal': conv2d(
            n=2, c=32, h=45, w=38, k=48, r=3, s=5, stride=(2, 1), pad=(1, 2), dilation=(1, 2)
        ),
        'grouped': conv2d(c=128, h=28, w=28, k=256, r=3, s=3, pad=1, groups=32, activation='relu'),
        'depthwise': conv2d(c=96, h=56, w=56, k=96, r=3, s=3, pad=1, groups=96, **ends),
        'fc': fully_connected(n=1, c=2048, k=1000, bias=True),
        'fc relu, 16': fully_connected(n=16, c=2048, k=1000, bias=True, activation='relu'),
    }


def attempts(session: Session, group: Group, ours: GpuSchedule) -> list[dict[str, Any]]:
    """Ours and everything that libraries propose, checked and timed."""
    session.group(with_own_dims(group).to_json(), 0, TOLERANCE)
    found = [attempt(session, ours.to_json())]
    for library in available()[0]:
        sentence = why_not(library, group)
        if sentence:
            found.append({'library': library, 'status': 'left to us', 'message': sentence})
            continue
        try:
            proposed = session.proposals(library)['schedules']
        except TilewrightError as error:
            found.append({'library': library, 'status': 'failed', 'message': str(error)})
            continue
        found += [attempt(session, data) for data in proposed]
    return found


def attempt(session: Session, data: dict[str, Any]) -> dict[str, Any]:
    """One schedule, checked and timed."""
    schedule = GpuSchedule.from_json(data)
    library = schedule.schema if is_library(schedule) else 'ours'
    said = {'library': library, 'schedule': data, 'text': schedule_text(schedule)}
    try:
        answer = session.attempt(data, None, REPEATS)
    except TilewrightError as error:
        return said | {'status': 'failed', 'message': str(error)}
    samples = answer.get('samples_ms', [])
    return said | {
        'status': answer['status'], 'message': answer['message'],
        'max_rel_err': answer['max_rel_err'], 'samples_ms': samples,
        'us': 1e3 * statistics.median(samples) if samples else None,
    }  # fmt: skip


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One line for ours and for the fastest of each library."""
    rows = []
    for name, tried in found.items():
        ours = tried[0].get('us')
        for library in dict.fromkeys(one['library'] for one in tried):
            own = [one for one in tried if one['library'] == library]
            good = [one for one in own if one.get('us') and one['status'] == 'ok']
            best = min(good, key=lambda one: one['us']) if good else own[0]
            us, error = best.get('us'), best.get('max_rel_err')
            rows.append(
                (
                    name, library, f'{us:.2f}' if us else '-',
                    f'{us / ours:.2f}' if us and ours else '-',
                    f'{error:.1e}' if error is not None else '-', f'{len(good)}/{len(own)}',
                    best.get('text') or best.get('message', ''),
                )
            )  # fmt: skip
    head = ('layer', 'by', 'us', 'of ours', 'error', 'right', 'how')
    return Grid(head, tuple(rows)).text()


def network(name: str, batch: int) -> dict[str, Any]:
    """One network in all modes: seconds to compile, of a call, and tasks of each library."""
    rng = np.random.default_rng(0)
    said: dict[str, Any] = {'network': name, 'batch': batch}
    for mode in MODES:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / 'network.tw'
            net = compile_network(
                zoo.graph(name, 0, batch), 'cuda', libraries=mode, check=True, save=file
            )  # fmt: skip
            spent = time.perf_counter() - began
            again = load(file)
        assert isinstance(net, GpuNetwork)
        value = net.inputs[0]
        given = {value.name: rng.standard_normal(value.shape).astype(np.float32)}
        same = all(np.array_equal(a, b) for a, b in zip(
            net.run(given).values(), again.run(given).values(), strict=True
        ))  # fmt: skip
        schemas = [task.schedule.schema for task in net.gpu_tasks]
        said[mode] = {
            'us': 1e6 * statistics.median(net.time(given, CALLS)), 'compile_s': spent,
            'tasks': {schema: schemas.count(schema) for schema in sorted(set(schemas))},
            'loaded_alike': same,
        }  # fmt: skip
        print(f'{name} {batch} libraries={mode}: {said[mode]}', flush=True)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--json', type=Path, help='write all of it here')
    parser.add_argument('--networks', default='', help='networks of the zoo, with commas')
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--no-layers', action='store_true')
    asked = parser.parse_args()
    versions, missing = available()
    print('\n'.join([f'{name} {version}' for name, version in versions.items()] + missing))
    session = Session('cuda', '')
    groups = {} if asked.no_layers else layers()
    chosen = choose_all(list(groups.values()), session.device.machine, 1, DEFAULT_LIMIT)
    found = {}
    for (name, group), choices in zip(groups.items(), chosen, strict=True):
        found[name] = attempts(session, group, choices[0].schedule)
        print(f'{name}: {len(found[name])} tried', flush=True)
    print(table(found))
    said = {
        'device': session.device.name, 'versions': versions, 'missing': missing, 'layers': found,
        'networks': [],
    }  # fmt: skip
    for name in filter(None, asked.networks.split(',')):
        said['networks'].append(network(name, asked.batch))
    if asked.json is not None:
        asked.json.write_text(json.dumps(said, indent=1))


if __name__ == '__main__':
    main()
