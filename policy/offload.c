/* The companion program `offload`: starts a command with liboffload.so preloaded, and says so when it was not loaded.

   The command runs as a child, so that its memory map can be looked at once the dynamic linker has done its work; signals
   are passed on, and its exit status is ours. Everything about variables comes from variables.def. */
#define _GNU_SOURCE
#include "config.h"
#include "inspect.h"
#include "library.h"
#include "version.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  EXIT_USAGE = 2,
  EXIT_CANNOT_RUN = 126,
  EXIT_NOT_FOUND = 127,
  PATH_MOST = 4096,
  SETTINGS_MOST = 64,
  LOOK_EVERY_NS = 2000000,
  LOOK_FOR_NS = 2000000000, /* a dynamic linker on a slow network file system takes its time */
};

/* Long options: values above any character. */
enum { OPTION_LIBRARY = 256, OPTION_REQUIRE, OPTION_HELP, OPTION_VARIABLE };

static const struct variable {
  const char *option, *name, *initial, *help;
} variables[] = {
#define VARIABLE(field, NAME, kind, initial, help) {#field, NAME, initial, help},
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

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("offload: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

static void print_variables(void) {
  for (size_t i = 0; i < VARIABLES; i++)
    printf("  OFFLOAD_%-18s %-8s %s\n", variables[i].name,
           *variables[i].initial ? variables[i].initial : "-", variables[i].help);
}

static void print_help(void) {
  printf(
      "offload " OFFLOAD_VERSION ": Adam's optimizer state in host memory, for unmodified CUDA "
      "programs\n\n"
      "  offload run [--library PATH] [--require] [--mode X and so on | VAR=VALUE]... [--] "
      "COMMAND [ARGUMENT...]\n"
      "      runs COMMAND with liboffload.so preloaded; says so when it was not loaded\n"
      "      --library PATH  the library to preload; otherwise beside this program, or in ../lib\n"
      "      --require       don't run COMMAND when the library can't be loaded in it\n"
      "  offload variables   the table below alone\n"
      "  offload --version\n"
      "  offload --help\n\n"
      "Variables, and what they are when not set. `--host-memory 20GiB` sets "
      "OFFLOAD_HOST_MEMORY, and so on.\n");
  print_variables();
}

/* ---- the command line ---- */

static bool add_setting(struct run *run, const char *name, const char *value) {
  char *entry = NULL;
  if (run->setting_count == SETTINGS_MOST || asprintf(&entry, "%s=%s", name, value) < 0) {
    say("more than %d settings", SETTINGS_MOST);
    return false;
  }
  run->settings[run->setting_count++] = entry;
  return true;
}

/* Length of the name in "NAME=value", 0 when the argument is none. */
static size_t assignment(const char *argument) {
  const size_t length = strspn(argument, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                         "0123456789_");
  return argument[length] == '=' && (argument[0] < '0' || argument[0] > '9') ? length : 0;
}

/* The long options: ours, and one for each variable ("host_memory" becomes --host-memory). */
static void make_options(struct option options[VARIABLES + 4], char names[VARIABLES][32]) {
  size_t count = 0;
  options[count++] = (struct option){"library", required_argument, NULL, OPTION_LIBRARY};
  options[count++] = (struct option){"require", no_argument, NULL, OPTION_REQUIRE};
  options[count++] = (struct option){"help", no_argument, NULL, OPTION_HELP};
  for (size_t i = 0; i < VARIABLES; i++) {
    snprintf(names[i], sizeof names[i], "%s", variables[i].option);
    for (char *c = names[i]; *c; c++)
      if (*c == '_')
        *c = '-';
    options[count++] = (struct option){names[i], required_argument, NULL, OPTION_VARIABLE + (int)i};
  }
  options[count] = (struct option){NULL, 0, NULL, 0};
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

/* 0 to go on, otherwise the exit status plus one. */
static int parse_run(int argc, char **argv, struct run *run) {
  struct option options[VARIABLES + 4];
  char names[VARIABLES][32], name[64];
  make_options(options, names);
  for (;;) {
    const int c = getopt_long(argc, argv, "+", options, NULL);
    if (c == OPTION_HELP) {
      print_help();
      return 1 + EXIT_SUCCESS;
    }
    if (c == OPTION_LIBRARY)
      run->library = optarg;
    else if (c == OPTION_REQUIRE)
      run->require = true;
    else if (c >= OPTION_VARIABLE) {
      snprintf(name, sizeof name, "OFFLOAD_%s", variables[c - OPTION_VARIABLE].name);
      if (!add_setting(run, name, optarg))
        return 1 + EXIT_USAGE;
    } else if (c != -1) {
      say("`offload --help` lists the options");
      return 1 + EXIT_USAGE;
    } else if (optind < argc && strcmp(argv[optind - 1], "--") != 0 && assignment(argv[optind])) {
      const size_t length = assignment(argv[optind]);
      char *variable = strndup(argv[optind], length);
      const bool added = variable && add_setting(run, variable, argv[optind] + length + 1);
      free(variable);
      if (!added)
        return 1 + EXIT_USAGE;
      optind++; /* and on with further options */
    } else
      break;
  }
  run->command = argv + optind;
  if (optind >= argc) {
    say("no command: offload run [options] -- COMMAND [ARGUMENT...]");
    return 1 + EXIT_USAGE;
  }
  return settings_good(run) ? 0 : 1 + EXIT_USAGE;
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
  sigset_t all, before;
  int exec_error = 0;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  signal(SIGCHLD, SIG_DFL); /* where it is ignored, exit statuses are lost */
  const pid_t child = start(run, path, &before, &exec_error);
  if (exec_error) {
    say("%s: %s", path, strerror(exec_error));
    if (child > 0)
      waitpid(child, NULL, 0);
    return exec_error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
  }
  return attend(run, child, found.mapped, preloadable);
}

int main(int argc, char **argv) {
  const char *subcommand = argc > 1 ? argv[1] : "";
  if (!strcmp(subcommand, "run")) {
    static char name[] = "offload run"; /* what getopt's messages begin with */
    struct run run = {0};
    argv[1] = name;
    const int done = parse_run(argc - 1, argv + 1, &run);
    return done ? done - 1 : run_command(&run);
  }
  if ((!strcmp(subcommand, "variables") || !strcmp(subcommand, "--version")) && argc > 2) {
    say("%s takes no argument, so not '%s'", subcommand, argv[2]);
    return EXIT_USAGE;
  }
  if (!strcmp(subcommand, "variables")) {
    print_variables();
    return EXIT_SUCCESS;
  }
  if (!strcmp(subcommand, "--version")) {
    puts("offload " OFFLOAD_VERSION);
    return EXIT_SUCCESS;
  }
  if (!strcmp(subcommand, "--help") || !strcmp(subcommand, "-h")) {
    print_help();
    return EXIT_SUCCESS;
  }
  say("'%s' is none of run, variables, --version, --help; `offload --help` explains them",
      subcommand);
  return EXIT_USAGE;
}
