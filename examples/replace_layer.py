"""Replace one layer of a network by hand: the first rectifier of ResNet-18 by a hard swish.

    python examples/replace_layer.py --image 64 --width 8

A graph is a value; its nodes are a tuple, with the operators and attributes of ONNX. An edited one
is compiled like any other; numpy computes it from the definitions of its operators, for comparison.
"""

import argparse
from dataclasses import replace

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.importers.onnx import import_onnx

parser = argparse.ArgumentParser()
parser.add_argument('--image', type=int, default=64)
parser.add_argument('--width', type=int, default=8)
options = parser.parse_args()

sizes = {'image': options.image, 'width': options.width}
graph = import_onnx(zoo.onnx_model('resnet18', **sizes))
nodes = list(graph.nodes)
place = next(number for number, node in enumerate(nodes) if node.op == 'Relu')
print(f'replacing {nodes[place]}')
nodes[place] = replace(nodes[place], op='HardSwish', attributes={})
edited = replace(graph, nodes=tuple(nodes))

x = zoo.example(zoo.network('resnet18', **sizes))
before, after = tw.compile(graph)(x), tw.compile(edited)(x)
want = evaluate(lower(edited), {zoo.INPUT: x})[zoo.OUTPUT]
print(f'scores change by up to {np.abs(after - before).max():.3f}')
print(
    f'largest difference {np.abs(after - want).max() / np.abs(want).max():.1e} of the largest score'
)
