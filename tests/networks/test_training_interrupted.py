"""A run that is interrupted goes on from its last checkpoint with the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.graph.graph import Graph, Node, Value

STEPS, UNTIL = 12, 3  # each step waits for a line, so that a run does not end before its signal
RUN = """
import signal
import sys
from pathlib import Path
from test_training_interrupted import steps

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
for number, loss in steps(Path(sys.argv[1])):
    print(number, loss, flush=True)
    if not sys.stdin.readline():
        break
"""


def network() -> Graph:
    """Two layers with dropout between them, without PyTorch: it takes seconds to import."""
    draw = np.random.default_rng(0)
    constants = {
        'first': draw.standard_normal((6, 16)).astype(np.float32),
        'second': draw.standard_normal((16, 3)).astype(np.float32),
        'ratio': np.float32(0.3),
    }
    nodes = (
        Node('MatMul', 'one', ('x', 'first'), ('a',)),
        Node('Dropout', 'drop', ('a', 'ratio'), ('b',)),
        Node('Relu', 'cut', ('b',), ('c',)),
        Node('MatMul', 'two', ('c', 'second'), ('y',)),
    )
    return Graph('net', (Value('x', (8, 6)),), (('y', 'y'),), nodes, constants)


def steps(path: Path) -> Iterator[tuple[str, str]]:
    """Steps of a training run behind those of its last checkpoint, and the loss of each."""
    batch = np.zeros((8, 6), np.float32), np.zeros(8, np.int64)
    step = tw.compile_training(network(), 'cross_entropy', tw.Adam(0.01), batch, threads=1)
    if path.exists():
        step.load(path)
    while step.steps < STEPS:
        draw = np.random.default_rng(step.steps)
        given = draw.standard_normal((8, 6)).astype(np.float32), draw.integers(0, 3, 8)
        loss = step(*given)
        yield str(step.steps), loss.hex()  # what is said and not yet saved is computed again
        step.save(path)


def started(path: Path) -> subprocess.Popen[str]:
    """A run in a process of its own that takes `UNTIL` steps and one more for each line given."""
    run = subprocess.Popen(
        [sys.executable, '-c', RUN, str(path)], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, 'PYTHONPATH': str(Path(__file__).parent)},
    )  # fmt: skip
    assert run.stdin is not None
    run.stdin.write('\n' * UNTIL)
    run.stdin.flush()
    return run


def lines(process: subprocess.Popen[str]) -> dict[str, str]:
    """step -> its loss, of what a run still says."""
    assert process.stdout is not None
    return dict(line.split() for line in process.stdout if line.endswith('\n') and ' ' in line)


def test_an_interrupted_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    want = dict(steps(tmp_path / 'whole.npz'))
    assert list(want) == [str(n + 1) for n in range(STEPS)]
    found: dict[str, str] = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        with started(tmp_path / 'parts.npz') as run:
            assert run.stdout is not None
            for _ in range(UNTIL):
                step, loss = run.stdout.readline().split()
                found[step] = loss
            run.send_signal(number)
            found |= lines(run)
        assert run.returncode != 0
    assert len(found) < STEPS
    assert want == found | dict(steps(tmp_path / 'parts.npz'))
