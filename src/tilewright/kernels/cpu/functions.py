"""C functions that generated code calls, each written where it is used.

Goes in: the names that an expression calls. Comes out: their definitions, what they need first.

Functions of floats have no branches and call nothing, so that compilers put several elements side
by side; those of the standard library are called one by one. Exponentials and logarithms reduce
their argument and evaluate a polynomial, with the coefficients of Cephes (Moshier, 1989): within 2
units in the last place, tanh and the logistic function within 4. The error function has minimax
polynomials of our own (Remez's criterion on erf(x) / x up to 0.92 and on ln(erfc(x)) from there
to 4, weighted for the relative error of erf; both 1.6e-8 or less before rounding): within 2. NaN of
any bit pattern comes out where it went in: comparisons are arranged for it, and what is put
together from bits, where NaN is lost, is not chosen for it. A maximum with NaN is NaN, as numpy and
PyTorch have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.kernels.cpu.writer import Writer

INLINE = 'static inline __attribute__((always_inline))'

# name -> (names it needs, definition)
_FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {}


def _define(name: str, text: str, *needs: str) -> None:
    _FUNCTIONS[name] = (needs, text.replace('INLINE', INLINE).strip('\n'))


def write_functions(writer: Writer, names: Iterable[str]) -> None:
    """The definitions of all of these and of what they need, each once, in a fixed order."""
    wanted: set[str] = set()

    def want(name: str) -> None:
        for other in _FUNCTIONS[name][0]:
            want(other)
        wanted.add(name)

    for name in names:
        want(name)
    for name, (_, text) in _FUNCTIONS.items():
        if name in wanted:
            writer.lines += [*text.splitlines(), '']


def known(name: str) -> bool:
    return name in _FUNCTIONS


for _kind, _type, _bits in (('f32', 'float', 'int32_t'), ('f64', 'double', 'int64_t')):
    _define(
        f'bits_{_kind}',
        f"""
INLINE {_bits} bits_{_kind}({_type} x)
{{
    const union {{ {_type} x; {_bits} bits; }} both = {{.x = x}};
    return both.bits;
}}
INLINE {_type} {_kind}_bits({_bits} bits)
{{
    const union {{ {_bits} bits; {_type} x; }} both = {{.bits = bits}};
    return both.x;
}}
/* a or b by masks: one instruction, where compilers turn a conditional into several for NaN. */
INLINE {_type} pick_{_kind}(int first, {_type} a, {_type} b)
{{
    const {_bits} mask = -({_bits})first;
    return {_kind}_bits((mask & bits_{_kind}(a)) | (~mask & bits_{_kind}(b)));
}}
""",
    )
_define(
    'exp_f32',
    """
/* e^x = 2^n e^r with |r| <= ln(2) / 2. Results below the least normal number are 0. What is too
   large, and NaN, whose bits the sum of exponents spoils, are x + infinity. */
INLINE float exp_f32(float x)
{
    const float shifted = x * 1.44269504f + 12582912.0f; /* n in the lowest bits */
    const float whole = shifted - 12582912.0f;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const uint32_t bits = (uint32_t)bits_f32(p) + ((uint32_t)bits_f32(shifted) << 23);
    const float result = pick_f32(x < -87.33654f, 0.0f, f32_bits((int32_t)bits));
    return pick_f32(x <= 88.72283f, result, x + INFINITY);
}
""",
    'bits_f32',
)
_define(
    'sigmoid_f32',
    'INLINE float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }',
    'exp_f32',
)
_define(
    'tanh_f32',
    """
/* A polynomial near 0, else 1 - 2 / (e^2x + 1); of |x|, with the sign of x, also that of zero. */
INLINE float tanh_f32(float x)
{
    const float size = fabsf(x), square = x * x;
    float p = -5.70498872745e-3f;
    p = p * square + 2.06390887954e-2f;
    p = p * square + -5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square + -3.33332819422e-1f;
    const float large = 1.0f - 2.0f / (exp_f32(2.0f * size) + 1.0f);
    return copysignf(pick_f32(size < 0.625f, size + size * square * p, large), x);
}
""",
    'exp_f32',
)
_define(
    'erf_f32',
    """
/* x times a polynomial in x^2 near 0, else 1 - e^q with q a polynomial for ln(erfc(|x|)); from 4 on
   it is 1. Of |x|, with the sign of x, also that of zero. */
INLINE float erf_f32(float x)
{
    const float size = fabsf(x), square = x * x;
    float p = -5.9994066e-4f;
    p = p * square + 4.9948306e-3f;
    p = p * square + -2.6767720e-2f;
    p = p * square + 1.1281846e-1f;
    p = p * square + -3.7612498e-1f;
    p = p * square + 1.2837915e-1f;
    const float near = pick_f32(size > 4.0f, 4.0f, size);
    float q = 1.9593725e-4f;
    q = q * near + -3.0432174e-3f;
    q = q * near + 2.2226920e-2f;
    q = q * near + -1.0393160e-1f;
    q = q * near + -6.3718224e-1f;
    q = q * near + -1.1276757f;
    q = q * near + -1.9567554e-4f;
    return copysignf(pick_f32(size < 0.92f, size + size * p, 1.0f - exp_f32(q)), x);
}
""",
    'exp_f32',
)
_define(
    'erf_near_f32',
    """
/* x times a polynomial in x^2, which leaves -1 to 1 where erf is as good as there: within 4e-5, a
   fiftieth of what rounding to bf16 costs. */
INLINE float erf_near_f32(float x)
{
    const float square = x * x;
    float p = 4.07417673e-8f;
    p = p * square + -1.94481345e-6f;
    p = p * square + 4.10604589e-5f;
    p = p * square + -5.11037419e-4f;
    p = p * square + 4.23544087e-3f;
    p = p * square + -2.51029730e-2f;
    p = p * square + 1.11079909e-1f;
    p = p * square + -3.75316888e-1f;
    p = p * square + 1.12827456f;
    const float erf = x * p, least = pick_f32(erf < -1.0f, -1.0f, erf);
    return pick_f32(least > 1.0f, 1.0f, least);
}
""",
    'bits_f32',
)
_define(
    'tanh_near_f32',
    """
/* Lambert's continued fraction, cut off where it reaches 1: within 1e-4, exact near 0. */
INLINE float tanh_near_f32(float x)
{
    const float least = pick_f32(x < -4.97f, -4.97f, x), y = pick_f32(least > 4.97f, 4.97f, least);
    const float square = y * y;
    float p = square + 378.0f, q = square * 28.0f + 3150.0f;
    p = p * square + 17325.0f;
    q = q * square + 62370.0f;
    p = p * square + 135135.0f;
    q = q * square + 135135.0f;
    return y * p / q;
}
""",
    'bits_f32',
)
_define(
    'log_f32',
    """
/* x = 2^n m with sqrt(1/2) <= m < sqrt(2); subnormal numbers are scaled first. */
INLINE float log_f32(float x)
{
    const int tiny = x < 1.17549435e-38f;
    const float y = pick_f32(tiny, x * 8388608.0f, x);
    const int32_t bits = bits_f32(y) - 0x3f3504f3;
    const float n = (float)((bits >> 23) + (-tiny & -23));
    const float m = f32_bits((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    const float square = m * m;
    float p = 7.0376836292e-2f;
    p = p * m + -1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m + -1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m + -1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m + -2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * square + n * -2.12194440e-4f - 0.5f * square;
    float result = n * 0.693359375f + (m + p);
    result = pick_f32(x < INFINITY, result, x);
    result = pick_f32(x == 0.0f, -INFINITY, result);
    return pick_f32(x < 0.0f, NAN, result);
}
""",
    'bits_f32',
)

for _kind, _type, _suffix in (('f32', 'float', 'f'), ('f64', 'double', '')):
    _define(
        f'max_{_kind}',
        f'INLINE {_type} max_{_kind}({_type} a, {_type} b) '
        f'{{ return pick_{_kind}((a < b) | (b != b), b, a); }}',
        f'bits_{_kind}',
    )
    _define(
        f'min_{_kind}',
        f'INLINE {_type} min_{_kind}({_type} a, {_type} b) '
        f'{{ return pick_{_kind}((b < a) | (b != b), b, a); }}',
        f'bits_{_kind}',
    )
    # With a number, which is not NaN, one comparison is enough.
    _define(
        f'max_number_{_kind}',
        f'INLINE {_type} max_number_{_kind}({_type} x, {_type} number) '
        f'{{ return pick_{_kind}(x < number, number, x); }}',
        f'bits_{_kind}',
    )
    _define(
        f'min_number_{_kind}',
        f'INLINE {_type} min_number_{_kind}({_type} x, {_type} number) '
        f'{{ return pick_{_kind}(x > number, number, x); }}',
        f'bits_{_kind}',
    )
    _define(
        f'quarters_{_kind}',
        f"""
/* x to the power of so many quarters, at most 28, a number. What is no whole power takes zero and
   infinity of either sign as positive ones. */
INLINE {_type} quarters_{_kind}({_type} x, int quarters)
{{
    if (quarters & 3)
        x = x == -INFINITY ? INFINITY : x + 0;
    const {_type} root = sqrt{_suffix}(x), square = x * x;
    return (quarters & 1 ? sqrt{_suffix}(root) : 1) * (quarters & 2 ? root : 1) *
           (quarters & 4 ? x : 1) * (quarters & 8 ? square : 1) *
           (quarters & 16 ? square * square : 1);
}}
""",
    )
    _define(
        f'sign_{_kind}',
        f'INLINE {_type} sign_{_kind}({_type} x) {{ return x > 0 ? 1 : x < 0 ? -1 : x + 0; }}',
    )
    _define(
        f'mod_{_kind}',
        f"""
INLINE {_type} mod_{_kind}({_type} a, {_type} b)
{{
    const {_type} rest = fmod{_suffix}(a, b);
    return rest == 0 ? copysign{_suffix}(rest, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}}
""",
    )
_define('sigmoid_f64', 'INLINE double sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }')

for _kind in ('i64', 'i32', 'i16', 'i8', 'u64', 'u32', 'u16', 'u8'):
    _type, _plain = f'{"u" if _kind[0] == "u" else ""}int{_kind[1:]}_t', f'uint{_kind[1:]}_t'
    _signed = _kind[0] == 'i'
    _define(
        f'max_{_kind}',
        f'INLINE {_type} max_{_kind}({_type} a, {_type} b) {{ return a < b ? b : a; }}',
    )
    _define(
        f'min_{_kind}',
        f'INLINE {_type} min_{_kind}({_type} a, {_type} b) {{ return b < a ? b : a; }}',
    )
    _define(
        f'sign_{_kind}',
        f'INLINE {_type} sign_{_kind}({_type} x) {{ return ({_type})((x > 0) - (x < 0)); }}',
    )
    # Division by zero and of the least number by -1 stop a process on some processors.
    _minus = f'b == ({_type})-1 ? ({_type})(0 - ({_plain})a) : ' if _signed else ''
    _define(
        f'div_{_kind}',
        f'INLINE {_type} div_{_kind}({_type} a, {_type} b) '
        f'{{ return b == 0 ? 0 : {_minus}({_type})(a / b); }}',
    )
    _minus = f'| (b == ({_type})-1) ' if _signed else ''
    _define(
        f'fmod_{_kind}',
        f'INLINE {_type} fmod_{_kind}({_type} a, {_type} b) '
        f'{{ return (b == 0) {_minus}? 0 : ({_type})(a % b); }}',
    )
    _define(
        f'mod_{_kind}',
        f"""
INLINE {_type} mod_{_kind}({_type} a, {_type} b)
{{
    const {_type} rest = fmod_{_kind}(a, b);
    return (rest != 0) & ((rest < 0) != (b < 0)) ? ({_type})(rest + b) : rest;
}}
""",
        f'fmod_{_kind}',
    )
    _define(
        f'pow_{_kind}',
        f"""
INLINE {_type} pow_{_kind}({_type} a, {_type} b)
{{
    {_plain} result = b < 0 ? 0 : 1, factor = ({_plain})a;
    for (; b > 0; b = ({_type})(b / 2)) {{
        if (b % 2)
            result = ({_plain})(1ull * result * factor);
        factor = ({_plain})(1ull * factor * factor);
    }}
    return ({_type})result;
}}
""",
    )
    _bits = int(_kind[1:])
    _define(
        f'shl_{_kind}',
        f'INLINE {_type} shl_{_kind}({_type} a, {_type} b) '
        f'{{ return (b < 0) | (b >= {_bits}) ? 0 : ({_type})(1ull * ({_plain})a << b); }}',
    )
    _define(
        f'shr_{_kind}',
        f'INLINE {_type} shr_{_kind}({_type} a, {_type} b) '
        f'{{ return (b < 0) | (b >= {_bits}) ? 0 : ({_type})(a >> b); }}',
    )
_define(
    'lookup',
    """
/* An index from data: negative ones count from the end; never outside. */
INLINE long lookup(long at, long size)
{
    at = at < 0 ? at + size : at;
    return at < 0 ? 0 : at >= size ? size - 1 : at;
}
""",
)
