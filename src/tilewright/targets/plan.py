"""The result of `optimize`: ranked candidates, what was measured, and how to build the best.

The same kind of value for every target; what differs is behind `target_of(plan.target)`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import ArrayError, CheckError, InputError
from tilewright.files import path_of, replacing_all
from tilewright.notebook import short_form
from tilewright.ops.group import Group
from tilewright.runtime.measure import Measurement
from tilewright.targets.target import target_of

# Names that people use for the constants of a convolution.
_ALIASES = {'weights': 'Ker', 'bias': 'Bias'}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule, what the model says of it, and what was measured (None: not measured)."""

    schedule: Any  # a `Schedule` or a `GpuSchedule`
    prediction: Any  # of the target's model: it has `seconds`, `limit` and `to_json`
    measurement: Measurement | None = None

    @property
    def time_ms(self) -> float | None:
        """The measured time; None if it was not measured or did not work."""
        return self.measurement.median_ms if self.measurement else None

    def to_json(self) -> dict:
        return {
            'schedule': self.schedule.to_json(),
            'digest': self.schedule.digest,
            'predicted': self.prediction.to_json(),
            'measured': self.measurement.to_json() if self.measurement else None,
        }


@dataclass(frozen=True)
class Plan:
    """Candidates for one group on one machine, best first.

    `threads` is 0 on a GPU; `max_rel_err` is the error budget that algorithms were chosen within;
    None: not known. `ranked_by` says on a GPU what ordered the candidates that were timed.
    """

    group: Group
    machine: Any  # a `Machine` or a `GpuMachine`
    threads: int
    candidates: tuple[Candidate, ...]
    solver_bound_s: float = 0.0
    warnings: tuple[str, ...] = ()
    max_rel_err: float | None = None
    target: str = 'cpu'
    ranked_by: str = ''

    @property
    def best(self) -> Candidate:
        """The winner of the paired finals, or, unmeasured, the best predicted."""
        return self.candidates[0]

    @property
    def bound_ms(self) -> float:
        """A lower bound on the time of any kernel that computes every product.

        It does not depend on which algorithm won: Winograd, which computes fewer, may be below it.
        """
        return 1e3 * target_of(self.target).bounds_s(self)[0]

    @property
    def algorithm_bound_ms(self) -> float:
        """The same for any kernel of the best candidate's algorithm; `bound_ms` if it is direct."""
        return 1e3 * target_of(self.target).bounds_s(self)[1]

    @property
    def peak_gflops(self) -> float:
        """Multiply-adds in fp32 that the machine can do for this plan."""
        return target_of(self.target).peak_gflops(self)

    @property
    def summary(self) -> str:
        """The best schedule in one line."""
        return target_of(self.target).summary(self.group, self.best.schedule)

    def lines(self) -> list[str]:
        """The best schedule in full."""
        return target_of(self.target).lines(self.group, self.best.schedule)

    def source(self, candidate: Candidate | None = None) -> str:
        """The generated source: C, CUDA or OpenCL."""
        return target_of(self.target).source(self.group, (candidate or self.best).schedule)

    def library(self, candidate: Candidate | None = None) -> Path:
        """The compiled kernel of a CPU, from the cache or built now."""
        make = getattr(target_of(self.target), 'library', None)
        if make is None:
            raise InputError(f'target {self.target} has no libraries; use build or source')
        return make(self.group, (candidate or self.best).schedule)

    def build(
        self,
        weights: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
    ) -> Any:
        """A callable for the best candidate, with constant weights packed once.

        Constants of other operators go by tensor name in `constants`; what is left out must be
        given with every call.
        """
        if self.best.measurement and not self.best.measurement.ok:
            raise CheckError(
                f'no candidate for {self.group.label} worked: {self.best.measurement.message}'
            )
        given = dict(constants or {})
        for name, value in (('weights', weights), ('bias', bias)):
            if value is not None:
                if not any(t.name == _ALIASES[name] for t in self.group.with_role('constant')):
                    raise ArrayError(f'{self.group.label} takes no {name}')
                given[_ALIASES[name]] = value
        return target_of(self.target).build(self, given)

    def explain(self) -> str:
        """Where the time goes, why this schedule, what is left above the bound."""
        return target_of(self.target).explain(self)

    def certificate(self) -> dict:
        """The lower bound, the gap and what proves them, for `tilewright.certificate.check`."""
        from tilewright.report.certificate import certificate_of

        return certificate_of(self)

    def emit(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the generated source of every candidate, best first."""
        where, suffix = path_of('folder', folder), target_of(self.target).suffix
        texts = {
            f'{number:02d}-{candidate.schedule.digest}{suffix}': self.source(candidate)
            for number, candidate in enumerate(self.candidates, 1)
        }
        with replacing_all(where) as made:
            for name, text in texts.items():
                (made / name).write_text(text)
        return [where / name for name in texts]

    def _repr_html_(self) -> str:
        """The candidates, for a notebook; `tilewright report` makes the page."""
        rows = [
            (
                target_of(self.target).summary(self.group, c.schedule),
                f'{1e3 * c.prediction.seconds:.4f}',
                '-' if c.time_ms is None else f'{c.time_ms:.4f}',
                f'{self.algorithm_bound_ms / (c.time_ms or 1e3 * c.prediction.seconds):.0%}',
            )
            for c in self.candidates
        ]
        said = f'on {self.machine.name}; bound {self.algorithm_bound_ms:.4f} ms'
        head = ('schedule', 'predicted ms', 'measured ms', 'of bound')
        return short_form(self.group.label, said, head, rows)

    def to_json(self) -> dict:
        return {
            'label': self.group.label,
            'group': self.group.to_json(),
            'flops': self.group.flops,
            'target': self.target,
            'threads': self.threads,
            'machine': self.machine.to_json(),
            'bound_ms': self.bound_ms,
            'algorithm_bound_ms': self.algorithm_bound_ms,
            'solver_bound_ms': 1e3 * self.solver_bound_s,
            'candidates': [c.to_json() for c in self.candidates],
            'warnings': list(self.warnings),
            'max_rel_err': self.max_rel_err,
            'ranked_by': self.ranked_by,
        }
