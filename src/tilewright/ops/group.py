"""The group: a small DAG of stages, the unit that is scheduled, generated, measured and stored.

One operator is a group of one stage. A convolution with bias and activation is a group of three,
whose inner edges live in registers. The *main* stage is the one that reduces, the largest if there
are several; stages after it are its epilogue.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilewright.errors import SpecError
from tilewright.ops.dtypes import DTYPES, HALVES, is_float
from tilewright.ops.stage import Access, Affine, Dim, Expr, Stage

ROLES = ('input', 'constant', 'output', 'inner')
STORAGE = ('register', 'cache', 'global')


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a group: named dimensions, sizes, dtype, and its role.

    'constant' operands (weights, bias) may be packed ahead of time; 'inner' tensors connect stages
    and live at the storage level that the group gives them.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    role: str = 'input'
    dtype: str = 'f32'

    def __post_init__(self) -> None:
        if len(self.dims) != len(self.shape):
            raise SpecError(f'tensor {self.name} names {self.dims} but has shape {self.shape}')
        if self.role not in ROLES:
            raise SpecError(f'tensor {self.name}: role {self.role!r} is not one of {ROLES}')
        if self.dtype not in DTYPES:
            raise SpecError(
                f'tensor {self.name}: dtype {self.dtype!r} is not one of {tuple(DTYPES)}'
            )
        if any(size < 1 for size in self.shape):
            raise SpecError(f'tensor {self.name} has shape {self.shape}; sizes are at least 1')

    @property
    def size(self) -> int:
        product = 1
        for extent in self.shape:
            product *= extent
        return product

    @property
    def bytes(self) -> int:
        return self.size * DTYPES[self.dtype]

    @property
    def strides(self) -> tuple[int, ...]:
        return row_major_strides(self.shape)


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense row-major array."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Group:
    """Stages in topological order over named tensors. `label` is what people and stores call it.

    `storage` asks for a place of some inner tensors: kernels that cannot keep them there are not
    chosen, and where there are none the group is refused (kernels/cpu/schema.py).
    `given`: constants that are made of what callers give, by groups that take that as their input,
    once, before anything is packed.
    """

    label: str
    tensors: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    storage: tuple[tuple[str, str], ...] = field(default=())
    given: tuple[tuple[str, Group], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.stages:
            raise SpecError(f'group {self.label} has no stage')
        names = [t.name for t in self.tensors]
        if len(set(names)) != len(names):
            raise SpecError(f'group {self.label} names a tensor twice: {names}')
        written: set[str] = set()
        for stage in self.stages:
            for access in stage.accesses:
                self._check_access(stage, access)
            for access in stage.reads:
                role = self.tensor(access.tensor).role
                if role not in ('inner', 'output') or access.tensor in written:
                    continue
                if not self._is_earlier(stage, access):
                    raise SpecError(
                        f'stage {stage.name} reads {access.tensor} before it is written'
                    )
            if self.tensor(stage.write.tensor).role not in ('inner', 'output'):
                raise SpecError(
                    f'stage {stage.name} writes {stage.write.tensor}, which is an input'
                )
            if stage.write.tensor in written:
                raise SpecError(f'{stage.write.tensor} is written by two stages')
            written.add(stage.write.tensor)
        missing = {t.name for t in self.tensors if t.role in ('inner', 'output')} - written
        if missing:
            raise SpecError(f'group {self.label} never writes {sorted(missing)}')
        for name, level in self.storage:
            if level not in STORAGE or self.tensor(name).role != 'inner':
                raise SpecError(f'storage {name}={level}: an inner tensor at one of {STORAGE}')

    def _check_access(self, stage: Stage, access: Access) -> None:
        tensor = self.tensor(access.tensor)
        if len(access.index) != len(tensor.shape):
            raise SpecError(
                f'stage {stage.name} indexes {tensor.name} with {len(access.index)} expressions, '
                f'it has {len(tensor.shape)} dimensions'
            )
        for axis, read in access.lookups:
            source = self.tensor(stage.reads[read].tensor)
            if is_float(source.dtype):
                raise SpecError(
                    f'stage {stage.name}: axis {axis} of {tensor.name} is looked up in '
                    f'{source.name}, which is {source.dtype}; indices are whole numbers'
                )

    def _is_earlier(self, stage: Stage, access: Access) -> bool:
        """Whether a read is of what an earlier step wrote, along a sequential dimension."""
        writer = next((s for s in self.stages if s.write.tensor == access.tensor), None)
        if writer is None or len(stage.sequential) != 1 or writer.sequential != stage.sequential:
            return False
        (name,) = stage.sequential
        axes = [axis for axis, e in enumerate(writer.write.index) if name in e.names]
        return not set(axes) & {axis for axis, _ in (*access.tables, *access.lookups)} and any(
            access.index[axis].terms == writer.write.index[axis].terms == ((name, 1),)
            and access.index[axis].const < writer.write.index[axis].const
            for axis in axes
        )

    @cached_property
    def is_sequential(self) -> bool:
        """Whether steps follow each other: it is computed as a whole, not part by part."""
        return any(stage.sequential for stage in self.stages)

    @cached_property
    def _hash(self) -> int:
        return hash((self.label, self.tensors, self.stages, self.storage))

    def __hash__(self) -> int:
        """Kept: groups are keys of caches, and have some hundred values in them."""
        return self._hash

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.tensors}

    def tensor(self, name: str) -> Tensor:
        if name not in self._by_name:
            raise SpecError(
                f'group {self.label} has no tensor {name!r}; it has {list(self._by_name)}'
            )
        return self._by_name[name]

    def with_role(self, role: str) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == role)

    @property
    def output(self) -> Tensor:
        return self.tensor(self.stages[-1].write.tensor)

    @cached_property
    def main(self) -> Stage:
        """The stage that does the work: the largest that reduces (the first of equals), else the
        first.
        """
        reducing = [s for s in self.stages if s.combiner]
        return max(reducing, key=lambda s: s.points) if reducing else self.stages[0]

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        """The stages behind the main one."""
        return self.stages[self.stages.index(self.main) + 1 :]

    @cached_property
    def is_plain(self) -> bool:
        """Whether all is float32 and found by affine indices, no step waiting for another: what
        every schema understands.
        """
        return (
            not self.is_sequential
            and all(t.dtype == 'f32' for t in self.tensors)
            and all(s.is_affine and not set(s.expr.iterators()) for s in self.stages)
        )

    @cached_property
    def half(self) -> str:
        """'f16' or 'bf16' where operands are stored so, else plain; '' for all other groups. What
        is summed up may be stored in 8 bits (ops/stored.py).
        """
        kinds = {t.dtype for t in self.tensors}
        if self.main.combiner is not None and self.output.dtype in ('u8', 'i8'):
            kinds = {t.dtype for t in self.tensors if t.role != 'output'}
        halves = kinds & set(HALVES)
        plain = not self.is_sequential and all(
            s.is_affine and not set(s.expr.iterators()) for s in self.stages
        )
        return halves.pop() if len(halves) == 1 and kinds <= {'f32', *HALVES} and plain else ''

    def read_dtypes(self, stage: Stage) -> tuple[str, ...]:
        return tuple(self.tensor(a.tensor).dtype for a in stage.reads)

    @property
    def flops(self) -> int:
        """Operations of the main stage (what GFLOP/s figures count)."""
        return self.main.flops

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that any execution must move once: inputs, constants and outputs."""
        return sum(t.bytes for t in self.tensors if t.role != 'inner')

    def to_json(self) -> dict:
        """A complete, canonical description; its hash identifies the group in stores and caches."""
        return {
            'label': self.label,
            'tensors': [
                [t.name, list(t.dims), list(t.shape), t.role, t.dtype] for t in self.tensors
            ],
            'stages': [
                {
                    'name': s.name,
                    'dims': [[d.name, d.size, d.kind] for d in s.dims],
                    'write': _access_json(s.write),
                    'reads': [_access_json(a) for a in s.reads],
                    'expr': s.expr.to_json(),
                    'combiner': s.combiner,
                    'pad_value': str(s.pad_value),
                }
                for s in self.stages
            ],
            'storage': [list(pair) for pair in self.storage],
            **(
                {'given': [[name, group.to_json()] for name, group in self.given]}
                if self.given
                else {}
            ),
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Group:
        """The inverse of `to_json`; every check of construction runs again."""
        try:
            tensors = tuple(
                Tensor(name, tuple(dims), tuple(shape), role, dtype)
                for name, dims, shape, role, dtype in data['tensors']
            )
            stages = tuple(
                Stage(
                    s['name'],
                    tuple(Dim(name, size, kind) for name, size, kind in s['dims']),
                    _access_from(s['write']),
                    tuple(_access_from(a) for a in s['reads']),
                    Expr.from_json(s['expr']),
                    s['combiner'],
                    float(s['pad_value']),
                )
                for s in data['stages']
            )
            storage = tuple((name, level) for name, level in data['storage'])
            given = tuple((name, cls.from_json(group)) for name, group in data.get('given', ()))
            return cls(data['label'], tensors, stages, storage, given)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f'a stored group cannot be read: {error}') from None

    @cached_property
    def digest(self) -> str:
        """Hash of what is computed; the label does not enter, so equal problems share records."""
        body = {k: v for k, v in self.to_json().items() if k not in ('label', 'given')}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def _access_json(access: Access) -> list:
    plain = [access.tensor, [[list(map(list, e.terms)), e.const] for e in access.index]]
    if access.is_affine:
        return plain
    tables = [[axis, list(values)] for axis, values in access.tables]
    return [*plain, tables, [list(pair) for pair in access.lookups]]


def _access_from(data: list) -> Access:
    tensor, index, *indirect = data
    plain = tuple(Affine(tuple((n, c) for n, c in terms), const) for terms, const in index)
    if not indirect:
        return Access(tensor, plain)
    tables, lookups = indirect
    return Access(
        tensor,
        plain,
        tuple((axis, tuple(values)) for axis, values in tables),
        tuple((axis, read) for axis, read in lookups),
    )
