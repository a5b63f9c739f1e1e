/* Runs a kernel of the host dialect: blocks one after the other, or those of a cluster, or all of them,
   together where they wait for each other; the threads of a block are coroutines that hand over at barriers. Linked with one
   kernel, whose `tw_item` runs one thread.

   0      done
   1      some threads of a block wait at a barrier that others left out, or for a copy in bulk or a
          value of another block that nobody sends
   2      no memory
   3      a copy in bulk was asked for while its barrier counted another

   Copies arrive no sooner than they are waited for, so that what reads them too early, or waits for
   the wrong ones, finds what was in shared memory before. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_BYTES (64l << 10)
#define WARP 32

enum { READY, AT_BARRIER, AT_WARP, AT_CLUSTER, YIELDED, DONE };

int tw_thread, tw_block[3];
float *tw_shared_memory;

static ucontext_t scheduler;
static ucontext_t *contexts;
static int *states;
static void **arguments;
static int threads;
static int base; /* of this block's threads among all that run together */
static size_t block_floats; /* of shared memory, from one block to the next that runs beside it */

void tw_item(void **args);

static void begin(void)
{
    tw_item(arguments);
    states[base + tw_thread] = DONE;
    swapcontext(&contexts[base + tw_thread], &scheduler);
}

static void wait_in(int state)
{
    const int self = base + tw_thread;
    states[self] = state;
    swapcontext(&contexts[self], &scheduler);
}

void tw_barrier(void) { wait_in(AT_BARRIER); }

void tw_cluster_barrier(void) { wait_in(AT_CLUSTER); }

/* Where another block that runs beside this one has what this one has at `p` in shared memory. */
const float *tw_of_block(const float *p, int block)
{
    return p + (block - base / threads) * (long)block_floats;
}

struct copy {
    float *to;
    const float *from; /* 0: zeros */
    int floats;
};

/* Copies of a thread in their order; group g ends before copy ends[g]. */
struct queue {
    struct copy *copies;
    int *ends;
    int count, groups, arrived, room, group_room;
};

/* What a barrier counts: copies in bulk that have come, and one that has not. */
struct bulk {
    const float *barrier;
    struct copy copy;
    int come, asked;
};

enum { BULKS = 64 };
static struct queue *queues;
static struct bulk bulks[BULKS];
static int asked_for; /* copies in bulk, by all threads of the block */
static int failed;

static void arrive(const struct copy *copy)
{
    if (copy->from)
        memcpy(copy->to, copy->from, copy->floats * sizeof(float));
    else
        memset(copy->to, 0, copy->floats * sizeof(float));
}

void tw_copy(float *to, const float *from, int floats)
{
    struct queue *q = &queues[base + tw_thread];
    if (q->count == q->room) {
        const int room = q->room ? 2 * q->room : 64;
        struct copy *more = realloc(q->copies, room * sizeof *more);
        if (!more) {
            failed = 2;
            return;
        }
        q->copies = more, q->room = room;
    }
    q->copies[q->count++] = (struct copy){to, from, floats};
}

void tw_copy_commit(void)
{
    struct queue *q = &queues[base + tw_thread];
    if (q->groups == q->group_room) {
        const int room = q->group_room ? 2 * q->group_room : 16;
        int *more = realloc(q->ends, room * sizeof *more);
        if (!more) {
            failed = 2;
            return;
        }
        q->ends = more, q->group_room = room;
    }
    q->ends[q->groups++] = q->count;
}

void tw_copy_wait(int others)
{
    struct queue *q = &queues[base + tw_thread];
    for (; q->arrived < q->groups - others; q->arrived++) {
        const int first = q->arrived ? q->ends[q->arrived - 1] : 0;
        for (int i = first; i < q->ends[q->arrived]; i++)
            arrive(&q->copies[i]);
    }
    if (q->arrived == q->groups && (!q->groups || q->ends[q->groups - 1] == q->count))
        q->count = q->groups = q->arrived = 0;
}

static struct bulk *bulk_of(const float *barrier)
{
    for (int i = 0; i < BULKS; i++)
        if (bulks[i].barrier == barrier || !bulks[i].barrier)
            return &bulks[i];
    return 0;
}

void tw_bulk_begin(float *barrier)
{
    struct bulk *bulk = bulk_of(barrier);
    if (bulk)
        *bulk = (struct bulk){.barrier = barrier};
    else
        failed = 2;
}

void tw_bulk_copy(float *to, const float *from, int floats, float *barrier)
{
    struct bulk *bulk = bulk_of(barrier);
    if (!bulk || bulk->asked > bulk->come) {
        failed = 3;
        return;
    }
    bulk->copy = (struct copy){to, from, floats};
    bulk->asked++, asked_for++;
}

/* As the instruction: until the parity of what has come is another than that of `used`. */
void tw_bulk_wait(const float *barrier, int used)
{
    struct bulk *bulk = bulk_of(barrier);
    while (bulk && !failed && (bulk->come & 1) == (used & 1)) {
        if (bulk->asked > bulk->come) {
            arrive(&bulk->copy);
            bulk->come++;
        } else {
            wait_in(READY);
        }
    }
}

/* Operands of a matrix instruction, one row for each thread of the block. */
static unsigned (*mma_a)[4], (*mma_b)[2];

/* Lane 4 g + t holds a[g][t], a[g+8][t], a[g][t+4], a[g+8][t+4], b[t][g], b[t+4][g] and
   d[g][2t], d[g][2t+1], d[g+8][2t], d[g+8][2t+1] (PTX ISA, m16n8k8 with tf32). The low 13 bits of
   an operand are not looked at. */
void tw_mma_tf32(float *d, const unsigned *a, const unsigned *b)
{
    const int lane = tw_thread % WARP, first = base + tw_thread - lane, g = lane / 4, t = lane % 4;
    memcpy(mma_a[base + tw_thread], a, sizeof mma_a[0]);
    memcpy(mma_b[base + tw_thread], b, sizeof mma_b[0]);
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

/* Another lane's value. */
float tw_lane_xor(float value, int mask)
{
    const int lane = tw_thread % WARP, first = base + tw_thread - lane;
    float other;
    memcpy(mma_a[base + tw_thread], &value, sizeof value);
    wait_in(AT_WARP);
    memcpy(&other, mma_a[first + (lane ^ mask)], sizeof other);
    wait_in(AT_WARP);
    return other;
}

static int sent; /* values, by all blocks */

void tw_send(float *p, float value, int tag)
{
    p[0] = value;
    memcpy(p + 1, &tag, sizeof tag);
    sent++;
}

/* Let the others go on: somebody may send what this thread waits for. */
void tw_yield(void) { wait_in(YIELDED); }

static float number(unsigned bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Four warps multiply 16 rows each; b holds columns as [half][n / 8][n % 8][word % 4], `half` and `row8`
   floats apart. Lane 4 g + t has words t and t + 4 of rows g and g + 8, and d[4 j + 2 h + i] =
   d[g + 8 h][8 j + 2 t + i]. A word is one depth in TF32, or two neighbours in bf16. */
static void wgmma(int n, float *d, const unsigned *a, const float *b, int half, int row8, int pairs)
{
    const int lane = tw_thread % WARP, first = base + tw_thread - lane, g = lane / 4, t = lane % 4;
    memcpy(mma_a[base + tw_thread], a, sizeof mma_a[0]);
    wait_in(AT_WARP);
    for (int i = 0; i < n / 2; i++) {
        const int row = g + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        float sum = d[i];
        for (int word = 0; word < 8; word++) {
            const unsigned x = mma_a[first + 4 * (row % 8) + word % 4][row / 8 + 2 * (word / 4)];
            unsigned y;
            memcpy(&y, b + word / 4 * half + column / 8 * row8 + column % 8 * 4 + word % 4, sizeof y);
            if (pairs) {
                sum += number(x << 16) * number(y << 16);
                sum += number(x & 0xffff0000u) * number(y & 0xffff0000u);
            } else {
                sum += number(x & 0xffffe000u) * number(y & 0xffffe000u);
            }
        }
        d[i] = sum;
    }
    wait_in(AT_WARP);
}

void tw_wgmma_tf32(int n, float *d, const unsigned *a, const float *b, int half, int row8)
{
    wgmma(n, d, a, b, half, row8, 0);
}

void tw_wgmma_bf16(int n, float *d, const unsigned *a, const float *b, int half, int row8)
{
    wgmma(n, d, a, b, half, row8, 1);
}

/* f16, or bf16 where `wide`, as a float. */
static float half_number(unsigned bits, int wide)
{
    if (wide)
        return number(bits << 16);
    const unsigned sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
    if (rest < 0x00800000u) {
        const float small = number(rest + 0x38800000u) - number(0x38800000u);
        return sign ? -small : small;
    }
    return number(sign | (rest + (rest >= 0x0f800000u ? 0x70000000u : 0x38000000u)));
}

static float half_products(unsigned x, unsigned y, int wide)
{
    return half_number(x & 0xffffu, wide) * half_number(y & 0xffffu, wide)
        + half_number(x >> 16, wide) * half_number(y >> 16, wide);
}

/* Leave this thread's words of both operands for its warp, and wait for those of the others. */
static void offer(const unsigned *a, const unsigned *b)
{
    memcpy(mma_a[base + tw_thread], a, sizeof mma_a[0]);
    memcpy(mma_b[base + tw_thread], b, sizeof mma_b[0]);
    wait_in(AT_WARP);
}

/* Word k of eight of a row of a, and of a column of b, in the warp whose first thread is `first`. */
static unsigned word_of_row(int first, int row, int k)
{
    return mma_a[first + 4 * (row % 8) + k % 4][row / 8 + 2 * (k / 4)];
}

static unsigned word_of_column(int first, int column, int k)
{
    return mma_b[first + 4 * column + k % 4][k / 4];
}

/* As tw_mma_tf32, with two depths in each word: word t and t + 4 of rows g and g + 8, and of column g
   (PTX ISA, m16n8k16 with .f16 and .bf16). */
void tw_mma_half(int wide, float *d, const unsigned *a, const unsigned *b)
{
    const int lane = tw_thread % WARP, first = base + tw_thread - lane, g = lane / 4, t = lane % 4;
    offer(a, b);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++)
            d[i] += half_products(
                word_of_row(first, g + 8 * (i / 2), k), word_of_column(first, 2 * t + i % 2, k), wide);
    wait_in(AT_WARP);
}

/* Four tiles of 8 x 8 halves, keys down and columns across, two down before two across; a lane gets
   two neighbours down column g of each (PTX ISA, ldmatrix with .trans). `pitch` counts words. */
void tw_columns4(unsigned *x, const float *place, int pitch)
{
    const int lane = tw_thread % WARP, g = lane / 4, t = lane % 4;
    const unsigned short *const first = (const unsigned short *)place;
    for (int q = 0; q < 4; q++) {
        const unsigned short *const at = first + (8 * (q % 2) + 2 * t) * 2 * pitch + 8 * (q / 2) + g;
        x[q] = (unsigned)at[0] | (unsigned)at[2 * pitch] << 16;
    }
}

/* Four such tiles, rows down and depths across, two across before two down; a lane gets two
   neighbours along row g of each (PTX ISA, ldmatrix). */
void tw_rows4(unsigned *x, const float *place, int pitch)
{
    const int lane = tw_thread % WARP, g = lane / 4, t = lane % 4;
    for (int q = 0; q < 4; q++)
        memcpy(x + q, place + (8 * (q / 2) + g) * pitch + 4 * (q % 2) + t, sizeof *x);
}

/* A word of row `row` of a tile in shared memory whose rows of kb elements are swizzled. */
static unsigned swizzled(const float *tile, int kb, int row, int word)
{
    const int chunk = word / 4 ^ row / (64 / kb) % (kb / 8);
    unsigned bits;
    memcpy(&bits, tile + row * (kb / 2) + chunk * 4 + word % 4, sizeof bits);
    return bits;
}

/* Both operands lie in shared memory: 64 rows of a, n columns of b, sixteen depths from 16 step on. */
void tw_wgmma_half(int wide, int n, int kb, float *d, const float *a, const float *b, int step)
{
    const int lane = tw_thread % WARP, g = lane / 4, t = lane % 4;
    for (int i = 0; i < n / 2; i++) {
        const int row = tw_thread / WARP % 4 * 16 + g + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + 2 * t + i % 2;
        for (int word = 8 * step; word < 8 * step + 8; word++)
            d[i] += half_products(swizzled(a, kb, row, word), swizzled(b, kb, column, word), wide);
    }
}

/* A byte of a word as a number; `kinds`: 1 the second factor has a sign, 2 the first. */
static int byte_products(unsigned x, unsigned y, int kinds)
{
    int sum = 0;
    for (int q = 0; q < 32; q += 8) {
        const int a = kinds & 2 ? (signed char)(x >> q) : (unsigned char)(x >> q);
        const int b = kinds & 1 ? (signed char)(y >> q) : (unsigned char)(y >> q);
        sum += a * b;
    }
    return sum;
}

/* As tw_mma_half, with four depths in each word (PTX ISA, m16n8k32 with .u8 and .s8). */
void tw_mma_int8(int kinds, int *d, const unsigned *a, const unsigned *b)
{
    const int lane = tw_thread % WARP, first = base + tw_thread - lane, g = lane / 4, t = lane % 4;
    offer(a, b);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 8; k++)
            d[i] += byte_products(
                word_of_row(first, g + 8 * (i / 2), k), word_of_column(first, 2 * t + i % 2, k), kinds);
    wait_in(AT_WARP);
}

void tw_wgmma_int8(int kinds, int n, int kb, int *d, const float *a, const float *b, int step)
{
    const int lane = tw_thread % WARP, g = lane / 4, t = lane % 4;
    for (int i = 0; i < n / 2; i++) {
        const int row = tw_thread / WARP % 4 * 16 + g + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + 2 * t + i % 2;
        for (int word = 8 * step; word < 8 * step + 8; word++)
            d[i] += byte_products(swizzled(a, kb, row, word), swizzled(b, kb, column, word), kinds);
    }
}

static int all_in(int from, int to, int state)
{
    for (int i = from; i < to; i++)
        if (states[i] != state)
            return 0;
    return 1;
}

/* So many blocks together, from `first` on and `apart` from each other: run every thread to its next
   stop, release those whose partners have arrived too. */
static int run_blocks(char *stacks, const int *grid, int first, int blocks, int apart, float *shared)
{
    for (int i = 0; i < blocks * threads; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks + i * STACK_BYTES;
        contexts[i].uc_stack.ss_size = STACK_BYTES;
        contexts[i].uc_link = &scheduler;
        makecontext(&contexts[i], begin, 0);
        states[i] = READY;
        queues[i].count = queues[i].groups = queues[i].arrived = 0;
    }
    memset(bulks, 0, sizeof bulks);
    for (;;) {
        int released = 0;
        const int before = asked_for + sent;
        for (int b = 0; b < blocks; b++) {
            const int block = first + b * apart;
            base = b * threads;
            tw_block[0] = block % grid[0];
            tw_block[1] = block / grid[0] % grid[1];
            tw_block[2] = block / grid[0] / grid[1];
            tw_shared_memory = shared + b * block_floats;
            for (int i = 0; i < threads; i++) {
                const int was = states[base + i];
                if (was != READY && was != YIELDED)
                    continue;
                tw_thread = i;
                states[base + i] = READY;
                swapcontext(&scheduler, &contexts[base + i]);
                released |= was == YIELDED && states[base + i] != YIELDED;
            }
            if (failed)
                return failed;
            if (all_in(base, base + threads, AT_BARRIER)) {
                memset(states + base, 0, threads * sizeof *states);
                released = 1;
            }
            for (int warp = base; warp < base + threads; warp += WARP) {
                const int end = warp + WARP < base + threads ? warp + WARP : base + threads;
                if (all_in(warp, end, AT_WARP)) {
                    memset(states + warp, 0, (end - warp) * sizeof *states);
                    released = 1;
                }
            }
        }
        if (all_in(0, blocks * threads, AT_CLUSTER)) {
            memset(states, 0, blocks * threads * sizeof *states);
            released = 1;
        }
        if (all_in(0, blocks * threads, DONE))
            return 0;
        if (!released && asked_for + sent == before)
            return 1;
    }
}

/* `cluster`: blocks along the third dimension of the grid that run together; 0: all blocks do. */
int tw_run(void **args, const int *grid, int count, long shared_floats, int cluster)
{
    const int plane = grid[0] * grid[1], all = plane * grid[2];
    const int beside = cluster ? cluster : all, apart = cluster > 1 ? plane : 1;
    const size_t running = beside * (size_t)count, bytes = running * STACK_BYTES;
    char *stacks = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED)
        return 2;
    arguments = args;
    threads = count;
    contexts = malloc(running * sizeof *contexts);
    states = malloc(running * sizeof *states);
    mma_a = malloc(running * sizeof *mma_a);
    mma_b = malloc(running * sizeof *mma_b);
    queues = calloc(running, sizeof *queues);
    failed = 0;
    block_floats = (shared_floats + 15) / 16 * 16 + 16;
    float *shared = aligned_alloc(64, beside * block_floats * sizeof(float));
    int status = contexts && states && mma_a && mma_b && queues && shared ? 0 : 2;
    for (int group = 0; group < all / beside && !status; group++) {
        const int first = group / apart * apart * beside + group % apart;
        memset(shared, 0xff, beside * block_floats * sizeof(float)); /* nothing may rest on zeros: NaN */
        status = run_blocks(stacks, grid, first, beside, apart, shared);
    }
    for (size_t i = 0; queues && i < running; i++)
        free(queues[i].copies), free(queues[i].ends);
    free(contexts), free(states), free(mma_a), free(mma_b), free(queues), free(shared);
    munmap(stacks, bytes);
    return status;
}
