"""Busy processes beside a comparison: they compute, and none is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.cli.output import Output
from tilewright.errors import InputError
from tilewright_lab.cli.bench import BenchOptions, run
from tilewright_lab.peers.neighbours import neighbours


def children() -> dict[int, str]:
    """The state of each process that this one has begun, by number."""
    found = {}
    for number in Path(f'/proc/self/task/{os.getpid()}/children').read_text().split():
        found[int(number)] = Path(f'/proc/{number}/stat').read_text().rpartition(')')[2].split()[0]
    return found


pytestmark = pytest.mark.skipif(
    not Path(f'/proc/self/task/{os.getpid()}/children').exists(),
    reason='this kernel does not list the children of a process (CONFIG_PROC_CHILDREN)',
)


@pytest.mark.parametrize('count', [0, 1, 3])
def test_so_many_processes_run_until_the_end_of_the_block(count: int) -> None:
    before = children()
    with neighbours(count):
        begun = children().keys() - before.keys()
        assert len(begun) == count
    assert not children().keys() & begun


def test_they_end_with_a_block_that_fails() -> None:
    before = children()
    with pytest.raises(ZeroDivisionError), neighbours(2):
        raise ZeroDivisionError
    assert children().keys() <= before.keys()


def test_they_end_with_a_comparison_that_is_killed() -> None:
    text = (
        'import os, signal, sys\n'
        'from tilewright_lab.peers.neighbours import neighbours\n'
        'with neighbours(1):\n'
        '    print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)\n'
        '    os.kill(os.getpid(), signal.SIGKILL)\n'
    )
    done = subprocess.run([sys.executable, '-c', text], capture_output=True, text=True, check=False)
    (number,) = map(int, done.stdout.split())
    for _ in range(2000):  # the pipe that it reads is closed; its interpreter may still begin
        state = Path(f'/proc/{number}/stat')
        if not state.exists() or state.read_text().rpartition(')')[2].split()[0] == 'Z':
            return
        subprocess.run(['sleep', '0.01'], check=True)
    pytest.fail(f'process {number} computes on')


def test_layers_have_none() -> None:
    options = BenchOptions('mopt/R2', busy=1)
    with pytest.raises(InputError, match='--busy 1 is for networks'):
        run(options, Output('bench', None), lambda *_: {}, layers=True)
