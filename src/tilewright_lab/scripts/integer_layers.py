"""Integer convolutions of the suites: how near to the peak of integer products.

    python -m tilewright_lab.scripts.integer_layers mopt/R6 mopt/Y8 --json layers.json
    python -m tilewright_lab.scripts.integer_layers mopt/R6 --algorithm direct --threads 2

Goes in: names of convolutions (docs/specs.md). Comes out: for each the median microseconds of the
layer, with the copy of its image, rounding and storing, and of the products of its definition the
share of the peak that `tilewright machine` measured with so many threads, one unless `--threads`
says more: of tiles where it is computed in them, else of vectors. By Winograd, which needs fewer
products, it may be more than all of it. The layer is a QLinearConv (i8 images, i8 weights of each
channel) between two others of few channels, as it stands in a network; times are those of its task
in `Network.profile`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.machine.isa import ISAS
from tilewright.machine.measure import load_machine
from tilewright.ops.suites import parse

FEW = 8  # channels of the convolutions around a layer


def around(sizes: dict[str, int], image: tuple[int, ...], pad: int, stride: int) -> Any:
    """An ONNX model: FEW -> c by 1x1, the layer, k -> FEW by 1x1; floats outside."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    nodes, constants = [], []

    def constant(name: str, array: Any, dtype: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    scale, zero = constant('scale', 0.05, np.float32), constant('zero', 0, np.int8)
    layers = (
        ('before', sizes['c'], FEW, 1, 1, 0, 1),
        ('layer', sizes['k'], sizes['c'], sizes['r'], sizes['s'], pad, stride),
        ('behind', FEW, sizes['k'], 1, 1, 0, 1),
    )
    last = 'stored'
    nodes.append(helper.make_node('QuantizeLinear', ['image', scale, zero], [last]))
    for name, k, c, r, s, border, step in layers:
        weights = constant(f'{name}_w', draw.integers(-127, 128, (k, c, r, s)), np.int8)
        scales = constant(f'{name}_s', np.full(k, 0.5 / (c * r * s) ** 0.5 / 70), np.float32)
        zeros = constant(f'{name}_z', np.zeros(k), np.int8)
        bias = constant(f'{name}_b', draw.integers(-999, 1000, k), np.int32)
        given = [last, scale, zero, weights, scales, zeros, scale, zero, bias]
        words: dict[str, Any] = {'pads': [border] * 4, 'strides': [step] * 2}
        nodes.append(helper.make_node('QLinearConv', given, [name], name=name, **words))
        last = name
    nodes.append(helper.make_node('DequantizeLinear', [last, scale, zero], ['result']))
    graph = helper.make_graph(
        nodes, 'layer', [helper.make_tensor_value_info('image', TensorProto.FLOAT, list(image))],
        [helper.make_tensor_value_info('result', TensorProto.FLOAT, None)], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)


def measured(name: str, calls: int, threads: int, algorithm: str) -> dict[str, Any]:
    """One layer."""
    group = parse(name)
    sizes = {d: group.main.sizes[d] for d in 'nkchwrs'}
    shape = group.tensor('In').shape
    index = next(a for a in group.main.reads if a.tensor == 'In').index[2]
    pad, stride = -index.const, index.coefficient('h')
    model = around(sizes, (shape[0], FEW, *shape[2:]), pad, stride)
    network = tw.compile(model, threads=threads, algorithm=algorithm)
    found = [t for t in network.profile(calls=calls).tasks if 'layer' in t.origin]
    times = statistics.median(task.time_ms for task in found)
    products = 2 * group.main.points
    schedules = (network.kernels[t.digest].schedule for t in network.tasks if 'layer' in t.origin)
    machine, in_tiles = load_machine()[0], any(ISAS[s.isa].rows for s in schedules)
    one, every = machine.dot_one_gops, machine.dot_all_gops
    if in_tiles:
        one, every = machine.tile_one_gops, machine.tile_all_gops
    peak = one if threads == 1 else every * min(threads, machine.cores) / machine.cores
    return {
        'layer': name, 'threads': threads, 'algorithm': algorithm, 'ms': times,
        'gops': products / times / 1e6, 'peak_gops': peak,
        'share_of_peak': products / times / 1e6 / peak, 'schedule': found[0].schema,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('layers', nargs='+')
    parser.add_argument('--calls', type=int, default=30)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--algorithm', default='auto')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    how = (given.calls, given.threads, given.algorithm)
    rows = [measured(name, *how) for name in given.layers]
    for row in rows:
        print(f'{row["layer"]}: {1e3 * row["ms"]:.0f} us, {row["gops"]:.1f} Gop/s, '
              f'{row["share_of_peak"]:.1%} of {row["peak_gops"]:.1f}, '
              f'{row["schedule"]}')  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + '\n')


if __name__ == '__main__':
    main()
