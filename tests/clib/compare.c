/* Floats against exact values: one pass, without branches, so that all 2^32 of them take seconds. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* worst[0..3]: how many are NaN where they should not be, or not where they should; have the wrong
   infinity; have the wrong sign of zero; and the most units in the last place that one is off.
   Where the exact value is below the least normal number, zero will do if `flushed`. */
void compare(const float *got, const double *want, long count, int flushed, double *worst)
{
    long nans = 0, infinities = 0, zeros = 0;
    double most = 0;
#pragma omp simd reduction(+ : nans, infinities, zeros) reduction(max : most)
    for (long i = 0; i < count; i++) {
        const float x = got[i], near = (float)want[i];
        int32_t bits, near_bits;
        memcpy(&bits, &x, 4);
        memcpy(&near_bits, &near, 4);
        const int nan = near != near, infinite = fabsf(near) == INFINITY;
        nans += (x != x) != nan;
        infinities += !nan & (x == x) & (infinite | (fabsf(x) == INFINITY)) & (x != near);
        zeros += (x == 0) & (near == 0) & ((bits ^ near_bits) < 0);
        /* How many steps between floats make one, at the exact value: 2^23 less its exponent. */
        int32_t exponent = near_bits >> 23 & 0xff;
        exponent = exponent < 1 ? 1 : exponent;
        const int64_t steps_bits = (int64_t)(150 - exponent + 1023) << 52;
        double steps;
        memcpy(&steps, &steps_bits, 8);
        const double off = fabs(x - want[i]) * steps;
        const int free = nan | infinite | (flushed & (x == 0) & (fabsf(near) < 1.17549435e-38f));
        const double counted = free ? 0 : off;
        most = counted > most ? counted : most;
    }
    worst[0] += nans;
    worst[1] += infinities;
    worst[2] += zeros;
    worst[3] = most > worst[3] ? most : worst[3];
}
