"""Our own contestant on networks: `python -m tilewright_lab.cli.network_contestant tilewright PID`.

It compiles the model in the process that is timed, as the peers do, and answers the requests of
`bench.network_process`. It is above that package, since compiling is.
"""

from __future__ import annotations

import sys

from tilewright.network.compile import compile as compile_network
from tilewright.runtime.cpu.kernel import pool
from tilewright.runtime.measure import Progress
from tilewright_lab.peers import process as peer_process
from tilewright_lab.peers.contestants import SPIN_US
from tilewright_lab.peers.network_process import NetworkServer
from tilewright_lab.peers.networks import Contestants, NetworkJob, NetworkVariant, Variants
from tilewright_lab.peers.peers import OURS


def tilewright_variants() -> Variants:
    yield {'TILEWRIGHT_SPIN_US': SPIN_US}, _tilewright


def _tilewright(job: NetworkJob) -> NetworkVariant:
    """`options` of the job are those of `tilewright.compile`: tune, trials, max_rel_err."""
    pool().tw_pool_spin(SPIN_US)
    network = compile_network(
        job.model,
        threads=job.threads,
        shapes={name: array.shape for name, array in job.inputs.items()},
        check=False,  # answers are compared with the peers'
        progress=lambda state: _tell(job, state),
        **job.options,
    )
    schemas: dict[str, int] = {}
    for task in network.tasks:
        schema = network.kernels[task.digest].schedule.schema
        schemas[schema] = schemas.get(schema, 0) + 1
    said = ', '.join(f'{count} x {schema}' for schema, count in sorted(schemas.items()))
    return NetworkVariant(
        job, lambda: network.run(job.inputs, job.outputs), lambda: job.outputs, lambda: said
    )


def _tell(job: NetworkJob, state: Progress) -> None:
    job.progress(state.stage, state.done, state.total)


CONTESTANTS: Contestants = {OURS: (tilewright_variants, ())}


class OurServer(NetworkServer):
    """The child of our own contestant."""

    contestants = CONTESTANTS


if __name__ == '__main__':
    peer_process.main(sys.argv[1:], OurServer)
