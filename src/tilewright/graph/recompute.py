"""Less memory for more time: what is computed early and read late is computed again in between.

Goes in: a program in the order in which it runs, a limit on its bytes, what a group costs. Comes
out: a program that computes the same within the limit, or an InputError with the least that was
reached. Inputs and results count, what kernels work in does not.

    y = relu(norm(x));  ..;  use(y)  ..  late(y)     becomes     ..  y' = relu(norm(x));  late(y')

At the moment at which most bytes live, every value that waits there for a later reader may be made
again just before that reader: by its own task from operands that are kept anyway or live longer
then, or together with those of its operands that would have to live longer (a few tasks, the way
back to what is there). The value with the most bytes for each second of the cost goes first, until
the plan fits (Chen, Xu, Zhang and Guestrin, 'Training Deep Nets with Sublinear Memory Cost', 2016,
keep every n-th layer; which values to drop by a ratio is Kirisame et al.'s 'Dynamic Tensor
Rematerialization', ICLR 2021, here before anything runs).

On a device state is changed in place: what reads a parameter is not run again behind its update
(`successors` of graph/levels.py), and bytes are those that a device would hold (`measure`).

Further: `updates_early`, which moves what only updates read to where its operands are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.errors import InputError
from tilewright.graph.fuse import Cost
from tilewright.graph.memory import bound_of, bytes_of, lifetimes, plan
from tilewright.graph.program import Program, Task

MOST_AGAIN = 12  # tasks that are run again for one value


def updates_early(program: Program) -> Program:
    """The program whose updates come as soon as what they read is there.

    A gradient by weights reads the image and the gradient behind a layer. Both are free sooner, and
    the latter is still in a cache, if it does not wait for all other layers.
    """
    carried = set(program.carried.values())
    ends = {program.place(value)[0] for name, value in program.outputs if name in carried}
    others = {program.place(value)[0] for name, value in program.outputs if name not in carried}
    needed = set(others)  # memory that something besides updates reads
    moved: set[int] = set()
    for number, task in reversed(list(enumerate(program.tasks))):
        root = program.place(task.result)[0]
        if root in needed or (root not in ends and not program.readers.get(task.result)):
            needed |= {program.place(value)[0] for value in task.operands.values()}
        else:
            moved.add(number)
    slots: dict[str, int] = {}  # memory -> where the last task that writes it stands now
    order = []
    for number, task in enumerate(program.tasks):
        made = [slots[r] for v in task.operands.values() if (r := program.place(v)[0]) in slots]
        slot = max(made) if number in moved and made else number
        root = program.place(task.result)[0]
        slots[root] = max(slots.get(root, slot), slot)
        order.append((slot, number in moved, number))
    return program.with_tasks(tuple(program.tasks[number] for _, _, number in sorted(order)))


@dataclass(frozen=True, slots=True)
class _Again:
    """Tasks that are run again before task `at`, in order, so that `value` need not wait."""

    value: str
    at: int
    tasks: tuple[int, ...]
    saved: int
    seconds: float


def held_outside(program: Program) -> int:
    """Bytes of inputs and results, which callers hold: parameters and what they are next."""
    named = dict(program.outputs)
    return sum(bytes_of(program, value) for value in (*program.inputs, *named.values()))


def planned_bytes(program: Program) -> int:
    """Bytes of inputs, results and all values between tasks, where tasks follow each other."""
    return held_outside(program) + plan(program).arena_bytes


def within(
    program: Program, limit: int, cost: Cost, measure: Callable[[Program], int] | None = None,
    replaced: Mapping[str, str] | None = None,
) -> Program:  # fmt: skip
    """[Program] -> [Program] that needs at most `limit` bytes.

    `measure` says how many it needs, else `planned_bytes`; `replaced`: value -> the input that it
    is written to. What was computed again is kept from there on, so that this ends.
    """
    count, own, number = measure or planned_bytes, {task.result for task in program.tasks}, 0
    moment = _Moment(program, cost, own, replaced or {})
    least = count(program)
    beside = least - moment.bytes if measure else held_outside(program)
    while least > limit:
        found = moment.best()
        if found is None:
            least = min(least, count(program))
            raise InputError(
                f'memory is {limit} bytes, and {program.name} needs at least {least}, '
                f'{held_outside(program)} of them for inputs and results; allow that, or give '
                f'smaller batches'
            )
        program, number = _repeated(program, found, number), number + 1
        moment = _Moment(program, cost, own, replaced or {})
        if beside + moment.bytes <= limit:
            least = min(least, count(program))
    return program


class _Moment:
    """A program at the moment at which most of its bytes live."""

    def __init__(
        self, program: Program, cost: Cost, own: Collection[str], replaced: Mapping[str, str]
    ) -> None:
        """`own`: the values that may be computed again."""
        self.program, self.cost = program, cost
        # input -> the task that writes over it
        self.gone = {
            replaced[task.result]: number
            for number, task in enumerate(program.tasks)
            if task.result in replaced
        }
        self.lives = lifetimes(program, bound_of(program)[0])
        self.writers: dict[str, int] = {}
        shared = {holder for holder, _ in program.inside.values()} | set(program.inside)
        for number, task in enumerate(program.tasks):
            if task.result in own and not task.writes_part and task.result not in shared:
                self.writers[task.result] = number
        self.uses: dict[str, list[int]] = {}
        for number, task in enumerate(program.tasks):
            for value in dict.fromkeys(program.place(v)[0] for v in task.operands.values()):
                self.uses.setdefault(value, []).append(number)
        self.peak, self.bytes = self._peak()

    def _peak(self) -> tuple[int, int]:
        """(the task at which most bytes live, how many)."""
        held = [0] * (len(self.program.tasks) + 2)
        for life in self.lives.values():
            held[life.first] += life.bytes
            held[life.last + 1] -= life.bytes
        best = total = at = 0
        for number, change in enumerate(held):
            total += change
            if total > best:
                best, at = total, number
        return at, best

    def best(self) -> _Again | None:
        found = [again for value in self.lives for again in self._ways(value)]
        return max(found, key=lambda a: (a.saved / a.seconds, a.value), default=None)

    def _ways(self, value: str) -> Iterator[_Again]:
        life, writer = self.lives[value], self.writers.get(value)
        if writer is None or not life.first < self.peak < life.last:
            return
        uses = self.uses.get(value, [])
        late = [use for use in uses if use > self.peak]
        if self.peak in uses or not late or self.program.is_output(value):
            return
        for longer in (True, False):
            tasks = self._tasks(writer, late[0], longer)
            if tasks is None:
                continue
            inside = {self.program.tasks[number].result for number in tasks}
            kept = {
                root
                for number in tasks
                for v in self.program.tasks[number].operands.values()
                if (root := self.program.place(v)[0]) in self.lives and root not in inside
            }
            saved = life.bytes - sum(self.lives[r].bytes for r in kept if not self._there(r))
            seconds = sum(self.cost(self.program.tasks[number].group) for number in tasks)
            if saved > 0:
                yield _Again(value, late[0], tasks, saved, seconds)

    def _there(self, root: str) -> bool:
        """Whether a value lives at the peak anyway."""
        return root not in self.lives or self.lives[root].last >= self.peak

    def _tasks(self, writer: int, at: int, longer: bool) -> tuple[int, ...] | None:
        """The tasks that make a value again before task `at`, in order.

        With `longer` its own alone, whose operands live as long as it takes; else also those of
        operands that do not live until then.
        """
        found: set[int] = set()
        open_ones = [writer]
        while open_ones:
            number = open_ones.pop()
            found.add(number)
            if len(found) > MOST_AGAIN:
                return None
            for value in self.program.tasks[number].operands.values():
                root = self.program.place(value)[0]
                if self.gone.get(root, at) < at:
                    return None
                if longer or root not in self.lives or self.lives[root].last >= at:
                    continue
                maker = self.writers.get(root)
                if maker is None:
                    return None
                if maker not in found:
                    open_ones.append(maker)
        return tuple(sorted(found))


def _repeated(program: Program, again: _Again, number: int) -> Program:
    """The program with tasks again before task `again.at`, and later readers on what they make."""
    values, views = dict(program.values), dict(program.views)
    made: dict[str, str] = {}  # memory -> its second self

    def now(value: str) -> str:
        """A value, or the same view of the second self of its memory."""
        base = program.base(value)
        if base not in made:
            return value
        if value == base:
            return made[base]
        name = f'{value}/again{number}'
        values[name], views[name] = replace(values[value], name=name), made[base]
        return name

    def reading(task: Task) -> Task:
        return replace(task, operands={tensor: now(v) for tensor, v in task.operands.items()})

    extra: list[Task] = []
    for place in again.tasks:
        task = reading(program.tasks[place])
        name = f'{task.result}/again{number}'
        values[name] = replace(values[task.result], name=name)
        extra.append(replace(task, name=f'{task.name}/again{number}', result=name))
        made[task.result] = name
    tasks = [*program.tasks[: again.at], *extra, *map(reading, program.tasks[again.at :])]
    behind = dict(program.behind)
    if (other := _waited_for(program, again)) is not None:
        behind |= {task.name: other for task in extra}
    return replace(program, tasks=tuple(tasks), values=values, views=views, behind=behind)


def _waited_for(program: Program, again: _Again) -> str | None:
    """The task behind which values are made again where tasks run side by side: the one before
    what else the reader waits for, so that both run beside each other.
    """
    writers = {program.place(t.result)[0]: n for n, t in enumerate(program.tasks[: again.at])}

    def last(number: int, without: str = '') -> int | None:
        roots = (program.place(v)[0] for v in program.tasks[number].operands.values())
        return max((writers[r] for r in roots if r in writers and r != without), default=None)

    found = last(again.at, program.place(again.value)[0])
    before = None if found is None else last(found)
    latest = max(again.tasks)
    chosen = next((n for n in (before, found) if n is not None and n > latest), None)
    return None if chosen is None else program.tasks[chosen].name
