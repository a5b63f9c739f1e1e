"""One module of PyTorch compiled by us, and by PyTorch, timed in turns: what scripts share.

Goes in: a module, its inputs, our network of it. Comes out: functions that time a call of either,
and seconds in rounds. On a CPU a call counts by the time that the process spends (other work on the
machine does not count); on a GPU either side is a CUDA graph, with TF32 off.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

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
