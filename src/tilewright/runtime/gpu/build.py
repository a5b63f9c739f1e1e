"""Machine code of a GPU module's kernels in files, as one process hands it to another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.gpu.device import Resources


@dataclass(frozen=True, slots=True)
class Built:
    """Files of a module's kernels, (path, registers, spilled bytes) each; or an error."""

    files: tuple[tuple[str, int | None, int | None], ...] = ()
    error: str = ''

    def to_json(self) -> list:
        return [list(file) for file in self.files]


def read(file: tuple[str, int | None, int | None]) -> tuple[bytes, Resources]:
    """(machine code, resources) of one file of a `Built`."""
    path, registers, spilled = file
    return Path(path).read_bytes(), Resources(registers, spilled)
