"""A small tuner: `tune.py STORE ROUNDS CANDIDATE...`, as a process that tests may kill.

Prints a JSON line for the worker's process id, for every step, and for every measurement after it
is stored.
"""

import json
import sys
from pathlib import Path

from candidates import GROUP, library

from tilewright.runtime.measure import Measurement, Progress, measure_all
from tilewright.runtime.worker import Worker
from tilewright.store.records import Record, Validators, open_store

VALIDATORS = Validators('some machine', '1', 'some compiler')


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(path: str, rounds: str, *names: str) -> None:
    with open_store(Path(path)) as store, Worker(seed=1) as worker:

        def record(measurement: Measurement) -> None:
            schedule = {'name': measurement.key}
            store.put(
                Record(GROUP.digest, GROUP.label, schedule, measurement.key, 1, VALIDATORS,
                       measurement)
            )  # fmt: skip
            say(stored=measurement.to_json())

        def progress(step: Progress) -> None:
            say(stage=step.stage, key=step.key, worker=worker.pid)

        measure_all(
            GROUP,
            [(name, lambda name=name: library(*name.split(':'))) for name in names],
            worker=worker,
            rounds=int(rounds),
            min_ms=0.1,
            cutoff=float('inf'),
            known=store.known(GROUP.digest, 1, VALIDATORS),
            record=record,
            progress=progress,
        )


if __name__ == '__main__':
    main(*sys.argv[1:])
