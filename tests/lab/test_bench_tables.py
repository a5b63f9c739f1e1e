"""Kinds, means, tables, pages made from JSON, and what survives an interrupt."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.errors import InputError
from tilewright.ops.convolution import conv2d
from tilewright.ops.specs import read_layer
from tilewright.ops.suites import suite
from tilewright_lab.compare.journal import Journal
from tilewright_lab.compare.kinds import KINDS, kind_of
from tilewright_lab.compare.results import (
    Bounds,
    Contestant,
    LayerResult,
    family_of,
    means,
    ratio_of,
)
from tilewright_lab.compare.table import grid, kind_grid, table
from tilewright_lab.peers import tvm_environment
from tilewright_lab.peers.peers import absence

ROOT = Path(__file__).parents[2]
DENSE = conv2d(c=8, h=6, w=6, k=8, r=3, s=3, pad=1)
DEPTHWISE = conv2d(c=8, h=6, w=6, k=8, r=3, s=3, pad=1, groups=8)


def contestant(name, ms, algorithm='gemm', **more):
    return Contestant(name, algorithm=algorithm, samples_ms=((ms, ms), (ms,)), **more)


def layer(name='a', group=DENSE, flush=False, **more):
    """Ours 1 ms by Winograd and 4 ms directly, MOpt-1 5 ms; openvino 2 ms W, torch 6 ms direct."""
    values = {
        'ours': contestant('tilewright', 1.0, 'tilewright_winograd'),
        'peers': (contestant('openvino', 2.0, 'winograd_acl'), contestant('torch', 6.0)),
        'others': (
            contestant('tilewright:direct', 4.0, 'tilewright_outer'),
            contestant('tilewright:direct_first', 5.0, 'tilewright_outer'),
        ),
        'roles': {
            'first': 'tilewright', 'direct': 'tilewright:direct',
            'direct_first': 'tilewright:direct_first',
        },
        'top': 5,
        'bounds': Bounds(0.5, 3.0),
    } | more  # fmt: skip
    return LayerResult(name, group.label, group.digest, 80_000_000, 2, 2, flush, 0, **values)


@pytest.mark.parametrize(
    ('text', 'kind'),
    [
        ('mb1ic64ih56oc64kh3ph1', 'dense 3x3 stride 1'),
        ('mb1ic64ih56oc64oh28kh3ph1sh2', 'strided and first'),
        ('mb1ic64ih56oc64oh28kh1sh2', 'strided and first'),
        ('mb1ic3ih56oc64kh3ph1', 'strided and first'),
        ('mb1ic4ih56oc64kh1', 'strided and first'),
        ('mb1ic5ih56oc64kh1', '1x1 stride 1'),
        ('g64mb1ic64ih56oc64kh3ph1', 'depthwise'),
        ('g64mb1ic64ih56oc64oh28kh3ph1sh2', 'depthwise'),
        ('g64mb1ic64ih56oc128kh3ph1', 'depthwise'),
        ('g2mb1ic64ih56oc64kh3ph1', 'other'),
        ('mb1ic64ih56oc64oh56kh3ph2dh1', 'other'),
        ('mb1ic64ih56iw56oc64kh1kw3pw1ph0', 'other'),
        ('mb1ic64ih56oc64kh5ph2', 'other'),
    ],
)
def test_kinds(text, kind):
    assert kind_of(read_layer(text).conv) == kind


def test_kinds_of_the_papers_table():
    """Nine depthwise layers, M1 to M9; dense 3x3 layers as their numbers say."""
    kinds = [kind_of(entry.conv) for entry in suite('mopt')]
    assert set(kinds) <= set(KINDS)
    assert kinds.count('depthwise') == 9
    by_hand = [
        (c.taps, c.stride) == ((3, 3), (1, 1)) and c.groups == 1 and c.c > 4
        for c in (entry.conv for entry in suite('mopt'))
    ]
    assert kinds.count('dense 3x3 stride 1') == sum(by_hand)


def test_families():
    assert [family_of(a) for a in ('', 'wino_acl', 'WINOGRAD', 'fft', 'outer', 'stencil')] == [
        '', 'winograd', 'winograd', 'fft', 'direct', 'direct',
    ]  # fmt: skip


def test_the_three_ratios():
    result = layer()
    assert (result.best.peer, result.best.value) == ('openvino', 2.0)
    assert (result.best_over_direct.peer, result.best_over_direct.value) == ('openvino', 0.5)
    assert (result.best_direct.peer, result.best_direct.value) == ('torch', 1.5)
    data = result.to_json()
    assert data['mopt'] == {
        'top': 5, 'mopt1_ms': 5.0, 'mopt_top_ms': 4.0, 'first_ms': 1.0, 'best_ms': 1.0
    }  # fmt: skip
    assert (data['kind'], data['bound_ms'], data['algorithm_bound_ms']) == (
        'dense 3x3 stride 1', 3.0, 0.5,
    )  # fmt: skip
    # Where our best kernel is direct, it is the direct one, without any further kernel.
    plain = layer(ours=contestant('tilewright', 3.0, 'tilewright_outer'), others=(), roles={})
    assert plain.kernel('direct') is plain.ours
    assert plain.best_direct.value == 2.0


def test_json_there_and_back():
    result = layer(peers=(contestant('tvm', 2.0, 'metaschedule', tuning_s=300.0),), flush=True)
    data = json.loads(json.dumps(result.to_json()))
    assert LayerResult.from_json(data) == result
    older = {k: v for k, v in data.items() if k not in ('others', 'roles', 'mopt', 'bound_ms')}
    assert LayerResult.from_json(older).others == ()
    for broken in ({}, data | {'ours': None}, data | {'peers': [{}]}):
        with pytest.raises(InputError, match='cannot be read'):
            LayerResult.from_json(broken)


def test_means_with_flushed_caches_are_means():
    ours = Contestant('tilewright', algorithm='outer', samples_ms=((1.0, 1.0, 4.0),))
    peer = Contestant('torch', algorithm='gemm', samples_ms=((3.0, 3.0, 3.0),))
    assert ratio_of(ours, peer).value == 3.0
    assert ratio_of(ours, peer, flush=True).value == 1.5
    result = layer(ours=ours, peers=(peer,), others=(), roles={}, flush=True)
    assert result.time_ms(ours) == 2.0
    text = table([result])
    assert '±' in text
    assert 'means of 50 calls' in text


def test_means_by_kind():
    fast = layer('b', DEPTHWISE, peers=(contestant('torch', 8.0),))
    results = [layer(), fast]
    found = means(results)
    assert found['best_peer_over_ours'] == pytest.approx(math.sqrt(2.0 * 8.0))
    assert found['best_peer_over_ours_direct'] == pytest.approx(math.sqrt(0.5 * 2.0))
    assert found['best_direct_peer_over_ours'] == pytest.approx(math.sqrt(1.5 * 2.0))
    assert kind_grid(results).rows == (
        ('dense 3x3 stride 1', '1', '2.000', '0.500', '1.500', '2.000'),
        ('depthwise', '1', '8.000', '2.000', '2.000', '8.000'),
        ('all layers', '2', '4.000', '1.000', '1.732', '2.000'),
    )


def test_columns_of_the_table():
    shown = grid([layer()], peak_gflops=160.0)
    assert shown.head == (
        'layer', 'ours ms', 'GFLOP/s', '% peak', '% bound', 'direct ms (MOpt-5)', '% peak',
        '% bound', 'MOpt-1 ms', 'openvino ms', 'torch ms', 'best peer / ours',
        'best peer / direct', 'best direct / direct',
    )  # fmt: skip
    assert shown.rows == (
        (
            'a', '1.000 W', '80.0', '50.0', '50.0', '4.000', '12.5', '75.0', '5.000', '2.000 W',
            '6.000', '2.00 [2.00, 2.00] openvino', '0.50', '1.50',
        ),
    )  # fmt: skip
    text = table([layer()])
    assert '(MOpt-1), over the best direct one measured: geometric mean 1.250' in text
    brief = grid([layer()], brief=True)
    assert brief.markdown().splitlines() == [
        '| layer | ours ms | GFLOP/s | direct ms | MOpt-1 ms | OpenVINO ms | PyTorch ms '
        '| best peer / ours | best peer / direct | best direct / direct |',
        '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |',
        '| a | 1.000 W | 80.0 | 4.000 | 5.000 | 2.000 W | 6.000 | 2.00 | 0.50 | 1.50 |',
    ]
    without = grid([layer(others=(), roles={})], brief=True)
    assert 'MOpt-1 ms' not in without.head


@pytest.mark.parametrize('status', ['missing', 'failed', 'crashed', 'hung', 'wrong'])
def test_whoever_cannot_be_timed_is_named(status):
    lost = Contestant('torch', status, 'the reason')
    result = layer(peers=(lost,))
    text = table([result])
    assert f'torch {status} on a: the reason' in text
    assert status in grid([result]).rows[0]
    assert result.to_json()['peers'][0]['message'] == 'the reason'
    assert result.best is None
    ours = replace(result, others=(Contestant('tilewright:direct', status, 'why'),))
    assert f'a: our direct {status}: why' in table([ours])


def test_a_peer_that_tunes_says_how_long():
    tuned = contestant('tvm', 2.0, 'metaschedule_200_trials', tuning_s=352.4)
    assert 'tvm: seconds of tuning: a 352' in table([layer(peers=(tuned,))])


def _tables():
    found = importlib.util.spec_from_file_location(
        'bench_tables', ROOT / 'src/tilewright_lab/scripts/tables.py'
    )
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pages_are_what_their_json_says():
    tables = _tables()
    for name in tables.PAGES:
        page = (ROOT / name).read_text()
        assert '<!-- table ' in page
        assert tables.renewed(page) == page, f'{name}: run make tables'


def test_a_page_is_made_from_a_file(tmp_path):
    tables = _tables()
    both = layer('mopt/R2').to_json(), layer('mopt/R2', flush=True).to_json()
    data = {
        'caches': 'both', 'peak': {'used_gflops_per_s': 160.0},
        'layers': [
            {'name': 'x', 'comparison': both[0], 'comparison_flushed': both[1]},
            {'name': 'y', 'comparison': None, 'comparison_flushed': None},
        ],
    }  # fmt: skip
    (tmp_path / 'f.json').write_text(json.dumps(data))
    page = ''.join(
        f'<!-- table {what} f.json -->\nold\n<!-- end of table -->\n'
        for what in ('layers', 'layers-flushed', 'kinds', 'full')
    )
    made = tables.renewed(page, tmp_path)
    assert 'old' not in made
    assert '| R2 | 1.000 W | 80.0 | 50.0 |' in made
    assert '| R2 | 1.000 ±0.000 W |' in made
    assert '| all layers | 1 | 2.000 |' in made
    assert tables.renewed(made, tmp_path) == made
    (tmp_path / 'f.json').write_text(json.dumps(data | {'caches': 'warm'}))
    with pytest.raises(InputError, match='no times with flushed caches'):
        tables.renewed(page, tmp_path)
    with pytest.raises(InputError, match='is not a table'):
        tables.renewed(page.replace('layers', 'rows'), tmp_path)


def test_networks_on_a_gpu_where_contestants_failed():
    """What could not be prepared has neither median nor seconds; a network may have lost ours."""

    def entrant(name, us, status='ok', seconds=None):
        return {
            'name': name, 'status': status, 'median_us': us, 'tuning_s': seconds,
            'settings': {'kernels': 9}, 'message': '' if status == 'ok' else 'it differs',
        }  # fmt: skip

    lost = {'name': 'inductor', 'status': 'missing', 'message': 'no torch'}
    networks = [
        {
            'name': 'a', 'flops': 4e8, 'ours_us': 100.0, 'best_peer_over_ours': 3.0,
            'contestants': [
                entrant('tilewright/model, side by side', 90.0, 'wrong', 5.0),
                entrant('tilewright/model, in a row', 100.0, seconds=6.0),
                entrant('torch/0', 300.0), entrant('torch/1', 200.0, 'wrong'), lost,
            ],
        },
        {
            'name': 'b', 'flops': 4e8, 'ours_us': None, 'best_peer_over_ours': None,
            'contestants': [
                entrant('torch/0', 50.0), entrant('inductor/aten', 40.0, seconds=7.0),
                {'name': 'tilewright', 'status': 'failed', 'message': 'no kernel'},
            ],
        },
    ]  # fmt: skip
    tables = _tables()
    data = {'peers': ['torch', 'inductor'], 'networks': networks}
    assert tables.gpu_network_rows([data]).splitlines()[2:] == [
        '| a | 100.0 | 6.0 | 9 | 4.00 | 300.0 | - | - | 3.00 |',
        '| b | - | - | - | - | 50.0 | 40.0 | 7 | failed: no kernel |',
        '| geometric mean |  |  |  |  |  |  |  | 3.00 |',
    ]
    last = tables.gpu_network_rows([data | {'networks': networks[1:]}]).splitlines()[-1]
    assert last.endswith('|  | - |')


def test_layers_on_a_gpu_where_nothing_was_compared():
    lost = {'name': 'cudnn', 'status': 'missing', 'message': 'no torch'}
    layer = {
        'name': 'cnnopt/R9', 'ours_us': 9.0, 'rival_us': None, 'ratio': None,
        'message': 'no torch', 'contestants': [lost],
    }  # fmt: skip
    rows = _tables().gpu_rows([layer]).splitlines()[2:]
    assert rows == [
        '| R9 | - | - | - | - | - | - | no torch |', '| geometric mean |  |  |  |  |  | - |  |',
    ]  # fmt: skip


def test_a_journal_is_read_back_and_ends(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    journal = Journal({'spec': 'x'})
    journal.begin({'seed': 7})
    journal.add({'name': 'a', 'value': 1})
    with journal.path.open('a') as file:
        file.write('{"layer": {"name": "b", "val')  # killed in the middle of a line
    again = Journal({'spec': 'x'})
    assert (again.header, again.layers) == ({'seed': 7}, {'a': {'name': 'a', 'value': 1}})
    again.begin({'seed': 7})
    again.add({'name': 'c'})
    assert set(Journal({'spec': 'x'}).layers) == {'a', 'c'}
    assert Journal({'spec': 'y'}).layers == {}
    again.complete()
    assert Journal({'spec': 'x'}).layers == {}


def test_where_tvm_lives(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    monkeypatch.setenv('TILEWRIGHT_TVM_PYTHON', str(tmp_path / 'none'))
    assert 'does not exist; make peers-tvm' in absence('tvm')
    monkeypatch.delenv('TILEWRIGHT_TVM_PYTHON')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tvm_environment, '__file__', str(tmp_path / 'a/b/c/d.py'))
    assert 'make peers-tvm makes it' in absence('tvm')
    python = tmp_path / '.venv-tvm' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.touch()
    assert tvm_environment.interpreter() == python
    assert absence('tvm') == ''


def test_another_interpreter_finds_this_package_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    for _ in range(2):
        folder = tvm_environment.package_link()
        assert sorted(path.name for path in folder.iterdir()) == ['tilewright', 'tilewright_lab']
        assert (folder / 'tilewright_lab' / 'peers' / 'process.py').exists()
