/* `offload run`: starts a command with liboffload.so preloaded, and says so when it was not loaded.

   The command runs as a child, so that its memory map can be looked at once the dynamic linker has done its work; signals
   are passed on, and its exit status is ours. Its options are the variables of variables.def. */
#define _GNU_SOURCE
#include "command.h"
#include "config.h"
#include "inspect.h"
#include "library.h"
#include "observed.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  PATH_MOST = 4096,
  SETTINGS_MOST = 64,
  LOOK_EVERY_NS = 2000000,
  LOOK_FOR_NS = 2000000000, /* a dynamic linker on a slow network file system takes its time */
};

/* Keys of options: values above any character. */
enum { OPTION_LIBRARY = 256, OPTION_REQUIRE, OPTION_OBSERVE, OPTION_VARIABLE };

static const struct variable {
  const char *name, *kind, *help;
} variables[] = {
#define VARIABLE(field, NAME, kind, initial, help) {NAME, #kind, help},
#include "variables.def"
#undef VARIABLE
};
enum { VARIABLES = sizeof variables / sizeof *variables };

struct run {
  const char *library; /* as given, or NULL */
  bool require;
  char *settings[SETTINGS_MOST + 1]; /* "OFFLOAD_MODE=full" and so on, NULL at the end */
  size_t setting_count;
  char **command;
};

/* ---- the command line ---- */

static void add_setting(struct run *run, struct argp_state *state, const char *name, size_t length,
                        const char *value) {
  char *entry = NULL;
  if (run->setting_count == SETTINGS_MOST ||
      asprintf(&entry, "%.*s=%s", (int)length, name, value) < 0)
    argp_error(state, "more than %d settings", SETTINGS_MOST);
  else
    run->settings[run->setting_count++] = entry;
}

/* Length of the name in "NAME=value", 0 when the argument is none. */
static size_t assignment(const char *argument) {
  const size_t length = strspn(argument, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                         "0123456789_");
  return argument[length] == '=' && (argument[0] < '0' || argument[0] > '9') ? length : 0;
}

/* What an option takes: its words, or the kind in capitals. */
static void argument_of(const char *kind, char *text, size_t bytes) {
  const char *const *words = config_words(kind);
  const char *named = !strcmp(kind, "PATH") ? "FILE" : !strcmp(kind, "FLAG") ? "0|1" : kind;
  snprintf(text, bytes, "%s", words ? "" : named);
  for (size_t i = 0; words && words[i]; i++)
    snprintf(text + strlen(text), bytes - strlen(text), "%s%s", i ? "|" : "", words[i]);
}

/* Ours, and one for each variable: HOST_MEMORY becomes --host-memory. Those for tests work and aren't shown. */
static const struct argp_option *make_options(void) {
  static struct argp_option options[VARIABLES + 6] = {
      {"library", OPTION_LIBRARY, "FILE", 0,
       "the library to preload; otherwise beside this program, or in ../lib from there", 0},
      {"require", OPTION_REQUIRE, NULL, 0,
       "don't run COMMAND when the library can't be loaded in it", 0},
      {"observe", OPTION_OBSERVE, NULL, 0, "as --mode observe", 0},
      {NULL, 0, NULL, 0, "Each sets the variable of its name:", 1}};
  static char names[VARIABLES][32], arguments[VARIABLES][64];
  size_t count = 4;
  for (size_t i = 0; i < VARIABLES; i++) {
    const struct variable *variable = &variables[i];
    for (size_t at = 0; at + 1 < sizeof names[i] && variable->name[at]; at++)
      names[i][at] = (char)(variable->name[at] == '_' ? '-' : variable->name[at] | 0x20);
    argument_of(variable->kind, arguments[i], sizeof arguments[i]);
    options[count++] = (struct argp_option){
        names[i],       OPTION_VARIABLE + (int)i,
        arguments[i],   strstr(variable->help, "(for tests)") ? OPTION_HIDDEN : 0,
        variable->help, 1};
  }
  return options;
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  struct run *run = state->input;
  if (key == OPTION_LIBRARY)
    run->library = argument;
  else if (key == OPTION_REQUIRE)
    run->require = true;
  else if (key == OPTION_OBSERVE)
    add_setting(run, state, "OFFLOAD_MODE", sizeof "OFFLOAD_MODE" - 1, "observe");
  else if (key >= OPTION_VARIABLE && key < OPTION_VARIABLE + VARIABLES) {
    char name[64];
    snprintf(name, sizeof name, "OFFLOAD_%s", variables[key - OPTION_VARIABLE].name);
    add_setting(run, state, name, strlen(name), argument);
  } else if (key == ARGP_KEY_ARG && !state->quoted && assignment(argument)) {
    const size_t length = assignment(argument);
    add_setting(run, state, argument, length, argument + length + 1);
  } else if (key == ARGP_KEY_ARG) {
    run->command = state->argv + state->next - 1;
    state->next = state->argc; /* the rest is the command's */
  } else if (key == ARGP_KEY_END && !run->command)
    argp_error(state, "no command: offload run [options] -- COMMAND [ARGUMENT...]");
  else
    return ARGP_ERR_UNKNOWN;
  return 0;
}

/* What was asked for here must be understood; what stands in the environment is the library's to tell. */
static bool settings_good(struct run *run) {
  struct config config;
  config_check(&config, run->settings);
  const bool good = !config.problems[0];
  char *rest = NULL;
  for (char *line = strtok_r(config.problems, "\n", &rest); line;
       line = strtok_r(NULL, "\n", &rest))
    say("not run: %s", line);
  config_free(&config);
  return good;
}

/* ---- the library ---- */

/* Puts the library in front of what is preloaded already. */
static bool set_environment(const struct run *run, const char *library) {
  const char *present = getenv("LD_PRELOAD");
  char *preload = NULL;
  if (asprintf(&preload, "%s%s%s", library, present && *present ? ":" : "",
               present ? present : "") < 0)
    return false;
  bool good = setenv("LD_PRELOAD", preload, 1) == 0;
  free(preload);
  for (size_t i = 0; good && i < run->setting_count; i++)
    good = putenv(run->settings[i]) == 0;
  return good;
}

/* ---- the child ---- */

enum loaded { LOADED_YES, LOADED_NO, LOADED_UNKNOWN };

/* What the child's memory map says. Preloaded libraries are mapped before any other: once libc is there without ours, ours
   will not come. */
static enum loaded look_once(pid_t child, const char *library) {
  char path[64], *line = NULL;
  size_t line_bytes = 0;
  enum loaded answer = LOADED_UNKNOWN;
  snprintf(path, sizeof path, "/proc/%d/maps", (int)child);
  FILE *maps = fopen(path, "re");
  if (!maps)
    return LOADED_UNKNOWN;
  while (answer != LOADED_YES && getline(&line, &line_bytes, maps) > 0) {
    line[strcspn(line, "\n")] = 0;
    const char *file = strchr(line, '/');
    if (!file)
      continue;
    const char *base = strrchr(file, '/') + 1;
    if (!strcmp(file, library))
      answer = LOADED_YES;
    else if (!strncmp(base, "libc.so.6", 9) || !strncmp(base, "libc-2.", 7))
      answer = LOADED_NO;
  }
  free(line);
  fclose(maps);
  return answer;
}

/* The map is read in parts, and ends early when the child does in between: then there is none the next time. */
static enum loaded look(pid_t child, const char *library) {
  const enum loaded answer = look_once(child, library);
  return answer == LOADED_NO ? look_once(child, library) : answer;
}

/* Forks; in the child executes the command. The pipe closes by itself when that succeeds, and carries errno when not. */
static pid_t start(const struct run *run, const char *path, const sigset_t *mask, int *exec_error) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) < 0) {
    *exec_error = errno;
    return -1;
  }
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {
    /* Nothing is left behind when this program is killed. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
      _exit(EXIT_CANNOT_RUN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(path, run->command);
    const int error = errno;
    if (write(report[1], &error, sizeof error) < 0)
      _exit(EXIT_NOT_FOUND);
    _exit(EXIT_CANNOT_RUN);
  }
  *exec_error = child < 0 ? errno : 0;
  close(report[1]);
  if (child > 0) {
    ssize_t got;
    do
      got = read(report[0], exec_error, sizeof *exec_error);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *exec_error)
      *exec_error = 0;
  }
  close(report[0]);
  return child;
}

static int status_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Waits for the child: passes signals on, and looks at its map until it is known whether the library is there. */
static int attend(const struct run *run, pid_t child, const char *library, bool expected) {
  sigset_t all;
  bool looking = expected, refused = false;
  struct timespec pause = {0, LOOK_EVERY_NS};
  long looked_ns = 0;
  sigfillset(&all);
  for (;;) {
    siginfo_t info;
    const int number = sigtimedwait(&all, &info, looking ? &pause : NULL);
    if (number == SIGCHLD || (number < 0 && errno == EAGAIN)) {
      int status;
      if (waitpid(child, &status, WNOHANG) == child)
        return refused ? EXIT_USAGE : status_of(status);
    } else if (number > 0) {
      if (info.si_code <= 0) /* sent to us alone; the terminal's signals reach the child anyway */
        kill(child, number);
      if (number == SIGTSTP || number == SIGTTIN || number == SIGTTOU)
        raise(SIGSTOP); /* the shell waits for both to stop */
    }
    if (!looking)
      continue;
    const enum loaded answer = look(child, library);
    looked_ns += LOOK_EVERY_NS;
    if (answer == LOADED_NO) {
      say("%s was NOT loaded in %s: it runs without%s", library, run->command[0],
          run->require ? "; stopped, as --require asks" : "");
      if (run->require) {
        refused = true;
        kill(child, SIGTERM);
      }
    }
    looking = answer == LOADED_UNKNOWN && looked_ns < LOOK_FOR_NS;
  }
}

/* The job's exit status; *ran: false where there was none. */
static int start_and_attend(const struct run *run, const char *path, const char *library,
                            bool expected, bool *ran) {
  sigset_t all, before;
  int exec_error = 0;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  signal(SIGCHLD, SIG_DFL); /* where it is ignored, exit statuses are lost */
  const pid_t child = start(run, path, &before, &exec_error);
  *ran = !exec_error;
  if (exec_error) {
    say("%s: %s", path, strerror(exec_error));
    if (child > 0)
      waitpid(child, NULL, 0);
    return exec_error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
  }
  return attend(run, child, library, expected);
}

static int run_command(const struct run *run) {
  static struct library found;
  char path[PATH_MOST], reason[256], problem[3 * LIBRARY_PATH_MOST];
  if (!library_find(run->library, &found, problem, sizeof problem)) {
    say("%s", problem);
    return EXIT_USAGE;
  }
  const char *library = found.preload;
  if (!inspect_find(run->command[0], path, sizeof path)) {
    const int error = errno;
    say("%s: %s", run->command[0], strerror(error));
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
  }
  const bool preloadable = inspect_preloadable(path, reason, sizeof reason);
  if (!preloadable) {
    say("%s is NOT loaded in %s, which %s%s", library, path, reason,
        run->require ? ": not run, as --require asks" : "; it runs without");
    if (run->require)
      return EXIT_USAGE;
  }
  if (!set_environment(run, library)) {
    say("no memory for the environment");
    return EXIT_CANNOT_RUN;
  }
  struct config config;
  config_load(&config, environ);
  static struct observed observed;
  const bool observing = config.mode == MODE_OBSERVE && preloadable;
  const bool begun = !observing || observed_begin(&observed, config.report);
  config_free(&config);
  if (!begun)
    return EXIT_CANNOT_RUN;
  bool ran;
  const int status = start_and_attend(run, path, found.mapped, preloadable, &ran);
  if (observing)
    observed_end(&observed, ran);
  return status;
}

int offload_run(int argc, char **argv) {
  const struct argp argp = {.options = make_options(), .parser = parse_option};
  static struct run run;
  command_parse(&argp, argc, argv, ARGP_IN_ORDER, &run);
  return settings_good(&run) ? run_command(&run) : EXIT_USAGE;
}
