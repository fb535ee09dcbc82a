/* What the library did: counters, one row per recognised function, and reasons. Written as JSON to
   OFFLOAD_REPORT (policy/report.schema.json) and as one line on stderr at exit. Rows and counters
   may be written from any thread. */
#ifndef OFFLOAD_REPORT_H
#define OFFLOAD_REPORT_H
#include "config.h"
#include <stdatomic.h>

struct report_totals {
#define COUNTER(name, help) _Atomic uint64_t name;
#include "counters.def"
#undef COUNTER
};

/* A kernel function that was recognised, or that looked like a known one and was not taken over. */
struct report_function {
  char name[64];           /* "AdamW fp32", "Adam fp32", ... */
  char family[32];         /* "torch_fused_adam", "torch_fused_adamw" */
  unsigned metadata_bytes; /* 3336 or 25544 */
  char generation[48];     /* "torch 2.11+", "unknown" until calibrated */
  char decay[16];          /* "none", "fused", "unfused", "mixed" */
  char mode[16]; /* how its last step was carried out: "cpu", "stream", "direct", "none" */
  char why[256]; /* why not a better mode; "" when nothing stands in the way */
  _Atomic uint64_t launches, launches_cpu, launches_stream, launches_direct, launches_refused,
      blocks, blocks_taken;
  _Atomic unsigned ways, ways_before;    /* REPORT_WAY_, of its last step and of the one before */
  _Atomic uint64_t ways_step;            /* whose `ways` are */
  _Atomic uint64_t verified, mismatches; /* pieces that OFFLOAD_VERIFY compared; that differed */
  _Atomic uint64_t doubt_first_step, doubt_last_step; /* 0: none */
  _Atomic uint64_t elements, elements_host; /* stepped; of these, with m and v on the host */
};
enum { REPORT_FUNCTIONS = 64, REPORT_REASONS = 32 };
enum { REPORT_WAY_CPU = 1, REPORT_WAY_STREAM = 2, REPORT_WAY_DIRECT = 4 };

/* Why drives that are named don't take what is beyond the budget. */
enum report_kept {
  KEPT_UNKNOWN, /* none named, refused as a line says, or what else a step uses can't be told */
  KEPT_FULL,    /* no room on drives */
  KEPT_SHARED,  /* its pieces are used by others, or their partners stay */
};

struct report {
  struct report_totals totals;
  const char *tier; /* "host_numa", "host", "none"; set by report_tier, report_budget */
  uint64_t budget_bytes;
  char budget_limited_by[48];
  struct report_function functions[REPORT_FUNCTIONS];
  _Atomic unsigned function_count;
  char reasons[REPORT_REASONS][384]; /* why something was not done; each sentence once */
  _Atomic unsigned reason_count;
  _Atomic uint64_t kept_bytes;    /* state that may move and lacks room, as of the last choice */
  _Atomic int kept;               /* enum report_kept */
  _Atomic bool state_elsewhere;   /* state lies in memory that no call of cuMemAlloc made */
  char refused_caller[96];        /* file name of the first module whose allocation stayed native */
  _Atomic uint64_t largest_small; /* bytes of the largest allocation below the least size */
};
extern struct report report; /* the process's one report */

/* What the drive tier is and costs, told by whoever has it (report_drives). */
struct report_drive {
  const char *path; /* as it was given */
  bool failed;
  struct drive_health health;
  uint64_t written_bytes; /* by this process */
  uint64_t bytes_per_step;
  bool life_known;
  uint64_t steps_left, days_left;
};
enum { REPORT_DRIVES = 16 };
struct report_drives {
  const char *rung; /* how they are read and written */
  uint64_t block_bytes, depth, written_bytes, read_bytes, resident_bytes, kept_bytes, checksum_ns;
  uint64_t steps; /* from which the rates are, 0: none yet */
  uint64_t bytes_per_step, step_ns;
  bool wear_limit_reached;
  unsigned count, failed;
  struct report_drive drives[REPORT_DRIVES];
};
/* Keeps a copy for the next time that the report is written; what it points at must stay. */
void report_drives(const struct report_drives *);

/* Sets what host pages are made of, and how much of them there may be and why not more. */
void report_tier(const char *tier);
void report_budget(uint64_t bytes, const char *limited_by);
/* What was set, "" and 0 before. */
void report_budget_now(uint64_t *bytes, char *limited_by, size_t limited_by_bytes);

/* Adds to a counter; keeps moved_bytes_peak the maximum of moved_bytes. */
#define report_add(counter, n)                                                                     \
  ((void)atomic_fetch_add_explicit(&report.totals.counter, (n), memory_order_relaxed))
void report_moved(int64_t bytes);
/* The same of drives. */
void report_on_drives(int64_t bytes);

/* A new row: generation "unknown", decay and mode "none". NULL when the table is full (said once). */
struct report_function *report_function_new(const char *family, const char *name,
                                            unsigned metadata_bytes);

/* Sets a text of a row, cut to fit; true when it was another. The report may be written meanwhile, so
   a row's texts change in no other way; they are read by those who change them. */
bool report_set(char *field, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A copy of such a text, for whoever doesn't change it. */
void report_get(const char *field, char *copy, size_t bytes);

/* Keeps a sentence once; prints it too when OFFLOAD_LOG is verbose. Sizes of memory and state in it are report_size_text's; what is to
   be set is told as it can be set. */
void report_reason(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, printed too when OFFLOAD_LOG is normal: what the user should change something about. */
void report_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* An allocation stayed native because of the module that asked for it (the first is kept), or
   because it was small. Reasons are made of them at exit, when nothing moved. */
void report_caller_refused(const char *module_path);
void report_small_allocation(uint64_t bytes);

/* A line on stderr with the prefix "liboffload: ", or "liboffload[3]: " on a node with several ranks of the job, unless OFFLOAD_LOG
   forbids it. Never before cuInit succeeded. Of one kind, which is its format, a few a minute (REPORT_LINES_A_MINUTE); what is left out
   is counted and told with the next one. */
enum { REPORT_LINES_A_MINUTE = 20 };
void report_line(enum config_log least, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* One that is told but once, whatever else is. */
void report_sentence(enum config_log least, const char *sentence);

/* "812 MiB", "1.50 GiB": three figures. */
enum { REPORT_SIZE_BYTES = 32 };
const char *report_size_text(uint64_t bytes, char text[REPORT_SIZE_BYTES]);

/* Looks once what standard error is, so that no line goes into a file that the program was given the
   same descriptor for. To be called as early as can be; one thread at a time. */
void report_see_stderr(void);

/* Sets what report_line obeys, and whether lines may be printed yet. */
void report_configure(const struct config *);

/* The JSON file if one was asked for, then the line at exit, which names the file only when it was
   written. A regular file is replaced atomically (a temporary one beside it, or beside a link's
   target, is renamed); devices, FIFOs and the program's own output are written as they are. Errors
   are one line on stderr. Nothing at all when no file was asked for and the program asked for no
   device memory. */
void report_finish(const struct config *);

/* The JSON file now, to this path; 0 or an errno. */
int report_write(const struct config *, const char *path);

/* Writes the JSON file as it stands, if one was asked for: every so often, and before something that the process may not
   outlive. An error is told once. */
void report_now(const struct config *);

/* Forgets everything (a forked child starts anew). */
void report_reset(void);
#endif
