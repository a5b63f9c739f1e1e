"""The state of a training step that stays on a device: parameters, slots, statistics, counters.

Goes in: a network on a GPU whose program carries inputs on (graph/program.py), and the arrays at
first. Comes out: `DeviceState`, a mapping that copies an array to the host when it is asked for. A
step uploads its batch alone, runs, and downloads its loss: kernels write what is next where the
state lies. What they cannot (`GpuNetwork.carried` says) is copied there by way of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.training import LOSS, NEXT
from tilewright.runtime.gpu.network import GpuNetwork


class DeviceState(Mapping[str, np.ndarray]):
    """name -> a copy of its array; `write` changes what the device holds."""

    def __init__(self, network: GpuNetwork, state: Mapping[str, np.ndarray]) -> None:
        self.network = network
        self.kinds = {v.name: v for v in network.inputs if v.name in state}
        moved = {v.name.removesuffix(NEXT) for v in network.outputs} & set(state)
        self.copied = tuple(sorted(moved - network.carried))
        self.fixed = {name: array for name, array in state.items() if name not in self.kinds}
        self.write({name: array for name, array in state.items() if name in self.kinds})

    def __getitem__(self, name: str) -> np.ndarray:
        return self.fixed[name] if name in self.fixed else self.network.read([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.kinds, *self.fixed))

    def __len__(self) -> int:
        return len(self.kinds) + len(self.fixed)

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy arrays to the device, as the types that it keeps them in."""
        self.network.write({n: a.astype(DTYPES[self.kinds[n].dtype]) for n, a in arrays.items()})

    def step(self, given: Mapping[str, np.ndarray]) -> np.ndarray:
        """The loss of a step on these inputs."""
        self.network.write(given)
        self.network.launch()
        found = self.network.read([LOSS, *(f'{name}{NEXT}' for name in self.copied)])
        self.network.write({name: found[f'{name}{NEXT}'] for name in self.copied})
        return found[LOSS]
