/* Runs a kernel of the host dialect: blocks one after the other, the threads of a block as
   coroutines that hand over at barriers. Linked with one kernel, whose `tw_item` runs one thread.

   0      done
   1      some threads of a block wait at a barrier that others left out
   2      no memory for the stacks */

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_BYTES (64l << 10)
#define WARP 32

enum { READY, AT_BARRIER, AT_WARP, DONE };

int tw_thread, tw_block[3];
float *tw_shared_memory;

static ucontext_t scheduler;
static ucontext_t *contexts;
static int *states;
static void **arguments;
static int threads;

void tw_item(void **args);

static void begin(void)
{
    tw_item(arguments);
    states[tw_thread] = DONE;
    swapcontext(&contexts[tw_thread], &scheduler);
}

static void wait_in(int state)
{
    const int self = tw_thread;
    states[self] = state;
    swapcontext(&contexts[self], &scheduler);
}

void tw_barrier(void) { wait_in(AT_BARRIER); }

/* Operands of a matrix instruction, one row for each thread of the block. */
static unsigned (*mma_a)[4], (*mma_b)[2];

/* Lane 4 g + t holds a[g][t], a[g+8][t], a[g][t+4], a[g+8][t+4], b[t][g], b[t+4][g] and
   d[g][2t], d[g][2t+1], d[g+8][2t], d[g+8][2t+1] (PTX ISA, m16n8k8 with tf32). The low 13 bits of
   an operand are not looked at. */
void tw_mma_tf32(float *d, const unsigned *a, const unsigned *b)
{
    const int lane = tw_thread % WARP, first = tw_thread - lane, g = lane / 4, t = lane % 4;
    memcpy(mma_a[tw_thread], a, sizeof mma_a[0]);
    memcpy(mma_b[tw_thread], b, sizeof mma_b[0]);
    wait_in(AT_WARP);
    for (int i = 0; i < 4; i++) {
        const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
        float sum = d[i];
        for (int k = 0; k < 8; k++) {
            const unsigned x = mma_a[first + 4 * (row % 8) + k % 4][row / 8 + 2 * (k / 4)];
            const unsigned y = mma_b[first + 4 * column + k % 4][k / 4];
            const unsigned bits[] = {x & 0xffffe000u, y & 0xffffe000u};
            float pair[2];
            memcpy(pair, bits, sizeof pair);
            sum += pair[0] * pair[1];
        }
        d[i] = sum;
    }
    wait_in(AT_WARP);
}

/* Four warps multiply 16 rows each; b holds columns as [half][n / 8][n % 8][k % 4], `half` and `row8`
   floats apart. Lane 4 g + t has d[4 j + 2 h + i] = d[g + 8 h][8 j + 2 t + i]. */
void tw_wgmma_tf32(int n, float *d, const unsigned *a, const float *b, int half, int row8)
{
    const int lane = tw_thread % WARP, first = tw_thread - lane, g = lane / 4, t = lane % 4;
    memcpy(mma_a[tw_thread], a, sizeof mma_a[0]);
    wait_in(AT_WARP);
    for (int i = 0; i < n / 2; i++) {
        const int row = g + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        float sum = d[i];
        for (int k = 0; k < 8; k++) {
            const unsigned x = mma_a[first + 4 * (row % 8) + k % 4][row / 8 + 2 * (k / 4)];
            unsigned y, bits[2];
            memcpy(&y, b + k / 4 * half + column / 8 * row8 + column % 8 * 4 + k % 4, sizeof y);
            bits[0] = x & 0xffffe000u, bits[1] = y & 0xffffe000u;
            float pair[2];
            memcpy(pair, bits, sizeof pair);
            sum += pair[0] * pair[1];
        }
        d[i] = sum;
    }
    wait_in(AT_WARP);
}

/* The same for sixteen depths in bf16, two to a word: lane 4 g + t has depths 2 t and 2 t + 1 of rows
   g and g + 8, then 2 t + 8 and 2 t + 9; b as above, words for floats. */
void tw_wgmma_bf16(int n, float *d, const unsigned *a, const float *b, int half, int row8)
{
    const int lane = tw_thread % WARP, first = tw_thread - lane, g = lane / 4, t = lane % 4;
    memcpy(mma_a[tw_thread], a, sizeof mma_a[0]);
    wait_in(AT_WARP);
    for (int i = 0; i < n / 2; i++) {
        const int row = g + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        float sum = d[i];
        for (int k = 0; k < 16; k++) {
            const int word = k / 2 % 4;
            const unsigned x = mma_a[first + 4 * (row % 8) + word][row / 8 + 2 * (k / 8)];
            unsigned y, bits[2];
            memcpy(&y, b + k / 8 * half + column / 8 * row8 + column % 8 * 4 + word, sizeof y);
            bits[0] = k % 2 ? x & 0xffff0000u : x << 16, bits[1] = k % 2 ? y & 0xffff0000u : y << 16;
            float pair[2];
            memcpy(pair, bits, sizeof pair);
            sum += pair[0] * pair[1];
        }
        d[i] = sum;
    }
    wait_in(AT_WARP);
}

static int all_in(int from, int to, int state)
{
    for (int i = from; i < to; i++)
        if (states[i] != state)
            return 0;
    return 1;
}

/* One block: run every thread to its next stop, release those whose partners have arrived too. */
static int run_block(char *stacks)
{
    for (int i = 0; i < threads; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks + i * STACK_BYTES;
        contexts[i].uc_stack.ss_size = STACK_BYTES;
        contexts[i].uc_link = &scheduler;
        makecontext(&contexts[i], begin, 0);
        states[i] = READY;
    }
    for (;;) {
        for (int i = 0; i < threads; i++) {
            if (states[i] != READY)
                continue;
            tw_thread = i;
            swapcontext(&scheduler, &contexts[i]);
        }
        if (all_in(0, threads, DONE))
            return 0;
        int released = 0;
        if (all_in(0, threads, AT_BARRIER)) {
            memset(states, 0, threads * sizeof *states);
            released = 1;
        }
        for (int warp = 0; warp < threads; warp += WARP) {
            const int end = warp + WARP < threads ? warp + WARP : threads;
            if (all_in(warp, end, AT_WARP)) {
                memset(states + warp, 0, (end - warp) * sizeof *states);
                released = 1;
            }
        }
        if (!released)
            return 1;
    }
}

int tw_run(void **args, const int *grid, int count, long shared_floats)
{
    const size_t bytes = count * (size_t)STACK_BYTES;
    char *stacks = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        return 2;
    arguments = args;
    threads = count;
    contexts = malloc(count * sizeof *contexts);
    states = malloc(count * sizeof *states);
    mma_a = malloc(count * sizeof *mma_a);
    mma_b = malloc(count * sizeof *mma_b);
    const size_t shared_bytes = (shared_floats * 4 + 63) / 64 * 64 + 64;
    tw_shared_memory = aligned_alloc(64, shared_bytes);
    int status = contexts && states && mma_a && mma_b && tw_shared_memory ? 0 : 2;
    for (int z = 0; z < grid[2] && !status; z++)
        for (int y = 0; y < grid[1] && !status; y++)
            for (int x = 0; x < grid[0] && !status; x++) {
                tw_block[0] = x, tw_block[1] = y, tw_block[2] = z;
                memset(tw_shared_memory, 0xff, shared_bytes); /* nothing may rest on zeros: NaN */
                status = run_block(stacks);
            }
    free(contexts), free(states), free(mma_a), free(mma_b), free(tw_shared_memory);
    munmap(stacks, bytes);
    return status;
}
