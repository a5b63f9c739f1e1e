"""Machine files: those that come with the package, and the user's own.

A schedule can be made for a machine that one does not have. Shipped are the two machines of MOpt's
evaluation (Sec. 10), whose figures are nominal, and those that we measured (`docs/machine.md`).
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from tilewright.errors import InputError
from tilewright.files import read_regular
from tilewright.machine.machine import Machine

_FOLDER = resources.files('tilewright.machine') / 'known'


def known_names() -> tuple[str, ...]:
    """Names of the machines that come with the package."""
    names = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(n.removesuffix('.json') for n in names if n.endswith('.json')))


def known_machine(name: str) -> Machine:
    """A machine by its name, in any case; the error for an unknown one lists those there are."""
    wanted = name.lower()
    if wanted not in known_names():
        raise InputError(
            f'machine {name!r} is not known; choose one of {", ".join(known_names())}, give the '
            f'path of a .json file, or leave the name out for this host'
        )
    return Machine.loads((_FOLDER / f'{wanted}.json').read_text())


def machine_from_file(path: Path) -> Machine:
    """A machine file: a bare machine, or one with its curve beside it, as the cache keeps them."""
    try:
        data = json.loads(read_regular(path))
    except OSError as error:
        raise InputError(f'machine file {path} cannot be read: {error.strerror}') from None
    except ValueError as error:
        raise InputError(f'machine file {path} is not JSON: {error}') from None
    if isinstance(data, dict) and isinstance(data.get('machine'), dict):
        data = data['machine']
    return Machine.from_json(data)
