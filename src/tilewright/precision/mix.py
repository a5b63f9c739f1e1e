"""`precision='auto'`: the fastest mix of floats and integers within an accuracy.

[Floats, samples] -> calibrate     -> [Calibrated]               on the first half of the samples
[Calibrated]      -> sensitivities -> [loss of each unit]        one unit at a time in integers
[uniform models]  -> price         -> [seconds of each unit]     by the models of time, or measured
[both]            -> solve         -> [mix]                      an integer program (search/mix.py)
[mix]             -> check         -> [mix], or a tighter limit  compiled, on the other half

Units that are not integers are floats of one type: fp32, or fp16 or bf16 where the machine computes
in it, whichever gives the fastest mix. What 16 bits lose by themselves is measured once, on the
network of them; a mix that is not faster than they are alone, when both are called in turns, is not
taken.

Squares of relative errors add up as if units were independent, which they are about; how much of
that sum an accuracy allows is found by bisection on the samples of the search.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.knobs import debug
from tilewright.precision.accuracy import EXACT, Accuracy, OutputError, output_error
from tilewright.precision.calibrate import Calibrated, QuantizeOptions, calibrate
from tilewright.precision.mixed import mixed_model
from tilewright.precision.reference import Floats
from tilewright.precision.samples import Sample
from tilewright.precision.units import Units, units_of
from tilewright.search.mix import MixProblem

if TYPE_CHECKING:
    from onnx import ModelProto

FEWEST = 4  # samples: half for ranges and the search, half to check
MOST_SEARCHED = 4  # samples that a mix is tried on during the search
STEPS = 6  # of the bisection
CHECKS = 4  # mixes that are compiled before floats are taken
TURNS = 8  # of calls that a mix and its floats alone are compared by, the first not counted
LEVEL = 0.01  # what counts as the same time

# [model] -> the nodes of each task and its seconds
Price = Callable[['ModelProto'], Sequence[tuple[tuple[str, ...], float]]]
Run = Callable[[Sample], Mapping[str, np.ndarray]]
Compile = Callable[['ModelProto', str], Run]  # a model, with its floats of a type
PLAIN = 'fp32'
BETWEEN = ('_QuantizeLinear', '_DequantizeLinear')  # how ONNX Runtime's tool names its nodes


@dataclass(frozen=True, slots=True)
class Mix:
    """The types of a model's units and what is known of them.

    floats       the type of floats: 'fp32', 'fp16' or 'bf16'
    types        unit -> 'int8' or that
    losses       unit -> relative error of the results with this unit alone in integers
    predicted_s  the whole mix, all of it in each type of floats, and all in integers
    error        of the compiled network on samples that nothing was chosen by
    """

    accuracy: Accuracy
    floats: str
    types: Mapping[str, str]
    losses: Mapping[str, float]
    predicted_s: Mapping[str, float]
    error: OutputError
    held_out: int

    @property
    def reached(self) -> bool:
        return self.accuracy.holds(self.error)

    def to_json(self) -> dict[str, Any]:
        return {
            'accuracy': str(self.accuracy),
            'reached': self.reached,
            'error': self.error.to_json(),
            'held_out_samples': self.held_out,
            'predicted_ms': {name: 1e3 * seconds for name, seconds in self.predicted_s.items()},
            'floats': self.floats,
            'types': dict(self.types),
            'error_alone': dict(self.losses),
        }


def mix_text(mix: Mapping[str, Any]) -> str:
    """A mix, as its JSON has it, for people."""
    small = sum(kind == 'int8' for kind in mix['types'].values())
    times = dict(mix['predicted_ms'])
    predicted = f'{times.pop("mix"):.3f} ms'
    others = ', '.join(f'{name} {ms:.3f}' for name, ms in times.items())
    floats = mix.get('floats', PLAIN)
    verdict = 'reached' if mix['reached'] else 'NOT reached, the closest mix that was found'
    return (
        f'{small} of {len(mix["types"])} layers in int8, the others in {floats}, predicted '
        f'{predicted} ({others})\n'
        f'accuracy {mix["accuracy"]}: {verdict}; '
        f'{OutputError(**mix["error"])} on {mix["held_out_samples"]} held-out samples'
    )


@dataclass(frozen=True)
class MixSearch:
    """What is measured once for a model, whatever accuracies are asked for later.

    problems  for each type of floats: seconds of units in it and in integers
    floors  what each type of floats loses by itself, on the samples of the search
    tried   samples of the search that mixes are tried on, with the results of floats
    held    samples that a mix is checked on before it is handed over
    """

    calibrated: Calibrated
    units: Units
    problems: Mapping[str, MixProblem]
    floors: Mapping[str, OutputError]
    source: Floats
    tried: tuple[Sample, ...]
    held: tuple[Sample, ...]

    @classmethod
    def of(
        cls, source: Floats, samples: Sequence[Sample], options: QuantizeOptions,
        prices: Mapping[str, Price], compiled: Compile,
    ) -> MixSearch:  # fmt: skip
        """Ranges, sensitivities and, for each type of floats, prices."""
        half = len(samples) // 2
        calibrated = calibrate(source.model, samples[:half], options)
        units = units_of(calibrated.model, options.exclude)
        tried, count = tuple(samples[:half][:MOST_SEARCHED]), len(units.units)
        right = [source.run(sample) for sample in tried]
        losses = []
        for number in range(count):
            alone = mixed_model(calibrated, units, tuple(i == number for i in range(count)))
            losses.append(output_error(right, source.results_of(alone, tried)).rel ** 2)
        debug(1, f'{source.model.graph.name}: sensitivities of {count} units measured')
        problems = {
            floats: priced(calibrated, units, tuple(losses), price)
            for floats, price in prices.items()
        }  # fmt: skip
        plain, floors = mixed_model(calibrated, units, (False,) * count), {PLAIN: EXACT}
        for floats in problems:
            if floats != PLAIN:
                run = compiled(plain, floats)
                floors[floats] = output_error(right, [run(sample) for sample in tried])
        return cls(calibrated, units, problems, floors, source, tried, tuple(samples[half:]))

    def model(self, integers: tuple[bool, ...]) -> ModelProto:
        return mixed_model(self.calibrated, self.units, integers)

    def within(self, accuracy: Accuracy) -> tuple[str, tuple[bool, ...]]:
        """The fastest mix that keeps an accuracy on the samples of the search: type of floats, and
        which units are integers.
        """
        found = {
            floats: self._within(accuracy, floats)
            for floats, floor in self.floors.items()
            if floats == PLAIN or accuracy.holds(floor)
        }
        best = min(found, key=lambda floats: self.problems[floats].seconds(found[floats]))
        return best, found[best]

    def _within(self, accuracy: Accuracy, floats: str) -> tuple[bool, ...]:
        problem, floor = self.problems[floats], accuracy.loss(self.floors[floats])
        right = [self.source.run(sample) for sample in self.tried]
        known: dict[tuple[bool, ...], bool] = {}

        def holds(integers: tuple[bool, ...]) -> bool:
            if integers not in known:
                found = self.source.results_of(self.model(integers), self.tried)
                lost = accuracy.loss(output_error(right, found)) + floor
                known[integers] = lost <= accuracy.allowed
            return known[integers]

        best = problem.solve(0.0)
        losses = [loss for loss in problem.losses if loss > 0]
        if not losses:
            return problem.solve(math.inf)
        low, high = math.log(min(losses)), math.log(2 * sum(losses))
        start = {'rel': accuracy.limit**2, 'cosine': 2 * (1 - accuracy.limit)}
        first = start.get(accuracy.measure, 0.0)
        middle = min(max(math.log(first), low), high) if first > 0 else high
        for _ in range(STEPS):
            mix = problem.solve(math.exp(middle))
            if holds(mix):
                low = middle
                if problem.seconds(mix) < problem.seconds(best):
                    best = mix
            else:
                high = middle
            middle = (low + high) / 2
        return best

    def choose(self, accuracy: Accuracy, compiled: Compile) -> Mix:
        """A mix that keeps an accuracy on samples that nothing was chosen by, or the closest."""
        right = [self.source.run(sample) for sample in self.held]
        asked, closest = accuracy, None
        for turn in range(CHECKS):
            last = turn == CHECKS - 1
            none = PLAIN, (False,) * len(self.units.units)
            floats, integers = none if last else self.within(asked)
            run = compiled(self.model(integers), floats)
            error = output_error(right, [run(sample) for sample in self.held])
            mix = self._mix(accuracy, floats, integers, error)
            debug(1, f'{sum(integers)} units in int8, the others in {floats}: {error}')
            if mix.reached:
                return self._or_floats(mix, run, right, compiled)
            if closest is None or accuracy.loss(error) < accuracy.loss(closest.error):
                closest = mix
            if (floats, integers) == none:
                break
            # What was lost beyond the limit is taken off it.
            over = accuracy.loss(error) / max(accuracy.allowed, 1e-30)
            asked = asked.tightened(1.1 * over)
        assert closest is not None
        return closest

    def _or_floats(
        self, mix: Mix, run: Run, right: Sequence[Mapping[str, np.ndarray]], compiled: Compile
    ) -> Mix:
        """The mix, or its floats alone where they are as fast: 16 bits are so near to integers that
        errors of the models of time decide between them.
        """
        none = (False,) * len(self.units.units)
        if mix.floats == PLAIN or set(mix.types.values()) == {mix.floats}:
            return mix
        alone = compiled(self.model(none), mix.floats)
        error = output_error(right, [alone(sample) for sample in self.held])
        plain = self._mix(mix.accuracy, mix.floats, none, error)
        if not plain.reached or fastest(self.held[0], [alone, run]) == 1:
            return mix
        debug(1, f'{mix.floats} alone is as fast as its mix with int8')
        return plain

    def _mix(
        self, accuracy: Accuracy, floats: str, integers: tuple[bool, ...], error: OutputError
    ) -> Mix:
        names = [unit.name for unit in self.units.units]
        count, problem = len(names), self.problems[floats]
        uniform = {name: one.seconds([False] * count) for name, one in self.problems.items()}
        return Mix(
            accuracy,
            floats,
            {name: 'int8' if x else floats for name, x in zip(names, integers, strict=True)},
            dict(zip(names, (math.sqrt(loss) for loss in problem.losses), strict=True)),
            {
                'mix': problem.seconds(integers), **uniform,
                'int8': self.problems[PLAIN].seconds([True] * count),
            },
            error,
            len(self.held),
        )  # fmt: skip


def fastest(sample: Sample, runs: Sequence[Run]) -> int:
    """Which of several networks answers soonest, called in turns; the first, if they are level."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(TURNS):
        for times, run in zip(seconds, runs, strict=True):
            begin = time.perf_counter()
            run(sample)
            times.append(time.perf_counter() - begin)
    least = [statistics.median(times[1:]) for times in seconds]
    best = least.index(min(least))
    return best if least[best] < (1 - LEVEL) * least[0] else 0


def priced(
    calibrated: Calibrated, units: Units, losses: tuple[float, ...], price: Price
) -> MixProblem:
    """Seconds of every unit in both types, and of what passes between types.

    What a unit takes where those that read it have the other type, beyond what it takes among its
    own, is for passing its numbers on: by two models whose types alternate, in either order. Pairs
    whose types are alike in both are priced by the numbers that pass, as the others are on average.
    """
    count = len(units.units)
    odd = tuple(number % 2 == 1 for number in range(count))
    even = tuple(not x for x in odd)
    floats, integers, *turns = (
        _by_unit(units, price(mixed_model(calibrated, units, mix)))
        for mix in ((False,) * count, (True,) * count, odd, even)
    )
    passed: dict[bool, dict[tuple[int, int, int], float]] = {False: {}, True: {}}  # by the first's
    for types, seconds in zip((odd, even), turns, strict=True):
        for i, is_integer in enumerate(types):
            edges = [e for e in units.edges if e[0] == i and types[e[1]] != is_integer]
            more = max(seconds[i] - (integers if is_integer else floats)[i], 0.0)
            whole = sum(n for *_, n in edges)
            passed[is_integer] |= {e: more * e[2] / max(whole, 1) for e in edges}
    each = {
        is_integer: sum(known.values()) / max(sum(n for *_, n in known), 1)
        for is_integer, known in passed.items()
    }
    crossings = tuple(
        (
            e[0],
            e[1],
            passed[True].get(e, each[True] * e[2]),
            passed[False].get(e, each[False] * e[2]),
        )
        for e in units.edges
    )
    return MixProblem(tuple(floats), tuple(integers), losses, crossings)


def _by_unit(units: Units, tasks: Sequence[tuple[tuple[str, ...], float]]) -> list[float]:
    """Seconds of each unit: a task of several units is shared by their multiply-adds. What
    quantises a value or takes it back is for the unit that makes the value.

    What no node of a unit is in, such as storing the input, is for the first.
    """
    place = {name: i for i, unit in enumerate(units.units) for name in unit.nodes}
    between = {
        f'{value}{ending}': i
        for i, unit in enumerate(units.units)
        for value in unit.values
        for ending in BETWEEN
    }
    made = [0.0] * len(units.units)
    for names, seconds in tasks:
        found = sorted({place[name] for name in names if name in place})
        found = found or sorted({between[name] for name in names if name in between}) or [0]
        whole = sum(units.units[i].work for i in found)
        for i in found:
            made[i] += seconds * (units.units[i].work / whole if whole > 0 else 1 / len(found))
    return made
