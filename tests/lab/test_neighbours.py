"""Busy processes beside a comparison: they compute, and none is left."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.cli.output import Output
from tilewright.errors import InputError
from tilewright_lab.cli.bench import BenchOptions, run
from tilewright_lab.peers.neighbours import neighbours


def fields(number: int) -> list[str]:
    """What Linux says of a process behind its name, its state first; nothing where it is gone."""
    try:
        return Path(f'/proc/{number}/stat').read_text().rpartition(')')[2].split()
    except FileNotFoundError:
        return []


def ends(number: int) -> bool:
    return not (found := fields(number)) or found[0] == 'Z'


def soon(what: Callable[[], bool]) -> bool:
    """Whether it holds within half a minute."""
    for _ in range(3000):
        if what():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize('count', [0, 1, 3])
def test_so_many_processes_compute_until_the_end_of_the_block(count: int) -> None:
    with neighbours(count) as numbers:
        assert len(numbers) == count
        for number in numbers:  # ticks of a processor that it has used
            assert soon(lambda number=number: int(fields(number)[11]) > 20)
    assert all(ends(number) for number in numbers)


def test_they_end_with_a_block_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), neighbours(2) as numbers:
        raise ZeroDivisionError
    assert all(ends(number) for number in numbers)


def test_they_end_with_a_comparison_that_is_killed() -> None:
    text = (
        'import os, signal\n'
        'from tilewright_lab.peers.neighbours import neighbours\n'
        'with neighbours(1) as numbers:\n'
        '    print(*numbers, flush=True)\n'
        '    os.kill(os.getpid(), signal.SIGKILL)\n'
    )
    done = subprocess.run([sys.executable, '-c', text], capture_output=True, text=True, check=False)
    (number,) = map(int, done.stdout.split())
    assert soon(lambda: ends(number))


def test_layers_have_none() -> None:
    options = BenchOptions('mopt/R2', busy=1)
    with pytest.raises(InputError, match='--busy 1 is for networks'):
        run(options, Output('bench', None), lambda *_: {}, layers=True)
