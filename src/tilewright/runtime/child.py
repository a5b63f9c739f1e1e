"""This end of a process that runs a function of this package and talks through its pipes.

Goes in: code that the interpreter is given. Comes out: the process, which is ended by `end` and
notices at the end of its standard input that nobody is there any more.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class Child:
    """One process; it finds this package wherever it is started."""

    def __init__(
        self, code: str, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))]
        self.process = subprocess.Popen(
            [sys.executable, '-P', '-c', code, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {}), 'PYTHONPATH': os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )

    def end(self) -> None:
        """End it, whatever it does; it may be dead already."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not sent any more
                    stream.close()
