/* See rates_cache.h. Nothing is flushed to the disk: a machine that crashes has another boot afterwards. */
#define _GNU_SOURCE
#include "rates_cache.h"
#include "../nvme/clock.h"
#include "out.h"
#include "report_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char first_line[] = "# what this machine does in a second, measured by offload-probe";
enum { TEXT_BYTES = 4096, LINE_BYTES = 1024, DRIVES_SHOWN = 700 };

/* A file's beginning; false when there is none. */
static bool text_at(const char *root, const char *path, char *text, size_t bytes) {
  char whole[512];
  if (snprintf(whole, sizeof whole, "%s%s", root ? root : "", path) >= (int)sizeof whole)
    return false;
  const int file = open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return false;
  const ssize_t got = read(file, text, bytes - 1);
  close(file);
  text[got > 0 ? got : 0] = 0;
  return *text;
}

/* Its first word. */
static bool first_word(const char *root, const char *path, char *word, size_t bytes) {
  if (!text_at(root, path, word, bytes))
    return false;
  word[strcspn(word, " \t\r\n")] = 0;
  return *word;
}

bool rates_key_here(struct rates_key *key, const char *root, int version) {
  char module[48];
  *key = (struct rates_key){.drives = NULL};
  if (first_word(root, "/sys/module/nvidia/version", module, sizeof module))
    (void)snprintf(key->driver, sizeof key->driver, "%s", module);
  else if (version)
    (void)snprintf(key->driver, sizeof key->driver, "CUDA %d.%d", version / 1000,
                   version % 1000 / 10);
  return first_word(root, "/proc/sys/kernel/random/boot_id", key->boot, sizeof key->boot);
}

static bool directory_of(char path[RATES_PATH_BYTES], char *problem, size_t bytes) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  const bool of_cache = cache && *cache == '/';
  if (!of_cache && (!home || *home != '/'))
    return rates_fail(
        problem, bytes,
        "neither XDG_CACHE_HOME nor HOME names a directory, so what is measured is not "
        "kept: set one");
  if (snprintf(path, RATES_PATH_BYTES, "%s%s/liboffload", of_cache ? cache : home,
               of_cache ? "" : "/.cache") >= RATES_PATH_BYTES - 64)
    return rates_fail(problem, bytes, "the path of XDG_CACHE_HOME or HOME is too long");
  return true;
}

static uint64_t hash(const char *text) { /* FNV-1a */
  uint64_t value = 0xcbf29ce484222325u;
  for (; *text; text++)
    value = (value ^ (unsigned char)*text) * 0x100000001b3u;
  return value;
}

/* The line that a file must have to be taken. What would end it is no part of it; of long lists of drives it has a hash. */
static void key_line(const struct rates_key *key, char line[LINE_BYTES]) {
  const char *drives = key->drives && *key->drives ? key->drives : "none";
  char rest[24] = "";
  if (strlen(drives) > DRIVES_SHOWN)
    (void)snprintf(rest, sizeof rest, "... %016llx", (unsigned long long)hash(drives));
  (void)snprintf(line, LINE_BYTES, "# boot %s, driver %s, GPU %s, drives %.*s%s", key->boot,
                 *key->driver ? key->driver : "unknown", *key->gpu ? key->gpu : "unknown",
                 DRIVES_SHOWN, drives, rest);
  for (char *at = line; *at; at++)
    if ((unsigned char)*at < ' ')
      *at = '?';
}

bool rates_cache_path(const struct rates_key *key, char path[RATES_PATH_BYTES], char *problem,
                      size_t bytes) {
  char line[LINE_BYTES];
  if (!directory_of(path, problem, bytes))
    return false;
  key_line(key, line);
  const size_t used = strlen(path);
  (void)snprintf(path + used, RATES_PATH_BYTES - used, "/rates-%.8s-%016llx", key->boot,
                 (unsigned long long)hash(line));
  return true;
}

/* Where "GPU " and ", drives " stand in a second line; what is between is the bus id. False: it has none. */
static bool split_line(const char *line, const char **gpu, const char **drives) {
  *gpu = strstr(line, ", GPU ");
  *drives = *gpu ? strstr(*gpu, ", drives ") : NULL;
  if (!*drives)
    return false;
  *gpu += strlen(", GPU ");
  *drives += strlen(", drives ");
  return true;
}

/* Reads a file whose second line begins with `line`, or is it. `kept` (or NULL) and the whole second line tell what it is of. */
static bool read_file(const char *path, const char *line, bool whole, struct rates *rates,
                      struct rates_kept *kept, char second[LINE_BYTES + 2]) {
  char problem[512], first[LINE_BYTES] = "";
  struct stat status;
  /* Nothing that could be waited for, wherever XDG_CACHE_HOME leads. */
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  const bool regular = descriptor >= 0 && file_look(descriptor, "", AT_EMPTY_PATH, &status) &&
                       S_ISREG(status.st_mode);
  FILE *file = regular ? fdopen(descriptor, "r") : NULL;
  if (!file && descriptor >= 0)
    close(descriptor);
  const bool has = file && fgets(first, sizeof first, file) && fgets(second, LINE_BYTES + 2, file);
  if (file)
    (void)fclose(file);
  if (!has)
    return false;
  second[strcspn(second, "\n")] = 0;
  if (whole ? strcmp(second, line) != 0 : strncmp(second, line, strlen(line)) != 0)
    return false;
  struct rates read;
  rates_assume(&read);
  if (!rates_read(&read, path, problem, sizeof problem))
    return false;
  read.source = RATES_MEASURED;
  *rates = read;
  if (!kept)
    return true;
  const char *gpu, *drives;
  first[strcspn(first, "\n")] = 0;
  const char *name =
      strncmp(first, first_line, strlen(first_line)) ? "" : first + strlen(first_line);
  (void)snprintf(kept->name, sizeof kept->name, "%.95s", strncmp(name, " on ", 4) ? "" : name + 4);
  kept->when = status.st_mtim.tv_sec;
  *kept->gpu = 0;
  if (split_line(second, &gpu, &drives))
    (void)snprintf(kept->gpu, sizeof kept->gpu, "%.*s", (int)(drives - strlen(", drives ") - gpu),
                   gpu);
  return true;
}

/* Whether two names of a GPU may be the same one's: of a part of a GPU more is told, of an unknown one nothing. */
static bool names_agree(const char *model, const char *name) {
  const size_t a = strlen(model), b = strlen(name);
  return !strncmp(model, "Unknown", strlen("Unknown")) || !strncmp(model, name, a < b ? a : b);
}

/* Whether a GPU of that bus id, and of that name where both are told, is in this machine. */
static bool gpu_here(const char *root, const struct rates_kept *kept) {
  char path[128], text[1024], module[48], bus[sizeof kept->gpu] = "";
  for (size_t i = 0; i < sizeof bus; i++) /* the driver writes C1, the kernel c1 */
    bus[i] =
        (char)(kept->gpu[i] >= 'A' && kept->gpu[i] <= 'F' ? kept->gpu[i] | 0x20 : kept->gpu[i]);
  if (!*bus || strchr(bus, '/'))
    return false;
  (void)snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", bus);
  if (text_at(root, path, text, sizeof text)) {
    char *model = strstr(text, "Model:");
    if (!model)
      return true;
    model += strlen("Model:");
    model += strspn(model, " \t");
    model[strcspn(model, "\n")] = 0;
    return names_agree(model, kept->name);
  }
  (void)snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", bus);
  return first_word(root, path, text, sizeof text) && !strcmp(text, "0x10de") &&
         first_word(root, "/sys/module/nvidia/version", module, sizeof module);
}

bool rates_cached(const struct rates_key *key, struct rates *rates, char path[RATES_PATH_BYTES]) {
  char problem[256], line[LINE_BYTES], second[LINE_BYTES + 2];
  if (!rates_cache_path(key, path, problem, sizeof problem))
    return false;
  key_line(key, line);
  return read_file(path, line, true, rates, NULL, second);
}

/* The drives of a second line are those that key_line writes for a list. */
static bool same_drives(const char *second, const char *drives) {
  const struct rates_key key = {.drives = drives};
  const char *gpu, *has, *wanted;
  char line[LINE_BYTES];
  key_line(&key, line);
  return drives && *drives && split_line(line, &gpu, &wanted) && split_line(second, &gpu, &has) &&
         !strcmp(has, wanted);
}

bool rates_cached_newest(const char *root, bool here, const char *drives, struct rates *rates,
                         struct rates_kept *kept) {
  struct rates_key key;
  *kept = (struct rates_kept){.path = ""};
  char second[LINE_BYTES + 2], directory[RATES_PATH_BYTES], problem[256], prefix[32], line[256];
  if (!rates_key_here(&key, root, 0) || !directory_of(directory, problem, sizeof problem))
    return false;
  DIR *list = opendir(directory);
  if (!list)
    return false;
  (void)snprintf(prefix, sizeof prefix, "rates-%.8s-", key.boot);
  /* Where the module's version can't be told the file's own is taken as it is. */
  (void)snprintf(line, sizeof line, "# boot %s, driver %s%s", key.boot, key.driver,
                 *key.driver ? ", " : "");
  struct timespec newest = {0, 0};
  bool found = false, has_drives = false;
  for (struct dirent *entry; (entry = readdir(list));) {
    char one[RATES_PATH_BYTES];
    struct stat status;
    if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 || strchr(entry->d_name, '.') ||
        snprintf(one, sizeof one, "%s/%s", directory, entry->d_name) >= (int)sizeof one ||
        !file_look(AT_FDCWD, one, 0, &status))
      continue;
    const struct timespec *when = &status.st_mtim;
    struct rates read;
    struct rates_kept one_kept;
    if (!read_file(one, line, false, &read, &one_kept, second) ||
        (here && !gpu_here(root, &one_kept)))
      continue;
    const bool with_drives = same_drives(second, drives);
    const bool newer = when->tv_sec > newest.tv_sec ||
                       (when->tv_sec == newest.tv_sec && when->tv_nsec > newest.tv_nsec);
    if (found && (with_drives == has_drives ? !newer : has_drives))
      continue;
    found = true;
    has_drives = with_drives;
    newest = *when;
    *rates = read;
    if (!with_drives)
      rates->drive_read = rates->drive_write = 0;
    *kept = one_kept;
    memcpy(kept->path, one, strlen(one) + 1);
  }
  closedir(list);
  return found;
}

int rates_cache_lock(const struct rates_key *key, const char *what, uint64_t until_ns,
                     char *problem, size_t bytes) {
  char path[RATES_PATH_BYTES];
  if (!directory_of(path, problem, bytes))
    return -1;
  char *last = strrchr(path, '/');
  *last = 0;
  (void)mkdir(path, 0700);
  *last = '/';
  if (mkdir(path, 0700) && errno != EEXIST) {
    rates_fail(problem, bytes, "%s can't be made (%s), so what is measured is not kept", path,
               strerror(errno));
    return -1;
  }
  if (what)
    (void)snprintf(path + strlen(path), RATES_PATH_BYTES - strlen(path), "/%s", what);
  else if (!rates_cache_path(key, path, problem, bytes))
    return -1;
  (void)snprintf(path + strlen(path), RATES_PATH_BYTES - strlen(path), ".lock");
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) {
    rates_fail(problem, bytes, "%s can't be written (%s), so what is measured is not kept", path,
               strerror(errno));
    return -1;
  }
  while (flock(file, LOCK_EX | LOCK_NB)) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || clock_now_ns() >= until_ns) {
      rates_fail(problem, bytes, "%s: %s", path,
                 errno == EWOULDBLOCK ? "another process measures, and takes its time"
                                      : strerror(errno));
      close(file);
      return -1;
    }
    const struct timespec while_it_measures = {.tv_nsec = 5000000};
    (void)nanosleep(&while_it_measures, NULL);
  }
  return file;
}

int rates_text(const struct rates_key *key, const struct rates *rates, char *text, size_t bytes) {
  char line[LINE_BYTES];
  key_line(key, line);
  const int head = snprintf(text, bytes, "%s%s%.*s\n%s\n", first_line, *key->name ? " on " : "",
                            (int)strcspn(key->name, "\r\n"), key->name, line);
  const size_t used = (size_t)head < bytes ? (size_t)head : bytes;
  return head + rates_format(rates, used < bytes ? text + used : NULL, bytes - used);
}

static int write_text(int fd, const void *text) {
  return out_write(fd, text, strlen(text));
}

bool rates_cache_store(const struct rates_key *key, const struct rates *rates, char *problem,
                       size_t bytes) {
  char path[RATES_PATH_BYTES], text[TEXT_BYTES];
  if (!rates_cache_path(key, path, problem, bytes))
    return false;
  if (rates_text(key, rates, text, sizeof text) >= (int)sizeof text)
    return rates_fail(problem, bytes, "the names of drives are too long for a file of rates");
  const int error = report_file_write(path, &(struct file_contents){write_text, text});
  return !error ||
         rates_fail(problem, bytes, "%s can't be written (%s), so what is measured is not kept",
                    path, strerror(error));
}
