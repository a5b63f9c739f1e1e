"""One contestant on layers in a process of its own: `python -m tilewright_lab.peers.process`.

Goes in, as JSON lines on standard input; comes out, one JSON line for each (first a greeting, with
versions and the instruction set that CPUID says it has, where that is held back):

    {"do": "prepare", "label": "mb1ic64...", "digest": ..., "seed": 0, "threads": 2,
     "library": "x.so", "algorithm": "outer",     for our own kernel only
     "options": {"trials": 200}}                  for a peer that tunes only
      -> {"status": "progress", "what": "tuning", "done": 64, "total": 200}     any number of these
      -> {"status": "ok", "settings": {...}, "tried": [...], "algorithm": ..., "estimate_ms": ...}
    {"do": "answer", "path": "y.npy"}     one call into a poisoned output, which is written there
      -> {"status": "ok"}
    {"do": "time", "repeats": 20, "warm": 3, "flush": false}
      -> {"status": "ok", "samples_ms": [...]}

Everyone gets the same float32 NCHW arrays, is called from Python, and leaves an NCHW result;
weights are constant and may be packed ahead. When a layer is prepared, all variants of a contestant
are timed briefly; the fastest is kept, and what was tried is reported. What a library prints goes
to the log, never into the replies. Arguments are those of `main`.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np

from tilewright.errors import CheckError, TilewrightError
from tilewright.ops.specs import read_layer
from tilewright.runtime import verify
from tilewright.runtime.child import die_with
from tilewright_lab.peers.contestants import Job, Variant, imported
from tilewright_lab.peers.held import seen_here

TRIAL_S = 0.15
TRIAL_CALLS = 30
FLUSH_LEAST_BYTES, FLUSH_MOST_BYTES = 64 << 20, 512 << 20


@dataclass(frozen=True, slots=True)
class Trial:
    """A variant that was built and timed: median seconds, its answer, what else is to be told."""

    variant: Any
    seconds: float
    answer: Any
    said: Mapping[str, Any] = field(default_factory=dict)


def fastest(
    variants: Iterable[tuple[dict[str, Any], Callable]],
    attempt: Callable[[Callable], Trial],
    same: Callable[[Any, Any], bool],
) -> tuple[Any, Callable, dict[str, Any]]:
    """Try every variant; comes out: the fastest one that works, what makes it, and the report.

    Variants that fail, or whose answer is not the `same` as that of the first one that works, are
    reported and not chosen; they are given up before the next one is built.
    """
    tried: list[dict[str, Any]] = []
    best: tuple[Trial, Callable, dict] | None = None
    expected: Any = None
    for settings, make in variants:
        trial = None
        try:
            trial = attempt(make)
            if expected is None:
                expected = trial.answer
            elif not same(trial.answer, expected):
                raise CheckError('its answer differs from that of the other settings')
        except Exception as error:
            tried.append({'settings': settings, 'message': sentence(error)})
            continue
        tried.append({'settings': settings, 'trial_median_ms': 1e3 * trial.seconds, **trial.said})
        if best is None or trial.seconds < best[0].seconds:
            best = trial, make, settings
    if best is None:
        raise CheckError(tried[0]['message'])
    chosen, make, settings = best
    report = {
        'settings': settings,
        'tried': tried,
        'algorithm': chosen.variant.algorithm(),
        'estimate_ms': 1e3 * chosen.seconds,
    }
    return chosen.variant, make, report


def choose(job: Job, variants: list) -> tuple[Variant, dict[str, Any]]:
    """The fastest variant of a layer, and the report.

    The parent checks the answer of the chosen one against the float64 reference.
    """

    def attempt(make: Callable[[Job], Variant]) -> Trial:
        variant = make(job)
        verify.poison(job.out)
        return Trial(variant, estimate(variant.run), np.array(variant.result()))

    def same(answer: np.ndarray, expected: np.ndarray) -> bool:
        limit = verify.TOLERANCE['f32']
        return verify.compare_arrays('Out', answer, expected, tolerance=limit).ok

    variant, make, report = fastest(variants, attempt, same)
    more = {'call_overhead_ms': _overhead(job, make), 'tuning_s': variant.tuning_s}
    return variant, report | more


def estimate(run: Callable[[], object]) -> float:
    """Median seconds of a few calls, after two for warming up."""
    run()
    run()
    samples, start = [], time.perf_counter()
    while len(samples) < 3 or (
        len(samples) < TRIAL_CALLS and time.perf_counter() - start < TRIAL_S
    ):
        begin = time.perf_counter()
        run()
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples)


def _overhead(job: Job, make: Callable[[Job], Variant]) -> float | None:
    """Milliseconds of a call with one multiplication to do; None where every shape is tuned for."""
    if job.library is not None or job.options:
        return None
    one = (1,) * job.conv.rank
    conv = replace(
        job.conv, n=1, c=1, k=1, size=one, taps=one, groups=1, stride=one,
        pad=(0,) * (2 * job.conv.rank), dilation=one,
    )  # fmt: skip
    tiny = make(Job.of(conv, 0, job.threads))
    return 1e3 * estimate(tiny.run)


class Flusher:
    """Evicts the caches between calls: every thread sweeps its part of a large buffer."""

    def __init__(self, threads: int) -> None:
        size = min(max(2 * _cache_bytes(), FLUSH_LEAST_BYTES), FLUSH_MOST_BYTES)
        self.parts = np.array_split(np.zeros(size // 8), threads)
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        for done in [self.pool.submit(np.add, part, 1.0, out=part) for part in self.parts]:
            done.result()


def _cache_bytes() -> int:
    """Size of all data caches that the first core sees, as the system reports them."""
    total = 0
    for path in Path('/sys/devices/system/cpu/cpu0/cache').glob('index*/size'):
        text = path.read_text().strip()
        unit = {'K': 10, 'M': 20}.get(text[-1:], 0)
        with contextlib.suppress(ValueError):
            total += int(text.rstrip('KM')) << unit
    return total


def timed(
    run: Callable[[], object], repeats: int, warm: int, flusher: Flusher | None
) -> list[float]:
    """Milliseconds of every one of `repeats` calls, behind `warm` that do not count."""
    samples = []
    for _ in range(warm):
        run()
    for _ in range(repeats):
        if flusher is not None:
            flusher()
        begin = time.perf_counter()
        run()
        samples.append(1e3 * (time.perf_counter() - begin))
    return samples


class Server:
    """The child's memory: what was prepared last, a job and the variant that was chosen for it.

    Servers add `prepare`, which sets both, and `answer`.
    """

    def __init__(
        self, function: str, packages: Iterable[str], report: Callable[[str, int, int], object]
    ) -> None:
        """`function` gives the variants, by its name 'module:function'."""
        self.report, self.packages = report, tuple(packages)
        self.variants = list(imported(function)())
        for package in self.packages:
            __import__(package)
        self.job: Any = None
        self.variant: Any = None
        self.flusher: Flusher | None = None

    def hello(self) -> dict:
        versions = {name: _version(name) for name in self.packages}
        return {'versions': versions, 'isa': seen_here()}

    def time(self, repeats: int, warm: int, flush: bool) -> dict:
        if flush and self.flusher is None:
            self.flusher = Flusher(self.job.threads)
        flusher = self.flusher if flush else None
        return {'samples_ms': timed(self.variant.run, repeats, warm, flusher)}


def _version(package: str) -> str:
    """What a package that is imported says of itself, or else what was installed by its name."""
    said = getattr(sys.modules[package], '__version__', None)
    return metadata.version(package) if said is None else str(said)


class LayerServer(Server):
    """Layers: a convolution by its label, on random data by its seed."""

    def prepare(
        self,
        label: str,
        digest: str,
        seed: int,
        threads: int,
        library: str | None = None,
        algorithm: str = '',
        options: dict[str, Any] | None = None,
    ) -> dict:
        self.job = self.variant = None
        job = Job.of(
            read_layer(label).conv, seed, threads, library=library, algorithm=algorithm,
            options=options or {}, progress=self.report,
        )  # fmt: skip
        if job.group.digest != digest:
            raise ValueError(f'{label} does not describe the group that was sent')
        self.variant, report = choose(job, self.variants)
        self.job = job
        return report

    def answer(self, path: str) -> dict:
        verify.poison(self.job.out)
        self.variant.run()
        np.save(path, self.variant.result())
        return {}


def sentence(error: Exception) -> str:
    text = ' '.join(str(error).split())[:300]
    if isinstance(error, TilewrightError):
        return text
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def serve(
    server_of: Callable[..., Server], function: str, packages: Iterable[str],
    requests: IO[bytes], replies: IO[bytes],
) -> None:  # fmt: skip
    """Greet, then answer requests until the input ends: by the methods of a server."""

    def reply(answer: dict) -> None:
        replies.write(json.dumps(answer).encode() + b'\n')
        replies.flush()

    def report(what: str, done: int, total: int) -> None:
        reply({'status': 'progress', 'what': what, 'done': done, 'total': total})

    try:
        server = server_of(function, packages, report)
        reply({'status': 'ok', **server.hello()})
    except Exception as error:
        reply({'status': 'failed', 'message': sentence(error)})
        return
    for line in requests:
        request = json.loads(line)
        try:
            reply({'status': 'ok', **getattr(server, request.pop('do'))(**request)})
        except Exception as error:
            reply({'status': 'failed', 'message': sentence(error)})


def main(words: list[str], server_of: Callable[..., Server] = LayerServer) -> None:
    """The child. Arguments: the parent's process id (0: do not watch it), 'module:function' that
    gives the contestant's variants, and the packages that it needs.
    """
    parent, (function, *packages) = int(words[0]), words[1:]
    die_with(parent)  # a stopped process does not notice that its input has ended
    requests, replies = os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)
    serve(server_of, function, packages, requests, replies)


if __name__ == '__main__':
    main(sys.argv[1:])
