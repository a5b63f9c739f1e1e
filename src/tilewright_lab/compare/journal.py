"""What a comparison has finished so far, so that one that was interrupted goes on from there.

Goes in: what the run is (a key), and its layers one by one. Comes out: the layers that an earlier
run of the same key finished before it was interrupted. A file of JSON lines in the cache
directory, which is removed when the run is complete: a comparison that ended is measured again when
it is asked for again.

A line that was cut off by a kill is forgotten, and its layer is compared again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.machine import compiler as build


class Journal:
    """The finished layers of one run, by name; `facts` are whatever makes the run what it is."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        self.path: Path = build.cache_dir() / 'bench' / f'{key}.jsonl'
        self.header: dict[str, Any] = {}
        self.layers: dict[str, dict[str, Any]] = {}
        for line in _lines(self.path):
            if 'header' in line:
                self.header = line['header']
            elif isinstance(line.get('layer'), dict) and 'name' in line['layer']:
                self.layers[line['layer']['name']] = line['layer']

    def begin(self, header: Mapping[str, Any]) -> None:
        """Note what is the same for all layers, such as the seed; once for each run."""
        if self.header != dict(header):
            self.header = dict(header)
            self._append({'header': self.header})

    def add(self, layer: dict[str, Any]) -> None:
        """A layer is finished."""
        self.layers[layer['name']] = layer
        self._append({'layer': layer})

    def complete(self) -> None:
        """Nothing is left to do."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _append(self, line: dict[str, Any]) -> None:
        # Without a place to write, a run cannot be resumed, but it can be made.
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open('a') as file:
                file.write('\n' * _is_cut(self.path) + json.dumps(line) + '\n')
                file.flush()
                os.fsync(file.fileno())


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError):
        for text in path.read_text(errors='replace').splitlines():
            with contextlib.suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict):
                    found.append(line)
    return found


def _is_cut(path: Path) -> bool:
    """Whether the file ends in the middle of a line."""
    with path.open('rb') as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b'\n'
