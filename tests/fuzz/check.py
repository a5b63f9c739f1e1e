"""One graph on its targets: what is run with which passes, what failed, and how small it became.

Goes in: a graph's number, targets. Comes out: `Finding`s. A number decides everything: every other
graph is run with all passes, the others take turns with each pass alone, all but each, and none.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from . import shrink, targets
from .graphs import Net, save
from .judge import judge

# Milliseconds each: more variants of the passes for every graph.
MANY = {'numpy': 3, 'numpy-gpu': 2}
SEARCHED_EVERY = 12


@dataclass(frozen=True)
class Finding:
    """A failure.

    kind     'wrong', 'error' (an exception), 'crash' or 'hang' (of the worker)
    message  what the judge or the exception says
    sign     what findings are counted by
    """

    graph: str
    target: str
    passes: str
    style: str
    kind: str
    message: str
    sign: str = ''
    nodes: int = 0
    shown: str = ''
    file: str = ''

    def to_json(self) -> dict:
        return asdict(self)


def variants_of(number: int, target: str) -> list[targets.Passes]:
    """The passes that a graph is run with on a target."""
    count = MANY.get(target, 1)
    others = targets.VARIANTS[1:]
    if count > 1:
        turn = number * (count - 1)  # as many as a graph has: all of them come, however many
        return [None, *(others[(turn + i) % len(others)] for i in range(count - 1))]
    return [None] if number % 2 == 0 else [others[number // 2 % len(others)]]


def style_of(number: int, target: str) -> str:
    """How kernels are chosen; searching for the CPU needs CasADi, which need not be there."""
    if number % SEARCHED_EVERY or (target == 'cpu' and find_spec('casadi') is None):
        return 'quick'
    return 'searched'


def tried(net: Net, target: str, passes: targets.Passes, style: str) -> tuple[str, str, int]:
    """('' or kind of failure, message, elements that could not be judged)."""
    try:
        verdict = judge(net, targets.run(net, target, passes, style))
    except Exception as error:
        return 'error', f'{type(error).__name__}: {error}', 0
    return ('wrong' if verdict.message else ''), verdict.message, verdict.unstable


def examined(
    net: Net,
    graph: str,
    target: str,
    passes: targets.Passes,
    style: str,
    folder: Path | None,
    seconds: float,
) -> Finding:
    """[a net that fails] -> [Finding], made small and saved."""
    kind, message, _ = tried(net, target, passes, style)
    first, finite = _bare(message), _finite(net)

    def fails(candidate: Net) -> bool:
        if finite and not _finite(candidate):
            return False  # another failure than the one that was found
        found, said, _ = tried(candidate, target, passes, style)
        return found == kind and (kind == 'wrong' or _bare(said) == first)

    small = shrink.shrunk(net, fails, seconds) if seconds > 0 else net
    passes = _fewest(small, target, passes, style, kind) if seconds > 0 else passes
    message = tried(small, target, passes, style)[1] or message
    sign = _sign(small, target, kind, message)
    file = ''
    if folder is not None:
        path = folder / f'{re.sub("[^A-Za-z0-9]+", "-", f"{target}-{graph}")}.onnx'
        save(small, path)
        file = str(path)
    return Finding(
        graph, target, targets.passes_text(passes), style, kind, message, sign, len(small.nodes),
        str(small), file,
    )  # fmt: skip


def _fewest(net: Net, target: str, passes: targets.Passes, style: str, kind: str) -> targets.Passes:
    """The fewest passes that it takes: none, one, or what was asked."""
    for fewer in ((), *((name,) for name in targets.PASSES)):
        if passes is not None and not set(fewer) <= set(passes):
            continue
        if tried(net, target, fewer, style)[0] == kind:
            return fewer
    return passes


def _finite(net: Net) -> bool:
    return all(np.isfinite(a).all() for a in net.values.values() if a.dtype.kind == 'f')


def _bare(message: str) -> str:
    """A message without numbers and names of values."""
    text = re.sub(r"'[^']*'|\[[^\]]*\]|\([^)]*\)", '_', message)
    return re.sub(r'[a-z]?\d[\w.]*', '#', text)[:160]


def _sign(net: Net, target: str, kind: str, message: str) -> str:
    if kind == 'error':
        return f'{target}: {_bare(message)}'
    return f'{target}: {kind} {" ".join(node.op for node in net.nodes)}'


def check(
    net: Net,
    graph: str,
    number: int,
    wanted: Sequence[str],
    say: Callable[[dict], object],
    folder: Path | None,
    seconds: float,
) -> None:
    """Run a net on its targets; `say` is told before each run and after each."""
    for target in wanted:
        style = style_of(number, target)
        for passes in variants_of(number, target):
            text = targets.passes_text(passes)
            say({'begin': [graph, target, text, style]})
            try:
                kind, _, unstable = tried(net, target, passes, style)
            except BaseException:
                traceback.print_exc()
                raise
            finding = None
            if kind:
                finding = examined(net, graph, target, passes, style, folder, seconds).to_json()
            say({'done': [graph, target, text], 'unstable': unstable, 'finding': finding})
