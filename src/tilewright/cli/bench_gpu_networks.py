"""`tilewright bench NETWORK --target cuda`: compiled networks on a GPU against PyTorch's."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.bench.gpu_duel import Entrant
from tilewright.bench.gpu_network_duel import (
    COPIES,
    OURS,
    GpuNetworkResult,
    Subject,
    check_peers,
    duel,
    mean_ratio,
    table,
)
from tilewright.cli.output import Output
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.network.compile import TUNES, compile
from tilewright.runtime.gpu_network import GpuNetwork
from tilewright.runtime.gpu_recorded import Recorded, recorded
from tilewright.runtime.gpu_session import open_device
from tilewright.search.gpu_moves import schedule_text

INTERRUPTED = 130
DEFAULT_PEERS = {'cuda': 'torch'}


def run(
    networks: Sequence[str],
    out: Output,
    *,
    target: str,
    against: str | None,
    device: str,
    tune: str,
    trials: int | None,
    batch: int | None,
    rounds: int,
    seed: int | None,
) -> int:
    """Compile and compare network by network; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt; losing rows stay.
    """
    named = against if against is not None else DEFAULT_PEERS.get(target, '')
    peers = check_peers([name.strip() for name in named.split(',') if name.strip()])
    unknown = [name for name in networks if name not in zoo.NAMES]
    if unknown:
        raise InputError(
            f'{unknown[0]!r} is no network of the zoo, and others cannot be compared on a GPU; '
            f'choose from {", ".join(zoo.NAMES)}'
        )
    if tune not in TUNES:
        raise InputError(f'--tune {tune!r}; choose one of {", ".join(TUNES)}')
    if rounds < 1:
        raise InputError(f'rounds is {rounds}; at least 1 is needed')
    opened = open_device(target, device)
    drawn = secrets.randbits(32) if seed is None else seed
    out.say(f'{opened.name} ({target})')
    code, done = 0, []
    compiling = {'target': target, 'device': device, 'tune': tune, 'trials': trials}
    try:
        for name in networks:
            subject = Subject.of(name, drawn, batch or 1)
            done.append(duel(subject, _ours(subject, compiling), peers, rounds, _progress))
            _progress('')
            result = done[-1]
            out.say(f'{name}: ours {result.ours_us or 0:.1f} us, ratio {result.ratio or 0:.3f}')
    except KeyboardInterrupt:
        out.warn(f'interrupted after {len(done)} of {len(networks)} networks')
        code = INTERRUPTED
    out.say(table(done, peers))
    out.write(
        {
            'networks': [result.to_json() for result in done],
            'geometric_mean': {'best_peer_over_ours': mean_ratio(done)},
            'least': min((r.ratio for r in done if r.ratio is not None), default=None),
            'complete': len(done) == len(networks), 'peers': list(peers), 'seed': drawn,
            'target': target, 'device': opened.name, 'machine': opened.machine.to_json(),
            'tune': tune, 'trials': trials, 'batch': batch or 1, 'rounds': rounds,
            'copies': COPIES,
        }
    )  # fmt: skip
    return code or _exit_code(done)


def _ours(subject: Subject, compiling: dict[str, Any]) -> list[Callable[[], Entrant]]:
    """Ours with branches side by side, and the same kernels one after the other."""
    began = time.perf_counter()
    made: list[GpuNetwork] = []

    def network() -> GpuNetwork:
        if not made:
            found = compile(zoo.graph(**subject.arguments), progress=_told, **compiling)
            assert isinstance(found, GpuNetwork)
            made.append(found)
        return made[0]

    def entrant(parallel: bool) -> Entrant:
        net = network()
        spent = time.perf_counter() - began
        stream = recorded(net.device, net.calls, net.waits if parallel else None)
        tasks = [
            {
                'task': task.name, 'label': task.group.label, 'kernels': len(task.calls),
                'schedule': schedule_text(task.schedule), 'predicted_us': 1e6 * task.predicted_s,
                'bound_us': 1e6 * task.bound_s,
            }
            for task in net.gpu_tasks
        ]  # fmt: skip
        settings = {'parallel': parallel, 'kernels': len(net.calls), 'tasks': tasks}
        label = f'{OURS}/{"side by side" if parallel else "in a row"}'
        return Entrant(
            label, lambda repeats: _timed(net, stream, repeats), lambda: _answer(net, stream),
            settings, spent, keep=net,
        )  # fmt: skip

    def _answer(net: GpuNetwork, stream: Recorded) -> np.ndarray:
        net.device.use()
        net.device.write(net.buffers[zoo.INPUT], subject.image)
        stream.run()
        net.device.synchronize()
        return net.device.download(net.buffers[zoo.OUTPUT])

    return [lambda: entrant(True), lambda: entrant(False)]


def _timed(net: GpuNetwork, stream: Recorded, repeats: int) -> list[float]:
    net.device.use()
    stream.run()
    net.device.synchronize()
    return stream.time(repeats, COPIES)


def _told(progress: Any) -> None:
    _progress(f'{progress.stage} {progress.key} {progress.done}/{progress.total}')


def _progress(text: str) -> None:
    """A line that the next one replaces, on a terminal."""
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def _exit_code(done: Sequence[GpuNetworkResult]) -> int:
    """1 when nothing of ours worked on a network, 3 when a contestant is missing."""
    if any(result.ours_us is None for result in done):
        return CheckError.exit_code
    missing = any(c.get('status') == 'missing' for r in done for c in r.contestants)
    return MissingError.exit_code if missing else 0
