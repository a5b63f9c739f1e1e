"""What every verb writes: text or JSON, warnings, and a progress bar with the time that is left.

Standard output carries the result and nothing else; with `--json -` it carries the JSON alone.
Warnings, errors and progress go to standard error, the last only when that is a terminal.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from tilewright.errors import InputError, MissingError
from tilewright.files import replacing
from tilewright.machine import compiler as build
from tilewright.runtime.measure import Progress
from tilewright.store.records import package_version
from tilewright.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 1


class Output:
    """Where one run of a verb writes. `json_file` is None, '-' or a path."""

    def __init__(self, verb: str, json_file: str | None) -> None:
        self.verb, self.json_file = verb, json_file
        if json_file not in (None, '-'):
            check_writable(Path(str(json_file)))

    def say(self, text: str) -> None:
        """A line of the result, for people; nothing when standard output belongs to the JSON."""
        if self.json_file != '-':
            print(text, flush=True)

    def warn(self, text: str) -> None:
        print(f'warning: {text}', file=sys.stderr, flush=True)

    def write(self, data: dict[str, Any]) -> None:
        """Write the complete result, under a heading that says what made it."""
        if self.json_file is None:
            return
        head = {'format': FORMAT, 'verb': self.verb, 'versions': versions()}
        text = json.dumps(head | data, indent=1, allow_nan=False) + '\n'
        if self.json_file == '-':
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        path = Path(self.json_file)
        try:
            with replacing(path) as made:
                made.write_text(text)
        except OSError as error:
            raise InputError(f'--json {path} cannot be written: {error.strerror}') from None


def check_writable(path: Path, option: str = '--json') -> None:
    """Say that a file cannot be written before the work, not after it."""
    folder = path.parent
    if path.is_dir():
        raise InputError(f'{option} {path} is a directory; name a file in it')
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(
            f'{option} {path} cannot be written: {folder} is not a directory that can be written to'
        )


def versions() -> dict[str, str | None]:
    """What a result depends on. The compiler is None where there is none."""
    try:
        compiler = build.compiler_version(build.compiler())
    except MissingError:
        compiler = None
    return {
        'tilewright': VERSION,
        'package': package_version(),
        'python': platform.python_version(),
        'numpy': numpy.__version__,
        'compiler': compiler,
        'system': f'{platform.system()} {platform.release()} {platform.machine()}',
    }


class Bar:
    """A line on a terminal that says what is being done and how long it will take; else nothing.

    `steps` is the number of layers. What is left is estimated from the layer in hand and from the
    mean time of those that are done.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.done = steps, 0
        self._began = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._name = ''

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            self._bar = _rich_bar()
            self._task = self._bar.add_task('', total=self.steps, left='')
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, name: str) -> None:
        """A layer is taken in hand."""
        self._name = name
        self._show(name, 0.0, None)

    def report(self, progress: Progress) -> None:
        """Progress within a layer, as `optimize` reports it."""
        best = '' if progress.best_ms is None else f', best {progress.best_ms:.3f} ms'
        share = progress.done / max(progress.total, 1)
        self._show(f'{self._name}: {progress.stage}{best}', share, progress.left_s)

    def turn(self, contestant: str, done: int, total: int) -> None:
        """Progress within a comparison."""
        self._show(f'{self._name}: timing {contestant}', done / max(total, 1), None)

    def finish(self) -> None:
        """A layer is done."""
        self.done += 1
        self._show(self._name, 0.0, 0.0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the line away while something is printed."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()

    def _show(self, text: str, share: float, left_s: float | None) -> None:
        if self._bar is None:
            return
        self._bar.update(
            self._task,
            description=text,
            completed=self.done + min(share, 1.0),
            left=left_text(time.monotonic() - self._began, self.done, self.steps, share, left_s),
        )


def left_text(spent_s: float, done: int, steps: int, share: float, left_s: float | None) -> str:
    """'about 40 s left', or '' before there is anything to estimate from.

    `left_s` is the estimate for the layer in hand, if it has one; the others take the mean.
    """
    progress = done + share
    if progress <= 0 and left_s is None:
        return ''
    mean_s = spent_s / progress if progress > 0 else spent_s + (left_s or 0.0)
    rest_s = mean_s * (1 - share) if left_s is None else left_s
    total_s = rest_s + mean_s * max(0, steps - done - 1) if done < steps else 0.0
    return f'about {total_s:.0f} s left' if total_s < 120 else f'about {total_s / 60:.0f} min left'


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn('{task.description}'),
        BarColumn(bar_width=24),
        TextColumn('{task.fields[left]}'),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
