"""How large the product is, and what its lines are.

Goes in: this checkout, or a commit of it. Comes out: for each package of `src/tilewright` its
files, its lines of Python, and how many of them are statements; the rest are docstrings, comments,
imports and blank lines. docs/architecture.md has the table and what follows from it.

    python -m tilewright_lab.scripts.lines
    python -m tilewright_lab.scripts.lines --commit fff2022
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[3]
PRODUCT = PurePosixPath('src/tilewright')
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources(commit: str | None) -> Iterator[tuple[PurePosixPath, str]]:
    """(path inside the product, text) of every Python file, of this checkout or of a commit."""
    if commit is None:
        for path in sorted((ROOT / PRODUCT).rglob('*.py')):
            yield PurePosixPath(path.relative_to(ROOT / PRODUCT).as_posix()), path.read_text()
        return
    packed = subprocess.run(
        ['git', 'archive', commit, str(PRODUCT)], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith('.py') else None
            if file is not None:
                yield PurePosixPath(member.name).relative_to(PRODUCT), file.read().decode()


def kinds(text: str) -> Counter[str]:
    """Lines of a module by what they are: statements, docstrings, imports, comments, blank ones."""
    is_doc, is_import = set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            is_doc.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            is_import.update(range(node.lineno, (node.end_lineno or 0) + 1))
    found = Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            found['blank'] += 1
        elif number in is_doc:
            found['docstring'] += 1
        elif number in is_import:
            found['import'] += 1
        else:
            found['comment' if line.lstrip().startswith('#') else 'statement'] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description='lines of the product by package')
    parser.add_argument('--commit', help='of a commit instead of this checkout')
    asked = parser.parse_args()
    by_package: dict[str, Counter[str]] = {}
    files = Counter[str]()
    for path, text in sources(asked.commit):
        package = path.parts[0] if len(path.parts) > 1 else '(modules)'
        by_package.setdefault(package, Counter()).update(kinds(text))
        files[package] += 1
    print(f'{"package":12} {"files":>6} {"lines":>8} {"statements":>11}')
    for package, found in sorted(by_package.items(), key=lambda item: -item[1].total()):
        print(f'{package:12} {files[package]:6} {found.total():8,} {found["statement"]:11,}')
    whole = sum(by_package.values(), Counter[str]())
    print(f'{"all":12} {files.total():6} {whole.total():8,} {whole["statement"]:11,}')


if __name__ == '__main__':
    main()
