"""Networks on a GPU in the versions of DeepCuts (PLDI'21): what files of `tilewright bench` hold.

Goes in: files that `tilewright bench NETWORKS --target cuda` wrote (docs/reproduce.md has the
commands). Comes out: for each network and batch size a `Workload`: our time in each version, the
seconds that it took to compile, and the times of peers. What nobody measured is None.

The paper has three versions: not fused, fused, and fused with cuDNN where that is faster. Fusion is
here of two kinds, so that there are four. The deck prints means alone; its bars by model and batch
size are pictures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.graph.passes import default_fusion
from tilewright_lab.compare.results import geometric_mean
from tilewright_lab.figures.cnnopt import data_name
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import canvas
from tilewright_lab.peers.contestants import OURS

RESULTS = Path(__file__).parents[3] / 'bench' / 'results' / 'h200'
PATTERN = 'deepcuts-*.json'
FUSED = ('elementwise', 'all')
# Version -> (what --fuse may be, whether libraries may compete).
VERSIONS = {
    'not fused': (('none',), False),
    'elementwise': (('elementwise',), False),
    'all': (('all',), False),
    'with libraries': (FUSED, True),
}
PEERS = ('torch', 'inductor')
NETWORKS = ('resnet50', 'densenet121', 'inception_v3', 'mobilenet_v2')
BATCHES = (1, 16)
NONE = '-'


@dataclass(frozen=True, slots=True)
class Version:
    """One network in one version: the fastest that was right, and what compiling it took.

    seconds   the longest compilation among files with an empty cache directory, else of all files
    cold      whether the cache directory was empty
    tune      how the fastest was chosen: 'model' or 'measure'
    stages    seconds of the stages of that compilation, where the file has them
    """

    us: float
    tune: str
    kernels: int | None
    seconds: float | None
    cold: bool
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Workload:
    """A network at a batch size: by version what was measured, by peer its least time, in us."""

    network: str
    batch: int
    versions: Mapping[str, Version]
    peers: Mapping[str, float]
    tuning_s: Mapping[str, float]

    @property
    def name(self) -> str:
        return f'{self.network}, batch {self.batch}'

    def us(self, *names: str) -> float | None:
        """The least time of these versions."""
        return min((self.versions[n].us for n in names if n in self.versions), default=None)

    @property
    def best_peer(self) -> float | None:
        return min(self.peers.values(), default=None)

    def ratio(self, *names: str) -> float | None:
        """The best peer over these versions."""
        return over(self.best_peer, self.us(*names))

    def to_json(self) -> dict[str, Any]:
        return {
            'network': self.network, 'batch': self.batch,
            'ours': {
                name: {
                    'us': one.us, 'tune': one.tune, 'kernels': one.kernels, 'seconds': one.seconds,
                    'cold': one.cold, 'stages_s': dict(one.stages),
                    'best_peer_over_ours': self.ratio(name),
                }
                for name, one in self.versions.items()
            },
            'peers_us': dict(self.peers), 'peers_tuning_s': dict(self.tuning_s),
        }  # fmt: skip


def over(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of those that are there."""
    return geometric_mean([value for value in values if value is not None])


def workloads(options: Options) -> tuple[list[Workload], dict[str, Any]]:
    """(the eight workloads, and others that were measured; what all of them have in common)."""
    folder = options.data or RESULTS
    files = [folder] if folder.is_file() else sorted(folder.glob(PATTERN))
    read = [_read(file) for file in files]
    if options.gpu is not None:
        wanted_name = options.gpu.name.lower()
        read = [said for said in read if wanted_name in said['device'].lower()]
    if not read:
        raise InputError(
            f'{options.name} finds no {PATTERN} of {options.gpu.name if options.gpu else "a GPU"} '
            f'in {folder.name}; measure as docs/reproduce.md says, and name the folder by --data'
        )
    devices = sorted({said['device'] for said in read})
    if len(devices) > 1:
        raise InputError(
            f'{folder.name} has files of {" and ".join(devices)}; choose one by --machine'
        )
    rows = [(n['name'], n['batch'], said, n) for said in read for n in said['networks']]
    wanted = [(network, batch) for batch in BATCHES for network in NETWORKS]
    wanted += [key for name, batch, *_ in rows if (key := (name, batch)) not in wanted]
    found = [
        _workload(*key, [(said, n) for name, batch, said, n in rows if (name, batch) == key])
        for key in dict.fromkeys(wanted)
    ]
    ahead = [_ahead(said.get('inductor', ())) for said in read]
    facts = {
        'figure': options.name, 'device': devices[0],
        'data': data_name(options) or f'{RESULTS.parent.name}/{RESULTS.name}',
        'files': [file.name for file in files], 'inductor_ahead_s': max(ahead, default=0.0),
    }  # fmt: skip
    return found, facts


def _ahead(compiled: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> float:
    """Seconds that Inductor compiled before its networks were timed; files that were put together
    have one such record a run.
    """
    runs = [compiled] if isinstance(compiled, Mapping) else compiled
    return sum(one['seconds'] for one in runs)


def _read(file: Path) -> dict[str, Any]:
    try:
        said = json.loads(file.read_text())
        assert isinstance(said['device'], str)
        assert all({'name', 'batch', 'contestants'} <= n.keys() for n in said['networks'])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise InputError(
            f'{file.name} is not what tilewright bench NETWORKS --target cuda --json writes '
            f'({error!r}); leave it out'
        ) from None
    return said


def version_of(said: Mapping[str, Any]) -> str | None:
    """The version that a file is of; None for one of none of them.

    Files from before --fuse and --libraries say nothing of them: they have what was the default.
    """
    fuse = said.get('fuse', default_fusion('cuda'))
    compete = said.get('libraries', 'none') != 'none'
    found = (name for name, (kinds, may) in VERSIONS.items() if fuse in kinds and may == compete)
    return next(found, None)


def _workload(network: str, batch: int, rows: Sequence[tuple[dict, dict]]) -> Workload:
    timed = [
        (version_of(said), bool(said.get('cold')), one) for said, n in rows for one in _timed(n)
    ]
    versions = {}
    for name in VERSIONS:
        mine = [(cold, one) for v, cold, one in timed if v == name and _who(one) == OURS]
        if mine:
            versions[name] = _version(mine)
    peers, tuning_s = {}, {}
    for peer in PEERS:
        theirs = [one for _, _, one in timed if _who(one) == peer]
        if theirs:
            best = min(theirs, key=lambda one: one['median_us'])
            peers[peer] = best['median_us']
            if best.get('tuning_s'):
                tuning_s[peer] = best['tuning_s']
    return Workload(network, batch, versions, peers, tuning_s)


def _version(found: Sequence[tuple[bool, dict]]) -> Version:
    _, best = min(found, key=lambda pair: pair[1]['median_us'])
    tune = best['settings']['tune']
    spent = [
        (cold, one['tuning_s'], one['settings'].get('stages_s', {}))
        for cold, one in found
        if one['settings']['tune'] == tune and one.get('tuning_s') is not None
    ]
    cold, seconds, stages = max(spent, key=lambda one: one[:2], default=(False, None, {}))
    kernels = best['settings'].get('kernels')
    return Version(best['median_us'], tune, kernels, seconds, cold, stages)


def _timed(network: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for one in network['contestants']:
        if one.get('status') == 'ok' and one.get('median_us'):
            yield one


def _who(one: Mapping[str, Any]) -> str:
    return one['name'].partition('/')[0]


def cell(value: float | None, digits: int, mark: str = '') -> str:
    return NONE if value is None else f'{value:.{digits}f}{mark}'


def bars(found: Mapping[str, Any], field: str, title: str) -> Any:
    """A figure with a bar for each version of every workload, as high as a field of it."""
    rows = found['workloads']
    figure = canvas(10, 4)
    axis = figure.subplots()
    width = 0.8 / len(VERSIONS)
    for number, name in enumerate(VERSIONS):
        heights = [w['ours'].get(name, {}).get(field) or 0.0 for w in rows]
        axis.bar([i + width * number for i in range(len(rows))], heights, width, label=name)
    labels = [f'{w["network"]}\nbatch {w["batch"]}' for w in rows]
    axis.set_xticks([i + 0.4 - width / 2 for i in range(len(rows))], labels, fontsize=7)
    axis.set_ylabel(title)
    axis.legend(ncols=len(VERSIONS))
    return figure
