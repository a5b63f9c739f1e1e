"""How long a network takes to compile: with empty caches, again, and with kernels timed.

    python -m tilewright_lab.scripts.compile_time [NETWORK] [--threads T] [--peer] [--json FILE]

NETWORK is a name of the zoo [resnet18]. Each compilation is a process of its own with the ONNX file
in hand; what is counted is the call of `tw.compile`, not the start of Python and the imports. In
the JSON `threads` is null where T is not given, which means all usable cores. All compilations
share one cache directory that is empty at first:

    cold      tune='model', nothing there: the machine is measured, every kernel is built
    warm      the same again
    measure   tune='measure' with its four trials a group, after these
    peer      `--peer`: torch.compile of the same network, until its first call has returned
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tilewright import zoo
from tilewright.cli.output import versions

OURS = """
import sys, time
import tilewright as tw
start = time.perf_counter()
tw.compile(sys.argv[1], tune=sys.argv[2], threads=int(sys.argv[3]) or None)
print(time.perf_counter() - start)
"""
PEER = """
import sys, time
import torch
from tilewright import zoo
module = zoo.torch_module(sys.argv[1])
image = torch.from_numpy(zoo.example(zoo.network(sys.argv[1])))
torch.set_num_threads(int(sys.argv[3]) or torch.get_num_threads())
with torch.inference_mode():
    start = time.perf_counter()
    torch.compile(module)(image)
    print(time.perf_counter() - start)
"""


def seconds(code: str, words: list[str], caches: Path) -> float:
    """What a new process says."""
    there = os.environ | {
        'TILEWRIGHT_CACHE_DIR': str(caches / 'ours'), 'TORCHINDUCTOR_CACHE_DIR': str(caches / 'its')
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, '-c', code, *words], env=there, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description='how long a network takes to compile')
    parser.add_argument('network', nargs='?', default='resnet18', choices=zoo.NAMES)
    parser.add_argument('--threads', type=int, default=0)
    parser.add_argument('--peer', action='store_true', help='torch.compile beside it')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        caches, model = Path(scratch), Path(scratch) / 'model.onnx'
        model.write_bytes(zoo.onnx_model(given.network).SerializeToString())
        found = {}
        for what, tune in (('cold', 'model'), ('warm', 'model'), ('measure', 'measure')):
            found[what] = seconds(OURS, [str(model), tune, str(given.threads)], caches)
            print(f'{given.network}, {what}: {found[what]:.2f} s', flush=True)
        if given.peer:
            found['peer'] = seconds(PEER, [given.network, '', str(given.threads)], caches)
            print(f'{given.network}, torch.compile: {found["peer"]:.2f} s')
    if given.json is not None:
        result = {
            'network': given.network, 'threads': given.threads or None, 'seconds': found,
            'versions': versions(),
        }  # fmt: skip
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
