/* The screen of `offload top`: lines and their width for one rank and many, what is left out first when there is no room, and text of
   others' that a terminal must not obey. */
#include "policy/top_screen.h"
#include "policy/words.h"
#include "tests/lib/tap.h"
#include <string.h>

static struct registry_entry entries[16];

static struct registry_entry *rank(unsigned number) {
  struct registry_entry *entry = &entries[number];
  *entry = (struct registry_entry){.pid = 4000 + (int)number,
                                   .local_rank = number,
                                   .local_ranks = 16,
                                   .job = 0x7a,
                                   .updated_ns = 100000000000,
                                   .gpu = "0000:41:00.0",
                                   .program = "train"};
  entry->state = (struct registry_state){.steps = 1234,
                                         .moved_bytes = 3ull << 30,
                                         .drive_bytes = 1ull << 30,
                                         .state_bytes = 4ull << 30,
                                         .device_used_bytes = 30ull << 30,
                                         .device_total_bytes = 40ull << 30,
                                         .step_ns = 345100000,
                                         .exposed_ns = 12300000 + number * 1000000,
                                         .foretold_ns = 11900000,
                                         .link_down_bytes = 4141200000,
                                         .link_up_bytes = 4141200000,
                                         .way = "cpu+stream"};
  return entry;
}

static char *screen(unsigned lines, size_t count, struct top_view view) {
  static char *last;
  if (!view.columns)
    view.columns = 80;
  view.lines = lines;
  view.interval_seconds = 1;
  view.now_ns = 101000000000;
  free(last);
  last = top_screen(&view, entries, count);
  return last;
}

/* The widest line, and how many. */
static size_t widest(const char *text, unsigned *lines) {
  size_t most = 0;
  *lines = 0;
  for (const char *end; (end = strchr(text, '\n')); text = end + 1, ++*lines) {
    char line[1024];
    snprintf(line, sizeof line, "%.*s", (int)(end - text), text);
    const size_t columns = words_columns(line);
    most = columns > most ? columns : most;
  }
  return most;
}

static unsigned occurrences(const char *text, const char *what) {
  unsigned count = 0;
  while ((text = strstr(text, what)) && ++count)
    text += strlen(what);
  return count;
}

static void one_rank(void) {
  rank(0);
  const char *text = screen(0, 1, (struct top_view){.utf8 = true});
  tap_ok(strstr(text, "345.1      12.30    3.6    11.90      24.0") != NULL,
         "a rank's line has step, exposed, its share, foretold and link rate");
  tap_ok(strstr(text, "0    4000  41:00.0  cpu+stream") != NULL, "and rank, process, GPU and way");
  tap_ok(strstr(text, "████████████░░░░  75 % of 40.0 GiB   host 3.00 GiB   drives 1.00 GiB"),
         "its second line has the device's use as a bar, and what lies elsewhere");
  tap_ok(strstr(text, "job 7a  train   step 1,234   state 4.00 GiB") != NULL,
         "the job's line has its name, steps and sums");
  tap_ok(!strchr(text, '\033') && !strstr(text, "quit"), "without colour and keys it is plain");
  tap_ok(strstr(screen(0, 1, (struct top_view){0}), "############----  75 %") != NULL,
         "where the terminal has no UTF-8, bars are of other characters");
}

static void not_known(void) {
  struct registry_entry *entry = rank(0);
  entry->local_ranks = 0;
  *entry->gpu = 0;
  entry->state = (struct registry_state){.way = "none"};
  const char *text = screen(0, 1, (struct top_view){0});
  tap_ok(strstr(text, "   -    4000  0        none               -          -      -") != NULL,
         "what a rank doesn't know is a dash, never a number");
  tap_ok(strstr(text, "device memory not known") != NULL, "and no bar of unknown memory is drawn");
}

static void limits(void) {
  unsigned lines;
  bool fits = true;
  for (unsigned i = 0; i < 16; i++)
    snprintf(rank(i)->state.note, REGISTRY_TEXT, "note of rank %u: %s", i,
             "the budget of host memory keeps 3.50 GiB of the state on the device, of 40.0 GiB");
  for (size_t count = 0; count <= 16; count++)
    for (unsigned high = 1; high <= 30; high++) {
      const size_t wide =
          widest(screen(high, count, (struct top_view){.keys = true, .utf8 = true}), &lines);
      fits = fits && wide <= 80 && lines <= high;
    }
  tap_ok(fits, "0 to 16 ranks with notes fit 80 columns and any number of lines");
  const char *text = screen(24, 4, (struct top_view){.keys = true});
  tap_ok(occurrences(text, "note of rank") == 4 && occurrences(text, "device ") >= 4,
         "four ranks have all their lines in 24");
  text = screen(24, 8, (struct top_view){.keys = true});
  tap_ok(!strstr(text, "note of rank") && occurrences(text, "host 3.00 GiB") == 8,
         "eight ranks keep two lines each and leave out the notes");
  text = screen(24, 16, (struct top_view){.keys = true});
  tap_ok(occurrences(text, "cpu+stream") == 16 && !occurrences(text, "host 3.00 GiB"),
         "sixteen have a line each");
  text = screen(12, 16, (struct top_view){.keys = true});
  tap_ok(strstr(text, "more ranks: make the window higher") != NULL,
         "ranks that find no room are counted");
  tap_ok(widest(screen(24, 4, (struct top_view){.columns = 40, .keys = true}), &lines) <= 40,
         "a narrow window cuts lines");
}

static void ways(void) {
  static const char *const shown[][2] = {{"stream+direct", "stream+dir.   "},
                                         {"cpu+stream+dir.", "cpu+str+dir   "},
                                         {"cpu", "cpu           "}};
  for (size_t i = 0; i < 3; i++) {
    struct registry_state *state = &rank(0)->state;
    char line[64];
    snprintf(state->way, sizeof state->way, "%s", shown[i][0]);
    state->step_ns = 3451000000;
    snprintf(line, sizeof line, "41:00.0  %s3451.0      12.30    0.4    11.90       2.4\n",
             shown[i][1]);
    tap_ok(strstr(screen(0, 1, (struct top_view){.utf8 = true}), line) != NULL,
           "way %s: all figures stand in their columns", shown[i][0]);
  }
}

static void sorting(void) {
  for (unsigned i = 0; i < 3; i++)
    rank(i);
  entries[1].job = 0x7b;
  const char *text = screen(0, 3, (struct top_view){.sort = TOP_BY_EXPOSED});
  tap_ok(strstr(text, "4002") < strstr(text, "4000") && strstr(text, "4000") < strstr(text, "4001"),
         "sorted by exposed time the most comes first within a job, and jobs stay together");
  tap_ok(occurrences(text, "\njob ") == 2 && strstr(text, "3 ranks of 2 jobs"),
         "each job has its line");
}

static void words_of_ranks(void) {
  struct registry_entry *entry = rank(0);
  snprintf(entry->state.note, REGISTRY_TEXT, "\033[2Jnot\tall\xff moved");
  snprintf(entry->program, sizeof entry->program, "a\033]0;title\007b");
  const char *text = screen(0, 1, (struct top_view){0});
  tap_ok(strstr(text, "?[2Jnot?all? moved") && !strchr(text, '\033') && !strchr(text, '\007'),
         "control characters in notes and names don't reach the terminal");
  *entry->state.note = 0;
  entry->updated_ns = 40000000000;
  tap_ok(strstr(screen(0, 1, (struct top_view){0}), "no step for 61 s") != NULL,
         "a rank that hasn't stepped for long says so");
  entry->state.step_ns = 30000000000;
  tap_ok(!strstr(screen(0, 1, (struct top_view){0}), "no step for"),
         "one whose steps take that long doesn't");
  for (unsigned i = 0; i < 2; i++) {
    struct registry_state *state = &rank(i)->state;
    state->parameters_key = 99;
    state->prints[1 + i] = 7; /* at another of its steps: they are a step apart */
  }
  tap_ok(strstr(screen(0, 2, (struct top_view){0}),
                "2 ranks keep the same state (DDP): ZeRO-1 or FSDP would do away with 4.00 GiB"),
         "ranks that keep the same state are named with the remedy");
  entries[1].state.prints[2] = 8;
  tap_ok(!strstr(screen(0, 2, (struct top_view){0}), "the same state"),
         "those whose state has other values aren't, though its sizes are the same (FSDP)");
  entries[1].state.prints[2] = 7;
  entries[1].state.parameters_key = 98;
  tap_ok(!strstr(screen(0, 2, (struct top_view){0}), "the same state"),
         "those that step tensors of other sizes aren't");
  entries[1].state.parameters_key = 99;
  entries[1].state.prints[2] = 0;
  tap_ok(!strstr(screen(0, 2, (struct top_view){0}), "the same state"),
         "nor those of whose values nothing is known");
  entries[0].state.reduces = entries[1].state.reduces = 1;
  tap_ok(strstr(screen(0, 2, (struct top_view){0}), "2 ranks keep the same state") != NULL,
         "unless the collectives of both tell of it");
  text = screen(0, 0, (struct top_view){0});
  tap_ok(strstr(text, "offload run -- python train.py") != NULL,
         "with no ranks it says how to start one");
}

static void numbers(void) {
  static const struct {
    double value;
    const char *(*words)(double, char *);
    const char *text;
  } cases[] = {{0, words_bytes, "0"},
               {1, words_bytes, "1 bytes"},
               {1023, words_bytes, "1023 bytes"},
               {1024, words_bytes, "1.00 KiB"},
               {1023.6 * 1024, words_bytes, "1.00 MiB"},
               {9.996 * 1024, words_bytes, "10.0 KiB"},
               {5e18, words_bytes, "4441 PiB"},
               {0, words_seconds, "0"},
               {12.3e-6, words_seconds, "12.3 us"},
               {0.9996e-3, words_seconds, "1.00 ms"},
               {0.3451, words_seconds, "345 ms"},
               {61, words_seconds, "61.0 s"},
               {24.06e9, words_rate, "24.1 GB/s"},
               {5e6, words_rate, "5.00 MB/s"},
               {0.036, words_share, "3.6 %"},
               {0.25, words_share, "25 %"}};
  char text[WORDS_BYTES];
  bool good = true;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (strcmp(cases[i].words(cases[i].value, text), cases[i].text) != 0) {
      printf("# %g is '%s', not '%s'\n", cases[i].value, text, cases[i].text);
      good = false;
    }
  tap_ok(good, "numbers have three figures and the unit that makes them short");
  tap_ok(!strcmp(words_count(1234567, text), "1,234,567") && !strcmp(words_count(12, text), "12"),
         "counts are parted by thousands");
  char plain[16];
  tap_ok(!strcmp(words_plain("a\u00e9\xc2\x9b[31mlong, \u00e9", plain, sizeof plain),
                 "a\u00e9?[31mlong, "),
         "text for a terminal is cut between characters, C1 codes taken out");
  tap_ok(!strcmp(words_plain("a\u202eb\u2066c", plain, sizeof plain), "a?b?c"),
         "and so is what turns the order of characters");
}

int main(void) {
  one_rank();
  not_known();
  limits();
  ways();
  sorting();
  words_of_ranks();
  numbers();
  return tap_done();
}
