"""Changes to the meaning of `.tw` files, with checksums that match.

    python file_mutants.py FOLDER SEED COUNT     tries them, best under a sanitizer

`make` writes the files to change. Each file is loaded and, unless it is refused, run on read-only
arrays between guard pages. One line for each says what was done, before it is done, so that the
last line names what killed the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import graphs
import numpy as np

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.graph.graph import DTYPES, Graph, Value
from tilewright.ops.group import Group
from tilewright.runtime.verify import freeze, guarded_empty

NUMBERS = (0, 1, -1, 2, 3, 7, 64, -64, 1000, 1 << 31, 1 << 40, 1 << 63, 1 << 70, 0.5, 'nan', None)


def gathered() -> Graph:
    """Whole numbers, bytes, a view, a slice and a lookup, beside floats."""
    nodes = [
        graphs.node('Reshape', 'x shape', 'rows'),
        graphs.node('Gather', 'rows at', 'g', axis=0),
        graphs.node('Cast', 'bytes', 'f', to=1),
        graphs.node('Mul', 'g f', 'y'),
        graphs.node('Slice', 'y first last', 'z'),
        graphs.node('Relu', 'z', 'r'),
    ]
    return Graph(
        'gathered',
        (Value('x', (2, 3, 4)), Value('at', (5,), 'i64'), Value('bytes', (5, 4), 'u8')),
        (('y', 'y'), ('r', 'r')),
        tuple(nodes),
        {
            'shape': np.array([6, 4]), 'first': np.array([1]), 'last': np.array([3]),
        },
    )  # fmt: skip


def header_of(data: bytes) -> tuple[dict, bytes]:
    """(header, arrays) of a file."""
    length = int.from_bytes(data[8:16], 'little')
    start = -(-(48 + length) // mmap.PAGESIZE) * mmap.PAGESIZE
    return json.loads(data[48 : 48 + length]), data[start:]


def file_of(header: dict, arrays: bytes) -> bytes:
    """The file with sound checksums."""
    text = json.dumps(header).encode()
    body = b'\x93TWNET\r\n' + len(text).to_bytes(8, 'little') + hashlib.sha256(text).digest() + text
    return body + bytes(-len(body) % mmap.PAGESIZE) + arrays


def renamed(header: dict) -> None:
    """Give changed groups the digests that they have now, wherever they are named."""
    for old in list(header['groups']):
        try:
            new = Group.from_json(header['groups'][old]).digest
        except (TilewrightError, TypeError, AttributeError):
            continue
        header['groups'][new] = header['groups'].pop(old)
        header['choices'][new] = header['choices'].pop(old, None)
        for task in header['program']['tasks']:
            if task['group'] == old:
                task['group'] = new


def leaves(data: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything that is not a container itself."""
    for key, item in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(item, dict | list):
            yield from leaves(item)
        else:
            yield data, key


def leaf(header: dict, draw: random.Random) -> None:
    part = draw.choice(['program', 'groups', 'choices', 'constants', 'machine'])
    places = list(leaves(header[part]))
    holder, key = draw.choice(places)
    words = [h[k] for h, k in places if isinstance(h[k], str)]
    old = holder[key]
    holder[key] = draw.choice(words) if isinstance(old, str) and words else draw.choice(NUMBERS)


def shape_of_things(header: dict, draw: random.Random) -> None:
    """Another dtype or shape of a value, and of every tensor that it is."""
    value = draw.choice(header['program']['values'])
    if draw.random() < 0.6 or not value[1]:
        value[2] = draw.choice(list(DTYPES))
    else:
        value[1][draw.randrange(len(value[1]))] = draw.choice([1, 2, 3, 64, 1 << 20])
    for task in header['program']['tasks']:
        bound = [t for t, v in task['operands'].items() if v == value[0]]
        for tensor in header['groups'].get(task['group'], {}).get('tensors', ()):
            result = tensor[3] == 'output' and task['result'] == value[0]
            if tensor[0] in bound or result:
                tensor[2], tensor[4] = list(value[1]), value[2]


def place(header: dict, draw: random.Random) -> None:
    """A value in the memory of another."""
    one, other = (draw.choice(header['program']['values'])[0] for _ in range(2))
    if draw.random() < 0.4:
        header['program']['views'][one] = other
    else:
        header['program']['inside'][one] = [other, draw.choice([0, 1, 16, 1000, -1])]


def rebind(header: dict, draw: random.Random) -> None:
    """A task that reads or writes another value of the same type, where there is one."""
    task = draw.choice(header['program']['tasks'])
    which = draw.choice(['result', *task['operands']])
    now = task['result'] if which == 'result' else task['operands'][which]
    values = {v[0]: v[1:] for v in header['program']['values']}
    like = [name for name, kind in values.items() if kind == values.get(now)]
    new = draw.choice(like or list(values))
    if which == 'result':
        task['result'] = new
        task['writes_part'] = draw.random() < 0.5
    else:
        task['operands'][which] = new


def role(header: dict, draw: random.Random) -> None:
    group = draw.choice(list(header['groups'].values()))
    draw.choice(group['tensors'])[3] = draw.choice(['input', 'constant', 'output', 'inner'])


def index(header: dict, draw: random.Random) -> None:
    """An index of an access that reads or writes elsewhere."""
    stage = draw.choice(draw.choice(list(header['groups'].values()))['stages'])
    access = draw.choice([stage['write'], *stage['reads']])
    if access[1]:
        expression = draw.choice(access[1])
        if expression[0] and draw.random() < 0.3:
            draw.choice(expression[0])[1] = draw.choice([2, 3, 1000])
        else:
            expression[1] = draw.choice([-1, 1, 5, -1000, 1 << 30, 1 << 39])


def domain(header: dict, draw: random.Random) -> None:
    stage = draw.choice(draw.choice(list(header['groups'].values()))['stages'])
    if stage['dims']:
        draw.choice(stage['dims'])[1] = draw.choice([1, 2, 5, 9, 100])


def without(header: dict, draw: random.Random) -> None:
    part = draw.choice([header['constants'], *(header['program'][k] for k in ('values', 'tasks'))])
    if part:
        part.pop(draw.randrange(len(part)))


CHANGES: tuple[Callable[[dict, random.Random], None], ...] = (
    leaf, leaf, shape_of_things, shape_of_things, place, rebind, rebind, role, index, index, domain,
    without,
)  # fmt: skip


def try_file(path: Path) -> str:
    """Load a file and call it; what comes out says how that ended."""
    try:
        network = tw.load(path)
        arrays = {}
        for value in network.inputs:
            if np.prod(value.shape) > 1 << 22:
                return 'large'
            array = guarded_empty(value.shape, DTYPES[value.dtype])
            array[...] = 1
            arrays[value.name] = freeze(array)
        network.run(arrays)
    except TilewrightError as error:
        return f'refused: {error}'
    except UserWarning:
        return 'chosen again'
    except Exception as error:
        return f'RAISED {error!r}'
    return 'ran'


def make(folder: Path, targets: list[str]) -> None:
    """Write a file for every network and target."""
    for target in targets:
        for network in (graphs.convolutions, graphs.branches, gathered):
            path = folder / f'{target}-{network.__name__}.tw'
            tw.compile(network(), target, save=path)
            assert try_file(path) == 'ran'


def changed(data: bytes, draw: random.Random) -> tuple[list[str], bytes]:
    """(what was done, the file)"""
    header, arrays = header_of(data)
    done = []
    for _ in range(draw.choice([1, 1, 2])):
        change = draw.choice(CHANGES)
        done.append(change.__name__)
        with contextlib.suppress(AttributeError, LookupError, TypeError):
            change(header, draw)  # the one before may have left nothing to change
    with contextlib.suppress(AttributeError, LookupError, TypeError):
        renamed(header)
    return done, file_of(header, arrays)


def main(folder: Path, seed: int, count: int) -> None:
    warnings.simplefilter('ignore')
    # Searches load libraries that sanitizers do not allow, and need no file to be wrong.
    warnings.filterwarnings('error', '.*chosen again')
    samples = sorted(folder.glob('*-*.tw'))
    for number in range(seed, seed + count):
        draw = random.Random(number)
        sample = draw.choice(samples)
        done, data = changed(sample.read_bytes(), draw)
        path = folder / 'changed.tw'
        path.write_bytes(data)
        print(number, sample.stem, *done, end=' ', flush=True)
        print(try_file(path).replace('\n', '\\n'), flush=True)


if __name__ == '__main__':
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
