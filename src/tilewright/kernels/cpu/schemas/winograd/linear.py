"""Products of a constant matrix and a vector of values as straight-line C.

Goes in: a matrix of fractions and the names of its inputs and outputs. Comes out: C statements, and
how many vector instructions they take. Symmetric points give rows (B^T) or columns (A^T) that
differ in signs only: their even and odd parts are computed once and added or subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tilewright.ops.winograd_matrices import Matrix


def number(value: Fraction | float) -> str:
    return f'{float(value)!r}f'


def combination(terms: Sequence[tuple[Fraction | float, str]]) -> str:
    """A C expression for a weighted sum, plain terms first so that the rest become FMAs."""
    kept = [(c, x) for c, x in terms if c]
    if not kept:
        return '0.0f * ' + terms[0][1]
    kept.sort(key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    text = ''
    for coefficient, name in kept:
        sign = '-' if coefficient < 0 else '+'
        size = abs(coefficient)
        body = name if size == 1 else f'{number(size)} * {name}'
        text += f' {sign} {body}' if text else (f'-{body}' if sign == '-' else body)
    return text


def linear(
    matrix: Matrix, inputs: Sequence[str], outputs: Sequence[str], kind: str, prefix: str
) -> list[str]:
    """C declarations `kind output = ...` that compute outputs = matrix * inputs."""
    lines: list[str] = []
    columns = list(range(len(inputs)))
    rows: list[list[tuple[Fraction, str]]] = [[] for _ in matrix]
    used: set[int] = set()
    alike = _alike([[row[a] for row in matrix] for a in columns])
    for a in columns:
        if a in used:
            continue
        partner = next((b for b in alike[a] if b > a and _mirrored(matrix, a, b)), None)
        if partner is None or partner in used:
            for i, row in enumerate(matrix):
                rows[i].append((row[a], inputs[a]))
            continue
        used |= {a, partner}
        names = f'{prefix}s{a}', f'{prefix}d{a}'
        lines.append(f'const {kind} {names[0]} = {inputs[a]} + {inputs[partner]};')
        lines.append(f'const {kind} {names[1]} = {inputs[a]} - {inputs[partner]};')
        for i, row in enumerate(matrix):
            rows[i].append((row[a], names[0] if row[a] == row[partner] else names[1]))
    lines += _paired_rows(rows, outputs, kind, prefix)
    return lines


def _alike(lines: Sequence[Sequence[Fraction]]) -> list[list[int]]:
    """For each line all that have the same numbers but for signs, in order.

    Only these are compared one by one: of the hundreds of lines that a long filter has at a large
    stride, few are alike.
    """
    found: dict[tuple[tuple[int, int], ...], list[int]] = {}
    keys = [tuple((abs(x.numerator), x.denominator) for x in line) for line in lines]
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    return [found[key] for key in keys]


def _mirrored(matrix: Matrix, a: int, b: int) -> bool:
    """Whether two columns differ in signs, and in nothing else, with at least two rows each."""
    same = sum(row[a] == row[b] != 0 for row in matrix)
    opposite = sum(row[a] == -row[b] != 0 for row in matrix)
    whole = all(abs(row[a]) == abs(row[b]) for row in matrix)
    return whole and same + opposite > 2 and same > 0 and opposite > 0


def _paired_rows(
    rows: list[list[tuple[Fraction, str]]], outputs: Sequence[str], kind: str, prefix: str
) -> list[str]:
    lines: list[str] = []
    done: set[int] = set()
    alike = _alike([[c for c, _ in row] for row in rows])
    for i, row in enumerate(rows):
        if i in done:
            continue
        partner = next((j for j in alike[i] if j > i and _opposed(row, rows[j])), None)
        if partner is None or partner in done:
            lines.append(f'const {kind} {outputs[i]} = {combination(row)};')
            continue
        done |= {i, partner}
        other = rows[partner]
        even = [a for a, b in zip(row, other, strict=True) if a[0] and a[0] == b[0]]
        odd = [a for a, b in zip(row, other, strict=True) if a[0] and a[0] == -b[0]]
        # A factor that leaves plain numbers behind is applied by the last addition, as an FMA.
        factor = odd[-1][0]
        if any(not _dyadic(c / factor) for c, _ in odd):
            factor = Fraction(1)
        names = f'{prefix}e{i}', f'{prefix}o{i}'
        lines.append(f'const {kind} {names[0]} = {combination(even)};')
        lines.append(f'const {kind} {names[1]} = {combination([(c / factor, x) for c, x in odd])};')
        for output, sign in ((outputs[i], 1), (outputs[partner], -1)):
            text = combination([(Fraction(1), names[0]), (sign * factor, names[1])])
            lines.append(f'const {kind} {output} = {text};')
    return lines


def _opposed(row: list[tuple[Fraction, str]], other: list[tuple[Fraction, str]]) -> bool:
    pairs = [(a, b) for (a, _), (b, _) in zip(row, other, strict=True) if a or b]
    same = sum(a == b for a, b in pairs)
    opposite = sum(a == -b for a, b in pairs)
    return same + opposite == len(pairs) > 2 and same > 0 and opposite > 0


def _dyadic(value: Fraction) -> bool:
    return value.denominator & (value.denominator - 1) == 0


def operations(matrix: Matrix) -> int:
    """Vector instructions of one application of a matrix, an FMA counting as one."""
    names = [f'x{i}' for i in range(len(matrix[0]))]
    lines = linear(matrix, names, [f'y{i}' for i in range(len(matrix))], 'vec', '')
    return sum(max(line.count(' + ') + line.count(' - '), line.count(' * ')) for line in lines)
