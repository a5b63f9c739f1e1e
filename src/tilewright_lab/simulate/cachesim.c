/* Replays the address stream of a tiled loop nest through caches. Driven by tilewright_lab/simulate/cachesim.py.
 *
 * The nest is data: `loop_dim` and `loop_tile` list the loops from the outermost inwards, each
 * cutting the current range of one dimension into tiles. The body is one register tile. Every
 * access touches the distinct words of its register tile, in row-major order of its indices.
 * Addresses are words; a line belongs to one tensor. A cache is `sets` LRU lists of `ways` lines
 * (fully associative: one set), linked through arrays indexed by line, so a touch costs O(1).
 */
#include <stdint.h>
#include <stdlib.h>

enum { MAX_DIMS = 16, MAX_CACHES = 4, MAX_INDEX = 8 };
enum { READ, WRITE, WRITEBACK };

typedef struct {
    int64_t sets, ways;
    int32_t *next, *prev, *head, *tail, *used;
    uint8_t *state; /* bit 0: resident, bit 1: dirty */
    int64_t *fills, *writebacks;
} Cache;

typedef struct {
    int64_t terms, first, stride, span; /* term range; words per index step; distinct values + 1 */
} Index;

typedef struct {
    int64_t tensor, base, indices, held, reads, writes;
    Index index[MAX_INDEX];
    int64_t *value[MAX_INDEX], count[MAX_INDEX];
    int64_t lo[MAX_DIMS], hi[MAX_DIMS]; /* the tile in registers, when held */
    int full;
    int64_t loads, stores;
} Access;

typedef struct {
    int dims, loops, accesses, caches;
    const int64_t *loop_dim, *loop_tile, *term_dim, *term_coefficient;
    int64_t lo[MAX_DIMS], hi[MAX_DIMS], line_words;
    const int32_t *owner;
    Access *access;
    Cache cache[MAX_CACHES];
    uint8_t *mark;
} Nest;

static void unlink_line(Cache *c, int64_t set, int32_t line)
{
    int32_t before = c->prev[line], after = c->next[line];
    if (before < 0) c->head[set] = after; else c->next[before] = after;
    if (after < 0) c->tail[set] = before; else c->prev[after] = before;
}

static void push_front(Cache *c, int64_t set, int32_t line)
{
    int32_t first = c->head[set];
    c->prev[line] = -1;
    c->next[line] = first;
    if (first < 0) c->tail[set] = line; else c->prev[first] = line;
    c->head[set] = line;
}

static void touch(Nest *nest, int level, int32_t line, int kind)
{
    if (level == nest->caches) return;
    Cache *c = &nest->cache[level];
    int64_t set = line % c->sets;
    if (c->state[line]) {
        if (c->head[set] != line) {
            unlink_line(c, set, line);
            push_front(c, set, line);
        }
        if (kind != READ) c->state[line] = 3;
        return;
    }
    if (kind != WRITEBACK) { /* a whole line that comes down is not fetched from below */
        c->fills[nest->owner[line]]++;
        touch(nest, level + 1, line, READ);
    }
    if (c->used[set] == c->ways) {
        int32_t victim = c->tail[set];
        uint8_t state = c->state[victim];
        unlink_line(c, set, victim);
        c->state[victim] = 0;
        if (state & 2) {
            c->writebacks[nest->owner[victim]]++;
            touch(nest, level + 1, victim, WRITEBACK);
        }
    } else {
        c->used[set]++;
    }
    push_front(c, set, line);
    c->state[line] = kind == READ ? 1 : 3;
}

/* The distinct values, ascending, of one index expression over the tile lo..hi, in words. */
static void list_values(Nest *nest, Access *a, int i, const int64_t *lo, const int64_t *hi)
{
    const Index *x = &a->index[i];
    int64_t start = 0, count = 0, *value = a->value[i];
    for (int64_t t = x->first; t < x->first + x->terms; t++)
        start += nest->term_coefficient[t] * lo[nest->term_dim[t]];
    if (x->terms <= 1) {
        int64_t d = x->terms ? nest->term_dim[x->first] : 0;
        int64_t extent = x->terms ? hi[d] - lo[d] : 1;
        int64_t step = x->terms ? nest->term_coefficient[x->first] : 0;
        for (int64_t p = 0; p < extent; p++) value[count++] = (start + p * step) * x->stride;
        a->count[i] = count;
        return;
    }
    int64_t top = 0;
    nest->mark[0] = 1;
    for (int64_t t = x->first; t < x->first + x->terms; t++) {
        int64_t d = nest->term_dim[t], step = nest->term_coefficient[t];
        int64_t reach = (hi[d] - lo[d] - 1) * step;
        /* spread every value marked so far; from the top, so that no new mark is spread again */
        for (int64_t v = top; v >= 0; v--)
            if (nest->mark[v])
                for (int64_t p = step; p <= reach; p += step) nest->mark[v + p] = 1;
        top += reach;
    }
    for (int64_t v = 0; v <= top; v++) {
        if (nest->mark[v]) value[count++] = (start + v) * x->stride;
        nest->mark[v] = 0;
    }
    a->count[i] = count;
}

static int64_t sweep(Nest *nest, Access *a, int i, int64_t address, int kind)
{
    if (i == a->indices) {
        touch(nest, 0, (int32_t)(address / nest->line_words), kind);
        return 1;
    }
    int64_t words = 0;
    for (int64_t p = 0; p < a->count[i]; p++)
        words += sweep(nest, a, i + 1, address + a->value[i][p], kind);
    return words;
}

static int64_t sweep_tile(Nest *nest, Access *a, const int64_t *lo, const int64_t *hi, int kind)
{
    for (int i = 0; i < a->indices; i++) list_values(nest, a, i, lo, hi);
    return sweep(nest, a, 0, a->base, kind);
}

static int same_tile(const Nest *nest, const Access *a)
{
    for (int i = 0; i < a->indices; i++)
        for (int64_t t = a->index[i].first; t < a->index[i].first + a->index[i].terms; t++) {
            int64_t d = nest->term_dim[t];
            if (a->lo[d] != nest->lo[d] || a->hi[d] != nest->hi[d]) return 0;
        }
    return 1;
}

static void release(Nest *nest, Access *a)
{
    if (a->full && a->writes) a->stores += sweep_tile(nest, a, a->lo, a->hi, WRITE);
    a->full = 0;
}

static void step(Nest *nest)
{
    for (int n = 0; n < nest->accesses; n++) {
        Access *a = &nest->access[n];
        if (a->full && a->held && same_tile(nest, a)) continue;
        release(nest, a);
        if (a->reads) a->loads += sweep_tile(nest, a, nest->lo, nest->hi, READ);
        for (int d = 0; d < nest->dims; d++) {
            a->lo[d] = nest->lo[d];
            a->hi[d] = nest->hi[d];
        }
        a->full = 1;
    }
}

static void visit(Nest *nest, int loop)
{
    if (loop == nest->loops) {
        step(nest);
        return;
    }
    int64_t d = nest->loop_dim[loop], tile = nest->loop_tile[loop];
    int64_t lo = nest->lo[d], hi = nest->hi[d];
    for (int64_t at = lo; at < hi; at += tile) {
        nest->lo[d] = at;
        nest->hi[d] = at + tile < hi ? at + tile : hi;
        visit(nest, loop + 1);
    }
    nest->lo[d] = lo;
    nest->hi[d] = hi;
}

static void *zeroed(int64_t count, size_t size, int *failed)
{
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory) *failed = 1;
    return memory;
}

static void open_cache(Cache *c, int64_t sets, int64_t ways, int64_t lines, int *failed)
{
    c->sets = sets;
    c->ways = ways;
    c->next = zeroed(lines, sizeof *c->next, failed);
    c->prev = zeroed(lines, sizeof *c->prev, failed);
    c->state = zeroed(lines, sizeof *c->state, failed);
    c->head = zeroed(sets, sizeof *c->head, failed);
    c->tail = zeroed(sets, sizeof *c->tail, failed);
    c->used = zeroed(sets, sizeof *c->used, failed);
    if (!*failed)
        for (int64_t s = 0; s < sets; s++) c->head[s] = c->tail[s] = -1;
}

static void close_cache(Cache *c)
{
    free(c->next); free(c->prev); free(c->state); free(c->head); free(c->tail); free(c->used);
}

/* Dirty lines that are left go down, level by level, least recently used first. */
static void flush(Nest *nest)
{
    for (int level = 0; level < nest->caches; level++) {
        Cache *c = &nest->cache[level];
        for (int64_t s = 0; s < c->sets; s++)
            for (int32_t line = c->tail[s]; line >= 0; line = c->prev[line])
                if (c->state[line] & 2) {
                    c->writebacks[nest->owner[line]]++;
                    touch(nest, level + 1, line, WRITEBACK);
                }
    }
}

/* access_table: six numbers an access (tensor, base, indices, held, reads, writes);
 * index_table: three an index (terms, stride, span), in order of access, then of index.
 * counts (by tensor): loads, stores, then fills and writebacks of every cache.
 * Returns 0, or 1 when memory ran out, or 2 when a fixed limit is exceeded. */
int tilewright_simulate(
    int dims, const int64_t *sizes, int loops, const int64_t *loop_dim, const int64_t *loop_tile,
    int accesses, const int64_t *access_table, const int64_t *index_table,
    const int64_t *term_dim, const int64_t *term_coefficient,
    int tensors, int64_t lines, int64_t line_words, const int32_t *owner,
    int caches, const int64_t *sets, const int64_t *ways, int64_t *counts)
{
    if (dims > MAX_DIMS || caches > MAX_CACHES) return 2;
    int failed = 0;
    int64_t widest = 1, term = 0;
    Nest nest = {.dims = dims, .loops = loops, .accesses = accesses, .caches = caches,
                 .loop_dim = loop_dim, .loop_tile = loop_tile, .term_dim = term_dim,
                 .term_coefficient = term_coefficient, .line_words = line_words, .owner = owner};
    for (int d = 0; d < dims; d++) nest.hi[d] = sizes[d];
    nest.access = zeroed(accesses, sizeof *nest.access, &failed);
    for (int n = 0; n < accesses && !failed; n++, access_table += 6) {
        Access *a = &nest.access[n];
        a->tensor = access_table[0];
        a->base = access_table[1];
        a->indices = access_table[2];
        a->held = access_table[3];
        a->reads = access_table[4];
        a->writes = access_table[5];
        if (a->indices > MAX_INDEX) {
            a->indices = 0;
            failed = 2;
        }
        for (int i = 0; i < a->indices; i++, index_table += 3) {
            a->index[i] = (Index){index_table[0], term, index_table[1], index_table[2]};
            term += index_table[0];
            if (index_table[2] > widest) widest = index_table[2];
            a->value[i] = zeroed(index_table[2], sizeof **a->value, &failed);
        }
    }
    nest.mark = zeroed(widest, sizeof *nest.mark, &failed);
    for (int k = 0; k < caches; k++) {
        open_cache(&nest.cache[k], sets[k], ways[k], lines, &failed);
        nest.cache[k].fills = counts + (2 + 2 * k) * tensors;
        nest.cache[k].writebacks = counts + (3 + 2 * k) * tensors;
    }
    if (!failed) {
        visit(&nest, 0);
        for (int n = 0; n < accesses; n++) release(&nest, &nest.access[n]);
        flush(&nest);
        for (int n = 0; n < accesses; n++) {
            counts[nest.access[n].tensor] += nest.access[n].loads;
            counts[tensors + nest.access[n].tensor] += nest.access[n].stores;
        }
    }
    for (int k = 0; k < caches; k++) close_cache(&nest.cache[k]);
    for (int n = 0; n < accesses && nest.access; n++)
        for (int i = 0; i < nest.access[n].indices; i++) free(nest.access[n].value[i]);
    free(nest.access);
    free(nest.mark);
    return failed;
}
