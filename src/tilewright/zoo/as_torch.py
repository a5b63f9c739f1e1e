"""A network of the zoo as a PyTorch module with the same weights.

The module is a `torch.fx.GraphModule`: its `forward` is ordinary source that calls one submodule
for each layer (see `module.code`), so that it can be traced, scripted, exported and compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import MissingError
from tilewright.zoo.layers import INPUT, Layer, Network

_WEIGHTS = {'scale': 'weight', 'shift': 'bias', 'mean': 'running_mean', 'variance': 'running_var'}


def to_torch(network: Network, weights: Mapping[str, np.ndarray]) -> Any:
    """[Network, arrays by name] -> torch.nn.Module in evaluation mode; it copies the arrays."""
    try:
        torch: Any = import_module('torch')
        fx: Any = import_module('torch.fx')
    except ImportError:
        raise MissingError(
            "PyTorch modules of networks need PyTorch: pip install 'tilewright[torch]'"
        ) from None
    root, graph = torch.nn.Module(), fx.Graph()
    values = {INPUT: graph.placeholder(INPUT)}
    for layer in network.layers:
        given = [values[source] for source in layer.sources]
        if layer.kind == 'add':
            values[layer.name] = graph.call_function(torch.add, tuple(given))
        elif layer.kind == 'concat':
            values[layer.name] = graph.call_function(torch.cat, (given, 1))
        else:
            root.add_module(layer.name, _module(torch.nn, layer))
            values[layer.name] = graph.call_module(layer.name, tuple(given))
    graph.output(values[network.output])
    state = root.state_dict()
    with torch.no_grad():
        for name, array in weights.items():
            layer_name, _, own = name.partition('.')
            state[f'{layer_name}.{_WEIGHTS.get(own, own)}'].copy_(torch.from_numpy(array))
    return fx.GraphModule(root, graph, class_name=network.name).eval()


def _module(nn: Any, layer: Layer) -> Any:
    """The module of one layer, with weights yet to come."""
    make = {
        'conv': lambda: nn.Conv2d(
            layer['c'], layer['k'], layer['window'], layer['stride'], layer['pad'],
            groups=layer['groups'], bias=layer['bias'],
        ),
        'linear': lambda: nn.Linear(layer['c'], layer['k']),
        'batch_norm': lambda: nn.BatchNorm2d(layer['c'], layer['epsilon']),
        'relu': nn.ReLU,
        'relu6': nn.ReLU6,
        'leaky_relu': lambda: nn.LeakyReLU(layer['slope']),
        'lrn': lambda: nn.LocalResponseNorm(
            layer['size'], layer['alpha'], layer['beta'], layer['bias']
        ),
        'max_pool': lambda: nn.MaxPool2d(
            layer['window'], layer['stride'], layer['pad'], ceil_mode=layer['ceil']
        ),
        'average_pool': lambda: nn.AvgPool2d(
            layer['window'], layer['stride'], layer['pad'], layer['ceil'], count_include_pad=False
        ),
        'global_average': lambda: nn.AdaptiveAvgPool2d(1),
        'flatten': nn.Flatten,
        'dropout': nn.Dropout,
        'softmax': lambda: nn.Softmax(1),
    }  # fmt: skip
    return make[layer.kind]()
