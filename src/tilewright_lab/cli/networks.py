"""`tilewright bench NETWORK`: compiled networks against other libraries, network by network."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.cli.optimize import INTERRUPTED, check_early, machine_of
from tilewright.cli.output import Bar, Output
from tilewright.cli.zoo import ONNX as SUFFIX
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.machine.machine import Machine
from tilewright.network.arguments import TUNES
from tilewright.store.records import package_version
from tilewright_lab.cli.layers import peaks_now
from tilewright_lab.compare.journal import Journal
from tilewright_lab.compare.network_results import NetworkResult, mean_ratio, table
from tilewright_lab.compare.networks import (
    NetworkArena,
    Subject,
    command_of,
    compare_network,
)
from tilewright_lab.peers.networks import FROM_FILES, PEERS, absence, check_names
from tilewright_lab.peers.peers import OURS


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a comparison of networks depends on but the networks."""

    names: tuple[str, ...]
    threads: int
    tune: str = 'measure'
    max_rel_err: float = 1e-4
    rounds: int = 7
    turn_ms: float = 100.0
    flush: bool = False
    batch: int | None = None
    fallback: str | None = None
    fuse: str | None = None

    @property
    def compiling(self) -> dict[str, Any]:
        """What our own contestant is told."""
        told = {'tune': self.tune, 'max_rel_err': self.max_rel_err}
        given = {'fallback': self.fallback, 'fuse': self.fuse}
        return told | {name: value for name, value in given.items() if value}


def peers_of(against: str | None, networks: Sequence[str]) -> tuple[str, ...]:
    """Names of peers: those asked for, or else all that are installed and can read the networks."""
    files = [name for name in networks if name.endswith(SUFFIX)]
    if against is not None:
        names = check_names([name.strip() for name in against.split(',') if name.strip()])
        if not names:
            raise InputError(f'--against {against!r} names no peer; choose from {", ".join(PEERS)}')
        blind = [name for name in names if name not in FROM_FILES]
        if files and blind:
            raise InputError(
                f'{blind[0]} cannot read {files[0]}; compare files against {", ".join(FROM_FILES)}'
            )
        return names
    installed = tuple(n for n in (FROM_FILES if files else PEERS) if not absence(n))
    if not installed:
        raise MissingError(
            "no peer is installed to compare with; pip install 'tilewright[bench]' brings some"
        )
    return installed


def run(
    networks: Sequence[str],
    out: Output,
    *,
    against: str | None,
    rounds: int,
    flush: bool,
    threads: int | None,
    seed: int | None,
    batch: int | None,
    tune: str,
    max_rel_err: float,
    turn_ms: float,
    fallback: str | None = None,
    fuse: str | None = None,
) -> int:
    """Compile and compare network by network; comes out: the exit code.

    Whatever is finished is reported, also after an interrupt, and the same command then goes on
    from there.
    """
    check_early(None, threads, top=1, algorithm='auto', max_rel_err=max_rel_err, seed=seed)
    if tune not in TUNES:
        raise InputError(f'--tune {tune!r}; choose one of {", ".join(TUNES)}')
    if rounds < 1:
        raise InputError(f'rounds is {rounds}; at least 1 is needed')
    if not turn_ms > 0:
        raise InputError(f'turn_ms is {turn_ms}; a turn takes more than 0 ms')
    names = peers_of(against, networks)
    machine = machine_of(None, True, out)
    count = threads if threads is not None else knobs.get('threads') or machine.cores
    options = Options(
        names, count, tune, max_rel_err, rounds, turn_ms, flush, batch, fallback, fuse
    )  # fmt: skip
    journal = Journal(
        {
            'networks': list(networks), 'seed': seed, 'package': package_version(),
            'machine': machine.fingerprint or machine.name, 'options': repr(options),
        }
    )  # fmt: skip
    if journal.layers:
        out.warn(
            f'{len(journal.layers)} of {len(networks)} networks were compared before an '
            f'interrupt; going on from there, {journal.path}'
        )
    drawn = int(journal.header.get('seed', secrets.randbits(32) if seed is None else seed))
    journal.begin({'seed': drawn})
    code, done = 0, []
    command = command_of('tilewright_lab.cli.network_contestant', OURS)
    with Bar(len(networks)) as bar, NetworkArena(names, options.threads, command) as arena:
        try:
            for name in networks:
                bar.begin(name)
                if name not in journal.layers:
                    result = _compare(name, arena, options, drawn, bar)
                    journal.add({'name': name, 'comparison': result.to_json()})
                done.append(NetworkResult.from_json(journal.layers[name]['comparison']))
                bar.finish()
        except KeyboardInterrupt:
            out.warn(
                f'interrupted after {len(done)} of {len(networks)} networks; the same command '
                f'goes on from there'
            )
            code = INTERRUPTED
    found = _report(networks, out, options, machine, drawn, done)
    if len(done) == len(networks):
        journal.complete()
    return code or found


def _compare(
    name: str, arena: NetworkArena, options: Options, seed: int, bar: Bar
) -> NetworkResult:
    with tempfile.TemporaryDirectory() as folder:
        if name.endswith(SUFFIX):
            subject = Subject.of_file(Path(name), seed, options.batch)
        else:
            subject = Subject.of_zoo(name, Path(folder), seed, options.batch or 1)
        return compare_network(
            subject, arena, options=options.compiling, rounds=options.rounds, seed=seed,
            flush=options.flush, turn_ms=options.turn_ms, progress=bar.turn,
        )  # fmt: skip


def _report(
    networks: Sequence[str],
    out: Output,
    options: Options,
    machine: Machine,
    seed: int,
    done: Sequence[NetworkResult],
) -> int:
    """Print the table and write the JSON; comes out: the exit code."""
    peaks: dict[str, float] = {}
    if done:
        with contextlib.suppress(KeyboardInterrupt):  # of whoever cannot wait for the last figure
            peaks = peaks_now(machine, options.threads)
        out.say(table(done, peaks.get('used_gflops_per_s')))
    out.write(
        {
            'networks': [result.to_json() for result in done],
            'geometric_mean': {'best_peer_over_ours': mean_ratio(done)},
            'least': min((r.best.value for r in done if r.best), default=None),
            'complete': len(done) == len(networks),
            'peers': list(options.names), 'seed': seed, 'threads': options.threads,
            'rounds': options.rounds, 'turn_ms': options.turn_ms, 'batch': options.batch or 1,
            'tune': options.tune, 'max_rel_err': options.max_rel_err,
            'machine': machine.to_json(), 'peak': peaks,
        }
    )  # fmt: skip
    if any(not result.ours.ok for result in done):
        return CheckError.exit_code
    missing = [sentence for name in options.names if (sentence := absence(name))]
    for sentence in missing:
        out.warn(sentence)
    return MissingError.exit_code if missing else 0
