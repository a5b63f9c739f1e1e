"""What a memory limit costs a training step, by the models alone: nothing is compiled or timed.

    python -m tilewright_lab.scripts.training_memory [resnet50] [--batch 64] [--gpu h200]
        [--shares 0.75 0.5 0.35] [--placed] [--json FILE]

Goes in: a network of the zoo, a batch. Comes out: the bytes of our step (state, batch, and values
between tasks), those that PyTorch's autograd keeps for the backward pass beside parameters and
momenta, counted on tensors without data, and for shares of our values the predicted time over that
without a limit. By the costs that passes decide by, of this CPU with two threads or of a known GPU.
`--placed` also chooses kernels for the GPU, which takes minutes, and says what its arena holds with
what they work in: the bytes that a step allocates there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tilewright import zoo
from tilewright.errors import InputError
from tilewright.graph.levels import by_levels
from tilewright.graph.memory import plan
from tilewright.graph.passes import GPU_PASSES, PROGRAM_PASSES, apply_passes
from tilewright.graph.program import Program
from tilewright.graph.recompute import held_outside, within
from tilewright.graph.training import step_program
from tilewright.importers.torch import import_training
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.network.training import GPU_LIMIT
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.gpu.assemble import chosen_by_model, placed_bytes
from tilewright.targets.gpu.cost import GpuCost

PASSES = ('attention', 'fuse', 'prologue', 'concat')


def program_of(name: str, batch: int, cost: Any, passes: Mapping[str, Any]) -> Program:
    """The step of cross entropy and SGD with momentum, joined as far as element-wise work goes."""
    module = zoo.torch_module(name, batch=batch).train().requires_grad_(True)
    x = torch.zeros(zoo.network(name, batch).shape)  # pyright: ignore[reportAttributeAccessIssue]
    trained = import_training(
        module, nn.functional.cross_entropy, (x, torch.zeros(batch, dtype=torch.int64))
    )
    program = apply_passes(step_program(trained, tw.SGD(0.1, 0.9))[0], PASSES, cost, passes)
    return by_levels(program, late=True)


def placed_on(program: Program, gpu: GpuMachine) -> int:
    """Bytes of the arena on a GPU, by kernels that the model chooses."""
    groups = {task.group.digest: task.group for task in program.tasks}
    chosen = chosen_by_model(groups, gpu, 1, GPU_LIMIT)
    best = {digest: found[0] for digest, found in chosen.items()}
    return placed_bytes(program, best, gpu, GPU_LIMIT)


def kept_by_torch(name: str, batch: int) -> int:
    """Bytes that PyTorch holds when the backward pass begins: saved values, state, gradients."""
    module = zoo.torch_module(name, batch=batch).train().requires_grad_(True).to('meta')
    x = torch.zeros(zoo.network(name, batch).shape, device='meta')  # pyright: ignore[reportAttributeAccessIssue]
    own = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in module.parameters()}
    saved: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = module(x)
    values = sum(held.nbytes() for key, held in saved.items() if key not in own)
    del scores
    return values + 3 * sum(own.values())  # parameters, momenta and gradients


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('network', nargs='?', default='resnet50')
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--gpu', help='a known GPU instead of this CPU')
    parser.add_argument('--shares', type=float, nargs='*', default=[0.75, 0.5, 0.35])
    parser.add_argument('--placed', action='store_true', help='bytes of the arena on the GPU')
    parser.add_argument('--json', type=Path)
    asked = parser.parse_args()
    if asked.placed and not asked.gpu:
        parser.error('--placed is about a GPU: give --gpu h200')
    site = CpuSite.of(None, 2)
    cost = GpuCost(known_gpu(asked.gpu)) if asked.gpu else site.cost
    passes = GPU_PASSES if asked.gpu else PROGRAM_PASSES
    program = program_of(asked.network, asked.batch, cost, passes)
    fixed, arena = held_outside(program), plan(program).arena_bytes
    theirs = kept_by_torch(asked.network, asked.batch)
    whole = sum(cost(task.group) for task in program.tasks)
    found: dict[str, Any] = {
        'network': asked.network, 'batch': asked.batch, 'machine': asked.gpu or site.machine.name,
        'fixed_bytes': fixed, 'arena_bytes': arena, 'torch_bytes': theirs,
        'predicted_s': whole, 'shares': {},
    }  # fmt: skip
    print(f'{asked.network}, batch {asked.batch}: {fixed / 1e6:.0f} MB of state and batch, values '
          f'of {arena / 1e6:.0f} MB; PyTorch keeps {theirs / 1e6:.0f} MB', flush=True)  # fmt: skip
    if asked.placed:
        found['placed_bytes'] = placed_on(program, known_gpu(asked.gpu))
        print(f'{found["placed_bytes"] / 1e6:.0f} MB with what kernels work in', flush=True)
    for share in asked.shares:
        try:
            small = within(program, int(share * (fixed + arena)), cost)
        except InputError as error:
            print(f'{share:.0%} of it: {error}', flush=True)
            break
        seconds = sum(cost(task.group) for task in small.tasks)
        found['shares'][share] = {
            'bytes': fixed + plan(small).arena_bytes, 'time': seconds / whole,
            'tasks_again': len(small.tasks) - len(program.tasks),
        }  # fmt: skip
        print(f'{share:.0%} of it: predicted time {seconds / whole:.3f} times as long, '
              f'{len(small.tasks) - len(program.tasks)} tasks again', flush=True)  # fmt: skip
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    main()
