"""`.tw` files: a program, the schedules of its groups and its weights, loaded without a search.

    bytes    0  magic            8
             8  length of header 8, little endian
            16  SHA-256 of it   32
            48  header          JSON
       aligned  arrays          raw, little endian, each at a multiple of 64 bytes

Goes in: a program and the choices for its groups. Comes out: a file; from it, both again. Loading
runs nothing: there is no code in the file, neither binary nor source, and what is generated from it
is checked first. Groups and schedules may hold plain words and numbers only, because they end up in
generated sources. Every byte is covered by a checksum. Weights are mapped into memory, not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError, ModelError, TilewrightError
from tilewright.graph.graph import DTYPES, Value
from tilewright.graph.program import Program, Task
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine, Expr
from tilewright.ops.tiles import ALGORITHMS
from tilewright.schedule.choice import Choice
from tilewright.version import VERSION

FORMAT = 1
MAGIC = b'\x93TWNET\r\n'
ALIGNMENT = 64
MOST_HEADER_BYTES = 256 << 20
_HEAD_BYTES = len(MAGIC) + 8 + 32
_CHUNK = 1 << 20
_PLAIN = re.compile(r'[A-Za-z0-9_.+@:,=#>/ -]*')


@dataclass(frozen=True)
class Saved:
    """What a file holds: a program, the choice for each of its groups, and what they were for.

    `threads` are those of a CPU, 0 for a GPU.
    """

    program: Program
    choices: Mapping[str, Choice]
    machine: Any  # a `Machine` or a `GpuMachine`
    threads: int
    max_rel_err: float
    algorithm: str = 'auto'
    target: str = 'cpu'


def write(path: str | os.PathLike[str], saved: Saved) -> None:
    """Write a file; it appears under its name only when it is complete."""
    choices = {digest: choice.to_json() for digest, choice in saved.choices.items()}
    where = {'threads': saved.threads} if saved.target == 'cpu' else {'target': saved.target}
    about = {
        'machine': saved.machine.to_json(), **where,
        # What was asked for, for the day that schedules are chosen again.
        'max_rel_err': saved.max_rel_err, 'algorithm': saved.algorithm,
    }  # fmt: skip
    _write(path, saved.program, choices, about)


def _algorithm(where: Path, header: dict) -> str:
    found = header.get('algorithm', 'auto')
    if found not in ALGORITHMS:
        raise _RefusedError(
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
    arrays = {
        name: np.ascontiguousarray(array, _stored(program.values[name]))
        for name, array in program.constants.items()
    }
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
            'groups': {digest: group.to_json() for digest, group in groups.items()},
            'choices': {digest: dict(choices[digest]) for digest in groups},
            'program': _program_json(program),
            'constants': listed,
            'data_bytes': offset,
            'data_sha256': total.hexdigest(),
        },
        sort_keys=True,
    ).encode()
    target = Path(path)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix='.tilewright-') as scratch:
            made = Path(scratch) / 'network.tw'
            with open(made, 'wb') as file:
                file.write(MAGIC + len(header).to_bytes(8, 'little'))
                file.write(hashlib.sha256(header).digest() + header)
                file.write(bytes(-file.tell() % mmap.PAGESIZE))
                for array in arrays.values():
                    for piece in _pieces(array):
                        file.write(piece)
            os.replace(made, target)
    except OSError as error:
        raise InputError(f'{target} cannot be written: {error.strerror or error}') from None


def _stored(value: Value) -> np.dtype:
    return np.dtype(DTYPES[value.dtype]).newbyteorder('<')


def _pieces(array: np.ndarray) -> Iterator[bytes | memoryview]:
    """An array's bytes, and zeros up to where the next one begins."""
    yield array.reshape(-1).view(np.uint8).data
    yield bytes(-array.nbytes % ALIGNMENT)


def _labelled(group: Group) -> Group:
    """The group with a label that may stand in a file."""
    if _PLAIN.fullmatch(group.label):
        return group
    return replace(group, label=re.sub(r'[^A-Za-z0-9_.+@:,=#>/ -]', '_', group.label))


def _program_json(program: Program) -> dict:
    return {
        'name': program.name,
        'inputs': list(program.inputs),
        'outputs': [list(pair) for pair in program.outputs],
        'values': [[v.name, list(v.shape), v.dtype] for v in program.values.values()],
        'views': dict(program.views),
        'inside': {value: list(place) for value, place in program.inside.items()},
        'tasks': [
            {
                'name': t.name,
                'group': t.group.digest,
                'operands': dict(t.operands),
                'result': t.result,
                'origin': list(t.origin),
                'writes_part': t.writes_part,
            }
            for t in program.tasks
        ],
    }


def read(path: str | os.PathLike[str]) -> Saved:
    """Read a file; whatever is wrong with it is one sentence."""
    where = Path(path)
    try:
        with open(where, 'rb') as file:
            header, start = _header(where, file)
            return _saved(where, file, header, start)
    except OSError as error:
        raise ModelError(f'{where} cannot be read: {error.strerror or error}') from None
    except _RefusedError:
        raise
    except TilewrightError as error:
        raise ModelError(f'{where} cannot be used: {error}') from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f'{where} cannot be used: {error!r}') from None


class _RefusedError(ModelError):
    """A file that is refused as a whole."""


def _header(where: Path, file: Any) -> tuple[dict, int]:
    """(header, position of the arrays), both checksums compared."""
    head = file.read(_HEAD_BYTES)
    if len(head) < _HEAD_BYTES or not head.startswith(MAGIC):
        raise _RefusedError(f'{where} is not a .tw file; `tilewright compile` writes them')
    length = int.from_bytes(head[len(MAGIC) : len(MAGIC) + 8], 'little')
    size = os.fstat(file.fileno()).st_size
    text = file.read(length) if length <= min(size, MOST_HEADER_BYTES) else b''
    if len(text) < length or hashlib.sha256(text).digest() != head[len(MAGIC) + 8 :]:
        raise _damaged(where)
    header = json.loads(text)
    if header.get('format') != FORMAT or header.get('version') != VERSION:
        raise _RefusedError(
            f'{where} was written by version {header.get("version")} in format '
            f'{header.get("format")}; this is {VERSION}, format {FORMAT}: compile the model again'
        )
    start = -(-file.tell() // mmap.PAGESIZE) * mmap.PAGESIZE
    padding = file.read(start - file.tell())
    total, left = hashlib.sha256(), header['data_bytes']
    while left > 0:
        piece = file.read(min(_CHUNK, left))
        if not piece:
            break
        total.update(piece)
        left -= len(piece)
    if left or padding.strip(b'\0') or file.read(1) or total.hexdigest() != header['data_sha256']:
        raise _damaged(where)
    return header, start


def _damaged(where: Path) -> ModelError:
    return _RefusedError(
        f'{where} is damaged: its checksum does not match; compile the model again'
    )


def _saved(where: Path, file: Any, header: dict, start: int) -> Saved:
    target = str(header.get('target', 'cpu'))
    program = _program(file, header, start)
    choices = {digest: Choice.from_json(data) for digest, data in header['choices'].items()}
    threads = int(header['threads']) if target == 'cpu' else 0
    if target == 'cpu' and threads < 1:
        raise _RefusedError(f'{where} is for {threads} threads; compile the model again')
    kind = Machine if target == 'cpu' else GpuMachine
    return Saved(
        program, choices, kind.from_json(header['machine']), threads,
        float(header['max_rel_err']), _algorithm(where, header), target,
    )  # fmt: skip


def _program(file: Any, header: dict, start: int) -> Program:
    _check_plain(header['groups'])
    _check_plain(header['choices'])
    groups = {digest: Group.from_json(data) for digest, data in header['groups'].items()}
    for group in groups.values():
        _check_group(group)
    named = {group.digest: digest for digest, group in groups.items()}
    if any(a != b for a, b in named.items()) or header['choices'].keys() != groups.keys():
        raise ModelError('its groups are not those that it names')
    body = header['program']
    values = {name: Value(name, tuple(shape), dtype) for name, shape, dtype in body['values']}
    return Program(
        body['name'],
        tuple(body['inputs']),
        tuple((name, value) for name, value in body['outputs']),
        tuple(
            Task(
                t['name'], groups[t['group']], t['operands'], t['result'], tuple(t['origin']),
                t['writes_part'],
            )
            for t in body['tasks']
        ),
        values,
        _mapped(file, header, values, start),
        body['views'],
        {value: (holder, offset) for value, (holder, offset) in body['inside'].items()},
    )  # fmt: skip


def _mapped(file: Any, header: dict, values: Mapping[str, Value], start: int) -> dict:
    """The constants, as read-only views of the mapped file."""
    if not header['constants']:
        return {}
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {}
    for item in header['constants']:
        value, offset = values[item['name']], item['offset']
        kind = _stored(value)
        count = math.prod(value.shape)
        if not 0 <= offset <= offset + count * kind.itemsize <= header['data_bytes']:
            raise ModelError(f'constant {value.name!r} lies outside the file')
        if not count:
            arrays[value.name] = np.zeros(value.shape, kind)
            continue
        arrays[value.name] = np.frombuffer(pages, kind, count, start + offset).reshape(value.shape)
    return arrays


def _check_plain(data: Any) -> None:
    """Raise unless there is nothing in it but plain words and numbers: it becomes source."""
    if isinstance(data, dict):
        for key, item in data.items():
            _check_plain(key)
            _check_plain(item)
    elif isinstance(data, list):
        for item in data:
            _check_plain(item)
    elif isinstance(data, str) and not _PLAIN.fullmatch(data):
        raise ModelError(f'{data[:40]!r} is not a plain word')


def _check_group(group: Group) -> None:
    """Raise unless its numbers are numbers and what it writes lies inside its tensors."""
    for stage in group.stages:
        for access in stage.accesses:
            for expression in access.index:
                if isinstance(expression, Affine) and not all(
                    type(number) is int
                    for number in (expression.const, *(c for _, c in expression.terms))
                ):
                    raise ModelError(f'stage {stage.name} has an index that is not a number')
        shape = group.tensor(stage.write.tensor).shape
        for expression, extent in zip(stage.write.index, shape, strict=True):
            if expression.const < 0 or expression.const + expression.extent(stage.sizes) > extent:
                raise ModelError(f'stage {stage.name} writes outside {stage.write.tensor}')
        _check_expr(stage.expr)


def _check_expr(expr: Expr) -> None:
    if not isinstance(expr.value, int | float):
        raise ModelError(f'an expression holds {expr.value!r}, which is not a number')
    for argument in expr.args:
        _check_expr(argument)
