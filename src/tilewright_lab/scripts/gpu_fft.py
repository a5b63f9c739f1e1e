"""FFT on a GPU beside the direct algorithm, Winograd, cuDNN's algorithms and PyTorch's choice.

Goes in: a GPU. Comes out: for layers with large filters the microseconds of our best predicted
kernels of each algorithm, of what `auto` takes, of every algorithm that cuDNN proposes (its FFT and
tiled FFT among them) and of PyTorch with cuDNN in benchmark mode, TF32 off: a table, and JSON that
is written after every layer. Every kernel is checked against float64 first.

    python -m tilewright_lab.scripts.gpu_fft --json bench/results/h200/fft.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.kernels.gpu.module import with_own_dims
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.tiles import ALGORITHMS
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.report.grid import Grid
from tilewright.runtime.gpu.libraries.table import available
from tilewright.runtime.gpu.session import Session
from tilewright.targets.gpu.choose import TRIALS, choose_all
from tilewright_lab.peers.torch_graph import replayed, torch_on_gpu
from tilewright_lab.scripts.gpu_libraries import REPEATS, TOLERANCE, attempt

# n, channels in and out, height and width, filter; the float64 reference of the last takes longest
LAYERS = (
    (1, 64, 56, 7), (16, 64, 28, 7), (1, 64, 56, 11), (16, 64, 28, 5), (1, 32, 28, 31),
    (16, 32, 28, 15), (1, 128, 28, 9), (16, 32, 28, 11), (1, 32, 56, 15), (16, 64, 56, 7),
)  # fmt: skip
# cuDNN's forward algorithms by number.
CUDNN = {
    0: 'implicit gemm', 1: 'precomputed gemm', 2: 'gemm', 4: 'fft', 5: 'fft tiling',
    6: 'winograd', 7: 'winograd nonfused',
}  # fmt: skip


def layer(n: int, c: int, side: int, taps: int) -> Group:
    return conv2d(n=n, c=c, h=side, w=side, k=c, r=taps, s=taps, pad=taps // 2)


def of_cudnn(session: Session, group: Group) -> list[dict[str, Any]]:
    """Every algorithm that cuDNN proposes."""
    try:
        proposed = session.proposals('cudnn')['schedules']
    except TilewrightError as error:
        return [{'by': 'cudnn', 'status': 'failed', 'message': str(error)}]
    found = []
    for data in proposed:
        number = dict(data['tiles']).get('algorithm', -1)
        found.append({'by': f'cudnn {CUDNN.get(number, number)}', **attempt(session, data)})
    return found


def of_torch(session: Session, group: Group) -> dict[str, Any]:
    """PyTorch's convolution, cuDNN's algorithms timed against each other."""
    said: dict[str, Any] = {'by': 'torch'}
    try:
        torch = torch_on_gpu(tf32=False)
        image, weights = (
            torch.from_numpy(session.arrays[access.tensor]).cuda() for access in group.main.reads
        )
        pad = group.main.sizes['r'] // 2
        run = replayed(
            torch, 'torch', lambda: torch.nn.functional.conv2d(image, weights, padding=pad), {}
        )  # fmt: skip
        samples = run.time(REPEATS)
    except (TilewrightError, RuntimeError) as error:
        return said | {'status': 'failed', 'message': str(error).splitlines()[0]}
    return said | {'status': 'ok', 'us': 1e6 * statistics.median(samples)}


def table(rows: list[dict[str, Any]]) -> str:
    """For each layer the fastest of each kind, and by whom."""
    kinds = (*ALGORITHMS, 'cudnn fft', 'cudnn', 'torch')
    lines = []
    for row in rows:
        said = [row['layer']]
        for kind in kinds:
            good = [
                one['us']
                for one in row['tried']
                if one.get('us') and one['status'] == 'ok' and one['by'].startswith(kind)
            ]
            said.append(f'{min(good):.1f}' if good else '-')
        of_auto = [one for one in row['tried'] if one['by'] == 'auto']
        timed = sorted((one for one in of_auto if one.get('us')), key=lambda one: one['us'])
        for found in (of_auto, timed):
            said.append(found[0]['schedule']['schema'] if found else '-')
        lines.append(tuple(said))
    head = ('layer, us', *kinds, 'auto by model', 'auto by measuring')
    return Grid(head, tuple(lines)).text()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--json', type=Path, required=True, help='where to write the rows')
    parser.add_argument(
        '--trials', type=int, default=TRIALS, help='schedules that the model looks at'
    )
    parser.add_argument('--top', type=int, default=2, help='of each algorithm that are timed')
    parser.add_argument('--filters', type=int, nargs='*', help='only filters of these sizes')
    parser.add_argument('--seconds', type=float, default=80.0, help='no new layer after these')
    asked = parser.parse_args()
    end, rows = time.monotonic() + asked.seconds, []
    session = Session('cuda', '')
    machine = session.device.machine
    layers = [one for one in LAYERS if not asked.filters or one[-1] in asked.filters]
    groups = [layer(*sizes) for sizes in layers]
    # All searches of an algorithm at once, in as many processes as there are cores.
    chosen = {
        name: choose_all(
            groups, machine, asked.top, DEFAULT_LIMIT, trials=asked.trials, algorithm=name
        )
        for name in ALGORITHMS
    }
    print(f'searched, {asked.seconds - end + time.monotonic():.0f} s', flush=True)
    for number, (sizes, group) in enumerate(zip(layers, groups, strict=True)):
        if time.monotonic() > end:
            break
        session.group(with_own_dims(group).to_json(), 0, TOLERANCE)
        n, c, side, taps = sizes
        tried: list[dict[str, Any]] = []
        known: dict[str, dict[str, Any]] = {}  # what several algorithms have is timed once
        for name, found in chosen.items():
            for choice in found[number]:
                schema = choice.schedule.schema
                if name not in ('auto', 'direct') and schema != name:
                    continue  # it does not apply, or is beyond the error budget
                digest = choice.schedule.digest
                known[digest] = known.get(digest) or attempt(session, choice.schedule.to_json())
                predicted = 1e6 * choice.predicted_s
                tried.append({'by': name, 'predicted_us': predicted, **known[digest]})
        if 'cudnn' in available()[0]:
            tried += of_cudnn(session, group)
        tried.append(of_torch(session, group))
        rows.append({'layer': f'{n} x {c} x {side}x{side}, {taps}x{taps}', 'tried': tried})
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        said = {'device': session.device.name, 'trials': asked.trials, 'rows': rows}
        asked.json.write_text(json.dumps(said, indent=1) + '\n')
    print(table(rows))


if __name__ == '__main__':
    main()
