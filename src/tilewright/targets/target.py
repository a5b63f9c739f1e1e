"""A target: one kind of device that groups and networks are made for. One value each, in one table.

Goes in: a name, 'cpu', 'cuda', 'opencl' or 'host'. Comes out: the value that answers for it: which
candidates there are, what their source is, how fast they run, how they are called. Layers
(`pipeline.optimize`) and networks (`network.compile`) ask it, and nobody else tells targets apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.registry import Registry
from tilewright.runtime.measure import Progress
from tilewright.schedule.choice import AnySchedule, Choice
from tilewright.store.records import Store

if TYPE_CHECKING:
    from tilewright.store.network_file import Saved
    from tilewright.targets.plan import Plan
    from tilewright.targets.site import Site

Report = Callable[[Progress], object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `optimize` was asked for; its docstring says what each word means."""

    machine: Any = None
    device: str = ''
    top: int = 5
    trials: int | None = None
    measure: bool = True
    threads: int | None = None
    model: str = 'auto'
    algorithm: str = 'auto'
    max_rel_err: float = DEFAULT_LIMIT
    store: Store | None = None
    seed: int | None = None
    progress: Report | None = None
    chosen: tuple[Choice, ...] = ()  # candidates that were ranked before; (): rank them
    search: str = 'local'


class Target(Protocol):
    """What a target can do with one group. `suffix` is that of its source files."""

    @property
    def name(self) -> str: ...

    @property
    def suffix(self) -> str: ...

    def plan(self, group: Group, wanted: Wanted) -> Plan:
        """Candidates for a group, best first: by the model, and measured if that is wanted."""
        ...

    def source(self, group: Group, schedule: AnySchedule) -> str:
        """The generated source."""
        ...

    def bounds_s(self, plan: Plan) -> tuple[float, float]:
        """Seconds that no kernel can beat: of any that computes every product, and of any of the
        best candidate's algorithm.
        """
        ...

    def peak_gflops(self, plan: Plan) -> float:
        """Multiply-adds in fp32, all that the machine has for this plan."""
        ...

    def summary(self, group: Group, schedule: AnySchedule) -> str:
        """A schedule in one line."""
        ...

    def lines(self, group: Group, schedule: AnySchedule) -> list[str]:
        """A schedule in full: loops, or decisions."""
        ...

    def build(self, plan: Plan, constants: Mapping[str, np.ndarray]) -> Any:
        """A callable for the best candidate, with constants bound."""
        ...

    def explain(self, plan: Plan) -> str:
        """Where the time goes, and why this schedule."""
        ...

    def site(self, machine: Any, threads: int | None, device: str) -> Site:
        """Where a network is to run; raises for words that mean nothing here."""
        ...

    def site_for(
        self, path: Any, saved: Saved, threads: int | None, device: str
    ) -> Site:  # fmt: skip
        """Where the network of a file is to run."""
        ...


TARGETS: Registry[Target] = Registry(
    'a target',
    {
        'cpu': 'tilewright.targets.cpu.target:CPU_TARGET',
        'cuda': 'tilewright.targets.gpu.target:CUDA_TARGET',
        'opencl': 'tilewright.targets.gpu.target:OPENCL_TARGET',
        'host': 'tilewright.targets.gpu.target:HOST_TARGET',
    },
)


def target_of(name: str) -> Target:
    """The target of a name; raises InputError for one that is not known."""
    return TARGETS.named(name)
