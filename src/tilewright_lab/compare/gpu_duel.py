"""Ours beside others on one GPU, in one process: prepared, checked, timed in turns.

`python -m tilewright_lab.compare.gpu_duel TARGET DEVICE PARENT` is a session of
runtime/gpu/session.py with one more request:

    {"do": "duel", "ours": [{"schedule": {...}, "files": [...]}], "peers": ["cudnn"], "rounds": 9,
     "repeats": 3}

Contestants beside our schedules:

    cudnn       PyTorch's convolution by cuDNN: benchmark mode without a limit, TF32 off, NCHW and
                channels_last (converted ahead, which is not counted); the faster one is the rival
    cudnn_tf32  the same with TF32 on: shown beside, not fp32
    inductor    torch.compile in max-autotune mode, TF32 off; its first call is its tuning time
    general     the fallback schema (Boda Fig. 7)
    cuda, opencl  our first schedule, same source, through the other runtime

All are replayed from CUDA graphs (OpenCL: from one batch of launches), inputs and weights on the
device, caches as the call before left them. Every answer is judged against float64.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import CompilerError, InputError, MissingError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.ops.convolution import Conv2d
from tilewright.ops.pointwise import LEAKY_SLOPE
from tilewright.ops.specs import read_layer
from tilewright.runtime.gpu.session import (
    TARGETS,
    Loaded,
    Session,
    load,
    open_device,
    serve,
    unload,
)
from tilewright.schedule.gpu import GpuSchedule

PEERS = ('cudnn', 'cudnn_tf32', 'inductor', 'general', 'cuda', 'opencl')
LIBRARIES = ('cudnn', 'cudnn_tf32', 'inductor')
COPIES = 20
# cuDNN chooses among its algorithms by timing each once, and now and then a slow one wins. It
# chooses anew for another alignment of the input: the fastest of as many choices takes part.
SHIFTS = (0, 16, 4)
GENERAL = GpuSchedule.of('general', threads=128)


@dataclass(slots=True)
class Entrant:
    """One contestant, ready: `time(repeats)` in seconds for each, `answer()` in NCHW.

    keep   what a captured graph reads and writes has to live as long as the graph
    """

    name: str
    time: Callable[[int], list[float]]
    answer: Callable[[], np.ndarray]
    settings: dict[str, Any] = field(default_factory=dict)
    tuning_s: float | None = None
    close: Callable[[], object] = lambda: None
    turns: list[list[float]] = field(default_factory=list)
    verdict: dict = field(default_factory=dict)
    keep: object = None

    def to_json(self) -> dict:
        samples = [s for turn in self.turns for s in turn]
        return {
            'name': self.name,
            'settings': self.settings,
            'tuning_s': self.tuning_s,
            'median_us': 1e6 * statistics.median(samples) if samples else None,
            'samples_us': [[1e6 * s for s in turn] for turn in self.turns],
            **self.verdict,
        }


class DuelSession(Session):
    """A session that also times others."""

    def duel(self, ours: list[dict], peers: list[str], rounds: int, repeats: int) -> dict:
        """Interleaved rounds (A B C A B C ...) of everything that could be prepared."""
        entrants: list[Entrant] = []
        failed: list[dict] = []
        makers: list[tuple[str, Callable[[], list[Entrant]]]] = [
            (f'ours/{number}', lambda n=number, o=one: [self._ours(f'ours/{n}', o)])
            for number, one in enumerate(ours)
        ]
        first = ours[0] if ours else None
        makers += [(name, lambda n=name: self._peer(n, first)) for name in peers]
        for name, make in makers:
            try:
                entrants += make()
            except (TilewrightError, RuntimeError) as error:  # the latter is PyTorch's
                kind = 'missing' if isinstance(error, MissingError) else 'failed'
                failed.append({'name': name, 'status': kind, 'message': str(error)})
        try:
            answers = {}
            for one in entrants:
                answers[one.name] = one.answer()
                one.verdict = self.judge.verdict(answers[one.name])
                if one.name in TARGETS and 'ours/0' in answers:
                    one.verdict['difference_from_ours'] = _difference(
                        answers[one.name], answers['ours/0']
                    )
            answers.clear()
            for _ in range(rounds):
                for one in entrants:
                    if one.verdict['status'] == 'ok' or one.name.startswith('cudnn_tf32'):
                        one.turns.append(one.time(repeats))
        finally:
            for one in entrants:
                one.close()
        return {
            'status': 'ok',
            'contestants': [one.to_json() for one in entrants] + failed,
            'libraries': library_versions() if set(peers) & set(LIBRARIES) else {},
        }

    def _ours(self, name: str, one: dict) -> Entrant:
        schedule = GpuSchedule.from_json(one['schedule'])
        loaded = load(self.device, generate(self.problem, schedule), self.shared, one['files'])

        def answer() -> np.ndarray:
            out = self.shared[self.problem.output.name]
            self.device.write(out, self.poison)
            for call in loaded.calls:
                self.device.launch(call)
            return self.device.download(out)

        return Entrant(
            name,
            lambda repeats: self.device.time(loaded.calls, repeats),
            answer,
            {'schedule': schedule.to_json()},
            close=lambda: unload(self.device, loaded),
        )

    def _peer(self, name: str, first: dict | None) -> list[Entrant]:
        if name == 'general':
            return [self._ours(name, {'schedule': GENERAL.to_json(), 'files': None})]
        if name in ('cuda', 'opencl'):
            return [self._elsewhere(name, first)]
        if name not in LIBRARIES:
            known = ', '.join(PEERS)
            raise InputError(f'{name!r} is not a contestant on a GPU; choose from {known}')
        conv = read_layer(self.problem.label).conv
        if name == 'inductor':
            return [_inductor(conv, self.arrays)]
        return [_cudnn(name, conv, self.arrays, layout) for layout in ('nchw', 'channels_last')]

    def _elsewhere(self, target: str, first: dict | None) -> Entrant:
        """Our first schedule through another runtime, on that runtime's own arrays."""
        if first is None:
            raise InputError(f'there is no schedule of ours to run through {target}')
        device = open_device(
            target, 'nvidia' if target == 'opencl' and self.target == 'cuda' else ''
        )
        shared = {
            name: device.upload(self.arrays[name], array.dims)
            for name, array in self.shared.items() if name in self.arrays
        }  # fmt: skip
        out = self.problem.output
        shared[out.name] = device.empty(out.dims, out.shape)
        module = generate(self.problem, GpuSchedule.from_json(first['schedule']))
        loaded: Loaded = load(device, module, shared)

        def answer() -> np.ndarray:
            device.write(shared[out.name], self.poison)
            for call in loaded.calls:
                device.launch(call)
            return device.download(shared[out.name])

        def close() -> None:
            unload(device, loaded)
            for array in shared.values():
                device.free(array)

        return Entrant(
            target, lambda repeats: device.time(loaded.calls, repeats), answer,
            {'device': device.name, 'schedule': first['schedule']}, close=close,
        )  # fmt: skip


def _difference(got: np.ndarray, ours: np.ndarray) -> float | None:
    """The largest difference between two runtimes, as a share of the largest output."""
    with np.errstate(all='ignore'):
        share = float(np.abs(got - ours).max() / np.abs(ours).max())
    return share if np.isfinite(share) else None


def _torch() -> Any:
    try:
        torch = import_module('torch')
    except ImportError:
        raise MissingError(
            "cuDNN is timed through PyTorch: pip install 'tilewright[torch]'"
        ) from None
    if not torch.cuda.is_available():
        raise MissingError('PyTorch finds no CUDA device, so cuDNN cannot be timed')
    torch.set_grad_enabled(False)
    return torch


def library_versions() -> dict[str, str]:
    try:
        torch = _torch()
    except MissingError:
        return {}
    return {
        'torch': torch.__version__,
        'cudnn': str(torch.backends.cudnn.version()),
        'torch_cuda': str(torch.version.cuda),
    }


def _settings(torch: Any, tf32: bool) -> dict[str, Any]:
    cudnn = torch.backends.cudnn
    cudnn.benchmark, cudnn.benchmark_limit = True, 0
    cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    return {'cudnn.benchmark': True, 'cudnn.benchmark_limit': 0, 'allow_tf32': tf32}


def _tensors(torch: Any, conv: Conv2d, arrays: dict, layout: str) -> tuple[Any, Any, Any, dict]:
    """(input, filter, bias, further arguments of conv2d) on the device."""
    top, left, bottom, right = conv.pad
    if (top, left) != (bottom, right):
        raise InputError(f'{conv.label}: cuDNN is timed with the same padding on both sides only')
    x, w = (torch.tensor(np.asarray(arrays[n]), device='cuda') for n in ('In', 'Ker'))
    if layout == 'channels_last':
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    bias = torch.tensor(np.asarray(arrays['Bias']), device='cuda') if conv.bias else None
    more = {
        'stride': conv.stride, 'padding': (top, left), 'dilation': conv.dilation,
        'groups': conv.groups,
    }  # fmt: skip
    return x, w, bias, more


def _run(torch: Any, conv: Conv2d, x: Any, w: Any, bias: Any, more: dict) -> Any:
    y = torch.nn.functional.conv2d(x, w, bias, **more)
    return _activated(torch.nn.functional, y, conv.activation)


def _activated(functional: Any, y: Any, name: str | None) -> Any:
    """An activation of ours by PyTorch's functions."""
    if name is None:
        return y
    known = {'relu': functional.relu, 'relu6': functional.relu6, 'silu': functional.silu}
    if name == 'leaky_relu':
        return functional.leaky_relu(y, LEAKY_SLOPE)
    return known[name](y) if name in known else getattr(y, name)()


def _cudnn(name: str, conv: Conv2d, arrays: dict, layout: str) -> Entrant:
    torch = _torch()
    settings = _settings(torch, name == 'cudnn_tf32')
    x, w, bias, more = _tensors(torch, conv, arrays, layout)
    tries = []
    for shift in SHIFTS:
        moved = _shifted(torch, x, shift)
        one = _replayed(
            torch, f'{name}/{layout}', lambda x=moved: _run(torch, conv, x, w, bias, more),
            {**settings, 'layout': layout, 'input_offset_bytes': 4 * shift},
        )  # fmt: skip
        tries.append((statistics.median(one.time(5)), one))
    best = min(tries, key=lambda pair: pair[0])[1]
    best.settings['tries_us'] = [1e6 * seconds for seconds, _ in tries]
    return best


def _shifted(torch: Any, x: Any, shift: int) -> Any:
    """The same tensor `shift` floats behind the start of its memory."""
    memory = torch.empty(x.numel() + shift, device=x.device)[shift:]
    return memory.as_strided(x.size(), x.stride(), shift).copy_(x)


def _inductor(conv: Conv2d, arrays: dict) -> Entrant:
    torch = _torch()
    settings = _settings(torch, False)
    x, w, bias, more = _tensors(torch, conv, arrays, 'nchw')
    began = time.perf_counter()
    mode = 'max-autotune-no-cudagraphs'  # the graph around it is the same as for everyone else
    try:
        function = torch.compile(lambda x, w: _run(torch, conv, x, w, bias, more), mode=mode)
        function(x, w)
        torch.cuda.synchronize()
    except Exception as error:  # its compilers raise whatever they like
        said = ' '.join(str(error).split())[:200] or type(error).__name__
        raise CompilerError(f'torch.compile failed: {said}') from error
    spent = time.perf_counter() - began
    entrant = _replayed(torch, 'inductor', lambda: function(x, w), {**settings, 'mode': mode})
    entrant.tuning_s = spent
    return entrant


def _replayed(torch: Any, name: str, run: Callable[[], Any], settings: dict) -> Entrant:
    """A function of PyTorch as a CUDA graph of `COPIES` calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # benchmark mode chooses the algorithm here
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph, result = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        for _ in range(COPIES):
            result = run()

    def time_it(repeats: int) -> list[float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        torch.cuda.synchronize()
        seconds = []
        for _ in range(repeats):
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            seconds.append(start.elapsed_time(end) * 1e-3 / COPIES)
        return seconds

    def answer() -> np.ndarray:
        graph.replay()
        torch.cuda.synchronize()
        return result.contiguous().cpu().numpy()  # pyright: ignore[reportOptionalMemberAccess]

    return Entrant(name, time_it, answer, settings, keep=run)


def median_us(contestants: Sequence[Mapping], prefix: str) -> float | None:
    """The fastest of the contestants of one name, of those whose answer was right."""
    found = [
        c['median_us'] for c in contestants
        if c['name'].split('/')[0] == prefix and c.get('median_us') is not None
    ]  # fmt: skip
    return min(found, default=None)


if __name__ == '__main__':
    serve(DuelSession, sys.argv[1:])
