"""PyTorch's ways of running a network on a GPU, each a CUDA graph, TF32 off.

Goes in: a `Subject` of compare/gpu_networks.py, and Inductor's processes where it takes part. Comes
out: `Entrant`s (contestants.py), and rows of what did not work.

    torch      the module as it is, and networks of images also with batch normalisations folded and
               as channels_last, by cuDNN in benchmark mode without a limit; the fastest counts
    inductor   torch.compile in max-autotune mode with frozen weights (else without), in a process
               of its own (inductor.py), images of half precision as channels_last; its first call
               is its tuning time
"""

from __future__ import annotations

import copy
from functools import partial
from importlib import import_module
from typing import Any

from tilewright import zoo
from tilewright.errors import MissingError
from tilewright_lab.peers.contestants import Entrant
from tilewright_lab.peers.inductor import Asked, Rivals
from tilewright_lab.peers.torch_graph import placed, replayed, torch_on_gpu

Prepared = tuple[list[Entrant], list[dict]]


def torch(subject: Asked, rivals: Rivals | None) -> Prepared:
    torch = torch_on_gpu()
    module = zoo.torch_module(**subject.arguments)
    made = []
    images = subject.arguments['name'] in zoo.NAMES
    for folded in (False, True) if images else (False,):
        chosen = _folded(module) if folded else module
        for layout in ('contiguous_format', 'channels_last') if images else ('contiguous_format',):
            own, x = placed(
                torch, copy.deepcopy(chosen), subject.inputs.values(), subject.precision, layout
            )
            settings = {
                'layout': layout, 'folded': folded, 'cudnn.benchmark': True, 'allow_tf32': False,
                'precision': subject.precision,
            }  # fmt: skip
            made.append(replayed(torch, f'torch/{layout}{folded:d}', partial(own, *x), settings))
    return made, []


def _folded(module: Any) -> Any:
    """The module with batch normalisations in the weights of the convolutions before them."""
    optimization: Any = import_module('torch.fx.experimental.optimization')
    return optimization.fuse(copy.deepcopy(module).eval())


def inductor(subject: Asked, rivals: Rivals | None) -> Prepared:
    if rivals is None:
        raise MissingError('inductor runs on CUDA devices only')
    return rivals.entrants(subject)
