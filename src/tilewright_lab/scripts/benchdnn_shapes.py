"""Every shape of benchdnn's lists: is what we compute what PyTorch computes?

    python -m tilewright_lab.scripts.benchdnn_shapes FOLDER_OR_FILES.. --json F [--seconds 240]

Goes in: shape lists, with transposed convolutions or without. Comes out: for each shape the schema
that was chosen without measuring, the largest error over the largest output against PyTorch in
float64, and how many of the images of the batch were compared: all of them while PyTorch has at
most `--gflops` to do, else the first, the last and as many between them as that allows. Each shape
is a piece of work in another process, which may take `--memory` GiB and `--limit` seconds. What is
in the JSON file is kept, so that the same command goes on where it was stopped; shapes that were
wrong or lost are tried again. Exit code 1 unless all of them are right.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.files import replacing
from tilewright.ops.convolution import Convolution
from tilewright.ops.specs import read_layer, read_shapes
from tilewright.runtime.pool import LostError, Pool
from tilewright.runtime.verify import TOLERANCE
from tilewright_lab.peers.contestants import layer_arrays

GIB = 1 << 30


def torch_answer(conv: Convolution, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """A layer by PyTorch, in float64; filters as PyTorch has them."""
    torch: Any = import_module('torch')
    functional: Any = import_module('torch.nn.functional')
    rank = conv.rank
    x, w = (torch.from_numpy(arrays[name]).double() for name in ('In', 'Ker'))
    bias = torch.from_numpy(arrays['Bias']).double() if conv.bias else None
    # PyTorch names the last axis first.
    ends = [end for i in reversed(range(rank)) for end in (conv.pad[i], conv.pad[rank + i])]
    if conv.transposed:
        name = f'conv_transpose{rank}d'
        y = getattr(functional, name)(x, w, None, conv.stride, 0, 0, conv.groups, conv.dilation)
        y = functional.pad(y, [-end for end in ends])
        y = y if bias is None else y + bias.view(-1, *[1] * rank)
    else:
        padded = functional.pad(x, ends)
        y = getattr(functional, f'conv{rank}d')(
            padded, w, bias, conv.stride, 0, conv.dilation, conv.groups
        )
    activations = {None: lambda y: y, 'relu': torch.relu}
    return activations[conv.activation](y).numpy()


def images_of(batch: int, flops: float, most: float) -> list[int]:
    """Which images are compared: all, or the ends and others at the same distance."""
    count = min(batch, max(2, int(most * batch / max(flops, 1.0))))
    return sorted({round(i * (batch - 1) / max(count - 1, 1)) for i in range(count)})


def check(label: str, threads: int, most: float, memory: int) -> dict[str, Any]:
    """One shape: plan without measuring, compile, run, compare."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    import_module('torch').set_num_threads(threads)
    layer = read_layer(label)
    conv, group = layer.conv, layer.group
    arrays = layer_arrays(group, 1)
    plan = tw.optimize(group, measure=False, threads=threads)
    got = plan.build(arrays['Ker'], arrays.get('Bias'))(arrays['In'])
    chosen, worst, largest = images_of(conv.n, group.flops, most), 0.0, 0.0
    for image in chosen:
        want = torch_answer(conv, arrays | {'In': arrays['In'][image : image + 1]})[0]
        if got[image].shape != want.shape:
            raise ValueError(f'the shape is {got[image].shape}, by PyTorch {want.shape}')
        if not np.isfinite(got[image]).all():
            worst = float('inf')
        worst = max(worst, float(np.abs(got[image] - want).max()))
        largest = max(largest, float(np.abs(want).max()))
    error = worst / largest if largest else worst
    return {
        'ok': error <= TOLERANCE['f32'], 'max_rel_err': error, 'schema': plan.best.schedule.schema,
        'images': conv.n, 'compared': len(chosen), 'rank': conv.rank, 'gflops': group.flops / 1e9,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each list."""
    lines = [
        '| list | 1-D | 2-D | 3-D | right | images compared | largest error |',
        '|---' * 7 + '|',
    ]
    for name in dict.fromkeys(row['list'] for row in rows):
        mine = [row for row in rows if row['list'] == name]
        done = [row for row in mine if 'compared' in row]
        ranks = [sum(row.get('rank') == r for row in mine) for r in (1, 2, 3)]
        images = f'{sum(r["compared"] for r in done)} of {sum(r["images"] for r in done)}'
        worst = max((row['max_rel_err'] for row in done), default=float('nan'))
        right = f'{sum(row["ok"] for row in mine)} of {len(mine)}'
        lines.append(
            f'| `{name}` | {" | ".join(map(str, ranks))} | {right} | {images} | {worst:.1e} |'
        )
    return '\n'.join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument('lists', nargs='+', type=Path)
    parser.add_argument('--json', type=Path, required=True)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--seconds', type=float, default=1e9, help='stop behind so many')
    parser.add_argument('--limit', type=float, default=120.0, help='seconds of one shape')
    parser.add_argument('--memory', type=float, default=8.0, help='GiB of one shape')
    parser.add_argument('--gflops', type=float, default=4.0, help='of PyTorch for one shape')
    given = parser.parse_args()
    files = [
        file
        for path in given.lists
        for file in (sorted(path.glob('*.txt')) if path.is_dir() else [path])
    ]
    until = time.monotonic() + given.seconds
    old = json.loads(given.json.read_text())['shapes'] if given.json.exists() else []
    kept = {(row['list'], row['label']): row for row in old if row['ok']}
    # By the name of its module, which other processes can import.
    work = import_module('tilewright_lab.scripts.benchdnn_shapes').check
    rows, left = [], 0
    with Pool(1, limit=given.limit, background=False) as pool:
        for file in files:
            for layer in read_shapes(file):
                label, known = layer.conv.label, kept.get((file.stem, layer.conv.label))
                if known is None and time.monotonic() > until:
                    left += 1
                    continue
                facts = {'list': file.stem, 'name': layer.name, 'label': label}
                if known is None:
                    try:
                        words = (label, given.threads, given.gflops * 1e9, int(given.memory * GIB))
                        known = pool.submit(work, *words).result()
                    except (TilewrightError, LostError) as error:
                        known = {'ok': False, 'message': str(error), 'rank': layer.conv.rank}
                    if not known['ok']:
                        print(f'{file.stem} {layer.name} {label}: {known}', file=sys.stderr)
                rows.append(facts | known)
            with replacing(given.json) as path:
                path.write_text(json.dumps({'threads': given.threads, 'shapes': rows}, indent=1))
    print(table(rows))
    if left:
        print(f'{left} shapes are left; run the same command again')
    return int(left > 0 or not all(row['ok'] for row in rows))


if __name__ == '__main__':
    sys.exit(main())
