"""A compiled network for a range of sizes: numpy arrays in and out, like `Network`.

Goes in: the ranges, and a function that binds the network of one point: its program, kernels that
are built already, memory that all points share. Comes out: `RangedNetwork`. A point that was seen
lately is called at once; any other costs its binding, some milliseconds for each kind of kernel.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.graph.ranges import Point, Ranges, wrong
from tilewright.runtime.cpu.calls import renew_in_children
from tilewright.runtime.cpu.kernel import array_of
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.cpu.rooms import SharedMemory
from tilewright.runtime.network_arrays import CalledNetwork, by_position, check_named, example
from tilewright.runtime.profile import Profile

KEPT_POINTS = 64  # bound networks that are kept; each has some kilobytes beside what is shared


class RangedNetwork(CalledNetwork):
    """One network for all sizes of its ranges; `at` gives the `Network` of one of them.

    `plans` is what the networks of points are made from, where they share kernels.
    `inputs` and `outputs` have the shapes of the largest point. Memory is that of the largest, and
    weights are there once. Calls from several threads take turns.
    """

    def __init__(
        self,
        ranges: Ranges,
        bind: Callable[[Point, SharedMemory], Network],
        certificate: Any,
        plans: Any = None,
    ) -> None:
        self.ranges, self.certificate, self.plans = ranges, certificate, plans
        self._bind, self._memory = bind, SharedMemory()
        self._bound: OrderedDict[Point, Network] = OrderedDict()
        self.renew()
        largest = self.at(*ranges.largest)
        self.name, self.threads = largest.name, largest.threads
        self.inputs, self.outputs = largest.inputs, largest.outputs
        renew_in_children(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def at(self, *point: int) -> Network:
        """The network of one point, sizes in the order of `ranges.axes`."""
        axes = self.ranges.axes
        whole = all(isinstance(size, int | np.integer) for size in point)
        if len(point) != len(axes) or not whole:
            raise InputError(
                f'{point} is not a point of {self.ranges}; give a size for each of {len(axes)} axes'
                f'{"" if whole else ", whole numbers one after the other"}'
            )
        for axis, size in zip(axes, point, strict=True):
            if size not in axis.sizes:
                (name, position) = axis.places[0]
                raise InputError(
                    f'{point} is not a point of {self.ranges}: {name}[{position}] = {size} is '
                    f'{wrong(axis, size)}'
                )
        with self._lock:
            if point not in self._bound:
                self._bound[point] = self._bind(point, self._memory)
                while len(self._bound) > KEPT_POINTS:
                    self._bound.popitem(last=False)
            self._bound.move_to_end(point)
            return self._bound[point]

    def for_arrays(self, arrays: Mapping[str, Any]) -> Network:
        """The network that these inputs, by name, are for."""
        check_named(self.name, arrays, {})
        shapes = {
            name: (a if isinstance(a, np.ndarray) else array_of(f'input {name!r}', a)).shape
            for name, a in arrays.items()
        }
        return self.at(*self.ranges.point_of(self.name, shapes))

    def run(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        return self.for_arrays(arrays).run(arrays, out)

    def profile(self, *arrays: np.ndarray, calls: int = 20) -> Profile:
        """The time of every task at the sizes of these inputs, or at the largest."""
        named = by_position(self.name, self.inputs, arrays or tuple(map(example, self.inputs)))
        return self.for_arrays(named).profile(*arrays, calls=calls)

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls, taken in C."""
        return self.for_arrays(arrays).time(arrays, repeats)

    def explain(self, *arrays: np.ndarray, calls: int = 20) -> str:
        return f'{self._signature()}: {self.certificate}\n{super().explain(*arrays, calls=calls)}'

    @property
    def arena_bytes(self) -> int:
        return self._memory.rooms['its values'].nbytes

    @property
    def scratch_bytes(self) -> int:
        return self._memory.rooms['its kernels'].nbytes

    @property
    def weight_bytes(self) -> int:
        return self._memory.weight_bytes

    @property
    def tasks(self) -> Sequence[Any]:
        """Of the largest point."""
        return self.at(*self.ranges.largest).tasks

    @property
    def kernels(self) -> Mapping[str, Any]:
        """Of the largest point."""
        return self.at(*self.ranges.largest).kernels

    def _signature(self) -> str:
        return str(self.ranges)

    def __repr__(self) -> str:
        results = ', '.join(value.name for value in self.outputs)
        return (
            f'<network {self.name}: {self.ranges} -> {results}, {self.threads} threads, '
            f'{self.certificate}>'
        )


class SeparateNetworks(RangedNetwork):
    """Networks of all sizes, each with kernels and memory of its own, behind one call."""

    def __init__(self, ranges: Ranges, networks: Mapping[Point, Network], certificate: Any) -> None:
        self._networks = networks
        super().__init__(ranges, lambda point, _: networks[point], certificate)

    @property
    def arena_bytes(self) -> int:
        return sum(network.arena_bytes for network in self._networks.values())

    @property
    def scratch_bytes(self) -> int:
        return sum(network.scratch_bytes for network in self._networks.values())

    @property
    def weight_bytes(self) -> int:
        return sum(network.weight_bytes for network in self._networks.values())
