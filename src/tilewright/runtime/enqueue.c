/* Queues a batch of launches without the host's language in between, and times it.

   All calls of a batch run one after the other on a queue or stream that is empty before. Comes
   out: seconds from the first launch to the end of the last by the host's clock, or minus the
   driver's status. */

#include <stddef.h>
#include <time.h>

typedef int (*opencl_launch)(void *queue, void *kernel, unsigned dims, const size_t *offset,
                             const size_t *whole, const size_t *block, unsigned waits,
                             const void *list, void **event);
typedef int (*cuda_launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                           unsigned by, unsigned bz, unsigned shared, void *stream,
                           void **arguments, void **extra);
typedef int (*wait_for)(void *queue);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* `first` and `last`, where they are not null, receive the events of the batch's two ends. */
double tw_opencl_batch(opencl_launch launch, wait_for finish, void *queue, int steps,
                       void **kernels, const size_t *whole, const size_t *block, int count,
                       void **first, void **last)
{
    const double begin = now();
    for (int i = 0; i < count; i++)
        for (int s = 0; s < steps; s++) {
            void **event = NULL;
            if (i == 0 && s == 0)
                event = first;
            else if (i == count - 1 && s == steps - 1)
                event = last;
            const int status = launch(queue, kernels[s], 3, NULL, whole + 3 * s, block + 3 * s, 0,
                                      NULL, event);
            if (status)
                return status < 0 ? status : -status;
        }
    const int status = finish(queue);
    return status ? (status < 0 ? status : -status) : now() - begin;
}

/* `numbers`: the grid's three extents, threads of a block, bytes of shared memory, for each step. */
double tw_cuda_batch(cuda_launch launch, wait_for finish, void *stream, int steps,
                     void **functions, const unsigned *numbers, void ***arguments, int count)
{
    const double begin = now();
    for (int i = 0; i < count; i++)
        for (int s = 0; s < steps; s++) {
            const unsigned *n = numbers + 5 * s;
            const int status = launch(functions[s], n[0], n[1], n[2], n[3], 1, 1, n[4], stream,
                                      arguments[s], NULL);
            if (status)
                return -status;
        }
    const int status = finish(stream);
    return status ? -status : now() - begin;
}
