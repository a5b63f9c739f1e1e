"""`tilewright explain NETWORK --machine h200`: what a GPU would spend its time on, by the model.

Nothing is compiled or measured, and no device is needed: `tilewright run --profile --target cuda`
measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tilewright.cli.compile import model_of
from tilewright.cli.output import Bar, Output
from tilewright.errors import InputError
from tilewright.graph.passes import GPU_PASSES, passes_of
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.network.compile import prepare
from tilewright.report.grid import Grid
from tilewright.report.network import tried_lines
from tilewright.search.fusion import Tried
from tilewright.search.gpu.moves import schedule_text
from tilewright.targets.chained import Record, with_chains
from tilewright.targets.gpu.assemble import chosen_by_model
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.price import GpuPrice
from tilewright.targets.gpu.site import KEPT


@dataclass(frozen=True, slots=True)
class Kind:
    """A group of a network, and the tasks that compute it; times are of all of them together."""

    label: str
    tasks: tuple[str, ...]
    schedule: str
    predicted_us: float
    bound_us: float
    limit: str


def run(
    models: Sequence[str],
    out: Output,
    *,
    machine: str,
    max_rel_err: float,
    shapes: Mapping[str, Sequence[int]],
    seed: int | None,
    given: Mapping[str, bool],
    fuse: str | None = None,
) -> int:
    """Explain every network; comes out: the exit code. `given` are options of the CPU."""
    wrong = [f'--{name}' for name, there in given.items() if there]
    if wrong:
        raise InputError(f'{wrong[0]} means nothing with --machine {machine}, a GPU; leave it out')
    gpu = known_gpu(machine)
    found = []
    with Bar(len(models)) as bar:
        for number, model in enumerate(models):
            bar.begin(model)
            tried: list[Tried] = []
            kinds = explained(model, gpu, max_rel_err, shapes, bar, fuse, tried.extend)
            bar.finish()
            with bar.paused():
                said = [_text(model, gpu, kinds), *tried_lines(tried)]
                out.say(('\n' if number else '') + '\n'.join(said))
            found.append(
                {'name': model, 'groups': [asdict(kind) for kind in kinds],
                 'tried': [one.to_json() for one in tried]}
            )  # fmt: skip
    out.write(
        {'spec': ','.join(models), 'seed': seed, 'measured': False, 'machine': gpu.to_json(),
         'networks': found}
    )  # fmt: skip
    return 0


def explained(
    model: str,
    machine: GpuMachine,
    max_rel_err: float,
    shapes: Mapping[str, Sequence[int]],
    bar: Bar,
    fuse: str | None = None,
    record: Record | None = None,
) -> list[Kind]:
    """The groups of a network as they would be compiled, the longest first."""
    if model.endswith('.tw'):
        raise InputError(
            f'{model} has its schedules already; `tilewright run --profile` times them'
        )
    sizes = {name: tuple(shape) for name, shape in shapes.items()}
    passes = with_chains(GPU_PASSES, GpuPrice(machine, KEPT, max_rel_err).prices, record)
    program = prepare(
        model_of(model, None, 'cuda'), sizes, passes_of(None, fuse), GpuCost(machine), passes
    )
    groups = {task.group.digest: task.group for task in program.tasks}
    chosen = chosen_by_model(groups, machine, KEPT, max_rel_err, bar.report)
    kinds = []
    for digest, group in groups.items():
        names = tuple(task.name for task in program.tasks if task.group.digest == digest)
        choice, count = chosen[digest][0], len(names)
        kinds.append(
            Kind(
                group.label, names, schedule_text(choice.schedule),
                1e6 * count * choice.predicted_s, 1e6 * count * choice.bound_s, choice.limit,
            )
        )  # fmt: skip
    return sorted(kinds, key=lambda kind: -kind.predicted_us)


def _text(model: str, machine: GpuMachine, kinds: Sequence[Kind]) -> str:
    total, bound = (sum(getattr(k, name) for k in kinds) for name in ('predicted_us', 'bound_us'))
    tasks = sum(len(kind.tasks) for kind in kinds)
    head = ('group', 'tasks', 'us', 'share', 'bound us', 'limit', 'schedule')
    rows = tuple(
        (
            kind.label, str(len(kind.tasks)), f'{kind.predicted_us:.2f}',
            f'{kind.predicted_us / total:.1%}', f'{kind.bound_us:.2f}', kind.limit, kind.schedule,
        )
        for kind in kinds
    )  # fmt: skip
    return '\n'.join(
        [
            f'{model} on {machine.name}: {tasks} tasks of {len(kinds)} kinds, predicted one after '
            f'the other {total:.1f} us, bound {bound:.1f} us',
            Grid(head, rows).text(),
        ]
    )
