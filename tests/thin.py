"""Which cases of tests `make test` leaves to `make test-all`, by the lines of the package they run.

    pytest -m '' --cov=tilewright --cov-context=test --junitxml=times.xml      needs pytest-cov
    python tests/thin.py .coverage times.xml

Goes in: the lines that every case ran, and its seconds. Comes out: tests/left_out.json, of every
test that takes seconds the cases whose lines cheaper cases of it run as well, and long cases whose
lines others of any test run; never the last case of a test, nor its only one for an instruction
set, a target, a schema or a kind of numbers, nor one of KEPT. tests/conftest.py marks them `slow`.
Cases that were not measured stay as they are listed, and new ones run.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_name('left_out.json')
LEAST_S = 0.5  # that all cases of a test take together, for it to be worth a list
LONG_S = 0.2  # of a case that is left out for what other tests run
START_S = 0.05  # of a case, whatever it does
# Instruction sets, targets, architectures, schemas, kinds of layers and of numbers: each makes code
# that no line shows. `patch/mma` is another than `patch`.
PLACES = {
    'avx512', 'avx2', 'neon', 'portable', 'cpu', 'cuda', 'host', 'opencl', 'numpy', 'gpu', 'h200',
    'v100', 'sm_75', 'sm_80', 'sm_90', 'outer', 'stencil', 'winograd', 'general', 'chain', 'dot',
    'attention', 'depthwise', 'dfg', 'fft', 'head', 'patch', 'persistent', 'recurrence', 'rs',
    'strip', 'tiled',
    'GRU', 'LSTM', 'RNN', 'f16', 'bf16', 'fp16', 'f32', 'f64', 'i8', 'u8', 'i32', 'i64', 'int8',
    'uint8', 'int64', 'float16', 'float32', 'float64', 'tf32x3', 'tf32_bf16',
}  # fmt: skip

# What these are about is not in lines of the package: golden files, evaluation, programs in C.
KEPT = (
    'tests/golden/', 'tests/lab/test_bench_tables.py', 'tests/lab/test_deepcuts.py',
    'tests/lab/test_emulate.py', 'tests/lab/test_gat.py', 'tests/lab/test_network_bench.py',
    'tests/lab/test_peers.py', 'tests/lab/test_reproduce', 'tests/kernels/test_gpu_worker.py',
    'tests/kernels/test_special', 'tests/networks/test_file_meaning.py', 'tests/runtime/',
    # Intrinsics that are chosen by types.
    'tests/kernels/test_half_images.py::test_loops_between_floats_and_bytes_are_the_definition[neon-f16',
    'tests/kernels/test_half_images.py::test_loops_between_floats_and_bytes_are_the_definition[neon-i8',
)  # fmt: skip


def left_out(lines: Mapping[str, Set], seconds: Mapping[str, float]) -> dict[str, list[str]]:
    """test -> its cases that are not needed."""
    tests: dict[str, set[str]] = defaultdict(set)
    for case in lines:
        if '[' in case and case in seconds and not case.startswith(KEPT):
            tests[_test(case)].add(case)
    needed = {name: set(cases) for name, cases in tests.items()}
    for name, cases in tests.items():
        if sum(seconds[case] for case in cases) >= LEAST_S:
            needed[name] = _cover({c: {*lines[c], *_places(c)} for c in sorted(cases)}, seconds)
    out = {case for name, cases in tests.items() for case in cases - needed[name]}
    counts = Counter(line for case in lines if case not in out for line in lines[case])
    for case in sorted(set().union(*needed.values()), key=lambda c: (-seconds[c], c)):
        others = needed[_test(case)] - {case}
        there = set().union(*map(_places, others))
        once = any(counts[line] == 1 for line in lines[case])
        if seconds[case] >= LONG_S and not once and others and there >= _places(case):
            needed[_test(case)] = others
            counts.subtract(lines[case])
    rest = {name: sorted(cases - needed[name]) for name, cases in tests.items()}
    return {n: [c.removeprefix(n) for c in cases] for n, cases in rest.items() if cases}


def _test(case: str) -> str:
    return case.partition('[')[0]


def _places(case: str) -> set[str]:
    return {word for word in re.split(r'[\[\]-]', case) if word.partition('/')[0] in PLACES}


def _cover(lines: Mapping[str, Set], seconds: Mapping[str, float]) -> set[str]:
    """Cases that run all lines: always the one that runs most new ones a second; one at least."""
    left = set().union(*lines.values())
    chosen: list[str] = []
    while left or not chosen:
        best = max(lines, key=lambda c: (len(lines[c] & left) + 1e-9) / (seconds[c] + START_S))
        chosen.append(best)
        left -= lines[best]
    for case in sorted(chosen, key=lambda c: -seconds[c]):
        others = [lines[c] for c in chosen if c != case]
        if others and set().union(*others) >= lines[case]:
            chosen.remove(case)
    return set(chosen)


def listed() -> set[str]:
    """The cases of the list, by their whole names."""
    return {name + case for name, cases in json.loads(LIST.read_text()).items() for case in cases}


def write(found: Mapping[str, list[str]], measured: Set[str]) -> None:
    """Write the list again; what was not measured stays on it."""
    made: dict[str, list[str]] = {name: list(cases) for name, cases in found.items()}
    for case in listed() - measured:
        name, bracket, rest = case.partition('[')
        made.setdefault(name, []).append(bracket + rest)
    made = {name: sorted(made[name]) for name in sorted(made)}
    LIST.write_text(json.dumps(made, indent=1, ensure_ascii=False) + '\n')


def main(coverage_file: str, times_file: str) -> None:
    from coverage import CoverageData  # pyright: ignore[reportMissingImports]

    data = CoverageData(coverage_file)
    data.read()
    lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for path in data.measured_files():
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                if context:
                    lines[context.split('|')[0]].add((path, line))
    seconds = {}
    for case in ElementTree.parse(times_file).iter('testcase'):
        module, name = case.attrib['classname'].replace('.', '/'), case.attrib['name']
        seconds[f'{module}.py::{name}'] = float(case.attrib['time'])
    write(left_out(lines, seconds), set(lines))


if __name__ == '__main__':
    main(*sys.argv[1:])
