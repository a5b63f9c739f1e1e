"""`tilewright doctor`: what is found, missing and misconfigured, with a remedy for each.

Goes in: this host and environment. Comes out: findings, and exit code 1 if something that is needed
is missing or set wrong; what is optional and not there is told, and costs nothing. Nothing is
measured, and nothing is changed except that a library of one function is built to see that it can.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from tilewright import knobs
from tilewright.cli.output import Output
from tilewright.errors import CheckError, TilewrightError
from tilewright.machine import compiler as build
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import best_isa
from tilewright.machine.measure import machine_file
from tilewright.runtime.gpu.session import device_names
from tilewright.store.records import open_store, package_version

OLD_DAYS = 365
LEAST_FREE_BYTES = 1 << 30
PROBE = 'int tilewright_doctor(void) { return 42; }\n'
DISTRIBUTION = 'tilewright'
DRIVERS = {
    'cuda': "the driver, and pip install 'tilewright[cuda]'",
    'opencl': "a driver (ICD), or pip install 'tilewright[opencl]'",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, 'ok', 'missing' (optional) or 'wrong', what was seen, what to do."""

    what: str
    state: str
    said: str
    remedy: str = ''


def run(out: Output) -> int:
    """Look at everything; comes out: 1 if something is wrong."""
    found = examine()
    width = max(len(finding.what) for finding in found)
    for finding in found:
        out.say(f'{finding.state.ljust(7)}  {finding.what.ljust(width)}  {finding.said}')
        if finding.remedy:
            out.say(f'{" " * (width + 11)}-> {finding.remedy}')
    out.write({'findings': [asdict(finding) for finding in found]})
    wrong = sum(finding.state == 'wrong' for finding in found)
    out.say(f'\n{wrong} wrong' if wrong else '\nnothing is wrong')
    return CheckError.exit_code if wrong else 0


def examine() -> list[Finding]:
    """All findings. A look that fails is one as well."""
    found: list[Finding] = []
    for look in LOOKS:
        try:
            found += look()
        except TilewrightError as error:
            text, _, remedy = str(error).partition('; ')
            name = look.__name__.strip('_').replace('_', ' ')
            found.append(Finding(name, 'wrong', text, remedy))
    return found


def _package() -> Iterator[Finding]:
    python = sys.version.split()[0]
    where = Path(__file__).parents[1]
    yield Finding('package', 'ok', f'tilewright {package_version()} in {where}, Python {python}')


def _settings() -> Iterator[Finding]:
    """Variables that begin as ours do and mean nothing, or cannot be read."""
    known = {knob.variable for knob in knobs.KNOBS}
    for name in sorted(os.environ):
        if name.startswith('TILEWRIGHT_') and name not in known:
            yield Finding(
                'settings', 'wrong', f'{name} is not a variable that is read',
                'unset it, or see docs/knobs.md for its name',
            )  # fmt: skip
    for knob in knobs.KNOBS:
        if os.environ.get(knob.variable):
            yield Finding('settings', 'ok', f'{knob.variable}={knob.get()}')


def _compiler() -> Iterator[Finding]:
    command = build.compiler()
    said = f'{" ".join(command)}: {build.compiler_version(command)}'
    library = build.build(PROBE, name='doctor')
    try:
        works = ctypes.CDLL(str(library)).tilewright_doctor() == 42
        trouble = '' if works else 'a library that it built answers wrong'
    except OSError as error:
        trouble = f'a library that it built cannot be loaded ({error})'
    if trouble:
        yield Finding(
            'compiler', 'wrong', f'{said}; {trouble}',
            'choose another compiler by TILEWRIGHT_CC; set TILEWRIGHT_CACHE_DIR to a directory '
            'that is not mounted noexec',
        )  # fmt: skip
    else:
        yield Finding('compiler', 'ok', said)


def _processor() -> Iterator[Finding]:
    facts = describe_host()
    isa = best_isa(facts.isas)  # refuses a TILEWRIGHT_ISA that the host lacks
    yield Finding('processor', 'ok', f'{facts.model}, {isa} (of {", ".join(facts.isas)})')
    if isa == 'portable':
        yield Finding(
            'processor', 'missing', 'no vector instructions that we generate code for',
            'kernels are plain C and much slower: use a host with AVX2, AVX-512 or NEON',
        )  # fmt: skip


def _threads() -> Iterator[Finding]:
    facts = describe_host()
    logical = os.cpu_count() or 1
    said = f'{facts.cores} usable cores, {len(facts.allowed)} of {logical} logical CPUs allowed'
    if facts.quota is not None:
        said += f', cgroup quota {facts.quota:g} CPUs'
    yield Finding('threads', 'ok', said)
    wanted = knobs.get('threads')
    if wanted > len(facts.allowed):
        yield Finding(
            'threads', 'wrong', f'TILEWRIGHT_THREADS={wanted}, and there are {facts.cores} cores',
            f'ask for at most {facts.cores}, or unset it',
        )  # fmt: skip
    if facts.quota is not None and facts.quota != int(facts.quota):
        yield Finding(
            'threads', 'missing', f'the quota of {facts.quota:g} CPUs leaves a part of one unused',
            f'give the container {int(facts.quota) + 1} CPUs, or as many as it has whole ones',
        )  # fmt: skip
    openmp = os.environ.get('OMP_NUM_THREADS')
    if openmp:
        yield Finding(
            'threads', 'ok',
            f'OMP_NUM_THREADS={openmp} decides for other libraries, not for our own thread pool',
        )  # fmt: skip
    load = os.getloadavg()[0]
    if load > facts.cores / 2:
        yield Finding(
            'threads', 'missing', f'a quiet host: its load average is {load:.1f}',
            'what is measured now is disturbed; end what else runs',
        )  # fmt: skip


def _cache() -> Iterator[Finding]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        path = build.cache_dir()
        with open_store() as store:
            records = len(store)
    for each in told:
        text, _, remedy = str(each.message).partition('; ')
        yield Finding('cache', 'wrong', text, remedy)
    free = shutil.disk_usage(path).free
    said = f'{path}, {records} records, {free / 2**30:.1f} GiB free'
    if free < LEAST_FREE_BYTES:
        yield Finding(
            'cache', 'wrong', f'{said}: kernels need up to 1 GiB',
            'make room, or set TILEWRIGHT_CACHE_DIR to another disk',
        )  # fmt: skip
    elif not told:
        yield Finding('cache', 'ok', said)


def _machine_file() -> Iterator[Finding]:
    facts = describe_host()
    path = machine_file(facts, best_isa(facts.isas))
    if not path.exists():
        yield Finding(
            'machine file', 'missing', 'this host has not been measured: nominal figures are used',
            'run `tilewright machine` once, while the host is quiet',
        )  # fmt: skip
        return
    days = (time.time() - path.stat().st_mtime) / 86400
    state, remedy = 'ok', ''
    if days > OLD_DAYS:
        state, remedy = 'missing', 'run `tilewright machine --remeasure` while the host is quiet'
    yield Finding('machine file', state, f'measured {days:.0f} days ago: {path}', remedy)


def _devices() -> Iterator[Finding]:
    """GPUs, by each way to reach them."""
    for target, drivers in DRIVERS.items():
        try:
            names = device_names(target)
            trouble = '' if names else 'no device'
        except (TilewrightError, OSError, RuntimeError) as error:
            names, trouble = [], str(error).split('; ')[0]
        if names:
            yield Finding(target, 'ok', ', '.join(_labels(target, names)))
        else:
            yield Finding(target, 'missing', trouble, f'install {drivers}, where there is a GPU')
    try:
        from tilewright.runtime.gpu.cuda import _bindings, checked

        major, minor = checked(_bindings('nvrtc').nvrtcVersion())
        yield Finding('nvrtc', 'ok', f'{major}.{minor}')
    except (TilewrightError, OSError, RuntimeError) as error:
        yield Finding(
            'nvrtc', 'missing', str(error).split(': ')[0], "pip install 'tilewright[cuda]'"
        )


def _labels(target: str, names: Sequence[str]) -> Sequence[str]:
    if target != 'cuda':
        return names
    from tilewright.runtime.gpu.cuda_devices import cuda_devices

    return cuda_devices()


def _packages() -> Iterator[Finding]:
    """What we need and can use, beside the versions that this package is tested with."""
    tested = tested_versions()
    for extra, names in requirements().items():
        needed = extra == ''
        said, lacking, other = [], [], []
        for name in names:
            have, want = installed(name), tested.get(_normal(name))
            if have is None:
                lacking.append(name)
                continue
            said.append(f'{name} {have}')
            if want is not None and have.split('+')[0] != want:
                other.append(f'{name} {have} (tested with {want})')
        what = 'packages' if needed else f'extra {extra}'
        if lacking:
            remedy = f"pip install '{DISTRIBUTION}{f'[{extra}]' if extra else ''}'"
            state = 'wrong' if needed else 'missing'
            yield Finding(what, state, f'not installed: {", ".join(lacking)}', remedy)
        elif said:
            text = f'; {", ".join(other)}' if other else ''
            yield Finding(what, 'ok', ', '.join(said) + text)


def requirements() -> dict[str, list[str]]:
    """Names of packages by the extra that asks for them; '' for those that are always needed."""
    found: dict[str, list[str]] = {'': []}
    try:
        texts = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return found
    for text in texts:
        name = re.split(r'[^\w.-]', text, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", text)
        machine = re.search(r"platform_machine == ['\"](\w+)['\"]", text)
        if machine and machine[1] != os.uname().machine:
            continue
        found.setdefault(extra[1] if extra else '', []).append(name)
    return found


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def tested_versions() -> dict[str, str]:
    """constraints.txt: in the package where it is installed, beside `src` in a source tree."""
    here = Path(__file__).parents[1]
    for path in (here / 'constraints.txt', here.parents[1] / 'constraints.txt'):
        if path.is_file():
            pairs = re.findall(r'^([\w.-]+)==(\S+)', path.read_text(), flags=re.MULTILINE)
            return {_normal(name): version for name, version in pairs}
    return {}


def _normal(name: str) -> str:
    return re.sub(r'[-_.]+', '-', name).lower()


LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _package, _settings, _compiler, _processor, _threads, _cache, _machine_file, _devices,
    _packages,
)  # fmt: skip
