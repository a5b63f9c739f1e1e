"""One layer on a GPU: our time beside others', its bound, and the table of all layers.

Goes in: what a search and a duel found. Comes out: `GpuLayer`, lines of text, JSON that reads back.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import GpuBounds
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright_lab.compare.gpu_duel import median_us

COUNTED = (
    'microseconds of one call, replayed from a graph; everything a call needs is counted, constant '
    'weights are packed ahead; ratio: rival over ours, above 1 ours is faster'
)


@dataclass(frozen=True, slots=True)
class GpuLayer:
    """`contestants` are those of a duel, with every sample; ours first. `tried` counts candidates.

    `rival` is the contestant that counts; others are shown. `message` says why nothing was timed.
    """

    name: str
    label: str
    digest: str
    flops: int
    machine: GpuMachine
    rival: str
    contestants: tuple[Mapping[str, Any], ...] = ()
    bounds: GpuBounds | None = None
    tried: int = 0
    worked: int = 0
    tuning_s: float = 0.0
    message: str = ''
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Our fastest schedule of the duel."""
        ours = [c for c in self.contestants if c['name'].startswith('ours/') and c.get('median_us')]
        return min(ours, key=lambda c: c['median_us'], default=None)

    @property
    def ours_us(self) -> float | None:
        return self.best['median_us'] if self.best else None

    @property
    def schedule(self) -> GpuSchedule | None:
        return GpuSchedule.from_json(self.best['settings']['schedule']) if self.best else None

    def time_us(self, name: str) -> float | None:
        return median_us(self.contestants, name)

    def ratio(self, name: str) -> float | None:
        other = self.time_us(name)
        return other / self.ours_us if other and self.ours_us else None

    @property
    def tflops(self) -> float | None:
        return self.flops / self.ours_us / 1e6 if self.ours_us else None

    @property
    def percent_of_peak(self) -> float | None:
        """Of the multiply-add units' peak; matrix instructions may exceed 100."""
        return 100e3 * self.tflops / self.machine.peak_gflops if self.tflops else None

    def to_json(self) -> dict:
        schedule = self.schedule
        return {
            'name': self.name, 'label': self.label, 'digest': self.digest, 'flops': self.flops,
            'ours_us': self.ours_us, 'tflops_per_s': self.tflops,
            'percent_of_fp32_peak': self.percent_of_peak,
            'bound': self.bounds and self.bounds.to_json(),
            'schedule': schedule and schedule.to_json(), 'rival': self.rival,
            'rival_us': self.time_us(self.rival), 'ratio': self.ratio(self.rival),
            'tried': self.tried, 'worked': self.worked, 'tuning_s': self.tuning_s,
            'message': self.message, 'contestants': [dict(c) for c in self.contestants],
            **self.extra,
        }  # fmt: skip


def geometric_mean(layers: Sequence[GpuLayer], name: str) -> float | None:
    ratios = [r for layer in layers if (r := layer.ratio(name)) is not None]
    return statistics.geometric_mean(ratios) if ratios else None


def _cell(value: float | None, digits: int) -> str:
    return '-' if value is None else f'{value:.{digits}f}'


class GpuTable:
    """Rows as soon as they are there; the columns of rivals follow from `names`."""

    def __init__(self, layers: Sequence[str], names: Sequence[str]) -> None:
        self.width = max([5, *map(len, layers)])
        self.names = tuple(names)

    def head(self) -> str:
        cells = ['ours us', 'TFLOP/s', '% peak', 'bound us', 'by']
        for name in self.names:
            cells += [f'{name} us', 'ratio']
        return f'{COUNTED}\n{self._line("layer", cells, "schedule")}'

    def row(self, layer: GpuLayer) -> str:
        bound = layer.bounds
        cells = [
            _cell(layer.ours_us, 2), _cell(layer.tflops, 1), _cell(layer.percent_of_peak, 1),
            _cell(bound and bound.microseconds, 2), bound.by if bound else '-',
        ]  # fmt: skip
        for name in self.names:
            cells += [_cell(layer.time_us(name), 2), _cell(layer.ratio(name), 2)]
        said = schedule_text(layer.schedule) if layer.schedule else layer.message
        return self._line(layer.name, cells, said)

    def foot(self, layers: Sequence[GpuLayer]) -> str:
        lines = []
        for name in self.names:
            mean = geometric_mean(layers, name)
            count = sum(x.ratio(name) is not None for x in layers)
            behind = [x.name for x in layers if (r := x.ratio(name)) is not None and r < 1]
            if mean is not None:
                lost = f'; behind on {", ".join(behind)}' if behind else '; ahead on all of them'
                over = f'over {count} of {len(layers)} layers'
                lines.append(f'geometric mean of {name} / ours {over}: {mean:.2f}{lost}')
        return '\n'.join(lines)

    def _line(self, name: str, cells: Sequence[str], last: str) -> str:
        widths = [9, 8, 7, 9, 8, *(w for n in self.names for w in (max(9, len(n) + 3), 6))]
        padded = (c.rjust(w) for c, w in zip(cells, widths, strict=True))
        return ' '.join([name.ljust(self.width), *padded, ' ' + last]).rstrip()
