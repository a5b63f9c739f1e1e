"""Threads that go through the rounds of a call together: the C around the rounds.

The pool (runtime/pool.c) deals parts to whichever threads are free, and a caller that finds it busy
runs all parts itself, one after the other. So no part may wait for another one to begin. A round is
as many pieces as there are parts; each thread claims its own piece first, then every other one that
nobody claimed, and waits only for pieces that somebody works on. One thread alone goes through all
rounds; parts that come later find everything done.

Parts of one call find each other by the address of its arguments, in a short table: memory that
they share and that holds zeros at the start is not part of the interface. Entries of another
process, whose threads a fork did not copy, are free.
"""

ROUNDS_ALONE = """\
void tw_part(const tw_args *args, long part)
{{
    for (long number = 0; number < {rounds}; number++)
        run_round(args, number, part);
}}
"""

TEAM = """\
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum {{ PARTS = {parts}, TEAMS = 64 }};

typedef struct {{
    _Alignas(64) _Atomic long done; /* pieces, of all rounds */
    struct {{ _Alignas(64) _Atomic long rounds; }} claimed[PARTS];
    const tw_args *owner;
    long process;
    long left; /* parts that have not ended */
}} team;

static team teams[TEAMS];
static atomic_flag teams_busy = ATOMIC_FLAG_INIT;

static inline void relax(long turns)
{{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    if (turns % 4096 == 4095) /* somebody who works may need this processor */
        sched_yield();
}}

static void lock_teams(void)
{{
    long turns = 0;
    while (atomic_flag_test_and_set_explicit(&teams_busy, memory_order_acquire))
        relax(turns++);
}}

static void unlock_teams(void) {{ atomic_flag_clear_explicit(&teams_busy, memory_order_release); }}

static team *join_team(const tw_args *args)
{{
    const long process = (long)getpid();
    for (long turns = 0;; turns++) {{
        team *free = NULL, *mine = NULL;
        lock_teams();
        for (int i = 0; i < TEAMS && !mine; i++) {{
            team *one = &teams[i];
            if (!one->owner || one->process != process)
                free = free ? free : one;
            else if (one->owner == args)
                mine = one;
        }}
        if (!mine && free) {{
            mine = free;
            mine->owner = args;
            mine->process = process;
            mine->left = PARTS;
            atomic_store(&mine->done, 0);
            for (int i = 0; i < PARTS; i++)
                atomic_store(&mine->claimed[i].rounds, 0);
        }}
        unlock_teams();
        if (mine)
            return mine;
        relax(turns);
    }}
}}

static void leave_team(team *mine)
{{
    lock_teams();
    if (--mine->left == 0)
        mine->owner = NULL;
    unlock_teams();
}}
"""

ROUNDS_TOGETHER = """\

void tw_part(const tw_args *args, long part)
{{
    team *const mine = join_team(args);
    for (long number = 0; number < {rounds}; number++) {{
        for (long i = 0; i < PARTS; i++) {{
            const long piece = (part + i) % PARTS;
            long expected = number;
            _Atomic long *const claimed = &mine->claimed[piece].rounds;
            if (!atomic_compare_exchange_strong(claimed, &expected, number + 1))
                continue;
            run_round(args, number, piece);
            atomic_fetch_add_explicit(&mine->done, 1, memory_order_release);
        }}
        long turns = 0;
        while (atomic_load_explicit(&mine->done, memory_order_acquire) < (number + 1) * PARTS)
            relax(turns++);
    }}
    leave_team(mine);
}}
"""
