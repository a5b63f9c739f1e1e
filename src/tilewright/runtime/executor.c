/* A network's steps, one after the other, in one call.

   A step is a kernel's parts, run by the thread pool; the next step begins when all of them are
   done. Pointers into arrays of the caller are set first, so that inputs are read and results are
   written where the caller has them. Workers of the pool look for work between steps, so that a
   step costs little more than its parts do. */

#include <time.h>

typedef void (*part_fn)(const void *args, long part);
typedef void (*pool_fn)(part_fn fn, const void *args, long parts);

typedef struct {
    part_fn fn;
    const void *args;
    long parts;
} step;

/* *slot = arrays[array] + offset */
typedef struct {
    const char **slot;
    long array;
    long offset;
} patch;

typedef struct {
    pool_fn run;
    const step *steps;
    long step_count;
    const patch *patches;
    long patch_count;
} network;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Run the network on these arrays. `stamps`, unless it is NULL, gets the time before each step and
   after the last. */
void tw_execute(const network *net, const char *const *arrays, double *stamps)
{
    for (long i = 0; i < net->patch_count; i++)
        *net->patches[i].slot = arrays[net->patches[i].array] + net->patches[i].offset;
    for (long i = 0; i < net->step_count; i++) {
        const step *s = &net->steps[i];
        if (stamps)
            stamps[i] = now();
        net->run(s->fn, s->args, s->parts);
    }
    if (stamps)
        stamps[net->step_count] = now();
}

/* Seconds of each of `repeats` runs on the same arrays. */
void tw_execute_time(const network *net, const char *const *arrays, long repeats, double *seconds)
{
    for (long i = 0; i < repeats; i++) {
        double start = now();
        tw_execute(net, arrays, 0);
        seconds[i] = now() - start;
    }
}
