"""A compiled network: numpy arrays in and out, one call into C for all of its steps.

Goes in: a program, where its values lie, and a library for each distinct group. Comes out:
`Network`. Constants are packed once, here, and their originals are not kept. A call sets the
pointers of the caller's arrays and runs `executor.c`: no Python and no allocation for each task.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.errors import ArrayError
from tilewright.graph.graph import DTYPES, Value
from tilewright.graph.limits import check_indices, index_limits
from tilewright.graph.memory import Memory, Place
from tilewright.graph.memory_proof import Beside, Rooms, prove_memory
from tilewright.graph.program import Program, Task
from tilewright.kernels.cpu.scratch import Scratch
from tilewright.ops.group import Group
from tilewright.runtime.cpu.calls import (
    Calls,
    Context,
    KernelArgs,
    NetStruct,
    PatchStruct,
    Results,
    StepStruct,
    executor,
)
from tilewright.runtime.cpu.kernel import pool
from tilewright.runtime.cpu.loaded import Compiled, Library
from tilewright.runtime.cpu.rooms import SharedMemory, room
from tilewright.runtime.network_arrays import (
    CalledNetwork,
    check_apart,
    check_named,
    checked_input,
    checked_result,
    contiguous,
    from_bytes,
    lies_in,
    new_array,
    own,
    typed,
)
from tilewright.runtime.pool import usable_cores
from tilewright.runtime.profile import Profile, TaskTime, medians, network_html
from tilewright.runtime.verify import poison

Read = Callable[[Value], np.ndarray]  # a value as its memory is now
_POINTER = ctypes.c_void_p
_WORD = ctypes.sizeof(_POINTER)
_LINE = 64
MOST_AT_ONCE = 8  # calls of one network, each with an arena of its own


class Network(CalledNetwork):
    """A compiled network. `net(x)`, `net(x, out=y)`, `net.run({'input': x}) -> {'output': ..}`.

    Calls from several threads run side by side, as many as there are cores, each with values and
    kernels' memory of its own; those of networks that share memory take turns. A child process
    that is forked may call a network of its parent. Memory of results that nobody holds any more
    is used for the next ones.
    """

    limits: Mapping[str, np.ndarray] = MappingProxyType({})  # input -> rows that it chooses from
    # Whether a call is nothing but kernels on arrays that the executor can check by itself.
    _plain = False
    _new: Sequence[Callable[[], np.ndarray]] = ()

    def __init__(
        self, program: Program, memory: Memory, kernels: Mapping[str, Compiled], threads: int,
        shared: SharedMemory | None = None,
    ) -> None:  # fmt: skip
        self._shared = shared
        self.name, self.threads = program.name, threads
        self.inputs = tuple(program.values[name] for name in program.inputs)
        self.outputs = tuple(
            Value(name, program.values[value].shape, program.values[value].dtype)
            for name, value in program.outputs
        )
        self.kernels = dict(kernels)
        self.tasks = tuple(_TaskInfo.of(task) for task in program.tasks)
        self.places, self.limits = memory.places, index_limits(program)
        self._plain = shared is None and not self.limits and not memory.copies
        self._build(program, memory)

    def _build(self, program: Program, memory: Memory) -> None:
        loaded = {
            digest: Library(kernel.library, kernel.sized) for digest, kernel in self.kernels.items()
        }
        libraries = [loaded[task.group.digest] for task in program.tasks]
        self._scratch = scratch = Scratch.of(library.scratch for library in libraries)
        self._needs = memory.arena_bytes, scratch.bytes
        packed, places, total = self._packed(program, libraries)
        prove_memory(
            program,
            memory,
            Rooms(
                scratch.bytes, total,
                [
                    Beside(
                        library.packing, scratch.end(*library.scratch), at, library.packed_bytes
                    )
                    for library, at in zip(libraries, places, strict=True)
                ],
            ),
        )  # fmt: skip
        self._loaded = list(loaded.values())  # kernels read their sizes
        self._kept: dict[str, np.ndarray] = {}
        for name in sorted(_read_in_place(program, memory)):
            self._keep(program, name)
        arrays = {
            ('input', value.name): number for number, value in enumerate(self.inputs)
        } | {
            ('output', value.name): number
            for number, value in enumerate(self.outputs, len(self.inputs))
        }  # fmt: skip
        self._bound = [
            _BoundTask(
                library, address, memory.places[task.result],
                [memory.places[task.operands[t.name]] for t in task.group.with_role('input')],
            )
            for task, library, address in zip(program.tasks, libraries, packed, strict=True)
        ]  # fmt: skip
        self._numbers = arrays
        self._copies = [
            ([o.name for o in self.outputs].index(name), self._source(program, memory, value))
            for name, value in memory.copies
        ]
        kinds = [(v.shape, DTYPES[v.dtype]) for v in (*self.inputs, *self.outputs)]
        count, most = len(self.inputs), 1 if self._shared else min(MOST_AT_ONCE, usable_cores())
        flops = sum(task.group.flops for task in program.tasks)
        self._calls = Calls(kinds[:count], kinds[count:], self._context, most, flops)
        self._new = [Results(*kind).new for kind in kinds[count:]]
        # One at once, so that memory that is missing is missed now.
        with self._turn() as context:
            self._rooms = tuple(room.nbytes for room in context.kept[:2])

    def _context(self) -> NetworkContext:
        """Memory for one call at a time, and the steps that work in it."""
        there = room if self._shared is None else self._shared.room
        arena = there(self.name, 'its values', self._needs[0])
        scratch = there(self.name, 'its kernels', self._needs[1])
        patches: list[PatchStruct] = []

        def point(slot: int, place: Place) -> None:
            """Let the pointer at address `slot` point at a place, now or at every call."""
            if place.kind in ('input', 'output'):
                patches.append(
                    PatchStruct(slot, self._numbers[place.kind, place.name], place.offset)
                )
                return
            base = arena if place.kind == 'arena' else self._kept[place.name]
            _POINTER.from_address(slot).value = base.ctypes.data + place.offset

        count = len(self._bound)
        arguments, steps = (KernelArgs * max(count, 1))(), (StepStruct * max(count, 1))()
        pointers = (_POINTER * max(sum(len(task.reads) for task in self._bound), 1))()
        slots = ctypes.addressof(pointers)
        for number, task in enumerate(self._bound):
            args, library = arguments[number], task.library
            args.inputs, args.packed, args.scratch = slots, task.packed, scratch.ctypes.data
            args.sizes = ctypes.addressof(library.sizes) if library.sizes else None
            for place in task.reads:
                point(slots, place)
                slots += _WORD
            here = ctypes.addressof(args)
            point(here + KernelArgs.out.offset, task.result)
            shift = self._scratch.shift(*library.scratch)
            steps[number] = StepStruct(library.part, here, library.parts, shift)
        fixed = (PatchStruct * max(len(patches), 1))(*patches)
        net = NetStruct(
            ctypes.cast(pool().tw_pool_run, _POINTER), ctypes.addressof(steps), count,
            ctypes.addressof(fixed), len(patches),
        )  # fmt: skip
        kept = (arena, scratch, arguments, steps, pointers, fixed)
        return NetworkContext(net, len(self.inputs) + len(self.outputs), kept)

    @contextmanager
    def _turn(self) -> Iterator[NetworkContext]:
        """A context, and where memory is shared the others' waiting."""
        waits = nullcontext() if self._shared is None else self._shared._lock
        with waits, self._calls.held() as context:
            assert isinstance(context, NetworkContext)
            yield context

    def _packed(
        self, program: Program, libraries: Sequence[Library]
    ) -> tuple[list[int], list[int], int]:
        """(address of every task's packed constants, its place among all of them, bytes of all):
        each set is packed once.
        """
        keys, first, size = [], {}, 0
        places: dict[tuple, int] = {}
        for task, library in zip(program.tasks, libraries, strict=True):
            key = (library.packing, tuple(program.packed(task)))
            keys.append(key)
            if key not in places:
                first[key], places[key] = library, size
                size += -(-library.packed_bytes // _LINE) * _LINE
        shared = self._shared
        # One room for all weights lies in huge pages; a second network of several sizes adds those
        # that turn out to be new.
        together = shared is None or not shared.packed
        self._weights = room(self.name, 'its weights', size if together else 0)

        def packed(key: tuple, library: Library) -> np.ndarray:
            if together:
                block = self._weights[places[key] :][: library.packed_bytes]
            elif shared is not None and key in shared.packed:
                return shared.packed[key]
            else:
                block = room(self.name, 'its weights', library.packed_bytes)
            given = [contiguous(program.constants[n], program.values[n]) for n in key[1]]
            pointers = (_POINTER * max(len(given), 1))(*(a.ctypes.data for a in given))
            library.pack(pointers, block.ctypes.data)
            return block

        # Outside Python's lock, so that several threads pack at once.
        with ThreadPoolExecutor(self.threads) as workers:
            waiting = {key: workers.submit(packed, key, lib) for key, lib in first.items()}
            blocks = {key: future.result() for key, future in waiting.items()}
        if shared is not None:
            blocks = shared.constants(self.name, blocks)
        return [blocks[k].ctypes.data for k in keys], [places[k] for k in keys], size

    def _keep(self, program: Program, name: str) -> None:
        """Keep a constant that is read as it is."""
        if name in self._kept:
            return
        made = own(program.constants[name], program.values[name])
        if self._shared is not None:
            before = self._shared.kept.setdefault(name, made)
            flat = before.reshape(-1)[: made.size].reshape(made.shape)
            made = flat if np.array_equal(flat, made) else made
        self._kept[name] = made

    def constant_places(self) -> tuple[list[int], dict[str, np.ndarray]]:
        """Where each task's packed constants lie, and the constants that are read as they are."""
        return [task.packed for task in self._bound], self._kept

    def _source(self, program: Program, memory: Memory, value: str) -> _Source:
        """Where a result that must be copied comes from: an input, or memory of our own."""
        place, kind = memory.places[value], program.values[value]
        size = math.prod(kind.shape) * np.dtype(DTYPES[kind.dtype]).itemsize
        if place.kind == 'input':
            return _Source(place.offset, size, input=program.inputs.index(place.name))
        if place.kind == 'output':
            names = [name for name, _ in program.outputs]
            return _Source(place.offset, size, output=names.index(place.name))
        if place.kind == 'constant':
            self._keep(program, place.name)
            return _Source(place.offset, size, memory=self._kept[place.name])
        return _Source(place.offset, size)

    @property
    def arena_bytes(self) -> int:
        """Bytes of everything between inputs and results, for each call at a time."""
        return self._rooms[0]

    @property
    def scratch_bytes(self) -> int:
        """Bytes that kernels use while they run, likewise."""
        return self._rooms[1]

    @property
    def weight_bytes(self) -> int:
        """Bytes of constants, as kernels read them."""
        return self._weights.nbytes + sum(array.nbytes for array in self._kept.values())

    def run(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Results by name. Those in `out` are written there, the others into new arrays."""
        inputs, outputs = self._checked(arrays, out or {})
        with self._turn() as context:
            context.bind((*inputs, *outputs))
            context.run()
            self._copy_out(context, inputs, outputs)
        return {v.name: a for v, a in zip(self.outputs, outputs, strict=True)}

    def __call__(
        self,
        *arrays: np.ndarray,
        out: np.ndarray | Sequence[np.ndarray] | None = None,
        **named: np.ndarray,
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        if self._plain and not named and len(arrays) == len(self.inputs):
            alone = len(self.outputs) == 1
            if out is None:
                results = [new() for new in self._new]
            else:
                listed: Sequence[Any] = out if isinstance(out, list | tuple) else [out]
                results = list(listed)
            if self._calls.run((*arrays, *results)):
                return results[0] if alone else tuple(results)
        return super().__call__(*arrays, out=out, **named)

    def step_by_step(self, arrays: Mapping[str, np.ndarray]) -> Generator[Read, None, None]:
        """Run one task at a time: stops before each of them, and once more behind the last.

        What comes out reads a value as its memory is at that moment. Memory is poisoned first, so
        that nothing of an earlier call can pass for a result. For finding what is wrong, not fast.
        """
        inputs, outputs = self._checked(arrays, {})
        given = {('input', v.name): a for v, a in zip(self.inputs, inputs, strict=True)}
        given |= {('output', v.name): a for v, a in zip(self.outputs, outputs, strict=True)}

        def read(value: Value) -> np.ndarray:
            place = self.places[value.name]
            if place.kind == 'arena':
                memory = context.arena
            elif place.kind == 'constant':
                memory = self._kept[place.name]
            else:
                memory = given[place.kind, place.name]
            return from_bytes(memory.reshape(-1).view(np.uint8)[place.offset :], value)

        with self._turn() as context:
            poison(context.arena.view(np.uint32))
            for array in outputs:
                poison(array)
            context.bind((*inputs, *outputs))
            for number in range(len(self.tasks)):
                yield read
                net = context.net
                first = net.steps + number * ctypes.sizeof(StepStruct)
                one = NetStruct(net.run, first, 1, net.patches, net.patch_count)
                executor().tw_execute(ctypes.addressof(one), context.io, None)
            yield read

    def stamps(self, arrays: Mapping[str, np.ndarray], repeats: int) -> np.ndarray:
        """[repeats, tasks + 1] seconds: when each task began, and when the last one ended."""
        inputs, outputs = self._checked(arrays, {})
        times = np.empty((repeats, len(self.tasks) + 1))
        with self._turn() as context:
            context.bind((*inputs, *outputs))
            for row in times:
                context.run(row.ctypes.data)
        return times

    def profile(self, *arrays: np.ndarray, calls: int = 20) -> Profile:
        """The time of every task, over some calls on these inputs, or on random ones."""
        named = self._examples(arrays, calls)
        self.stamps(named, 2)
        starts, lengths, total = medians(self.stamps(named, calls))
        return Profile(
            self.name, self.threads, calls, total,
            tuple(
                TaskTime.of(task, self.kernels[task.digest], float(ms), float(start))
                for task, ms, start in zip(self.tasks, lengths, starts, strict=True)
            ),
        )  # fmt: skip

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls, taken in C."""
        inputs, outputs = self._checked(arrays, {})
        seconds = np.empty(repeats)
        with self._turn() as context:
            context.bind((*inputs, *outputs))
            executor().tw_execute_time(context.address, context.io, repeats, seconds.ctypes.data)
        return seconds.tolist()

    def _checked(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        check_named(self.name, arrays, out)
        names = {v.name for v in self.inputs}
        unknown = [name for name in arrays if name not in names]
        if unknown:
            raise ArrayError(
                f'{self.name} has no input {unknown[0]!r}; it takes {self._signature()}'
            )
        results = {v.name for v in self.outputs}
        strange = [name for name in out if name not in results]
        if strange:
            raise ArrayError(
                f'{self.name} has no result {strange[0]!r}; it has '
                f'{", ".join(map(typed, self.outputs))}'
            )
        inputs = [self._input(v, arrays) for v in self.inputs]
        outputs = [
            checked_result(v, out[v.name]) if v.name in out else self._new_result(number)
            for number, v in enumerate(self.outputs)
        ]
        if out:
            # Kernels read inputs while they write results, so they must not overlap.
            spans = check_apart(self.name, outputs)
            inputs = [a.copy() if lies_in(a, spans) else a for a in inputs]
        return inputs, outputs

    def _new_result(self, number: int) -> np.ndarray:
        """Memory for a result; of networks on other devices always new."""
        return self._new[number]() if self._new else new_array(self.outputs[number])

    def _input(self, value: Value, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        if value.name not in arrays:
            raise ArrayError(
                f'{self.name}: input {value.name!r} is missing; it takes {self._signature()}'
            )
        array = checked_input(value, arrays[value.name])
        if value.name in self.limits:
            wrong = check_indices(value.name, array, self.limits[value.name])
            if wrong:
                raise ArrayError(f'{self.name}: {wrong}')
        return array

    def _copy_out(
        self, context: NetworkContext, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        for number, source in self._copies:
            data = source.bytes(context.arena, inputs, outputs)
            outputs[number].reshape(-1).view(np.uint8)[...] = data

    def __repr__(self) -> str:
        results = ', '.join(map(typed, self.outputs))
        return f'<network {self.name}: {self._signature()} -> {results}, {self.threads} threads>'

    def _repr_html_(self) -> str:
        tasks = [(task, self.kernels[task.digest]) for task in self.tasks]
        return network_html(self.name, repr(self)[1:-1], tasks)


@dataclass(frozen=True, slots=True)
class _BoundTask:
    """A task with its kernel: where its packed constants lie, what it writes and reads."""

    library: Library
    packed: int
    result: Place
    reads: list[Place]


class NetworkContext(Context):
    """A context whose first memory is the arena."""

    @property
    def arena(self) -> np.ndarray:
        return self.kept[0]


@dataclass(frozen=True, slots=True)
class _TaskInfo:
    """What a network remembers of a task: its name, its nodes, its group, what it writes."""

    name: str
    origin: tuple[str, ...]
    group: Group
    result: Value

    @property
    def digest(self) -> str:
        return self.group.digest

    @classmethod
    def of(cls, task: Task) -> _TaskInfo:
        out = task.group.output
        return cls(task.name, task.origin, task.group, Value(task.result, out.shape, out.dtype))


@dataclass(frozen=True, slots=True)
class _Source:
    """The bytes of a result that is a part, or another name, of something else."""

    offset: int
    size: int
    memory: np.ndarray | None = None
    input: int = -1
    output: int = -1

    def bytes(
        self, arena: np.ndarray, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> np.ndarray:
        if self.input >= 0 or self.output >= 0:
            array = inputs[self.input] if self.input >= 0 else outputs[self.output]
        else:
            array = arena if self.memory is None else self.memory
        return array.reshape(-1).view(np.uint8)[self.offset : self.offset + self.size]


def _read_in_place(program: Program, memory: Memory) -> set[str]:
    """Constants that kernels read as they are, so that they must be kept."""
    operands = (
        task.operands[tensor.name]
        for task in program.tasks
        for tensor in task.group.with_role('input')
    )
    places = [memory.places[value] for value in operands]
    return {place.name for place in places if place.kind == 'constant'}
