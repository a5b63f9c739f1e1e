"""A peer from outside: one registration, and `bench` measures, verifies, tables and lists it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.ops.reference import reference
from tilewright_lab.peers import contestants
from tilewright_lab.peers.contestants import Job, Variant, Variants
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


def test_a_registered_peer_is_listed(registered):
    with pytest.raises(InputError, match=f'choose from .*{NAME}'):
        check_names(['nobody'])


def test_what_cannot_be_imported_by_another_process_is_refused():
    with pytest.raises(InputError, match='give the name of a function, module:function'):
        contestants.register(NAME, 'variants')
