"""Networks to carry about: own definitions from the papers, seeded weights, as ONNX and PyTorch.

zoo.onnx_model('resnet18')              onnx.ModelProto, input 'image', output 'scores'
zoo.torch_module('resnet18')            torch.nn.Module with the same weights
zoo.graph('resnet18')                   a graph of our own, where neither is installed
zoo.onnx_model('vgg16', **zoo.SMALL['vgg16'])      the same structure, small
zoo.onnx_model('bert_base', image=128)             a transformer: `image` is its number of words
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.graph.graph import Graph
from tilewright.zoo import classic, inception, residual, transformers
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.layers import INPUT, OUTPUT, Layer, Network
from tilewright.zoo.transformers import Transformer
from tilewright.zoo.weights import weights

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    'INPUT', 'KNOWN', 'NAMES', 'OUTPUT', 'SMALL', 'TRANSFORMERS', 'Layer', 'Network',
    'Transformer', 'example', 'graph', 'inputs', 'network', 'onnx_model', 'torch_module',
    'weights',
]  # fmt: skip
_MAKERS = {
    'alexnet': classic.alexnet,
    'vgg11': classic.vgg11,
    'vgg16': classic.vgg16,
    'nin': classic.nin,
    'inception_v1': inception.inception_v1,
    'inception_v3': inception.inception_v3,
    'resnet18': residual.resnet18,
    'resnet34': residual.resnet34,
    'resnet50': residual.resnet50,
    'squeezenet': classic.squeezenet,
    'mobilenet_v1': residual.mobilenet_v1,
    'mobilenet_v2': residual.mobilenet_v2,
    'densenet121': residual.densenet121,
    'darknet19': classic.darknet19,
}
NAMES = tuple(_MAKERS)
TRANSFORMERS = tuple(transformers.MAKERS)
KNOWN = (*NAMES, *TRANSFORMERS)
# Arguments that make a network small: every kind of layer and every stage is left.
SMALL = {
    name: {'image': {'alexnet': 67, 'nin': 96, 'inception_v3': 96}.get(name, 64), 'width': 8}
    for name in NAMES
} | {name: {'image': 32 if name == 'vit_b16' else 5, 'width': 6} for name in TRANSFORMERS}


def network(
    name: str, batch: int = 1, image: int | None = None, width: int = 1
) -> Network | Transformer:
    """A network by name, at the image size of its paper and its own width unless told otherwise."""
    makers = _MAKERS | transformers.MAKERS
    if name not in makers:
        near = difflib.get_close_matches(name, KNOWN, 3, 0.5)
        words = f'did you mean {", ".join(near)}?' if near else f'known: {", ".join(KNOWN)}'
        raise SpecError(f'network {name!r} is not known; {words}')
    sizes = {} if image is None else {'image': image}
    return makers[name](batch, width=width, **sizes)


def onnx_model(
    name: str, seed: int = 0, batch: int = 1, image: int | None = None, width: int = 1
) -> ModelProto:
    """A network as an ONNX model: opset 21, weights as initialisers, batch norms not folded."""
    from tilewright.zoo.as_onnx import graph_to_onnx, to_onnx

    made = network(name, batch, image, width)
    if isinstance(made, Transformer):
        return graph_to_onnx(graph(name, seed, batch, image, width), made.outputs)
    return to_onnx(made, weights(made, seed))


def graph(
    name: str, seed: int = 0, batch: int = 1, image: int | None = None, width: int = 1
) -> Graph:
    """A network as a graph, with the weights of `onnx_model`."""
    made = network(name, batch, image, width)
    if isinstance(made, Transformer):
        return transformers.to_graph(made, transformers.draw_weights(made, seed))
    return to_graph(made, weights(made, seed))


def torch_module(
    name: str, seed: int = 0, batch: int = 1, image: int | None = None, width: int = 1
) -> Any:
    """A network as a PyTorch module in evaluation mode, with the weights of `onnx_model`."""
    from tilewright.zoo.as_torch import to_torch

    made = network(name, batch, image, width)
    if isinstance(made, Transformer):
        return transformers.to_torch(made, transformers.draw_weights(made, seed))
    return to_torch(made, weights(made, seed))


def inputs(made: Network | Transformer, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of a network, by name."""
    if isinstance(made, Transformer):
        return transformers.draw_inputs(made, seed)
    return {INPUT: example(made, seed)}


def example(made: Network | Transformer, seed: int = 0) -> np.ndarray:
    """What a network is asked first: an image, float32 NCHW, mean 0, deviation 1, or words."""
    if isinstance(made, Transformer):
        return next(iter(inputs(made, seed).values()))
    return np.random.default_rng([seed, 1]).standard_normal(made.shape, np.float32)
