"""The page of a network: complete, offline, usable in a real browser; bad input is one sentence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.report.page.compare import compare_pages
from tilewright.report.page.data import Page, page_from_json

BENCH = Path(__file__).parents[2] / 'bench' / 'results' / 'neoverse-n1' / 'network-resnet18.json'
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')
# Before the page's own script: what goes wrong is kept. Behind it: the page is used, as people do.
_WATCH = """<script>window.wrong = [];
addEventListener('error', (e) => wrong.push(String(e.message)));
console.error = console.warn = (...words) => wrong.push(words.join(' '));</script>"""
_USE = """<script>
const results = {};
const nodes = [...document.querySelectorAll('#network svg .hit')];
const last = nodes.at(-1);
last.dispatchEvent(new MouseEvent('click', { bubbles: true }));
results.clicked = document.getElementById('group-' + last.dataset.group).open;
results.said = document.getElementById('said').textContent;
nodes[0].focus();
nodes[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }));
results.moved = document.activeElement === nodes[1];
nodes[1].dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
results.entered = document.getElementById('group-' + nodes[1].dataset.group)
  .classList.contains('on');
const cores = document.getElementById('axis-0');
results.before = document.getElementById('what-if-time').textContent;
cores.value = 0;
cores.dispatchEvent(new Event('input'));
results.after = document.getElementById('what-if-time').textContent;
document.getElementById('what-if-reset').click();
results.reset = document.getElementById('what-if-time').textContent;
const sort = document.querySelectorAll('#groups th button')[2];
const column = () => [...document.querySelectorAll('#groups tbody tr')]
  .map((row) => Number(row.cells[2].textContent));
sort.click();
const down = column();
results.sorted = down.every((value, n) => !n || value <= down[n - 1]);
results.stops = document.querySelectorAll('svg [tabindex="0"]').length;
results.pictures = document.querySelectorAll('svg').length;
results.wide = document.documentElement.scrollWidth <= innerWidth;
results.wrong = wrong;
const shown = document.createElement('pre');
shown.id = 'results';
shown.textContent = JSON.stringify(results);
document.body.append(shown);
</script>"""


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small network with two branches: its page, the page as JSON, and the model."""
    folder = tmp_path_factory.mktemp('report')
    files = {name: folder / f'small.{name}' for name in ('onnx', 'html', 'json')}
    values = [helper.make_tensor_value_info(n, 1, (1, 8, 6, 6)) for n in ('x', 'y')]
    weights = numpy_helper.from_array(np.ones((8, 1, 3, 3), np.float32), 'w')
    nodes = [
        helper.make_node('Conv', ['x', 'w'], ['a'], group=8, pads=[1, 1, 1, 1]),
        helper.make_node('MaxPool', ['a'], ['b'], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node('AveragePool', ['a'], ['c'], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node('Concat', ['b', 'c'], ['d'], axis=1),
        helper.make_node('ReduceMean', ['d'], ['e'], axes=[1], keepdims=1),
        helper.make_node('Sub', ['b', 'e'], ['y']),
    ]
    graph = helper.make_graph(nodes, 'small', values[:1], values[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)]), files['onnx'])
    words = ['--machine', 'i7-9700k', '--threads', '2', '-o', str(files['html'])]
    assert invoke(['report', str(files['onnx']), *words, '--json', str(files['json'])]) == 0
    return files


@pytest.fixture(scope='module')
def page(made: dict[str, Path]) -> Page:
    return page_from_json(json.loads(made['json'].read_text()))


class _Elements(HTMLParser):
    """Tags that are opened and closed, and every attribute."""

    void = frozenset({'meta', 'link', 'input', 'br'})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.given: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.given.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == 'id' and value]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(made: dict[str, Path], page: Page) -> None:
    """Tags close, ids are unique, labels have inputs, and nothing is loaded from elsewhere."""
    text = made['html'].read_text()
    found = _Elements()
    found.feed(text)
    assert not found.open
    assert len(found.ids) == len(set(found.ids))
    for tag, attributes in found.given:
        assert not {'src', 'xlink:href'} & set(attributes) or tag == 'use'
        if tag == 'a' and 'href' in attributes:
            assert str(attributes['href'])[1:] in found.ids
        if tag == 'label':
            assert attributes['for'] in found.ids
        if tag == 'svg':
            assert attributes['aria-label']
    assert {address.split('/')[2] for address in re.findall(r'https?://[^"\')]*', text)} <= {
        'www.w3.org'
    }
    assert 'prefers-color-scheme: dark' in text
    assert not re.search(r'#0[1-5]0[1-6]0[1-6]', text)
    for number, group in enumerate(page.groups):
        assert f'id="group-{number}"' in text
        assert group.label in text
    assert len(text) < 1_000_000


def test_what_a_page_shows_is_consistent(page: Page) -> None:
    """Parts add up, tasks follow what they read, and the grid's own machine is the prediction."""
    assert sum(len(g.tasks) for g in page.groups) == len(page.tasks)
    for group in page.groups:
        assert sum(ms for _, ms in group.parts) == pytest.approx(group.predicted_ms, rel=1e-3)
        assert group.bound_ms <= group.predicted_ms * (1 + 1e-9)
    for number, task in enumerate(page.tasks):
        assert all(before < number for before in task.after)
    assert any(len(task.after) > 1 for task in page.tasks)
    grid = page.what_if
    assert grid is not None
    at = 0
    for axis in grid['axes']:
        at = at * len(axis['values']) + axis['now']
    assert grid['values'][at][0] == pytest.approx(page.predicted_ms, rel=1e-3)
    names = [axis['name'] for axis in grid['axes']]
    assert names == ['cores', 'caches', 'memory bandwidth', 'batch', 'precision']
    more_batch = at + len(grid['axes'][4]['values'])
    assert grid['values'][at][0] < grid['values'][more_batch][0]


def test_a_page_goes_through_json(page: Page) -> None:
    again = page_from_json(json.loads(json.dumps(page.to_json())))
    assert again == page


def test_plans_and_traces_are_shown(made: dict[str, Path], page: Page, tmp_path: Path) -> None:
    """A file of `optimize --json`, and times that `run --trace` wrote."""
    plans, out = tmp_path / 'plans.json', tmp_path / 'plans.html'
    spec = 'mb1ic8ih6oc8oh6kh3ph1'
    words = ['--no-measure', '--machine', 'i7-9700k', '--json', str(plans)]
    assert invoke(['optimize', spec, *words]) == 0
    assert invoke(['report', str(plans), '-o', str(out)]) == 0
    assert spec in out.read_text()
    events = [{'name': t.name, 'dur': 7.0, 'ts': 0} for t in page.tasks]
    trace, shown = tmp_path / 'trace.json', tmp_path / 'shown.json'
    trace.write_text(json.dumps({'traceEvents': events}))
    words = ['-o', str(out), '--trace', str(trace), '--json', str(shown)]
    assert invoke(['report', str(made['json']), *words]) == 0
    timed = json.loads(shown.read_text())
    assert timed['total_ms'] == pytest.approx(7e-3 * len(events))
    assert all(g['measured_ms'] == pytest.approx(7e-3) for g in timed['groups'])


def test_a_gpu_has_a_page(tmp_path: Path) -> None:
    out = tmp_path / 'gpu.html'
    words = ['--machine', 'h200', '-o', str(out)]
    assert invoke(['report', 'mb1ic8ih6oc8oh6kh3ph1', *words]) == 0
    assert 'multiprocessors' in out.read_text()


def test_two_runs_are_compared(made: dict[str, Path], page: Page, tmp_path: Path) -> None:
    """Before and after, and ours and the peers of a file of bench."""
    out = tmp_path / 'both.html'
    assert (
        invoke(['report', str(made['json']), '--compare', str(made['json']), '-o', str(out)]) == 0
    )
    assert 'this run' in out.read_text()
    found = compare_pages(page, page)
    assert found.who == ('this run', 'the other')
    assert all(mine == pytest.approx(its) for _, (mine, its) in found.rows)
    named = tmp_path / 'named.json'
    named.write_text(json.dumps(json.loads(made['json'].read_text()) | {'title': 'resnet18'}))
    assert invoke(['report', str(named), '--compare', str(BENCH), '-o', str(out)]) == 0
    text = out.read_text()
    assert 'openvino' in text
    assert 'times as fast' in text


@pytest.mark.parametrize(
    ('content', 'sentence'),
    [
        ('{"kind"', 'is not JSON'),
        ('[1]', 'holds a list'),
        ('{"layers": []}', 'has no plans'),
        ('{"layers": [{"plan": {}}]}', 'cannot be read'),
        ('{"kind": "tilewright report", "groups": []}', 'cannot be read'),
        ('{"kind": "tilewright report", "groups": 3, "tasks": []}', 'cannot be read'),
    ],
)
def test_a_broken_file_is_one_sentence(
    content: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / 'broken.json', tmp_path / 'out.html'
    path.write_text(content)
    assert invoke(['report', str(path), '-o', str(out)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count('\n') == 1
    assert not out.exists()


def test_other_bad_input_is_one_sentence(
    made: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A missing package, a folder that is not there, traces and comparisons of something else."""
    empty = tmp_path / 'empty.json'
    empty.write_text('{"traceEvents": [], "verb": "bench", "layers": []}')
    for words, code, sentence in (
        (['missing.json'], 2, 'cannot be read'),
        ([str(made['json']), '-o', str(tmp_path / 'no' / 'x.html')], 2, 'not a directory'),
        ([str(made['json']), '--trace', str(empty)], 2, 'has no time for task'),
        ([str(made['json']), '--compare', str(empty)], 2, 'give a file of the same'),
        (['resnet18,alexnet'], 2, 'a page shows one'),
    ):
        given = words if '-o' in words else [*words, '-o', str(tmp_path / 'x.html')]
        assert invoke(['report', *given]) == code
        assert sentence in capsys.readouterr().err
    monkeypatch.setattr('tilewright.report.pictures.importlib.util.find_spec', lambda _: None)
    assert invoke(['report', str(made['json']), '-o', str(tmp_path / 'x.html')]) == 3
    assert 'install tilewright[report]' in capsys.readouterr().err


def test_notebooks_show_a_short_form(made: dict[str, Path]) -> None:
    plan = tw.optimize(tw.conv2d(c=8, h=6, w=6, k=8, r=3, s=3), 'i7-9700k', 2, False)
    text = plan._repr_html_()
    assert text.count('<tr>') == 1 + len(plan.candidates)
    assert plan.group.label in text
    net = tw.compile(str(made['onnx']), threads=1)
    assert isinstance(net, tw.Network)
    found = net._repr_html_()
    assert found.count('<tr>') == 1 + len(net.tasks)
    assert 'predicted ms' in found


@pytest.mark.skipif(CHROMIUM is None, reason='chromium is not installed: apt install chromium')
def test_the_page_works_in_a_browser(made: dict[str, Path], page: Page, tmp_path: Path) -> None:
    """Loaded, clicked, driven by keyboard and sliders in chromium, the console staying empty."""
    text = made['html'].read_text()
    text = text.replace('<head>', f'<head>{_WATCH}', 1).replace('</body>', f'{_USE}</body>', 1)
    used, picture = tmp_path / 'used.html', tmp_path / 'page.png'
    used.write_text(text)
    common = [
        str(CHROMIUM), '--headless', '--no-sandbox', '--disable-gpu', '--window-size=1280,1600',
        f'--user-data-dir={tmp_path / "profile"}', '--enable-logging=stderr',
    ]  # fmt: skip
    done = subprocess.run(
        [*common, '--dump-dom', used.as_uri()], capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert ':CONSOLE' not in done.stderr
    shown = re.search(r'<pre id="results">(.*?)</pre>', done.stdout, re.DOTALL)
    assert shown is not None
    results = json.loads(shown[1].replace('&gt;', '>').replace('&lt;', '<').replace('&amp;', '&'))
    assert results['wrong'] == []
    for what in ('clicked', 'moved', 'entered', 'sorted', 'wide'):
        assert results[what], what
    assert results['said'].startswith('Selected')
    assert results['before'] == results['reset'] != results['after']
    assert results['stops'] == results['pictures'] == 4
    subprocess.run(
        [*common, '--hide-scrollbars', f'--screenshot={picture}', made['html'].as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    assert picture.read_bytes().startswith(b'\x89PNG')
    assert picture.stat().st_size > 50_000
