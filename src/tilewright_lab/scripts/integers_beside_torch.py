"""int8 networks of ours beside PyTorch in fp32 and bf16, on a machine that has PyTorch alone.

    python -m tilewright_lab.scripts.integers_beside_torch make resnet50 \
        --models DIR --folder build/int8
    python -m tilewright_lab.scripts.integers_beside_torch time --folder build/int8 --json FILE

`make` compiles quantised ONNX files (scripts/integer_networks.py writes them) for `--cores` cores
of a machine like this one, and writes NAME.tw with an input and what ONNX Runtime makes of it.
`time` loads them elsewhere: kernels are compiled there, the answer is compared in units of the
quantised result, and calls are timed in turns with PyTorch's: fp32, and bf16 as channels_last, in
inference mode, with batch normalisations folded, as they are and through `torch.jit.freeze`, whose
graphs go to oneDNN. A row is in FILE as soon as it is there; `--within` ends the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import tilewright as tw
from tilewright import zoo
from tilewright.machine.isa import cpu_flags
from tilewright.machine.measure import load_machine
from tilewright.targets.cpu.site import CpuSite

WANTED_FLAGS = ('avx512_vnni', 'avx512_bf16', 'avx512_fp16', 'amx_int8', 'amx_bf16')
TOGETHER = 3  # calls in a turn


def larger_machine(cores: int) -> Any:
    """This machine with so many cores, all that they share growing with them."""
    here, _ = load_machine(measure=False)
    share = cores / here.cores
    return replace(
        here, name=f'{here.name}, {cores} cores', cores=cores, fingerprint='',
        peak_all_gflops=here.peak_all_gflops * share, dot_all_gops=here.dot_all_gops * share,
        bandwidth_all_gbps=tuple(value * share for value in here.bandwidth_all_gbps),
        caches=(*here.caches[:-1], replace(here.caches[-1], shared_by=cores)),
    )  # fmt: skip


def make(name: str, models: Path, folder: Path, cores: int) -> None:
    """NAME.tw and NAME.npz."""
    import onnxruntime

    path, inputs = models / f'{name}.onnx', zoo.inputs(zoo.network(name))
    peer = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    wanted = np.asarray(peer.run(None, dict(inputs))[0])
    tw.compile(path, threads=cores, machine=larger_machine(cores), check=False,
               save=folder / f'{name}.tw')  # fmt: skip
    arrays: dict[str, Any] = {f'in:{key}': array for key, array in inputs.items()}
    np.savez_compressed(folder / f'{name}.npz', **arrays, wanted=wanted)
    print(name, (folder / f'{name}.tw').stat().st_size >> 20, 'MiB', flush=True)


def peers(name: str, inputs: dict[str, np.ndarray], threads: int) -> Iterator[tuple[str, Callable]]:
    """Ways in which PyTorch computes the network, by name."""
    import torch

    torch.set_num_threads(threads)
    x = torch.from_numpy(next(iter(inputs.values())))
    for kind in ('float32', 'bfloat16'):
        dtype, layout = getattr(torch, kind), torch.channels_last
        module = zoo.torch_module(name).eval().to(dtype).to(memory_format=layout)
        given = x.to(dtype).contiguous(memory_format=layout)
        with torch.inference_mode():
            frozen = torch.jit.freeze(torch.jit.trace(module, given))
        for how, call in (('eager', module), ('frozen', frozen)):
            yield f'torch/{kind}/{how}', lambda call=call, given=given: call(given)


def compared(name: str, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """A row: whether the answer is right, and milliseconds of all."""
    import torch

    stored = np.load(folder / f'{name}.npz')
    inputs = {key[3:]: stored[key] for key in stored.files if key.startswith('in:')}
    # Schedules are taken as `make` chose them: a search needs packages that may be missing here.
    with patch.object(CpuSite, 'is_another', lambda *_: False):
        net = tw.load(folder / f'{name}.tw', threads=threads)
    (got,), wanted = net.run(inputs).values(), stored['wanted']
    unit = np.diff(np.unique(wanted)).min().item()
    off = np.abs(got - wanted) / unit
    calls = {'ours/int8': lambda: net.run(inputs), **dict(peers(name, inputs, threads))}
    times: dict[str, list[float]] = {who: [] for who in calls}
    with torch.inference_mode():
        for turn in range(rounds + 2):
            for who, call in calls.items():
                call()
                for _ in range(TOGETHER):
                    begin = time.perf_counter()
                    call()
                    if turn > 1:
                        times[who].append(1e3 * (time.perf_counter() - begin))
    ms = {who: statistics.median(found) for who, found in times.items()}
    best = min(value for who, value in ms.items() if who != 'ours/int8')
    return {
        'network': name, 'ms': ms, 'best_peer_over_ours': best / ms['ours/int8'],
        'differ': int(np.sum(off > 0.5)), 'largest_units': float(off.max()), 'results': got.size,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else '')
    parser.add_argument('step', choices=('make', 'time'))
    parser.add_argument('networks', nargs='*')
    parser.add_argument('--models', type=Path, default=Path('build/models'))
    parser.add_argument('--folder', type=Path, default=Path('build/int8'))
    parser.add_argument('--cores', type=int, default=16)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--within', type=float, default=180.0)
    parser.add_argument('--json', type=Path, default=Path('int8-beside-torch.json'))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = asked.networks or sorted(path.stem for path in asked.folder.glob('*.tw'))
    if asked.step == 'make':
        for name in names:
            make(name, asked.models, asked.folder, asked.cores)
        return 0
    end, rows, flags = time.monotonic() + asked.within, [], cpu_flags()
    for name in names:
        if time.monotonic() > end:
            break
        rows.append(compared(name, asked.folder, asked.cores, asked.rounds))
        print(rows[-1], flush=True)
        about = {'threads': asked.cores, 'flags': [f for f in WANTED_FLAGS if f in flags]}
        asked.json.write_text(json.dumps(about | {'rows': rows}, indent=1) + '\n')
    return int(any(row['largest_units'] > 1.5 for row in rows))


if __name__ == '__main__':
    sys.exit(main())
