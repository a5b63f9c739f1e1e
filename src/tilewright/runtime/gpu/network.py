"""A compiled network on a GPU: numpy arrays in and out, one CUDA graph or command stream a call.

Goes in: kernels with their arguments bound (targets/gpu/bind.py), and where inputs and results lie
on the device. Comes out: `GpuNetwork`, called as a network of the CPU is. A call copies the inputs,
starts what was recorded, and copies the results: no Python and no allocation for each task.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.graph.graph import Value
from tilewright.graph.memory import Place
from tilewright.ops.group import Group
from tilewright.runtime.cpu.network import Network, Read
from tilewright.runtime.gpu.device import Call, Device, NDArray, Program, bytes_of
from tilewright.runtime.gpu.recorded import Waits, recorded
from tilewright.runtime.network_arrays import checked_input, from_bytes, new_array
from tilewright.runtime.profile import Profile, TaskTime, network_html
from tilewright.runtime.verify import poison
from tilewright.schedule.gpu import GpuSchedule

CALLS = 20

Launches = tuple[Sequence[Call], Waits]  # what is started, and what each of it waits for


@dataclass(frozen=True, slots=True)
class GpuTask:
    """One task: its name, the nodes of the model that it computes, and its kernels.

    predicted_s, bound_s, limit   as in runtime/cpu/network.py
    """

    name: str
    origin: tuple[str, ...]
    group: Group
    schedule: GpuSchedule
    calls: tuple[Call, ...]
    predicted_s: float
    bound_s: float
    limit: str
    result: Value


@dataclass(frozen=True, slots=True)
class Held:
    """What a network holds of a device, to be given back with it."""

    arena: NDArray
    arrays: tuple[NDArray, ...]
    programs: tuple[Program, ...]


class GpuNetwork(Network):
    """A network on a GPU. `net(x)`, `net(x, out=y)`, `net.run({'input': x}) -> {'output': ..}`.

    Calls from several threads take turns. `launch` runs on what the device's own arrays hold
    (`buffers`), for callers that keep their data there. `carried` are inputs that a call replaces
    by what they are next; those of them that nobody writes are the state of the last call.
    """

    carried: frozenset[str] = frozenset()

    def __init__(
        self,
        name: str,
        device: Device,
        inputs: Sequence[tuple[Value, NDArray]],
        outputs: Sequence[tuple[Value, NDArray]],
        tasks: Sequence[GpuTask],
        waits: Waits | None,
        held: Held,
        places: Mapping[str, Place] = MappingProxyType({}),
        launches: Launches | None = None,
    ) -> None:
        """`waits` says for every kernel what it waits for; None: for the one before it.

        `places` says where in the arena values lie that are no constants, `launches` what a call
        starts where that is not every kernel by itself.
        """
        self.name, self.device, self.threads = name, device, 1
        self.inputs = tuple(value for value, _ in inputs)
        self.outputs = tuple(value for value, _ in outputs)
        self._new = [partial(new_array, value) for value in self.outputs]
        self.buffers = {value.name: array for value, array in (*inputs, *outputs)}
        self.gpu_tasks = tuple(tasks)
        self.tasks: Any = self.gpu_tasks
        self.waits, self.places = waits, places
        self._held = held
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, _give_back, device, held)
        self._close.atexit = False  # a driver may have ended before we do
        self.launches = (self.calls, waits) if launches is None else launches
        self._recorded = recorded(device, *self.launches)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All kernels of a call, in an order in which they may run one after the other."""
        return tuple(call for task in self.gpu_tasks for call in task.calls)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all values, inputs and results included, and of kernels' scratch memory."""
        return self._held.arena.bytes

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory lies in the arena."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of constants, as kernels read them."""
        return sum(array.bytes for array in self._held.arrays)

    def run(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Results by name. Those in `out` are written there, the others into new arrays."""
        inputs, outputs = self._checked(arrays, out or {})
        with self._lock:
            self.device.use()
            self._write(inputs)
            self._recorded.run()
            for value, array in zip(self.outputs, outputs, strict=True):
                if array.size:
                    self.device.read(self.buffers[value.name], array)
        return {v.name: a for v, a in zip(self.outputs, outputs, strict=True)}

    def _write(self, inputs: Sequence[np.ndarray]) -> None:
        for value, array in zip(self.inputs, inputs, strict=True):
            if array.size:
                self.device.write(self.buffers[value.name], array)

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy some inputs to the device, for `launch`."""
        kinds = {value.name: value for value in self.inputs}
        with self._lock:
            self.device.use()
            for name, array in arrays.items():
                given = checked_input(kinds[name], array)
                if given.size:
                    self.device.write(self.buffers[name], given)

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inputs and results by name, as the device's memory is now."""
        kinds = {value.name: value for value in (*self.inputs, *self.outputs)}
        found = {}
        with self._lock:
            self.device.use()
            for name in names:
                found[name] = new_array(kinds[name])
                if found[name].size:
                    self.device.read(self.buffers[name], found[name])
        return found

    def launch(self) -> None:
        """Run on what `buffers` hold; results are there once the device is synchronized."""
        with self._lock:
            self.device.use()
            self._recorded.run()

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls by the device's clock, data on the device."""
        inputs, _ = self._checked(arrays, {})
        with self._lock:
            self.device.use()
            self._write(inputs)
        return self.time_again(repeats)

    def time_again(self, repeats: int, copies: int = 1) -> list[float]:
        """The same of `launch`, on what `buffers` hold, each the mean of some that follow each
        other.
        """
        with self._lock:
            self.device.use()
            self._recorded.run()
            self.device.synchronize()
            return self._recorded.time(repeats, copies)

    def step_by_step(self, arrays: Mapping[str, np.ndarray]) -> Generator[Read, None, None]:
        """Run one task at a time, as `Network.step_by_step` does, without what was recorded."""
        inputs, _ = self._checked(arrays, {})
        arena, device = self._held.arena, self.device

        def read(value: Value) -> np.ndarray:
            offset = self.places[value.name].offset
            first = offset - offset % device.alignment
            size = offset - first + bytes_of(value.shape, value.dtype)
            part = device.part(arena, first, ('byte',), (max(size, 1),), 'u8')
            return from_bytes(device.download(part)[offset - first :], value)

        with self._lock:
            device.use()
            device.write(arena, poison(np.empty(arena.bytes, np.uint8)))
            self._write(inputs)
            for task in self.gpu_tasks:
                yield read
                for call in task.calls:
                    device.launch(call)
                device.synchronize()
            yield read

    def stamps(self, arrays: Mapping[str, np.ndarray], repeats: int) -> np.ndarray:
        """[repeats, tasks + 1] seconds: tasks one after the other, each timed by itself."""
        inputs, _ = self._checked(arrays, {})
        with self._lock:
            self.device.use()
            self._write(inputs)
            self._recorded.run()
            self.device.synchronize()
            lengths = np.array([self.device.time(t.calls, repeats) for t in self.gpu_tasks])
        rows = lengths.reshape(len(self.gpu_tasks), repeats).T
        return np.concatenate([np.zeros((repeats, 1)), np.cumsum(rows, axis=1)], axis=1)

    def profile(self, *arrays: np.ndarray, calls: int = CALLS) -> Profile:
        """The time of every task alone, and that of a whole call, in which branches overlap."""
        named = self._examples(arrays, calls)
        stamps = self.stamps(named, calls)
        lengths = 1e3 * np.median(np.diff(stamps, axis=1), axis=0)
        starts = np.concatenate([[0.0], np.cumsum(lengths)])
        total = 1e3 * float(np.median(self.time(named, calls)))
        return Profile(
            self.name, self.threads, calls, total,
            tuple(
                TaskTime.of(task, task, float(ms), float(start))
                for task, ms, start in zip(self.gpu_tasks, lengths, starts, strict=False)
            ),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f'<network {self.name} on {self.device.name}: {self._signature()}>'

    def _repr_html_(self) -> str:
        return network_html(self.name, repr(self)[1:-1], [(t, t) for t in self.gpu_tasks])


def _give_back(device: Device, held: Held) -> None:
    """Memory and code; a device that has gone wrong keeps them."""
    with contextlib.suppress(TilewrightError):
        device.use()
        for array in (held.arena, *held.arrays):
            device.free(array)
        for program in held.programs:
            device.unload(program)
