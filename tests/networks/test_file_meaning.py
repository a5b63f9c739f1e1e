"""Files that are as they were written, by somebody who did not mean well: refused, never obeyed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import file_mutants
import graphs
import numpy as np
import pytest

import tilewright as tw
from tilewright.machine.compiler import compiler
from tilewright.store import network_file

SCRIPT = Path(file_mutants.__file__)


@pytest.fixture(scope='module')
def files(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp('files')
    found = {}
    for make in (graphs.convolutions, file_mutants.gathered):
        tw.compile(make(), save=folder / 'net.tw')
        found[make.__name__] = (folder / 'net.tw').read_bytes()
    return found


def of_type(header: dict, value: str, dtype: str) -> None:
    """Give a value another dtype, and every tensor that it is."""
    next(v for v in header['program']['values'] if v[0] == value)[2] = dtype
    for task in header['program']['tasks']:
        bound = {t for t, v in task['operands'].items() if v == value}
        for tensor in header['groups'][task['group']]['tensors']:
            if tensor[0] in bound or (tensor[3] == 'output' and task['result'] == value):
                tensor[4] = dtype


def wide_result_in_narrow_output(header: dict) -> None:
    of_type(header, 'a', 'f64')
    header['program']['inside']['a'] = ['y', 0]


def wide_view_of_narrow_input(header: dict) -> None:
    of_type(header, 'bytes', 'f64')
    values = header['program']['values']
    shape = next(v for v in values if v[0] == 'bytes')[1]
    next(v for v in values if v[0] == 'bytes')[0] = 'wide'
    values.append(['bytes', shape, 'u8'])
    header['program']['views']['wide'] = 'bytes'
    for task in header['program']['tasks']:
        for tensor, value in task['operands'].items():
            if value == 'bytes':
                task['operands'][tensor] = 'wide'


def result_that_is_an_input(header: dict) -> None:
    header['program']['tasks'][-1]['result'] = 'x'
    header['program']['outputs'] = [['y', 'x']]


def role_of_a_constant(header: dict) -> None:
    """Weights that are an input of the network."""
    name = header['constants'].pop(0)['name']
    header['program']['inputs'].append(name)


def bias_of(header: dict) -> list:
    stages = [stage for group in header['groups'].values() for stage in group['stages']]
    return next(access for stage in stages for access in stage['reads'] if access[0] == 'Bias')


def first(header: dict, part: str) -> dict:
    return next(iter(header[part].values()))


@pytest.mark.parametrize(
    ('file', 'change', 'names'),
    [
        ('convolutions', wide_result_in_narrow_output, "'a' is f64"),
        ('gathered', wide_view_of_narrow_input, "'wide' is f64"),
        ('convolutions', result_that_is_an_input, "'x', which is given"),
        ('convolutions', role_of_a_constant, 'not a constant'),
        ('convolutions', lambda h: h['constants'].pop(0), 'before it is computed'),
        ('convolutions', lambda h: h['constants'][0].update(offset=0.0), 'whole number'),
        ('convolutions', lambda h: h.update(threads=1 << 40), 'threads'),
        ('convolutions', lambda h: h.update(threads=2.0), 'threads'),
        ('convolutions', lambda h: h.update(max_rel_err=float('nan')), 'errors of nan'),
        ('convolutions', lambda h: h.update(max_rel_err=float('inf')), 'errors of inf'),
        ('convolutions', lambda h: first(h, 'choices').update(predicted_s=float('nan')), 'nan'),
        (
            'convolutions',
            lambda h: first(h, 'choices')['schedule'].update(parallel=[['k', 1 << 40]]),
            'threads',
        ),
        (
            'convolutions',
            lambda h: first(h, 'groups')['stages'][0].update(name='a, b'),
            'not a name',
        ),
        ('convolutions', lambda h: bias_of(h)[1][0].__setitem__(1, -1000), 'reads outside Bias'),
        ('gathered', lambda h: h['program']['inputs'].append('x'), 'name of its own'),
        ('gathered', lambda h: h['program']['outputs'].append(['y', 'r']), 'name of its own'),
        ('convolutions', lambda h: h['machine'].update(cores=1 << 70), 'cores'),
    ],
)
def test_a_file_with_another_meaning_is_refused_before_it_is_used(
    files, tmp_path, file, change, names
):
    header, arrays = file_mutants.header_of(files[file])
    change(header)
    file_mutants.renamed(header)
    path = tmp_path / 'changed.tw'
    path.write_bytes(file_mutants.file_of(header, arrays))
    with pytest.raises(tw.TilewrightError) as caught:
        network_file.read(path)
    assert names in str(caught.value)
    assert '\n' not in str(caught.value)


def test_a_file_that_is_cut_after_it_was_loaded_changes_nothing(files, tmp_path):
    """Mapped, its constants would be gone: the process would end by a signal."""
    path = tmp_path / 'net.tw'
    path.write_bytes(files['convolutions'])
    saved = network_file.read(path)
    before = {name: array.copy() for name, array in saved.program.constants.items()}
    os.truncate(path, 16)
    for name, array in saved.program.constants.items():
        np.testing.assert_array_equal(array, before[name])
        assert not array.flags.writeable


def mutants(folder: Path, targets: list[str], seed: int, count: int) -> list[str]:
    """Try `count` files under the address sanitizer; one line for each."""
    runtime = subprocess.run(
        [*compiler(), '-print-file-name=libasan.so'], capture_output=True, text=True, check=False
    ).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip('the compiler has no address sanitizer that can be loaded before Python')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('TILEWRIGHT_ISA', 'portable')
        file_mutants.make(folder, targets)
        watched = {
            **os.environ, 'LD_PRELOAD': runtime, 'ASAN_OPTIONS': 'detect_leaks=0',
            'TILEWRIGHT_CFLAGS': '-O0 -fsanitize=address', 'PYTHONPATH': str(SCRIPT.parent),
        }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, SCRIPT, folder, str(seed), str(count)],
        env=watched, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, (lines[-1:], ran.stderr[-3000:])
    return lines


def _check(lines: list[str], count: int) -> None:
    assert len(lines) == count
    assert [line for line in lines if 'RAISED' in line] == []
    ran = sum(line.endswith(' ran') for line in lines)
    refused = sum(' refused: ' in line for line in lines)
    assert min(ran, refused) > count // 10, (ran, refused)


def test_changed_files_are_refused_or_run_inside_their_memory(tmp_path):
    _check(mutants(tmp_path, ['cpu'], 0, 40), 40)


@pytest.mark.slow
def test_many_changed_files_of_every_target(tmp_path):
    _check(mutants(tmp_path, ['cpu', 'host'], 1000, 600), 600)
