/* See top_screen.h.

     offload top      2 ranks of 1 job      by rank      every 1 s
     job 7a charlm    step 1,234   state 3.00 GiB   moved 3.00 GiB   drives 0
     rank     pid  gpu      way          step ms exposed ms      % foretold link GB/s
        0   12345  41:00.0  cpu            345.1       12.3    3.6     11.9      24.1
          device [#########-----] 61 % of 80.0 GiB   host 1.50 GiB   drives 0
          why nothing or not all of it moved
     all ...

   A rank has two lines and its note a third, as long as there is room: notes go first, then second lines, then ranks. */
#define _GNU_SOURCE
#include "top_screen.h"
#include "replicas.h"
#include "words.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAR_COLUMNS = 16, WAY_COLUMNS = 11, STALE_NS = 1000000000 };
static const double stale_seconds = 10;

/* Attributes of a whole line. */
enum ink { PLAIN, BOLD, HEADER, DIM, WARNING };
static const char *const inks[] = {"", "\033[1m", "\033[7m", "\033[2m", "\033[33m"};

struct screen {
  const struct top_view *view;
  FILE *out;
  unsigned used; /* lines */
};

const char *top_sort_name(enum top_sort sort) {
  static const char *const names[] = {"rank", "exposed time", "step time", "device memory"};
  return names[sort];
}

/* Lines that are left, without the one that tells the keys. */
static unsigned room(const struct screen *screen) {
  const struct top_view *view = screen->view;
  if (!view->lines)
    return UINT32_MAX;
  const unsigned taken = screen->used + view->keys;
  return view->lines > taken ? view->lines - taken : 0;
}

static void __attribute__((format(printf, 3, 4)))
line(struct screen *screen, enum ink ink, const char *format, ...) {
  char text[1024];
  va_list arguments;
  if (screen->view->lines && screen->used >= screen->view->lines)
    return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const size_t columns = words_columns(text), width = screen->view->columns;
  const bool inked = screen->view->colour && ink != PLAIN;
  fprintf(screen->out, "%s%.*s", inked ? inks[ink] : "", (int)words_cut(text, width), text);
  if (inked && ink == HEADER && columns < width)
    fprintf(screen->out, "%*s", (int)(width - columns), "");
  fprintf(screen->out, "%s\n", inked ? "\033[0m" : "");
  screen->used++;
}

static double exposed_share(const struct registry_state *state) {
  return state->step_ns ? (double)state->exposed_ns / (double)state->step_ns : 0;
}

static double device_share(const struct registry_state *state) {
  return state->device_total_bytes
             ? (double)state->device_used_bytes / (double)state->device_total_bytes
             : 0;
}

static int by_number(double a, double b) {
  return (a > b) - (a < b);
}

static int by_rank(const struct registry_entry *a, const struct registry_entry *b) {
  if (a->job != b->job)
    return a->job < b->job ? -1 : 1;
  if (a->local_rank != b->local_rank)
    return a->local_rank < b->local_rank ? -1 : 1;
  if (a->device != b->device)
    return a->device < b->device ? -1 : 1;
  return (a->pid > b->pid) - (a->pid < b->pid);
}

/* Ranks stay with their job in any order; the largest first. */
static int compare(const void *left, const void *right, void *of) {
  const struct registry_entry *a = left, *b = right;
  int order = 0;
  if (a->job == b->job)
    switch (*(const enum top_sort *)of) {
    case TOP_BY_EXPOSED:
      order = by_number(exposed_share(&b->state), exposed_share(&a->state));
      break;
    case TOP_BY_STEP:
      order = by_number((double)b->state.step_ns, (double)a->state.step_ns);
      break;
    case TOP_BY_DEVICE:
      order = by_number(device_share(&b->state), device_share(&a->state));
      break;
    case TOP_BY_RANK:
    case TOP_SORTS:
      break;
    }
  return order ? order : by_rank(a, b);
}

static void bar_text(const struct top_view *view, double share, char *text, size_t bytes) {
  const double filled = (share < 0 ? 0 : share > 1 ? 1 : share) * BAR_COLUMNS;
  size_t used = 0;
  for (int i = 0; i < BAR_COLUMNS && used + 4 < bytes; i++) {
    const bool full = filled >= i + 0.5;
    used += (size_t)snprintf(text + used, bytes - used, "%s",
                             view->utf8 ? (full ? "█" : "░") : (full ? "#" : "-"));
  }
}

static void show_milliseconds(char *text, size_t bytes, bool known, uint64_t ns) {
  if (known)
    snprintf(text, bytes, "%.*f", ns < 100000000 ? 2 : 1, (double)ns / 1e6);
  else
    snprintf(text, bytes, "-");
}

/* "41:00.0" of "0000:41:00.0"; a domain that isn't 0 stays. */
static const char *bus(const char *gpu) {
  return strncmp(gpu, "0000:", 5) ? gpu : gpu + 5;
}

/* In the column's width. */
static const char *way_text(const char *way, char *text, size_t bytes) {
  if (!strcmp(way, "stream+direct"))
    way = "stream+dir.";
  else if (!strcmp(way, "cpu+stream+dir."))
    way = "cpu+str+dir";
  words_plain(*way ? way : "none", text, bytes);
  text[words_cut(text, WAY_COLUMNS)] = 0;
  return text;
}

static void rank_line(struct screen *screen, const struct registry_entry *entry) {
  const struct registry_state *state = &entry->state;
  const bool stepped = state->step_ns > 0;
  char rank[16] = "-", gpu[16], way[20], step[32], exposed[32], foretold[32], share[16] = "-",
       link[16] = "-", text[64];
  if (entry->local_ranks)
    snprintf(rank, sizeof rank, "%" PRIu32, entry->local_rank);
  words_plain(bus(entry->gpu), text, sizeof text);
  if (*text)
    snprintf(gpu, sizeof gpu, "%.12s", text);
  else
    snprintf(gpu, sizeof gpu, "%" PRId32, entry->device);
  way_text(state->way, way, sizeof way);
  show_milliseconds(step, sizeof step, stepped, state->step_ns);
  show_milliseconds(exposed, sizeof exposed, stepped, state->exposed_ns);
  show_milliseconds(foretold, sizeof foretold, state->foretold_ns > 0, state->foretold_ns);
  if (stepped) {
    snprintf(share, sizeof share, "%.1f", 100 * exposed_share(state));
    snprintf(link, sizeof link, "%.1f",
             (double)(state->link_down_bytes + state->link_up_bytes) / (double)state->step_ns);
  }
  line(screen, PLAIN, "%4s %7" PRId32 "  %-8s %-11s %8s %10s %6s %8s %9s", rank, entry->pid, gpu,
       way, step, exposed, share, foretold, link);
}

static void memory_line(struct screen *screen, const struct registry_entry *entry) {
  const struct registry_state *state = &entry->state;
  char bar[4 * BAR_COLUMNS + 4], total[WORDS_BYTES], host[WORDS_BYTES], drive[WORDS_BYTES];
  words_bytes((double)state->moved_bytes, host);
  words_bytes((double)state->drive_bytes, drive);
  if (!state->device_total_bytes) {
    line(screen, PLAIN, "     device memory not known   host %s   drives %s", host, drive);
    return;
  }
  bar_text(screen->view, device_share(state), bar, sizeof bar);
  line(screen, PLAIN, "     device %s %3.0f %% of %-9s  host %s   drives %s", bar,
       100 * device_share(state), words_bytes((double)state->device_total_bytes, total), host,
       drive);
}

/* What a rank has to say: its own note, else that it has been silent. */
static bool note_text(const struct top_view *view, const struct registry_entry *entry, char *text,
                      size_t bytes) {
  if (*entry->state.note) {
    words_plain(entry->state.note, text, bytes);
    return true;
  }
  const double silent =
      view->now_ns > entry->updated_ns ? (double)(view->now_ns - entry->updated_ns) / STALE_NS : 0;
  const double usual = 3 * (double)entry->state.step_ns / 1e9;
  if (silent < stale_seconds || silent < usual)
    return false;
  snprintf(text, bytes, "no step for %.0f s", silent);
  return true;
}

static void job_line(struct screen *screen, const struct registry_entry *entries, size_t count) {
  uint64_t steps = 0, state = 0, moved = 0, drives = 0;
  char program[64], shown[WORDS_BYTES], of_state[WORDS_BYTES], host[WORDS_BYTES],
      on_drives[WORDS_BYTES];
  for (size_t i = 0; i < count; i++) {
    steps = entries[i].state.steps > steps ? entries[i].state.steps : steps;
    state += entries[i].state.state_bytes;
    moved += entries[i].state.moved_bytes;
    drives += entries[i].state.drive_bytes;
  }
  words_plain(entries->program, program, sizeof program);
  line(screen, BOLD, "job %" PRIx64 "  %.*s   step %s   state %s   host %s   drives %s",
       entries->job, (int)words_cut(program, 20), program, words_count(steps, shown),
       words_bytes((double)state, of_state), words_bytes((double)moved, host),
       words_bytes((double)drives, on_drives));
}

/* Ranks that keep the same state (replicas.h): said of the first job of which it is so. */
static bool repeated(const struct registry_entry *entries, size_t count, char *text, size_t bytes) {
  for (size_t i = 0; i < count; i++) {
    uint64_t again = 0;
    unsigned ranks = 1;
    for (size_t k = i + 1; k < count && entries[k].job == entries[i].job; k++)
      if (replicas_same(&entries[i], &entries[k])) {
        again += entries[k].state.state_bytes;
        ranks++;
      }
    if (ranks > 1) {
      char size[WORDS_BYTES];
      snprintf(text, bytes,
               "%u ranks keep the same state (DDP): ZeRO-1 or FSDP would do away with %s", ranks,
               words_bytes((double)again, size));
      return true;
    }
  }
  return false;
}

static size_t job_end(const struct registry_entry *entries, size_t count, size_t begin) {
  size_t end = begin + 1;
  while (end < count && entries[end].job == entries[begin].job)
    end++;
  return end;
}

/* How much a rank may take: notes go first, then the second lines. */
enum detail { ONE_LINE = 1, TWO_LINES, WITH_NOTES };

static enum detail choose_detail(const struct screen *screen, const struct registry_entry *entries,
                                 size_t count, size_t jobs, unsigned after) {
  const size_t left = room(screen);
  size_t notes = 0;
  char text[REGISTRY_TEXT];
  for (size_t i = 0; i < count; i++)
    notes += note_text(screen->view, &entries[i], text, sizeof text);
  if (jobs + 2 * count + notes + after <= left)
    return WITH_NOTES;
  return jobs + 2 * count + after <= left ? TWO_LINES : ONE_LINE;
}

static void ranks(struct screen *screen, const struct registry_entry *entries, size_t count) {
  char note[REGISTRY_TEXT], shared[160];
  const bool same = repeated(entries, count, shared, sizeof shared);
  size_t jobs = 0, shown = 0;
  for (size_t i = 0; i < count; i = job_end(entries, count, i))
    jobs++;
  const unsigned after = same ? 1 : 0;
  const enum detail detail = choose_detail(screen, entries, count, jobs, after);
  for (size_t begin = 0, end; begin < count; begin = end) {
    end = job_end(entries, count, begin);
    if (room(screen) < 3 + after)
      break;
    job_line(screen, entries + begin, end - begin);
    for (size_t i = begin; i < end && room(screen) >= (unsigned)detail - (detail > 2) + after + 1;
         i++) {
      rank_line(screen, &entries[i]);
      if (detail >= TWO_LINES)
        memory_line(screen, &entries[i]);
      if (detail >= WITH_NOTES && note_text(screen->view, &entries[i], note, sizeof note))
        line(screen, WARNING, "     %s", note);
      shown++;
    }
  }
  if (shown < count && room(screen))
    line(screen, DIM, "%zu more ranks: make the window higher, or name a job with --job",
         count - shown);
  if (same && room(screen))
    line(screen, WARNING, "%s", shared);
}

static void nobody(struct screen *screen) {
  line(screen, PLAIN, "No rank of yours steps on this node.");
  line(screen, PLAIN, "Start one:  offload run -- python train.py");
  line(screen, PLAIN, "It is shown from its first optimizer step on.");
}

char *top_screen(const struct top_view *view, struct registry_entry *entries, size_t count) {
  char *text = NULL, every[32] = "", of[64];
  size_t bytes = 0, jobs = 0;
  struct screen screen = {.view = view, .out = open_memstream(&text, &bytes)};
  if (!screen.out)
    return NULL;
  enum top_sort sort = view->sort;
  qsort_r(entries, count, sizeof *entries, compare, &sort);
  for (size_t i = 0; i < count; i = job_end(entries, count, i))
    jobs++;
  if (view->keys)
    snprintf(every, sizeof every, "   every %g s", view->interval_seconds);
  snprintf(of, sizeof of, "%zu rank%s of %zu job%s", count, count == 1 ? "" : "s", jobs,
           jobs == 1 ? "" : "s");
  line(&screen, BOLD, "offload top   %s   by %s%s%s", of, top_sort_name(sort), every,
       view->paused ? "   PAUSED" : "");
  if (count) {
    line(&screen, HEADER, "%4s %7s  %-8s %-11s %8s %10s %6s %8s %9s", "rank", "pid", "gpu", "way",
         "step ms", "exposed ms", "%", "foretold", "link GB/s");
    ranks(&screen, entries, count);
  } else
    nobody(&screen);
  if (view->keys) {
    while (room(&screen))
      line(&screen, PLAIN, "%s", "");
    line(&screen, DIM, "q quit   s sort   p %s", view->paused ? "go on" : "pause");
  }
  fclose(screen.out);
  return text;
}
