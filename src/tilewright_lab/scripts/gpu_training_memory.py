"""Memory of a training step on a GPU beside PyTorch's, and what a limit costs: measured.

    python -m tilewright_lab.scripts.gpu_training_memory [resnet50] [--batch 64] [--shares 1 0.5]
        [--rounds 5] [--json FILE]

Goes in: a workload of gpu_training.py. Comes out: PyTorch's peak in a step (`max_memory_allocated`
once cuDNN has chosen its algorithms: eager, and while it is captured as a CUDA graph), bytes of our
step (state, batch, values between tasks and what kernels work in: all that it holds of the device
but machine code), and for shares of PyTorch's peak as a graph, given as `memory=`, the bytes that
are held then, the losses of the first steps, which must stay the same bits, and the time of a step
over that without a limit, in turns. training_memory.py says by the models what is to be expected.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

import tilewright as tw
from tilewright.cli.output import versions
from tilewright.network.training import TrainingStep
from tilewright_lab.peers.torch_graph import torch_on_gpu
from tilewright_lab.scripts.gpu_training import BATCHES, MOMENTUM, RATE, Theirs, Workload

STEPS = 3  # whose losses are compared
COPIES = 3


def held(step: TrainingStep) -> int:
    """Bytes of the device that a step holds."""
    net: Any = step.network
    return net.arena_bytes + net.weight_bytes


def torch_peaks(workload: Workload) -> dict[str, int]:
    """Bytes that PyTorch has allocated at most in a step, weights, momenta and batch included."""
    torch_on_gpu()
    torch.set_grad_enabled(True)
    theirs = Theirs(workload, 'cuda')
    for _ in range(2):  # cuDNN tries its algorithms in the first
        theirs()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    theirs()
    found = {'eager': torch.cuda.max_memory_allocated()}
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        theirs()
    found |= {'graph': torch.cuda.max_memory_allocated(), 'reserved': torch.cuda.memory_reserved()}
    del graph, theirs
    torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('network', nargs='?', default='resnet50', choices=list(BATCHES))
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--shares', type=float, nargs='*', default=[1.0, 0.5])
    parser.add_argument('--target', default='cuda', choices=['cuda', 'host'])
    parser.add_argument('--small', action='store_true', help='the same structure with small layers')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--json', type=Path)
    asked = parser.parse_args()
    workload = Workload(asked.network, asked.batch, asked.small)
    trained, rule = workload.imported(), tw.SGD(RATE, MOMENTUM)
    given = [x.numpy() for x in (*workload.inputs, workload.target)]

    def compiled(**options: Any) -> TrainingStep:
        return TrainingStep(trained, rule, False, {'target': asked.target, **options})

    found: dict[str, Any] = {'network': asked.network, 'batch': asked.batch}
    if asked.target == 'cuda':
        found['torch_bytes'] = torch_peaks(workload)
    steps = {'none': compiled()}
    most = found['torch_bytes']['graph'] if asked.target == 'cuda' else held(steps['none'])
    limits = {f'{share:.0%}': int(share * most) for share in asked.shares}
    steps |= {share: compiled(memory=limit) for share, limit in limits.items()}
    rows: dict[str, dict[str, Any]] = {}
    for share, step in steps.items():
        net: Any = step.network
        rows[share] = {
            'limit_bytes': limits.get(share), 'bytes': held(step), 'tasks': len(net.gpu_tasks),
            'losses': [step(*given) for _ in range(STEPS)], 'samples_us': [],
        }  # fmt: skip
        print(f'{share}: {rows[share]}', flush=True)
    found['rows'] = rows
    if asked.target == 'cuda':
        for _ in range(asked.rounds):
            for share, step in steps.items():
                net = step.network
                rows[share]['samples_us'] += [1e6 * s for s in net.time_again(2, copies=COPIES)]
        whole = statistics.median(rows['none']['samples_us'])
        for row in rows.values():
            row['us'] = statistics.median(row['samples_us'])
            row['time'] = row['us'] / whole
    for share, row in rows.items():
        kept = row['limit_bytes'] is None or row['bytes'] <= row['limit_bytes']
        same = row['losses'] == rows['none']['losses']
        print(f'{share}: {row["bytes"] / 1e6:.0f} MB, limit kept: {kept}, same losses: {same}, '
              f'{row["tasks"]} tasks, time {row.get("time", 0.0):.3f}')  # fmt: skip
    print(f'PyTorch: {found.get("torch_bytes")}')
    if asked.json is not None:
        asked.json.write_text(json.dumps({**found, 'versions': versions()}, indent=1) + '\n')


if __name__ == '__main__':
    main()
