"""One network for sentences of any length up to a limit.

    python examples/lengths.py                          BERT-base, 1 to 128 words
    python examples/lengths.py --model m.onnx --input ids --longest 32      a file of your own

Nothing is compiled when a new length comes; `net.at` is the network of one of them.
"""

import argparse
import time

import numpy as np

import tilewright as tw

parser = argparse.ArgumentParser()
parser.add_argument(
    '--model', default='bert_base', help='an ONNX file, or a transformer of the zoo'
)
parser.add_argument('--input', default='ids')
parser.add_argument('--longest', type=int, default=128)
options = parser.parse_args()

begin = time.perf_counter()
net = tw.compile(options.model, shapes={options.input: (1, range(1, options.longest + 1))})
print(f'compiled in {time.perf_counter() - begin:.1f} s: {net}')

for length in (1, options.longest // 3, options.longest):
    words = np.zeros((1, length), np.int64)
    begin = time.perf_counter()
    net(words)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    net(words)
    again = time.perf_counter() - begin
    print(f'{length} words: {1e3 * first:.1f} ms the first time, {1e3 * again:.1f} ms then')

try:
    net(np.zeros((1, options.longest + 1), np.int64))
except tw.TilewrightError as error:
    print(error)
