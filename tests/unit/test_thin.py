"""The cases of tests that run no line which cheaper ones do not run."""

from __future__ import annotations

import json

import pytest
import thin


def test_cheap_cases_that_run_all_lines_stay() -> None:
    lines = {
        't.py::a[x]': {21, 22},
        't.py::a[y]': {22, 23},
        't.py::a[all]': {21, 22, 23},
        't.py::a[none]': set(),
        't.py::b': {1},
        't.py::cheap[x]': {1},
        't.py::cheap[y]': {1},
        't.py::same[x]': {7},
        't.py::same[y]': {7},
        't.py::not measured[x]': {1},
    }
    seconds = dict.fromkeys(lines, 1.0) | {'t.py::a[all]': 9.0, 't.py::same[x]': 2.0}
    seconds |= {'t.py::cheap[x]': 0.1, 't.py::cheap[y]': 0.1}
    lines |= {'t.py::sets[avx2-1]': {1}, 't.py::sets[neon-1]': {1}, 't.py::sets[neon-2]': {1}}
    seconds |= {'t.py::sets[avx2-1]': 1.0, 't.py::sets[neon-1]': 2.0, 't.py::sets[neon-2]': 1.0}
    del seconds['t.py::not measured[x]']
    assert thin.left_out(lines, seconds) == {
        't.py::a': ['[all]', '[none]'],
        't.py::same': ['[x]'],
        't.py::sets': ['[neon-1]'],
    }


def test_long_cases_whose_lines_other_tests_run_are_left_out() -> None:
    lines = {
        't.py::a[x]': {1, 2},
        't.py::a[y]': {1, 3},
        't.py::a[cpu]': {1, 4},
        't.py::b': {2, 4},
        't.py::c[x]': {5},
        't.py::d': {5},
    }
    seconds = dict.fromkeys(lines, 0.4)
    assert thin.left_out(lines, seconds) == {'t.py::a': ['[x]']}
    assert thin.left_out(lines, seconds | {'t.py::a[x]': 0.1}) == {}


def test_tests_without_lines_keep_a_case() -> None:
    lines: dict[str, set] = {'t.py::a[x]': set(), 't.py::a[y]': set()}
    assert thin.left_out(lines, {'t.py::a[x]': 2.0, 't.py::a[y]': 1.0}) == {'t.py::a': ['[x]']}


def test_what_was_not_measured_stays_on_the_list(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(thin, 'LIST', tmp_path / 'list.json')
    thin.LIST.write_text(json.dumps({'t.py::a': ['[x]', '[y]'], 't.py::b': ['[z]']}))
    thin.write({'t.py::a': ['[new]']}, {'t.py::a[x]', 't.py::a[new]'})
    assert json.loads(thin.LIST.read_text()) == {'t.py::a': ['[new]', '[y]'], 't.py::b': ['[z]']}


@pytest.mark.parametrize('case', sorted(thin.listed())[:1])
def test_cases_of_the_list_have_whole_names(case: str) -> None:
    assert case.startswith('tests/')
    assert '::' in case
