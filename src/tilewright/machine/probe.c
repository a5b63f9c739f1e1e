/* Synthetic benchmarks of a machine (MOpt, Sec. 7): FMA rate, read bandwidth, clock, barrier.
 *
 * One entry point, probe_run. A team of pinned threads runs one kind of work, point by point and
 * lap by lap, each lap between two barriers; the rate of a lap is the work of all threads over the
 * time from the first start to the last stop, and the best lap of every point is kept: on a shared
 * machine disturbances only ever slow a lap down. Laps are shorter than a scheduler's time slice,
 * so that some escape, and go on until a few agree. VECTOR_BYTES and ISA_* come from the command
 * line.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { GATE_SHUT = 0, GATE_OPEN = 1, GATE_CANCELLED = 2 };
enum { KIND_FMA = 0, KIND_READ = 1, KIND_CLOCK = 2, KIND_BARRIER = 3 };
enum { HUGE_PAGE = 2 << 20, SPINS_BEFORE_YIELD = 1 << 14, ADDS_PER_LOOP = 64 };
enum { LAPS_TO_AGREE = 3 };
#define AGREEMENT 0.98

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));

typedef struct {
  int kind, threads, points, least_laps, most_laps;
  const int *cpus;
  const long *sizes;
  double seconds, *best;
  char **buffers;
  long *cursors;
  double *starts, *stops, *works, *rates;
  long loops;
  int done;
  atomic_int gate, arrived;
  atomic_uint generation;
} Team;

typedef struct {
  Team *team;
  int rank;
} Member;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Central barrier: the last to arrive opens it. Spins, then yields, since there may be fewer free
 * cores than threads. */
static void barrier(Team *team) {
  unsigned generation = atomic_load_explicit(&team->generation, memory_order_acquire);
  if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->threads) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team->generation, generation + 1, memory_order_release);
    return;
  }
  for (long spins = 0;
       atomic_load_explicit(&team->generation, memory_order_acquire) == generation; ++spins) {
    if (spins < SPINS_BEFORE_YIELD)
      relax();
    else
      sched_yield();
  }
}

/* Independent multiply-add chains with nothing else in the loop: more chains than latency x
 * throughput, operands in registers. The loop is one asm block, so no compiler can shorten it;
 * operands are ones and eighths, so that no value is ever subnormal. Result: floating operations. */
#if defined(TILES_u8) || defined(TILES_bf16)
/* Four tiles of sums, two of the image and two of weights, 16 x 16 words each: TILES_* comes from
 * the command line. Linux hands out the state of tiles to who asks. Result: operations on words. */
#if defined(TILES_u8)
#define TILE_DOT "tdpbusd"
#else
#define TILE_DOT "tdpbf16ps"
#endif
static double fma_loop(long loops) {
  static const unsigned char shape[64] __attribute__((aligned(64))) = {
      1,  0, 0,  0, 0,  0, 0,  0, 0,  0, 0,  0, 0,  0, 0,  0, 64, 0, 64, 0, 64, 0,
      64, 0, 64, 0, 64, 0, 64, 0, 64, 0, 0,  0, 0,  0, 0,  0, 0,  0, 0,  0, 0,  0,
      0,  0, 0,  0, 16, 16, 16, 16, 16, 16, 16, 16};
  long answer = 158, left = loops;
  __asm__ volatile("syscall" : "+a"(answer) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  __asm__ volatile("ldtilecfg %1\n\t"
                   ".irp n,0,1,2,3,4,5,6,7\n\t"
                   "tilezero %%tmm\\n\n\t"
                   ".endr\n\t"
                   ".p2align 5\n"
                   "1:\n\t" TILE_DOT " %%tmm6, %%tmm4, %%tmm0\n\t" TILE_DOT
                   " %%tmm7, %%tmm4, %%tmm1\n\t" TILE_DOT " %%tmm6, %%tmm5, %%tmm2\n\t" TILE_DOT
                   " %%tmm7, %%tmm5, %%tmm3\n\t"
                   "sub $1, %0\n\t"
                   "jnz 1b\n\t"
                   "tilerelease"
                   : "+r"(left)
                   : "m"(shape)
                   : "cc");
  return 2.0 * loops * 4 * 16 * 16 * 16;
}
#elif defined(ISA_avx512) || defined(ISA_avx2)
#if defined(ISA_avx512)
#define REG "zmm"
#define BROADCAST_ONES "vbroadcastss %2, %%zmm30\n\t"
#define BROADCAST_EIGHTHS "vbroadcastss %3, %%zmm31\n\t"
#define SCRATCH "29"
#define X "30"
#define Y "31"
#define CHAINS 24
#define CHAIN_LIST "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23"
#define CLOBBERS                                                                            \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",  \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19",      \
      "xmm20", "xmm21", "xmm22", "xmm23", "xmm29", "xmm30", "xmm31"
#else
#define REG "ymm"
#define BROADCAST_ONES "vbroadcastss %2, %%ymm14\n\t"
#define BROADCAST_EIGHTHS "vbroadcastss %3, %%ymm15\n\t"
#define SCRATCH "13"
#define X "14"
#define Y "15"
#define CHAINS 12
#define CHAIN_LIST "0,1,2,3,4,5,6,7,8,9,10,11"
#define CLOBBERS                                                                            \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",  \
      "xmm11", "xmm13", "xmm14", "xmm15"
#endif
/* What is multiplied in small whole numbers, words of them: DOT_* comes from the command line. */
#if defined(DOT_u8)
#define MULTIPLY "vpdpbusd %%" REG X ", %%" REG Y ", %%" REG "\\n\n\t"
#elif defined(DOT_i16)
#define MULTIPLY                                                                            \
  "vpmaddwd %%" REG X ", %%" REG Y ", %%" REG SCRATCH "\n\t"                                \
  "vpaddd %%" REG SCRATCH ", %%" REG "\\n, %%" REG "\\n\n\t"
#else
#define MULTIPLY "vfmadd231ps %%" REG X ", %%" REG Y ", %%" REG "\\n\n\t"
#endif
static double fma_loop(long loops) {
  static const float ones = 1.0f, eighths = 0.125f;
  long left = loops;
  __asm__ volatile(BROADCAST_ONES BROADCAST_EIGHTHS
                   ".irp n," CHAIN_LIST "\n\t"
                   "vxorps %%xmm\\n, %%xmm\\n, %%xmm\\n\n\t"
                   ".endr\n\t"
                   ".p2align 5\n"
                   "1:\n\t"
                   ".irp n," CHAIN_LIST "\n\t"
                   MULTIPLY ".endr\n\t"
                   "sub $1, %0\n\t"
                   "jnz 1b\n\t"
                   "vzeroupper"
                   : "=r"(left)
                   : "0"(left), "m"(ones), "m"(eighths)
                   : "cc", CLOBBERS);
  return 2.0 * loops * CHAINS * (VECTOR_BYTES / 4);
}
#elif defined(ISA_neon)
#if defined(DOT_i8)
#define MULTIPLY "sdot v\\n\\().4s, v30.16b, v31.16b\n\t"
#elif defined(DOT_i32)
#define MULTIPLY "mla v\\n\\().4s, v30.4s, v31.4s\n\t"
#elif defined(DOT_f16) /* words of two: each lane of a word multiplies as many as one of floats */
#define MULTIPLY "fmla v\\n\\().8h, v30.8h, v31.8h\n\t"
#define KIND ".8h"
#else
#define MULTIPLY "fmla v\\n\\().4s, v30.4s, v31.4s\n\t"
#endif
#ifndef KIND
#define KIND ".4s"
#endif
static double fma_loop(long loops) {
  long left = loops;
  __asm__ volatile("fmov v30" KIND ", #1.0\n\t"
                   "fmov v31" KIND ", #0.125\n\t"
                   ".irp n,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n\t"
                   "movi v\\n\\().4s, #0\n\t"
                   ".endr\n\t"
                   ".p2align 5\n"
                   "1:\n\t"
                   ".irp n,0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n\t"
                   MULTIPLY ".endr\n\t"
                   "subs %0, %0, #1\n\t"
                   "b.ne 1b"
                   : "+r"(left)
                   :
                   : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18",
                     "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
                     "v30", "v31");
  return 2.0 * loops * 22 * 4;
}
#else
/* Portable: nine chains, an outer product of 3 x 3 vectors, which is what 16 registers hold. The
 * operands pass through an empty asm statement in every loop, so that no product is invariant. */
static double fma_loop(long loops) {
  vec x0 = {1.0f}, x1 = x0 + 1.0f, x2 = x0 + 2.0f;
  vec y0 = {0.125f}, y1 = y0 + 0.125f, y2 = y0 + 0.25f;
  vec a00 = {0}, a01 = a00, a02 = a00, a10 = a00, a11 = a00, a12 = a00;
  vec a20 = a00, a21 = a00, a22 = a00;
#if defined(__x86_64__)
#define OPAQUE(v) __asm__ volatile("" : "+x"(v))
#elif defined(__aarch64__)
#define OPAQUE(v) __asm__ volatile("" : "+w"(v))
#else
#define OPAQUE(v) __asm__ volatile("" : "+m"(v))
#endif
  for (long i = 0; i < loops; ++i) {
    OPAQUE(x0);
    OPAQUE(x1);
    OPAQUE(x2);
    a00 += x0 * y0, a01 += x0 * y1, a02 += x0 * y2;
    a10 += x1 * y0, a11 += x1 * y1, a12 += x1 * y2;
    a20 += x2 * y0, a21 += x2 * y1, a22 += x2 * y2;
  }
  vec sum = a00 + a01 + a02 + a10 + a11 + a12 + a20 + a21 + a22;
  __asm__ volatile("" : : "m"(sum));
  return 2.0 * loops * 9 * (VECTOR_BYTES / 4);
}
#endif

/* Reads `loops` times READ_BYTES round and round a buffer of `size` bytes, going on where `cursor`
 * says, in the widest loads of the ISA. Each value is handed to an empty asm statement in a
 * register: loads and nothing else, and none is left out. */
#if defined(__x86_64__)
typedef vec item;
#define TOUCH(v) __asm__ volatile("" : : "x"(v))
#elif defined(__aarch64__)
typedef vec item;
#define TOUCH(v) __asm__ volatile("" : : "w"(v))
#else
typedef uint64_t item;
#define TOUCH(v) __asm__ volatile("" : : "r"(v))
#endif
enum { READ_BYTES = 16 * sizeof(item) };
static double read_loop(const char *buffer, long size, long loops, long *cursor) {
  long left = loops * READ_BYTES, from = *cursor;
  while (left > 0) {
    long to = left < size - from ? from + left : size;
    for (const char *at = buffer + from; at < buffer + to; at += READ_BYTES) {
      const item *p = (const item *)at;
      TOUCH(p[0]);
      TOUCH(p[1]);
      TOUCH(p[2]);
      TOUCH(p[3]);
      TOUCH(p[4]);
      TOUCH(p[5]);
      TOUCH(p[6]);
      TOUCH(p[7]);
      TOUCH(p[8]);
      TOUCH(p[9]);
      TOUCH(p[10]);
      TOUCH(p[11]);
      TOUCH(p[12]);
      TOUCH(p[13]);
      TOUCH(p[14]);
      TOUCH(p[15]);
    }
    left -= to - from;
    from = to == size ? 0 : to;
  }
  *cursor = from;
  return (double)READ_BYTES * loops;
}

/* A chain of dependent register additions: one cycle each. The step is a register and not an
 * immediate, since some cores fold immediate additions while renaming. Result: cycles. */
static double clock_loop(long loops) {
  uint64_t x = 0, step = 1;
  __asm__ volatile("" : "+r"(step));
#define ADD                            \
  x += step;                           \
  __asm__ volatile("" : "+r"(x));
#define ADD8 ADD ADD ADD ADD ADD ADD ADD ADD
  for (long i = 0; i < loops; ++i) {
    ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8 ADD8
  }
  return (double)ADDS_PER_LOOP * loops;
}

static double barrier_loop(Team *team, long loops) {
  for (long i = 0; i < loops; ++i) barrier(team);
  return (double)loops / team->threads;
}

static double work(Team *team, int rank, long size, long loops) {
  switch (team->kind) {
    case KIND_FMA: return fma_loop(loops);
    case KIND_READ: return read_loop(team->buffers[rank], size, loops, &team->cursors[rank]);
    case KIND_CLOCK: return clock_loop(loops);
    default: return barrier_loop(team, loops);
  }
}

/* Loops that fill a lap of `seconds`, found by doubling on one thread. A barrier takes the whole
 * team, so there the size says the loops. */
static long calibrate(Team *team, int rank, long size) {
  if (team->kind == KIND_BARRIER) return size;
  for (long loops = 1;; loops *= 2) {
    double start = now();
    work(team, rank, size, loops);
    double took = now() - start;
    if (took > team->seconds / 4) {
      double scaled = loops * team->seconds / took;
      return scaled < 1 ? 1 : (long)scaled;
    }
  }
}

/* Takes the lap that just ended into account, and says whether the point has had enough: the best
 * lap is trusted once others come close to it. */
static int enough(Team *team, int point, int lap) {
  double start = team->starts[0], stop = team->stops[0], total = 0;
  for (int i = 0; i < team->threads; ++i) {
    if (team->starts[i] < start) start = team->starts[i];
    if (team->stops[i] > stop) stop = team->stops[i];
    total += team->works[i];
  }
  double rate = stop > start ? total / (stop - start) : 0;
  team->rates[lap] = rate;
  if (rate > team->best[point]) team->best[point] = rate;
  int agreeing = 0;
  for (int i = 0; i <= lap; ++i) agreeing += team->rates[i] >= AGREEMENT * team->best[point];
  int laps = lap + 1;
  return laps >= team->most_laps || (laps >= team->least_laps && agreeing >= LAPS_TO_AGREE);
}

static long largest_size(const Team *team) {
  long largest = 0;
  for (int i = 0; i < team->points; ++i)
    if (team->sizes[i] > largest) largest = team->sizes[i];
  return largest;
}

static void *member_main(void *argument) {
  Member *member = argument;
  Team *team = member->team;
  int rank = member->rank;
  int gate;
  while ((gate = atomic_load(&team->gate)) == GATE_SHUT) sched_yield();
  if (gate == GATE_CANCELLED) return NULL;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(team->cpus[rank], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* refused: measured unpinned */
  if (team->kind == KIND_READ) /* touched by its reader: memory near its core */
    memset(team->buffers[rank], 1, largest_size(team));
  for (int point = 0; point < team->points; ++point) {
    long size = team->sizes[point];
    barrier(team);
    if (rank == 0) {
      team->loops = calibrate(team, rank, size);
      team->done = 0;
    }
    if (team->kind == KIND_READ) { /* from here on the caches hold what this working set leaves */
      team->cursors[rank] = 0;
      work(team, rank, size, size / READ_BYTES);
    }
    for (int lap = 0;; ++lap) {
      barrier(team);
      if (team->done) break;
      team->starts[rank] = now();
      team->works[rank] = work(team, rank, size, team->loops);
      team->stops[rank] = now();
      barrier(team);
      if (rank == 0) team->done = enough(team, point, lap);
    }
  }
  return NULL;
}

static int allocate(Team *team) {
  size_t bytes = ((size_t)largest_size(team) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  for (int i = 0; i < team->threads; ++i) {
    team->buffers[i] = aligned_alloc(HUGE_PAGE, bytes);
    if (!team->buffers[i]) return ENOMEM;
    madvise(team->buffers[i], bytes, MADV_HUGEPAGE); /* caches are probed here, not the TLB */
  }
  return 0;
}

static int run_team(Team *team, pthread_t *handles, Member *members) {
  if (team->kind == KIND_READ && allocate(team)) return ENOMEM;
  int made = 0, error = 0;
  for (; made < team->threads && !error; made += !error) {
    members[made] = (Member){team, made};
    error = pthread_create(&handles[made], NULL, member_main, &members[made]);
  }
  atomic_store(&team->gate, error ? GATE_CANCELLED : GATE_OPEN);
  for (int i = 0; i < made; ++i) pthread_join(handles[i], NULL);
  return error;
}

/* Work of `kind` on threads pinned to `cpus`, at `points` sizes: bytes to read for each thread (a
 * multiple of 4096), or barriers in a lap; the other kinds ignore the size. `best` receives one rate
 * a point, in units a second: floating operations, bytes, cycles, barriers. Returns 0 or an errno. */
int probe_run(int kind, int threads, const int *cpus, int points, const long *sizes, double seconds,
              int least_laps, int most_laps, double *best) {
  Team team = {.kind = kind, .threads = threads, .points = points, .least_laps = least_laps,
               .most_laps = most_laps, .cpus = cpus, .sizes = sizes, .seconds = seconds,
               .best = best};
  team.buffers = calloc(threads, sizeof *team.buffers);
  team.cursors = calloc(threads, sizeof *team.cursors);
  team.starts = calloc(3 * (size_t)threads + most_laps, sizeof *team.starts);
  pthread_t *handles = calloc(threads, sizeof *handles);
  Member *members = calloc(threads, sizeof *members);
  int error = ENOMEM;
  if (team.buffers && team.cursors && team.starts && handles && members) {
    team.stops = team.starts + threads;
    team.works = team.stops + threads;
    team.rates = team.works + threads;
    memset(best, 0, points * sizeof *best);
    error = run_team(&team, handles, members);
  }
  for (int i = 0; team.buffers && i < threads; ++i) free(team.buffers[i]);
  free(team.buffers);
  free(team.cursors);
  free(team.starts);
  free(handles);
  free(members);
  return error;
}
