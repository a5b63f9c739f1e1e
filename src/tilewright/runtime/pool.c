/* A persistent thread pool: workers spin for a while, then park; no OpenMP, no thread per call.

   A run publishes a job and a claim word (epoch << 32 | parts that are taken). Threads take parts by
   compare-and-swap on the claim, which fails for anybody who is late and still thinks of an older
   epoch; so nobody has to wait for a worker that was asleep, only for parts that were taken.
   A thread takes the part of its own number first, in every run the same: what it wrote or read
   there in the run before is still in its core's caches. Then it takes parts that nobody has begun.
   One run at a time: a second caller runs all of its parts itself. After fork the child starts
   with an empty pool.

   A kernel may wake a worker on the processor that its caller computes on, where the two would take
   turns of milliseconds: such a worker moves to another one first. A caller that waits for parts of
   others for long sleeps until they are done: somebody else may run where one of them was, and it goes
   on sooner on the processor that becomes free. */

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* processors of threads */
#endif
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef void (*part_fn)(const void *args, long part);

enum { MAX_WORKERS = 255, OWNED = 32 /* parts, at most, that have a bit of the claim each */ };

static struct {
    _Alignas(64) _Atomic uint64_t claim;
    _Alignas(64) _Atomic uint32_t epoch;
    _Alignas(64) _Atomic long done;
    _Alignas(64) part_fn fn;
    const void *args;
    _Atomic long parts;
    _Atomic int parked;
    _Atomic int asleep; /* the caller waits for `finished` */
    _Atomic int cpu; /* where the caller was when it woke workers */
    int workers;
    pthread_mutex_t owner; /* held by the caller whose job runs */
    pthread_mutex_t lock;  /* guards parking and sleeping */
    pthread_cond_t wake, finished;
} pool = {
    .owner = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .finished = PTHREAD_COND_INITIALIZER,
};

/* Microseconds that an idle worker looks for work before it parks: longer than a caller in Python
   takes from one call to the next, shorter than anybody would notice. */
static _Atomic long spin_us = 200;

/* Microseconds that a caller waits for parts of others before it sleeps, and an idle worker for work
   before it offers its processor: parts of a kernel end together, unless somebody has been stopped
   for some milliseconds. */
static _Atomic long wait_us = 50;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The processor that this thread runs on; -1 where nobody says. */
static int this_cpu(void)
{
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

/* Leave the caller's processor, if there is another one: for a moment it is not allowed. */
static void step_aside(void)
{
#if defined(__linux__)
    const int cpu = atomic_load_explicit(&pool.cpu, memory_order_relaxed);
    cpu_set_t allowed, others;
    if (cpu < 0 || cpu >= CPU_SETSIZE || cpu != this_cpu())
        return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    others = allowed;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

/* The next part for thread `own`, -1 if there is none; `taken` is marked. A bit for each part, or, of
   many parts, how many are taken. */
static long choose(uint32_t *taken, long parts, long own)
{
    if (parts > OWNED)
        return (long)*taken < parts ? (long)(*taken)++ : -1;
    const uint32_t left = ~*taken & (uint32_t)((1ull << parts) - 1);
    if (left == 0)
        return -1;
    const long part = left >> own & 1 ? own : __builtin_ctz(left);
    *taken |= 1u << part;
    return part;
}

/* Work on parts as thread `own`; threads beyond the number of parts leave them to the others. */
static void take_parts(uint32_t epoch, long own)
{
    for (;;) {
        uint64_t claim = atomic_load_explicit(&pool.claim, memory_order_acquire);
        long part;
        for (;;) {
            const long parts = atomic_load_explicit(&pool.parts, memory_order_relaxed);
            uint32_t taken = (uint32_t)claim;
            if ((uint32_t)(claim >> 32) != epoch || own >= parts)
                return;
            part = choose(&taken, parts, own);
            if (part < 0)
                return;
            if (atomic_compare_exchange_weak_explicit(&pool.claim, &claim, (uint64_t)epoch << 32 | taken,
                                                      memory_order_acq_rel, memory_order_acquire))
                break;
        }
        pool.fn(pool.args, part);
        /* Sequentially consistent, as what the caller does before it sleeps: one of both sees. */
        atomic_fetch_add(&pool.done, 1);
        if (atomic_load(&pool.asleep)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_signal(&pool.finished);
            pthread_mutex_unlock(&pool.lock);
        }
    }
}

/* Until all parts are done: awake for a while, then asleep. */
static void wait_for(long parts)
{
    double limit = 0;
    for (long spins = 1; atomic_load_explicit(&pool.done, memory_order_acquire) < parts; spins++) {
        relax();
        if (spins % 64 != 0)
            continue;
        const double time = now();
        if (limit == 0)
            limit = time + 1e-6 * (double)atomic_load_explicit(&wait_us, memory_order_relaxed);
        if (time < limit)
            continue;
        pthread_mutex_lock(&pool.lock);
        atomic_store(&pool.asleep, 1);
        while (atomic_load(&pool.done) < parts)
            pthread_cond_wait(&pool.finished, &pool.lock);
        atomic_store(&pool.asleep, 0);
        pthread_mutex_unlock(&pool.lock);
    }
}

static void *work(void *number)
{
    const long own = (long)(intptr_t)number;
    uint32_t seen = 0;
    for (;;) {
        uint32_t epoch;
        const double start = now();
        const double polite = start + 1e-6 * (double)atomic_load_explicit(&wait_us, memory_order_relaxed);
        const double limit = start + 1e-6 * (double)atomic_load_explicit(&spin_us, memory_order_relaxed);
        for (long spins = 1;; spins++) {
            epoch = atomic_load_explicit(&pool.epoch, memory_order_acquire);
            if (epoch != seen)
                break;
            relax();
            if (spins % 64 != 0)
                continue;
            const double time = now();
            if (time < limit) { /* the caller, or anybody else, may need this processor */
                if (time >= polite)
                    sched_yield();
                continue;
            }
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.parked, 1);
            while (atomic_load(&pool.epoch) == seen)
                pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.parked, 1);
            pthread_mutex_unlock(&pool.lock);
            step_aside();
        }
        seen = epoch;
        take_parts(epoch, own);
    }
    return NULL;
}

static void forget_workers(void)
{
    pool.workers = 0;
    atomic_store(&pool.claim, UINT64_MAX);
    atomic_store(&pool.parked, 0);
    atomic_store(&pool.asleep, 0);
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.finished, NULL);
}

static void grow(long parts)
{
    static int registered;
    if (!registered) {
        registered = 1;
        pthread_atfork(NULL, NULL, forget_workers);
    }
    while (pool.workers + 1 < parts && pool.workers < MAX_WORKERS) {
        pthread_t thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &attr, work, (void *)(intptr_t)(pool.workers + 1));
        pthread_attr_destroy(&attr);
        if (failed)
            return; /* fewer workers: the caller takes the parts itself */
        pool.workers++;
    }
}

/* Run fn(args, 0 .. parts-1), the caller taking part. */
void tw_pool_run(part_fn fn, const void *args, long parts)
{
    if (parts <= 1 || pthread_mutex_trylock(&pool.owner) != 0) {
        for (long part = 0; part < parts; part++)
            fn(args, part);
        return;
    }
    grow(parts);
    uint32_t epoch = atomic_load_explicit(&pool.epoch, memory_order_relaxed) + 1;
    /* Close the claim before the job changes: a late worker of the last run must not measure its
       old claim against the new number of parts. */
    atomic_store_explicit(&pool.claim, (uint64_t)epoch << 32 | UINT32_MAX, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
    pool.fn = fn;
    pool.args = args;
    atomic_store_explicit(&pool.parts, parts, memory_order_relaxed);
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.claim, (uint64_t)epoch << 32, memory_order_release);
    atomic_store(&pool.epoch, epoch);
    if (atomic_load(&pool.parked) > 0) {
        atomic_store_explicit(&pool.cpu, this_cpu(), memory_order_relaxed);
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    take_parts(epoch, 0);
    wait_for(parts);
    pthread_mutex_unlock(&pool.owner);
}

/* Set how long an idle worker looks for work before it parks. */
void tw_pool_spin(long microseconds)
{
    atomic_store(&spin_us, microseconds);
}
