"""Several networks, several threads, several processes: what docs/networks.md promises of them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import graphs
import numpy as np
import pytest

from tilewright.graph.concat import concat
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.schedule.choice import Choice
from tilewright.store import network_file


@pytest.fixture(scope='module')
def host() -> Machine:
    return load_machine(measure=False)[0]


def passed(made):
    return concat(fuse(graphs.lowered(made), lambda _: 0.0))


def test_four_different_networks_at_once_two_threads_on_each():
    """Networks share the pool: whoever finds it taken does all of its parts alone."""
    programs = [
        passed(graphs.convolutions()), passed(graphs.branches()), passed(graphs.dense_block()),
        passed(graphs.branches(batch=2)),
    ]  # fmt: skip
    networks = [graphs.quick(program, threads=2) for program in programs]
    given = [graphs.inputs_of(program) for program in programs]
    wants = [evaluate(program, x) for program, x in zip(programs, given, strict=True)]
    wrong: list[int] = []

    def work(number: int) -> None:
        out = {v.name: np.empty(v.shape, np.float32) for v in networks[number].outputs}
        for turn in range(100):
            got = networks[number].run(given[number], out if turn % 2 else None)
            if not all(np.allclose(got[n], a, 1e-4, 1e-4) for n, a in wants[number].items()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n % 4,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKS = """
import os, sys, warnings
warnings.simplefilter('ignore')
import numpy as np
import tilewright as tw

net = tw.load(sys.argv[1])
x = np.load(sys.argv[2])['x']
want = np.load(sys.argv[2])['y']

def right():
    return np.allclose(net(x), want, 1e-4, 1e-4)

def child(depth):
    pid = os.fork()
    if pid == 0:
        good = right() and right() and (depth == 0 or child(depth - 1))
        os._exit(0 if good else 1)
    return os.waitpid(pid, 0)[1] == 0

before = child(0)      # before the first call: no thread was started yet
assert right()
after = child(1)       # afterwards, and a child of the child
again = right()
print(before, after, again)
"""


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork on this system')
def test_a_loaded_network_is_forked(tmp_path, host):
    """A .tw file in a process of its own: children before and after its first call."""
    program = passed(graphs.branches())
    isa, threads = host_isas()[0], min(2, host.cores)
    choices = {
        task.group.digest: Choice(general_schedule(task.group, isa, threads, 1), 1e-6, 1e-9)
        for task in program.tasks
    }
    saved = network_file.Saved(program, choices, host, threads, 1e-4)
    network_file.write(tmp_path / 'net.tw', saved)
    x = graphs.inputs_of(program)['x']
    np.savez(tmp_path / 'data.npz', x=x, y=evaluate(program, {'x': x})['out'])
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', FORKS, tmp_path / 'net.tw', tmp_path / 'data.npz'],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ['True', 'True', 'True'], done.stderr
