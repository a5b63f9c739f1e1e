"""A worker for tests of the runner, in a module of its own so that its process starts quickly."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection


def work(pipe: Connection, *_: object) -> None:
    """Dies of graph 1, hangs at graph 2, and says little of the others."""
    while (name := pipe.recv()) is not None:
        pipe.send({'begin': [name, 'cpu', 'all', 'quick']})
        if name.endswith(':1'):
            os.kill(os.getpid(), signal.SIGSEGV)
        if name.endswith(':2'):
            time.sleep(600)
        pipe.send({'done': [name, 'cpu', 'all'], 'unstable': 0, 'finding': None})
        pipe.send({'end': name, 'ops': ['Relu'], 'pairs': [('Relu', 'Add')]})
