"""Networks for a GPU that is not here: chosen and bound as they are there, and kept for it."""

from __future__ import annotations

import os
import signal

import graphs
import pytest

from tilewright.graph.lower import lower
from tilewright.kernels.gpu.language import Kernel
from tilewright.runtime.gpu.device import Resources
from tilewright.targets.gpu import code, site
from tilewright_lab.compare.on_paper import as_driver_says, on_paper


def test_what_is_bound_on_paper_is_what_the_site_chooses(monkeypatch) -> None:
    """The site asks for the same choices of the same machine, and so finds them in the cache."""
    program, machine = lower(graphs.convolutions()), as_driver_says('h200')
    assert machine.name == 'NVIDIA H200'
    assert not machine.assumed
    net, paper = on_paper(program, machine)
    assert paper.architecture == 'sm_90a'
    assert {call.program.kernel for call in net.calls} <= set(paper.kernels)
    searched = []
    monkeypatch.setattr('tilewright.targets.gpu.choose.search', searched.append)
    groups = {task.group.digest: task.group for task in net.gpu_tasks}
    found = site.chosen_by_model(groups, machine, site.KEPT, site.Asked().max_rel_err)
    assert not searched
    assert all(found[t.group.digest][0].schedule == t.schedule for t in net.gpu_tasks)


def dies(kernel: str, architecture: str, level: str = '') -> tuple[bytes, Resources]:
    """A compiler that some kernels are too much for."""
    if kernel == 'bad' and level != '-O0':
        os.kill(os.getpid(), signal.SIGSEGV)
    return f'{kernel}{level}'.encode(), Resources()


def test_a_kernel_that_the_compiler_dies_of_is_compiled_with_fewer_optimisations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code, '_compile', dies)
    monkeypatch.setattr(code, '_keep', lambda *_: None)
    left: dict[str, Kernel] = {'a': 'good', 'b': 'bad'}  # pyright: ignore[reportAssignmentType]
    found = code._compiled(left, 'sm_90a', None)
    assert {key: binary for key, (binary, _) in found.items()} == {'a': b'good', 'b': b'bad-O0'}
