"""AVX-512 assembly translated to C: equal to what it says, and refused where it is not known."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.kernels.cpu.isa.x86_rows import RowKernel, emit
from tilewright.machine.compiler import compiler
from tilewright_lab.simulate import zmm
from tilewright_lab.simulate.emulate import Toolchain, run_text

TRANSLATED = Toolchain(compiler(), (), True)
CLOBBERS = '"xmm0", "xmm1", "xmm2", "xmm17", "k1", "cc", "memory"'


def block(*lines: str, operands: str = '[n] "+r"(n)', clobbers: str = CLOBBERS) -> str:
    text = '\n'.join(f'    "{line}\\n\\t"' for line in lines)
    return (
        '#include <stdio.h>\nint main(void)\n{\n    float a[48], out[64];\n    long n = 3;\n'
        '    for (int i = 0; i < 48; i++) a[i] = i - 20;\n'
        '    for (int i = 0; i < 64; i++) out[i] = 7;\n'
        f'    __asm__ volatile(\n{text}\n    : {operands}\n'
        f'    : [a] "r"(a), [out] "r"(out)\n    : {clobbers});\n'
        '    for (int i = 0; i < 64; i++) printf("%.9g ", out[i]);\n    printf("%ld", n);\n}\n'
    )


def printed(*lines: str) -> tuple[np.ndarray, int]:
    *numbers, n = run_text(block(*lines), TRANSLATED).split()
    return np.array(numbers, np.float32), int(n)


def test_a_micro_kernel_is_what_numpy_computes():
    """All of it: four channels at once and those behind them, a bias, residuals, a last vector of
    five lanes, a limit.
    """
    rng, lanes, count = np.random.default_rng(0), 5, 6
    a = rng.normal(size=(count, 3)).astype('f4')
    b = rng.normal(size=(count, 32)).astype('f4')
    bias, more = rng.normal(size=3).astype('f4'), rng.normal(size=(3, 21)).astype('f4')
    kernel = RowKernel(
        'avx512', 3, (0, 16), (0, 16), (1,), (0,), 1, 0, 32, 21, 'rows', True, True, low=0.0
    )
    arrays = {'a': a, 'b': b, 'bias': bias, 'more': more}
    given = '\n'.join(
        f'static const float {name}[] = {{{", ".join(f"{x:.9g}" for x in array.reshape(-1))}}};'
        for name, array in arrays.items()
    )
    text = f"""#include <stdio.h>
{emit(kernel)}
{given}
int main(void)
{{
    float out[65];
    for (int i = 0; i < 65; i++) out[i] = 7;
    rows(a, b, out, {count}, {lanes}, bias, more, b);
    for (int i = 0; i < 65; i++) printf("%.9g ", out[i]);
}}
"""
    got = np.array(run_text(text, TRANSLATED).split(), np.float32)
    want = a.T.astype('f8') @ b[:, :21] + bias[:, None] + more
    np.testing.assert_allclose(got[:63].reshape(3, 21), np.maximum(want, 0), rtol=2e-6, atol=1e-6)
    assert (got[63:] == 7).all()


def test_masks_leave_lanes_alone():
    mask = ('mov $5, %[n]', 'kmovw %[n], %%k1', 'vmovups (%[a]), %%zmm17')
    out, _ = printed(*mask, 'vmovups %%zmm17, 4(%[out])%{%%k1%}')
    assert out[:5].tolist() == [7, -20, 7, -18, 7]
    out, _ = printed(*mask, 'vmovups 64(%[a]), %%zmm17%{%%k1%}', 'vmovups %%zmm17, (%[out])')
    assert out[:4].tolist() == [-4, -19, -2, -17]
    out, _ = printed(*mask, 'vmovups 64(%[a]), %%zmm17%{%%k1%}%{z%}', 'vmovups %%zmm17, (%[out])')
    assert out[:4].tolist() == [-4, 0, -2, 0]


def test_products_and_sums_are_rounded_once():
    text = block(
        'vbroadcastss (%[a]), %%zmm0', 'vbroadcastss 4(%[a]), %%zmm1',
        'vfmadd231ps (%[a])%{1to16%}, %%zmm0, %%zmm1', 'vmovups %%zmm1, (%[out])',
    ).replace('i - 20', 'i ? -0x1.000004p0f : 0x1.000002p0f')  # fmt: skip
    assert np.float32(run_text(text, TRANSLATED).split()[0]) == np.float32(2.0**-46)


@pytest.mark.parametrize(('name', 'pick'), [('vmaxps', np.maximum), ('vminps', np.minimum)])
def test_a_limit_gives_its_second_operand_for_what_is_no_number(name, pick):
    """The first one as assembly has it: NaN passes there, and a zero keeps its sign."""
    lines = ['vmovups (%[a]), %%zmm0', 'vpxord %%zmm1, %%zmm1, %%zmm1']
    store = ['vmovups %%zmm2, (%[out])']
    into, out_of = f'{name} %%zmm0, %%zmm1, %%zmm2', f'{name} %%zmm1, %%zmm0, %%zmm2'
    odd = ('i - 20', 'i == 0 ? __builtin_nanf("") : i == 1 ? -0.0f : i - 8')
    passes = run_text(block(*lines, into, *store).replace(*odd), TRANSLATED).split()
    stops = run_text(block(*lines, out_of, *store).replace(*odd), TRANSLATED).split()
    assert (passes[:2], stops[:2]) == (['nan', '-0'], ['0', '0'])
    want = pick(np.arange(-6, 8, dtype='f4'), 0)
    assert np.array_equal(np.array(passes[2:16], 'f4'), want)


def test_jumps_go_to_the_nearest_label_of_their_number():
    loop = ['1:', 'sub $4, %[n]', 'jge 1b', 'add $4, %[n]', 'test %[n], %[n]', 'jz 1f']
    back = ['mov $100, %[n]', '1:', 'dec %[n]', 'jnz 2f', 'mov $50, %[n]', '2:']
    assert printed('mov $11, %[n]', *loop, *back)[1] == 99
    assert printed('mov $12, %[n]', *loop, 'mov $9, %[n]', '1:', 'inc %[n]')[1] == 1


@pytest.mark.parametrize(
    ('lines', 'words'),
    [
        (['vgetexpps %%zmm0, %%zmm1'], 'vgetexpps is not known'),
        (['bswap %[n]'], 'bswap is not known'),
        (['kxorw %%k1, %%k1, %%k1'], 'kxorw is not known'),
        (['vaddps %%ymm0, %%ymm1, %%ymm2', 'vmovups %%zmm0, (%[out])'], '%%ymm2 is not a register'),
        (['vfmadd231ps 4(%[a])%{1to8%}, %%zmm0, %%zmm1'], 'not a place in memory'),
        (['vpaddw 4(%[a])%{1to16%}, %%zmm0, %%zmm1'], 'words of 32 bits alone'),
        (['jae 1f', '1:'], 'jae is not known'),
        (['jmp 2f', '1:'], 'no label 2f'),
        (['add $4, %[b]'], 'no operand b'),
        (['add $4, %[a]'], 'only an input'),
        (['vaddps %%zmm0, %%zmm1, %%zmm3'], 'xmm3 is not among'),
    ],
)
def test_what_is_not_known_is_refused_by_name(lines, words):
    with pytest.raises(zmm.TranslationError, match=words):
        zmm.to_c(block(*lines))


def test_what_a_block_changes_has_to_be_said():
    with pytest.raises(zmm.TranslationError, match='cc is not among'):
        zmm.to_c(block('add $4, %[n]', clobbers='"memory"'))
    with pytest.raises(zmm.TranslationError, match='memory is not among'):
        zmm.to_c(block('vmovups %%zmm0, (%[out])', clobbers='"xmm0"'))


def test_other_code_stays_as_it_is():
    for text in ('int x;\n', '#define ORDER __asm__ volatile("" : : : "memory")\n'):
        assert zmm.to_c(text) == text


def test_intrinsics_need_somebody_to_stand_in(monkeypatch):
    monkeypatch.setattr(zmm, '_ROOTS', ())
    text = '#include <immintrin.h>\n__m512 x(void) { return _mm512_setzero_ps(); }\n'
    with pytest.raises(zmm.IntrinsicsError, match='libsimde-dev'):
        zmm.to_c(text)


@pytest.mark.skipif(not zmm.simde(), reason='SIMDe is not installed (Debian: libsimde-dev)')
def test_intrinsics_leave_out_what_a_mask_does():
    text = """#include <immintrin.h>
#include <stdio.h>
int main(void)
{
    const signed char bytes[3] = {-1, 2, -3};
    short out[5] = {9, 9, 9, 9, 9};
    const __m512i all = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(7, bytes));
    _mm512_mask_cvtepi32_storeu_epi16(out, 0xd, all);
    const __m512i whole = _mm512_cvtps_epi32(_mm512_set1_ps(2.5f));
    int numbers[16];
    _mm512_mask_storeu_epi32(numbers, 0xffff, whole);
    for (int i = 0; i < 5; i++) printf("%d ", out[i]);
    printf("%d %g", numbers[15], _mm512_reduce_add_ps(_mm512_set1_ps(0.5f)));
}
"""
    assert run_text(text, TRANSLATED) == '-1 9 -3 0 9 2 8'
