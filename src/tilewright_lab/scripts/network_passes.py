"""What each pass over a network gains: all of them, each one left out, none; timed in turns.

    python -m tilewright_lab.scripts.network_passes [NETWORK] [--image SIZE] [--width N] \
        [--threads T] [--rounds 7] [--calls 20] [--json FILE]
    python -m tilewright_lab.scripts.network_passes mobilenet_v1 --fusion [--tune measure]

NETWORK is a name of the zoo [resnet18]; `--image` and `--width` make it smaller. Every variant is
compiled, compared with the first one and timed in every round. With `--fusion` the variants are
what `fuse=` may be, instead: chains of reducing operators too, element-wise work alone, nothing;
and element-wise work where means and convolutions keep the order that the model has them in.
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
from tilewright.graph.passes import FUSIONS, PASSES, passes_of
from tilewright.network.arguments import TUNES
from tilewright.report.grid import Grid
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.network_arrays import example

ALL = 'all'


def variants(fusion: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is called, arguments of `compile`), the one first that has everything."""
    if fusion:
        yield from ((name, {'fuse': name}) for name in reversed(FUSIONS))
        apart = passes_of(None, 'elementwise') - {'pool_order'}
        yield 'elementwise, no pool_order', {'passes': tuple(sorted(apart))}
        return
    yield ALL, {'passes': PASSES}
    for left_out in PASSES:
        passes = tuple(name for name in PASSES if name != left_out)
        yield f'no {left_out}', {'passes': passes}
    yield 'none', {'passes': ()}


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
    parser.add_argument('--fusion', action='store_true', help='compare what fuse= may be')
    parser.add_argument('--tune', choices=TUNES, default='model')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    model = zoo.onnx_model(given.network, image=given.image, width=given.width)
    nets = {
        name: tw.compile(model, threads=given.threads, tune=given.tune, **words)
        for name, words in variants(given.fusion)
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
            'tune': given.tune, 'threads': nets[ALL].threads, 'rounds': given.rounds,
            'calls': given.calls, 'variants': rows, 'versions': versions(),
        }  # fmt: skip
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
