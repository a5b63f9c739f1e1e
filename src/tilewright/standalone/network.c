/* What a network in C does when it is opened and when it is called. In front of this stand the
   thread pool and the tables: kernels, PACKS sets of packed constants, and the steps of each of
   SIZES sizes. Every step is one kernel, whose parts the pool runs; the next begins when all of
   them are done. */

enum { LINE = 64, HUGE_PAGE = 1 << 21 };

struct tw_net {
    char *packed, *kept, *arena, *scratch;
    long packed_at[PACKS + 1], kept_at[KEPT + 1];
    tw_args args[MOST_STEPS + 1];
    const float *reads[MOST_READS + 1];
    pthread_mutex_t lock; /* callers share the arena and the arguments */
};

static long whole_lines(long bytes) { return (bytes + LINE - 1) / LINE * LINE; }

/* Large blocks lie on large pages where the system has them: fewer misses of the TLB. */
static char *allocate(long bytes)
{
    const long unit = bytes < HUGE_PAGE ? LINE : HUGE_PAGE;
    char *made = aligned_alloc((size_t)unit, (size_t)((bytes + unit) / unit * unit));
#ifdef MADV_HUGEPAGE
    if (made && unit == HUGE_PAGE)
        madvise(made, (size_t)bytes, MADV_HUGEPAGE);
#endif
    return made;
}

/* Words of eight bytes, little endian, each times an odd number, which has an inverse: no single
   word can change unnoticed. */
static uint64_t sum_of(const unsigned char *data, long bytes)
{
    uint64_t sum = 0;
    for (long at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= (uint64_t)data[at + i] << 8 * i;
        sum += word * (uint64_t)(at / 4 + 1);
    }
    return sum;
}

static int fails(const char **why, const char *reason)
{
    if (why)
        *why = reason;
    return 0;
}

/* All of the weights file, or NULL. */
static char *read_weights(const char *path, const char **why)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fails(why, "the weights cannot be opened");
        return NULL;
    }
    char *data = allocate(DATA_BYTES + 1);
    if (!data) {
        fails(why, "there is not enough memory for the weights");
    } else if (fread(data, 1, DATA_BYTES + 1, file) != DATA_BYTES ||
               sum_of((unsigned char *)data, DATA_BYTES) != DATA_SUM) {
        free(data);
        data = NULL;
        fails(why, "the weights are damaged or belong to another network");
    }
    fclose(file);
    return data;
}

/* What every thread of the pool packs: its share of all sets, out of the weights as they are. */
typedef struct {
    struct tw_net *net;
    const char *data;
} packing;

static void pack_share(const void *args, long part)
{
    const packing *job = args;
    for (long i = part; i < PACKS; i += THREADS) {
        const float *given[MOST_CONSTANTS + 1];
        for (long c = 0; c < packs[i].count; c++)
            given[c] = (const float *)(job->data + constants[packs[i].first + c].offset);
        kernels[packs[i].kernel].pack(numbers + packs[i].numbers, given,
                                      (float *)(job->net->packed + job->net->packed_at[i]));
    }
}

static const char *locate(const struct tw_net *net, const void *const *arrays, const place *p)
{
    const char *base = p->kind == ARENA ? net->arena
                       : p->kind == CONSTANT ? net->kept + net->kept_at[p->number]
                                             : (const char *)arrays[p->number];
    return base + p->offset;
}

static int prepare(struct tw_net *net, const char *data, const char **why)
{
    long packed = 0, kept_bytes = 0;
    for (long i = 0; i < PACKS; i++) {
        net->packed_at[i] = packed;
        packed += whole_lines(packs[i].bytes);
    }
    for (long i = 0; i < KEPT; i++) {
        net->kept_at[i] = kept_bytes;
        kept_bytes += whole_lines(kept[i].bytes);
    }
    net->packed = allocate(packed);
    net->kept = allocate(kept_bytes);
    net->arena = allocate(ARENA_BYTES);
    net->scratch = allocate(SCRATCH_BYTES);
    if (!net->packed || !net->kept || !net->arena || !net->scratch)
        return fails(why, "there is not enough memory for the network");
    for (long i = 0; i < KEPT; i++)
        memcpy(net->kept + net->kept_at[i], data + kept[i].offset, (size_t)kept[i].bytes);
    const packing job = {net, data};
    tw_net_pool_run(pack_share, &job, THREADS);
    return 1;
}

tw_net *tw_net_open(const char *weights, const char **why)
{
    if (!(NEEDED)) {
        fails(why, "this processor cannot run what the network was compiled for: " ISA);
        return NULL;
    }
    struct tw_net *net = calloc(1, sizeof *net);
    if (!net) {
        fails(why, "there is not enough memory for the network");
        return NULL;
    }
    pthread_mutex_init(&net->lock, NULL);
    char *data = read_weights(weights, why);
    if (!data || !prepare(net, data, why)) {
        tw_net_close(net);
        net = NULL;
    }
    free(data);
    return net;
}

void tw_net_close(tw_net *net)
{
    if (!net)
        return;
    pthread_mutex_destroy(&net->lock);
    free(net->packed);
    free(net->kept);
    free(net->arena);
    free(net->scratch);
    free(net);
}

typedef struct {
    const kernel *kernel;
    const tw_args *args;
    long shift;
} running;

/* A part works in the same memory in every step: its core's caches hold it. Parts that share theirs
   find each other by the address of their arguments. */
static void run_part(const void *given, long part)
{
    const running *job = given;
    if (job->shift == 0) {
        job->kernel->part(job->args, part);
        return;
    }
    tw_args args = *job->args;
    args.scratch += part * job->shift;
    job->kernel->part(&args, part);
}

static void execute(struct tw_net *net, const size *at, const void *const *arrays)
{
    pthread_mutex_lock(&net->lock);
    for (long i = 0; i < at->reads; i++)
        net->reads[i] = (const float *)locate(net, arrays, &reads[at->first_read + i]);
    for (long i = 0; i < at->steps; i++) {
        const step *s = &steps[at->first_step + i];
        net->args[i] = (tw_args){
            .in = net->reads + s->first_read - at->first_read,
            .packed = (const float *)(net->packed + net->packed_at[s->pack]),
            .out = (float *)locate(net, arrays, &s->out),
            .scratch = net->scratch,
            .sizes = numbers + s->numbers,
        };
        const running job = {&kernels[s->kernel], &net->args[i], s->shift};
        tw_net_pool_run(run_part, &job, s->parts);
    }
    for (long i = 0; i < at->copies; i++) {
        const copy *c = &copies[at->first_copy + i];
        memcpy((void *)arrays[c->to], locate(net, arrays, &c->from), (size_t)c->bytes);
    }
    pthread_mutex_unlock(&net->lock);
}
