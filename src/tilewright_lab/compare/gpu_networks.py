"""Whole networks on one GPU, ours beside PyTorch's: prepared, checked, timed in turns.

Goes in: a network of the zoo, its inputs, ours as an `Entrant`. Comes out: `GpuNetworkResult`s with
every sample, and their table. Peers (peers/gpu_networks.py) have TF32 off, weights and inputs on
the device.

Contestants are prepared one after the other and then timed in turns, when nothing compiles any
more. Answers are judged against PyTorch in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.errors import CompilerError, MissingError, TilewrightError
from tilewright.ops.dtypes import HALVES, PRECISIONS
from tilewright.report.grid import Grid
from tilewright.runtime import verify
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.recorded import Recorded
from tilewright_lab.compare.results import geometric_mean
from tilewright_lab.peers.contestants import OURS, Entrant, table_of
from tilewright_lab.peers.inductor import Rivals
from tilewright_lab.peers.torch_graph import COPIES, first_result, library_versions

INDUCTOR = 'inductor'
REPEATS = 5
ROUNDED = 32  # roundings of a value's size that a network's results may be off by

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Subject:
    """A network of the zoo and what it is asked; `want` is its first result in float64."""

    name: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    want: np.ndarray
    flops: int
    precision: str = 'fp32'

    @classmethod
    def of(
        cls, name: str, seed: int, batch: int = 1, precision: str = 'fp32', **sizes: int
    ) -> Subject:
        arguments = {'name': name, 'seed': 0, 'batch': batch, **sizes}
        network = zoo.network(name, batch, **sizes)
        inputs = zoo.inputs(network, seed)
        want = _right(zoo.torch_module(**arguments), inputs)
        return cls(name, arguments, inputs, want, 2 * network.multiplications, precision)


def answer_of(net: GpuNetwork, stream: Recorded, subject: Subject) -> np.ndarray:
    """The first result of a recorded network, for the subject's inputs."""
    net.device.use()
    for name, array in subject.inputs.items():
        net.device.write(net.buffers[name], array)
    stream.run()
    net.device.synchronize()
    return net.device.download(net.buffers[net.outputs[0].name])


def _right(module: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the network computes in float64, on whatever PyTorch finds."""
    torch: Any = import_module('torch')
    where = 'cuda' if torch.cuda.is_available() else 'cpu'
    with torch.inference_mode():
        exact = module.double().to(where)
        given = (torch.from_numpy(array).to(where) for array in inputs.values())
        return first_result(exact(*(x.double() if x.is_floating_point() else x for x in given)))


@dataclass(frozen=True, slots=True)
class GpuNetworkResult:
    """One network: what every contestant took, or why it did not. Ours is first."""

    name: str
    batch: int
    flops: int
    contestants: tuple[Mapping[str, Any], ...]

    @property
    def ours_us(self) -> float | None:
        return self.time_us(OURS)

    def time_us(self, name: str) -> float | None:
        """The fastest variant of a contestant whose answer was right."""
        found = [
            c['median_us']
            for c in self.contestants
            if c['name'].split('/')[0] == name and c.get('status') == 'ok' and c.get('median_us')
        ]
        return min(found, default=None)

    @property
    def ratio(self) -> float | None:
        """The fastest peer over ours."""
        names = dict.fromkeys(c['name'].split('/')[0] for c in self.contestants)
        peers = [t for n in names if n != OURS and (t := self.time_us(n)) is not None]
        return min(peers) / self.ours_us if peers and self.ours_us else None

    def to_json(self) -> dict:
        return asdict(self) | {
            'contestants': [dict(c) for c in self.contestants],
            'ours_us': self.ours_us, 'best_peer_over_ours': self.ratio,
        }  # fmt: skip


def duel(
    subject: Subject,
    ours: Sequence[Callable[[], Entrant]],
    peers: Sequence[str],
    rounds: int,
    say: Say = lambda text: None,
    rivals: Rivals | None = None,
) -> GpuNetworkResult:
    """Interleaved rounds (A B C A B C ...) of everything that could be prepared.

    Inductor comes from `rivals`.
    """
    entrants: list[Entrant] = []
    failed: list[dict] = []
    makers: list[tuple[str, Callable[[], list[Entrant]]]] = [
        (OURS, lambda make=make: [make()]) for make in ours
    ]
    makers += [(name, lambda n=name: _of_peer(n, subject, rivals, failed)) for name in peers]
    for name, make in makers:
        say(f'{subject.name}: preparing {name}')
        try:
            entrants += make()
        except TilewrightError as error:
            kind = 'missing' if isinstance(error, MissingError) else 'failed'
            failed.append({'name': name, 'status': kind, 'message': str(error)})
    try:
        for one in entrants:
            _judge(one, subject)
        for number in range(rounds):
            say(f'{subject.name}: round {number + 1} of {rounds}')
            for one in entrants:
                if one.verdict['status'] == 'ok':
                    _time(one)
        for one in entrants:  # again: blocks that race give a wrong answer only sometimes
            if one.verdict['status'] == 'ok':
                _judge(one, subject)
    finally:
        for one in entrants:
            one.close()
    found = (*(one.to_json() for one in entrants), *failed)
    return GpuNetworkResult(subject.name, subject.arguments['batch'], subject.flops, found)


def _judge(one: Entrant, subject: Subject) -> None:
    try:
        one.verdict = verdict(one.answer(), subject.want, subject.precision)
    except CompilerError as error:  # a rival's process that has ended
        one.verdict = {'status': 'failed', 'message': str(error)}


def _time(one: Entrant) -> None:
    try:
        one.turns.append(one.time(REPEATS))
    except CompilerError as error:
        one.verdict = {'status': 'failed', 'message': str(error)}


def verdict(got: np.ndarray, want: np.ndarray, precision: str = 'fp32') -> dict:
    """Whether an answer in float32 is right, by the rule for networks; `want` is in float64.

    Values that are rounded to fewer bits are so once in each of some hundred layers.
    """
    rounding = HALVES.get(PRECISIONS[precision], 0.0)
    found = verify.compare_arrays(
        'the answer', got.reshape(want.shape).astype(np.float32), want,
        tolerance=verify.NETWORK_TOLERANCE[4] + ROUNDED * rounding, least=verify.LEAST,
    )  # fmt: skip
    return {
        'status': 'ok' if found.ok else 'wrong',
        'max_rel_err': found.max_rel_err if np.isfinite(found.max_rel_err) else None,
        'message': found.message,
    }


def _of_peer(
    name: str, subject: Subject, rivals: Rivals | None, failed: list[dict]
) -> list[Entrant]:
    """A peer's entrants, what did not work added to `failed`; whatever it raises is said in one
    sentence.
    """
    try:
        found, rows = table_of('network', 'gpu')[name].load()(subject, rivals)
    except TilewrightError:
        raise
    except Exception as error:
        said = ' '.join(str(error).split())[:200] or type(error).__name__
        raise CompilerError(f'{name} failed: {said}') from error
    failed += rows
    return found


def mean_ratio(results: Sequence[GpuNetworkResult]) -> float | None:
    """Geometric mean of the fastest peer over ours, where both were timed."""
    return geometric_mean([ratio for r in results if (ratio := r.ratio) is not None])


def table(results: Sequence[GpuNetworkResult], peers: Sequence[str]) -> str:
    """Networks as rows, times in microseconds; then the mean, and whatever went wrong."""
    head = ('network', 'ours us', 'TFLOP/s', *(f'{name} us' for name in peers), 'best peer / ours')
    rows = []
    for result in results:
        ours = result.ours_us
        rate = f'{result.flops / ours / 1e6:.2f}' if ours else '-'
        times = [_number(result.time_us(name), '.1f') for name in peers]
        rows.append((result.name, _number(ours, '.1f'), rate, *times, _number(result.ratio, '.2f')))
    return '\n'.join([Grid(head, tuple(rows)).text(), '', *notes(results, peers)])


def notes(results: Sequence[GpuNetworkResult], peers: Sequence[str]) -> list[str]:
    """What the table does not show."""
    lines = []
    mean = mean_ratio(results)
    if mean is not None:
        ratios = [r.ratio for r in results if r.ratio is not None]
        lines.append(
            f'best peer / ours: geometric mean {mean:.3f} over {len(ratios)} networks, least '
            f'{min(ratios):.3f}'
        )
    for result in results:
        for c in result.contestants:
            if c.get('status') != 'ok':
                lines.append(f'{result.name}: {c["name"]} {c["status"]}: {c["message"]}')
    versions = library_versions() if peers else {}
    if versions:
        lines.append(' '.join(f'{key} {value}' for key, value in versions.items()))
    lines.append(
        f'TF32 off, weights and inputs on the device, CUDA graphs, medians of {COPIES} replays'
    )
    return lines


def _number(value: float | None, how: str) -> str:
    return '-' if value is None else format(value, how)
