"""Networks to carry about: own definitions from the papers, seeded weights, as ONNX and PyTorch.

zoo.onnx_model('resnet18')              onnx.ModelProto, input 'image', output 'scores'
zoo.torch_module('resnet18')            torch.nn.Module with the same weights
zoo.graph('resnet18')                   a graph of our own, where neither is installed
zoo.onnx_model('vgg16', **zoo.SMALL['vgg16'])      the same structure, small
zoo.onnx_model('bert_base', image=128)             a transformer: `image` is its number of words
zoo.onnx_model('dlrm', batch=128, image=1000)      DLRM: `image` is the number of rows of a table
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.graph.graph import Graph
from tilewright.zoo import classic, inception, recurrent, residual, transformers
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.dlrm import dlrm
from tilewright.zoo.layers import INPUT, OUTPUT, Layer, Network
from tilewright.zoo.weights import weights
from tilewright.zoo.written import WrittenNetwork

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    'INPUT', 'KNOWN', 'NAMES', 'OUTPUT', 'SMALL', 'WRITTEN', 'Layer', 'Network',
    'WrittenNetwork', 'example', 'graph', 'inputs', 'network', 'onnx_model', 'torch_module',
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
# Networks that are not lists of layers: transformers, recurrent networks, recommendation.
_WRITERS = {**transformers.MAKERS, **recurrent.MAKERS, 'dlrm': dlrm}
NAMES = tuple(_MAKERS)
WRITTEN = tuple(_WRITERS)
KNOWN = (*NAMES, *WRITTEN)
# Arguments that make a network small: every kind of layer and every stage is left.
SMALL = {
    name: {'image': {'alexnet': 67, 'nin': 96, 'inception_v3': 96}.get(name, 64), 'width': 8}
    for name in NAMES
} | {
    name: {'image': {'vit_b16': 32, 'deepspeech2': 12, 'dlrm': 50}.get(name, 5), 'width': width}
    for names, width in ((transformers.MAKERS, 6), (recurrent.MAKERS, 16), (('dlrm',), 8))
    for name in names
}


def network(
    name: str, batch: int = 1, image: int | None = None, width: int = 1
) -> Network | WrittenNetwork:
    """A network by name, at the image size of its paper and its own width unless told otherwise."""
    makers = _MAKERS | _WRITERS
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
    if isinstance(made, WrittenNetwork):
        return graph_to_onnx(graph(name, seed, batch, image, width), made.outputs)
    return to_onnx(made, weights(made, seed))


def graph(
    name: str, seed: int = 0, batch: int = 1, image: int | None = None, width: int = 1
) -> Graph:
    """A network as a graph, with the weights of `onnx_model`."""
    made = network(name, batch, image, width)
    if isinstance(made, WrittenNetwork):
        return made.to_graph(made.draw_weights(seed))
    return to_graph(made, weights(made, seed))


def torch_module(
    name: str, seed: int = 0, batch: int = 1, image: int | None = None, width: int = 1
) -> Any:
    """A network as a PyTorch module in evaluation mode, with the weights of `onnx_model`."""
    from tilewright.zoo.as_torch import to_torch

    made = network(name, batch, image, width)
    if isinstance(made, WrittenNetwork):
        return made.to_torch(made.draw_weights(seed))
    return to_torch(made, weights(made, seed))


def inputs(made: Network | WrittenNetwork, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of a network, by name."""
    if isinstance(made, WrittenNetwork):
        return made.draw_inputs(seed)
    return {INPUT: example(made, seed)}


def example(made: Network | WrittenNetwork, seed: int = 0) -> np.ndarray:
    """What a network is asked first: an image, float32 NCHW, mean 0, deviation 1, or words."""
    if isinstance(made, WrittenNetwork):
        return next(iter(inputs(made, seed).values()))
    return np.random.default_rng([seed, 1]).standard_normal(made.shape, np.float32)
