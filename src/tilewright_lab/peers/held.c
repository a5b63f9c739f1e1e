/* A processor without AVX-512, for the process that this library is preloaded into (held.py).
 *
 * Where the processor can make CPUID trap, each CPUID of the process becomes a SIGSEGV. Its handler
 * executes the instruction with trapping off for a moment, takes the bits of AVX-512, AMX and
 * AVX-VNNI out of leaf 7, and goes on behind it. What a library finds by CPUID is then a processor
 * with AVX2, and it chooses its kernels for that one.
 *
 * The switch belongs to a thread. Threads and forked children inherit it; execve resets it, and
 * this library, which the variable LD_PRELOAD brings along, sets it again.
 */

#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SWITCH_CPUID = 0x1012 };  /* ARCH_SET_CPUID of arch_prctl, asm/prctl.h */
enum { FEATURES = 7 };           /* the leaf of extended features */

#define BIT(number) (1u << (number))

/* Subleaf 0: F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS,
 * VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8. */
static const unsigned hidden_b = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
static const unsigned hidden_c = BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14);
static const unsigned hidden_d = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
/* Subleaf 1: AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA; AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX,
 * AVX-VNNI-INT16, AVX10. */
static const unsigned hidden_1a = BIT(4) | BIT(5) | BIT(21) | BIT(23);
static const unsigned hidden_1d = BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19);

static int held;
static struct sigaction asked; /* what the process wants done about SIGSEGV */
static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);

static int switch_cpuid(unsigned long works) { return (int)syscall(SYS_arch_prctl, SWITCH_CPUID, works); }

static int set_action(int number, const struct sigaction *action, struct sigaction *old)
{
    if (!real_sigaction)
        real_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    return real_sigaction(number, action, old);
}

static void execute(greg_t *registers)
{
    unsigned leaf = (unsigned)registers[REG_RAX], subleaf = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    switch_cpuid(1);
    __cpuid_count(leaf, subleaf, a, b, c, d);
    switch_cpuid(0);
    if (leaf == FEATURES && subleaf == 0) {
        b &= ~hidden_b;
        c &= ~hidden_c;
        d &= ~hidden_d;
    } else if (leaf == FEATURES && subleaf == 1) {
        a &= ~hidden_1a;
        d &= ~hidden_1d;
    }
    registers[REG_RAX] = a;
    registers[REG_RBX] = b;
    registers[REG_RCX] = c;
    registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

/* A fault that is not CPUID's: what the process asked for, or the end that it has without us. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    if (asked.sa_flags & SA_SIGINFO) {
        asked.sa_sigaction(number, info, context);
    } else if (asked.sa_handler == SIG_DFL || (asked.sa_handler == SIG_IGN && info->si_code > 0)) {
        struct sigaction usual = {.sa_handler = SIG_DFL};
        set_action(number, &usual, NULL);
        if (info->si_code <= 0)
            raise(number); /* sent, not caused: it would not come again by itself */
    } else if (asked.sa_handler != SIG_IGN) {
        asked.sa_handler(number);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    /* The code of a general protection fault: the instruction was fetched, and can be read. */
    if (info->si_code == SI_KERNEL) {
        const unsigned char *at = (const unsigned char *)registers[REG_RIP];
        if (at[0] == 0x0f && at[1] == 0xa2) {
            execute(registers);
            return;
        }
    }
    pass_on(number, info, context);
}

/* Handlers that the process sets for SIGSEGV get what is left over by ours. */
int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    if (number != SIGSEGV || !held)
        return set_action(number, action, old);
    struct sigaction before = asked;
    if (action)
        asked = *action;
    if (old)
        *old = before;
    return 0;
}

__sighandler_t signal(int number, __sighandler_t handler)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    return sigaction(number, &action, &old) ? SIG_ERR : old.sa_handler;
}

/* 1 if this process is told by CPUID that the processor has AVX-512. */
int tw_cpuid_has_avx512(void)
{
    unsigned a, b, c, d;
    __cpuid_count(FEATURES, 0, a, b, c, d);
    return b >> 16 & 1;
}

__attribute__((constructor)) static void hold(void)
{
    /* On the thread's own stack: alternate ones, of OpenVINO say, may be gone while they are set. */
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigemptyset(&ours.sa_mask);
    if (set_action(SIGSEGV, &ours, &asked))
        return;
    held = 1;
    if (switch_cpuid(0)) { /* this processor cannot make CPUID trap */
        held = 0;
        set_action(SIGSEGV, &asked, NULL);
    }
}
