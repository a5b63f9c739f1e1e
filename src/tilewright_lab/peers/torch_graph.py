"""PyTorch on a GPU as a contestant: set up for float32, and a module as a CUDA graph that is timed.

Goes in: a module and its input. Comes out: an `Entrant` (gpu_duel.py). A sample is `COPIES` replays
between two events of the device, over their number: launching a graph is counted, Python is not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import MissingError
from tilewright_lab.compare.gpu_duel import Entrant

COPIES = 10
WARM_UP = 3


def torch_on_gpu() -> Any:
    """PyTorch without gradients and TF32, cuDNN in benchmark mode without a limit."""
    try:
        torch: Any = import_module('torch')
    except ImportError:
        raise MissingError("peers are PyTorch's: pip install 'tilewright[torch]'") from None
    if not torch.cuda.is_available():
        raise MissingError('PyTorch finds no CUDA device, so that it cannot be compared with')
    torch.set_grad_enabled(False)
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.benchmark_limit = True, 0
    cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def replayed(torch: Any, name: str, module: Any, x: Any, settings: dict) -> Entrant:
    """A module on an image as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):  # benchmark mode chooses the algorithms here
            module(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = module(x)

    def time_it(repeats: int) -> list[float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        torch.cuda.synchronize()
        seconds = []
        for _ in range(repeats):
            start.record()
            for _ in range(COPIES):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            seconds.append(start.elapsed_time(end) * 1e-3 / COPIES)
        return seconds

    def answer() -> np.ndarray:
        graph.replay()
        torch.cuda.synchronize()
        return result.contiguous().cpu().numpy()

    return Entrant(name, time_it, answer, {**settings, 'allow_tf32': False}, keep=(module, x))
