"""What a GPU does with a placement, told to the checker of graph/proof.py.

Goes in: a program, the module of every task, where every buffer of each lies, and what every kernel
waits for, as they are handed to the device. Comes out: nothing, or a `PlanError`. Kernels that do
not wait for each other may run in any order or at once.

Before the first call constants are uploaded and kernels ahead run, one after the other; constants
that only these read are given back. A call copies its inputs, runs the kernels, and copies results.
After it inputs are as they were, so that `launch` can run again, and zeroed buffers are zeros: each
kernel that has one finds what the one before it left, and no other writes there. Inputs that are
carried need not stay. What a kernel reads element by element, each only for the element of its
result at the same place (graph/levels.py), is read before it is written: that is an event before
the rest of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tilewright.graph.levels import read_where_written
from tilewright.graph.memory_proof import box, first_byte, read_box
from tilewright.graph.program import Program, Task
from tilewright.graph.proof import Access, Block, Event, Region, chain, prove
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step
from tilewright.ops.dtypes import DTYPES

# Words of CUCL that move several elements of global memory at once, and the bytes of each.
_WIDE = {
    'LOAD4(GLOBAL': 16, 'STORE4(GLOBAL': 16, 'COPY4(': 16, 'BULK_COPY(': 16,
    'LOAD2(GLOBAL': 8, 'STORE2(GLOBAL': 8,
}  # fmt: skip


class Sized(Protocol):
    """An array of its own on the device."""

    @property
    def bytes(self) -> int: ...


class Slot(Protocol):
    """Where a buffer lies: in the arena from a byte on, or an array of its own."""

    @property
    def offset(self) -> int: ...
    @property
    def array(self) -> Sized | None: ...


class Made(Protocol):
    """A task and its kernels."""

    @property
    def task(self) -> Task: ...
    @property
    def module(self) -> Module: ...


@dataclass(frozen=True)
class Bound:
    """A network as it is handed to a device.

    slots   for every task: buffer of its module -> where it lies
    place   value that callers copy -> where it lies
    waits   for every kernel of a call, in order, the numbers of those it waits for
    gone    arrays that were given back before the first call, by identity
    """

    program: Program
    works: Sequence[Made]
    arena_bytes: int
    slots: Sequence[Mapping[str, Slot]]
    place: Callable[[str], Slot]
    waits: Sequence[Sequence[int]]
    gone: Collection[int]


def prove_bound(bound: Bound) -> None:
    """Raise PlanError unless every kernel reads what it means, whatever order the device takes."""
    prove(bound.program.name, *story(bound))


def story(bound: Bound) -> tuple[list[Block], list[Event]]:
    """All memory, and everything that happens until the end of a call."""
    return _Told(bound).story()


def alignment(kernel: Kernel) -> int:
    """Bytes that its arrays have to begin at multiples of, beside their own elements."""
    return max((size for word, size in _WIDE.items() if word in kernel.body), default=1)


class _Argument(NamedTuple):
    """An array of a kernel: the buffer that it is, whether it is written, bytes, alignment."""

    buffer: str
    written: bool
    bytes: int
    align: int


class _Told:
    """The blocks and events so far."""

    def __init__(self, bound: Bound) -> None:
        self.bound, self.program = bound, bound.program
        self.blocks = [Block('the arena', bound.arena_bytes)]
        self.events: list[Event] = []
        self.numbers: dict[int, int] = {}  # identity of an array -> its block
        self.setup: dict[Hashable, Access] = {}  # what is uploaded
        self.arguments: dict[int, list[_Argument]] = {}  # of steps; tasks with equal groups share
        self.duties: dict[int, dict[str, str]] = {}
        self.early: dict[int, Access] = {}  # what is read before the same element is written
        self.ahead: dict[int, int] = {}  # modules that are ahead alike have one number
        self.kernels: dict[tuple[Step, ...], int] = {}

    def story(self) -> tuple[list[Block], list[Event]]:
        ahead, calls = self._ahead(), self._calls()
        inputs = [self._copied(name) for name in self.program.inputs]
        stay = [a for name, a in zip(self.program.inputs, inputs, strict=True)
                if name not in self.program.carried]  # fmt: skip
        results = [self._copied(value) for _, value in self.program.outputs]
        gone = {self.numbers[array] for array in self.bound.gone if array in self.numbers}
        made = [access for _, _, writes in ahead for access in writes]
        kept = [a for a in (*self.setup.values(), *made) if a.block not in gone]
        self.events.append(Event('the upload', (), list(self.setup.values()), ()))
        for name, reads, writes in ahead:
            self.events.append(Event(name, reads, writes, chain(len(self.events))))
        self.events.append(
            Event('what gives memory back', (), self._scribbled(sorted(gone)), self._next())
        )
        self.events.append(Event('the copy of the inputs', (), inputs, self._next()))
        start = len(self.events)
        ends: list[int] = []  # the last event of every call
        for (name, reads, writes), waits in zip(calls, self.bound.waits, strict=True):
            after = [ends[other] for other in waits] or [start - 1]
            if any(id(access) in self.early for access in reads):
                first = [access for access in reads if id(access) in self.early]
                reads = [access for access in reads if id(access) not in self.early]
                self.events.append(Event(name, first, (), after))
                after = self._next()
            self.events.append(Event(name, reads, writes, after))
            ends.append(len(self.events) - 1)
        everything = range(start - 1, len(self.events))
        self.events.append(Event('the caller', [*results, *stay, *kept], (), everything))
        return self.blocks, self.events

    def _next(self) -> tuple[int, ...]:
        return chain(len(self.events))

    def _scribbled(self, gone: Sequence[int]) -> list[Access]:
        """Memory that is somebody else's from now on: whoever reads it finds other bytes."""
        return [
            Access(('gone', block), 0, block, 0, Region(0, self.blocks[block].bytes), 1, 'nothing')
            for block in gone
        ]

    def _copied(self, value: str) -> Access:
        """A value that the host writes or reads."""
        slot, kind = self.bound.place(value), self.program.values[value]
        root, first = first_byte(self.program, value)
        size = DTYPES[kind.dtype]
        for extent in kind.shape:
            size *= extent
        if slot.array is not None:
            self._upload(('constant', root), repr(root), slot.array)
            root = ('constant', root)
        return Access(
            root, first, self._block(slot.array, repr(value)), slot.offset, Region(0, size),
            DTYPES[kind.dtype], repr(value),
        )  # fmt: skip

    def _block(self, array: Sized | None, label: str) -> int:
        if array is None:
            return 0
        number = self.numbers.setdefault(id(array), len(self.blocks))
        if number == len(self.blocks):
            self.blocks.append(Block(f'the array of {label}', array.bytes))
        return number

    def _upload(self, value: Hashable, label: str, array: Sized) -> None:
        """Note that an array is written once, from the host."""
        if value not in self.setup:
            block = self._block(array, label)
            self.setup[value] = Access(value, 0, block, 0, Region(0, array.bytes), 1, label)

    def _ahead(self) -> list[tuple[str, list[Access], list[Access]]]:
        """Kernels that turn constants into what others read, once for equal ones."""
        found, seen = [], set()
        for number, work in enumerate(self.bound.works):
            key = self._key(work)
            if work.module.ahead and key not in seen:
                seen.add(key)
                name = f'the preparation of {work.task.name!r}'
                found += self._steps(number, work, work.module.ahead, name)
        return found

    def _calls(self) -> list[tuple[str, list[Access], list[Access]]]:
        return [
            step
            for number, work in enumerate(self.bound.works)
            for step in self._steps(number, work, work.module.steps, f'task {work.task.name!r}')
        ]

    def _key(self, work: Made) -> Hashable:
        """What tells prepared constants apart: the kernels that make them, and of what."""
        module = work.module
        if id(module) not in self.ahead:
            self.ahead[id(module)] = self.kernels.setdefault(module.ahead, len(self.kernels))
        constants = tuple(
            self.program.place(work.task.operands[t.name])
            for t in module.group.tensors
            if t.role == 'constant'
        )
        return self.ahead[id(module)], constants

    def _steps(
        self, number: int, work: Made, steps: Sequence[Step], name: str
    ) -> list[tuple[str, list[Access], list[Access]]]:
        """(name, reads, writes) of kernels that follow each other."""
        made: set[Hashable] = set()
        found = []
        for turn, step in enumerate(steps, 1):
            reads, writes = [], []
            for argument in self._arguments(step):
                access, zeroed = self._access(number, work, argument)
                if not argument.written or zeroed or access.value in made:
                    reads.append(access)
                if argument.written:
                    writes.append(access)
            made |= {access.value for access in writes}
            words = f'{name} (kernel {turn} of {len(steps)})' if len(steps) > 1 else name
            found.append((words, reads, writes))
        return found

    def _arguments(self, step: Step) -> list[_Argument]:
        if id(step) not in self.arguments:
            align = alignment(step.kernel)
            arrays = {array.name: array for array in step.kernel.arrays}
            self.arguments[id(step)] = [
                _Argument(
                    buffer, arrays[name].written,
                    arrays[name].elements * DTYPES[arrays[name].dtype],
                    max(align, DTYPES[arrays[name].dtype]),
                )
                for name, buffer in step.buffers
            ]  # fmt: skip
        return self.arguments[id(step)]

    def _duty(self, module: Module, buffer: str) -> str:
        if id(module) not in self.duties:
            self.duties[id(module)] = _duties(module)
        return self.duties[id(module)][buffer]

    def _access(self, number: int, work: Made, argument: _Argument) -> tuple[Access, bool]:
        """One buffer of a task, and whether it is zeros between calls."""
        buffer, _, size, align = argument
        task, slot = work.task, self.bound.slots[number][buffer]
        array, region, first = slot.array, Region(0, size), 0
        duty = self._duty(work.module, buffer)
        if duty in ('operand', 'result'):
            name = task.operands[buffer] if duty == 'operand' else task.result
            value, first = first_byte(self.program, name)
            label = repr(name)
            if duty == 'result' and task.writes_part:
                region = box(task.group)
            elif duty == 'operand':
                region = read_box(task.group, buffer) or region
            if value in self.program.constants:
                value = ('constant', value)
        elif duty == 'prepared':
            value, label = (duty, buffer, self._key(work)), repr(buffer)
        else:
            value, label = (duty, number, buffer), f'{buffer!r} of {task.name!r}'
        if array is not None and duty in ('operand', 'zeroed'):
            self._upload(value, label, array)
        access = Access(value, first, self._block(array, label), slot.offset, region, align, label)
        read_first = duty == 'operand' and value in self.program.carried and not argument.written
        if read_first and buffer in read_where_written(task.group):
            self.early[id(access)] = access
        return access, duty == 'zeroed'


def _duties(module: Module) -> dict[str, str]:
    """buffer -> 'operand' or 'result' of the task, 'prepared' ahead, 'zeroed' between calls, or
    'scratch'.
    """
    found = {b.name: 'zeroed' if b.zeroed else 'scratch' for b in module.buffers}
    for step in module.ahead:
        for argument, buffer in step.buffers:
            if step.kernel.array(argument).written:
                found[buffer] = 'prepared'
    roles = {'input': 'operand', 'constant': 'operand', 'output': 'result'}
    return found | {t.name: roles[t.role] for t in module.group.tensors if t.role in roles}
