"""What tests of generated code share: exact data, a run by any means there is, a summary of ISAs.

Inputs are small whole numbers, so that every sum is exact in fp32 in any order of summation and a
kernel has to agree with the reference to the bit; only smooth activations are compared within a
tolerance.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Any

import headers
import numpy as np
import pytest
import quick
import thin

from tilewright import knobs
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.machine import compiler, measure
from tilewright.machine.compiler import build
from tilewright.machine.detect import HostFacts
from tilewright.machine.isa import ISAS, half_isa, host_half, host_isas
from tilewright.machine.measure import Effort, Record, measure_host
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.cpu.calls import KernelArgs, aligned_empty
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.gpu.opencl import OpenCLDevice
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import (
    Toolchain,
    can_emulate,
    cannot_run,
    emulate,
    emulator,
    is_translated,
    native,
)
from tilewright_lab.simulate.zmm import IntrinsicsError, simde

SMOOTH = ('exp', 'tanh', 'sigmoid', 'sqrt', 'div', 'pow')
# Folders in which searches look at as much as for users: what they find is what is tested.
ABOUT_SEARCHES = ('golden', 'models', 'unit')
# Checked, not timed: building quickly matters more than speed. `make test-all` sets it to nothing,
# and checks what users get.
QUICK = ('-O0',)
LINKER = ('-fuse-ld=gold',) if shutil.which('ld.gold') else ()
os.environ.setdefault('TILEWRIGHT_CFLAGS', ' '.join((*QUICK, *LINKER)))
# PoCL compiles OpenCL for CPUs by LLVM, which takes three times as long with optimisations.
os.environ.setdefault('POCL_EXTRA_BUILD_FLAGS', '-cl-opt-disable')
LONGEST = (
    'test_changed_files_are_refused_or_run_inside_their_memory',
    'test_graphs_of_a_fixed_seed_are_right',
    'test_damaged_models',
    'test_every_length_is_right',
    'test_explain_of_a_gpu_says_what_was_tried',
)
# What runs by default on an instruction set that is translated to C (simulate/zmm.py), beside cases
# that take turns: compilers need two and three times as long for that, with intrinsics ten times.
TRANSLATED = (
    'test_an_emulated_kernel_computes_the_reference',
    'test_every_shape_computes_its_definition_and_nothing_else',
    'test_odd_numbers_pass_or_stop_at_the_limits',
)
# How much of a space searches look at, where what they find only has to be right.
FEW_SCHEDULES = quick.few_schedules(quick.CPU, quick.GPU)
AS_FOR_USERS = (
    (measure, 'measure_host', measure_host),
    *((module, name, getattr(module, name)) for module, name, _ in FEW_SCHEDULES),
)
# A process takes longer to start than to search for the small networks of most tests, and other
# tests keep the other cores busy.
os.environ.setdefault('TILEWRIGHT_JOBS', '1')


def pytest_configure(config: pytest.Config) -> None:
    if knobs.get('cflags'):
        compiler._run = headers.run
        if not hasattr(config, 'workerinput'):
            headers.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, 'workerinput'):
        headers.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--update-golden', action='store_true', help='rewrite the expected sources in tests/golden'
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Modules and tests stay until the end: whoever looks for garbage need not look at them. Seldom
    looking takes a tenth off tests that export modules of PyTorch.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Cases that add little are slow; what takes seconds in all comes first, so that a mistake
    shows early, then what takes longest, so that no worker is left alone with it.
    """
    rest = thin.listed()
    translated = [name for name in ISAS if is_translated(name)]
    for item in items:
        if item.nodeid in rest or _on(item) in translated:
            item.add_marker(pytest.mark.slow)
    yield
    items.sort(key=lambda item: (item.path.parent.name != 'unit', _name(item) not in LONGEST))


def _on(item: pytest.Item) -> str:
    """The instruction set whose kernels a test runs; '' where its cases take turns or are few."""
    case = getattr(item, 'callspec', None)
    if case is None or 'in_turn' in case.params or _name(item) in TRANSLATED:
        return ''
    own = item.get_closest_marker('isa')
    return case.params.get('isa', case.params.get('target', '')) if own else ''


def _name(item: pytest.Item) -> str:
    return item.name.partition('[')[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Notes which tests ran kernels through OpenCL, for the summary; those whose kernels have
    intrinsics that nothing stands in for are skipped.
    """
    _launched.clear()
    try:
        return (yield)
    except IntrinsicsError as error:
        pytest.skip(str(error))
    finally:
        item.user_properties += [('opencl', name) for name in sorted(_launched)]


def _noted(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(self: OpenCLDevice, *args: Any) -> Any:
        _launched.add(self.name)
        return function(self, *args)

    return wrapper


_launched: set[str] = set()
for _method in ('launch', 'bound'):
    setattr(OpenCLDevice, _method, _noted(getattr(OpenCLDevice, _method)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which instruction sets and OpenCL devices were run, and how; what was skipped, and why."""
    reports = [r for group in terminalreporter.stats.values() for r in group]
    reports = [r for r in reports if isinstance(r, pytest.TestReport)]
    skipped = Counter(r.longrepr[2] for r in reports if isinstance(r.longrepr, tuple))
    called = [r.user_properties for r in reports if r.when == 'call']
    opencl = Counter(value for found in called for name, value in found if name == 'opencl')
    isas = any('isa' in r.keywords for r in reports)
    if not (isas or skipped or opencl):
        return
    terminalreporter.section('instruction sets, OpenCL, skipped tests')
    for name in ISAS if isas else ():
        reason = cannot_run(name)
        how = 'run by this host' if name in host_isas() else 'run in an emulator'
        if is_translated(name):
            how = 'translated to C' + ('' if simde() else ', without kernels of intrinsics')
        terminalreporter.line(f'{name}: {f"COULD NOT RUN, {reason}" if reason else how}')
    for name, count in opencl.items():
        terminalreporter.line(f'OpenCL: {count} tests ran kernels on {name}')
    if not opencl and any('opencl' in r.nodeid for r in reports):
        terminalreporter.line('OpenCL: NO TEST RAN A KERNEL')
    for reason, count in skipped.most_common():
        terminalreporter.line(f'skipped {count}: {reason.removeprefix("Skipped: ")}')


def _isas(names: tuple[str, ...]) -> list:
    return [pytest.param(name, marks=pytest.mark.isa) for name in names]


@pytest.fixture(params=_isas(tuple(ISAS)), scope='session')
def isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set in turn; skipped where neither host nor emulator runs it."""
    reason = cannot_run(request.param)
    if reason:
        pytest.skip(f'{request.param} cannot run: {reason}')
    return request.param


@pytest.fixture(params=[n for n, row in ISAS.items() if row.half], scope='session')
def half(request: pytest.FixtureRequest) -> tuple[str, str]:
    """(the row for f16, its instruction set) of each that has such numbers; skipped as `isa` is."""
    reason = cannot_run(request.param)
    if not reason and request.param in host_isas() and not host_half(request.param):
        reason = 'this core has no fp16 arithmetic (asimdhp): run it on one that does'
    if reason:
        pytest.skip(f'f16 on {request.param} cannot run: {reason}')
    return half_isa(request.param), request.param


@pytest.fixture(params=_isas(host_isas()), scope='session')
def native_isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set that the host itself runs."""
    return request.param


@pytest.fixture(scope='session')
def tools() -> Callable[[str], Toolchain]:
    """The toolchain that makes and runs programs of an instruction set; skips without one."""

    def of(name: str) -> Toolchain:
        if name in host_isas():
            return native()
        if can_emulate(name):
            pytest.skip(can_emulate(name))
        return emulator(name)

    return of


@pytest.fixture(scope='session')
def whole_numbers() -> Callable[[Group, int], dict[str, np.ndarray]]:
    """Arrays for a group's inputs and constants: whole numbers from -4 to 4, seldom zero."""

    def make(group: Group, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            t.name: rng.integers(-4, 5, t.shape).astype(np.float32)
            for t in group.tensors
            if t.role in ('input', 'constant')
        }

    return make


@pytest.fixture(scope='session')
def agrees() -> Callable[[Group, np.ndarray, np.ndarray], bool]:
    """Whether an output equals the reference: to the bit, or nearly behind smooth functions."""

    def compare(group: Group, got: np.ndarray, want: np.ndarray) -> bool:
        if any(name in str(stage.expr) for stage in group.stages for name in SMOOTH):
            return bool(np.allclose(got, want, rtol=1e-5, atol=1e-5))
        exact = all(arg.value == int(arg.value) for s in group.stages for arg in _constants(s.expr))
        if exact:
            return np.array_equal(got, want)
        return bool(np.allclose(got, want, rtol=1e-6, atol=1e-6))

    return compare


def _constants(expr):
    if expr.op == 'const':
        yield expr
    for arg in expr.args:
        yield from _constants(arg)


@pytest.fixture(scope='session')
def compute() -> Callable[[Group, Schedule, Mapping[str, np.ndarray]], np.ndarray]:
    """The output of the generated kernel: by the thread pool here, or in the emulator."""

    def run(group: Group, schedule: Schedule, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        if schedule.isa not in host_isas():
            return emulate(group, schedule, arrays)
        flags = (*compiler_flags(schedule), *QUICK)
        kernel = Kernel.load(build(generate(group, schedule), flags), group)
        out = np.full(group.output.shape, np.nan, np.float32)
        kernel.run(arrays, kernel.pack(arrays), out)
        return out

    return run


@pytest.fixture(scope='session')
def check(whole_numbers, agrees, compute) -> Callable[[Group, Schedule, int], None]:
    """Assert that the kernel of a schedule computes its group's reference."""

    def assert_right(group: Group, schedule: Schedule, seed: int = 0) -> None:
        arrays = whole_numbers(group, seed)
        want, got = reference(group, arrays), compute(group, schedule, arrays)
        if not agrees(group, got, want):
            wrong = np.argwhere(~np.isclose(got, want, rtol=1e-5, atol=1e-5))
            where = tuple(wrong[0]) if len(wrong) else ()
            raise AssertionError(
                f'{group.label}: {len(wrong)} of {got.size} elements are wrong, first at {where}: '
                f'{got[where]} instead of {want[where]}; schedule {schedule.to_json()}'
            )

    return assert_right


@pytest.fixture(scope='session')
def part_by_part() -> Callable[[Group, Schedule, Mapping[str, np.ndarray]], list[np.ndarray]]:
    """What each part alone writes into an output full of NaN."""

    def run(group: Group, schedule: Schedule, arrays: Mapping) -> list[np.ndarray]:
        flags = (*compiler_flags(schedule), *QUICK)
        library = build(generate(group, schedule), flags)
        kernel = Kernel.load(library, group)
        packed = kernel.pack(arrays)
        part = ctypes.CDLL(str(library)).tw_part
        part.argtypes, part.restype = [ctypes.c_void_p, ctypes.c_long], None
        outputs = []
        scratch = aligned_empty((kernel._scratch_bytes,), np.uint8)
        for number in range(kernel.parts):
            out = np.full(group.output.shape, np.nan, np.float32)
            keep = kernel._checked(arrays, packed, out)
            given = (ctypes.c_void_p * max(len(keep), 1))(*(a.ctypes.data for a in keep))
            args = KernelArgs(
                ctypes.addressof(given), packed.ctypes.data, out.ctypes.data, scratch.ctypes.data
            )
            part(ctypes.byref(args), number)
            outputs.append(out)
        return outputs

    return run


@pytest.fixture(autouse=True, scope='module')
def short_searches(request: pytest.FixtureRequest) -> Generator[None]:
    """Kernels have to be right, not fast, in most folders; what a module makes once included."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name not in ABOUT_SEARCHES:
            _shorten(patch)
        yield


@pytest.fixture
def few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model looks at few schedules, in folders that are about searches."""
    _shorten(monkeypatch)


@pytest.fixture
def full_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model looks at as much as for users, in the other folders."""
    for module, name, value in AS_FOR_USERS:
        monkeypatch.setattr(module, name, value)


def _shorten(patch: pytest.MonkeyPatch) -> None:
    """Answers are kept under the compiler's flags, and none that was found like this may be a
    user's.
    """
    if knobs.get('cflags'):
        patch.setattr(measure, 'measure_host', _measured_once)
        for module, name, value in FEW_SCHEDULES:
            patch.setattr(module, name, value)


@functools.cache
def _measured_once(facts: HostFacts, isa: str) -> Record:
    """This host, measured in a moment: tests with a cache of their own would measure it again."""
    return measure_host(facts, isa, Effort(0.0002, 2, 4, 16 << 20, tries=0))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line; comes out: exit code, standard output, standard error."""
    from tilewright.cli.main import invoke

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = invoke([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def agrees_in_children() -> Callable[[Callable[[], np.ndarray]], None]:
    """Assert that forked children compute the same, while another thread of their parent calls."""

    def check(function: Callable[[], np.ndarray]) -> None:
        want, stop = function(), threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                function()

        busy = threading.Thread(target=keep_busy)
        busy.start()
        try:
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    signal.alarm(30)  # a child that waits for ever is a failure, not a hang
                    code = 1
                    try:
                        code = 0 if np.array_equal(function(), want) else 2
                    finally:
                        os._exit(code)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            stop.set()
            busy.join()
        np.testing.assert_array_equal(function(), want)

    return check
