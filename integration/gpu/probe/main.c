/* gpu-probe NAME...: runs each probe in a child, watches it, and prints one JSON object a line (see
   ../probe.schema.json). The child tells its facts as it goes (report.c), so a crash or a hang is a
   result like others: ok is false, error says how it ended and what was being done.

   This process never loads the driver: a child forked by one that has could not use it. */
#include "probe.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct known {
  const char *name, *id, *question, *rule;
  void (*run)(void);
};
static const struct known probes[] = {
#define PROBE(name, id, question, rule) {#name, id, question, rule, probe_##name},
#include "probes.def"
#undef PROBE
};
enum { PROBES = sizeof probes / sizeof *probes, DEFAULT_LIMIT_S = 20 };

/* A string that grows; what doesn't fit is left out, whole parts at a time. */
struct text {
  char bytes[256 * 1024];
  size_t length;
};

struct told {
  struct text facts, errors;
  char doing[512];
  bool simulated, done;
};

static void append(struct text *text, const char *separator, const char *part) {
  size_t need = strlen(separator) + strlen(part);
  if (text->length + need + 1 > sizeof text->bytes)
    return;
  if (text->length > 0)
    text->length += (size_t)sprintf(text->bytes + text->length, "%s", separator);
  text->length += (size_t)sprintf(text->bytes + text->length, "%s", part);
}

static void take_line(struct told *told, const char *line) {
  switch (line[0]) {
  case 'f':
    append(&told->facts, ", ", line + 1);
    break;
  case 'e':
    append(&told->errors, "; ", line + 1);
    break;
  case 'p':
    snprintf(told->doing, sizeof told->doing, "%s", line + 1);
    break;
  case 's':
    told->simulated = true;
    break;
  case 'd':
    told->done = true;
    break;
  default:
    append(&told->errors, "; ", "the probe told nonsense");
  }
}

static void print_quoted(const char *text) {
  putchar('"');
  for (; *text != 0; text++) {
    if (*text == '"' || *text == '\\')
      putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  putchar('"');
}

static void print_result(const struct known *probe, const struct told *told, bool ok,
                         double seconds) {
  printf("{\"probe\": \"%s\", \"id\": \"%s\", \"ok\": %s, \"simulated\": %s, \"seconds\": %.3f, "
         "\"question\": ",
         probe->name, probe->id, ok ? "true" : "false", told->simulated ? "true" : "false",
         seconds);
  print_quoted(probe->question);
  printf(", \"rule\": ");
  if (told->simulated)
    print_quoted(probe->rule);
  else
    printf("null");
  printf(", \"facts\": {%s}, \"error\": ", told->facts.bytes);
  if (ok)
    printf("null");
  else
    print_quoted(told->errors.bytes);
  printf("}\n");
  fflush(stdout);
}

/* Whole lines of what was read so far; returns how much remains. */
static size_t take_lines(struct told *told, char *buffer, size_t length) {
  char *line = buffer, *end;
  while ((end = memchr(line, '\n', length - (size_t)(line - buffer))) != NULL) {
    *end = 0;
    take_line(told, line);
    line = end + 1;
  }
  length -= (size_t)(line - buffer);
  memmove(buffer, line, length);
  return length;
}

/* Reads until the child closed its end; false when the time is over. */
static bool listen_to(int from, struct told *told, double end_us) {
  char buffer[8192];
  size_t length = 0;
  for (;;) {
    double left_ms = (end_us - now_us()) / 1e3;
    struct pollfd wait = {.fd = from, .events = POLLIN};
    if (left_ms <= 0)
      return false;
    if (poll(&wait, 1, (int)left_ms + 1) <= 0)
      continue;
    ssize_t got = read(from, buffer + length, sizeof buffer - length);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return true;
    length = take_lines(told, buffer, length + (size_t)got);
    if (length == sizeof buffer)
      length = 0; /* no line of ours is so long */
  }
}

static void child(const struct known *probe, int to) {
  report_to(to);
  probe->run();
  report_done();
  /* exit() would tear the driver down, which may take longer than the probe */
  _exit(0);
}

static void say_how_it_ended(struct told *told, bool in_time, int status, double limit_s) {
  char text[700];
  if (!in_time)
    snprintf(text, sizeof text, "no end within %g s", limit_s);
  else if (WIFSIGNALED(status))
    snprintf(text, sizeof text, "ended by signal %d (%s)", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
  else if (!told->done)
    snprintf(text, sizeof text, "ended with status %d before it was done", WEXITSTATUS(status));
  else
    return;
  size_t length = strlen(text);
  if (told->doing[0] != 0)
    snprintf(text + length, sizeof text - length, ", while %s", told->doing);
  append(&told->errors, "; ", text);
}

static bool run(const struct known *probe, double limit_s) {
  static struct told told;
  int ends[2], status = 0;
  memset(&told, 0, sizeof told);
  if (pipe(ends) != 0) {
    perror("gpu-probe: pipe");
    exit(2);
  }
  double begin = now_us();
  pid_t pid = fork();
  if (pid < 0) {
    perror("gpu-probe: fork");
    exit(2);
  }
  if (pid == 0) {
    close(ends[0]);
    child(probe, ends[1]);
  }
  close(ends[1]);
  bool in_time = listen_to(ends[0], &told, begin + limit_s * 1e6);
  close(ends[0]);
  if (!in_time)
    kill(pid, SIGKILL);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  say_how_it_ended(&told, in_time, status, limit_s);
  bool ok = told.errors.length == 0;
  print_result(probe, &told, ok, (now_us() - begin) / 1e6);
  return ok;
}

static int usage(FILE *to) {
  fprintf(
      to,
      "usage: gpu-probe [--limit SECONDS] NAME...|all\n"
      "       gpu-probe --list\n\n"
      "Asks the driver of device 0 what the library relies on; one JSON object a line for each\n"
      "probe, at most SECONDS (%d) each. Exit status: 0 all held, 1 something did not, 2 wrong "
      "usage.\n\n",
      DEFAULT_LIMIT_S);
  for (int i = 0; i < PROBES; i++)
    fprintf(to, "  %-14s %-4s %s\n", probes[i].name, probes[i].id, probes[i].question);
  return to == stdout ? 0 : 2;
}

static const struct known *find(const char *name) {
  for (int i = 0; i < PROBES; i++)
    if (strcmp(probes[i].name, name) == 0)
      return &probes[i];
  return NULL;
}

int main(int count, char **arguments) {
  double limit_s = DEFAULT_LIMIT_S;
  bool ok = true;
  int first = 1;
  if (count > 1 && (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0))
    return usage(stdout);
  if (count == 2 && strcmp(arguments[1], "--list") == 0) {
    for (int i = 0; i < PROBES; i++)
      printf("%s\n", probes[i].name);
    return 0;
  }
  if (count > 2 && strcmp(arguments[1], "--limit") == 0) {
    char *end;
    limit_s = strtod(arguments[2], &end);
    if (*end != 0 || !(limit_s > 0 && limit_s <= 3600)) {
      fprintf(stderr, "gpu-probe: --limit %s: wants seconds, above 0 and at most 3600\n",
              arguments[2]);
      return 2;
    }
    first = 3;
  }
  if (first >= count)
    return usage(stderr);
  if (count == first + 1 && strcmp(arguments[first], "all") == 0) {
    for (int i = 0; i < PROBES; i++)
      ok &= run(&probes[i], limit_s);
    return ok ? 0 : 1;
  }
  for (int i = first; i < count; i++)
    if (find(arguments[i]) == NULL) {
      fprintf(stderr, "gpu-probe: %s: no such probe; --list names them\n", arguments[i]);
      return 2;
    }
  for (int i = first; i < count; i++)
    ok &= run(find(arguments[i]), limit_s);
  return ok ? 0 : 1;
}
