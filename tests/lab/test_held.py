"""Peers held to AVX2: if CPUID still told them of AVX-512, ratios would compare unlike vectors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tilewright.machine import compiler
from tilewright.machine.isa import host_isas
from tilewright.ops.convolution import conv2d
from tilewright_lab.compare.layers import Arena
from tilewright_lab.peers import held
from tilewright_lab.peers.peers import Peer

# What CPUID says of AVX-512 and AVX2: in the main thread, in another, in a forked child, in a
# program that a child becomes, and where an alternate stack for signals is set that is gone, as
# OpenVINO leaves one; then a fault that is not CPUID's.
PROGRAM = r"""
#include <cpuid.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static int bit(int number)
{
    unsigned a, b, c, d;
    __cpuid_count(7, 0, a, b, c, d);
    return b >> number & 1;
}
static void *say(void *where)
{
    printf("[\"%s\", %d, %d]\n", (const char *)where, bit(16), bit(5));
    fflush(stdout);
    return NULL;
}
int main(int count, char **words)
{
    pthread_t thread;
    say(count > 1 ? words[1] : "main");
    if (count > 1) return 0;
    pthread_create(&thread, NULL, say, "thread");
    pthread_join(thread, NULL);
    if (!fork()) {
        say("fork");
        execl(words[0], words[0], "exec", (char *)NULL);
    }
    wait(NULL);
    stack_t gone = {.ss_size = 1 << 16};
    gone.ss_sp = mmap(NULL, gone.ss_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&gone, NULL);
    say("no stack");
    return *(volatile int *)8;
}
"""
hides = pytest.mark.skipif(
    'avx512' not in host_isas() or not held.can_hide(),
    reason='needs AVX-512 to hide, and cpuid_fault in /proc/cpuinfo: run it on such a host',
)


@pytest.fixture
def as_avx2(monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_ISA', 'avx2')


@hides
def test_threads_and_children_are_told_of_avx2_and_faults_still_end_a_program(as_avx2, tmp_path):
    source, program = tmp_path / 'asks.c', tmp_path / 'asks'
    source.write_text(PROGRAM)
    compiler.run_compiler([*compiler.compiler(), '-pthread', str(source), '-o', str(program)])
    environment = {**os.environ, **held.variables()}
    done = subprocess.run([program], env=environment, capture_output=True, text=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    places = ('main', 'thread', 'fork', 'exec', 'no stack')
    assert said == [[where, 0, 1] for where in places]
    assert done.returncode == -signal.SIGSEGV


@hides
def test_a_handler_of_the_program_gets_the_other_faults(as_avx2):
    code = (
        'import ctypes, faulthandler\n'
        'faulthandler.enable()\n'
        'assert not ctypes.CDLL(None).tw_cpuid_has_avx512()\n'
        'ctypes.string_at(0)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], env={**os.environ, **held.variables()},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGSEGV
    assert 'Segmentation fault' in done.stderr


@hides
def test_contestants_say_in_their_settings_what_cpuid_tells_them(as_avx2):
    group = conv2d(c=2, h=4, w=4, k=3, r=1, s=1)
    with Arena(['onnxruntime'], 1) as arena:
        (peer,) = arena.peers
        peer.ask({
            'do': 'prepare', 'label': group.label, 'digest': group.digest, 'seed': 0, 'threads': 1
        })  # fmt: skip
        assert peer.limits == {'isa': 'avx2, by CPUID'}


def test_nothing_is_held_where_no_instruction_set_is_asked_for(monkeypatch):
    monkeypatch.delenv('TILEWRIGHT_ISA', raising=False)
    assert held.variables() == held.setting('') == {}
    assert held.missing() == ''


def test_a_host_that_cannot_hide_avx512_says_so(as_avx2, monkeypatch):
    monkeypatch.setattr(held, 'host_isas', lambda: ('avx512', 'avx2', 'portable'))
    monkeypatch.setattr(held, 'can_hide', lambda: False)
    assert 'ONNX Runtime computes with AVX-512' in held.missing()
    assert held.variables() == held.VARIABLES['avx2']
    assert held.setting('') == {'isa': 'avx2 where a variable asks for it'}


def test_a_host_without_avx512_has_nothing_to_hide(as_avx2, monkeypatch):
    monkeypatch.setattr(held, 'host_isas', lambda: ('avx2', 'portable'))
    monkeypatch.setattr(held, 'can_hide', lambda: False)
    assert held.missing() == ''
    assert held.setting('') == {}
    with Peer('fake', 1, command=[sys.executable, '-c', 'print(\'{"status": "ok"}\')']) as peer:
        assert peer.limits == {}
