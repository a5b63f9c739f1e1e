"""`tilewright bench`: ours against others. Dispatches on what it is given, and has what all share.

    layers on a CPU      layers.py         layers on a GPU      gpu_layers.py
    networks on a CPU    networks.py       networks on a GPU    gpu_networks.py

Goes in: `BenchOptions`. Comes out: the exit code; tables and JSON are written on the way.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from tilewright.cli.optimize import INTERRUPTED
from tilewright.cli.options import refuse
from tilewright.cli.output import Bar, Output
from tilewright.cli.zoo import networks_of
from tilewright.errors import InputError, MissingError
from tilewright.machine.detect import describe_host
from tilewright.machine.machine import Machine
from tilewright.machine.measure import measure_host
from tilewright.network.arguments import TUNES, check_precision
from tilewright.runtime.gpu.libraries.table import check_mode
from tilewright.store.records import package_version
from tilewright_lab.compare.journal import Journal
from tilewright_lab.peers import held
from tilewright_lab.peers.contestants import peer_names, table_of
from tilewright_lab.peers.peers import absence, check_names

# Options that say nothing on the other device, nor about layers of a GPU.
CPU_ONLY = (
    'flush', 'caches', 'direct', 'turn-ms', 'tvm-trials', 'top', 'algorithm', 'max-rel-err',
    'threads', 'slice-s', 'busy',
)  # fmt: skip
GPU_ONLY = ('device', 'trials', 'seconds', 'untuned')


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Everything that a comparison depends on, as the command line has it."""

    spec: str
    against: str | None = None
    rounds: int = 7
    flush: bool = False
    caches: str = 'warm'
    direct: bool = True
    turn_ms: float = 100.0
    tvm_trials: int = 200
    top: int = 5
    algorithm: str = 'auto'
    max_rel_err: float = 1e-4
    tune: str = 'measure'
    fallback: str | None = None
    target: str = 'cpu'
    batch: int | None = None
    device: str = ''
    trials: int | None = None
    seconds: float | None = None
    threads: int | None = None
    seed: int | None = None
    libraries: str = 'none'
    fuse: str | None = None
    untuned: bool = True
    precision: str = 'fp32'
    fleet: str | None = None
    shapes: tuple[str, ...] = ()
    slice_s: float | None = None
    busy: int = 0

    def check(self) -> None:
        for name in ('rounds', 'tvm_trials'):
            if getattr(self, name) < 1:
                raise InputError(f'{name} is {getattr(self, name)}; at least 1 is needed')
        if not self.turn_ms > 0:
            raise InputError(f'turn_ms is {self.turn_ms}; a turn takes more than 0 ms')
        if self.tune not in TUNES:
            raise InputError(f'--tune {self.tune!r}; choose one of {", ".join(TUNES)}')
        for name in ('seconds', 'slice_s'):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f'{name} is {value}; it must be above 0')

    @property
    def drawn_seed(self) -> int:
        """The seed that was given, or a new one."""
        return secrets.randbits(32) if self.seed is None else self.seed


def run(
    options: BenchOptions, out: Output, given: Callable[..., dict[str, bool]], layers: bool
) -> int:
    """Compare what `spec` names; comes out: the exit code.

    given    which of some options stand on the command line
    layers   whether a name that is also a network's means layers
    """
    on_gpu = options.target != 'cpu'
    refuse(options.target, given(*(CPU_ONLY if on_gpu else GPU_ONLY)))
    networks = None if layers else networks_of(options.spec)
    if on_gpu and networks is None:
        refuse(options.target, given('tune', 'libraries', 'fuse', 'untuned', 'precision'))
    if not on_gpu:
        check_mode(options.libraries, options.target)
        check_precision(options.precision, options.target)
        if sentence := held.missing():
            out.warn(sentence)
    if options.fleet is not None and (options.tune != 'measure' or (on_gpu and networks is None)):
        raise InputError(
            f'--fleet {options.fleet} tunes networks and layers of a CPU; leave it out for layers '
            f'of a GPU and with --tune model'
        )
    if options.shapes and (on_gpu or networks is None or len(networks) != 1):
        raise InputError(
            f'--shape {options.shapes[0]} gives the sizes of one network on a CPU; leave it out '
            f'for {options.spec}{" on a GPU" if on_gpu else ""}'
        )
    if networks is None and options.busy:
        raise InputError(f'--busy {options.busy} is for networks; leave it out for {options.spec}')
    if networks is None and options.fuse is not None:
        raise InputError(f'--fuse {options.fuse} is for networks; leave it out for {options.spec}')
    what = 'layers' if networks is None else 'networks'
    verb: Any = import_module(f'tilewright_lab.cli.{"gpu_" if on_gpu else ""}{what}')
    return verb.run(options, out) if networks is None else verb.run(networks, options, out)


def words_of(against: str) -> list[str]:
    return [name.strip() for name in against.split(',') if name.strip()]


def peers_of(against: str | None, work: str, files: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of peers on a CPU: those asked for, or else all that are installed, need no tuning and
    can read the files.
    """
    rows = table_of(work)
    reading = [name for name in peer_names(work) if rows[name].reads or not files]
    if against is None:
        usual = [name for name in reading if rows[name].usual]
        installed = tuple(name for name in usual if not absence(name, work))
        if not installed:
            raise MissingError(
                f'no peer is installed to compare with; install one of {", ".join(usual)}, such as '
                f"by pip install 'tilewright[bench]'"
            )
        return installed
    names = check_names(words_of(against), work)
    if not names:
        known = ', '.join(peer_names(work))
        raise InputError(f'--against {against!r} names no peer; choose from {known}')
    blind = [name for name in names if name not in reading]
    if blind:
        raise InputError(
            f'{blind[0]} cannot read {files[0]}; compare files against {", ".join(reading)}'
        )
    return names


def missing_code(names: Sequence[str], work: str, out: Output) -> int:
    """The exit code where peers that were asked for are missing, which is said."""
    missing = [sentence for name in names if (sentence := absence(name, work))]
    for sentence in missing:
        out.warn(sentence)
    return MissingError.exit_code if missing else 0


class Resumed:
    """A comparison on this host that goes on where the same command was interrupted, or where its
    slice of time ended.

    what    'layers' or 'networks', which `names` are
    facts   what makes the run what it is, beside its options
    """

    def __init__(
        self, what: str, names: Sequence[str], options: BenchOptions, machine: Machine, out: Output,
        **facts: Any,
    ) -> None:  # fmt: skip
        self.what, self.names, self.out = what, names, out
        self.begun, self.slice_s = time.monotonic(), options.slice_s
        self.journal = Journal(
            {
                'names': list(names), 'options': repr(replace(options, slice_s=None)),
                'package': package_version(), 'isa': machine.isa,
                'machine': machine.fingerprint or machine.name, **facts,
            }
        )  # fmt: skip
        if self.journal.layers:
            out.warn(
                f'{len(self.journal.layers)} of {len(names)} {what} were compared before an '
                f'interrupt; going on from there, {self.journal.path}'
            )
        self.seed = int(self.journal.header.get('seed', options.drawn_seed))
        self.journal.begin({'seed': self.seed})

    def each(
        self, compare: Callable[[int], dict], bar: Bar, interrupted: Callable[[int], str]
    ) -> tuple[list[dict], int]:
        """(what was compared, by number; the exit code). Whatever is finished comes out, also after
        an interrupt, of which `interrupted` says how far it was, and behind a slice, which ends as
        an interrupt does, but compares one at least.
        """
        done: list[dict] = []
        before = len(self.journal.layers)
        try:
            for number, name in enumerate(self.names):
                bar.begin(name)
                if name not in self.journal.layers:
                    if self._is_over() and len(self.journal.layers) > before:
                        break
                    self.journal.add(compare(number))
                done.append(self.journal.layers[name])
                bar.finish()
        except KeyboardInterrupt:
            self.out.warn(interrupted(len(done)))
            return done, INTERRUPTED
        if len(done) == len(self.names):
            return done, 0
        self.out.warn(
            f'{len(done)} of {len(self.names)} {self.what} compared in this slice and before; the '
            f'same command goes on from there'
        )
        return done, INTERRUPTED

    def _is_over(self) -> bool:
        return self.slice_s is not None and time.monotonic() - self.begun > self.slice_s

    def close(self, done: Sequence[object]) -> None:
        """Forget a run that is complete."""
        if len(done) == len(self.names):
            self.journal.complete()


def progress(text: str) -> None:
    """A line that the next one replaces, on a terminal."""
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def peaks_now(machine: Machine, threads: int) -> dict[str, float]:
    """The FMA peak at this thread count: the machine file's, this run's, and the larger of them.

    Disturbances only lower a peak, so shares of the larger one are never flattered.
    """
    now = measure_host(describe_host(), machine.isa).machine.peak_gflops(threads)
    stored = machine.peak_gflops(threads)
    return {
        'machine_file_gflops_per_s': stored,
        'this_run_gflops_per_s': now,
        'used_gflops_per_s': max(stored, now),
    }
