"""Memory of a compiled network: a fresh process that loads and runs it, against ONNX Runtime.

    python -m tilewright_lab.scripts.network_memory [NETWORK] [--threads T] [--tw FILE] [--calls \
        20] [--json FILE]
    python -m tilewright_lab.scripts.network_memory --growth [NETWORK] [--image 64] [--json FILE]

NETWORK is a name of the zoo [resnet50]. The first form compares the resident sizes (VmRSS of
/proc/self/status, MiB, after `--calls` calls, and the peak, VmHWM) of two new processes: one loads
a .tw file and runs it, one loads the same model as ONNX and runs it in ONNX Runtime. It is compiled
first, in this process, unless `--tw` names a file that is there.

`--growth` calls a network 10,000 times, with new results every time, and compares the resident size
after call 100 with that after the last; small images keep this under a minute. Exit code 1 if it
grew by 1 MiB or more, or if the ratio is above 1.1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_RATIO, LIMIT_MIB = 1.1, 1.0
FIRST, LAST = 100, 10_000
READ = """
import json, sys
import numpy as np

def status(word):
    with open('/proc/self/status') as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(word))

def image(shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)
"""
OURS = """
import tilewright as tw
net = tw.load(sys.argv[1], threads=int(sys.argv[2]))
x = image(net.inputs[0].shape)
for _ in range(int(sys.argv[3])):
    net(x)
parts = {'weights': net.weight_bytes, 'values': net.arena_bytes, 'scratch': net.scratch_bytes}
print(json.dumps({
    'rss_mib': status('VmRSS'), 'peak_mib': status('VmHWM'),
    'network_mib': {name: size / 2**20 for name, size in parts.items()},
}))
"""
THEIRS = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])
(given,) = session.get_inputs()
x = image(given.shape)
for _ in range(int(sys.argv[3])):
    session.run(None, {given.name: x})
print(json.dumps({'rss_mib': status('VmRSS'), 'peak_mib': status('VmHWM')}))
"""
GROWTH = """
import tilewright as tw
net = tw.load(sys.argv[1], threads=int(sys.argv[2]))
x, seen = image(net.inputs[0].shape), {}
for number in range(1, int(sys.argv[3]) + 1):
    net(x)
    if number in (100, 1000, int(sys.argv[3])):
        seen[number] = status('VmRSS')
print(json.dumps({'rss_mib': seen}))
"""


def child(program: str, *words: object) -> dict:
    """What a new process says at its end."""
    done = subprocess.run(
        [sys.executable, '-c', READ + program, *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def prepare(given: argparse.Namespace, folder: Path) -> tuple[Path, Path, int]:
    """(the .tw file, the ONNX file, threads); compiled here, so that children only load."""
    import tilewright as tw
    from tilewright import zoo

    model, saved = folder / 'model.onnx', given.tw or folder / 'model.tw'
    made = zoo.onnx_model(given.network, image=given.image)
    model.write_bytes(made.SerializeToString())
    if not saved.exists():
        tw.compile(made, threads=given.threads, save=saved)
    return saved, model, tw.load(saved, threads=given.threads).threads


def main() -> None:
    parser = argparse.ArgumentParser(description='memory of a compiled network')
    parser.add_argument('network', nargs='?')
    parser.add_argument('--growth', action='store_true')
    parser.add_argument('--image', type=int)
    parser.add_argument('--threads', type=int)
    parser.add_argument('--tw', type=Path)
    parser.add_argument('--calls', type=int, default=20)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    given.network = given.network or ('resnet18' if given.growth else 'resnet50')
    given.image = given.image or (64 if given.growth else None)
    with tempfile.TemporaryDirectory() as scratch:
        saved, model, threads = prepare(given, Path(scratch))
        head = {'network': given.network, 'image': given.image, 'threads': threads}
        if given.growth:
            result = child(GROWTH, saved, threads, LAST)
            sizes = result['rss_mib']
            grown = sizes[str(LAST)] - sizes[str(FIRST)]
            failed = grown >= LIMIT_MIB
            result |= {'calls': [FIRST, LAST], 'growth_mib': grown, 'limit_mib': LIMIT_MIB}
            print(
                f'{given.network}: {sizes[str(FIRST)]:.2f} MiB after call {FIRST}, '
                f'{sizes[str(LAST)]:.2f} after call {LAST}: grown by {grown:.2f} MiB'
            )
        else:
            ours = child(OURS, saved, threads, given.calls)
            theirs = child(THEIRS, model, threads, given.calls)
            ratio = ours['rss_mib'] / theirs['rss_mib']
            failed = ratio > LIMIT_RATIO
            result = {
                'ours': ours, 'onnxruntime': theirs, 'ratio': ratio, 'limit': LIMIT_RATIO,
                'model_mib': model.stat().st_size / 2**20,
            }  # fmt: skip
            print(
                f'{given.network}: ours {ours["rss_mib"]:.0f} MiB (peak {ours["peak_mib"]:.0f}), '
                f'ONNX Runtime {theirs["rss_mib"]:.0f} MiB (peak {theirs["peak_mib"]:.0f}), ratio '
                f'{ratio:.2f}'
            )
    if given.json is not None:
        from tilewright.cli.output import versions

        given.json.write_text(json.dumps(head | result | {'versions': versions()}, indent=1) + '\n')
    sys.exit(int(failed))


if __name__ == '__main__':
    main()
