"""Digests of generated sources, to show that a change of the code generators' surroundings is none.

Goes in: nothing but the package. Comes out: JSON of name -> digest of the source, for the C of
MOpt's layers and of every network of the zoo (planned for a known machine, nothing measured), for
the CUDA of the kernels that won on an H200, and for what the model chooses for three networks
there. Compare two versions:

    python -m tilewright_lab.scripts.source_digests --json before.json         (at one commit)
    python -m tilewright_lab.scripts.source_digests --against before.json  (at another; exit code \
        1: some differ)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tilewright import zoo
from tilewright.graph.levels import by_levels
from tilewright.graph.passes import GPU_PASSES
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.generate import generate as generate_gpu
from tilewright.kernels.gpu.language import lower
from tilewright.machine.gpu import known_gpu
from tilewright.machine.measure import load_machine
from tilewright.network.compile import prepare
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.pipeline import optimize
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.cpu.choose import source_of
from tilewright.targets.cpu.cost import CpuCost
from tilewright.targets.cpu.kernels import distinct
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.gpu.assemble import chosen_by_model
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.site import Asked

RESULTS = Path(__file__).parents[3] / 'bench' / 'results'
MACHINE, GPU, THREADS = 'i9-10980xe', 'h200', 2
WINNERS = ('cnnopt', 'cnnopt-batch32', 'cnnopt-batch128')
GPU_NETWORKS = ('resnet18', 'mobilenet_v2', 'squeezenet')


def layers() -> Iterator[tuple[str, str]]:
    for name, group, _ in expand('mopt'):
        plan = optimize(group, MACHINE, measure=False, threads=THREADS)
        for number, candidate in enumerate(plan.candidates):
            yield f'{name}/{number}', plan.source(candidate)


def winners() -> Iterator[tuple[str, str]]:
    for file in WINNERS:
        data = json.loads((RESULTS / 'h200' / f'{file}.json').read_text())
        groups = {g.digest: g for _, g, _ in expand(data['spec'], data['batch'])}
        for layer in data['layers']:
            group, best = groups[layer['digest']], GpuSchedule.from_json(layer['schedule'])
            yield f'{file}/{layer["name"]}', cuda(group, best)


def cuda(group: Group, best: GpuSchedule) -> str:
    return '\n'.join(lower(kernel, CUDA) for kernel in generate_gpu(group, best).kernels)


def networks() -> Iterator[tuple[str, str]]:
    machine, _ = load_machine(MACHINE, measure=False)
    for name in zoo.NAMES:
        program = prepare(zoo.graph(name), cost=CpuCost(machine, THREADS))
        groups = distinct(program)
        for digest, found in CpuSite(machine, THREADS).choose(program, Asked()).items():
            yield f'{name}/{digest}', source_of(groups[digest], found[0].schedule)


def gpu_networks() -> Iterator[tuple[str, str]]:
    machine = known_gpu(GPU)
    for name in GPU_NETWORKS:
        program = by_levels(
            prepare(zoo.graph(name), cost=GpuCost(machine), program_passes=GPU_PASSES)
        )
        groups = distinct(program)
        for digest, found in chosen_by_model(groups, machine, 4, 1e-4).items():
            yield f'{GPU}/{name}/{digest}', cuda(groups[digest], found[0].schedule)


def digests() -> dict[str, str]:
    found = {}
    for part in (layers, winners, networks, gpu_networks):
        for name, source in part():
            found[name] = hashlib.sha256(source.encode()).hexdigest()[:16]
        print(f'{part.__name__}: {len(found)} sources so far', file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description='Digests of generated sources.')
    parser.add_argument('--json', type=Path, help='where to write them')
    parser.add_argument('--against', type=Path, help='a file of another version to compare with')
    words = parser.parse_args()
    found = digests()
    if words.json:
        words.json.write_text(json.dumps(found, indent=1, sort_keys=True) + '\n')
    if not words.against:
        return 0
    before = json.loads(words.against.read_text())
    other = sorted(n for n in before.keys() | found.keys() if before.get(n) != found.get(n))
    print(f'{len(before)} before, {len(found)} now, {len(other)} differ', *other, sep='\n')
    return 1 if other else 0


if __name__ == '__main__':
    sys.exit(main())
