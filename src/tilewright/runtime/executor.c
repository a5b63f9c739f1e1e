/* A network's steps, one after the other, in one call.

   A step is a kernel's parts, run by the thread pool; the next step begins when all of them are
   done. Pointers into arrays of the caller are set first, so that inputs are read and results are
   written where the caller has them. Workers of the pool look for work between steps, so that a
   step costs little more than its parts do. */

#include <stddef.h>
#include <time.h>

typedef void (*part_fn)(const void *args, long part);
typedef void (*pool_fn)(part_fn fn, const void *args, long parts);

/* What a kernel is given: `tw_args` of kernels/cpu/abi.py. */
typedef struct {
    const float *const *in;
    const float *packed;
    float *out;
    char *scratch;
    const long *sizes;
} kernel_args;

/* Kernels place a part's scratch memory behind that of the parts before it. `shift` is how much
   further each is moved, so that a part of any step has the same memory: its thread wrote there in
   the step before, and another core's cache holds none of it. Parts that share theirs are not moved,
   and find each other by the address of their arguments (kernels/cpu/schemas/recurrence/team.py). */
typedef struct {
    void (*fn)(const kernel_args *args, long part);
    const kernel_args *args;
    long parts;
    long shift;
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

static void run_part(const void *given, long part)
{
    const step *s = given;
    if (s->shift == 0) {
        s->fn(s->args, part);
        return;
    }
    kernel_args args = *s->args;
    args.scratch += part * s->shift;
    s->fn(&args, part);
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
        net->run(run_part, s, s->parts);
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

/* What an array must be for kernels to use it as it is. */
typedef struct {
    const void *type;  /* of element */
    const long *shape;
    long rank;
    long bytes;
    long flags; /* of numpy, all of which must be set */
} wanted;

/* One network that is called on arrays of Python: the inputs, then the results. */
typedef struct {
    const network *net;
    const wanted *arrays;
    long inputs;
    long count;
    const void *array_type; /* numpy.ndarray itself, no class derived from it */
    const char **io;
} call;

/* The beginning of an array of numpy (runtime/array_layout.py). */
typedef struct {
    ptrdiff_t references;
    const void *type;
    const char *data;
    int rank;
    const ptrdiff_t *shape;
    const ptrdiff_t *strides;
    const void *base;
    const void *element;
    int flags;
} array;

static int fits(const array *a, const wanted *w, const void *array_type)
{
    if (a->type != array_type || a->element != w->type || a->rank != w->rank)
        return 0;
    if ((a->flags & w->flags) != w->flags)
        return 0;
    for (long i = 0; i < w->rank; i++)
        if (a->shape[i] != w->shape[i])
            return 0;
    return 1;
}

/* 0 if the network ran; 1 if an array is not what kernels can use, or results overlap. */
long tw_call(const call *c, const array *const *arrays)
{
    for (long i = 0; i < c->count; i++) {
        if (!fits(arrays[i], &c->arrays[i], c->array_type))
            return 1;
        c->io[i] = arrays[i]->data;
    }
    for (long i = c->inputs; i < c->count; i++)
        for (long j = 0; j < i; j++)
            if (c->io[i] < c->io[j] + c->arrays[j].bytes && c->io[j] < c->io[i] + c->arrays[i].bytes)
                return 1;
    tw_execute(c->net, c->io, 0);
    return 0;
}

/* The same for one input and one result. */
long tw_call_two(const call *c, const array *input, const array *result)
{
    const array *arrays[2] = {input, result};
    return tw_call(c, arrays);
}
