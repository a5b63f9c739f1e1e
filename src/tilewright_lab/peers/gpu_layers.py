"""Who is timed beside our schedules of a layer, in the process of compare/gpu_duel.py.

Goes in: its session (the device, the group, the arrays) and our first schedule. Comes out:
`Entrant`s (contestants.py).

    cudnn       PyTorch's convolution by cuDNN: benchmark mode without a limit, TF32 off, NCHW and
                channels_last (converted ahead, which is not counted); the faster one is the rival
    cudnn_tf32  the same with TF32 on: shown beside, not fp32
    inductor    torch.compile in max-autotune mode, TF32 off; its first call is its tuning time
    general     the fallback schema (Boda Fig. 7)
    cuda, opencl  our first schedule, same source, through the other runtime
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import CompilerError, InputError
from tilewright.ops.convolution import Convolution
from tilewright.ops.pointwise import LEAKY_SLOPE
from tilewright.ops.specs import read_layer
from tilewright.runtime.gpu.session import open_device
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.peers.contestants import Entrant
from tilewright_lab.peers.torch_graph import replayed, torch_on_gpu

if TYPE_CHECKING:
    from tilewright_lab.compare.gpu_duel import DuelSession

CALLS = 20  # of a layer in one graph: launching it is nothing beside them
# cuDNN chooses among its algorithms by timing each once, and now and then a slow one wins. It
# chooses anew for another alignment of the input: the fastest of as many choices takes part.
SHIFTS = (0, 16, 4)
GENERAL = GpuSchedule.of('general', threads=128)


def general(session: DuelSession, first: dict | None) -> list[Entrant]:
    return [session.ours('general', {'schedule': GENERAL.to_json(), 'files': None})]


def cuda(session: DuelSession, first: dict | None) -> list[Entrant]:
    return [_elsewhere(session, 'cuda', first)]


def opencl(session: DuelSession, first: dict | None) -> list[Entrant]:
    return [_elsewhere(session, 'opencl', first)]


def _elsewhere(session: DuelSession, target: str, first: dict | None) -> Entrant:
    """Our first schedule through another runtime, on that runtime's own arrays."""
    if first is None:
        raise InputError(f'there is no schedule of ours to run through {target}')
    device = open_device(
        target, 'nvidia' if target == 'opencl' and session.target == 'cuda' else ''
    )
    shared = {
        name: device.upload(session.arrays[name], array.dims)
        for name, array in session.shared.items() if name in session.arrays
    }  # fmt: skip
    out = session.problem.output
    shared[out.name] = device.empty(out.dims, out.shape)
    entrant = session.through(device, target, {**first, 'files': None}, shared)
    unload = entrant.close

    def close() -> None:
        unload()
        for array in shared.values():
            device.free(array)

    entrant.settings['device'], entrant.close = device.name, close
    return entrant


def cudnn(session: DuelSession, first: dict | None) -> list[Entrant]:
    return _cudnn(session, 'cudnn', False)


def cudnn_tf32(session: DuelSession, first: dict | None) -> list[Entrant]:
    return _cudnn(session, 'cudnn_tf32', True)


def _cudnn(session: DuelSession, name: str, tf32: bool) -> list[Entrant]:
    torch = torch_on_gpu(tf32)
    conv = read_layer(session.problem.label).conv
    return [
        _fastest_choice(torch, f'{name}/{layout}', conv, session.arrays, layout, _settings(tf32))
        for layout in ('nchw', 'channels_last')
    ]


def _settings(tf32: bool) -> dict[str, Any]:
    return {'cudnn.benchmark': True, 'cudnn.benchmark_limit': 0, 'allow_tf32': tf32}


def _fastest_choice(
    torch: Any, name: str, conv: Convolution, arrays: dict, layout: str, settings: dict
) -> Entrant:
    x, w, bias, more = _tensors(torch, conv, arrays, layout)
    tries = []
    for shift in SHIFTS:
        moved = _shifted(torch, x, shift)
        one = _graph(
            torch, name, lambda x=moved: _run(torch, conv, x, w, bias, more),
            {**settings, 'layout': layout, 'input_offset_bytes': 4 * shift},
        )  # fmt: skip
        tries.append((statistics.median(one.time(5)), one))
    best = min(tries, key=lambda pair: pair[0])[1]
    best.settings['tries_us'] = [1e6 * seconds for seconds, _ in tries]
    return best


def _graph(torch: Any, name: str, run: Callable[[], Any], settings: dict) -> Entrant:
    return replayed(torch, name, run, settings, calls=CALLS, replays=1)


def _tensors(
    torch: Any, conv: Convolution, arrays: dict, layout: str
) -> tuple[Any, Any, Any, dict]:
    """(input, filter, bias, further arguments of conv2d) on the device."""
    if conv.rank != 2 or conv.transposed:
        raise InputError(f'{conv.label}: cuDNN is timed on 2-D convolutions only; leave it out')
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


def _run(torch: Any, conv: Convolution, x: Any, w: Any, bias: Any, more: dict) -> Any:
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


def _shifted(torch: Any, x: Any, shift: int) -> Any:
    """The same tensor `shift` floats behind the start of its memory."""
    memory = torch.empty(x.numel() + shift, device=x.device)[shift:]
    return memory.as_strided(x.size(), x.stride(), shift).copy_(x)


def inductor(session: DuelSession, first: dict | None) -> list[Entrant]:
    torch = torch_on_gpu()
    conv = read_layer(session.problem.label).conv
    x, w, bias, more = _tensors(torch, conv, session.arrays, 'nchw')
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
    entrant = _graph(
        torch, 'inductor', lambda: function(x, w), {**_settings(False), 'mode': mode}
    )  # fmt: skip
    entrant.tuning_s = spent
    return [entrant]
