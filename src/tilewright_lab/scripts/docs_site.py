"""Pages of the documentation that follow from the sources; a hook of MkDocs (mkdocs.yml).

Goes in: README.md, the error tree of `tilewright.errors`, and every place that raises one. Comes
out: the home page, a page for each exit code and one for each error with the sentences it is raised
with, so that a search for a message finds its remedy.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tilewright
from tilewright import errors
from tilewright.version import VERSION

PACKAGE = Path(tilewright.__file__).parent
ROOT = PACKAGE.parents[1]
CODES = {
    0: 'done',
    1: 'a check failed, or a defect of ours',
    2: 'bad input',
    3: 'something that is needed is missing',
    130: 'interrupted',
}


def classes() -> dict[str, type[errors.TilewrightError]]:
    """The error tree by name, the root first."""
    found = vars(errors).items()
    return {
        name: kind
        for name, kind in found
        if isinstance(kind, type) and issubclass(kind, errors.TilewrightError)
    }


def sentences() -> dict[str, list[tuple[str, str]]]:
    """Error -> (module, sentence) wherever it is raised; values appear as {names}."""
    known = classes()
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in known}
    for path in sorted(PACKAGE.rglob('*.py')):
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            call = node.exc if isinstance(node, ast.Raise) else None
            if (
                not isinstance(call, ast.Call)
                or not isinstance(call.func, ast.Name)
                or (call.func.id not in known or not call.args)
            ):
                continue
            text = _template(call.args[0])
            if ' ' in text:
                found[call.func.id].append((where, text))
    return found


def _template(node: ast.expr) -> str:
    """The text of a string, with expressions in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return ''.join(map(_template, node.values))
    if isinstance(node, ast.FormattedValue):
        return '{' + ast.unparse(node.value) + '}'
    return ''


def pages() -> Iterator[tuple[str, str]]:
    """(path below docs, Markdown) of every page that is made."""
    known, said = classes(), sentences()
    yield 'index.md', home((ROOT / 'README.md').read_text())
    rows = [
        f'| [{name}]({name}.md) | [{kind.exit_code}](exit-{kind.exit_code}.md) | {_doc(kind)} |'
        for name, kind in known.items()
    ]
    codes = [f'| [{code}](exit-{code}.md) | {text} |' for code, text in CODES.items()]
    yield 'errors/index.md', '\n'.join(
        [
            f'# Errors and exit codes of Tilewright {VERSION}', '',
            'Every error is one sentence with the value, the limit and the remedy. In Python all '
            'of them are `tilewright.TilewrightError`s.', '',
            '| exit code | meaning |', '|---|---|', *codes, '',
            '| error | exit code | meaning |', '|---|---|---|', *rows, '',
        ]
    )  # fmt: skip
    for code, text in CODES.items():
        names = [name for name, kind in known.items() if kind.exit_code == code]
        listed = [f'- [{name}]({name}.md): {_doc(known[name])}' for name in names]
        yield (
            f'errors/exit-{code}.md',
            '\n'.join(
                [f'# Exit code {code}', '', f'{text[0].upper()}{text[1:]}.', '', *listed, '']
            ),
        )
    for name, kind in known.items():
        above = kind.__mro__[1].__name__
        body = [f'# {name}', '', f'{_doc(kind)} Exit code [{kind.exit_code}]'
                f'(exit-{kind.exit_code}.md).', '']  # fmt: skip
        if above in known:
            body += [f'It is a kind of [{above}]({above}.md).', '']
        if said[name]:
            body += ['| sentence | raised in |', '|---|---|']
            body += [f'| {_cell(text)} | `{where}` |' for where, text in said[name]]
        yield f'errors/{name}.md', '\n'.join([*body, ''])


def home(text: str) -> str:
    """README as a page of docs/: links to pages are kept, those to other files are plain words."""

    def link(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        page = target.removeprefix('docs/').partition('#')[0]
        if target.startswith('http') or not page:
            return found[0]
        exists = target.startswith('docs/') and (ROOT / 'docs' / page).is_file()
        return f'[{words}]({target.removeprefix("docs/")})' if exists else words

    return re.sub(r'\[([^\]]*)\]\(([^)]*)\)', link, text)


def _doc(kind: type) -> str:
    return ' '.join((kind.__doc__ or '').split())


def _cell(text: str) -> str:
    return ' '.join(text.split()).replace('|', '\\|').replace('<', '&lt;')


def on_config(config: Any) -> Any:
    """The version is in the name, and in the folder: sites of several versions stand beside each
    other.
    """
    config['site_name'] = f'Tilewright {VERSION}'
    config['site_dir'] = str(Path(config['site_dir']) / VERSION)
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files
