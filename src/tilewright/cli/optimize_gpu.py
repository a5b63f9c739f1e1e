"""`tilewright optimize --machine h200 --no-measure`: schedules for a known GPU, by a model alone.

Nothing is compiled or timed: a population of schedules is bred by the scores of the model that was
asked for (rank/rankers.py), and the best are shown with what the time model says of them. What is
timed on a device is found by `tilewright bench --target cuda` and `tw.compile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.cli.output import Output
from tilewright.errors import InputError, ScheduleError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.time import GpuPrediction, predict_gpu
from tilewright.ops.group import Group
from tilewright.ops.suites import expand_all
from tilewright.rank.files import SEARCHED
from tilewright.rank.rankers import Ranker, ranker_for
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, schedule_text
from tilewright.search.gpu.strategies import search

LOOKED_AT = 600


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule, and what the time model says of it."""

    schedule: GpuSchedule
    predicted: GpuPrediction

    def to_json(self) -> dict:
        return {'schedule': self.schedule.to_json(), 'predicted': self.predicted.to_json()}


def run(
    spec: str, out: Output, *, machine: str, model: str, top: int, measure: bool,
    seed: int | None, given: Mapping[str, bool],
) -> int:  # fmt: skip
    """Rank schedules of every layer; comes out: the exit code. `given`: options of CPUs."""
    wrong = [f'--{name}' for name, there in given.items() if there]
    if wrong:
        raise InputError(f'{", ".join(wrong)} mean nothing on a GPU, {machine}; leave them out')
    if measure:
        raise InputError(
            f'{machine} is a GPU, and optimize times nothing there; add --no-measure, or compare '
            f'on the device by tilewright bench {spec} --target cuda'
        )
    if top < 1:
        raise InputError(f'top is {top}; ask for at least 1')
    gpu = known_gpu(machine)
    found = []
    for number, (name, group, count) in enumerate(expand_all(spec).layers):
        chosen = ranker_for(model, group, gpu, SEARCHED)
        if not number:
            (out.warn if chosen.fell_back else out.say)(f'ranked by {chosen.name}: {chosen.note}')
        best = ranked(group, gpu, chosen.ranker, top, seed or 0)
        out.say(f'{name} on {gpu.name}, the best {len(best)} of {LOOKED_AT} candidates')
        for one in best:
            out.say(
                f'  {schedule_text(one.schedule)}: {1e6 * one.predicted.seconds:.2f} us by the '
                f'time model, limited by {one.predicted.by}'
            )
        found.append(
            {
                'name': name, 'count': count, 'label': group.label, 'model': chosen.name,
                'note': chosen.note, 'candidates': [one.to_json() for one in best],
            }
        )  # fmt: skip
    out.write(
        {
            'spec': spec, 'measured': False, 'seed': seed, 'machine': gpu.to_json(),
            'complete': True, 'layers': found,
        }
    )  # fmt: skip
    return 0


def ranked(group: Group, machine: GpuMachine, model: Ranker, top: int, seed: int) -> list[Ranked]:
    """The best schedules by a model's scores, in its order; the same every time."""
    order: list[GpuSchedule] = []

    def taken(schedules: Sequence[GpuSchedule]) -> list[float | None]:
        order.extend(s for s in schedules if _said(group, s, machine))
        return [1.0] * len(schedules)

    search(
        moves(group, machine), taken, 'genetic', trials=4 * top, batch=4 * top, model=model,
        sampled=LOOKED_AT, seed=seed,
    )  # fmt: skip
    if not order:
        raise ScheduleError(f'{group.label}: no schedule for {machine.name} was found')
    return [Ranked(s, predict_gpu(group, s, machine)) for s in order[:top]]


def _said(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> bool:
    """Whether the time model has it on the machine."""
    try:
        predict_gpu(group, schedule, machine)
    except ScheduleError:
        return False
    return True
