"""Contestants in their own processes: right answers, really stopped, named when they fail.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.machine.compiler import build
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.runtime import verify
from tilewright_lab.compare.layers import Arena, Entry, compare, compare_kernels
from tilewright_lab.compare.results import Contestant, LayerResult, geometric_mean, ratio_of
from tilewright_lab.compare.table import table
from tilewright_lab.peers import peers
from tilewright_lab.peers.contestants import peer_names, table_of
from tilewright_lab.peers.peers import Peer, PeerError, process_state

GROUP = conv2d(c=2, h=5, w=6, k=3, r=3, s=3, pad=1)
# Our kernel's side of the comparison: GROUP by the definition, in the kernels' binary interface.
NAIVE = """
#include <string.h>
typedef struct { const float *const *in; const float *packed; float *out; char *scratch; } tw_args;
long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 64; }
long tw_packed_bytes(void) { return 4 * 3 * 2 * 9; }
void tw_pack(const float *const *constants, float *packed)
{ memcpy(packed, constants[0], 4 * 3 * 2 * 9); }
void tw_part(const tw_args *a, long part)
{
    for (int k = 0; k < 3; k++) for (int h = 0; h < 5; h++) for (int w = 0; w < 6; w++) {
        float sum = 0;
        for (int c = 0; c < 2; c++) for (int r = 0; r < 3; r++) for (int s = 0; s < 3; s++) {
            int y = h + r - 1, x = w + s - 1;
            if (y >= 0 && y < 5 && x >= 0 && x < 6)
                sum += a->in[0][(c * 5 + y) * 6 + x] * a->packed[((k * 2 + c) * 3 + r) * 3 + s];
        }
        a->out[(k * 5 + h) * 6 + w] = sum + OFF;
    }
}
"""
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ('gcc', 'clang', 'cc'))), reason='no C compiler is installed'
)


def skip_if_absent(name):
    sentence = peers.absence(name)
    if sentence:
        pytest.skip(sentence)


def naive_library(off='0'):
    return build(NAIVE, ('-O1', f'-DOFF={off}'), name='naive')


def prepare(group, **more):
    return {
        'do': 'prepare', 'label': group.label, 'digest': group.digest, 'seed': 3, 'threads': 1,
        **more,
    }  # fmt: skip


def fake(body):
    """The command of a contestant that greets and then runs `body` for each request."""
    code = (
        'import sys, os, json, time, signal\n'
        'print(json.dumps({"status": "ok", "versions": {"fake": "1"}}), flush=True)\n'
        f'for line in sys.stdin:\n    request = json.loads(line)\n    {body}\n'
    )
    return [sys.executable, '-c', code]


REPLY = 'print(json.dumps({"status": "ok", "echo": request}), flush=True)'


@pytest.fixture(
    scope='module', params=[name for name in peer_names() if not table_of()[name].tuned]
)
def peer(request):
    """A contestant that is asked by several tests: some take seconds to start."""
    skip_if_absent(request.param)
    with Peer(request.param, 1) as started:
        yield started


@pytest.mark.parametrize(
    'group',
    [
        GROUP,
        conv2d(
            n=2, c=4, h=9, w=8, k=6, r=3, s=2, stride=(2, 1), pad=(1, 0, 2, 1), dilation=(1, 2),
            groups=2, bias=True, activation='silu',
        ),
        conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1, groups=4, bias=True, activation='relu6'),
    ],
    ids=['dense', 'everything', 'depthwise'],
)  # fmt: skip
def test_every_peer_answers_right(peer, group, tmp_path):
    path = tmp_path / 'y.npy'
    report = peer.ask(prepare(group))
    peer.ask({'do': 'answer', 'path': str(path)})
    timed = peer.ask({'do': 'time', 'repeats': 3, 'warm': 1, 'flush': False})
    want = reference(group, verify.random_arrays(group, 3))
    verdict = verify.compare(group, np.load(path), want)
    assert verdict.ok, verdict.message
    assert len(timed['samples_ms']) == 3
    assert report['algorithm']
    assert report['settings'] in [t['settings'] for t in report['tried']]
    # A setting that fails is told, with the reason: in silence it would make a peer look slow.
    assert all(('trial_median_ms' in t) != ('message' in t) for t in report['tried'])


def test_activations(peer, tmp_path):
    path = tmp_path / 'y.npy'
    for activation in ('relu', 'leaky_relu', 'sigmoid', 'tanh'):
        group = conv2d(c=2, h=4, w=4, k=3, r=1, s=1, activation=activation)
        peer.ask(prepare(group))
        peer.ask({'do': 'answer', 'path': str(path)})
        want = reference(group, verify.random_arrays(group, 3))
        assert verify.compare(group, np.load(path), want).ok, activation


def test_a_peer_is_stopped_unless_it_is_asked():
    with Peer('fake', 1, command=fake(REPLY)) as peer:
        assert peer.pid is None
        for number in range(3):
            assert peer.ask({'n': number})['echo'] == {'n': number}
            assert process_state(peer.pid) == 'T'
        pid = peer.pid
    assert process_state(pid) == ''


@pytest.mark.skipif(sys.platform != 'linux', reason='the death signal is Linux only')
def test_stopped_peers_do_not_outlive_a_killed_parent():
    code = (
        'import time\nfrom tilewright_lab.peers.peers import Peer, PeerError\n'
        'peer = Peer("tilewright", 1)\n'
        'try:\n    peer.ask({"do": "answer", "path": ""})\nexcept PeerError:\n    pass\n'
        'print(peer.pid, flush=True)\ntime.sleep(60)\n'
    )
    with subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert process_state(pid) == 'T'
        parent.kill()
    deadline = time.monotonic() + 20
    while process_state(pid) not in ('', 'Z', 'X') and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_state(pid) in ('', 'Z', 'X')


def test_progress_is_passed_on_and_renews_the_limit():
    body = (
        '[print(json.dumps({"status": "progress", "what": "tuning", "done": i, "total": 3}), '
        'flush=True) or time.sleep(0.4) for i in range(4)]\n'
        f'    {REPLY}'
    )
    told = []
    with Peer('fake', 1, command=fake(body)) as peer:
        assert peer.ask({'n': 1}, 1.5, lambda *p: told.append(p))['echo'] == {'n': 1}
        assert process_state(peer.pid) == 'T'
    assert told == [('tuning', i, 3) for i in range(4)]


def test_a_crash_is_named_and_the_peer_starts_again():
    body = f'os.kill(os.getpid(), signal.SIGSEGV) if request.get("crash") else {REPLY}'
    with Peer('fake', 1, command=fake(body)) as peer:
        with pytest.raises(PeerError, match='fake: its process ended by SIGSEGV') as caught:
            peer.ask({'crash': True})
        assert (caught.value.name, caught.value.status) == ('fake', 'crashed')
        assert peer.ask({})['status'] == 'ok'
        os.kill(peer.pid, signal.SIGKILL)  # as the system does when memory runs out
        with pytest.raises(PeerError, match='SIGKILL'):
            peer.ask({})


@pytest.mark.parametrize(
    ('body', 'status', 'said'),
    [
        ('time.sleep(60)', 'hung', 'no answer within 0.5 s'),
        ('print("not json", flush=True)', 'failed', "not JSON: b'not json'"),
        ('print(json.dumps({"status": "failed", "message": "why"}), flush=True)', 'failed', 'why'),
        ('raise ValueError("its last words")', 'crashed', 'exit code 1: ValueError: its last word'),
    ],
)
def test_other_failures_are_named(body, status, said):
    with Peer('fake', 1, command=fake(body)) as peer, pytest.raises(PeerError) as caught:
        peer.ask({}, 0.5 if status == 'hung' else None)
    assert caught.value.status == status
    assert said in str(caught.value)


def test_a_peer_that_cannot_start_is_named():
    broken = [sys.executable, '-c', 'print(\'{"status": "failed", "message": "no such library"}\')']
    with (
        Peer('fake', 1, command=broken) as peer,
        pytest.raises(PeerError, match='could not be started: no such library'),
    ):
        peer.ask({})


def test_missing_peers(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, 'find_spec', lambda name: None)
    assert "torch, which is not installed; pip install 'tilewright[torch]'" in peers.absence(
        'torch'
    )
    with Peer('torch', 1) as peer, pytest.raises(PeerError) as caught:
        peer.ask({})
    assert caught.value.status == 'missing'


def test_names():
    assert peers.check_names(['torch', 'openvino', 'torch']) == ('torch', 'openvino')
    with pytest.raises(InputError, match="peer 'tvmm' is not known"):
        peers.check_names(['tvmm'])
    with pytest.raises(InputError, match='threads is 0'):
        Arena(['torch'], 0)


@needs_compiler
def test_a_comparison_has_a_row_for_everyone(monkeypatch):
    skip_if_absent('onnxruntime')
    absent = peers.absence
    monkeypatch.setattr(peers, 'absence', lambda n, *_: 'not here' if n == 'torch' else absent(n))
    told = []
    with Arena(('onnxruntime', 'torch'), 1) as arena:
        result = compare(
            GROUP, naive_library(), arena, algorithm='general', rounds=2, name='tiny', turn_ms=0.01,
            progress=lambda *p: told.append(p),
        )  # fmt: skip
        assert {process_state(p.pid) for p in (arena.ours, arena.peers[0])} == {'T'}
    assert result.ours.ok
    assert result.ours.max_rel_err < 1e-5
    assert (result.ours.algorithm, result.ours.family) == ('tilewright_general', 'direct')
    assert [(p.name, p.status) for p in result.peers] == [
        ('onnxruntime', 'ok'),
        ('torch', 'missing'),
    ]
    # A round is ours, peer, ours, peer: two turns of ours for each.
    assert [len(c.samples_ms) for c in (result.ours, *result.peers)] == [4, 2, 0]
    assert told[-1] == ('timing torch', 8, 8)
    assert result.best.peer == result.best_direct.peer == 'onnxruntime'
    text = table([result])
    assert 'torch missing on tiny: not here' in text
    assert 'onnxruntime' in text.splitlines()[0]
    data = json.loads(json.dumps(result.to_json()))
    assert data['ours']['samples_ms'] == [list(turn) for turn in result.ours.samples_ms]
    assert data['peers'][0]['versions']['onnxruntime']
    assert data['best']['value'] == pytest.approx(
        result.peers[0].median_ms / result.ours.median_ms, rel=1e-12
    )


@needs_compiler
def test_flushed_runs_are_fifty():
    result = compare(
        GROUP, naive_library(), (), algorithm='winograd', threads=1, rounds=2, flush=True
    )
    assert (result.ours.algorithm, result.ours.family) == ('tilewright_winograd', 'winograd')
    assert [len(turn) for turn in result.ours.samples_ms] == [25, 25]
    low, high = result.ours.mean_interval_ms
    assert low <= result.ours.mean_ms <= high
    assert result.best is None
    assert 'flushed' in table([result])


@needs_compiler
def test_a_wrong_kernel_is_not_timed():
    result = compare(GROUP, naive_library('1.0f'), (), algorithm='outer', threads=1, rounds=1)
    assert (result.ours.status, result.ours.samples_ms, result.gflops) == ('wrong', (), None)
    assert 'ours wrong: Out is' in table([result])


def test_a_library_that_is_not_there_is_a_row(tmp_path):
    result = compare(GROUP, tmp_path / 'none.so', (), algorithm='outer', threads=1, rounds=1)
    assert result.ours.status == 'failed'
    assert 'none.so' in result.ours.message


def test_only_convolutions_are_compared(tmp_path):
    with pytest.raises(InputError, match='is not a convolution'):
        compare(matmul(m=2, n=2, k=2), tmp_path / 'x.so', (), algorithm='outer', threads=1)
    with pytest.raises(InputError, match='rounds is 0'):
        compare(GROUP, tmp_path / 'x.so', (), algorithm='outer', threads=1, rounds=0)


def contestant(name, turns, algorithm='gemm', **more):
    return Contestant(name, algorithm=algorithm, samples_ms=tuple(map(tuple, turns)), **more)


def test_ratios_by_hand():
    ours = contestant('tilewright', [[2.0, 2.0, 9.0], [2.0, 2.0, 2.0]])
    peer = contestant('torch', [[3.0], [3.0], [3.0]])
    ratio = ratio_of(ours, peer)
    assert (ratio.value, ratio.low, ratio.high) == (1.5, 1.5, 1.5)
    wide = ratio_of(ours, contestant('torch', [[2.0], [3.0], [4.0]]))
    assert (wide.value, wide.low, wide.high) == (1.5, 1.0, 2.0)


def test_the_table_says_what_was_compared():
    ours = contestant('tilewright', [[1.0]])
    wino = contestant('openvino', [[0.5]], 'winograd_acl_f32', versions=(('openvino', '9'),))
    direct = contestant('torch', [[2.0]], 'indirect_gemm:acl', versions=(('torch', '2'),))
    dead = Contestant('onnxruntime', 'crashed', 'its process ended by SIGSEGV')
    rows = [
        LayerResult(
            name, GROUP.label, GROUP.digest, 4_000_000, 2, 1, False, 0, ours,
            (wino, direct, dead), trouble,
        )
        for name, trouble in (('a', ''), ('b', 'the clock moved'))
    ]  # fmt: skip
    assert (rows[0].best.peer, rows[0].best.value) == ('openvino', 0.5)
    assert (rows[0].best_direct.peer, rows[0].best_direct.value) == ('torch', 2.0)
    assert rows[0].gflops == pytest.approx(4.0)
    lines = table(rows, peak_gflops=8.0).splitlines()
    assert lines[1].split() == [
        'a', '1.000', '4.0', '50.0', '0.500', 'W', '2.000', 'crashed',
        '0.50', '[0.50,', '0.50]', 'openvino', '2.00', '[2.00,', '2.00]', 'torch',
    ]  # fmt: skip
    text = '\n'.join(lines)
    for said in (
        'openvino 9: winograd_acl_f32 (a, b)',
        'torch 2: indirect_gemm:acl (a, b)',
        'onnxruntime crashed on a, b: its process ended by SIGSEGV',
        'b: the clock moved',
        'W: Winograd',
        '2 threads',
    ):
        assert said in text
    # GROUP has two input channels, so it counts as a first layer.
    means = [line.split() for line in lines if line.startswith(('strided', 'all layers'))]
    assert means == [
        ['strided', 'and', 'first', '2', '0.500', '0.500', '2.000', '0.500'],
        ['all', 'layers', '2', '0.500', '0.500', '2.000', '0.500'],
    ]
    assert geometric_mean([]) is None


def test_a_winograd_kernel_of_ours_is_marked_and_has_no_direct_ratio():
    ours = contestant('tilewright', [[1.0]], 'tilewright_winograd')
    direct = contestant('torch', [[2.0]], 'gemm:acl')
    row = LayerResult('a', GROUP.label, GROUP.digest, 4_000_000, 2, 1, False, 0, ours, (direct,))
    assert row.best.value == 2.0
    assert row.best_direct is None
    assert row.to_json()['best_direct'] is None
    lines = table([row]).splitlines()
    assert lines[1].split() == [
        'a', '1.000', 'W', '4.0', '2.000', '2.00', '[2.00,', '2.00]', 'torch', '-'
    ]  # fmt: skip
    text = '\n'.join(lines)
    assert 'ours: tilewright_winograd (a)' in text
    assert 'W: Winograd' in text


@needs_compiler
def test_our_kernels_take_turns_and_a_failing_peer_keeps_its_row(monkeypatch):
    """Two kernels of ours, warm and flushed, against a peer that crashes when it is timed."""
    body = (
        'os.kill(os.getpid(), signal.SIGSEGV) if request["do"] == "time" else '
        'print(json.dumps({"status": "ok", "settings": {}, "tried": [], "algorithm": "x", '
        '"estimate_ms": 1.0, "call_overhead_ms": None}), flush=True)'
    )
    right = reference(GROUP, verify.random_arrays(GROUP, 5)).astype(np.float32)
    asked = Peer.ask

    def ask(self, request, *rest):
        if self.name == 'torch' and request['do'] == 'answer':
            np.save(request['path'], right)
        return asked(self, request, *rest)

    monkeypatch.setattr(Peer, 'ask', ask)
    best, other = naive_library(), naive_library('0.0f')
    with Arena((), 1) as arena:
        arena.peers = (Peer('torch', 1, command=fake(body)),)
        warm, flushed = compare_kernels(
            GROUP,
            (Entry(best, 'winograd', 'b'), Entry(other, 'outer', 'd', ('direct', 'first'))),
            arena, caches=('warm', 'flushed'), rounds=2, name='tiny', seed=5, turn_ms=0.01,
        )  # fmt: skip
        arena.peers[0].close()
    for result in (warm, flushed):
        (torch,) = result.peers
        assert (torch.status, torch.median_ms) == ('crashed', None)
        assert 'torch crashed on tiny: its process ended by SIGSEGV' in table([result])
        assert result.kernel('direct').name == 'tilewright:direct'
        assert result.kernel('first') is result.kernel('direct')
        assert result.kernel('direct_first') is None
        assert dict(result.ours.settings)['schedule'] == 'b'
        assert LayerResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert [len(warm.ours.samples_ms), len(warm.others[0].samples_ms)] == [2, 2]
    assert (
        sum(map(len, flushed.ours.samples_ms)) == sum(map(len, flushed.others[0].samples_ms)) == 50
    )
    assert (warm.flush, flushed.flush) == (False, True)


@needs_compiler
@pytest.mark.parametrize(
    ('trouble', 'status', 'said'),
    [
        ('np.zeros', 'wrong', 'Out is'),
        ('hang', 'hung', 'no answer within'),
        ('refuse', 'failed', 'it cannot do that'),
    ],
)
def test_a_peer_in_trouble_is_named_in_table_and_json(monkeypatch, trouble, status, said):
    """A peer that answers differently, hangs or refuses, from a process that really does so."""
    answer = {
        'np.zeros': 'np.save(request["path"], np.zeros((1, 3, 5, 6), np.float32))',
        'hang': 'time.sleep(60)',
        'refuse': 'None',
    }[trouble]
    reply = {
        'status': 'failed' if trouble == 'refuse' else 'ok', 'message': 'it cannot do that',
        'settings': {}, 'tried': [], 'algorithm': 'x', 'estimate_ms': 1, 'call_overhead_ms': None,
    }  # fmt: skip
    body = (
        f'import numpy as np; request["do"] == "answer" and {answer}; '
        f'print(json.dumps({reply!r}), flush=True)'
    )
    with Arena((), 1) as arena:
        monkeypatch.setenv('TILEWRIGHT_TIME_LIMIT', '2' if trouble == 'hang' else '60')
        arena.peers = (Peer('torch', 1, command=fake(body)),)
        result = compare(GROUP, naive_library(), arena, algorithm='outer', rounds=1, name='tiny')
    (torch,) = result.to_json()['peers']
    assert (torch['status'], torch['median_ms']) == (status, None)
    assert said in torch['message']
    assert f'torch {status} on tiny: ' in table([result])
    assert result.ours.ok
    assert result.best is None
