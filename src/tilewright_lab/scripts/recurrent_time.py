"""A recurrent layer against PyTorch's, in turns.

    python -m tilewright_lab.scripts.recurrent_time [LSTM|GRU|RNN] [--target cpu|cuda] \
        [--steps 100] [--batch 1] [--features 161] [--hidden 800] [--one-way] [--threads 1]
        [--rounds 9] [--json FILE]

Both run in both directions, on the same weights, and are compared first. On a CPU a round is one
call of each, by the time that the process spends (other work on the machine does not count), with
as many threads of PyTorch's; on a GPU it is a CUDA graph of either. The ratio is the median of the
rounds' ratios, PyTorch's time over ours.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import tilewright as tw
from tilewright.cli.output import versions
from tilewright_lab.scripts.beside_torch import chosen, contestants, in_turns, medians


def main() -> None:
    parser = argparse.ArgumentParser(description='a recurrent layer against that of PyTorch')
    parser.add_argument('kind', nargs='?', default='LSTM', choices=['LSTM', 'GRU', 'RNN'])
    parser.add_argument('--target', default='cpu', choices=['cpu', 'cuda'])
    for name, size in (('steps', 100), ('batch', 1), ('features', 161), ('hidden', 800)):
        parser.add_argument(f'--{name}', type=int, default=size)
    parser.add_argument('--one-way', action='store_true')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    both = not given.one_way
    layer = getattr(torch.nn, given.kind)(given.features, given.hidden, bidirectional=both).eval()
    x = torch.randn(given.steps, given.batch, given.features)
    options = {'threads': given.threads} if given.target == 'cpu' else {}
    net = tw.compile(layer, example_inputs=[x], target=given.target, check=False, **options)
    error = float(np.abs(net(x.numpy())[0] - layer(x)[0].numpy()).max())
    samples, ratio = in_turns(*contestants(layer, [x], net, given.target), given.rounds)
    mean = medians(samples, 1e3)
    print(
        f'{given.kind} {given.features}->{given.hidden}, {given.steps} steps, batch '
        f'{given.batch}: {mean[0]:.3f} ms, PyTorch {mean[1]:.3f} ms, ratio {ratio:.2f}; largest '
        f'difference {error:.1e}; {"; ".join(chosen(net))}'
    )
    if given.json is not None:
        said = {k: str(v) if isinstance(v, Path) else v for k, v in vars(given).items()}
        said |= {'error': error, 'schedules': chosen(net)}
        result = {**said, 'samples_s': samples, 'ratio': ratio, 'versions': versions()}
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
