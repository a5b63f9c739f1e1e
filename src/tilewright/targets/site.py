"""Where a network will run: a CPU with so many threads, or a GPU device. One interface for all.

`network.compile` walks through its stages by these alone:

    prices    [Group]            -> [seconds]                     for passes that join tasks
    ordered   [Program]          -> [Program]                     tasks in the order they will run
    choose    [Program]          -> [choices of each group]       by the model
    tune      [choices]          -> [the fastest of each group]   by measuring
    select    [choice of each]   -> [choice of each]              a vendor's library where asked
    within    [Program, choices] -> [Program]                     in less memory, where asked
    bind      [Program, choices] -> [Network]                     generated, built, bound to memory
    adopt     [Saved]            -> [choice of each group]        of a .tw file, or anew
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.graph.fuse import Cost
from tilewright.graph.passes import ProgramPasses
from tilewright.graph.program import Program
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.cpu.network import Network
from tilewright.schedule.choice import Choice
from tilewright.search.fusion import Prices
from tilewright.store.network_file import Saved
from tilewright.targets.gpu.tuning import How
from tilewright.targets.target import Report

if TYPE_CHECKING:
    from tilewright.runtime.fleet import Fleet

Choices = Mapping[str, Sequence[Choice]]  # by the digest of a group, the best first


@dataclass(frozen=True, slots=True)
class Asked:
    """How the kernels of a network are chosen.

    tune     'model' or 'measure'
    libraries  of vendors that may compete: 'none', 'auto' or 'only' (targets/gpu/selector.py)
    trials   kernels of each group that are timed; None: as many as the target takes
    how      what ranks and searches them on a GPU, and the algorithm of convolutions anywhere
    fleet    where they are timed (targets/fleet.py); None: here
    """

    tune: str = 'model'
    trials: int | None = None
    max_rel_err: float = DEFAULT_LIMIT
    how: How = field(default_factory=How)
    libraries: str = 'none'
    fleet: str | Fleet | None = None

    @property
    def algorithm(self) -> str:
        return self.how.algorithm

    def by(self, algorithm: str) -> Asked:
        """The same with another algorithm for convolutions."""
        return replace(self, how=replace(self.how, algorithm=algorithm))


class Site(Protocol):
    """A place to run networks at; `threads` is 0 on a GPU."""

    @property
    def target(self) -> str: ...

    @property
    def machine(self) -> Any: ...

    @property
    def threads(self) -> int: ...

    @property
    def passes(self) -> ProgramPasses: ...

    @property
    def cost(self) -> Cost: ...

    def prices(self, asked: Asked) -> Prices:
        """What groups of several reducing stages are decided by (search/fusion.py)."""
        ...

    def ordered(self, program: Program) -> Program: ...

    def choose(
        self, program: Program, asked: Asked, progress: Report | None = None
    ) -> dict[str, tuple[Choice, ...]]: ...

    def tune(
        self, program: Program, chosen: Choices, asked: Asked, progress: Report | None = None
    ) -> dict[str, Choice]: ...

    def select(
        self, program: Program, best: Mapping[str, Choice], asked: Asked,
        progress: Report | None = None,
    ) -> dict[str, Choice]: ...  # fmt: skip

    def within(
        self, program: Program, best: Mapping[str, Choice], limit: int, max_rel_err: float
    ) -> Program: ...

    def bind(
        self, program: Program, best: Mapping[str, Choice], max_rel_err: float,
        progress: Report | None = None,
    ) -> Network: ...  # fmt: skip

    def adopt(
        self, path: Any, saved: Saved, progress: Report | None = None
    ) -> dict[str, Choice]: ...  # fmt: skip
