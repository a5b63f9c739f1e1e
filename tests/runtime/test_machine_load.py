"""Machine files, the cached measurement, nominal figures, and one real measurement."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import CompilerError, InputError, MissingError
from tilewright.machine import measure
from tilewright.machine.compiler import build
from tilewright.machine.detect import HostFacts, describe_host
from tilewright.machine.isa import ISAS, best_isa, host_isas
from tilewright.machine.known import known_machine, known_names
from tilewright.machine.machine import Cache, Machine
from tilewright.machine.measure import Effort, Record, load_machine, measure_host
from tilewright.report.machine_page import bytes_text, machine_text, plot_curve

QUICK = Effort(seconds=0.0002, least_laps=3, most_laps=6, largest_bytes=8 << 20, tries=0)
CURVE = ((8192, 100.0, 200.0), (65536, 50.0, 90.0), (1 << 20, 9.0, 11.0))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.delenv('TILEWRIGHT_ISA', raising=False)
    return tmp_path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the measurement by an invented one; the list tells how often it was taken."""
    calls: list[str] = []

    def invented(facts: HostFacts, isa: str) -> Record:
        calls.append(isa)
        nominal = measure.nominal_machine(facts, isa)
        return Record(replace(nominal, measured=True, clock_ghz=1.25), CURVE)

    monkeypatch.setattr(measure, 'measure_host', invented)
    return calls


def facts(cores: int = 4, clock: float | None = 3.0) -> HostFacts:
    caches = (
        Cache('l1', 32768, 64, 8, 1, 32768),
        Cache('l2', 1 << 20, 64, 16, 1, 1 << 20),
        Cache('l3', 16 << 20, 64, 16, cores, 8 << 20),
    )
    cpus = tuple(range(cores))
    isas = ('avx2', 'portable')
    return HostFacts('Test CPU', 'x86_64', isas, cpus, cpus, None, caches, 'sysfs', clock)


def test_known_machines() -> None:
    ours = ('neoverse-n1', 'xeon-16vcpu', 'xeon-2vcpu', 'xeon-2vcpu-amx', 'zen3-2vcpu')
    assert known_names() == ('i7-9700k', 'i9-10980xe', *ours)
    assert all(known_machine(name).measured for name in ours)
    i7, warning = load_machine('i7-9700K')
    assert warning is None
    assert (i7.cores, i7.isa, i7.measured) == (8, 'avx2', False)
    assert [c.bytes for c in i7.caches] == [32 << 10, 256 << 10, 12 << 20]
    assert [(c.ways, c.shared_by) for c in i7.caches] == [(8, 1), (4, 1), (12, 8)]
    i9 = known_machine('i9-10980xe')
    assert (i9.cores, i9.isa) == (18, 'avx512')
    assert [c.bytes for c in i9.caches] == [32 << 10, 1 << 20, int(24.75 * 2**20)]
    for machine in (i7, i9):
        isa = ISAS[machine.isa]
        assert machine.peak_one_gflops == pytest.approx(machine.clock_ghz * isa.flops_per_cycle)
        assert machine.peak_all_gflops == pytest.approx(machine.peak_one_gflops * machine.cores)
        for cache in machine.caches:  # whole sets
            assert cache.bytes % (cache.line_bytes * cache.ways) == 0
        for rates in (machine.bandwidth_one_gbps, machine.bandwidth_all_gbps):
            assert list(rates) == sorted(rates, reverse=True)


@pytest.mark.parametrize('name', known_names())
def test_json_round_trip(name: str) -> None:
    machine = known_machine(name)
    assert Machine.loads(json.dumps(machine.to_json())) == machine
    record = Record(machine, CURVE)
    assert Record.loads(record.dumps()) == record


def test_unknown_machine_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"'pentium'.*i7-9700k, i9-10980xe"):
        load_machine('pentium')


def test_machine_by_path(tmp_path: Path) -> None:
    mine = replace(known_machine('i7-9700k'), name='mine')
    bare, full, bad = (tmp_path / f'{n}.json' for n in ('bare', 'full', 'bad'))
    bare.write_text(json.dumps(mine.to_json()))
    full.write_text(Record(mine, CURVE).dumps())
    assert load_machine(str(bare)) == load_machine(str(full)) == (mine, None)
    other = bare.rename(tmp_path / 'no suffix')
    assert load_machine(full) == load_machine(other) == (mine, None)  # a path is never a name
    bad.write_text('{"name": "x"}')
    with pytest.raises(InputError, match='incomplete'):
        load_machine(str(bad))
    bad.write_text('{')
    with pytest.raises(InputError, match='not JSON'):
        load_machine(str(bad))
    with pytest.raises(InputError, match='cannot be read'):
        load_machine(str(tmp_path / 'none.json'))


@pytest.mark.parametrize(
    ('changed', 'names'),
    [
        ({'cores': 2.5}, 'cores is 2.5'),
        ({'cores': 0}, 'cores is 0'),
        ({'cores': True}, 'cores is True'),
        ({'cores': '8'}, "cores is '8'"),
        ({'isa': 'mmx'}, "isa is 'mmx'; choose one of avx512, avx2, neon, portable"),
        ({'isa': ['avx2']}, "isa is ('avx2',)"),
        ({'name': 3}, 'name is 3'),
        ({'caches': [], 'bandwidth_one_gbps': [1.0]}, 'at least one cache'),
        ({'clock_ghz': 'fast'}, "clock_ghz is 'fast'"),
        ({'clock_ghz': 0}, 'clock_ghz is 0'),
        ({'peak_one_gflops': float('nan')}, 'peak_one_gflops is nan'),
        ({'peak_all_gflops': float('inf')}, 'peak_all_gflops is inf'),
        ({'fork_join_us': -1.0}, 'fork_join_us is -1.0'),
        ({'bandwidth_one_gbps': [1.0, 2.0]}, 'it needs 4 positive figures'),
        ({'bandwidth_all_gbps': [4.0, 3.0, 2.0, 0.0]}, 'it needs 4 positive figures'),
        ({'bandwidth_all_gbps': [4.0, 3.0, 2.0, '1']}, 'it needs 4 positive figures'),
        ({'bandwidth_all_gbps': 'abcd'}, 'it needs 4 positive figures'),
    ],
)  # fmt: skip
def test_impossible_machines(changed: dict, names: str) -> None:
    data = known_machine('i7-9700k').to_json() | changed
    with pytest.raises(InputError) as caught:
        Machine.from_json(data)
    assert names in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize('value', [0, 1.5, '64', True])
def test_impossible_caches(value: object) -> None:
    with pytest.raises(InputError, match='cache l1: ways is'):
        replace(known_machine('i7-9700k').caches[0], ways=value)


def test_a_machine_of_one_core_forks_for_nothing() -> None:
    assert replace(known_machine('i7-9700k'), cores=1, fork_join_us=0.0).fork_join_us == 0


def test_nominal_figures() -> None:
    machine = measure.nominal_machine(facts(), 'avx2')
    # 3 GHz x 2 FMA x 8 lanes x 2; 2 x 32 B, 16 B and 8 B a cycle; 10 GB/s from memory.
    assert (machine.peak_one_gflops, machine.peak_all_gflops) == (96.0, 384.0)
    assert machine.bandwidth_one_gbps == (192.0, 48.0, 24.0, 10.0)
    assert machine.bandwidth_all_gbps == (768.0, 192.0, 96.0, 20.0)
    assert not machine.measured
    assert measure.nominal_machine(facts(clock=None), 'avx2').clock_ghz == 2.5
    assert measure.nominal_machine(facts(cores=1), 'avx2').bandwidth_all_gbps[3] == 10.0


def test_fingerprint_follows_what_matters() -> None:
    base = facts()
    others = [
        replace(base, model='Other CPU'),
        replace(base, cpus=base.cpus[:2]),
        replace(base, caches=base.caches[:2]),
    ]
    marks = {measure.fingerprint(f, 'avx2') for f in (base, *others)}
    marks.add(measure.fingerprint(base, 'portable'))
    assert len(marks) == 5
    assert measure.fingerprint(facts(), 'avx2') == measure.fingerprint(base, 'avx2')


def test_not_allowed_to_measure(cache: Path, counted: list[str]) -> None:
    machine, warning = load_machine(measure=False)
    assert not machine.measured
    assert warning is not None
    assert machine.name in warning
    assert 'nominal' in warning
    assert measure.curve(measure=False) == []
    assert counted == []
    assert not (cache / 'machine').exists()


def test_measured_once(cache: Path, counted: list[str]) -> None:
    first, warning = load_machine()
    assert (first.measured, warning, counted) == (True, None, [best_isa()])
    assert load_machine() == load_machine(measure=False) == (first, None)
    assert measure.curve() == list(CURVE)
    assert len(counted) == 1
    (file,) = (cache / 'machine').glob('*.json')
    assert file.stem == first.fingerprint
    assert {f.suffix for f in (cache / 'machine').iterdir()} == {'.json', '.lock'}


def test_another_isa_is_another_file(
    cache: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TILEWRIGHT_ISA', 'portable')
    portable, _ = load_machine()
    assert portable.isa == 'portable'
    monkeypatch.delenv('TILEWRIGHT_ISA')
    load_machine()
    expected = ['portable', *host_isas()[:1]][: len(host_isas())]
    assert counted == expected


@pytest.mark.parametrize(
    'spoil',
    [
        lambda text: text[: len(text) // 2],
        lambda text: '[]',
        lambda text: text.replace('"format": 2', '"format": 99'),
        lambda text: text.replace('"cores"', '"corse"'),
        lambda text: text.replace('"curve"', '"cruve"'),
        lambda text: text.replace('"fingerprint": "', '"fingerprint": "not'),
    ],
)
def test_corrupt_file(cache: Path, counted: list[str], spoil) -> None:
    good, _ = load_machine()
    (file,) = (cache / 'machine').glob('*.json')
    text = file.read_text()
    file.write_text(spoil(text))
    machine, warning = load_machine(measure=False)
    assert not machine.measured
    assert warning is not None
    assert load_machine() == (good, None)
    assert len(counted) == 2
    assert file.read_text() == text


def test_figures_that_cannot_be_stored(cache: Path, counted: list[str]) -> None:
    (cache / 'machine').write_text('a file where the folder should be')
    machine, warning = load_machine()
    assert machine.measured
    assert warning is not None
    assert 'could not be stored' in warning


def test_busy_host_is_told() -> None:
    machine = known_machine('i7-9700k')
    assert measure.busy_warning(machine, Path('m.json')) is None
    slow = replace(machine, peak_all_gflops=machine.peak_one_gflops * 4)
    warning = measure.busy_warning(slow, Path('m.json'))
    assert warning is not None
    assert '8 cores together reached 50%' in warning
    assert 'm.json' in warning


@pytest.mark.parametrize('isa', host_isas())
def test_real_measurement(cache: Path, isa: str) -> None:
    """A short one, of the true host: nothing about how fast it is, only what must always hold."""
    host = describe_host()
    record = measure_host(host, isa, QUICK)
    machine = record.machine
    assert (machine.isa, machine.measured, machine.name) == (isa, True, host.model)
    assert machine.cores >= (host.cores if host.cores < 4 else host.cores // 2)  # hidden threads
    assert min(machine.peak_one_gflops, machine.clock_ghz) > 0
    assert machine.peak_all_gflops >= machine.peak_one_gflops
    for rates in (machine.bandwidth_one_gbps, machine.bandwidth_all_gbps):
        assert min(rates) > 0
        assert list(rates) == sorted(rates, reverse=True)
    assert all(
        every >= one
        for one, every in zip(machine.bandwidth_one_gbps, machine.bandwidth_all_gbps, strict=True)
    )
    assert machine.fork_join_us >= 0
    inside = 0
    for cache_ in machine.caches:
        assert inside <= cache_.usable_bytes
        inside = cache_.usable_bytes
    assert [size for size, _, _ in record.curve] == sorted({s for s, _, _ in record.curve})
    assert min(min(one, every) for _, one, every in record.curve) > 0


def test_figures_of_a_disturbed_moment_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept for good: a neighbour that had a core for a second would slow every choice."""
    caches = tuple(
        Cache(name, size, 64, 8, shared, size)
        for name, size, shared in (('l1', 1 << 15, 1), ('l2', 1 << 20, 1), ('l3', 1 << 23, 2))
    )
    host = replace(
        describe_host(), cpus=(0, 1), allowed=(0, 1), quota=None, caches=caches, clock_ghz=None
    )
    asked: Counter[tuple[int, int]] = Counter()

    def rates(_: object, kind: int, cpus: Sequence[int], sizes: Sequence[int], *__) -> list[float]:
        asked[kind, len(cpus)] += 1
        disturbed = len(cpus) > 1 and asked[kind, len(cpus)] <= 2
        return [1e9 * len(cpus) * (0.5 if disturbed else 0.95) for _ in sizes]

    monkeypatch.setattr(measure.Probe, 'rates', rates)
    monkeypatch.setattr(measure.Probe, '__init__', lambda *_, **__: None)
    quick = replace(QUICK, tries=3, pause_s=0.0)
    machine = measure_host(host, 'portable', quick).machine
    assert (machine.peak_one_gflops, machine.peak_all_gflops) == (0.95, 1.9)
    assert machine.bandwidth_all_gbps[0] == 1.9
    assert asked[measure._READ, 2] == 3  # and no more often than that
    held = measure_host(replace(host, quota=1.0), 'portable', quick).machine
    assert held.cores == 2
    assert asked[measure._READ, 2] == 4  # a quota halves what cores reach together, every time


@pytest.mark.parametrize(
    ('cpus', 'core_of', 'found'),
    [
        (range(8), lambda cpu: cpu // 2, (0, 2, 4, 6)),  # neighbours share a core
        (range(8), lambda cpu: cpu % 4, (0, 1, 2, 3)),  # the second half does
        (range(8), lambda cpu: cpu, tuple(range(8))),  # nobody does
        (range(8), lambda cpu: 0, tuple(range(8))),  # a busy host: everybody seems to
        (range(2), lambda cpu: 0, (0, 1)),  # of two nobody can tell
        (range(7), lambda cpu: cpu // 2, tuple(range(7))),
    ],
)
def test_hidden_threads_of_a_core_are_found(
    cpus: Iterable[int], core_of: Callable[[int], int], found: tuple[int, ...]
) -> None:
    """Else two threads of ours would run on one core while another is idle."""

    def rate(pair: tuple[int, int]) -> float:
        return 100.0 * len({core_of(cpu) for cpu in pair})

    assert measure.one_per_pipeline(tuple(cpus), rate, 100.0) == found


def test_cpus_that_are_named_are_those_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(os.sched_getaffinity(0))
    monkeypatch.setenv('TILEWRIGHT_CPUS', f'{first},4000')
    assert describe_host().allowed == (first,)
    monkeypatch.setenv('TILEWRIGHT_CPUS', '4000-4010')  # none of ours: all of ours
    assert set(describe_host().allowed) == os.sched_getaffinity(0)


def test_measuring_does_not_pin_the_caller(cache: Path) -> None:
    before = os.sched_getaffinity(0)
    measure.Probe(ISAS['portable']).rates(0, tuple(before)[:1], [0], QUICK)
    assert os.sched_getaffinity(0) == before


def test_flags_of_kernels_are_not_those_of_the_probe(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a machine that is measured once, with -O0, is taken for a slow one from then on."""
    monkeypatch.setenv('TILEWRIGHT_CFLAGS', '-include there/is/no/such.h')
    measure.Probe(ISAS['portable'])
    with pytest.raises(CompilerError):
        build('int x;')


def test_page_shows_found_and_measured() -> None:
    machine = known_machine('i9-10980xe')
    text = machine_text(machine, facts(), 'look out')
    lines = text.splitlines()
    assert lines[0] == 'i9-10980xe: 18 cores, avx512 (nominal figures, not measured)'
    assert lines[-1] == 'warning: look out'
    assert 'can run avx2, portable' in text
    assert ['L3', '24.75', 'MiB', '24.75', 'MiB', '64', 'B', '11', '18'] in map(str.split, lines)
    assert ['memory', '->', 'L3', '13.0', '75.0', 'GB/s'] in map(str.split, lines)
    assert 'warning' not in machine_text(machine)


def test_sizes_in_words() -> None:
    sizes = [bytes_text(n) for n in (64, 1 << 10, 768 << 10, 1 << 20, 3 << 30)]
    assert sizes == ['64 B', '1 KiB', '768 KiB', '1 MiB', '3 GiB']


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip('matplotlib')
    machine, file = known_machine('i7-9700k'), tmp_path / 'curve.png'
    plot_curve(CURVE, machine, file)
    assert file.read_bytes()[:4] == b'\x89PNG'
    with pytest.raises(InputError, match='no bandwidth curve'):
        plot_curve([], machine, file)
    with pytest.raises(InputError, match='cannot be written'):
        plot_curve(CURVE, machine, file / 'in_a_file.png')


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    with pytest.raises(MissingError, match=r'tilewright\[report\]'):
        plot_curve(CURVE, known_machine('i7-9700k'), tmp_path / 'x.png')
