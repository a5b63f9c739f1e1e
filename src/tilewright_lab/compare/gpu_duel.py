"""Ours beside others on one GPU, in one process: prepared, checked, timed in turns.

`python -m tilewright_lab.compare.gpu_duel TARGET DEVICE PARENT` is a session of
runtime/gpu/session.py with one more request:

    {"do": "duel", "ours": [{"schedule": {...}, "files": [...]}], "peers": {"cudnn":
     "tilewright_lab.peers.gpu_layers:cudnn"}, "paths": [...], "rounds": 9, "repeats": 3}

Peers are functions of this session and our first schedule (peers/contestants.py), which are looked
for in `paths` too. All are replayed
from CUDA graphs (OpenCL: from one batch of launches), inputs and weights on the device, caches as
the call before left them. Every answer is judged against float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.errors import MissingError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.runtime.gpu.device import Device, NDArray
from tilewright.runtime.gpu.session import TARGETS, Session, load, serve, unload
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.peers.contestants import Entrant, imported
from tilewright_lab.peers.torch_graph import library_versions


class DuelSession(Session):
    """A session that also times others."""

    def duel(
        self, ours: list[dict], peers: dict[str, str], paths: list[str], rounds: int, repeats: int
    ) -> dict:
        """Interleaved rounds (A B C A B C ...) of everything that could be prepared."""
        sys.path += [path for path in paths if path not in sys.path]
        entrants: list[Entrant] = []
        failed: list[dict] = []
        makers: list[tuple[str, Callable[[], list[Entrant]]]] = [
            (f'ours/{number}', lambda n=number, o=one: [self.ours(f'ours/{n}', o)])
            for number, one in enumerate(ours)
        ]
        first = ours[0] if ours else None
        makers += [(name, lambda f=f: imported(f)(self, first)) for name, f in peers.items()]
        for name, make in makers:
            try:
                entrants += make()
            except (TilewrightError, RuntimeError) as error:  # the latter is PyTorch's
                kind = 'missing' if isinstance(error, MissingError) else 'failed'
                failed.append({'name': name, 'status': kind, 'message': str(error)})
        try:
            answers = {}
            for one in entrants:
                answers[one.name] = one.answer()
                one.verdict = self.judge.verdict(answers[one.name])
                if one.name in TARGETS and 'ours/0' in answers:
                    one.verdict['difference_from_ours'] = _difference(
                        answers[one.name], answers['ours/0']
                    )
            answers.clear()
            for _ in range(rounds):
                for one in entrants:
                    if one.verdict['status'] == 'ok' or one.name.startswith('cudnn_tf32'):
                        one.turns.append(one.time(repeats))
        finally:
            for one in entrants:
                one.close()
        return {
            'status': 'ok',
            'contestants': [one.to_json() for one in entrants] + failed,
            'libraries': library_versions() if 'torch' in sys.modules else {},
        }

    def ours(self, name: str, one: dict) -> Entrant:
        """A schedule of ours on this session's device."""
        return self.through(self.device, name, one, self.shared)

    def through(
        self, device: Device, name: str, one: dict, shared: Mapping[str, NDArray]
    ) -> Entrant:
        """A schedule of ours on a device, on arrays that are there."""
        schedule = GpuSchedule.from_json(one['schedule'])
        loaded = load(device, generate(self.problem, schedule), shared, one['files'])

        def answer() -> np.ndarray:
            out = shared[self.problem.output.name]
            device.write(out, self.poison)
            for call in loaded.calls:
                device.launch(call)
            return device.download(out)

        return Entrant(
            name,
            lambda repeats: device.time(loaded.calls, repeats),
            answer,
            {'schedule': schedule.to_json()},
            close=lambda: unload(device, loaded),
        )


def _difference(got: np.ndarray, ours: np.ndarray) -> float | None:
    """The largest difference between two runtimes, as a share of the largest output."""
    with np.errstate(all='ignore'):
        share = float(np.abs(got - ours).max() / np.abs(ours).max())
    return share if np.isfinite(share) else None


def median_us(contestants: Sequence[Mapping], prefix: str) -> float | None:
    """The fastest of the contestants of one name, of those whose answer was right."""
    found = [
        c['median_us'] for c in contestants
        if c['name'].split('/')[0] == prefix and c.get('median_us') is not None
    ]  # fmt: skip
    return min(found, default=None)


if __name__ == '__main__':
    serve(DuelSession, sys.argv[1:])
