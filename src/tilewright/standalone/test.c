/* Runs the network on the inputs of tw_net.check, compares with the results that are stored there,
   and says how long a call takes:

       ./tw_net_test [CALLS]

   Exit codes: 0 right, 1 wrong, 2 a file is missing or damaged. Results may be off by TOLERANCE,
   relatively, since another compiler may add in another order; whole numbers must agree. What a
   difference is divided by is at least the root mean square of the results, and at least LEAST. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tw_net.h"

#define TOLERANCE 1e-4
#define LEAST 1e-3

enum { FLOAT, DOUBLE, WHOLE };

typedef struct {
    const char *name;
    int kind;
    long bytes;
    void *data, *want;
} array;

static array arrays[] = {
/*ARRAYS*/
};
enum { COUNT = sizeof arrays / sizeof *arrays, INPUTS = TW_NET_INPUTS };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double number(const array *a, const void *data, long i)
{
    return a->kind == DOUBLE ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* The root mean square of what is wanted. */
static double scale(const array *a, long count)
{
    double sum = 0.0;
    long finite = 0;
    for (long i = 0; i < count; i++) {
        const double want = number(a, a->want, i);
        if (isfinite(want)) {
            sum += want * want;
            finite++;
        }
    }
    return finite ? sqrt(sum / (double)finite) : 0.0;
}

/* The largest relative difference; 0 where all bits agree. */
static double difference(const array *a)
{
    if (memcmp(a->data, a->want, (size_t)a->bytes) == 0)
        return 0.0;
    if (a->kind == WHOLE)
        return INFINITY;
    const long count = a->bytes / (a->kind == DOUBLE ? 8 : 4);
    const double least = fmax(scale(a, count), LEAST);
    double most = 0.0;
    for (long i = 0; i < count; i++) {
        const double got = number(a, a->data, i), want = number(a, a->want, i);
        if (got == want || (isnan(got) && isnan(want)))
            continue;
        if (!isfinite(got) || !isfinite(want))
            return INFINITY;
        most = fmax(most, fabs(got - want) / fmax(fmax(fabs(got), fabs(want)), least));
    }
    return most;
}

static void call(tw_net *net)
{
    tw_net_run(net/*CALL*/);
}

static int read_check(void)
{
    FILE *file = fopen("tw_net.check", "rb");
    if (!file)
        return 0;
    int whole = 1;
    for (int i = 0; i < COUNT && whole; i++) {
        array *a = &arrays[i];
        const size_t bytes = (size_t)a->bytes;
        a->data = aligned_alloc(64, (bytes + 64) / 64 * 64);
        a->want = aligned_alloc(64, (bytes + 64) / 64 * 64);
        whole = a->data && a->want && fread(a->want, 1, bytes, file) == bytes;
        if (whole && i < INPUTS)
            memcpy(a->data, a->want, bytes);
        else if (whole)
            memset(a->data, 0xff, bytes); /* NaN, so that nothing passes that was not written */
    }
    fclose(file);
    return whole;
}

int main(int count, char **words)
{
    const long calls = count > 1 ? strtol(words[1], NULL, 10) : 20;
    const char *why = "";
    if (!read_check()) {
        fprintf(stderr, "tw_net.check is missing or damaged; run this in the folder that has it\n");
        return 2;
    }
    tw_net *net = tw_net_open("tw_net.weights", &why);
    if (!net) {
        fprintf(stderr, "tw_net: %s\n", why);
        return 2;
    }
    call(net);
    int wrong = 0;
    for (int i = INPUTS; i < COUNT; i++) {
        const double off = difference(&arrays[i]);
        wrong += !(off <= TOLERANCE);
        printf("%s: %s, largest relative difference %.1e\n", arrays[i].name,
               off <= TOLERANCE ? "right" : "WRONG", off);
    }
    double *seconds = calls > 0 ? malloc((size_t)calls * sizeof *seconds) : NULL;
    if (seconds) {
        for (long i = 0; i < calls; i++) {
            const double start = now();
            call(net);
            seconds[i] = now() - start;
        }
        qsort(seconds, (size_t)calls, sizeof *seconds, order);
        printf("%.4f ms, median of %ld calls; the quickest took %.4f ms\n",
               1e3 * seconds[calls / 2], calls, 1e3 * seconds[0]);
        free(seconds);
    }
    for (int i = 0; i < COUNT; i++) {
        free(arrays[i].data);
        free(arrays[i].want);
    }
    tw_net_close(net);
    return wrong ? 1 : 0;
}
