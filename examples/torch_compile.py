"""PyTorch's torch.compile with this package as its backend.

Whatever the backend cannot compile runs in PyTorch, with a warning that says why.
"""

import torch

from tilewright import zoo

SIZE = {'image': 99, 'width': 16}  # small, so that it is compiled in seconds
module = zoo.torch_module('alexnet', **SIZE)
x = torch.from_numpy(zoo.example(zoo.network('alexnet', **SIZE)))

fast = torch.compile(module, backend='tilewright', options={'tune': 'model'})
with torch.inference_mode():
    y, want = fast(x), module(x)
print(f'largest difference {(y - want).abs().max() / want.abs().max():.1e} of the largest output')


def two_graphs(x: torch.Tensor) -> torch.Tensor:
    """Not one graph: PyTorch's tracer cuts it where it prints, and each part is compiled."""
    scores = module(x)
    print(f'the first part has shape {tuple(scores.shape)}')
    return scores.topk(3).values


with torch.inference_mode():
    print(torch.compile(two_graphs, backend='tilewright')(x))
