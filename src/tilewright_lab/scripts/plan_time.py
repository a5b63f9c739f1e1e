"""How long it takes to plan convolutions without measuring: lists, and random ones of 1 to 3 axes.

    python -m tilewright_lab.scripts.plan_time [--lists mopt,cnnopt,boda,resnet18] [--random 500] \
        [--seed 1]
                              [--machine NAME] [--gpu NAME] [--every N] [--limit S] [--json FILE]

Random ones are networks of one node, from the passes to the search: wide filters, large strides and
dilations, many groups, odd sizes. `--gpu` plans for a known GPU instead; `--every N` takes each
N-th only. What takes longer than `--limit` seconds of processor time is given up and counts as
that. Nothing is remembered from one to the next, and nothing is compiled. Seconds are of processor
time, since others may use the machine; the ten slowest are shown.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tilewright.cli.output import versions
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.passes import GPU_PASSES
from tilewright.machine.gpu import known_gpu
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.network.compile import prepare
from tilewright.ops.group import Group
from tilewright.ops.suites import expand
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.targets.cpu.choose import Question, core, search
from tilewright.targets.cpu.cost import CpuCost
from tilewright.targets.cpu.kernels import distinct
from tilewright.targets.cpu.site import KEPT
from tilewright.targets.gpu import choose
from tilewright.targets.gpu.cost import GpuCost

LISTS = 'mopt,cnnopt,boda,resnet18'
MOST_WEIGHTS, MOST_PIXELS = 1 << 24, 1 << 25
# axes -> the largest image, filter, stride and dilation along each
SIZES = {1: (16_384, 96, 32, 64), 2: (256, 24, 8, 16), 3: (40, 7, 4, 4)}

Plan = Callable[[Group], object]


class OverError(Exception):
    """The limit is reached."""


def log_uniform(rng: np.random.Generator, least: int, most: int) -> int:
    """A whole number, small ones as likely as large ones."""
    return int(np.exp(rng.uniform(np.log(least), np.log(most + 1))))


def draw(count: int, seed: int) -> Iterator[tuple[str, Graph]]:
    """Random convolutions as networks of one node, with words for them."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        axes = int(rng.integers(1, 4))
        image, filter_, stride, dilation = SIZES[axes]
        taps = [log_uniform(rng, 1, filter_) for _ in range(axes)]
        strides = [log_uniform(rng, 1, stride) for _ in range(axes)]
        dilations = [
            log_uniform(rng, 1, dilation) if rng.random() < 0.3 else 1 for _ in range(axes)
        ]
        sizes = [log_uniform(rng, 1, image) for _ in range(axes)]
        groups = log_uniform(rng, 1, 64) if rng.random() < 0.3 else 1
        c, k = (groups * log_uniform(rng, 1, max(512 // groups, 1)) for _ in range(2))
        if rng.random() < 0.1:
            groups = k = c
        pads = [
            int(rng.integers(0, (t - 1) * d // 2 + 1)) for t, d in zip(taps, dilations, strict=True)
        ]
        spans = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
        fits = all(s + 2 * p >= span for s, p, span in zip(sizes, pads, spans, strict=True))
        weights = (k, c // groups, *taps)
        n = int(rng.choice((1, 1, 1, 2, 7)))
        pixels = n * max(c, k) * int(np.prod(sizes))
        if not fits or np.prod(weights) > MOST_WEIGHTS or pixels > MOST_PIXELS:
            continue
        made += 1
        said = {
            'strides': tuple(strides), 'dilations': tuple(dilations), 'pads': (*pads, *pads),
            'group': groups,
        }  # fmt: skip
        node = Node('Conv', 'conv', ('x', 'w'), ('y',), said)
        graph = Graph(
            'one', (Value('x', (n, c, *sizes)),), (('y', 'y'),), (node,),
            {'w': np.zeros(weights, np.float32)},
        )  # fmt: skip
        shape = 'x'.join(map(str, sizes))
        yield (
            f'n{n} c{c} {shape} k{k} g{groups} taps {taps} stride {strides} dilation {dilations} '
            f'pad {pads}',
            graph,
        )


def timed(work: Callable[[], object], limit: int) -> tuple[float, bool]:
    """(seconds of processor time, whether it ended within the limit)."""

    def over(signum: int, frame: object) -> None:
        raise OverError

    old = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, limit)
    begin = time.process_time()
    try:
        work()
    except OverError:
        return float(limit), False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
    return time.process_time() - begin, True


def planner(machine: Machine, threads: int) -> tuple[Plan, Callable[[Graph], list[Group]]]:
    """What plans a group on a CPU, and what makes groups of a network for it."""

    def plan(group: Group) -> object:
        return search(Question(core(group), machine, threads, KEPT, DEFAULT_LIMIT))

    def groups(graph: Graph) -> list[Group]:
        return list(distinct(prepare(graph, cost=CpuCost(machine, threads))).values())

    return plan, groups


def gpu_planner(name: str) -> tuple[Plan, Callable[[Graph], list[Group]]]:
    """The same for a GPU."""
    machine = known_gpu(name)

    def groups(graph: Graph) -> list[Group]:
        program = prepare(graph, None, None, GpuCost(machine), GPU_PASSES)
        return list(distinct(program).values())

    return lambda group: choose.search(
        core(group, front=True), machine, KEPT, DEFAULT_LIMIT
    ), groups


def plan_all(
    problems: Sequence[tuple[str, Callable[[], list[Group]]]], plan: Plan, limit: int
) -> list[dict]:
    """Every problem with its seconds, in order."""
    rows = []
    for name, groups in problems:
        seconds, ended = timed(lambda groups=groups: [plan(g) for g in groups()], limit)
        rows.append({'problem': name, 'seconds': seconds, 'ended': ended})
        print(f'{seconds:7.2f} {"" if ended else "given up "}{name}', flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--lists', default=LISTS, help="names, or benchdnn:FILE; '' for none")
    parser.add_argument('--random', type=int, default=500)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--machine')
    parser.add_argument('--threads', type=int)
    parser.add_argument('--gpu')
    parser.add_argument('--every', type=int, default=1)
    parser.add_argument('--limit', type=int, default=60)
    parser.add_argument('--json', type=Path)
    given = parser.parse_args()
    host, _ = load_machine(given.machine, measure=False)
    plan, groups_of = (
        gpu_planner(given.gpu) if given.gpu else planner(host, given.threads or host.cores)
    )
    problems: list[tuple[str, Callable[[], list[Group]]]] = []
    if given.lists:
        layers = expand(given.lists)
        problems += [(name, lambda group=group: [group]) for name, group, _ in layers]
    for name, graph in draw(given.random, given.seed):
        problems.append((name, lambda graph=graph: groups_of(graph)))
    rows = plan_all(problems[:: given.every], plan, given.limit)
    slowest = sorted(rows, key=lambda row: -row['seconds'])[:10]
    result = {
        'lists': given.lists, 'random': given.random, 'seed': given.seed, 'every': given.every,
        'machine': given.gpu or host.name, 'problems': len(rows),
        'median_s': float(np.median([row['seconds'] for row in rows])),
        'largest_s': slowest[0]['seconds'], 'slowest': slowest, 'versions': versions(),
        'rows': rows,
    }  # fmt: skip
    for row in slowest:
        print(f'slowest {row["seconds"]:7.2f} {row["problem"]}')
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
