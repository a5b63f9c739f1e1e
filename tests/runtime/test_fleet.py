"""A fleet hands out every piece once, whatever becomes of workers, and keeps what they measured."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.cli.main import invoke
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.ops.convolution import conv2d
from tilewright.ops.suites import expand
from tilewright.store.records import open_store, package_version
from tilewright.targets import fleet as fleets
from tilewright.targets.target import Wanted
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.measured import collect_ahead, layers, source

distributed = pytest.importorskip('distributed')

from tilewright.runtime import fleet as transport  # noqa: E402
from tilewright.runtime.fleet import Fleet, FleetDevice, claimed, open_fleet  # noqa: E402

LIMIT_S = 60.0


def device(name: str = '0', package: str = '1') -> FleetDevice:
    return FleetDevice('test', name, 'a device', 'machine', package, 'compiler')


def two_devices(target: str) -> list[FleetDevice]:
    return [device('0'), device('1')]


def of_another_build(target: str) -> list[FleetDevice]:
    return [device('0', package='2')]


def doubled(one: FleetDevice, tell: Any, number: int) -> tuple[str, int]:
    tell({'number': number})
    return one.name, 2 * number


def refused(one: FleetDevice, tell: Any) -> None:
    raise InputError('the value is 3; give 4')


def defective(one: FleetDevice, tell: Any) -> None:
    raise ZeroDivisionError('by nothing')


@pytest.fixture(scope='module')
def client() -> Iterator[Any]:
    """Two workers that are threads of this process: quick, but they cannot die."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address='127.0.0.1:0'
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def fleet(client: Any) -> Fleet:
    return Fleet(client, two_devices, 'test', '1', 'here')


@pytest.fixture
def own_fleet(client: Any, tmp_path: Path, monkeypatch: Any) -> Fleet:
    """Workers with this host's own CPU, and an empty cache."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    return Fleet(client, fleets.devices_of, 'cpu', package_version(), 'here')


def test_every_piece_comes_back_and_what_it_told_before(fleet: Fleet) -> None:
    heard: list[tuple[str, Any]] = []
    pieces = {str(number): lambda number=number: (number,) for number in range(8)}
    found = fleet.run(doubled, pieces, device().kind, lambda *told: heard.append(told), LIMIT_S)
    results = {}
    for name, (_, result) in found:
        assert (name, {'number': int(name)}) in heard
        results[name] = result
    assert results == {str(number): 2 * number for number in range(8)}


def test_errors_of_the_package_come_as_they_are_and_others_name_the_piece(fleet: Fleet) -> None:
    kind = device().kind
    with pytest.raises(InputError, match='give 4'):
        list(fleet.run(refused, {'a': tuple}, kind, print, LIMIT_S))
    with pytest.raises(CheckError, match=r'a failed on .*ZeroDivisionError: by nothing'):
        list(fleet.run(defective, {'a': tuple}, kind, print, LIMIT_S))


def test_workers_of_another_version_get_no_work(client: Any) -> None:
    with pytest.raises(MissingError, match=r'tilewright 2\); install tilewright 1 '):
        Fleet(client, of_another_build, 'test', '1', 'here')


def test_a_device_is_had_by_one_at_a_time() -> None:
    both = [device('0'), device('1')]
    with claimed(both) as first, claimed(both) as second:
        assert {first.name, second.name} == {'0', '1'}
        waited = []

        def give_up() -> None:
            waited.append(True)
            raise TimeoutError

        with pytest.raises(TimeoutError), claimed(both, give_up):
            pass
        assert waited == [True]


@pytest.mark.parametrize(
    ('where', 'code', 'words'),
    [
        ('tcp://127.0.0.1:1', 3, 'no scheduler answers at tcp://127.0.0.1:1'),
        ('missing.json', 2, 'missing.json is not a file'),
        ('local:0', 2, 'ask for 1 to 256 workers'),
        ('somewhere', 2, 'give tcp://HOST:PORT, local:N or a scheduler file'),
    ],
)
def test_a_fleet_that_is_not_there_is_one_sentence(
    where: str, code: int, words: str, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(transport, 'CONNECT_S', 0.3)
    spec = 'mb1ic8ih6oc8oh6kh1'
    assert invoke(['optimize', spec, '--fleet', where]) == code
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_a_fleet_measures_and_the_model_does_not(capsys: Any) -> None:
    spec = 'mb1ic8ih6oc8oh6kh1'
    assert invoke(['optimize', spec, '--fleet', 'local:1', '--no-measure']) == 2
    assert '--no-measure' in capsys.readouterr().err


def test_plans_of_a_fleet_are_in_the_callers_store(own_fleet: Fleet, tmp_path: Path) -> None:
    """The same rows as without one, and nothing is left to measure for the next run."""
    fleet = own_fleet
    kind = fleets.own_kind(fleet)
    group = conv2d(c=8, k=8, h=6, w=6, r=3, s=3, pad=1)
    wanted = Wanted(fleets.machine_for(fleet, kind), top=2, threads=1, algorithm='direct')
    with open_store(tmp_path / 'store.sqlite') as store:
        for _ in range(2):
            [(name, plan)] = fleets.plans(fleet, kind, {'one': (group, wanted)}, store)
            assert name == 'one'
            assert plan.best.measurement is not None
            assert plan.best.measurement.ok
        assert len(store) == len(plan.candidates)


@pytest.mark.slow
def test_a_network_is_tuned_on_a_fleet(own_fleet: Fleet, monkeypatch: Any) -> None:
    """What workers measured is found again without them."""
    graph = zoo.graph('mobilenet_v1', image=32, width=32)
    handed: list[str] = []
    run = own_fleet.run

    def counted(work: Any, pieces: Any, *rest: Any) -> Any:
        handed.extend(pieces)
        return run(work, pieces, *rest)

    monkeypatch.setattr(own_fleet, 'run', counted)
    words = {'tune': 'measure', 'trials': 2, 'threads': 1, 'algorithm': 'direct', 'fuse': 'none'}
    for number in range(2):
        net = tw.compile(graph, fleet=own_fleet, check=False, **words)
        assert net.inputs[0].name == 'image'
        if not number:
            assert handed
            handed.clear()
    assert handed == []


def test_samples_of_a_figure_are_taken_on_a_fleet(own_fleet: Fleet, tmp_path: Path) -> None:
    machine = fleets.machine_for(own_fleet, fleets.own_kind(own_fleet))
    options = Options(
        'mopt-fig5', machine, 'mb1ic8ih6oc8oh6kh1n"a"', 3, 1, 0, fleet=cast(Any, own_fleet)
    )
    with source(options) as found:
        assert found.recorder is not None
        [wanted] = expand(options.layers)
        collect_ahead(options, found.recorder, [wanted[:2]], retime=True)
        taken = found.data.layers['a']
        assert len(taken.samples) == 3
        assert taken.finals
        lines = len(found.path.read_text().splitlines())
        [priced] = layers(options, found, retime=True)  # nothing is left to measure
        assert len(priced.times_ms) == 3
        assert len(found.path.read_text().splitlines()) == lines


def slow_piece(one: FleetDevice, tell: Any, folder: str, name: str) -> int:
    """Tells its process, and takes long the first time that it is tried."""
    tell({'pid': os.getpid()})
    tried = Path(folder) / name
    first = not tried.exists()
    tried.touch()
    time.sleep(3600.0 if first and name != 'quick' else 0.0)
    return os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSTOP])
def test_a_piece_survives_its_worker(number: int, tmp_path: Path, monkeypatch: Any) -> None:
    """A worker that is killed, or that hangs, costs its piece the time that it had taken."""
    monkeypatch.setenv('PYTHONPATH', str(Path(__file__).parent))
    ended = []

    def told(name: str, value: Any) -> None:
        if name == 'lost' and not ended:
            ended.append(value['pid'])
            os.kill(value['pid'], number)

    pieces = {name: lambda name=name: (str(tmp_path), name) for name in ('quick', 'lost')}
    with open_fleet('local:2', two_devices, 'test', '1') as fleet, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        found = dict(fleet.run(slow_piece, pieces, device().kind, told, 5.0))
    assert found.keys() == {'quick', 'lost'}
    assert found['lost'] not in ended
