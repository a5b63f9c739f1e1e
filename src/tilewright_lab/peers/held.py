"""Peers that are held to AVX2 on a host with AVX-512, so that ours is compared with it alike.

Goes in: TILEWRIGHT_ISA. Comes out: the variables of a contestant's process, which limit oneDNN and
PyTorch, and preload `held.c`: CPUID then tells every library of a processor with AVX2. MLAS, of
ONNX Runtime, takes no other wish. The process is asked behind its start what CPUID says. A
processor that cannot make CPUID trap gives a sentence instead, and its peers have a setting that
says so. TVM is told in its target as well (peers/tvm.py).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path

from tilewright import knobs
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas

VARIABLES = {
    'avx2': {
        'ONEDNN_MAX_CPU_ISA': 'AVX2', 'DNNL_MAX_CPU_ISA': 'AVX2', 'ATEN_CPU_CAPABILITY': 'avx2',
    }
}  # fmt: skip
PRELOAD = 'LD_PRELOAD'
_SWITCH_CPUID = 0x1012  # ARCH_SET_CPUID of arch_prctl
_ARCH_PRCTL = 158  # its number on x86-64
_SOURCE = Path(__file__).with_name('held.c')


def variables() -> dict[str, str]:
    """What a contestant's process gets; nothing where TILEWRIGHT_ISA names no lower set."""
    isa = knobs.get('isa')
    held = dict(VARIABLES.get(isa, {}))
    if _lowers(isa) and can_hide():
        others = os.environ.get(PRELOAD, '')
        held[PRELOAD] = ' '.join(filter(None, [str(library()), others]))
    return held


def setting(seen: str) -> dict[str, str]:
    """What a contestant's settings say of it; `seen` is what its process said it sees."""
    isa = knobs.get('isa')
    if not _lowers(isa):
        return {}
    return {'isa': f'{seen}, by CPUID' if seen else f'{isa} where a variable asks for it'}


def missing() -> str:
    """A sentence where peers cannot all be limited as ours is, else ''."""
    if not _lowers(knobs.get('isa')) or can_hide():
        return ''
    return (
        'this processor cannot hide AVX-512 from a process (no cpuid_fault): PyTorch and OpenVINO '
        'are limited to AVX2 as ours is, ONNX Runtime computes with AVX-512'
    )


def library() -> Path:
    """What is preloaded, built once."""
    return build(_SOURCE.read_text(), ('-ldl',), name='held', asked=False)


@cache
def can_hide() -> bool:
    """Whether this host's CPUID can be made to trap: by asking for the opposite."""
    if sys.platform != 'linux' or platform.machine() != 'x86_64':
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _SWITCH_CPUID, ctypes.c_ulong(1)) == 0


def seen_here() -> str:
    """What CPUID tells this process it has, where `held.c` is loaded; else ''."""
    function = getattr(ctypes.CDLL(None), 'tw_cpuid_has_avx512', None)
    return '' if function is None else ('avx512' if function() else 'avx2')


def _lowers(isa: str) -> bool:
    """Whether peers would use more than ours: AVX-512, which the host has."""
    return isa in VARIABLES and 'avx512' in host_isas()
