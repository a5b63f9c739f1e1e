"""`tilewright export`: a network as C that stands alone, in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tilewright.cli.compile import model_of, network_json, shapes_for, summary
from tilewright.cli.optimize import check_early
from tilewright.cli.output import Bar, Output
from tilewright.graph.ranges import find_ranges
from tilewright.network.export import export
from tilewright.precision.mix import mix_text


def run(
    model: str,
    out: Output,
    *,
    output: Path,
    name: str | None,
    tune: str,
    trials: int | None,
    shapes: Sequence[str],
    max_rel_err: float,
    threads: int | None,
    seed: int | None,
    precision: str | None = None,
    accuracy: str | None = None,
    samples: Path | None = None,
) -> int:
    """Compile a model and write it as C; comes out: the exit code."""
    check_early(None, threads, max_rel_err=max_rel_err, seed=seed)
    begin = time.perf_counter()
    sizes = shapes_for(model, shapes)
    known = model_of(model, seed, ranged=find_ranges(sizes) is not None)
    with Bar(1) as bar:
        bar.begin(model)
        made = export(
            known, output, name=name, tune=tune, trials=trials,
            shapes=sizes, threads=threads, max_rel_err=max_rel_err, precision=precision,
            accuracy=accuracy, samples=samples, progress=bar.report,
        )  # fmt: skip
        bar.finish()
    seconds = time.perf_counter() - begin
    sizes = {file: (made.folder / file).stat().st_size for file in made.files}
    mix = made.network.mix
    out.say(summary(made.network))
    if mix is not None:
        out.say(mix_text(mix))
    for file, size in sizes.items():
        out.say(f'wrote {made.folder / file} ({size / 2**20:.2f} MiB)')
    out.say(f'done in {seconds:.1f} s; build and test it: make -C {made.folder} all check')
    out.write(
        {
            'model': model,
            'output': str(made.folder),
            'name': made.name,
            'files': sizes,
            'tune': tune,
            'precision': precision,
            'seconds': seconds,
            'seed': seed,
            'network': network_json(made.network),
            'mix': mix,
        }
    )
    return 0 if mix is None or mix['reached'] else 1
