"""Every error and exit code has a page, README is the home page, and the site has a search."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tilewright.version import VERSION
from tilewright_lab.scripts import docs_site

ROOT = Path(__file__).parents[2]


def test_every_error_has_a_page_with_its_sentences() -> None:
    pages = dict(docs_site.pages())
    for name, kind in docs_site.classes().items():
        page = pages[f'errors/{name}.md']
        assert f'exit-{kind.exit_code}.md' in page
        assert f'[{name}]({name}.md)' in pages['errors/index.md']
    assert 'no scheduler answers at {where}' in pages['errors/MissingError.md']
    assert '[InputError](InputError.md)' in pages['errors/exit-2.md']


def test_links_of_the_home_page_are_pages() -> None:
    text = 'a [page](docs/store.md#x), a [folder](x), the [web](https://a.b), [no](docs/no.md)'
    made = docs_site.home(text)
    assert made == 'a [page](store.md#x), a folder, the [web](https://a.b), no'


def test_every_page_of_docs_is_in_the_navigation() -> None:
    words = (ROOT / 'mkdocs.yml').read_text()
    assert [p.name for p in (ROOT / 'docs').glob('*.md') if f' {p.name}\n' not in words] == []


@pytest.mark.slow
@pytest.mark.skipif(
    util.find_spec('mkdocs') is None, reason="mkdocs is not installed: pip install -e '.[docs]'"
)
def test_the_site_is_built_with_a_search(tmp_path: Path) -> None:
    words = ['-m', 'mkdocs', 'build', '--strict', '--quiet', '--site-dir', str(tmp_path)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    index = json.loads((tmp_path / VERSION / 'search' / 'search_index.json').read_text())
    found = {entry['location'] for entry in index['docs']}
    assert {'fleet/', 'migration/', 'errors/MissingError/'} <= found
