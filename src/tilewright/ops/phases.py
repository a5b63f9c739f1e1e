"""What one step of a sequential group is made of: phases, between which all units wait.

Goes in: a group whose stages take turns (ops/sequence.py). Comes out: `StepPlan`. In a phase every
unit computes its products with a vector that is complete, then functions of its own values:

    LSTM            Sum = R State[t - 1]; I, F, O, New, Cell, State          one phase
    GRU             Sum = R State[t - 1]; Z, Reset, Seen | Inner = RHidden Seen; New, State
    LSTM, projected Sum; I, F, O, New, Cell, Shown | Projected; State

So that kernels know nothing of cells: gates, activations, clipping and masks are expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.errors import ScheduleError
from tilewright.ops.functions import X, where
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Stage, call, index, read, whole


@dataclass(frozen=True)
class Product:
    """Sums of one product stage: result[g, h] = sum over k of weights[d, g, h, k] * source[k].

    `last`: the source is what the step before left.
    """

    stage: Stage
    weights: str
    source: str
    last: bool

    @property
    def gates(self) -> int:
        return self.stage.sizes['g']

    @property
    def units(self) -> int:
        """Elements of the source."""
        return self.stage.sizes['k']


@dataclass(frozen=True)
class Phase:
    """Products, then functions of one unit, in order; `width` is how many units there are."""

    products: tuple[Product, ...]
    points: tuple[Stage, ...]
    width: int

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(stage.write.tensor for stage in self.points)


@dataclass(frozen=True)
class StepPlan:
    """A sequential group.

    carried  tensor -> the input that it is before the first step, '' for zeros
    aliases  tensor -> the carried one that it is, as the last step left it
    kept     tensors of a step that a later phase of it reads
    rows     for each direction, the row of the result that belongs to each step
    final    the stage behind the steps, which writes the result
    """

    group: Group
    steps: int
    directions: int
    batch: int
    phases: tuple[Phase, ...]
    carried: Mapping[str, str]
    aliases: Mapping[str, str]
    kept: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    final: Stage

    def width(self, tensor: str) -> int:
        """Units of a tensor of a step."""
        return self.group.tensor(tensor).shape[-1]

    def is_last(self, access: Access) -> bool:
        """Whether an access is to what the last step left."""
        return access.tensor in self.aliases or access.index[0].const < 0

    def carrier(self, access: Access) -> str:
        return self.aliases.get(access.tensor, access.tensor)


def step_plan(group: Group) -> StepPlan:
    """[Group] -> [StepPlan]; ScheduleError where it is not made of such steps."""
    turns = [stage for stage in group.stages if stage.sequential]
    final = group.stages[-1]
    if not turns or final.sequential or len(turns) != len(group.stages) - 1:
        raise _refused(group, 'its steps are not followed by one stage that writes the result')
    (name,) = turns[0].sequential
    aliases, initial = {}, {}
    for stage in turns:
        first = where(call('eq', index(name), whole(0)), X, read(1))
        if stage.expr == first and stage.reads[1].index[0].const == -1:
            aliases[stage.write.tensor] = stage.reads[1].tensor
            initial[stage.reads[1].tensor] = stage.reads[0].tensor
    found = _Phases(group, aliases)
    for stage in turns:
        if stage.write.tensor not in aliases:
            found.add(stage)
    phases = found.all()
    read_last = {
        a.tensor for s in turns for a in s.reads if len(a.index) == 4 and a.index[0].const < 0
    }
    ends = {a.tensor for a in final.reads} & {s.write.tensor for s in turns}
    carried = {t: initial.get(t, '') for t in sorted(read_last | ends)}
    sizes = turns[0].sizes
    return StepPlan(
        group, sizes[name], sizes['d'], sizes['n'], phases, carried, aliases,
        _kept(phases, carried), _rows(group, final, sizes[name], sizes['d']), final,
    )  # fmt: skip


def _refused(group: Group, why: str) -> ScheduleError:
    return ScheduleError(f'{group.label}: {why}; no schema computes such steps')


@dataclass
class _Phases:
    """Stages so far, cut where a product reads what was computed in the same step."""

    group: Group
    aliases: Mapping[str, str]
    made: list[Phase] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    points: list[Stage] = field(default_factory=list)

    def add(self, stage: Stage) -> None:
        if stage.combiner is None:
            if self.width not in (0, stage.sizes['h']):
                self._cut()
            self.points.append(stage)
            return
        if not stage.is_product_sum or set(stage.sizes) != set('tdnghk'):
            raise _refused(self.group, f'{stage.name} is not a product of a matrix and a vector')
        weights, source = stage.reads
        last = source.tensor in self.aliases or source.index[0].const < 0
        if self.points:
            self._cut()
        name = self.aliases.get(source.tensor, source.tensor)
        self.products.append(Product(stage, weights.tensor, name, last))

    @property
    def width(self) -> int:
        stages = [*(p.stage for p in self.products), *self.points]
        return stages[0].sizes['h'] if stages else 0

    def _cut(self) -> None:
        self.made.append(Phase(tuple(self.products), tuple(self.points), self.width))
        self.products, self.points = [], []

    def all(self) -> tuple[Phase, ...]:
        self._cut()
        return tuple(self.made)


def _kept(phases: tuple[Phase, ...], carried: Mapping[str, str]) -> tuple[str, ...]:
    """What a phase writes and a later one of the same step reads."""
    kept: list[str] = []
    for number, phase in enumerate(phases):
        for later in phases[number + 1 :]:
            sources = [p.source for p in later.products if not p.last]
            reads = [a.tensor for s in later.points for a in s.reads if len(a.index) == 4]
            kept += [t for t in phase.written if t in (*sources, *reads)]
    return tuple(t for t in dict.fromkeys(kept) if t not in carried)


def _rows(group: Group, final: Stage, steps: int, directions: int) -> tuple[tuple[int, ...], ...]:
    """For each direction and step the row that shows it; rows behind them show the last step."""
    state = final.reads[0]
    tables = dict(state.tables)
    rows = final.sizes['r']
    if set(tables) != {0} or len(tables[0]) != directions * rows:
        raise _refused(group, 'its result does not name the steps that it shows')
    found = []
    for d in range(directions):
        shown = tables[0][d * rows : (d + 1) * rows]
        if sorted(shown[:steps]) != list(range(steps)) or set(shown[steps:]) - {steps - 1}:
            raise _refused(group, 'its result does not show every step once, and then the last')
        found.append(tuple(shown.index(step) for step in range(steps)))
    return tuple(found)
