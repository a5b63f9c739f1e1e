"""What each pass over a network gains: all of them, each one left out, none; timed in turns.

    python -m tilewright_lab.scripts.network_passes [NETWORK] [--image SIZE] [--width N] \
        [--threads T]
                                   [--rounds 7] [--calls 20] [--json FILE]

NETWORK is a name of the zoo [resnet18]; `--image` and `--width` make it smaller. Every variant is
compiled by the model alone, compared with the one that has all passes, and timed in every round.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.cli.output import versions
from tilewright.graph.passes import PASSES
from tilewright.report.grid import Grid
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.network_arrays import example

ALL = 'all'


def variants() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what it is called, the passes that run)."""
    yield ALL, PASSES
    for left_out in PASSES:
        yield f'no {left_out}', tuple(name for name in PASSES if name != left_out)
    yield 'none', ()


def row(name: str, net: Network, times: list[float], error: float) -> dict[str, Any]:
    kernels = [net.kernels[task.digest] for task in net.tasks]
    return {
        'passes': name,
        'tasks': len(net.tasks),
        'kernels': len(net.kernels),
        'predicted_ms': 1e3 * sum(kernel.predicted_s for kernel in kernels),
        'median_ms': statistics.median(times),
        'samples_ms': times,
        'arena_bytes': net.arena_bytes,
        'weight_bytes': net.weight_bytes,
        'max_rel_err': error,
    }


def table(rows: list[dict[str, Any]]) -> Grid:
    whole = rows[0]['median_ms']
    return Grid(
        ('passes', 'tasks', 'kernels', 'predicted ms', 'ms', 'times all', 'values MiB', 'differs'),
        tuple(
            (
                r['passes'], str(r['tasks']), str(r['kernels']), f'{r["predicted_ms"]:.3f}',
                f'{r["median_ms"]:.3f}', f'{r["median_ms"] / whole:.3f}',
                f'{r["arena_bytes"] / 2**20:.2f}', f'{r["max_rel_err"]:.0e}',
            )
            for r in rows
        ),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description='what each pass over a network gains')
    parser.add_argument('network', nargs='?', default='resnet18', choices=zoo.NAMES)
    parser.add_argument('--image', type=int)
    parser.add_argument('--width', type=int, default=1)
    parser.add_argument('--threads', type=int)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--calls', type=int, default=20)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    model = zoo.onnx_model(given.network, image=given.image, width=given.width)
    nets = {
        name: tw.compile(model, passes=passes, threads=given.threads) for name, passes in variants()
    }
    inputs = {value.name: example(value) for value in nets[ALL].inputs}
    want = nets[ALL].run(inputs)
    errors = {
        name: max(float(np.abs(got - want[out]).max() / np.abs(want[out]).max())
                  for out, got in net.run(inputs).items())
        for name, net in nets.items()
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in nets}
    for number in range(given.rounds):
        for name in nets if number % 2 else reversed(nets):
            seconds = nets[name].time(inputs, given.calls + 2)[2:]
            times[name].append(1e3 * statistics.median(seconds))
    rows = [row(name, net, times[name], errors[name]) for name, net in nets.items()]
    print(f'{given.network}, threads: {nets[ALL].threads}')
    print(table(rows).text())
    if given.json is not None:
        result = {
            'network': given.network, 'image': given.image, 'width': given.width,
            'threads': nets[ALL].threads, 'rounds': given.rounds, 'calls': given.calls,
            'variants': rows, 'versions': versions(),
        }  # fmt: skip
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
