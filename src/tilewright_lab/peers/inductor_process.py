"""Inductor in a process of its own: `python -m tilewright_lab.peers.inductor_process PARENT`.

JSON lines in and out (tilewright_lab/peers/inductor.py is the other end); whatever Inductor prints
goes to standard error, which is a log file. A network is asked for once, in this order:

    {"do": "begin", "arguments": {...}, "inputs": "x.npz", "folder": "...", "turns": "...",
     "backends": "ATEN,TRITON", "precision": "fp16"}
        Libraries are loaded, and Inductor's pool of processes has started.
    {"do": "fill", "seconds": 60}
        Lowers the network and no further. Of every choice that Inductor offers for a convolution or
        product, libraries' kernels are kept and Triton's are queued, the smallest tiles first, and
        compiled in the pool. What is ready lies in Triton's cache, and `compiled/` of the folder
        says so: networks share it.
    {"do": "prepare"}
        torch.compile with max_autotune. Several networks are prepared at once; whatever is timed
        meanwhile waits for its turn at a lock, `turns`, so that only one uses the device. Processes
        that compile are ended.
    {"do": "answer", "path": "y.npy"}, {"do": "time", "repeats": 5}

Candidates that were not compiled ahead are not waited for, which `settings` says with their number;
nor are those that need more shared memory than a block has, which cannot run.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import zoo
from tilewright.errors import TilewrightError
from tilewright.runtime.child import die_with
from tilewright_lab.peers.contestants import Entrant
from tilewright_lab.peers.torch_graph import placed, replayed, torch_on_gpu

# As mode 'max-autotune', but for its graph, which is the same as for everyone else, and for the
# descent along coordinates, which compiles pointwise kernels by the dozen, one after the other.
OPTIONS = {'max_autotune': True, 'coordinate_descent_tuning': False}
AT_ONCE = 6  # kernels of one network that are compiled at a time while all networks are
OK, TOO_LARGE, FAILED = 'ok', 'too large', 'failed'
POOL_S = 120.0


def triton_source(choice: Any) -> tuple[str, str] | None:
    """(name, source) of a choice that Triton compiles; None for a library's kernel."""
    request = getattr(choice, 'bmreq', None)
    path, name = getattr(request, 'module_path', None), getattr(request, 'kernel_name', None)
    return (str(name), Path(path).read_text()) if path and name else None


def key_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:32]


def effort(choice: Any) -> tuple[bool, int]:
    """What compilation takes: all multiply-adds of a tile are unrolled. Groups, whose kernels
    compute mostly zeros, come last.
    """
    said = str(getattr(choice, 'description', ''))
    groups = re.search(r'\bGROUPS=(\d+)', said)
    size = 1
    for _, length in re.findall(r'BLOCK_([MNK])=(\d+)', said):
        size *= int(length)
    return bool(groups and int(groups[1]) > 1), size


class Marks:
    """What is known of kernels, as small files that all processes see: offered, compiled."""

    def __init__(self, folder: Path) -> None:
        self.offered, self.compiled = folder / 'offered', folder / 'compiled'
        for place in (self.offered, self.compiled):
            place.mkdir(parents=True, exist_ok=True)

    def claim(self, key: str) -> bool:
        """Whether this process is the one that compiles it."""
        try:
            os.close(os.open(self.offered / key, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def note(self, key: str, state: str) -> None:
        (self.compiled / key).write_text(state)

    def state(self, key: str) -> str:
        try:
            return (self.compiled / key).read_text()
        except OSError:
            return ''


class Filler:
    """Compiles what is offered, the least effort first, until its time is over."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.found: list[tuple[tuple[bool, int], int, str, str, str]] = []

    def keep_libraries(self, choices: Sequence[Any]) -> list[Any]:
        """Inductor's choices without Triton's, which are noted."""
        kept = []
        for choice in choices:
            found = triton_source(choice)
            if found is None:
                kept.append(choice)
                continue
            key = key_of(found[1])
            if not self.marks.state(key) and self.marks.claim(key):
                self.found.append((effort(choice), len(self.found), key, *found))
        return kept or list(choices)

    def compile_all(self, compile_one: Callable[[str, str], str], seconds: float) -> int:
        """Comes out: how many were compiled. What is at work when time is over is waited for."""
        until = time.monotonic() + seconds
        left = deque(sorted(self.found))
        done: list[str] = []

        def work() -> None:
            while time.monotonic() < until:
                try:
                    _, _, key, name, source = left.popleft()
                except IndexError:
                    return
                try:
                    self.marks.note(key, compile_one(name, source))
                    done.append(key)
                except Exception as error:  # its compilers raise whatever they like
                    print(f'{name}: {error}', file=sys.stderr)
                    self.marks.note(key, FAILED)

        threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(done)


def pool_compiler(torch: Any) -> Any:
    """A function that compiles one kernel in Inductor's pool: (name, source) -> its state."""
    made: Any = import_module('torch._inductor.async_compile').AsyncCompile()
    made.wait_pool_ready(POOL_S)
    device = torch.cuda.get_device_properties(0)
    limit = getattr(device, 'shared_memory_per_block_optin', 1 << 40)

    def compile_one(name: str, source: str) -> str:
        kernel, _ = made.triton(kernel_name=name, source_code=source).future.result()
        return TOO_LARGE if shared_bytes(kernel) > limit else OK

    return compile_one


def shared_bytes(kernel: Any) -> int:
    """Bytes of shared memory that a compiled kernel asks for; 0 where it does not say."""
    sizes = [0]
    for result in getattr(kernel, 'compile_results', None) or ():
        inner = getattr(result, 'kernel', None)
        said = getattr(inner, 'shared', None)
        if said is None:
            said = getattr(getattr(inner, 'metadata', None), 'shared', 0)
        sizes.append(int(said or 0))
    return max(sizes)


class _LoweredError(Exception):
    """A network has been lowered, and nothing more was wanted."""


class Contest:
    """The contestant of one network."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.entrant: Entrant | None = None

    def begin(self, request: Mapping[str, Any]) -> dict:
        self.asked = dict(request)
        torch_on_gpu()
        config: Any = import_module('torch._inductor.config')
        config.max_autotune_conv_backends = request['backends']
        config.max_autotune_gemm_backends = request['backends']
        self.marks = Marks(Path(request['folder']))
        self.choose: Callable[[Sequence[Any]], list[Any]] = list
        select: Any = import_module('torch._inductor.select_algorithm')
        select.add_preprocessing_fn(lambda choices: self.choose(choices))
        heuristics: Any = import_module('torch._inductor.runtime.triton_heuristics')
        scheduler: Any = import_module('torch._inductor.scheduler')
        turns = Turns(Path(request['turns']))
        for owner, name in (
            (select.AlgorithmSelectorCache, 'benchmark'),
            (heuristics.CachingAutotuner, 'benchmark_all_configs'),
            (scheduler.Scheduler, 'benchmark_codegened_module'),
        ):
            setattr(owner, name, turns.taken(getattr(owner, name)))
        import_module('torch._inductor.async_compile').AsyncCompile.wait_pool_ready(POOL_S)
        return {'status': 'ok'}

    def fill(self, request: Mapping[str, Any]) -> dict:
        began = time.monotonic()
        torch = torch_on_gpu()
        filler = Filler(self.marks)
        self.choose = filler.keep_libraries
        graph: Any = import_module('torch._inductor.graph').GraphLowering
        codegen = graph.codegen

        def stop(*_: object, **__: object) -> None:
            raise _LoweredError

        graph.codegen = stop
        try:
            _compiled(torch, self.asked, True)
        except Exception as error:
            if _LoweredError.__name__ not in f'{type(error).__name__} {error}':
                raise
        finally:
            graph.codegen = codegen
        rest = float(request['seconds']) - (time.monotonic() - began)
        count = filler.compile_all(pool_compiler(torch), rest)
        return {'status': 'ok', 'compiled': count, 'offered': len(filler.found)}

    def prepare(self, request: Mapping[str, Any]) -> dict:
        torch = torch_on_gpu()
        counts = {'offered': 0, 'taken': 0}

        def ready(choices: Sequence[Any]) -> list[Any]:
            kept = []
            for choice in choices:
                found = triton_source(choice)
                counts['offered'] += found is not None
                if found is None:
                    kept.append(choice)
                elif self.marks.state(key_of(found[1])) == OK:
                    kept.append(choice)
                    counts['taken'] += 1
            return kept or list(choices)

        self.choose = ready
        settings: dict[str, Any] = {'backends': self.asked['backends'], **OPTIONS}
        began = time.perf_counter()
        function, x, freezing = None, (), True
        for freezing in (True, False):
            try:
                function, x = _compiled(torch, self.asked, freezing)
                break
            except Exception as error:  # its compilers raise whatever they like
                if not freezing:
                    raise
                settings['freezing_failed'] = sentence(error)
        spent = time.perf_counter() - began
        end_children()
        settings |= {'freezing': freezing, 'triton_candidates': counts}
        self.ready = torch, function, x, settings
        return {'status': 'ok', 'settings': settings, 'tuning_s': spent}

    def record(self, request: Mapping[str, Any]) -> dict:
        """Its CUDA graph, when nothing else uses the device."""
        torch, function, x, settings = self.ready
        assert function is not None
        self.entrant = replayed(
            torch, 'inductor', lambda: function(*x), {**settings, 'allow_tf32': False}
        )
        return {'status': 'ok', 'settings': self.entrant.settings}

    def answer(self, request: Mapping[str, Any]) -> dict:
        assert self.entrant is not None
        np.save(request['path'], self.entrant.answer())
        return {'status': 'ok'}

    def time(self, request: Mapping[str, Any]) -> dict:
        assert self.entrant is not None
        return {'status': 'ok', 'seconds': self.entrant.time(int(request['repeats']))}


class Turns:
    """A lock that processes share: whatever is timed on the device waits for its turn."""

    def __init__(self, path: Path) -> None:
        self.path, self.depth = path, 0

    def taken(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, within a turn."""

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.depth:
                return function(*args, **kwargs)
            with self.path.open('w') as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self.depth += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self.depth -= 1

        return wrapped


def _compiled(torch: Any, request: Mapping[str, Any], freezing: bool) -> tuple[Any, Any]:
    """(what torch.compile makes of a network, its inputs), called once."""
    config: Any = import_module('torch._inductor.config')
    torch._dynamo.reset()
    config.freezing = freezing
    arguments, precision = request['arguments'], request['precision']
    half_images = precision != 'fp32' and arguments['name'] in zoo.NAMES
    layout = 'channels_last' if half_images else 'contiguous_format'
    arrays = np.load(request['inputs']).values()
    module, x = placed(torch, zoo.torch_module(**arguments), arrays, precision, layout)
    function = torch.compile(module, dynamic=False, options=OPTIONS)
    function(*x)
    torch.cuda.synchronize()
    return function, x


def end_children() -> None:
    """End every process that this one has started: those that compile would disturb what follows.

    They are asked for by their parents' ids until there are none, since a pool starts others.
    """
    for _ in range(20):
        found = _descendants(os.getpid())
        if not found:
            return
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def _descendants(root: int) -> list[int]:
    """Ids of all processes below one, by /proc; those that have ended are not counted."""
    children: dict[int, list[int]] = {}
    for entry in Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text().rpartition(')')[2].split()[:2]
            if state != 'Z':
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def sentence(error: BaseException) -> str:
    return ' '.join(str(error).split())[:200] or type(error).__name__


def main(words: Sequence[str]) -> None:
    """The child; each request has one reply, which says 'failed' and why where it did not work."""
    die_with(int(words[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what libraries print must not mix with replies
    contest = Contest()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(contest, request['do'])(request)
        except TilewrightError as error:
            reply = {
                'status': 'missing' if error.exit_code == 3 else 'failed',
                'message': str(error),
            }
        except Exception as error:  # its compilers raise whatever they like
            reply = {'status': 'failed', 'message': sentence(error)}
        print(json.dumps(reply), file=replies, flush=True)
    end_children()
    os._exit(0)  # pools and drivers that hang at the end have nothing more to say


if __name__ == '__main__':
    main(sys.argv[1:])
