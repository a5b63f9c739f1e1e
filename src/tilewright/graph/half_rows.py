"""Images of few channels, whose windows are runs of memory: a first layer of f16.

    In[n, c, 2h + r - 3, 2w + s - 3]   ->   In[n, 2h + r, 6w + q]         q = 3s + c,  c < 3

Goes in: a task that is the only one to read an input, and slides a window over it. Comes out: a
`RowForm`: the input is converted with its border of zeros, channels last, and read as rows of
pixels and channels, so that a window of s columns and c channels is one reduction along memory.
Its length is made a multiple of a unit, by weights of zero, and it is done where windows begin at
multiples of that unit (`Units`):

- CPUs multiply f16 in words of two, which channels alone fill up badly if they are three;
- GPUs copy eight at once, with channels that are filled up to four: two pixels of 7 x 7 windows
  whose step is two, and no window that leaves the image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.program import Task
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Dim, Stage


@dataclass(frozen=True, slots=True)
class Units:
    """How numbers are moved: `run` at once; a pixel's channels, if there are at most `most`, are
    filled up to a multiple of `pixel`.
    """

    run: int
    most: int
    pixel: int = 1


ON_CPU = Units(2, 3)  # four are two words
ON_GPU = Units(8, 4, 4)


@dataclass(frozen=True, slots=True)
class RowForm:
    """How an input is read in rows.

    shape       of the converted input: images, rows, columns, channels
    before      rows and columns of zeros before the image
    window      what a window has in a row, made a multiple of what is moved at once
    """

    image: str
    weights: str
    shape: tuple[int, int, int, int]
    before: tuple[int, int]
    window: int

    @property
    def rows(self) -> tuple[int, int, int]:
        images, down, across, channels = self.shape
        return images, down, across * channels


def row_form(task: Task, value: str, units: Units) -> RowForm | None:
    """The form of a task that reads an input so; None where it does not."""
    group, main = task.group, task.group.main
    names = [t for t, v in task.operands.items() if v == value]
    if len(names) != 1 or not main.is_product_sum or group.stages[0] is not main:
        return None
    if main.pad_value or any(a.tensor == names[0] for s in group.stages[1:] for a in s.reads):
        return None
    image, weights = main.reads if main.reads[0].tensor == names[0] else main.reads[::-1]
    if image.tensor != names[0] or group.tensor(weights.tensor).role != 'constant':
        return None
    if len(image.index) != 4 or len(weights.index) != 4 or not main.is_affine:
        return None
    channels = group.tensor(image.tensor).shape[1]
    plain = [e.names[0] for e in weights.index if len(e.terms) == 1 and e == _plain(e.names[0])]
    if channels > units.most or len(plain) != 4:
        return None
    channels = -(-channels // units.pixel) * units.pixel
    _, c, r, s = plain
    down, across = image.index[2], image.index[3]
    if image.index[1] != _plain(c) or len(image.index[0].terms) != 1:
        return None
    slides = all(
        len(e.terms) == 2 and e.coefficient(name) == 1 and e.const <= 0
        for e, name in ((down, r), (across, s))
    )
    if not slides or set(main.reduction) != {c, r, s}:
        return None
    (column,) = (n for n in across.names if n != s)
    step, sizes = across.coefficient(column) * channels, main.sizes
    if step % units.run:
        return None
    window = -(-sizes[s] * channels // units.run) * units.run
    wide = step * (sizes[column] - 1) + window
    columns = -(-wide // channels)
    while columns * channels % units.run:
        columns += 1
    high = down.extent(sizes)
    shape = group.tensor(image.tensor).shape
    return RowForm(
        image.tensor, weights.tensor, (shape[0], high, columns, channels),
        (-down.const, -across.const), window,
    )  # fmt: skip


def _plain(name: str) -> Affine:
    return Affine(((name, 1),))


def in_rows(group: Group, form: RowForm) -> Group:
    """The group that reads its input in rows."""
    main = group.main
    image, weights = main.reads if main.reads[0].tensor == form.image else main.reads[::-1]
    k, c, r, s = (e.names[0] for e in weights.index)
    down, across = image.index[2], image.index[3]
    (column,) = (n for n in across.names if n != s)
    step = across.coefficient(column) * form.shape[3]
    reads = {
        form.image: Access(
            form.image,
            (image.index[0], Affine(down.terms), Affine(((column, step), (s, 1)))),
        ),
        form.weights: Access(form.weights, (_plain(k), _plain(r), _plain(s))),
    }
    dims = tuple(
        Dim(d.name, form.window if d.name == s else d.size, d.kind) for d in main.dims
        if d.name != c
    )  # fmt: skip
    shapes = {
        form.image: form.rows,
        form.weights: (main.sizes[k], main.sizes[r], form.window),
    }

    def tensor(one: Tensor) -> Tensor:
        if one.name not in shapes:
            return one
        names = ('n', 'h', 'w') if one.name == form.image else ('k', 'r', 's')
        return replace(one, dims=names, shape=shapes[one.name])

    def stage(one: Stage) -> Stage:
        if one is not main:
            return one
        return replace(one, dims=dims, reads=tuple(reads[a.tensor] for a in one.reads))

    return Group(
        f'{group.label} in rows', tuple(map(tensor, group.tensors)),
        tuple(map(stage, group.stages)), group.storage,
    )  # fmt: skip


def row_weights(array: np.ndarray, form: RowForm) -> np.ndarray:
    """Weights [k, c, r, s] as [k, r, q], zeros behind the last channel and the last of a row."""
    more = form.shape[3] - array.shape[1]
    moved = np.pad(array.transpose(0, 2, 3, 1), ((0, 0), (0, 0), (0, 0), (0, more)))
    rows = moved.reshape(*moved.shape[:2], -1)
    return np.pad(rows, ((0, 0), (0, 0), (0, form.window - rows.shape[2])))
