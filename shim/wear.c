/* See wear.h. Rates are measured from the second step on: the first also writes what comes to the drives. What the drives tell of
   themselves takes time, up to 2 s with smartctl, and changes by the hour: it is asked for again after ten minutes, or at once when
   the last answer came at once. One lock protects what is in here; drives are asked without it. */
#include "wear.h"
#include "../nvme/clock.h"
#include "../nvme/endurance.h"
#include "../policy/report.h"
#include "../policy/scratch.h"
#include "cancel.h"
#include "process.h"
#include <pthread.h>
#include <stdio.h>

_Static_assert(REPORT_DRIVES >= (int)STORE_DIRECTORIES_MOST,
               "the report has room for every directory");

static const uint64_t second_ns = 1000000000, asked_again_ns = 600 * second_ns,
                      at_once_ns = second_ns / 50;

struct answer {
  bool asked;
  uint64_t at_ns, took_ns;
  struct drive_health health;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  struct store *store;
  bool reached, told;
  CUcontext context;
  uint64_t steps; /* begun with state on drives */
  uint64_t from_ns, step_ns;
  uint64_t from_bytes[STORE_DIRECTORIES_MOST];
  struct answer answers[STORE_DIRECTORIES_MOST];
} wear;

/* The first step's are not counted. */
enum { STEPS_UNCOUNTED = 1, STEPS_BEFORE_WARNING = 3 };

/* Not under the lock. */
static struct drive_health health_of(unsigned i, uint64_t device) {
  const uint64_t before = clock_now_ns();
  pthread_mutex_lock(&lock);
  struct answer answer = wear.answers[i];
  pthread_mutex_unlock(&lock);
  if (answer.asked && answer.took_ns > at_once_ns && before - answer.at_ns < asked_again_ns)
    return answer.health;
  const int cancel = cancel_hold();
  answer = (struct answer){.asked = true, .at_ns = before, .health = drive_health(device, NULL)};
  cancel_allow(cancel);
  answer.took_ns = clock_now_ns() - before;
  pthread_mutex_lock(&lock);
  wear.answers[i] = answer;
  pthread_mutex_unlock(&lock);
  return answer.health;
}

/* ---- the report ---- */

/* Under the lock. When the report is written for good the last step that was counted is over. */
static void tell_drive(struct store *store, unsigned i, struct report_drives *drives) {
  struct report_drive *drive = &drives->drives[i];
  double steps, days;
  drive->failed = store_directory_failed(store, i);
  drive->written_bytes = store_directory_written(store, i);
  drive->health = wear.answers[i].health;
  if (!drives->steps)
    return;
  drive->bytes_per_step = (drive->written_bytes - wear.from_bytes[i]) / drives->steps;
  drives->bytes_per_step += drive->bytes_per_step;
  drive->life_known = drive_life(&drive->health, drive->bytes_per_step,
                                 (double)drives->step_ns / (double)second_ns, &steps, &days);
  if (drive->life_known) {
    drive->steps_left = (uint64_t)steps;
    drive->days_left = (uint64_t)days;
  }
}

/* What the report says of drives, from now on; drives are asked only when `ask`, else their last answers count. */
static void tell(bool ask) {
  struct report_drives *drives = scratch_take(sizeof *drives);
  uint64_t device;
  pthread_mutex_lock(&lock);
  struct store *store = wear.store;
  pthread_mutex_unlock(&lock);
  if (!drives || !store) {
    scratch_drop(drives, sizeof *drives);
    return;
  }
  const struct store_stats stats = store_stats(store);
  drives->rung = engine_rung_name(stats.rung);
  drives->block_bytes = stats.block_bytes;
  drives->depth = stats.depth;
  drives->written_bytes = stats.written_bytes;
  drives->read_bytes = stats.read_bytes;
  drives->resident_bytes = stats.resident_bytes;
  drives->kept_bytes = stats.kept_bytes;
  drives->checksum_ns = stats.checksum_ns;
  drives->failed = stats.failed_directories;
  for (const char *path; (path = store_directory(store, drives->count, &device)); drives->count++) {
    if (ask)
      (void)health_of(drives->count, device);
    drives->drives[drives->count].path = path;
  }
  pthread_mutex_lock(&lock);
  drives->steps = wear.steps > STEPS_UNCOUNTED ? wear.steps - STEPS_UNCOUNTED : 0;
  drives->step_ns = wear.step_ns;
  drives->wear_limit_reached = wear.reached;
  for (unsigned i = 0; i < drives->count; i++)
    tell_drive(store, i, drives);
  pthread_mutex_unlock(&lock);
  report_drives(drives);
  scratch_drop(drives, sizeof *drives);
}

static void know(struct store *store) {
  if (wear.store)
    return;
  pthread_mutex_lock(&lock);
  wear.store = store;
  pthread_mutex_unlock(&lock);
  tell(false);
}

/* ---- the limit ---- */

/* False when that was known already. */
static bool reach(void) {
  pthread_mutex_lock(&lock);
  const bool first = !wear.reached;
  wear.reached = true;
  pthread_mutex_unlock(&lock);
  tell(false);
  return first;
}

static bool percent_ended(struct store *store, const struct wear_limit *limit) {
  const char *path;
  uint64_t device;
  for (unsigned i = 0; (path = store_directory(store, i, &device)); i++) {
    const struct drive_health health = health_of(i, device);
    if (!health.percent_known) {
      report_notice("no state goes to drives: OFFLOAD_NVME_WEAR_LIMIT=%u%% can't be held, as how "
                    "much of the endurance of the drive under %s is used can't be read; run as "
                    "root, with smartctl installed, or give the limit in bytes, as in 20TB",
                    limit->percent, path);
      return true;
    }
    if (wear_reached(limit, &health, 0)) {
      report_notice("no more state goes to drives: OFFLOAD_NVME_WEAR_LIMIT=%u%% is reached, %u%% "
                    "of the endurance of %s under %s is used; what is there stays",
                    limit->percent, health.percent_used, health.name, path);
      (void)reach();
      return true;
    }
  }
  return false;
}

/* From any thread. */
static bool bytes_ended(struct store *store, const struct wear_limit *limit) {
  const double megabyte = 1e6, gigabyte = 1e9, terabyte = 1e12, most = (double)limit->bytes;
  const uint64_t written = store_stats(store).written_bytes;
  if (!wear_reached(limit, &(struct drive_health){0}, written))
    return false;
  const double unit = most >= terabyte ? terabyte : most >= gigabyte ? gigabyte : megabyte;
  if (reach())
    report_notice("no more state goes to drives: OFFLOAD_NVME_WEAR_LIMIT is reached, %.3g of %.3g "
                  "%s are written; what is there stays and is written on",
                  (double)written / unit, most / unit,
                  unit == terabyte   ? "TB"
                  : unit == gigabyte ? "GB"
                                     : "MB");
  return true;
}

bool wear_ended(struct store *store) {
  const struct wear_limit *limit = &process_config()->nvme_wear_limit;
  static bool ended;
  static uint64_t next_ns;
  know(store);
  if (ended || !limit->set)
    return ended;
  if (limit->percent) {
    const uint64_t now = clock_now_ns();
    if (now < next_ns)
      return false;
    next_ns = now + asked_again_ns;
    return ended = percent_ended(store, limit);
  }
  return ended = bytes_ended(store, limit);
}

void wear_report(void) {
  const struct wear_limit *limit = &process_config()->nvme_wear_limit;
  pthread_mutex_lock(&lock);
  struct store *store = wear.store;
  pthread_mutex_unlock(&lock);
  if (store && limit->set && !limit->percent)
    (void)bytes_ended(store, limit); /* what the last step wrote counts too */
  tell(true);
}

/* ---- steps ---- */

/* What so many bytes a step make of a drive, in a sentence. */
static void warn(const char *path, const struct report_drive *drive, uint64_t step_ns) {
  const double terabyte = 1e12, gigabyte = 1e9;
  const struct drive_health *health = &drive->health;
  struct drive_health fresh = *health;
  double steps, days;
  char used[96] = "all of them left if it is new";
  if (!health->written_known && !health->percent_known) {
    fresh.written_known = true; /* the whole life */
    fresh.written_bytes = 0;
  } else if (health->percent_known)
    snprintf(used, sizeof used, "of which %u%% are used", health->percent_used);
  else
    snprintf(used, sizeof used, "of which %.1f TB are written",
             (double)health->written_bytes / terabyte);
  if (drive_life(&fresh, drive->bytes_per_step, (double)step_ns / (double)second_ns, &steps, &days))
    report_notice("%s under %s (%s) is a consumer drive, rated for %.0f TB of writes, %s: at %.3g "
                  "GB a step and %.3g s a step it lasts %.0f steps, %.1f days; set "
                  "OFFLOAD_NVME_WEAR_LIMIT, as in 20TB or 90%%, to stop before",
                  health->name, path, health->model, (double)health->rated_bytes / terabyte, used,
                  (double)drive->bytes_per_step / gigabyte, (double)step_ns / (double)second_ns,
                  steps, days);
  else
    report_notice("%s under %s (%s) is a consumer drive, and %.3g GB are written there at each "
                  "step; set OFFLOAD_NVME_WEAR_LIMIT, as in 20TB, to stop before it is worn out",
                  health->name, path, health->model, (double)drive->bytes_per_step / gigabyte);
}

static void warn_of_consumer_drives(struct store *store, uint64_t steps) {
  const char *path;
  uint64_t device;
  for (unsigned i = 0; (path = store_directory(store, i, &device)); i++) {
    struct report_drive drive = {.health = health_of(i, device)};
    drive.bytes_per_step = (store_directory_written(store, i) - wear.from_bytes[i]) / steps;
    if (drive.health.consumer && drive.bytes_per_step)
      warn(path, &drive, wear.step_ns);
  }
}

void wear_step(struct store *store, CUcontext context) {
  know(store);
  pthread_mutex_lock(&lock);
  if (!wear.steps)
    wear.context = context;
  const bool counts = context == wear.context;
  const uint64_t steps = counts ? ++wear.steps : 0, now = clock_now_ns();
  if (steps == STEPS_UNCOUNTED + 1) {
    wear.from_ns = now;
    for (unsigned i = 0; i < STORE_DIRECTORIES_MOST; i++)
      wear.from_bytes[i] = store_directory_written(store, i);
  } else if (steps > STEPS_UNCOUNTED + 1) {
    wear.step_ns = (now - wear.from_ns) / (steps - STEPS_UNCOUNTED - 1);
  }
  const bool warning = steps >= STEPS_BEFORE_WARNING && !wear.told;
  wear.told |= warning;
  pthread_mutex_unlock(&lock);
  tell(false);
  if (warning && !process_config()->nvme_wear_limit.set)
    warn_of_consumer_drives(store, steps - STEPS_UNCOUNTED - 1);
}
