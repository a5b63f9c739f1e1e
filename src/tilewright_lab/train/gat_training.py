"""Training of GTuner's model (Sec. 4.1): Adam, batches of 512, mean square error of log seconds.

Goes in: a `GroupTable`, a variant, settings. Comes out: a `GatModel`, which asks without torch. All
weights are parts of one vector, so that a checkpoint is three of them: the weights and Adam's two
moments. What an epoch does follows from the seed and its number: training that was interrupted goes
on from its checkpoint and ends as if it had not been. It runs on a GPU where torch has one, and
there several models may be trained side by side (`train_several`): the small kernels of one leave
most of a GPU idle.

This is the one file of `learn` that imports torch.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError, MissingError
from tilewright.rank.counts import Array
from tilewright.rank.gat import GatModel, Ops, Scaling, Variant, forward, shapes
from tilewright.rank.graph_features import NODE_NAMES
from tilewright.rank.statistics import NAMES
from tilewright_lab.train.group_table import LEAST_ROWS, GroupTable

try:
    import torch
except ImportError:
    raise MissingError(
        'training a graph-attention model needs torch, which is not installed; install '
        'tilewright[torch], or choose another model'
    ) from None

SAVED_EVERY_S = 20.0


@dataclass(frozen=True, slots=True)
class Training:
    """How long and how fast; the defaults are the paper's, but for `decay`.

    decay   the rate falls along half a cosine to this share of itself at the last epoch
    """

    epochs: int = 300
    rate: float = 1e-4
    batch: int = 512
    decay: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not 0 < self.rate <= 1 or not 0 < self.decay <= 1:
            raise InputError(
                f'{self}: epochs and batch are at least 1, rate and decay above 0 and up to 1'
            )

    def rate_of(self, epoch: int) -> float:
        fallen = (1 - math.cos(math.pi * epoch / max(self.epochs - 1, 1))) / 2
        return self.rate * (1 - (1 - self.decay) * fallen)


def ops_on(device: str) -> Ops:
    return Ops(
        torch.relu, lambda x: torch.softmax(x, -1), lambda parts: torch.cat(list(parts), -1),
        lambda n: torch.eye(n, device=device),
    )  # fmt: skip


@dataclass(frozen=True)
class Lesson:
    """What a model is trained on, and how; `header` is what is known of the data."""

    table: GroupTable = field(repr=False)
    variant: Variant
    training: Training
    header: Mapping[str, Any] = field(default_factory=dict)


def train_gat(
    table: GroupTable,
    variant: Variant,
    training: Training,
    header: Mapping[str, Any],
    *,
    checkpoint: Path | None = None,
    report: Callable[[int, float], object] | None = None,
) -> GatModel:
    """[GroupTable, Variant, Training] -> [GatModel]; `header` is what is known of the data.

    `report` hears of each epoch and its mean loss. A `checkpoint` is gone when training is done.
    """
    epochs = _epochs(Lesson(table, variant, training, header), checkpoint, report)
    while True:
        try:
            next(epochs)
        except StopIteration as end:
            return end.value


def train_several(
    lessons: Sequence[Lesson], at_once: int = 1
) -> Iterator[tuple[int, GatModel]]:  # fmt: skip
    """[Lesson] -> (number of the lesson, its model), as they end. On a GPU `at_once` of them have a
    stream each, and take turns by epochs.
    """
    left = list(enumerate(lessons))[::-1]
    busy: dict[int, tuple[Generator[None, None, GatModel], Any]] = {}
    while left or busy:
        while left and len(busy) < at_once:
            number, lesson = left.pop()
            own = torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else None
            busy[number] = _epochs(lesson, None, None), own or nullcontext()
        for number, (epochs, stream) in list(busy.items()):
            try:
                with stream:
                    next(epochs)
            except StopIteration as end:
                del busy[number]
                yield number, end.value


def _epochs(
    lesson: Lesson, checkpoint: Path | None, report: Callable[[int, float], object] | None
) -> Generator[None, None, GatModel]:
    """The training of one model, epoch by epoch; it returns the model."""
    table, variant, training, header = (
        lesson.table, lesson.variant, lesson.training, lesson.header
    )  # fmt: skip
    if len(table) < LEAST_ROWS:
        raise InputError(
            f'{len(table)} measured rows are too few to learn from; give at least {LEAST_ROWS}'
        )
    scaling = scaling_of(table)
    sizes = shapes(variant, table.x.shape[1], table.graphs.nodes.shape[-1])
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    ops = ops_on(device)
    begun = torch.from_numpy(_begun(sizes, training.seed))
    flat = begun.to(device).requires_grad_()
    graphed = device == 'cuda'
    rate = torch.tensor(training.rate, device=device)
    optimiser = torch.optim.Adam([flat], rate if graphed else training.rate, capturable=graphed)
    mean, scale = scaling.target
    x = torch.from_numpy(scaling.rows(table.x)).to(device)
    graphs = [torch.from_numpy(array).to(device) for array in scaling.graphs(table.graphs)]
    which = torch.from_numpy(table.which).to(device)
    wanted = (table.log_seconds - table.base - mean) / scale
    target = torch.from_numpy(wanted.astype(np.float32)).to(device)
    total = torch.zeros((), device=device)

    def step(rows: torch.Tensor, counts: torch.Tensor | None) -> None:
        """One batch; `counts` is 0 for rows that only fill it up."""
        parts = (graphs, which[rows]) if graphed else _graphs_of(graphs, which[rows])
        said = forward(ops, variant, _parts(flat, sizes), x[rows], *parts)
        errors = (said - target[rows]) ** 2
        loss = errors.mean() if counts is None else (errors * counts).sum() / counts.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total.add_(loss.detach() * (len(rows) if counts is None else counts.sum()))

    run = _recorded(step, training.batch, flat, optimiser) if graphed else step
    first = _resumed(checkpoint, flat, optimiser)
    saved = time.monotonic()
    for epoch in range(first, training.epochs):
        if graphed:
            rate.fill_(training.rate_of(epoch))
        else:
            optimiser.param_groups[0]['lr'] = training.rate_of(epoch)
        drawn = np.random.default_rng((training.seed, epoch)).permutation(len(table))
        order = torch.from_numpy(drawn).to(device)
        total.zero_()
        for begin in range(0, len(order), training.batch):
            run(order[begin : begin + training.batch], None)
        if report is not None:
            report(epoch, float(total) / len(table))
        if checkpoint is not None and time.monotonic() - saved > SAVED_EVERY_S:
            _save(checkpoint, flat, optimiser, epoch + 1)
            saved = time.monotonic()
        yield
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    loss = float(total) / len(table)
    learned = flat.detach().cpu()
    final = {name: part.numpy().copy() for name, part in _parts(learned, sizes).items()}
    if not all(np.isfinite(array).all() for array in final.values()):
        raise InputError(
            f'training did not settle at a rate of {training.rate}; choose a smaller one'
        )
    return GatModel(
        variant, final, scaling,
        {
            **header, 'variant': variant.name, 'statistics': list(NAMES),
            'node_features': list(NODE_NAMES), 'training': asdict(training), 'loss': loss,
        },
    )  # fmt: skip


def _recorded(
    step: Callable[[torch.Tensor, torch.Tensor | None], None], batch: int, flat: torch.Tensor,
    optimiser: torch.optim.Adam,
) -> Callable[[torch.Tensor, torch.Tensor | None], None]:  # fmt: skip
    """The step as one CUDA graph: of some hundred small kernels launching takes longer than
    running. Its products are in TF32. It is recorded on the stream where it was tried, which no
    other model has: workspaces of products belong to streams. Weights are what they were before,
    and Adam's state is there and zero.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision('high')
    rows = torch.zeros(batch, dtype=torch.int64, device=flat.device)
    counts = torch.ones(batch, device=flat.device)
    before = flat.detach().clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(rows, counts)
    torch.cuda.current_stream().wait_stream(aside)
    optimiser.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        step(rows, counts)
    torch.set_float32_matmul_precision(precision)
    with torch.no_grad():
        flat.copy_(before)
        for value in optimiser.state[flat].values():
            value.zero_()

    def run(some: torch.Tensor, _: torch.Tensor | None) -> None:
        rows[: len(some)] = some
        counts.zero_()
        counts[: len(some)] = 1.0
        graph.replay()

    return run


def _graphs_of(graphs: list, which: torch.Tensor) -> tuple[list, torch.Tensor]:
    """The graphs that a batch needs, and the numbers of its rows among them."""
    used, places = torch.unique(which, return_inverse=True)
    return [array[used] for array in graphs], places


def scaling_of(table: GroupTable) -> Scaling:
    """Means and deviations over rows, over nodes, over the logarithm of measured by analytical."""
    present = table.graphs.nodes[table.graphs.present > 0]
    error = table.log_seconds - table.base
    return Scaling(
        table.x.mean(0), _deviation(table.x), present.mean(0), _deviation(present),
        np.array([error.mean(), max(float(error.std()), 1e-3)], np.float32),
    )  # fmt: skip


def _deviation(values: Array) -> Array:
    """Of each column; 1 where it is constant."""
    found = values.std(0)
    return np.where(found > 1e-6, found, 1.0).astype(np.float32)


def _begun(sizes: Mapping[str, tuple[int, ...]], seed: int) -> Array:
    """First weights: uniform within sqrt(3 / inputs) of 0, which keeps variances; biases 0."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, shape in sizes.items():
        count = math.prod(shape)
        if name.endswith('bias'):
            parts.append(np.zeros(count))
            continue
        bound = math.sqrt(3 / shape[-2])
        parts.append(rng.uniform(-bound, bound, count))
    return np.concatenate(parts).astype(np.float32)


def _parts(
    flat: torch.Tensor, sizes: Mapping[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:  # fmt: skip
    pieces = torch.split(flat, [math.prod(shape) for shape in sizes.values()])
    return {
        name: piece.view(shape) for (name, shape), piece in zip(sizes.items(), pieces, strict=True)
    }


def _save(path: Path, flat: torch.Tensor, optimiser: torch.optim.Adam, epoch: int) -> None:
    state = optimiser.state[flat]
    data = io.BytesIO()
    np.savez(
        data, allow_pickle=False, weights=flat.detach().cpu().numpy(),
        first=state['exp_avg'].cpu().numpy(), second=state['exp_avg_sq'].cpu().numpy(),
        counts=np.array([epoch, int(state['step'])]),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    fresh.write_bytes(data.getvalue())
    os.replace(fresh, path)


def _resumed(path: Path | None, flat: torch.Tensor, optimiser: torch.optim.Adam) -> int:
    """The epoch to go on with; 0 where there is no checkpoint of such a model."""
    if path is None or not path.exists():
        return 0
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            weights, first, second = (found[name] for name in ('weights', 'first', 'second'))
            epoch, step = (int(n) for n in found['counts'])
    except (OSError, ValueError, KeyError, EOFError):
        return 0
    if not weights.shape == first.shape == second.shape == tuple(flat.shape):
        return 0
    found = {'step': np.float32(step), 'exp_avg': first, 'exp_avg_sq': second}
    state = optimiser.state[flat]
    with torch.no_grad():
        flat.copy_(torch.from_numpy(weights))
        for name, value in found.items():
            fresh = torch.as_tensor(value, dtype=torch.float32)
            if name in state:  # in its place, where steps are recorded
                state[name].copy_(fresh)
            else:
                state[name] = fresh if name == 'step' else fresh.to(flat.device)
    return epoch
