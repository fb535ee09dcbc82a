/* See report_drives.h. What isn't known is null. What was told last is kept under a lock, and written from a copy. */
#include "report_drives.h"
#include "leaf.h"
#include "scratch.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct report_drives told; /* no drives: nobody has */

void report_drives(const struct report_drives *drives) {
  if (!leaf_lock(&lock))
    return;
  told = *drives;
  pthread_mutex_unlock(&lock);
}

void report_drives_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  told.count = 0;
}

static void write_drive(struct json *json, const struct report_drive *drive, bool rates_known) {
  const struct drive_health *health = &drive->health;
  json_begin(json, NULL, '{');
  json_string(json, "path", drive->path);
  json_text_or_null(json, "device", health->name);
  json_text_or_null(json, "model", health->model);
  json_text_or_null(json, "source", health->source);
  json_number_or_null(json, "capacity_bytes", health->capacity_bytes, health->capacity_bytes);
  json_boolean(json, "consumer", health->consumer);
  json_number_or_null(json, "percent_used", health->percent_known, health->percent_used);
  json_number_or_null(json, "rated_bytes", health->rated_known, health->rated_bytes);
  json_number_or_null(json, "life_written_bytes", health->written_known, health->written_bytes);
  json_number_or_null(json, "boot_written_bytes", health->boot_known, health->boot_written_bytes);
  json_number(json, "written_bytes", drive->written_bytes);
  json_number_or_null(json, "bytes_per_step", rates_known, drive->bytes_per_step);
  json_number_or_null(json, "steps_left", drive->life_known, drive->steps_left);
  json_number_or_null(json, "days_left", drive->life_known, drive->days_left);
  json_boolean(json, "failed", drive->failed);
  json_end(json, '}');
}

void report_drives_json(struct json *json) {
  struct report_drives *drives = scratch_take(sizeof *drives);
  if (drives && leaf_lock(&lock)) {
    *drives = told;
    pthread_mutex_unlock(&lock);
  }
  if (!drives || !drives->count) {
    json_string(json, "drives", NULL);
    scratch_drop(drives, sizeof *drives);
    return;
  }
  json_begin(json, "drives", '{');
  json_string(json, "rung", drives->rung);
  json_number(json, "block_bytes", drives->block_bytes);
  json_number(json, "depth", drives->depth);
  json_number(json, "read_bytes", drives->read_bytes);
  json_number(json, "written_bytes", drives->written_bytes);
  json_number(json, "resident_bytes", drives->resident_bytes);
  json_number(json, "kept_bytes", drives->kept_bytes);
  json_number(json, "checksum_ns", drives->checksum_ns);
  json_number(json, "steps", drives->steps);
  json_number_or_null(json, "bytes_per_step", drives->steps, drives->bytes_per_step);
  json_number_or_null(json, "step_ns", drives->step_ns, drives->step_ns);
  json_boolean(json, "wear_limit_reached", drives->wear_limit_reached);
  json_number(json, "failed_directories", drives->failed);
  json_begin(json, "directories", '[');
  for (unsigned i = 0; i < drives->count; i++)
    write_drive(json, &drives->drives[i], drives->steps);
  json_end(json, ']');
  json_end(json, '}');
  scratch_drop(drives, sizeof *drives);
}
