"""What was tuned: the fastest measured choice of a group. Layers, benches and networks share it.

Goes in: a group, where it was measured, the winner and how many candidates were timed. Comes out:
that winner, for the same group and for every group with the same core (ops/core.py), as long as the
same version of the package asks, and no more candidates are wanted than were timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.schedule.choice import Choice
from tilewright.store import choices


@dataclass(frozen=True, slots=True)
class Where:
    """What a tuned result depends on beside the group.

    machine   what identifies the CPU, or the GPU and its compiler, as JSON
    threads   of a CPU; 0 on a GPU
    how       whatever else decided the search: model, strategy, seed; empty for the default
    """

    target: str
    machine: Mapping[str, Any]
    threads: int
    max_rel_err: float
    algorithm: str = 'auto'
    how: Mapping[str, Any] = field(default_factory=dict)

    def key(self, digest: str) -> str:
        also = () if self.target == 'cpu' else choices.GPU_DECIDES
        return choices.key_of(
            {
                'tuned': digest, 'target': self.target, 'machine': dict(self.machine),
                'threads': self.threads, 'max_rel_err': self.max_rel_err,
                'algorithm': self.algorithm, 'how': dict(self.how),
            },
            also,
        )  # fmt: skip


def find(group: Group, where: Where, trials: int, exact: bool = False) -> Choice | None:
    """The fastest choice that is known of a group, or of its core; None if it must be measured.

    `exact`: of this very group alone, where what stands behind its sums decides as well.
    """
    for digest in _digests(group, where, exact):
        kept = choices.recall(where.key(digest))
        try:
            if kept is not None and int(kept['trials']) >= trials:
                return Choice.from_json(kept['choice'])
        except (TilewrightError, KeyError, TypeError, ValueError):
            continue
    return None


def remember(group: Group, where: Where, choice: Choice, trials: int, exact: bool = False) -> None:
    """Store the winner of `trials` timed candidates, for the group and for its core."""
    answer = {'trials': trials, 'choice': choice.to_json()}
    for digest in _digests(group, where, exact):
        choices.keep(where.key(digest), answer)


def _digests(group: Group, where: Where, exact: bool) -> tuple[str, ...]:
    """The group's own, and that of its core; on a GPU stages before the products decide, too."""
    if exact:
        return (group.digest,)
    decisive = core(group, front=where.target != 'cpu')
    return tuple(dict.fromkeys((group.digest, decisive.digest)))
