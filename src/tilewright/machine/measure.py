"""What this host really does: FMA peak, bandwidth of every boundary, clock, fork and join; cached.

Goes in: `HostFacts`. Comes out: a `Machine`, measured once by the synthetic benchmarks in
`probe.c` (MOpt Sec. 7) and kept in the cache directory under the host's fingerprint, with its
bandwidth curve beside it. `load_machine` is what the rest of the package calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tilewright.errors import InputError, MissingError, StoreError
from tilewright.files import replacing
from tilewright.machine.compiler import build, cache_dir
from tilewright.machine.constants import TimeConstants
from tilewright.machine.curve import Point, boundary_bandwidths, sweep_sizes, with_usable_sizes
from tilewright.machine.detect import HostFacts, describe_host
from tilewright.machine.isa import ISAS, Dot, Isa, best_isa, host_dot, host_half, host_tiles
from tilewright.machine.known import known_machine, machine_from_file
from tilewright.machine.machine import Machine

FORMAT = 2
_FMA, _READ, _CLOCK, _BARRIER = range(4)  # kinds of work, as in probe.c
_FALLBACK_CLOCK_GHZ = 2.5
# SMT siblings add nothing to a full FMA pipeline; what adds this much is a core, whatever is said.
_REAL_CORE_GAIN = 1.3
# All cores clock lower than one, but not by as much as this.
_LEAST_SCALING = 0.6
# Of what each has of its own, arithmetic and near caches, all cores together reach at least this
# share. Where they do not, a neighbour of a virtual machine may have had one of them for a while:
# such figures would be kept for good, so that they are taken again.
_OWN_SCALING = 0.8


@dataclass(frozen=True, slots=True)
class Record:
    """A measured machine and the curve that it was derived from: what the cache file holds.

    `calibration` says how well its time constants rank schedules, empty where it has none.
    """

    machine: Machine
    curve: tuple[Point, ...]
    calibration: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        data = {'format': FORMAT, 'machine': self.machine.to_json(), 'curve': self.curve}
        return json.dumps(data | {'calibration': dict(self.calibration)}, indent=1) + '\n'

    @classmethod
    def loads(cls, text: str) -> Record:
        """The record in a cache file; InputError for anything that is not one."""
        try:
            data = json.loads(text)
            if data['format'] != FORMAT:
                raise InputError(f'machine file format {data["format"]!r} is not {FORMAT}')
            points = tuple((int(b), float(one), float(every)) for b, one, every in data['curve'])
            return cls(
                Machine.from_json(data['machine']), points, dict(data.get('calibration') or {})
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f'a machine file is corrupt: {error!r}') from None


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: seconds of a lap, laps of which the best counts, largest working set;
    how often all cores are taken again where somebody disturbed them, and after which pause.
    """

    seconds: float = 0.001
    least_laps: int = 10
    most_laps: int = 40
    largest_bytes: int = 256 << 20
    tries: int = 5
    pause_s: float = 0.4


class Probe:
    """probe.c, compiled for one instruction set, with what it multiplies, and loaded."""

    def __init__(
        self, isa: Isa, dot: Dot | None = None, *, half: bool = False, tiles: str = ''
    ) -> None:
        source = (resources.files('tilewright.machine') / 'probe.c').read_text()
        defines = (f'-DISA_{isa.probe}', f'-DVECTOR_BYTES={isa.vector_bytes}')
        if dot:
            defines = (*defines, f'-DDOT_{dot.dtype}', *dot.compiler_flags)
        if half and isa.half:
            defines = (*defines, '-DDOT_f16', *isa.half.compiler_flags)
        if tiles:
            defines = (*defines, f'-DTILES_{tiles}')
        # The machine is what it is whatever kernels are built with: -O0 would be measured for good.
        library = build(source, (*isa.compiler_flags, *defines), name='probe', asked=False)
        self._run = ctypes.CDLL(str(library)).probe_run

    def rates(
        self, kind: int, cpus: Sequence[int], sizes: Sequence[int], effort: Effort
    ) -> list[float]:
        """The best rate at every size, all `cpus` together: units of the kind in a second."""
        count, best = len(sizes), (ctypes.c_double * len(sizes))()
        error = self._run(
            ctypes.c_int(kind),
            ctypes.c_int(len(cpus)),
            (ctypes.c_int * len(cpus))(*cpus),
            ctypes.c_int(count),
            (ctypes.c_long * count)(*sizes),
            ctypes.c_double(effort.seconds),
            ctypes.c_int(effort.least_laps),
            ctypes.c_int(effort.most_laps),
            best,
        )
        if error:
            raise MissingError(
                f'the machine could not be measured with {len(cpus)} threads and {max(sizes)} '
                f'bytes each ({os.strerror(error)}); raise the limits of this process'
            )
        return list(best)


def fingerprint(facts: HostFacts, isa: str) -> str:
    """Names the host by what a measurement depends on: model, cores, caches, instruction set."""
    caches = [asdict(cache) for cache in facts.caches]
    key = json.dumps(
        [FORMAT, facts.model, facts.arch, len(facts.allowed), facts.cores, caches, isa]
    )
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def machine_file(facts: HostFacts, isa: str) -> Path:
    """Where the measured figures of this host are kept."""
    return cache_dir() / 'machine' / f'{fingerprint(facts, isa)}.json'


def measure_host(facts: HostFacts, isa: str, effort: Effort | None = None) -> Record:
    """[facts] -> [measured machine, curve]. A few seconds; every figure is a best of short runs."""
    effort, mark = effort or Effort(), fingerprint(facts, isa)
    probe = Probe(ISAS[isa])
    peak_all = probe.rates(_FMA, facts.cpus, [0], effort)[0]
    if len(facts.allowed) > facts.cores and facts.quota is None:
        every = probe.rates(_FMA, facts.allowed, [0], effort)[0]
        if every > _REAL_CORE_GAIN * peak_all:
            facts, peak_all = describe_host(smt=True), every
    first = facts.cpus[:1]
    peak_one = probe.rates(_FMA, first, [0], effort)[0]
    peak_all = _undisturbed(probe, facts, effort, peak_one, peak_all)
    if peak_all < _LEAST_SCALING * facts.cores * peak_one and facts.quota is None:
        facts = describe_host(affinity=_core_cpus(probe, facts.cpus, effort))
    clock = probe.rates(_CLOCK, first, [0], effort)[0]
    dot_one, dot_all = _dot_peaks(ISAS[isa], facts, effort)
    half_one, half_all = _half_peaks(ISAS[isa], facts, effort)
    tiles = _tile_peaks(ISAS[isa], facts, effort)
    curve = _sweep(probe, facts, effort)
    caches = with_usable_sizes(facts.caches, curve)
    one, every = boundary_bandwidths(caches, curve)
    machine = Machine(
        name=facts.model,
        isa=isa,
        cores=facts.cores,
        clock_ghz=_rounded(clock / 1e9),
        caches=caches,
        peak_one_gflops=_rounded(peak_one / 1e9),
        peak_all_gflops=_rounded(max(peak_all, peak_one) / 1e9),
        bandwidth_one_gbps=tuple(_rounded(x) for x in one),
        bandwidth_all_gbps=tuple(_rounded(x) for x in every),
        fork_join_us=_fork_join_us(probe, facts, effort),
        measured=True,
        fingerprint=mark,
        dot_dtype=host_dot(isa),
        dot_one_gops=_rounded(dot_one / 1e9),
        dot_all_gops=_rounded(dot_all / 1e9),
        half_one_gflops=_rounded(half_one / 1e9),
        half_all_gflops=_rounded(half_all / 1e9),
    )
    return Record(replace(machine, **tiles), curve)


def _peaks(probe: Probe, facts: HostFacts, effort: Effort) -> tuple[float, float]:
    """What one core multiplies in a second, and all of them."""
    one, every = (probe.rates(_FMA, cpus, [0], effort)[0] for cpus in (facts.cpus[:1], facts.cpus))
    return one, max(one, _undisturbed(probe, facts, effort, one, every))


def _undisturbed(
    probe: Probe, facts: HostFacts, effort: Effort, one: float, every: float
) -> float:  # fmt: skip
    """The rate of all cores, measured again where it is not what one reaches times their number."""
    for _ in range(_tries(facts, effort)):
        if every >= _OWN_SCALING * facts.cores * one:
            break
        time.sleep(effort.pause_s)
        every = max(every, probe.rates(_FMA, facts.cpus, [0], effort)[0])
    return every


def _tries(facts: HostFacts, effort: Effort) -> int:
    """How often all cores are measured again: a quota is no neighbour, one core has no other."""
    return effort.tries if facts.cores > 1 and facts.quota is None else 0


def core_cpus(effort: Effort | None = None) -> tuple[int, ...]:
    """One CPU of this host for each core that is really there, whatever the system says."""
    facts = describe_host()
    return _core_cpus(Probe(ISAS[best_isa(facts.isas)]), facts.cpus, effort or Effort())


def _core_cpus(probe: Probe, cpus: tuple[int, ...], effort: Effort) -> tuple[int, ...]:
    one = probe.rates(_FMA, cpus[:1], [0], effort)[0]
    return one_per_pipeline(cpus, lambda pair: probe.rates(_FMA, pair, [0], effort)[0], one)


def one_per_pipeline(
    cpus: tuple[int, ...], rate: Callable[[tuple[int, int]], float], peak_one: float
) -> tuple[int, ...]:
    """One of every two CPUs that share a core although the system says that they do not.

    Virtual machines often hide it. Numbers of such a pair are neighbours, or half of all apart.
    `rate` is what two CPUs reach together. Where pairs do not share, or CPUs of different pairs do,
    the host was busy, and all of them count; two CPUs alone do not tell one from the other.
    """

    def share(pair: tuple[int, int]) -> bool:
        return rate(pair) < _REAL_CORE_GAIN * peak_one

    half = len(cpus) // 2
    if len(cpus) < 4 or len(cpus) % 2:
        return cpus
    for firsts, seconds in ((cpus[::2], cpus[1::2]), (cpus[:half], cpus[half:])):
        pairs = zip(firsts, seconds, strict=True)
        if all(map(share, pairs)) and not any(map(share, pairwise(firsts))):
            return firsts
    return cpus


def _dot_peaks(isa: Isa, facts: HostFacts, effort: Effort) -> tuple[float, float]:
    """Operations a second on small whole numbers, of one core and of all; 0 in portable C."""
    dot = isa.dot(host_dot(isa.name))
    if dot is None or isa.probe == 'portable':
        return 0.0, 0.0
    one, every = _peaks(Probe(isa, dot), facts, effort)
    return dot.products * one, dot.products * every


def _half_peaks(isa: Isa, facts: HostFacts, effort: Effort) -> tuple[float, float]:
    """Operations a second on f16, of one core and of all; 0 where there are none."""
    if not host_half(isa.name):
        return 0.0, 0.0
    one, every = _peaks(Probe(isa, half=True), facts, effort)
    return 2 * one, 2 * every


def _tile_peaks(isa: Isa, facts: HostFacts, effort: Effort) -> dict[str, float]:
    """Fields of the machine: operations a second in tiles; none where there are no tiles."""
    if not host_tiles(isa.name):
        return {}
    found = {}
    kinds = (('u8', 4, 'tile_{}_gops'), ('bf16', 2, 'bf16_{}_gflops'))
    for dtype, products, name in kinds:
        one, every = _peaks(Probe(isa, tiles=dtype), facts, effort)
        found[name.format('one')] = _rounded(products * one / 1e9)
        found[name.format('all')] = _rounded(products * every / 1e9)
    return found


def _nominal_tiles(isa: str, clock: float, cores: int) -> dict[str, float]:
    """The same of a machine that was not measured: a row of words times 16 x 16 in a cycle."""
    if not host_tiles(isa):
        return {}
    words = 2 * 16 * 16 * clock
    return {
        'tile_one_gops': 4 * words, 'tile_all_gops': 4 * words * cores,
        'bf16_one_gflops': 2 * words, 'bf16_all_gflops': 2 * words * cores,
    }  # fmt: skip


def _rounded(value: float) -> float:
    """Four figures: more would be noise."""
    return float(f'{value:.4g}')


def _fork_join_us(probe: Probe, facts: HostFacts, effort: Effort) -> float:
    """Starting and collecting a team of spinning threads is one barrier round trip."""
    if facts.cores == 1:
        return 0.0
    return _rounded(1e6 / probe.rates(_BARRIER, facts.cpus, [2000], effort)[0])


def _sweep(probe: Probe, facts: HostFacts, effort: Effort) -> tuple[Point, ...]:
    """The bandwidth curve. Sizes are bytes for each core; all cores have buffers of their own.

    One core sweeps to four times the outermost cache; all cores together need no more than four
    times their share of it each, and larger points repeat the last one measured.
    """
    outer = facts.caches[-1]
    largest = max(min(4 * outer.bytes, effort.largest_bytes), outer.bytes // outer.shared_by)
    sizes = sweep_sizes(facts.caches, largest)
    alone = probe.rates(_READ, facts.cpus[:1], sizes, effort)
    if facts.cores == 1:
        together = alone
    else:
        enough = max(4 * outer.bytes // outer.shared_by, 8 << 20)
        measured = [size for size in sizes if size <= enough]
        together = probe.rates(_READ, facts.cpus, measured, effort)
        own = sum(size <= _own_bytes(facts) for size in measured)
        for _ in range(_tries(facts, effort)):
            shares = [b / a for a, b in zip(alone[:own], together[:own], strict=True)]
            if not shares or median(shares) >= _OWN_SCALING * facts.cores:
                break
            time.sleep(effort.pause_s)
            again = probe.rates(_READ, facts.cpus, measured, effort)
            together = [max(pair) for pair in zip(together, again, strict=True)]
        together += together[-1:] * (len(sizes) - len(together))
    return tuple(
        (size, _rounded(a / 1e9), _rounded(b / 1e9))
        for size, a, b in zip(sizes, alone, together, strict=True)
    )


def _own_bytes(facts: HostFacts) -> int:
    """Working sets that a core's own caches hold, with room to spare; 0 where it has none."""
    return max((cache.bytes // 2 for cache in facts.caches if cache.shared_by == 1), default=0)


def nominal_machine(facts: HostFacts, isa: str) -> Machine:
    """Figures for a host that was not measured, from its facts alone.

    Peak: clock x operations per cycle. Bandwidths per core: all loads of a cycle from L1, half a
    vector a cycle from L2, 8 bytes a cycle from L3, 10 GB/s from memory, of which all cores
    together get at most twice that. Meant to rank schedules, not to predict times.
    """
    row, cores = ISAS[isa], facts.cores
    clock = facts.clock_ghz or _FALLBACK_CLOCK_GHZ
    bytes_per_cycle = (row.loads_per_cycle * row.vector_bytes, row.vector_bytes / 2, 8.0)
    one = [clock * bytes_per_cycle[min(i, 2)] for i in range(len(facts.caches))]
    made = Machine(
        name=facts.model,
        isa=isa,
        cores=cores,
        clock_ghz=clock,
        caches=facts.caches,
        peak_one_gflops=clock * row.flops_per_cycle,
        peak_all_gflops=clock * row.flops_per_cycle * cores,
        bandwidth_one_gbps=(*one, 10.0),
        bandwidth_all_gbps=(*(rate * cores for rate in one), 10.0 * min(cores, 2)),
        measured=False,
        fingerprint=fingerprint(facts, isa),
        dot_dtype=host_dot(isa),
        half_one_gflops=2 * clock * row.flops_per_cycle if host_half(isa) else 0.0,
        half_all_gflops=2 * clock * row.flops_per_cycle * cores if host_half(isa) else 0.0,
    )
    return replace(made, **_nominal_tiles(isa, clock, cores))


def load_machine(
    name: str | os.PathLike[str] | None = None, *, measure: bool = True
) -> tuple[Machine, str | None]:
    """(machine, warning or None) for a name, the path of a .json file, or (None) this host.

    Text is a path when it ends in .json, any other path-like object always is one.

    This host is measured once, if `measure` allows, and read from the cache from then on; a corrupt
    cache file counts as none. Without a file and without leave to measure the figures are nominal.
    """
    if isinstance(name, os.PathLike) or (name is not None and name.endswith('.json')):
        return machine_from_file(Path(name)), None
    if name is not None:
        return known_machine(name), None
    facts = describe_host()
    isa = best_isa(facts.isas)
    record, warning = _host_record(facts, isa, measure)
    if record is None:
        return nominal_machine(facts, isa), (
            f'{facts.model} has not been measured: nominal figures are used; '
            f'run `tilewright machine` once to measure it'
        )
    return record.machine, warning


def curve(*, measure: bool = True) -> list[Point]:
    """This host's bandwidth curve: (bytes for each core, GB/s of one core, GB/s of all cores).

    From the cache; measured first if absent and allowed, and empty if absent and not.
    """
    facts = describe_host()
    record, _ = _host_record(facts, best_isa(facts.isas), measure)
    return list(record.curve) if record else []


def calibration() -> Mapping[str, Any]:
    """How well this host was calibrated; empty where it was not."""
    facts = describe_host()
    record, _ = _host_record(facts, best_isa(facts.isas), False)
    return record.calibration if record else {}


def keep_calibration(constants: TimeConstants, report: Mapping[str, Any]) -> tuple[Machine, str]:
    """Write constants that were fitted on this host into its file; (the machine, where it is)."""
    facts = describe_host()
    isa = best_isa(facts.isas)
    path = machine_file(facts, isa)
    record, _ = _host_record(facts, isa, True)
    assert record is not None, 'a host that may be measured has a record'
    machine = replace(record.machine, constants=constants)
    with _lock(path):
        trouble = _write(path, replace(record, machine=machine, calibration=dict(report)))
    if trouble:
        raise StoreError(trouble)
    return machine, str(path)


def _host_record(facts: HostFacts, isa: str, measure: bool) -> tuple[Record | None, str | None]:
    """The stored record, or a new one that is then stored, or None; and a warning if it was not."""
    path = machine_file(facts, isa)
    record = _stored(path, fingerprint(facts, isa))
    lacks = record is not None and _lacks(record.machine)
    if record and lacks and not measure:  # twice the lanes
        known = record.machine
        if not known.half and host_half(isa):
            one, every = 2 * known.peak_one_gflops, 2 * known.peak_all_gflops
            known = replace(known, half_one_gflops=one, half_all_gflops=every)
        if not known.tiles:
            known = replace(known, **_nominal_tiles(isa, known.clock_ghz, known.cores))
        return replace(record, machine=known), None
    if not measure or (record and not lacks):
        return record, None
    with _lock(path):
        # Another process may have measured while this one waited.
        record = _stored(path, fingerprint(facts, isa))
        if record and not _lacks(record.machine):
            return record, None
        if record:  # it was measured before its f16 or its tiles were
            one, every = _half_peaks(ISAS[isa], facts, Effort())
            machine = replace(
                record.machine, half_one_gflops=_rounded(one / 1e9),
                half_all_gflops=_rounded(every / 1e9), **_tile_peaks(ISAS[isa], facts, Effort()),
            )  # fmt: skip
            record = replace(record, machine=machine)
            return record, _write(path, record)
        record = measure_host(facts, isa)
        return record, _write(path, record) or busy_warning(record.machine, path)


def _lacks(machine: Machine) -> bool:
    """Whether this host has types that were not measured when the others were."""
    half = not machine.half and host_half(machine.isa)
    return half or (not machine.tiles and host_tiles(machine.isa))


def busy_warning(machine: Machine, path: Path) -> str | None:
    """A sentence when the cores did not add up: something else ran while they were measured."""
    share = machine.peak_all_gflops / (machine.cores * machine.peak_one_gflops)
    if share >= _LEAST_SCALING:
        return None
    return (
        f'{machine.cores} cores together reached {share:.0%} of {machine.cores} times one core, '
        f'so the host was probably busy; delete {path} when it is quiet to measure it again'
    )


def _stored(path: Path, mark: str) -> Record | None:
    try:
        record = Record.loads(path.read_text())
    except (OSError, InputError):
        return None
    return record if record.machine.fingerprint == mark else None


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One measurement at a time: two would each see half a machine. Without locks, none is held."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(open(path.with_suffix('.lock'), 'w'))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _write(path: Path, record: Record) -> str | None:
    """Store the record under its final name in one step; the answer is a warning if that failed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as made:
            made.write_text(record.dumps())
    except OSError as error:
        return (
            f'the measured figures could not be stored in {path.parent} ({error.strerror}) and '
            f'will be measured again; set TILEWRIGHT_CACHE_DIR to a directory that can be written'
        )
    return None
