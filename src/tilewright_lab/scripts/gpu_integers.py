"""Quantised networks of the zoo on a GPU: the answers of the CPU, to the bit, and their times.

    python -m tilewright_lab.scripts.gpu_integers prepare resnet18 mobilenet_v2 --models FOLDER
    python -m tilewright_lab.scripts.gpu_integers compare resnet18 mobilenet_v2 --models FOLDER

`prepare` needs no GPU: QDQ models by ONNX Runtime's tool into FOLDER, and what our kernels for this
CPU answer on a few images. `compare` compiles them for the GPU, counts results that differ, and
times a call beside ours in fp16 and fp32, all as CUDA graphs with their data on the device, in
turns. Comes out: a line for each network; with `--json` all samples and schedules.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.cli.output import versions
from tilewright_lab.scripts.beside_torch import chosen
from tilewright_lab.scripts.integer_networks import quantise

IMAGES = 3


def prepare(name: str, models: Path, **small: int) -> None:
    """A quantised network, images, and their results on this CPU, in files of `models`."""
    path = quantise(
        name, models / f'{name}.onnx', per_channel=True, signed=False, **small
    )  # fmt: skip
    net = tw.compile(path)
    made = zoo.network(name, **small)
    images = [zoo.inputs(made, seed) for seed in range(100, 100 + IMAGES)]
    arrays = {f'{key}{n}': value for n, one in enumerate(images) for key, value in one.items()}
    arrays |= {f'result{n}': next(iter(net.run(dict(x)).values())) for n, x in enumerate(images)}
    np.savez(models / f'{name}.npz', allow_pickle=False, **arrays)
    print(f'{name}: prepared', flush=True)


def compare(
    name: str, models: Path, trials: int, rounds: int, target: str, **small: int
) -> dict:  # fmt: skip
    """[a prepared network] -> how many results differ, and microseconds of each precision."""
    arrays = dict(np.load(models / f'{name}.npz'))
    # Its results are compared with the CPU's below.
    quantised = tw.compile(
        models / f'{name}.onnx', target=target, tune='measure', trials=trials, check=False
    )
    inputs = [
        {value.name: arrays[f'{value.name}{n}'] for value in quantised.inputs}
        for n in range(IMAGES)
    ]
    differ = sum(
        int(np.count_nonzero(next(iter(quantised.run(x).values())) != arrays[f'result{n}']))
        for n, x in enumerate(inputs)
    )
    nets, model = {'int8': quantised}, zoo.onnx_model(name, **small)
    for precision in ('fp16', 'fp32'):
        nets[precision] = tw.compile(
            model, target=target, tune='measure', trials=trials, precision=precision, check=False
        )
    samples: dict[str, list[float]] = {kind: [] for kind in nets}
    for turn in range(rounds + 1):
        for kind, net in nets.items():
            times = net.time(
                dict(zip((v.name for v in net.inputs), inputs[0].values(), strict=True)), 5
            )
            samples[kind] += [1e6 * s for s in times] if turn else []
    medians = {kind: statistics.median(found) for kind, found in samples.items()}
    words = ', '.join(f'{kind} {us:.1f} us' for kind, us in medians.items())
    total = sum(arrays[f'result{n}'].size for n in range(IMAGES))
    print(f'{name}: {differ} of {total} results differ; {words}', flush=True)
    return {
        'name': name, 'target': target, 'differ': differ, 'results': total, 'time_us': medians,
        'samples_us': samples, 'schedules': {kind: chosen(net) for kind, net in nets.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description='Quantised networks on a GPU.')
    parser.add_argument('what', choices=['prepare', 'compare'])
    parser.add_argument('names', nargs='+', metavar='NAME', help='networks of the zoo')
    parser.add_argument('--models', type=Path, required=True, metavar='FOLDER')
    parser.add_argument('--trials', type=int, default=6)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--target', default='cuda')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    given.models.mkdir(parents=True, exist_ok=True)
    if given.what == 'prepare':
        for name in given.names:
            prepare(name, given.models)
        return
    rows = []
    for name in given.names:
        rows.append(compare(name, given.models, given.trials, given.rounds, given.target))
        if given.json is not None:
            given.json.write_text(
                json.dumps({'rows': rows, 'versions': versions()}, indent=1) + '\n'
            )


if __name__ == '__main__':
    main()
