/* The kernel interface for C (4 x 4) = A (4 x 4) times constant B (4 x 4); each candidate in this
   folder follows this text and defines tw_part. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4 };

typedef struct {
    const float *const *in;
    const float *packed;
    float *out;
    char *scratch;
} tw_args;

long tw_parts(void) { return 1; }
long tw_scratch_bytes(void) { return 64; }

#ifndef PACKED_BYTES
#define PACKED_BYTES ((long)(N * N * sizeof(float)))
#endif

long tw_packed_bytes(void) { return PACKED_BYTES; }

void tw_pack(const float *const *constants, float *packed)
{
    memcpy(packed, constants[0], N * N * sizeof(float));
}

static void multiply(const tw_args *args)
{
    const float *a = args->in[0], *b = args->packed;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < N; k++)
                sum += a[i * N + k] * b[k * N + j];
            args->out[i * N + j] = sum;
        }
}
