"""The runner: graphs over worker processes, a tally of what they contain, failures, progress.

Goes in: the command line. Comes out: lines on the terminal, a JSON, models of failures in a folder.
Workers live long. One that dies (a segmentation fault) or hangs is itself a finding with the
graph's number, and another takes its place.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# Compilers of GPU kernels are slow: not every graph.
TARGETS = 'numpy,numpy-gpu,cpu,host/4,opencl/16'
LIMIT_S = 300.0  # of one run on one target, its shrinking included
START_S = 120.0
SHRINK_S = 40.0


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m tests.fuzz', description=__doc__)
    parser.add_argument('--graphs', type=int, default=1000, help='how many')
    parser.add_argument('--first', type=int, default=0, help='the number of the first one')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--seconds', type=float, default=0, help='end after this time (0: never)')
    parser.add_argument('--targets', default=TARGETS, help='NAME, or NAME/N: on every Nth graph')
    parser.add_argument('--workers', type=int, default=os.cpu_count() or 1)
    parser.add_argument('--pairs', action='store_true', help='every pair of operators alone')
    parser.add_argument('--types', action='store_true', help='every operator on every type alone')
    parser.add_argument(
        '--quantised', type=int, default=0, metavar='N',
        help='N chains of operators in eight bits instead, on the CPU, compared bit for bit',
    )  # fmt: skip
    parser.add_argument('--json', type=Path, help='write counts and findings')
    parser.add_argument('--finds', type=Path, default=Path('build/fuzz'), help='models of failures')
    parser.add_argument('--shrink', type=float, default=SHRINK_S, help='seconds for each failure')
    parser.add_argument(
        '--replay',
        help='SEED:NUMBER, pair:SEED:OP:OP, type:SEED:OP:DTYPE, quantised:SEED:NUMBER '
        'or a saved .onnx',
    )  # fmt: skip
    parser.add_argument('--passes', default='', help='all, none, "all but NAME", or names')
    parser.add_argument('--style', default='', choices=('', 'quick', 'searched'))
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    if given.replay:
        return replay(given)
    return Runner(given).run()


def graph_of(name: str) -> tuple[Any, int]:
    """The net of 'SEED:NUMBER', 'pair:SEED:OP:OP' or 'type:SEED:OP:DTYPE', and its number."""
    from . import generate

    if name.startswith(('pair:', 'type:')):
        kind, seed, first, second = name.split(':')
        if kind == 'pair':
            at = generate.all_pairs().index((first, second))
            return generate.pair(int(seed), first, second), at
        at = generate.all_types().index((first, second))
        return generate.single(int(seed), first, second), at
    seed, number = name.split(':')
    return generate.drawn(int(seed), int(number)), int(number)


def replay(given: argparse.Namespace) -> int:
    from . import chains, check, graphs, shrink, targets

    warnings.simplefilter('ignore')
    if given.replay.startswith(chains.PREFIX):
        return chains.replay(given.replay, given.finds, given.shrink)
    if given.replay.endswith('.onnx'):
        net, number = shrink.rebuilt(*graphs.load(Path(given.replay))), 0
    else:
        net, number = graph_of(given.replay)
    print(net)
    failed = False
    for target in (word.partition('/')[0] for word in given.targets.split(',')):
        passes = [targets.passes_named(given.passes)] if given.passes else None
        for one in passes or check.variants_of(number, target):
            style = given.style or check.style_of(number, target)
            kind, said, unstable = check.tried(net, target, one, style)
            failed |= bool(kind)
            text = targets.passes_text(one)
            print(f'{target}, passes {text}, {style}: {kind or "right"} {said}', end='')
            print(f' ({unstable} elements unstable)' if unstable else '')
            if kind and given.shrink:
                found = check.examined(
                    net, given.replay, target, one, style, given.finds, given.shrink
                )
                print(found.shown, found.message, f'passes {found.passes}', found.file, sep='\n')
    return int(failed)


def work(pipe: Connection, targets: list[tuple[str, int]], finds: str, shrink_s: float) -> None:
    """A worker: graphs by name in, what happened out."""
    from . import chains, check

    warnings.simplefilter('ignore')
    while True:
        name = pipe.recv()
        if name is None:
            return
        begin = time.perf_counter()
        pipe.send({'begin': [name, 'generator', '', '']})
        try:
            if name.startswith(chains.PREFIX):
                net = chains.check_all(name, pipe.send, Path(finds), shrink_s)
                pipe.send({
                    'end': name, 'ops': [node.op for node in net.nodes], 'pairs': sorted(net.pairs)
                })  # fmt: skip
                continue
            net, number = graph_of(name)
        except Exception as error:
            pipe.send({'end': name, 'error': f'{type(error).__name__}: {error}'})
            continue
        if net is None:
            pipe.send({'end': name, 'none': True})
            continue
        drawn = time.perf_counter() - begin
        wanted = [target for target, every in targets if number % every == 0]
        check.check(net, name, number, wanted, pipe.send, Path(finds), shrink_s)
        pipe.send({
            'end': name, 'ops': [node.op for node in net.nodes], 'pairs': sorted(net.pairs),
            'seconds': time.perf_counter() - begin, 'drawn': drawn,
        })  # fmt: skip


def _is_there(target: str) -> bool:
    """Whether this host has the device of a target; says so where not."""
    from tilewright.errors import MissingError
    from tilewright.runtime.gpu.session import open_device

    if target in ('host', 'opencl', 'cuda'):
        try:
            open_device(target)
        except MissingError as error:
            print(f'without {target}: {error}')
            return False
    return True


def _again(finding: dict) -> str:
    """The line that runs a failure again; a chain's number says how it is compiled as well."""
    if finding['graph'].startswith('quantised:'):
        return f'python -m tests.fuzz --replay {finding["graph"]}'
    return (
        f'python -m tests.fuzz --replay {finding["file"] or finding["graph"]} '
        f'--targets {finding["target"]} --passes "{finding["passes"]}" --style "{finding["style"]}"'
    )


class Runner:
    """The parent. `work` is what a worker does, `limit_s` how long it may be silent."""

    def __init__(
        self,
        given: argparse.Namespace,
        work: Callable[..., None] = work,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.given, self.work, self.limit_s = given, work, limit_s
        self.targets = [
            (name, int(every or 1))
            for name, _, every in (word.partition('/') for word in given.targets.split(','))
            if _is_there(name)
        ]
        self.ops: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.runs: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.schemas: Counter[str] = Counter()  # of kernels of chains
        self.findings: list[dict] = []
        self.refused: list[str] = []
        self.left: list[str] = []
        self.unstable = self.graphs = 0
        self.begin = time.monotonic()
        self.context = multiprocessing.get_context('spawn')

    def names(self) -> list[str]:
        given = self.given
        if given.quantised:
            numbers = range(given.first, given.first + given.quantised)
            return [f'quantised:{given.seed}:{n}' for n in numbers]
        if given.pairs or given.types:
            from .generate import all_pairs, all_types

            chosen = (all_pairs() if given.pairs else all_types())[given.first :]
            kind = 'pair' if given.pairs else 'type'
            return [f'{kind}:{given.seed}:{a}:{b}' for a, b in chosen][: given.graphs or None]
        return [f'{given.seed}:{n}' for n in range(given.first, given.first + given.graphs)]

    def run(self) -> int:
        left = self.left = self.names()[::-1]
        total, shown = len(left), 0.0
        workers: dict[Connection, dict[str, Any]] = {}
        try:
            while left or workers:
                while left and len(workers) < self.given.workers and not self.late():
                    pipe, worker = self.start()
                    workers[pipe] = worker
                    self.give(pipe, worker, left)
                if not workers:
                    break
                for pipe in wait(list(workers), timeout=1.0):
                    assert isinstance(pipe, Connection)
                    worker = workers[pipe]
                    try:
                        said = pipe.recv()
                    except (EOFError, OSError):
                        self.died(worker, 'crash')
                        del workers[pipe]
                        continue
                    if self.note(worker, said) and not self.give(pipe, worker, left):
                        pipe.send(None)
                        worker['process'].join(10)
                        del workers[pipe]
                for pipe, worker in list(workers.items()):
                    # Until it says something it imports, which takes as long as it takes.
                    limit = self.limit_s if worker['at'] else START_S
                    if time.monotonic() - worker['since'] > limit:
                        worker['process'].kill()
                        self.died(worker, 'hang')
                        del workers[pipe]
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    self.progress(total)
        except KeyboardInterrupt:
            pass  # what was found is told, and written
        finally:
            for worker in workers.values():
                worker['process'].kill()
        return self.end()

    def late(self) -> bool:
        return 0 < self.given.seconds < time.monotonic() - self.begin

    def start(self) -> tuple[Connection, dict[str, Any]]:
        here, there = self.context.Pipe()
        process = self.context.Process(
            target=self.work, args=(there, self.targets, str(self.given.finds), self.given.shrink),
            daemon=True,
        )  # fmt: skip
        process.start()
        there.close()
        return here, {'process': process, 'at': None, 'since': time.monotonic()}

    def give(self, pipe: Connection, worker: dict[str, Any], left: list[str]) -> bool:
        if not left or self.late():
            return False
        worker['since'] = time.monotonic()
        pipe.send(left.pop())
        return True

    def note(self, worker: dict[str, Any], said: dict) -> bool:
        """Count what a worker says; whether it wants another graph."""
        if 'begin' in said:
            worker['at'], worker['since'] = said['begin'], time.monotonic()
        elif 'done' in said:
            _, target, passes = said['done']
            self.runs[target] += 1
            self.passes[passes] += 1
            self.schemas.update(said.get('schemas', {}))
            self.unstable += said['unstable'] > 0
            if said['finding']:
                self.found(said['finding'])
        elif 'end' in said:
            if 'error' in said:
                self.found({
                    'graph': said['end'], 'target': 'generator', 'passes': '', 'style': '',
                    'kind': 'error', 'message': said['error'], 'sign': said['error'][:100],
                    'nodes': 0, 'shown': '', 'file': '',
                })  # fmt: skip
            elif 'none' in said:
                self.refused.append(said['end'].split(':', 2)[2])
            else:
                self.graphs += 1
                self.ops.update(set(said['ops']))
                self.pairs.update(map(tuple, said['pairs']))
            return True
        return False

    def died(self, worker: dict[str, Any], kind: str) -> None:
        worker['process'].join(10)
        graph, target, passes, style = worker['at'] or ('?', '?', '', '')
        code = worker['process'].exitcode
        message = f'exit code {code}' if kind == 'crash' else 'longer than the time limit'
        self.found({
            'graph': graph, 'target': target, 'passes': passes, 'style': style, 'kind': kind,
            'message': message, 'sign': f'{target}: {kind}, {message}', 'nodes': 0, 'shown': '',
            'file': '',
        })  # fmt: skip

    def found(self, finding: dict) -> None:
        first = not any(f['sign'] == finding['sign'] for f in self.findings)
        self.findings.append(finding)
        if first:
            print(
                f'--- {finding["kind"]} on {finding["target"]}, passes {finding["passes"]}, '
                f'{finding["style"]}, graph {finding["graph"]}: {finding["message"]}'
            )
            print(finding['shown'])
            print(_again(finding), flush=True)

    def progress(self, total: int) -> None:
        spent = time.monotonic() - self.begin
        done = self.graphs + len(self.refused)
        rest = spent / done * (total - done) if done else 0
        print(
            f'[{spent:.0f} s] {done} of {total} graphs, {sum(self.runs.values())} runs, '
            f'{len(self.pairs)} pairs, {len(self.findings)} failures of '
            f'{len({f["sign"] for f in self.findings})} kinds, about {rest:.0f} s left',
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def end(self) -> int:
        spent = time.monotonic() - self.begin
        kinds = Counter(f['sign'] for f in self.findings)
        print(
            f'{self.graphs} graphs, {sum(self.runs.values())} runs in {spent:.0f} s '
            f'({", ".join(f"{t} {n}" for t, n in self.runs.items())}), {len(self.ops)} operators, '
            f'{len(self.pairs)} pairs of operators; {self.unstable} runs with elements that were '
            f'not judged; {len(self.findings)} failures of {len(kinds)} kinds'
        )
        if self.schemas:
            shown = ', '.join(f'{name} {count}' for name, count in self.schemas.most_common())
            print(f'kernels by schema: {shown}')
        for sign, count in kinds.most_common():
            print(f'{count:6} {sign}')
        if self.left:
            first = self.given.first + len(self.names()) - len(self.left)
            print(f'ended before the last graph: --first {first} goes on')
        if self.given.json:
            text = json.dumps(self.to_json(spent), indent=1)
            self.given.json.parent.mkdir(parents=True, exist_ok=True)
            self.given.json.write_text(f'{text}\n')
        return int(bool(self.findings))

    def to_json(self, spent: float) -> dict:
        from . import oracle

        by_producer: dict[str, dict[str, int]] = {}
        for (producer, consumer), count in sorted(self.pairs.items()):
            by_producer.setdefault(producer, {})[consumer] = count
        return {
            'seed': self.given.seed, 'first': self.given.first, 'graphs': self.graphs,
            'seconds': round(spent, 1), 'workers': self.given.workers, 'runs': dict(self.runs),
            'oracle': oracle.versions(), 'passes': dict(self.passes.most_common()),
            'unstable_runs': self.unstable, 'findings': self.findings,
            'schemas': dict(self.schemas.most_common()),
            'operators': dict(self.ops.most_common()), 'pairs': len(self.pairs),
            'pairs_without_a_graph': len(self.refused),
            # A line for each producer, since there are thousands.
            'consumers': {
                producer: ' '.join(f'{consumer}:{count}' for consumer, count in found.items())
                for producer, found in by_producer.items()
            },
            'without_a_graph': ' '.join(sorted(self.refused)),
        }  # fmt: skip
