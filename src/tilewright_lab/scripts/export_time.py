"""The exported C of a network against the same network in this process, in turns.

    python -m tilewright_lab.scripts.export_time [NETWORK] [--folder DIR] [--threads T]
        [--precision P] [--rounds 7] [--calls 20] [--json FILE]

NETWORK is a name of the zoo [resnet18] or an .onnx file, such as a quantised one. It is exported
into an empty folder, built with `make` and whatever compiler that finds, and checks itself; then
each round times `--calls` calls of either, one after the other, in an order that changes from round
to round. With `--folder` the export is kept, and one that is there already is used. The ratio is
that of the medians of all rounds' medians. Exit code 1 if the export's own check fails.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tilewright as tw
from tilewright import zoo
from tilewright.cli.output import versions
from tilewright.runtime.network_arrays import example


def build(folder: Path) -> float:
    """Seconds that `make` takes."""
    start = time.perf_counter()
    subprocess.run(['make', '-C', str(folder)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def timed(folder: Path, name: str, calls: int) -> float:
    """Milliseconds of a call of the export, the median of `calls`."""
    done = subprocess.run(
        [f'./{name}_test', str(calls)], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f'{folder}: {done.stdout}{done.stderr}')
    found = re.search(r'([\d.]+) ms, median', done.stdout)
    assert found is not None, done.stdout
    return float(found.group(1))


def main() -> None:
    parser = argparse.ArgumentParser(description='exported C against the network in this process')
    parser.add_argument('network', nargs='?', default='resnet18')
    parser.add_argument('--folder', type=Path)
    parser.add_argument('--threads', type=int)
    parser.add_argument('--precision', default='fp32')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--calls', type=int, default=20)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        of_file = given.network.endswith('.onnx')
        name = Path(given.network).stem if of_file else given.network
        folder = given.folder or Path(scratch) / name
        model = given.network if of_file else zoo.onnx_model(name)
        if not (folder / 'Makefile').exists():
            tw.export(
                model, folder, name=name, threads=given.threads, precision=given.precision
            )  # fmt: skip
        net = tw.compile(model, threads=given.threads, precision=given.precision)
        build_s = build(folder)
        inputs = {value.name: example(value) for value in net.inputs}
        net.time(inputs, given.calls)
        ours: dict[str, list[float]] = {'export': [], 'process': []}
        for number in range(given.rounds):
            for what in ('export', 'process') if number % 2 else ('process', 'export'):
                if what == 'export':
                    ours[what].append(timed(folder, name, given.calls))
                else:
                    ours[what].append(1e3 * statistics.median(net.time(inputs, given.calls)))
    medians = {what: statistics.median(times) for what, times in ours.items()}
    ratio = medians['export'] / medians['process']
    print(
        f'{name}, threads: {net.threads}: exported {medians["export"]:.3f} ms, in process '
        f'{medians["process"]:.3f} ms, ratio {ratio:.3f}; built in {build_s:.1f} s'
    )
    if given.json is not None:
        result = {
            'network': name, 'quantised': of_file, 'precision': given.precision,
            'threads': net.threads, 'calls': given.calls,
            'build_s': build_s, 'samples_ms': ours, 'median_ms': medians, 'ratio': ratio,
            'versions': versions(),
        }  # fmt: skip
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
