"""`reproduce gtuner-table3`: small networks tuned in four ways on the host, also interrupted."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright import knobs, zoo
from tilewright.cli.main import invoke
from tilewright.errors import CheckError, InputError, MissingError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.rank.files import SEARCHED
from tilewright.rank.rankers import names_of, ranker_for
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.pool import Pool
from tilewright.runtime.worker import Answer
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.targets.gpu import choose
from tilewright.targets.gpu import tuning as measure
from tilewright.targets.gpu.tuning import How, Place, fastest, is_searched, search_with
from tilewright.zoo.layers import Builder, Network
from tilewright_lab.figures import gtuner_table3, gtuner_table3_text
from tilewright_lab.figures.figures import Options

MACHINE = known_gpu('h200')
LAYER = conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
METHODS = ('gat', 'online')  # what begins with a model, and what begins from nothing


def tiny(batch: int, image: int = 8, width: int = 1) -> Network:
    """One group that is tuned."""
    net = Builder('tiny', batch, image, width)
    return net.finish(net.relu(net.conv('image', 4, 3, pad=1)))


def pooled(batch: int, image: int = 8, width: int = 1) -> Network:
    """The same group, and one that is not tuned."""
    net = Builder('pooled', batch, image, width)
    return net.finish(net.max_pool(net.relu(net.conv('image', 4, 3, pad=1)), 3, 2))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory in which models of another GPU are the user's own for the host."""
    for knob in knobs.KNOBS:
        if knob.name not in ('cflags', 'jobs'):
            monkeypatch.delenv(knob.variable, raising=False)
    folder = tmp_path / 'cache'
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(folder))
    name = open_device('host').machine.name
    (folder / 'models').mkdir(parents=True)
    known = resources.files('tilewright.rank') / 'known'
    for kind in ('gat.safetensors', 'search.npz'):
        with resources.as_file(known / f'h200-{kind}') as path:
            shutil.copy(path, folder / 'models' / f'{name}-{kind}')
    monkeypatch.setitem(zoo._MAKERS, 'tiny', tiny)
    monkeypatch.setitem(zoo._MAKERS, 'pooled', pooled)
    monkeypatch.setattr(choose, 'TRIALS', 8)
    monkeypatch.setattr(measure, 'SAMPLED', 8)
    monkeypatch.setattr('tilewright.search.gpu.strategies.POPULATION', 8)
    monkeypatch.setattr(gtuner_table3, 'ROUNDS', 1)
    monkeypatch.setattr(gtuner_table3, 'SEEDS', 1)
    ways = {name: gtuner_table3.METHODS[name] for name in METHODS}
    monkeypatch.setattr(gtuner_table3, 'METHODS', ways)
    return folder


@pytest.fixture
def call(capsys: pytest.CaptureFixture):
    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke(['reproduce', 'gtuner-table3', *(str(word) for word in words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.slow
def test_networks_by_some_methods(cache: Path, call, tmp_path: Path, monkeypatch) -> None:
    """Made, interrupted in between, gone on with; each answer is PyTorch's."""
    words = ('--target', 'host', '--samples', 2, '--networks', 'tiny,pooled')
    words = (*words, '--json', tmp_path / 'found.json')
    whole, made = gtuner_table3._Bench.row, []

    def row(self, network: str, method: str, how: How, *words: object) -> dict:
        if len(made) == 1:
            made.append('')
            raise KeyboardInterrupt
        assert os.environ['TILEWRIGHT_CACHE_DIR'] != str(cache)
        made.append((network, method, how.seed))
        return whole(self, network, method, how, *words)  # type: ignore

    monkeypatch.setattr(gtuner_table3._Bench, 'row', row)
    monkeypatch.setattr(gtuner_table3, 'SEEDS', 2)
    code, _, err = call(*words)
    assert code == 130
    assert 'goes on from there' in err
    assert [r['method'] for r in json.loads((tmp_path / 'found.json').read_text())['layers']] == [
        METHODS[0]
    ]
    code, out, _ = call(*words)
    assert code == 0
    found = json.loads((tmp_path / 'found.json').read_text())
    assert found['complete']
    assert not found['interrupted']
    rows = found['layers']
    assert [(r['seed'], r['network'], r['method']) for r in rows] == [
        (seed, network, method)
        for seed in (0, 1) for network in ('tiny', 'pooled') for method in METHODS
    ]  # fmt: skip
    for r in rows:
        assert (r['status'], r['groups'], r['warnings']) == ('ok', 1, [])
        assert r['max_rel_err'] <= 1e-4
        assert r['median_us'] > 0
        assert r['alone_us'] > 0
        assert r['seconds'] == pytest.approx(r['own_s'] + r['together_s'])
        assert 0 < r['stages_s']['build'] <= r['own_s']
        assert 'measure' not in r['stages_s']  # all groups were tuned before
    for one, other in zip(rows[4:6], rows[6:], strict=True):
        assert one['tasks'][0]['schedule'] == other['tasks'][0]['schedule']
    assert 'tuned together' in out
    assert not (cache / 'chosen').exists()
    assert (cache / found['data']).is_file()
    assert len(made) == 9
    call(*words)
    assert len(made) == 9
    code, again, _ = call('--data', tmp_path / 'found.json')
    assert code == 0
    assert again.split('wrote')[0] in out


def test_a_method_without_a_model_and_a_budget(
    cache: Path, call, tmp_path: Path, monkeypatch
) -> None:
    shutil.rmtree(cache / 'models')
    ways = {name: How(name, 'genetic') for name in ('forest', 'gat')}
    monkeypatch.setattr(gtuner_table3, 'METHODS', ways)
    made = tmp_path / 'found.json'
    words = ('--target', 'host', '--samples', 1, '--networks', 'tiny', '--json', made)
    code, out, _ = call(*words, '--seconds', 1e-9)
    assert code == 0
    assert json.loads(made.read_text())['layers'] == []
    assert 'the same command goes on' in out
    code, out, _ = call(*words)
    assert code == 0
    states = {r['method']: r['status'] for r in json.loads(made.read_text())['layers']}
    assert states == {'forest': 'failed', 'gat': 'failed'}
    assert 'tiny, gat, seed 0: no graph-attention model knows' in out


def journal(**changed: object) -> gtuner_table3.Journal:
    options = Options(
        'gtuner-table3', None, '', 2, 1, 0, target='host', networks='tiny', **changed  # type: ignore
    )  # fmt: skip
    return gtuner_table3.Journal.of(options, open_device('host'))


def test_rows_that_failed_are_made_again(cache: Path) -> None:
    first = journal()
    first.add({'network': 'tiny', 'method': 'gat', 'seed': 0, 'status': 'failed'})
    first.add({'network': 'tiny', 'method': 'online', 'seed': 0, 'status': 'ok'})
    assert first.row('tiny', 'gat', 0) is not None
    again = journal()
    assert again.path == first.path
    assert again.row('tiny', 'gat', 0) is None
    assert again.row('tiny', 'online', 1) is None
    assert again.row('tiny', 'online', 0) == first.rows[1]


def test_rows_are_kept_by_what_they_depend_on(cache: Path, monkeypatch) -> None:
    paths = [journal().path, journal(small=True).path]
    own = next((cache / 'models').iterdir())
    own.write_bytes(own.read_bytes() + b'x')
    paths.append(journal().path)
    monkeypatch.setattr(gtuner_table3, 'ROUNDS', 2)
    paths.append(journal().path)
    monkeypatch.setattr(gtuner_table3, 'METHODS', {'gat': How('gat', 'top')})
    paths.append(journal().path)
    monkeypatch.setattr(gtuner_table3, 'METHODS', {'gat': How('gat', 'top', seed=1)})
    paths.append(journal().path)
    assert len(set(paths)) == len(paths)
    assert journal().path == paths[-1]


def test_the_graph_is_made_before_the_clock_starts(
    cache: Path, call, tmp_path: Path, monkeypatch
) -> None:
    """Only what `compile` does is timed: nothing asks for weights or a graph meanwhile."""
    timed, inside = [], []
    whole, made = zoo.graph, gtuner_table3.compile

    def graph(*words: object, **named: object):
        timed.append(bool(inside))
        return whole(*words, **named)  # type: ignore

    def compiled(*words: object, **named: object):
        inside.append('')
        net = made(*words, **named)  # type: ignore
        inside.clear()
        return net

    monkeypatch.setattr(zoo, 'graph', graph)
    monkeypatch.setattr(gtuner_table3, 'compile', compiled)
    monkeypatch.setattr(gtuner_table3, 'METHODS', {'online': How('analytical', 'online')})
    words = ('--target', 'host', '--samples', 1, '--networks', 'tiny')
    assert call(*words)[0] == 0
    assert timed
    assert not any(timed)


def test_sessions_by_the_memory_of_the_device(monkeypatch) -> None:
    monkeypatch.setattr(measure, 'usable_cores', lambda: 12)
    place = Place.of(open_device('host'), 'host')
    assert place.free_bytes is None
    assert place.sessions == 4  # it cannot tell
    for gib, count in ((0.5, 1), (5, 2), (24, 12), (130, 12)):
        assert replace(place, free_bytes=int(gib * 2**30)).sessions == count
    monkeypatch.setattr(measure, 'usable_cores', lambda: 2)
    assert replace(place, free_bytes=1 << 40).sessions == 4


def test_nothing_is_launched_while_another_kernel_is_timed() -> None:
    """Only the reference is computed meanwhile: candidates run when it is their turn."""
    lock, seen = threading.Lock(), []

    class Worker:
        def prepare(self, group: Group) -> None:
            seen.append(('prepare', lock.locked()))

        def attempt(self, *_: object) -> tuple[Answer, dict]:
            seen.append(('attempt', lock.locked()))
            return Answer('ok', '', 0.0, (1.0, 2.0, 3.0)), {}

    place = Place.of(open_device('host'), 'host')
    with Pool(1) as pool:
        one = measure._Search(LAYER, (), place, 1e-4, pool, lock, threading.Event(), {},
                              lambda *_: None)  # fmt: skip
        start = GpuSchedule.of('general', threads=128)
        assert one._measured(Worker(), [start, start]) == [2e-3, 2e-3]  # type: ignore
    assert seen == [('prepare', False), ('attempt', True), ('attempt', True)]


def test_a_compiler_that_dies_costs_one_candidate(monkeypatch) -> None:
    class Worker:
        def prepare(self, group: Group) -> None:
            pass

        def attempt(self, *_: object) -> tuple[Answer, dict]:
            return Answer('ok', '', 0.0, (1.0, 2.0, 3.0)), {}

    def built(group: Group, schedule: GpuSchedule, architecture: str) -> Future:
        future: Future = Future()
        if schedule['threads'] == 64:
            future.set_exception(MissingError('a process that worked on build ended by SIGSEGV'))
        else:
            future.set_result(Built())
        return future

    place = replace(Place.of(open_device('host'), 'host'), architecture='sm_90a')
    pool = SimpleNamespace(submit=lambda _, *words: built(*words))
    one = measure._Search(LAYER, (), place, 1e-4, pool, threading.Lock(), threading.Event(), {},
                          lambda *_: None)  # type: ignore  # fmt: skip
    schedules = [GpuSchedule.of('general', threads=threads) for threads in (64, 128)]
    assert one._measured(Worker(), schedules) == [None, 2e-3]  # type: ignore
    assert 'SIGSEGV' in one.trouble


def test_bad_words(cache: Path, call, tmp_path: Path) -> None:
    other = tmp_path / 'other.json'
    other.write_text('{"networks": [{"name": "resnet18", "contestants": []}]}')
    for words, sentence in (
        (('--networks', 'resnet19'), 'did you mean resnet18'),
        (('--networks', ','), 'name one by --networks'),
        (('--target', 'tpu'), "--target 'tpu'"),
        (('--machine', 'h200'), 'leave out --machine h200'),
        (('--seconds', 0), 'ask for more than 0'),
        (('--samples', 0), 'ask for at least 1'),
        (('--data', other, '--target', 'host'), 'has no times of torch or inductor'),
    ):
        code, _, err = call(*words)
        assert (code, sentence in err) == (2, True), err
    assert invoke(['reproduce', 'scaling', '--networks', 'tiny']) == 2


def test_tables_with_rivals_and_the_paper(tmp_path: Path) -> None:
    contestants = [
        {'name': 'torch/a', 'status': 'ok', 'median_us': 400.0},
        {'name': 'torch/b', 'status': 'ok', 'median_us': 300.0},
        {'name': 'torch/c', 'status': 'wrong', 'median_us': 1.0},
        {'name': 'inductor/aten', 'status': 'ok', 'median_us': 250.0, 'tuning_s': 11.0},
        {'name': 'inductor/aten,triton', 'status': 'ok', 'median_us': 260.0, 'tuning_s': 22.0},
        {'name': 'tilewright/model', 'status': 'ok', 'median_us': 100.0},
    ]
    network = {'name': 'squeezenet', 'contestants': contestants}
    (tmp_path / 'networks.json').write_text(json.dumps({'networks': [network]}))
    (tmp_path / 'table.json').write_text('[1, 2]')
    rivals = gtuner_table3_text.rivals_of(tmp_path)
    assert rivals == gtuner_table3_text.rivals_of(tmp_path / 'networks.json')
    assert {k: (v['median_us'], v['tuning_s']) for k, v in rivals['squeezenet'].items()} == {
        'torch': (300.0, None), 'inductor': (250.0, 11.0),
    }  # fmt: skip
    with pytest.raises(InputError, match='cannot be read'):
        gtuner_table3_text.rivals_of(tmp_path / 'table.json')
    row = {'network': 'squeezenet', 'status': 'ok', 'groups': 18, 'seed': 0}
    rows = [
        row | {'method': 'gat', 'median_us': 80.0, 'seconds': 30.0},
        row | {'method': 'online', 'median_us': 120.0, 'seconds': 20.0},
    ]
    ways = {m: {'model': m, 'search': 'genetic'} for m in ('gat', 'online')}
    found = {
        'device': 'a GPU', 'trials': 80, 'candidates': 10, 'cores': 2, 'methods': ways,
        'networks': ['squeezenet', 'resnet18'], 'rivals': rivals, 'layers': rows,
        'complete': False,
        'paper': gtuner_table3_text.paper_of(['squeezenet', 'resnet18']),
    }  # fmt: skip
    lines = gtuner_table3_text.text(found).splitlines()
    first, second = (line.split() for line in lines if line.startswith('squeezenet'))
    assert first[1:7] == ['0.0800', '0.1200', '0.3000', '0.2500', '16.658', '3.648']
    assert first[-1] == '0.197'
    assert second[1:5] == ['18', '30.0', '20.0', '11.0']
    assert any(line.startswith('online / gat: 1.500 ') for line in lines)
    assert 'not all of it has been measured' in lines[-1]
    gtuner_table3_text.plot(found, tmp_path / 'picture.png')
    assert (tmp_path / 'picture.png').stat().st_size > 0


def test_the_methods_of_the_tables() -> None:
    ways = {name: (how.model, how.search) for name, how in gtuner_table3.METHODS.items()}
    assert ways['gat'] == ('gat', 'genetic')
    assert ways['analytical'] == ('analytical', 'top')
    assert {name for name, how in gtuner_table3.METHODS.items() if how.from_nothing} == {'online'}


@pytest.mark.slow
@pytest.mark.usefixtures('full_searches')  # as in the other process
def test_a_search_in_another_process_is_the_same_search() -> None:
    asked: list[int] = []

    def seconds(schedules: Sequence[GpuSchedule]) -> list[float | None]:
        asked.append(len(schedules))
        return [1e-6 * (1 + sum(v for _, v in s.tiles) % 17) for s in schedules]

    starts = (GpuSchedule.of('general', threads=128),)
    words = (How('gat', 'top'), LAYER, MACHINE, 6, starts, 12)
    with Pool(1) as pool:
        there = pool.submit(search_with, *words, answer=seconds).result()
        assert sum(asked) == 6

        def wrong(schedules: Sequence[GpuSchedule]) -> None:
            raise CheckError('the device is gone')

        with pytest.raises(CheckError, match='the device is gone'):
            pool.submit(search_with, *words, answer=wrong).result()
        with pytest.raises(InputError, match='not a model'):
            pool.submit(search_with, How('oracle'), *words[1:], answer=seconds).result()
        again = pool.submit(search_with, *words, answer=seconds).result()
    assert there == again == search_with(seconds, *words)
    assert starts[0] in [t.schedule for t in there]


def test_what_a_search_starts_from(tmp_path: Path, monkeypatch) -> None:
    """'online' is not given what a model has chosen; groups that are not searched are."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    seen = {}

    def search(measure_, how, group, machine, trials, starts, sampled):
        seen[how.search] = len(starts)
        raise CheckError('that is all')

    monkeypatch.setattr(measure, 'search_with', search)
    device = open_device('host')
    small = conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1)
    chosen = choose.search(small, device.machine, 3, 1e-4, trials=4)
    for name in ('genetic', 'online'):
        with pytest.warns(UserWarning, match='the model chooses: that is all'):
            found = fastest(
                {'a': small}, {'a': chosen}, Place.of(device, 'host'), 2, 1e-4, how=How(search=name)
            )
        assert found == {'a': chosen[0]}
    assert seen == {'genetic': len(chosen), 'online': 0}
    assert is_searched(small)
    assert not is_searched(matmul(m=1, n=64, k=64))


def test_models_know_a_gpu_by_what_its_driver_calls_it() -> None:
    there = replace(MACHINE, name='NVIDIA H200')
    assert names_of(there) == ('NVIDIA H200', 'h200')
    assert names_of(MACHINE) == ('h200',)
    assert names_of(replace(MACHINE, name='some GPU')) == ('some GPU',)
    tiles = {'bk': 64, 'bp': 64, 'tk': 32, 'tp': 32, 'kb': 8, 'stages': 2, 'split': 2, 'joint': 0}
    first = GpuSchedule.of('tiled', 'mma_tf32x3', **tiles)
    space = moves(LAYER, MACHINE, ('tiled',)).neighbours(first)
    for name in ('forest', 'gat'):
        a, b = (ranker_for(name, LAYER, m, SEARCHED) for m in (there, MACHINE))
        assert a.name == b.name == name
        assert a.ranker(space).tolist() == b.ranker(space).tolist()
