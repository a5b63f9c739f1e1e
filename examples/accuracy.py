"""The fastest mix of fp32 and int8 layers that keeps an accuracy, by samples of one's own.

    python examples/accuracy.py                              MobileNet-v2, at most 2% off
    python examples/accuracy.py --image 64 --width 8         a small one, in a minute
    python examples/accuracy.py --accuracy cosine=0.9999

Samples are random images here; take some of what the network will see.
"""

import argparse

import numpy as np

import tilewright as tw
from tilewright import zoo

parser = argparse.ArgumentParser()
parser.add_argument('--network', default='mobilenet_v2')
parser.add_argument('--accuracy', default='rel=0.02')
parser.add_argument('--image', type=int, default=224)
parser.add_argument('--width', type=int, default=1)
options = parser.parse_args()

model = zoo.onnx_model(options.network, image=options.image, width=options.width)
shape = (8, 3, options.image, options.image)
samples = np.random.default_rng(0).standard_normal(shape, np.float32)

small = tw.quantize(model, samples)
worst = max(small.layers, key=lambda row: row.error)
print(f'all in int8: {small.output}; {worst.name} is off by {worst.error:.3f}')

net = tw.compile(model, precision='auto', accuracy=options.accuracy, samples=samples)
types = list(net.mix['types'].values())
print(
    f'{types.count("int8")} of {len(types)} layers in int8: error {net.mix["error"]["rel"]:.5f} '
    f'on held-out samples, {options.accuracy} {"kept" if net.mix["reached"] else "missed"}'
)
