"""One network, every contestant: interleaved rounds, each contestant alone (rounds.py).

Goes in: a `Subject` (an ONNX file, or a network of the zoo) and an `Arena` of contestants. Comes
out: `NetworkResult`, with raw samples.

What is right is what ONNX Runtime computes without optimisations, in a process of its own that is
gone before anything is timed: every answer must be right by runtime/verify.py's rule for networks,
before and after it is timed. A contestant that is missing, fails, crashes,
hangs or answers wrong keeps its row, which says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.errors import CheckError, InputError, MissingError, ModelError
from tilewright.runtime import verify
from tilewright_lab.compare.network_results import NetworkResult
from tilewright_lab.compare.results import Contestant
from tilewright_lab.compare.rounds import Rounds, Tell
from tilewright_lab.peers.contestants import (
    ORACLE,
    OURS,
    REDUCED_TOLERANCE,
    Arrays,
    table_of,
)
from tilewright_lab.peers.network_process import load, save
from tilewright_lab.peers.peers import Peer, PeerError, absence, check_names

# Compiling a network and trying its settings takes minutes with some peers; signs of life renew it.
PREPARE_LIMIT_S = 1800.0
CALL_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A network to compare: an ONNX file, and its arguments in the zoo if it comes from there."""

    name: str
    model: Path
    zoo: Mapping[str, Any] | None
    inputs: Arrays
    batch: int = 1
    flops: int | None = None

    @classmethod
    def of_zoo(cls, name: str, folder: Path, seed: int, batch: int = 1, **sizes: int) -> Subject:
        """A network of the zoo, written to `folder`; the seed is that of the image."""
        arguments = {'name': name, 'seed': 0, 'batch': batch, **sizes}
        network = zoo.network(name, batch, **sizes)
        path = folder / f'{name}.onnx'
        path.write_bytes(zoo.onnx_model(**arguments).SerializeToString())
        inputs = zoo.inputs(network, seed)
        return cls(name, path, arguments, inputs, batch, 2 * network.multiplications)

    @classmethod
    def of_file(
        cls, path: Path, seed: int, batch: int | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> Subject:  # fmt: skip
        """An ONNX file. Its first size may be left open, and is then the batch size; `shapes` are
        those of inputs that leave more open.
        """
        import onnx

        try:
            graph = onnx.load(str(path), load_external_data=False).graph
        except FileNotFoundError:
            raise InputError(f'{path} does not exist; name an ONNX file or a network') from None
        except Exception as error:
            raise ModelError(f'{path} cannot be read as an ONNX model: {error}') from None
        known = {tensor.name for tensor in graph.initializer}
        rng = np.random.default_rng([seed, 1])
        inputs = {
            value.name: _random(path, value, batch, rng, (shapes or {}).get(value.name))
            for value in graph.input
            if value.name not in known
        }
        firsts = [array.shape[0] for array in inputs.values() if array.ndim]
        return cls(path.stem, path, None, inputs, max(firsts, default=1))


def _random(
    path: Path, value: Any, batch: int | None, rng: np.random.Generator,
    given: Sequence[int] | None,
) -> np.ndarray:  # fmt: skip
    tensor = value.type.tensor_type
    if tensor.elem_type != 1:
        raise InputError(f'{path}: input {value.name!r} is not float32, and cannot be made up')
    shape = [d.dim_value if d.HasField('dim_value') else 0 for d in tensor.shape.dim]
    if given is not None and len(given) == len(shape):
        shape = [size or other for size, other in zip(shape, given, strict=True)]
    if given is not None and shape != list(given):
        raise InputError(
            f'{path}: input {value.name!r} cannot have the shape {list(given)}; its sizes are '
            f'{[d.dim_value or d.dim_param or "open" for d in tensor.shape.dim]}'
        )
    if shape and not shape[0]:
        shape[0] = batch or 1
    elif shape and batch not in (None, shape[0]):
        raise InputError(
            f'{path}: input {value.name!r} has batch size {shape[0]}, and --batch is {batch}'
        )
    if not all(shape):
        raise InputError(
            f'{path}: input {value.name!r} leaves sizes open, {shape}; give them with --shape'
        )
    return rng.standard_normal(shape, np.float32)


class NetworkArena:
    """The contestants' processes, kept from network to network; use it in a `with` statement.

    `ours` is our own contestant, None where only peers are compared.
    """

    def __init__(self, names: Sequence[str], threads: int, ours: Peer | None) -> None:
        if threads < 1:
            raise InputError(f'threads is {threads}; at least 1 is needed')
        self.threads = threads
        self.peers = {
            name: Peer(name, threads, work='network') for name in check_names(names, 'network')
        }
        self.ours = ours

    def __enter__(self) -> NetworkArena:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in (*self.peers.values(), *filter(None, [self.ours])):
            peer.close()

    def oracle(self, subject: Subject) -> Arrays:
        """What the network should answer."""
        sentence = absence(ORACLE, 'network')
        if sentence:
            raise MissingError(f'answers are checked against ONNX Runtime: {sentence}')
        oracle = Peer(ORACLE, self.threads, work='network')
        with oracle as peer, tempfile.TemporaryDirectory() as folder:
            try:
                peer.ask(_request(subject, {}, self.threads, Path(folder)), PREPARE_LIMIT_S)
                return _answers(peer, Path(folder))
            except PeerError as error:
                raise CheckError(
                    f'{subject.name}: ONNX Runtime, which answers are checked against, '
                    f'{error.status}: {error.message}'
                ) from None


def _request(
    subject: Subject, want: Arrays, threads: int, folder: Path, options: Mapping | None = None
) -> dict:
    inputs = folder / 'inputs.npz'
    if not inputs.exists():
        save(inputs, subject.inputs)
    return {
        'do': 'prepare', 'model': str(subject.model), 'zoo': subject.zoo and dict(subject.zoo),
        'inputs': str(inputs), 'threads': threads, 'options': dict(options or {}),
        'outputs': {name: (array.shape, array.dtype.name) for name, array in want.items()},
    }  # fmt: skip


def _answers(peer: Peer, folder: Path) -> Arrays:
    path = folder / f'{peer.name}.npz'
    peer.ask({'do': 'answer', 'path': str(path)}, CALL_LIMIT_S)
    return load(path)


def compare_network(
    subject: Subject,
    arena: NetworkArena,
    *,
    options: Mapping[str, Any] | None = None,
    rounds: int = 7,
    flush: bool = False,
    seed: int = 0,
    turn_ms: float = 100.0,
    progress: Tell | None = None,
) -> NetworkResult:
    """Time our contestant and the arena's peers on one network.

    `options` are for ours: how it is tuned. A turn calls a contestant for about `turn_ms`, and at
    least three times.
    """
    if rounds < 1:
        raise InputError(f'rounds is {rounds}; at least 1 is needed')
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        want = arena.oracle(subject)
        seats = {} if arena.ours is None else {OURS: arena.ours}
        seats |= arena.peers
        run = _Run(subject, want, seats, arena.threads, folder, options or {}, progress)
        prepared = {name: run.prepare(name) for name in seats}
        first, *rivals = seats
        play = Rounds(
            [first], rivals, seats, prepared=prepared, estimate_ms=run.estimate_ms,
            check=run.check, rounds=rounds, turn_ms=turn_ms, limit_s=CALL_LIMIT_S,
            progress=progress,
        )  # fmt: skip
        trouble = play.play(flush, arena.threads)
    rows = play.rows
    return NetworkResult(
        subject.name, subject.batch, subject.flops, arena.threads, rounds, flush, seed,
        rows.get(OURS, Contestant(OURS, 'missing', 'it does not take part')),
        tuple(rows[name] for name in arena.peers), trouble,
    )  # fmt: skip


class _Run:
    """Prepares and checks the contestants of one network."""

    def __init__(
        self, subject: Subject, want: Arrays, seats: Mapping[str, Peer], threads: int, folder: Path,
        options: Mapping[str, Any], progress: Tell | None,
    ) -> None:  # fmt: skip
        self.subject, self.want, self.seats, self.threads = subject, want, seats, threads
        self.folder, self.options, self.progress = folder, options, progress
        self.estimate_ms: dict[str, float] = {}

    def prepare(self, name: str) -> Contestant:
        """Have a contestant choose its settings, and check its answer."""
        sentence = '' if name == OURS else absence(name, 'network')
        if sentence:
            return Contestant(name, 'missing', sentence)
        options = self.options if name == OURS else {}
        request = _request(self.subject, self.want, self.threads, self.folder, options)
        request['tolerance'] = self._tolerance(name)
        peer = self.seats[name]
        try:
            reply = peer.ask(request, PREPARE_LIMIT_S, self.progress)
        except PeerError as error:
            return Contestant(name, error.status, error.message)
        self.estimate_ms[name] = reply['estimate_ms']
        return self.check(
            Contestant(
                name,
                versions=tuple(sorted(peer.versions.items())),
                settings=tuple((reply['settings'] | peer.limits).items()),
                tried=tuple(reply['tried']),
                algorithm=reply['algorithm'],
                reduced=self._reduced(name),
            )
        )

    def _reduced(self, name: str) -> bool:
        """Whether a contestant computes in less than float32: by its row, or as asked."""
        asked = self.options.get('precision') not in (None, 'fp32')
        return table_of('network')[name].reduced or (name == OURS and asked)

    def _tolerance(self, name: str) -> float | None:
        return REDUCED_TOLERANCE if self._reduced(name) else None

    def check(self, row: Contestant) -> Contestant:
        try:
            got = _answers(self.seats[row.name], self.folder)
        except PeerError as error:
            return replace(row, status=error.status, message=error.message)
        verdict = verify.compare_results(got, self.want, tolerance=self._tolerance(row.name))
        if not verdict.ok:
            message = f'its answer differs from ONNX Runtime: {verdict.message}'
            return replace(row, status='wrong', message=message)
        return replace(row, max_rel_err=max(verdict.max_rel_err, row.max_rel_err or 0.0))
