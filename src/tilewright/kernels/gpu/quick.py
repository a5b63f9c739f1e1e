"""Functions of floats for kernels of f16 and bf16: as exact as a result of 11 bits needs.

Comes out: `QUICK`, definitions in CUCL, and `QUICK_OPS`, the operators that they stand for. Where a
GPU has instructions for powers of two, quotients and roots that are off by some units in the last
place of a float, they are used. Errors against float64: erf 7e-7 at most, the others below 1e-6 of
the result (tanh: of 1).
"""

from __future__ import annotations

QUICK_OPS = frozenset({'div', 'erf', 'exp', 'sigmoid', 'sqrt', 'tanh'})
# erf: 1 - 2^q with q = log2(erfc(x)) by a polynomial from 0 to 3.8, where erfc is below 1e-7.
QUICK = """\
#ifndef TW_QUICK
#define TW_QUICK
#ifdef __CUDA_ARCH__
FUNCTION float quick_power(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
FUNCTION float quick_sqrt(float x)
{
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}
FUNCTION float quick_div(float x, float y) { return __fdividef(x, y); }
#else
FUNCTION float quick_power(float x) { return (float)exp2(x); }
FUNCTION float quick_sqrt(float x) { return (float)sqrt(x); }
FUNCTION float quick_div(float x, float y) { return x / y; }
#endif
FUNCTION float quick_exp(float x) { return quick_power(1.44269504f * x); }
FUNCTION float quick_sigmoid(float x) { return quick_div(1.0f, 1.0f + quick_exp(-x)); }
FUNCTION float quick_tanh(float x)
{
    return 1.0f - quick_div(2.0f, 1.0f + quick_power(2.88539008f * x));
}
FUNCTION float quick_erf(float x)
{
    const float size = (float)fabs(x), near = size > 3.8f ? 3.8f : size;
    float q = -2.9441581e-03f;
    q = FMA(q, near, 2.9590044e-02f);
    q = FMA(q, near, -1.4866563e-01f);
    q = FMA(q, near, -9.1850936e-01f);
    q = FMA(q, near, -1.6278890f);
    return (float)copysign(1.0f - quick_power(q * near), x);
}
#endif
"""
