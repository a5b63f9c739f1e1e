"""`.tw` files: a program, the schedules of its groups and its weights, loaded without a search.

    bytes    0  magic            8
             8  length of header 8, little endian
            16  SHA-256 of it   32
            48  header          JSON
       aligned  arrays          raw, little endian, each at a multiple of 64 bytes

Goes in: a program and the choices for its groups. Comes out: a file; from it, both again. Loading
runs nothing: there is no code in the file, neither binary nor source, and what is generated from it
is checked first (network_checks.py). Every byte is covered by a checksum. Weights are read, not
mapped: a file that is cut short while it is in use would end the process, and one that is changed
would change the network. They take their size in memory until kernels have packed them.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tilewright.errors import InputError, ModelError, TilewrightError
from tilewright.files import open_regular, replacing
from tilewright.graph.graph import DTYPES, Value
from tilewright.graph.program import Program
from tilewright.graph.program_json import program_from_json, program_to_json, values_of
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.ops.tiles import ALGORITHMS
from tilewright.runtime.cpu.calls import aligned_empty
from tilewright.runtime.verify import TOLERANCE
from tilewright.schedule.choice import Choice
from tilewright.store.network_checks import (
    MOST_THREADS,
    PLAIN,
    check_choices,
    check_group,
    check_plain,
    check_program,
    check_whole,
)
from tilewright.version import VERSION

FORMAT = 1
MAGIC = b'\x93TWNET\r\n'
ALIGNMENT = 64
MOST_HEADER_BYTES = 256 << 20
_HEAD_BYTES = len(MAGIC) + 8 + 32
Made = TypeVar('Made')


@dataclass(frozen=True)
class Saved:
    """What a file holds: a program, the choice for each of its groups, and what they were for.

    `threads` are those of a CPU, 0 for a GPU. `mix` is what chose its types (precision/mix.py).
    """

    program: Program
    choices: Mapping[str, Choice]
    machine: Any  # a `Machine` or a `GpuMachine`
    threads: int
    max_rel_err: float
    algorithm: str = 'auto'
    target: str = 'cpu'
    mix: Mapping[str, Any] | None = None


def write(path: str | os.PathLike[str], saved: Saved) -> None:
    """Write a file; it appears under its name only when it is complete."""
    choices = {digest: choice.to_json() for digest, choice in saved.choices.items()}
    where = {'threads': saved.threads} if saved.target == 'cpu' else {'target': saved.target}
    about = {
        'machine': saved.machine.to_json(), **where,
        # What was asked for, for the day that schedules are chosen again.
        'max_rel_err': saved.max_rel_err, 'algorithm': saved.algorithm,
        **({} if saved.mix is None else {'mix': dict(saved.mix)}),
    }  # fmt: skip
    _write(path, saved.program, choices, about)


def algorithm_of(where: Path, header: dict) -> str:
    found = header.get('algorithm', 'auto')
    if found not in ALGORITHMS:
        raise RefusedError(
            f'{where} asks for algorithm {found!r}, which is none of {", ".join(ALGORITHMS)}; '
            f'compile the model again'
        )
    return found


def _write(
    path: str | os.PathLike[str],
    program: Program,
    choices: Mapping[str, Mapping[str, Any]],
    about: Mapping[str, Any],
) -> None:
    groups = {task.group.digest: _labelled(task.group) for task in program.tasks}
    header = {
        **about,
        'groups': {digest: group.to_json() for digest, group in groups.items()},
        'choices': {digest: dict(choices[digest]) for digest in groups},
        'program': program_to_json(program, lambda task: task.group.digest),
    }
    write_file(
        path,
        header,
        {
            name: np.ascontiguousarray(array, stored_type(program.values[name].dtype))
            for name, array in program.constants.items()
        },
    )


def write_file(
    path: str | os.PathLike[str], about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """A file of this format: a header and arrays, which it lists by their names."""
    listed, offset, total = [], 0, hashlib.sha256()
    for name, array in arrays.items():
        listed.append({'name': name, 'offset': offset})
        for piece in _pieces(array):
            total.update(piece)
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps(
        {
            'format': FORMAT,
            'version': VERSION,
            **about,
            'constants': listed,
            'data_bytes': offset,
            'data_sha256': total.hexdigest(),
        },
        sort_keys=True,
    ).encode()
    target = Path(path)
    try:
        with replacing(target) as made, open(made, 'wb') as file:
            file.write(MAGIC + len(header).to_bytes(8, 'little'))
            file.write(hashlib.sha256(header).digest() + header)
            file.write(bytes(-file.tell() % mmap.PAGESIZE))
            for array in arrays.values():
                for piece in _pieces(array):
                    file.write(piece)
    except OSError as error:
        raise InputError(f'{target} cannot be written: {error.strerror or error}') from None


def stored_type(dtype: str) -> np.dtype:
    return np.dtype(DTYPES[dtype]).newbyteorder('<')


def _pieces(array: np.ndarray) -> Iterator[bytes | memoryview]:
    """An array's bytes, and zeros up to where the next one begins."""
    yield array.reshape(-1).view(np.uint8).data
    yield bytes(-array.nbytes % ALIGNMENT)


def _labelled(group: Group) -> Group:
    """The group with a label that may stand in a file."""
    if PLAIN.fullmatch(group.label):
        return group
    return replace(group, label=re.sub(r'[^A-Za-z0-9_.+@:,=#>/ -]', '_', group.label))


def read(path: str | os.PathLike[str]) -> Saved:
    """Read the network of one size; whatever is wrong with a file is one sentence."""
    return read_file(path, saved_of)


def read_file(path: str | os.PathLike[str], made: Callable[[Path, dict, np.ndarray], Made]) -> Made:
    """What `made` makes of a file's header and data; whatever is wrong with it is one sentence."""
    where = Path(path)
    try:
        with open_regular(where) as file:
            header, data = _contents(where, file)
        return made(where, header, data)
    except OSError as error:
        raise ModelError(f'{where} cannot be read: {error.strerror or error}') from None
    except RefusedError:
        raise
    except TilewrightError as error:
        raise ModelError(f'{where} cannot be used: {error}') from None
    except MemoryError:
        raise ModelError(f'{where} cannot be used: there is too little memory for it') from None
    except (
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise ModelError(f'{where} cannot be used: {error!r}') from None


class RefusedError(ModelError):
    """A file that is refused as a whole."""


def _contents(where: Path, file: BufferedReader) -> tuple[dict, np.ndarray]:
    """(header, bytes of the arrays), both checksums compared."""
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES or not head.startswith(MAGIC):
        raise RefusedError(f'{where} is not a .tw file; `tilewright compile` writes them')
    length = int.from_bytes(head[len(MAGIC) : len(MAGIC) + 8], 'little')
    size = os.fstat(file.fileno()).st_size
    text = file.read(length) if length <= min(size, MOST_HEADER_BYTES) else b''
    if len(text) < length or hashlib.sha256(text).digest() != head[len(MAGIC) + 8 :]:
        raise _damaged(where)
    header = json.loads(text)
    if header.get('format') != FORMAT or header.get('version') != VERSION:
        raise RefusedError(
            f'{where} was written by version {header.get("version")} in format '
            f'{header.get("format")}; this is {VERSION}, format {FORMAT}: compile the model again'
        )
    padding = file.read(-file.tell() % mmap.PAGESIZE)
    if size - file.tell() != header['data_bytes']:
        raise _damaged(where)
    data = aligned_empty((size - file.tell(),), np.uint8)
    whole = file.readinto(data.data) == data.nbytes and not file.read(1)
    if (
        not whole
        or padding.strip(b'\0')
        or hashlib.sha256(data.data).hexdigest() != header['data_sha256']
    ):
        raise _damaged(where)
    data.flags.writeable = False
    return header, data


def _damaged(where: Path) -> ModelError:
    return RefusedError(f'{where} is damaged: its checksum does not match; compile the model again')


def saved_of(where: Path, header: dict, data: np.ndarray) -> Saved:
    if 'ranges' in header:
        raise RefusedError(
            f'{where} holds a network for ranges of sizes, where one size is needed; compile the '
            f'model again with a number for each size'
        )
    machine, threads, budget, target = site_of(where, header)
    choices = {digest: Choice.from_json(item) for digest, item in header['choices'].items()}
    check_choices(choices, target, threads)
    return Saved(
        _program(header, data), choices, machine, threads, budget, algorithm_of(where, header),
        target, header.get('mix'),
    )  # fmt: skip


def site_of(where: Path, header: dict) -> tuple[Any, int, float, str]:
    """(machine, threads, error budget, target) of a file."""
    target = str(header.get('target', 'cpu'))
    threads = header['threads'] if target == 'cpu' else 0
    if target == 'cpu' and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise RefusedError(
            f'{where} is for {threads!r} threads, where 1 to {MOST_THREADS} are possible; compile '
            f'the model again'
        )
    budget, most = float(header['max_rel_err']), TOLERANCE['f32']
    if not 0 < budget <= most:
        raise RefusedError(
            f'{where} allows errors of {budget}, where more than 0 and at most {most:g} are '
            f'possible; compile the model again'
        )
    kind = Machine if target == 'cpu' else GpuMachine
    machine = kind.from_json(header['machine'])
    return machine, threads, budget, target


def _program(header: dict, data: np.ndarray) -> Program:
    check_plain(header['groups'])
    check_plain(header['choices'])
    groups = {digest: Group.from_json(item) for digest, item in header['groups'].items()}
    for group in groups.values():
        check_group(group)
    named = {group.digest: digest for digest, group in groups.items()}
    if any(a != b for a, b in named.items()) or header['choices'].keys() != groups.keys():
        raise ModelError('its groups are not those that it names')
    body = header['program']
    constants = _constants(header, data, values_of(body))
    program = program_from_json(body, groups, constants)
    check_program(program)
    return program


def _constants(
    header: dict, data: np.ndarray, values: Mapping[str, Value]
) -> dict[str, np.ndarray]:
    """The constants, as read-only views of the file's bytes."""
    return {
        item['name']: array_at(data, item['offset'], values[item['name']])
        for item in header['constants']
    }


def array_at(data: np.ndarray, offset: Any, value: Value) -> np.ndarray:
    """An array of a file, as a view of its bytes."""
    kind = stored_type(value.dtype)
    check_whole(f'constant {value.name!r}', (offset, *value.shape))
    size = math.prod(value.shape) * kind.itemsize
    if not 0 <= offset <= offset + size <= data.nbytes or offset % kind.itemsize:
        raise ModelError(f'constant {value.name!r} lies outside the file')
    return data[offset : offset + size].view(kind).reshape(value.shape)
