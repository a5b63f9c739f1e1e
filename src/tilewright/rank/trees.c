/* Regression trees on binned features, and gradients that rank. Called from rank/trees.py.
 *
 * A tree grows best-first: the leaf whose split gains most is split next, until there are `most`
 * leaves. The gain of a split is Newton's: GL^2/(HL+l) + GR^2/(HR+l) - G^2/(H+l) over gradients G
 * and weights H; a leaf's value is -G/(H+l). With gradients -w y and weights w that is the weighted
 * mean and the reduction of squared error: a tree of a forest.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BINS 256
#define AHEAD 8          /* rows that are fetched before they are counted */
#define MOST_SHARED 256 /* leaves whose sums are kept */

/* Gradients, weights and the number of rows of a bin, added at once; the fourth is not used. */
typedef double Sum __attribute__((vector_size(32)));
enum { G, H, N };

typedef struct {
    double gain;
    int64_t begin, end;
    int32_t node, feature, bin;
    Sum *sums; /* its own, where sums are shared between parent and children */
} Leaf;

typedef struct {
    int64_t features;
    const uint8_t *bins; /* rows x features */
    const double *g, *h;
    int32_t *rows; /* of the bag; those of a leaf lie together */
    const int32_t *allowed;
    const int32_t *bins_n; /* how many bins a feature has */
    int64_t allowed_n, tried, least;
    double lambda;
    uint64_t random;
    Sum *sums;
    int32_t *order;
} Grower;

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double score(double g, double h, double lambda) {
    return h + lambda > 0 ? g * g / (h + lambda) : 0.0;
}

/* The features that a node may be split by: `tried` of the allowed ones, others for every node. */
static void draw_features(Grower *t) {
    memcpy(t->order, t->allowed, t->allowed_n * sizeof *t->order);
    for (int64_t i = 0; i < t->tried && t->tried < t->allowed_n; i++) {
        int64_t j = i + (int64_t)(next_random(&t->random) % (uint64_t)(t->allowed_n - i));
        int32_t kept = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = kept;
    }
}

static Sum *new_sums(const Grower *t) {
    return aligned_alloc(sizeof(Sum), t->tried * BINS * sizeof(Sum));
}

static void fill(const Grower *t, int64_t begin, int64_t end, Sum *sums) {
    for (int64_t f = 0; f < t->tried; f++)
        memset(sums + f * BINS, 0, t->bins_n[t->order[f]] * sizeof *sums);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = t->rows[i];
        const uint8_t *bins = t->bins + row * t->features;
        Sum one = {t->g[row], t->h[row], 1.0, 0.0};
        if (i + AHEAD < end) {
            const uint8_t *later = t->bins + t->rows[i + AHEAD] * t->features;
            __builtin_prefetch(later);
            __builtin_prefetch(later + 64);
        }
        for (int64_t f = 0; f < t->tried; f++)
            sums[f * BINS + bins[t->order[f]]] += one;
    }
}

/* The best split of a leaf, from the sums over its rows. */
static Leaf split_of(const Grower *t, int32_t node, int64_t begin, int64_t end, Sum *sums) {
    Leaf leaf = {0.0, begin, end, node, -1, 0, sums};
    double g = 0, h = 0;
    for (int32_t bin = 0; bin < t->bins_n[t->order[0]]; bin++) {
        g += sums[bin][G];
        h += sums[bin][H];
    }
    double whole = score(g, h, t->lambda);
    for (int64_t f = 0; f < t->tried; f++) {
        const Sum *sum = sums + f * BINS;
        double gl = 0, hl = 0;
        int64_t n = 0;
        for (int32_t bin = 0; bin < t->bins_n[t->order[f]] - 1; bin++) {
            if (sum[bin][N] == 0.0)
                continue;
            gl += sum[bin][G];
            hl += sum[bin][H];
            n += (int64_t)sum[bin][N];
            if (n < t->least)
                continue;
            if (end - begin - n < t->least)
                break;
            double gain = score(gl, hl, t->lambda) + score(g - gl, h - hl, t->lambda) - whole;
            if (gain > leaf.gain) {
                leaf.gain = gain;
                leaf.feature = t->order[f];
                leaf.bin = bin;
            }
        }
    }
    return leaf;
}

/* A leaf from its rows alone; one that is too small to be split has no feature. */
static Leaf leaf_of(Grower *t, int32_t node, int64_t begin, int64_t end) {
    Leaf leaf = {0.0, begin, end, node, -1, 0, NULL};
    if (end - begin < 2 * t->least)
        return leaf;
    draw_features(t);
    fill(t, begin, end, t->sums);
    leaf = split_of(t, node, begin, end, t->sums);
    leaf.sums = NULL;
    return leaf;
}

/* Two leaves from their parent, whose sums they take: the smaller one's are counted, the other's
 * are what is left. Returns 0 if there is no memory. */
static int leaves_of(const Grower *t, Sum *sums, int64_t begin, int64_t middle, int64_t end,
                     int32_t node, Leaf found[2]) {
    int small = middle - begin > end - middle;
    int64_t from[2] = {begin, middle}, to[2] = {middle, end};
    Sum *own[2] = {sums, sums};
    for (int side = 0; side < 2; side++)
        found[side] = (Leaf){0.0, from[side], to[side], node + side, -1, 0, NULL};
    if (to[!small] - from[!small] < 2 * t->least) { /* then neither can be split */
        free(sums);
        return 1;
    }
    own[small] = new_sums(t);
    if (!own[small]) {
        free(sums);
        return 0;
    }
    fill(t, from[small], to[small], own[small]);
    for (int64_t f = 0; f < t->tried; f++)
        for (int64_t i = f * BINS; i < f * BINS + t->bins_n[t->order[f]]; i++)
            sums[i] -= own[small][i];
    for (int side = 0; side < 2; side++) {
        if (to[side] - from[side] >= 2 * t->least)
            found[side] = split_of(t, node + side, from[side], to[side], own[side]);
        else
            free(own[side]);
    }
    return 1;
}

/* Leaves as a heap, the largest gain on top. */
static void push(Leaf *heap, int64_t *n, Leaf leaf) {
    int64_t i = (*n)++;
    for (; i && heap[(i - 1) / 2].gain < leaf.gain; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = leaf;
}

static Leaf pop(Leaf *heap, int64_t *n) {
    Leaf top = heap[0], last = heap[--*n];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1].gain > heap[child].gain)
            child++;
        if (heap[child].gain <= last.gain)
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

static double value_of(const Grower *t, int64_t begin, int64_t end) {
    double g = 0, h = 0;
    for (int64_t i = begin; i < end; i++) {
        g += t->g[t->rows[i]];
        h += t->h[t->rows[i]];
    }
    return h + t->lambda > 0 ? -g / (h + t->lambda) : 0.0;
}

/* One tree. Nodes: feature (-1 for a leaf), the last bin that goes left, the left child (the right
 * one is the next), the value. Returns how many; at most 2 most - 1. -1: no memory. */
int64_t tw_grow(int64_t features, const uint8_t *bins, const double *g, const double *h,
                int32_t *rows, int64_t rows_n, const int32_t *bins_n, const int32_t *allowed,
                int64_t allowed_n, int64_t tried, int64_t most, int64_t least, double lambda,
                uint64_t seed, int32_t *feature, int32_t *bin, int32_t *left, double *value) {
    Grower t = {features, bins, g, h, rows, allowed, bins_n, allowed_n, tried,
                least, lambda, seed, NULL, NULL};
    Leaf *heap = malloc((most + 1) * sizeof *heap);
    int32_t *spare = malloc(rows_n * sizeof *spare);
    t.sums = new_sums(&t);
    t.order = malloc(allowed_n * sizeof *t.order);
    int shared = tried == allowed_n && most <= MOST_SHARED;
    int64_t nodes = heap && spare && t.sums && t.order ? 1 : -1, open = 0;
    if (nodes > 0) {
        feature[0] = -1, bin[0] = 0, left[0] = 0, value[0] = value_of(&t, 0, rows_n);
        Leaf root = leaf_of(&t, 0, 0, rows_n);
        if (shared && root.feature >= 0) {
            root.sums = t.sums;
            t.sums = NULL;
        }
        push(heap, &open, root);
    }
    for (int64_t leaves = 1; nodes > 0 && leaves < most && open; leaves++) {
        Leaf leaf = pop(heap, &open);
        if (leaf.feature < 0 || leaf.gain <= 1e-12) {
            free(leaf.sums);
            break;
        }
        int64_t middle = leaf.begin, kept = 0;
        for (int64_t i = leaf.begin; i < leaf.end; i++) {
            int32_t row = rows[i];
            if (bins[row * features + leaf.feature] <= leaf.bin)
                rows[middle++] = row;
            else
                spare[kept++] = row;
        }
        memcpy(rows + middle, spare, kept * sizeof *rows);
        feature[leaf.node] = leaf.feature;
        bin[leaf.node] = leaf.bin;
        left[leaf.node] = (int32_t)nodes;
        Leaf found[2];
        if (!shared) {
            found[0] = leaf_of(&t, (int32_t)nodes, leaf.begin, middle);
            found[1] = leaf_of(&t, (int32_t)nodes + 1, middle, leaf.end);
        } else if (!leaves_of(&t, leaf.sums, leaf.begin, middle, leaf.end, (int32_t)nodes, found)) {
            nodes = -1;
            break;
        }
        for (int side = 0; side < 2; side++, nodes++) {
            feature[nodes] = -1, bin[nodes] = 0, left[nodes] = 0;
            value[nodes] = value_of(&t, found[side].begin, found[side].end);
            push(heap, &open, found[side]);
        }
    }
    for (int64_t i = 0; i < open; i++)
        free(heap[i].sums);
    free(heap), free(spare), free(t.sums), free(t.order);
    return nodes;
}

/* scores += rate * tree, for every row. */
void tw_add(int64_t rows_n, int64_t features, const uint8_t *bins, const int32_t *feature,
            const int32_t *bin, const int32_t *left, const double *value, double rate,
            double *scores) {
    for (int64_t row = 0; row < rows_n; row++) {
        int32_t node = 0;
        while (feature[node] >= 0)
            node = left[node] + (bins[row * features + feature[node]] > bin[node]);
        scores[row] += rate * value[node];
    }
}

typedef struct {
    double score;
    int64_t row;
} Place;

/* Sorts by score, then by row: merges runs of 1, 2, 4, ... places. */
static void sort(Place *places, Place *spare, int64_t n) {
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * width) {
            int64_t middle = begin + width < n ? begin + width : n;
            int64_t end = begin + 2 * width < n ? begin + 2 * width : n;
            int64_t a = begin, b = middle;
            for (int64_t i = begin; i < end; i++) {
                int first = b == end || (a < middle && (places[a].score < places[b].score ||
                                                        (places[a].score == places[b].score &&
                                                         places[a].row < places[b].row)));
                spare[i] = places[first ? a++ : b++];
            }
        }
        memcpy(places, spare, n * sizeof *places);
    }
}

static int64_t longest_of(int64_t groups, const int64_t *begin) {
    int64_t longest = 0;
    for (int64_t i = 0; i < groups; i++)
        longest = begin[i + 1] - begin[i] > longest ? begin[i + 1] - begin[i] : longest;
    return longest;
}

/* What the first `depth` of every group are worth in the best order. -1: no memory. */
int64_t tw_ideal(int64_t groups, const int64_t *begin, const double *gain, int64_t depth,
                 double *ideal) {
    int64_t longest = longest_of(groups, begin);
    Place *places = malloc(2 * (longest + 1) * sizeof *places);
    for (int64_t i = 0; places && i < groups; i++) {
        int64_t n = begin[i + 1] - begin[i];
        for (int64_t j = 0; j < n; j++)
            places[j] = (Place){-gain[begin[i] + j], begin[i] + j};
        sort(places, places + longest + 1, n);
        ideal[i] = 0;
        for (int64_t j = 0; j < n && j < depth; j++)
            ideal[i] -= places[j].score * (1 / log2(j + 2.0));
    }
    free(places);
    return places ? 0 : -1;
}

/* Gradients and weights of LambdaRank: rows begin[i] .. begin[i+1] compete; `gain` says how good a
 * row is, `ideal` is of tw_ideal, and the least score comes first. Of each pair one is among the
 * first `depth`. Returns -1 if there is no memory. */
int64_t tw_rank(int64_t groups, const int64_t *begin, const double *gain, const double *ideal,
                const double *scores, int64_t depth, double *g, double *h) {
    int64_t longest = longest_of(groups, begin);
    Place *places = malloc(2 * (longest + 1) * sizeof *places);
    double *discount = malloc((longest + 1) * sizeof *discount);
    int64_t done = places && discount ? 0 : -1;
    for (int64_t i = 0; done == 0 && i < longest; i++)
        discount[i] = 1 / log2(i + 2.0);
    for (int64_t i = 0; done == 0 && i < groups; i++) {
        int64_t n = begin[i + 1] - begin[i];
        for (int64_t j = 0; j < n; j++) {
            places[j] = (Place){scores[begin[i] + j], begin[i] + j};
            g[begin[i] + j] = h[begin[i] + j] = 0;
        }
        sort(places, places + longest + 1, n);
        for (int64_t a = 0; ideal[i] > 0 && a < n && a < depth; a++)
            for (int64_t b = a + 1; b < n; b++) {
                int64_t better = places[a].row, worse = places[b].row;
                if (gain[better] == gain[worse])
                    continue;
                if (gain[better] < gain[worse])
                    better = places[b].row, worse = places[a].row;
                double delta =
                    (gain[better] - gain[worse]) * (discount[a] - discount[b]) / ideal[i];
                /* the chance that the worse one still comes first */
                double wrong = 1 / (1 + exp(scores[worse] - scores[better]));
                g[better] += delta * wrong;
                g[worse] -= delta * wrong;
                h[better] += delta * wrong * (1 - wrong);
                h[worse] += delta * wrong * (1 - wrong);
            }
    }
    free(places), free(discount);
    return done;
}
