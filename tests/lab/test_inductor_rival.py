"""Inductor as a rival: what is compiled ahead, time limits, processes that end, without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright_lab.compare.gpu_networks import Subject, duel
from tilewright_lab.peers.inductor import Folder, Rivals, label
from tilewright_lab.peers.inductor_process import (
    FAILED,
    OK,
    TOO_LARGE,
    Filler,
    Marks,
    Turns,
    effort,
    key_of,
    shared_bytes,
    triton_source,
)

WANT = np.array([[1.0, -2.0]])


def subject(name: str = 'small') -> Subject:
    inputs = {'image': np.zeros((1, 3, 4, 4), np.float32)}
    return Subject(name, {'name': name, 'batch': 1}, inputs, WANT, 1)


# A contestant that behaves as the network it is asked for is named.
SCRIPT = """
import json, pathlib, subprocess, sys, time
import numpy as np
for line in sys.stdin:
    request = json.loads(line)
    do = request['do']
    if do == 'begin':
        asked = request
    name, templates = asked['arguments']['name'], 'TRITON' in asked['backends']
    reply = {'status': 'ok'}
    if do == 'begin' and name == 'missing':
        reply = {'status': 'missing', 'message': 'there is no device'}
    if do == 'fill':
        folder = pathlib.Path(asked['folder'])
        (folder / 'offered' / name).write_text('')
        (folder / 'compiled' / name).write_text('ok')
    if do == 'prepare':
        reply |= {'settings': {}, 'tuning_s': 1.5}
        if name == 'dying':
            sys.exit('out of\\nmemory')
        if name == 'refused':
            reply = {'status': 'failed', 'message': 'no such operator'}
        if name == 'endless' or (name == 'slow' and templates):
            print(subprocess.Popen(['sleep', '60']).pid, file=sys.stderr, flush=True)
            time.sleep(60)
    if do == 'record':
        reply |= {'settings': {'backends': asked['backends']}}
    if do == 'answer':
        np.save(request['path'], np.array([[1.0, -3.0 if name == 'off' and templates else -2.0]]))
    if do == 'time':
        reply['seconds'] = [(2e-6 if templates else 3e-6)] * request['repeats']
    print(json.dumps(reply), flush=True)
"""
CHILD = ('-c', SCRIPT)


def choice(folder: Path, name: str, text: str, description: str = '') -> SimpleNamespace:
    path = folder / f'{name}.py'
    path.write_text(text)
    request = SimpleNamespace(module_path=str(path), kernel_name=name)
    return SimpleNamespace(bmreq=request, description=description)


def test_kernels_of_libraries_are_kept_and_tritons_compiled_once(tmp_path: Path) -> None:
    library = SimpleNamespace(bmreq=None)
    first, second = choice(tmp_path, 'a', 'one'), choice(tmp_path, 'b', 'two')
    again, bad = choice(tmp_path, 'c', 'one'), choice(tmp_path, 'd', 'three')
    seen = []

    def compile_one(name: str, source: str) -> str:
        seen.append(source)
        if source == 'three':
            raise RuntimeError('it cannot be compiled')
        return OK if source == 'one' else TOO_LARGE

    marks = Marks(tmp_path / 'marks')
    filler = Filler(marks)
    assert filler.keep_libraries([library, first, second]) == [library]
    assert filler.keep_libraries([again, bad]) == [again, bad]  # something has to compute it
    assert filler.compile_all(compile_one, 60.0) == 2
    assert sorted(seen) == ['one', 'three', 'two']
    assert [marks.state(key_of(s)) for s in ('one', 'two', 'three')] == [OK, TOO_LARGE, FAILED]
    assert marks.state(key_of('four')) == ''
    assert triton_source(library) is None
    assert triton_source(first) == ('a', 'one')
    late = Filler(Marks(tmp_path / 'others'))
    late.keep_libraries([library, first])
    assert late.compile_all(compile_one, 0.0) == 0
    assert len(seen) == 3


def test_small_tiles_come_first_and_groups_last(tmp_path: Path) -> None:
    small, large = 'BLOCK_K=16, BLOCK_M=64, BLOCK_N=32', 'BLOCK_K=128, BLOCK_M=256, BLOCK_N=128'
    texts = (f'{large}, GROUPS=1', f'{small}, GROUPS=32', small)
    found = sorted(effort(choice(tmp_path, 'a', '', text)) for text in texts)
    assert found == [(False, 16 * 64 * 32), (False, 128 * 256 * 128), (True, 16 * 64 * 32)]
    assert effort(SimpleNamespace()) == (False, 1)


def test_shared_memory_of_a_kernel_is_found_wherever_it_stands() -> None:
    plain = SimpleNamespace(kernel=SimpleNamespace(metadata=SimpleNamespace(shared=4096)))
    static = SimpleNamespace(kernel=SimpleNamespace(shared=8192))
    assert shared_bytes(SimpleNamespace(compile_results=[plain, static])) == 8192
    assert shared_bytes(SimpleNamespace(compile_results=None)) == 0


@pytest.mark.slow
def test_all_networks_are_prepared_together_and_what_does_not_end_says_so(tmp_path: Path) -> None:
    marks = Marks(tmp_path)
    assert marks.claim('abandoned')
    assert not marks.claim('abandoned')
    names = ('small', 'slow', 'dying', 'refused', 'missing', 'off')
    with Rivals(Folder(tmp_path), 1.0, 6.0, CHILD) as rivals:
        said = rivals.begin([subject(name) for name in names])
        # What another run had begun may be begun again.
        assert (said['compiled'], said['offered'], said['left_out']) == (5, 5, 0)
        found, rows = rivals.entrants(subject('small'))
        assert not rows
        assert [one.name for one in found] == ['inductor/aten', 'inductor/aten,triton']
        assert [one.time(2) for one in found] == [[3e-6] * 2, [2e-6] * 2]
        assert found[1].settings == {'backends': 'ATEN,TRITON'}
        assert found[1].tuning_s == 1.5
        statuses = {}
        for name in names[1:5]:
            found, rows = rivals.entrants(subject(name))
            statuses[name] = [one.name for one in found], {row['status'] for row in rows}
        assert statuses == {
            'slow': (['inductor/aten'], {'not ended'}), 'dying': ([], {'failed'}),
            'refused': ([], {'failed'}), 'missing': ([], {'missing'}),
        }  # fmt: skip
        assert 'memory' in rivals.rows[label(subject('dying'))][0]['message']
        assert 'no such operator' in rivals.rows[label(subject('refused'))][0]['message']
        assert 'not ended in 6 s' in rivals.rows[label(subject('slow'))][0]['message']
        sleeper = tmp_path / 'logs' / f'{label(subject("slow"))}-aten-triton.log'
        _assert_ends(int(sleeper.read_text()))
        table = duel(subject('off'), [], ('inductor',), 2, rivals=rivals)
        processes = list(rivals.processes.values())
    assert [c['status'] for c in table.contestants] == ['ok', 'wrong']
    assert table.time_us('inductor') == pytest.approx(3.0)
    assert not rivals.scratch.exists()
    assert all(one.child.process.poll() is not None for one in processes)


def test_without_a_rival_its_row_says_so() -> None:
    alone = duel(subject(), [], ('inductor',), 1)
    assert [c['status'] for c in alone.contestants] == ['missing']


def test_turns_are_taken_by_one_at_a_time(tmp_path: Path) -> None:
    turns, other = Turns(tmp_path / 'turns'), Turns(tmp_path / 'turns')
    inside, most = [0], [0]

    def busy(depth: int = 0) -> str:
        if not depth:
            return outer(1)  # within a turn there is no other to wait for
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return 'done'

    outer, others = turns.taken(busy), other.taken(lambda: busy(1))
    threads = [threading.Thread(target=others) for _ in range(1)]
    for thread in threads:
        thread.start()
    assert outer() == 'done'
    for thread in threads:
        thread.join()
    assert most == [1]


@pytest.mark.skipif(not Path('/proc/self/stat').exists(), reason='processes are found by /proc')
def test_processes_below_are_ended() -> None:
    code = (
        'import subprocess\n'
        'from tilewright_lab.peers.inductor_process import _descendants, end_children\n'
        "outer = subprocess.Popen(['sh', '-c', 'sleep 60 & echo $!; wait'], stdout=-1)\n"
        'print(int(outer.stdout.readline()), flush=True)\n'
        'import os\n'
        'assert len(_descendants(os.getpid())) == 2\n'
        'end_children()\n'
        'assert _descendants(os.getpid()) == []\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _assert_ends(int(done.stdout))


def _assert_ends(process: int) -> None:
    """A process is gone, or nobody has asked for its exit code yet."""
    for _ in range(100):
        try:
            os.kill(process, 0)
            state = Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0]
        except OSError:
            return
        if state == 'Z':
            return
        time.sleep(0.05)
    raise AssertionError(f'{process} still runs')
