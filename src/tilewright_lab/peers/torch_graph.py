"""PyTorch on a GPU as a contestant: how it is set up, and its calls as a CUDA graph, timed.

Goes in: a function without arguments. Comes out: an `Entrant` (contestants.py). A sample is some
replays of the graph between two events of the device, over the number of calls: Python is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import MissingError
from tilewright_lab.peers.contestants import Entrant

# What a precision of a comparison is to PyTorch.
TYPES = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}
COPIES = 10  # replays of a network in one sample: launching a graph is counted
WARM_UP = 3


def torch_on_gpu(tf32: bool = False) -> Any:
    """PyTorch without gradients, cuDNN in benchmark mode without a limit."""
    try:
        torch: Any = import_module('torch')
    except ImportError:
        raise MissingError("peers are PyTorch's: pip install 'tilewright[torch]'") from None
    if not torch.cuda.is_available():
        raise MissingError('PyTorch finds no CUDA device, so that it cannot be compared with')
    torch.set_grad_enabled(False)
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.benchmark_limit = True, 0
    cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    return torch


def library_versions() -> dict[str, str]:
    """Versions of PyTorch and what it brings; nothing where it cannot take part."""
    try:
        torch = torch_on_gpu()
    except MissingError:
        return {}
    return {
        'torch': torch.__version__,
        'cudnn': str(torch.backends.cudnn.version()),
        'torch_cuda': str(torch.version.cuda),
    }


def placed(
    torch: Any, module: Any, arrays: Iterable[np.ndarray], precision: str, layout: str
) -> tuple[Any, tuple[Any, ...]]:
    """(module, inputs) on the device, numbers and weights in a precision, images in a layout."""
    kind, format_ = getattr(torch, TYPES[precision]), getattr(torch, layout)
    given = (torch.from_numpy(array).cuda() for array in arrays)
    x = tuple(
        one.to(kind).contiguous(memory_format=format_) if one.is_floating_point() else one
        for one in given
    )
    return module.cuda().to(kind).to(memory_format=format_), x


def first_result(found: Any) -> np.ndarray:
    """What a module returned, or the first of it, as an array; half types as float32."""
    first = found[0] if isinstance(found, (tuple, list)) else found
    first = first.contiguous().cpu()
    return (first.float() if first.element_size() < 4 else first).numpy()


def replayed(
    torch: Any,
    name: str,
    run: Callable[[], Any],
    settings: dict,
    calls: int = 1,
    replays: int = COPIES,
) -> Entrant:
    """A function of PyTorch as a CUDA graph of `calls` calls, `replays` times in a sample."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):  # benchmark mode chooses the algorithms here
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph, result = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        for _ in range(calls):
            result = run()

    def time_it(repeats: int) -> list[float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        torch.cuda.synchronize()
        seconds = []
        for _ in range(repeats):
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            seconds.append(start.elapsed_time(end) * 1e-3 / (calls * replays))
        return seconds

    def answer() -> np.ndarray:
        graph.replay()
        torch.cuda.synchronize()
        return first_result(result)

    return Entrant(name, time_it, answer, settings, keep=run)
