"""A peer from outside: one registration, and `bench` measures, verifies, tables and lists it.

The same table serves layers and networks, on CPUs and GPUs.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.ops.reference import reference
from tilewright_lab.peers import contestants
from tilewright_lab.peers.contestants import Entrant, Job, Variant, Variants
from tilewright_lab.peers.peers import check_names

NAME = 'reference'


def variants() -> Variants:
    """The float64 reference as a library; `bench` runs it in a process of its own."""
    yield {'mode': 'float64'}, _prepared


def _prepared(job: Job) -> Variant:
    answer = np.empty(0)

    def run() -> None:
        nonlocal answer
        answer = reference(job.group, job.arrays).astype(np.float32)

    return Variant(job, run, lambda: answer, lambda: 'definition')


@pytest.fixture
def registered():
    contestants.register(NAME, f'{__name__}:variants')
    yield
    contestants.unregister(NAME)


def test_a_registered_peer_is_verified_timed_and_in_the_table(registered, tmp_path, capsys):
    out = tmp_path / 'bench.json'
    words = ['bench', 'mb1ic3ih6oc4oh6kh3ph1', '--against', NAME, '--threads', '1', '--rounds', '1']
    assert invoke([*words, '--turn-ms', '1', '--top', '1', '--no-direct', '--json', str(out)]) == 0
    assert NAME in capsys.readouterr().out
    (layer,) = json.loads(out.read_text())['layers']
    (peer,) = layer['comparison']['peers']
    assert (peer['name'], peer['algorithm']) == (NAME, 'definition')
    assert peer['samples_ms']


def entrants(session, ours) -> list[Entrant]:
    """The same on a GPU, in the process of its session; a constant stands for its time."""
    answer = reference(session.problem, session.arrays).astype(np.float32)
    return [Entrant(NAME, lambda repeats: [1e-3] * repeats, lambda: answer, {'mode': 'float64'})]


def test_a_peer_of_layers_on_a_gpu_is_verified_timed_and_in_the_table(tmp_path, capsys):
    contestants.register(NAME, f'{__name__}:entrants', device='gpu')
    out = tmp_path / 'bench.json'
    words = ['bench', 'mb1ic8ih6oc16kh3ph1', '--target', 'host', '--against', NAME]
    try:
        assert invoke([*words, '--trials', '1', '--rounds', '1', '--json', str(out)]) == 0
    finally:
        contestants.unregister(NAME, device='gpu')
    assert f'{NAME} us' in capsys.readouterr().out
    (layer,) = json.loads(out.read_text())['layers']
    (peer,) = [c for c in layer['contestants'] if c['name'] == NAME]
    assert (peer['status'], peer['settings']) == ('ok', {'mode': 'float64'})
    assert peer['median_us'] == pytest.approx(1e3)


@pytest.mark.parametrize(('work', 'device'), contestants.PLACES)
def test_a_registered_peer_is_listed(work, device):
    contestants.register(NAME, f'{__name__}:variants', work=work, device=device)
    try:
        with pytest.raises(InputError, match=f'choose from .*{NAME}'):
            check_names(['nobody'], work, device)
        assert NAME in contestants.peers_help()
    finally:
        contestants.unregister(NAME, work, device)


def test_what_cannot_be_imported_by_another_process_is_refused():
    with pytest.raises(InputError, match='give the name of a function, module:function'):
        contestants.register(NAME, 'variants')
