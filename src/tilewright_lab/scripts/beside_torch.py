"""One module of PyTorch compiled by us, and by PyTorch, timed in turns: what scripts share.

Goes in: a module, its inputs, our network of it. Comes out: functions that time a call of either,
and seconds in rounds; `compare` is a script of workloads. On a CPU a call counts by the time that
the process spends (other work on the machine does not count); on a GPU either side is a CUDA graph,
with TF32 off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.cli.output import versions
from tilewright.search.gpu.moves import schedule_text
from tilewright_lab.peers.torch_graph import replayed, torch_on_gpu

Timer = Callable[[], float]


def spent(call: Callable[[], object]) -> float:
    """Seconds of the process for one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def contestants(module: Any, inputs: Sequence[Any], net: Any, target: str) -> tuple[Timer, Timer]:
    """(ours, PyTorch's): functions that return the seconds of a call."""
    given = {i.name: x.numpy() for i, x in zip(net.inputs, inputs, strict=True)}
    if target == 'cpu':
        return lambda: spent(lambda: net.run(given)), lambda: spent(lambda: module(*inputs))
    torch = torch_on_gpu()
    on_device, moved = module.cuda(), [x.cuda() for x in inputs]

    def call() -> Any:
        made = on_device(*moved)
        return made[0] if isinstance(made, tuple) else made

    peer = replayed(torch, 'torch', call, {})
    return lambda: statistics.median(net.time(given, 5)), lambda: min(peer.time(1))


def chosen(net: Any) -> list[str]:
    """The schedule of every task of a network on a GPU."""
    return [schedule_text(task.schedule) for task in getattr(net, 'gpu_tasks', ())]


def in_turns(ours: Timer, theirs: Timer, rounds: int) -> tuple[list[tuple[float, float]], float]:
    """(seconds of either in each round, the median of PyTorch's over ours)."""
    samples = [(ours(), theirs()) for _ in range(1 + rounds)][1:]  # the first warms up
    return samples, statistics.median(b / a for a, b in samples)


def medians(samples: Sequence[tuple[float, float]], scale: float) -> list[float]:
    return [scale * statistics.median(one) for one in zip(*samples, strict=True)]


def measured(
    name: str, module: Any, inputs: Sequence[Any], target: str, tune: str, rounds: int
) -> dict:  # fmt: skip
    """[module, inputs] -> what was found: error against float64, seconds, ratio, schedules."""
    net: Any = tw.compile(module, example_inputs=inputs, target=target, check=False, tune=tune)
    want = module(*(x.double() for x in inputs)).numpy()
    error = float(np.abs(net(*(x.numpy() for x in inputs)) - want).max() / np.abs(want).max())
    found = {'name': name, 'target': target, 'tune': tune, 'error': error}
    if target != 'host':  # which only shows that the kernels are right
        samples, ratio = in_turns(*contestants(module, inputs, net, target), rounds)
        found |= {'samples_s': samples, 'ratio': ratio}
        ours, theirs = medians(samples, 1e6)
        print(f'{name}: {ours:.1f} us, PyTorch {theirs:.1f} us, ratio {ratio:.2f}', end='; ')
    kernels = chosen(net)
    print(f'largest error {error:.1e} of the largest result; {"; ".join(kernels)}', flush=True)
    return found | {'shapes': [list(x.shape) for x in inputs], 'schedules': kernels}


def compare(
    words: str, names: Iterable[str], made: Callable[[str], tuple[Any, Sequence[Any]]]
) -> None:  # fmt: skip
    """A script: workloads by name, `made` into a module and its inputs, and a JSON file of all."""
    import torch

    parser = argparse.ArgumentParser(description=words)
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(names))
    parser.add_argument('--target', default='cuda', choices=['cuda', 'cpu', 'host'])
    parser.add_argument('--tune', default='model', choices=['model', 'measure'])
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    rows = [
        measured(name, *made(name), given.target, given.tune, given.rounds)
        for name in given.names or list(names)
    ]
    if given.json is not None:
        given.json.write_text(json.dumps({'rows': rows, 'versions': versions()}, indent=1) + '\n')
