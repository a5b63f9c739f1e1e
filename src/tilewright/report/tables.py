"""The figures of a plan, and rows of them: what `tilewright optimize` and the demo print.

Goes in: plans. Comes out: `Figures`, and lines of text whose columns keep their places, so that a
row can be printed as soon as its layer is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.targets.plan import Plan


COUNTED = 'GFLOP/s count the direct operations; Winograd and FFT perform fewer'


@dataclass(frozen=True, slots=True)
class Figures:
    """One plan in numbers. `measured_ms` is None when nothing was timed, or nothing worked.

    `bound_ms` holds for direct kernels, `algorithm_bound_ms` for those of the chosen algorithm.
    """

    flops: int
    predicted_ms: float
    measured_ms: float | None
    bound_ms: float
    algorithm_bound_ms: float
    peak_gflops: float
    status: str

    @property
    def time_ms(self) -> float:
        """The measured time, else the predicted one."""
        return self.predicted_ms if self.measured_ms is None else self.measured_ms

    @property
    def gflops(self) -> float:
        """Operations of the definition per second, two for each multiply-add."""
        return self.flops / self.time_ms / 1e6

    @property
    def percent_of_peak(self) -> float:
        """Above 100 where Winograd or FFT performs fewer operations than the definition has."""
        return 100 * self.gflops / self.peak_gflops

    @property
    def percent_of_bound(self) -> float:
        """100 means that no kernel of the chosen algorithm can be faster."""
        return 100 * self.algorithm_bound_ms / self.time_ms

    def to_json(self) -> dict:
        return asdict(self) | {
            'gflops_per_s': self.gflops,
            'percent_of_peak': self.percent_of_peak,
            'percent_of_bound': self.percent_of_bound,
        }


def figures(plan: Plan) -> Figures:
    """[Plan] -> [Figures] of its best candidate."""
    best = plan.best
    return Figures(
        plan.group.flops,
        1e3 * best.prediction.seconds,
        best.time_ms,
        plan.bound_ms,
        plan.algorithm_bound_ms,
        plan.peak_gflops,
        best.measurement.status if best.measurement else 'not measured',
    )


class Columns:
    """A table whose widths are known before its rows: headings, and a name column that fits."""

    def __init__(self, names: Sequence[str], headings: Sequence[str]) -> None:
        self.first = max([len('layer'), *map(len, names)])
        self.headings = tuple(headings)

    def head(self) -> str:
        """The headings; above them, where shares of the peak are shown, what GFLOP/s count."""
        headings = self.row('layer', self.headings)
        return f'{COUNTED}\n{headings}' if '% peak' in self.headings else headings

    def row(self, name: str, cells: Sequence[str], last: str = '') -> str:
        """Cells to the right under their headings; `last` ends the line."""
        padded = (c.rjust(max(8, len(h))) for c, h in zip(cells, self.headings, strict=True))
        return '  '.join([name.ljust(self.first), *padded, last]).rstrip()


OPTIMIZED = ('predicted', 'measured', 'GFLOP/s', '% peak', '% bound')


def optimized_cells(plan: Plan) -> list[str]:
    """Cells under `OPTIMIZED`; times in milliseconds."""
    shown = figures(plan)
    measured = shown.status if shown.measured_ms is None else f'{shown.measured_ms:.3f}'
    return [
        f'{shown.predicted_ms:.3f}',
        '-' if shown.status == 'not measured' else measured,
        f'{shown.gflops:.1f}',
        f'{shown.percent_of_peak:.1f}',
        f'{shown.percent_of_bound:.1f}',
    ]


def optimized_row(columns: Columns, name: str, plan: Plan) -> str:
    """One line of a suite."""
    return columns.row(name, optimized_cells(plan), plan.summary)
