"""Processes that compute beside a comparison, as tenants and other programs do on a shared host.

Goes in: how many. Comes out: a context in which they run, each without end on whatever processor it
gets, at the same priority as the contestants.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It ends with the pipe, so that nobody computes on for a comparison that was killed.
_BUSY = """
import sys, threading
reader = threading.Thread(target=sys.stdin.read, daemon=True)
reader.start()
while reader.is_alive():
    sum(range(100_000))
"""


@contextmanager
def neighbours(count: int) -> Iterator[list[int]]:
    """`count` busy processes, whose numbers it gives, from here to the end of the block."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, '-c', _BUSY]
            running.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
