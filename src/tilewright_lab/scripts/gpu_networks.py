"""AlexNet, Network-in-Network and Inception-v1 on a device, every tensor checked against float64.

    python -m tilewright_lab.scripts.gpu_networks [--device opencl|cuda|host] [--networks \
        alexnet,nin] [--batch 5]
                                 [--small] [--schema auto|general] [--repeats 10] [--json FILE]

The oracle is PyTorch in float64 where it is installed, else the package's own reference. Tolerance:
Boda Sec. 4, 1e-3 (runtime/verify.py). Times are those of device events, of each operator alone and
of all of them one after the other; nothing is tuned. Exit code 1 if a tensor is wrong, 3 if there
is no such device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.runtime.gpu.device import Device
from tilewright.version import VERSION
from tilewright_lab.compare.boda_networks import NETWORKS, network
from tilewright_lab.compare.operator_lists import OperatorList, reference_values
from tilewright_lab.compare.run_lists import ListRunner, check, first_choice, general_choice
from tilewright_lab.peers.torch_oracle import torch_values

CHOICES = {'auto': first_choice, 'general': general_choice}


def open_device(name: str) -> Device:
    if name == 'cuda':
        from tilewright.runtime.gpu.cuda import CudaDevice

        return CudaDevice()
    if name == 'opencl':
        from tilewright.runtime.gpu.opencl import OpenCLDevice

        return OpenCLDevice()
    from tilewright.runtime.gpu.hosted import HostDevice

    return HostDevice()


def measure(net: OperatorList, device: Device, given: argparse.Namespace) -> dict:
    """One network: compiled, run, checked, timed."""
    weights, inputs = net.random_weights(given.seed), net.random_inputs(given.seed + 1)
    start = time.perf_counter()
    runner = ListRunner(net, device, weights, CHOICES[given.schema])
    prepared = time.perf_counter()
    runner.run(inputs)
    done = time.perf_counter()
    torch_there = importlib.util.find_spec('torch') is not None
    oracle = torch_values if torch_there else reference_values
    verdicts = check(runner, oracle(net, inputs, weights))
    seconds = runner.time(given.repeats) if given.repeats else {}
    return {
        'network': net.name,
        'batch': given.batch,
        'small': given.small,
        'operators': len(net.operators),
        'flops': net.flops,
        'oracle': 'torch float64' if torch_there else 'reference float64',
        'prepare_s': prepared - start,
        'first_run_s': done - prepared,
        'ok': all(v.comparison.ok for v in verdicts),
        'tensors': [v.to_json() for v in verdicts],
        'schedules': {name: s.to_json() for name, s in runner.schedules.items()},
        'samples_ms': {name: [1e3 * s for s in row] for name, row in seconds.items()},
    }


def report(row: dict) -> str:
    worst = max(row['tensors'], key=lambda t: t['max_rel_err'])
    total = row['samples_ms'].get('')
    timed = f', {statistics.median(total):.3f} ms' if total else ''
    lines = [
        f'{row["network"]} batch {row["batch"]}: {row["operators"]} operators, '
        f'{row["flops"] / 1e9:.2f} GFLOP, {len(row["tensors"])} tensors '
        f'{"right" if row["ok"] else "WRONG"}, worst {worst["max_rel_err"]:.1e} of the largest '
        f'({worst["tensor"]}), prepared in {row["prepare_s"]:.1f} s{timed}'
    ]
    lines += [f'  {t["tensor"]}: {t["message"]}' for t in row['tensors'] if not t['ok']]
    return '\n'.join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--device', choices=('opencl', 'cuda', 'host'), default='opencl')
    parser.add_argument('--networks', default=','.join(NETWORKS))
    parser.add_argument('--batch', type=int, default=1)
    parser.add_argument('--small', action='store_true')
    parser.add_argument('--schema', choices=tuple(CHOICES), default='auto')
    parser.add_argument('--repeats', type=int, default=0)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    rows = []
    try:
        device = open_device(given.device)
        for name in given.networks.split(','):
            rows.append(measure(network(name, given.batch, given.small), device, given))
            print(report(rows[-1]), flush=True)
    except TilewrightError as error:
        print(f'gpu_networks: {error}', file=sys.stderr)
        return error.exit_code
    if given.json:
        document = {
            'device': device.name,
            'tilewright': VERSION,
            'machine': device.machine.to_json(),
            'networks': rows,
        }
        given.json.write_text(json.dumps(document, indent=1) + '\n')
    return 0 if all(row['ok'] for row in rows) else 1


if __name__ == '__main__':
    sys.exit(main())
