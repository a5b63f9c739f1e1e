"""Classify an image with a compiled ResNet-18.

    python examples/classify.py                         the network of the paper
    python examples/classify.py --image 64 --width 8    a small one, in seconds

The weights are random, so the classes mean nothing; give an ONNX file of your own with --model.
"""

import argparse
import time

import numpy as np

import tilewright as tw
from tilewright import zoo

parser = argparse.ArgumentParser()
parser.add_argument('--model', help='an ONNX file with one image as input')
parser.add_argument('--image', type=int, default=224)
parser.add_argument('--width', type=int, default=1)
options = parser.parse_args()

model = options.model or zoo.onnx_model('resnet18', image=options.image, width=options.width)
begin = time.perf_counter()
net = tw.compile(model)  # nothing is measured: the model chooses every kernel
print(f'compiled in {time.perf_counter() - begin:.1f} s: {net}')

(image,) = net.inputs
x = np.random.default_rng(0).standard_normal(image.shape, np.float32)
scores = net(x)

begin = time.perf_counter()
for _ in range(10):
    net(x, out=scores)
print(f'{(time.perf_counter() - begin) * 100:.2f} ms a call')

odds = np.exp(scores[0] - scores[0].max())
odds /= odds.sum()
for number in np.argsort(odds)[::-1][:5]:
    print(f'class {number}: {odds[number]:.1%}')
