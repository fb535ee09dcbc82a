/* `offload top`: the ranks of the node as they step, from the registry (registry.h) of this user. Here are options and the terminal;
   what is shown is top_screen.c's.

   The terminal is as it was on every way out: keys, signals that end or stop the program, errors. Handlers only note the signal;
   they are let in while waiting for keys and at no other time. */
#define _GNU_SOURCE
#include "command.h"
#include "top_screen.h"
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { KEY_ONCE = 256, KEY_INTERVAL, KEY_JOB, DEFAULT_COLUMNS = 80, DEFAULT_LINES = 24 };
static const double least_interval = 0.1, most_interval = 3600;

struct top {
  bool once, job_given;
  uint64_t job;
  struct top_view view;
  struct registry_entry entries[REGISTRY_SLOTS];
  size_t count;
};

/* ---- the terminal ---- */

static struct {
  bool taken;
  struct termios before;
} terminal;
static volatile sig_atomic_t signalled;

static void note_signal(int number) {
  if (number != SIGWINCH)
    signalled = number;
}

/* Another screen than the shell's, no cursor, keys as they come and unseen. */
static const char enter[] = "\033[?1049h\033[?25l\033[H", leave[] = "\033[?25h\033[?1049l";

static void put(const char *text) {
  for (size_t left = strlen(text); left;) {
    const ssize_t wrote = write(STDOUT_FILENO, text, left);
    if (wrote < 0 && errno != EINTR && errno != EAGAIN)
      return;
    if (wrote > 0) {
      text += wrote;
      left -= (size_t)wrote;
    }
  }
}

static bool terminal_take(void) {
  if (tcgetattr(STDIN_FILENO, &terminal.before))
    return false;
  struct termios keys = terminal.before;
  keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  if (tcsetattr(STDIN_FILENO, TCSAFLUSH, &keys))
    return false;
  terminal.taken = true;
  put(enter);
  return true;
}

static void terminal_give_back(void) {
  if (!terminal.taken)
    return;
  terminal.taken = false;
  put(leave);
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &terminal.before);
}

static const int ending[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP};

/* Blocks what is handled, so that it comes in ppoll alone; *open is the mask there. */
static void signals_take(sigset_t *open) {
  struct sigaction action = {.sa_handler = note_signal};
  sigset_t blocked;
  sigemptyset(&action.sa_mask);
  sigemptyset(&blocked);
  for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
    sigaction(ending[i], &action, NULL);
    sigaddset(&blocked, ending[i]);
  }
  sigaction(SIGWINCH, &action, NULL);
  sigaddset(&blocked, SIGWINCH);
  sigprocmask(SIG_BLOCK, &blocked, open);
}

/* Does what the signal would have done without us, with the terminal as it was; comes back when it only stopped us. */
static void obey(int number) {
  struct sigaction action = {.sa_handler = SIG_DFL}, ours;
  sigset_t one;
  terminal_give_back();
  sigemptyset(&action.sa_mask);
  sigemptyset(&one);
  sigaddset(&one, number);
  sigaction(number, &action, &ours);
  raise(number);
  sigprocmask(SIG_UNBLOCK, &one, NULL);
  sigprocmask(SIG_BLOCK, &one, NULL);
  sigaction(number, &ours, NULL);
}

static void size_of_terminal(struct top_view *view) {
  struct winsize size;
  view->columns = DEFAULT_COLUMNS;
  view->lines = DEFAULT_LINES;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
    view->columns = size.ws_col;
    view->lines = size.ws_row;
  }
}

/* ---- what is shown ---- */

static void look(struct top *top) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  top->view.now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  top->count = registry_list(top->entries, REGISTRY_SLOTS);
  if (!top->job_given)
    return;
  size_t kept = 0;
  for (size_t i = 0; i < top->count; i++)
    if (top->entries[i].job == top->job)
      top->entries[kept++] = top->entries[i];
  top->count = kept;
}

/* Overwrites what stands there line by line, so that nothing flickers. The last line has no newline: it would scroll. */
static bool paint(struct top *top) {
  size_of_terminal(&top->view);
  char *text = top_screen(&top->view, top->entries, top->count);
  if (!text)
    return false;
  put("\033[H");
  for (char *line = text, *end; *line; line = end + 1) {
    end = strchr(line, '\n');
    *end = 0;
    put(line);
    put(end[1] ? "\033[K\r\n" : "\033[K\033[J");
  }
  free(text);
  return true;
}

static void key(struct top *top, char pressed, bool *quit) {
  if (pressed == 'q' || pressed == 'Q')
    *quit = true;
  else if (pressed == 's')
    top->view.sort = (enum top_sort)((top->view.sort + 1) % TOP_SORTS);
  else if (pressed == 'p')
    top->view.paused = !top->view.paused;
}

/* Waits for the next frame's time, a key or a signal. */
static bool wait_for_more(struct top *top, const sigset_t *open, const struct timespec *until,
                          bool *quit) {
  struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  struct timespec now, left = {0};
  clock_gettime(CLOCK_MONOTONIC, &now);
  left.tv_sec = until->tv_sec - now.tv_sec;
  left.tv_nsec = until->tv_nsec - now.tv_nsec;
  if (left.tv_nsec < 0) {
    left.tv_sec--;
    left.tv_nsec += 1000000000;
  }
  if (left.tv_sec < 0)
    return false;
  const int ready = ppoll(&input, 1, &left, open);
  if (ready > 0) {
    char pressed[16];
    const ssize_t got = read(STDIN_FILENO, pressed, sizeof pressed);
    if (got <= 0)
      *quit = true; /* the terminal is gone */
    for (ssize_t i = 0; i < got; i++)
      key(top, pressed[i], quit);
  }
  return ready != 0;
}

static int live(struct top *top) {
  sigset_t open;
  bool quit = false, good = true;
  signals_take(&open);
  if (!terminal_take()) {
    say("top: the terminal can't be set up (%s): offload top --once", strerror(errno));
    return EXIT_FAILURE;
  }
  while (!quit && good) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double whole = floor(top->view.interval_seconds);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((top->view.interval_seconds - whole) * 1e9);
    if (until.tv_nsec >= 1000000000) {
      until.tv_sec++;
      until.tv_nsec -= 1000000000;
    }
    if (!top->view.paused)
      look(top);
    good = paint(top);
    while (!quit && good && wait_for_more(top, &open, &until, &quit)) {
      if (signalled) {
        const int number = signalled;
        signalled = 0;
        obey(number);
        if (!terminal_take())
          return EXIT_FAILURE;
      }
      good = quit || paint(top);
    }
  }
  terminal_give_back();
  if (!good)
    say("top: no memory for the screen");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int once(struct top *top) {
  const char *columns = getenv("COLUMNS");
  const long asked = columns ? strtol(columns, NULL, 10) : 0;
  top->view.columns = asked >= 20 && asked <= 1000 ? (unsigned)asked : DEFAULT_COLUMNS;
  look(top);
  char *text = top_screen(&top->view, top->entries, top->count);
  if (!text) {
    say("top: no memory for the screen");
    return EXIT_FAILURE;
  }
  fputs(text, stdout);
  free(text);
  return EXIT_SUCCESS;
}

/* ---- the command line ---- */

static error_t parse(int option, char *argument, struct argp_state *state) {
  struct top *top = state->input;
  char *end = NULL;
  switch (option) {
  case KEY_ONCE:
    top->once = true;
    return 0;
  case KEY_INTERVAL:
    top->view.interval_seconds = strtod(argument, &end);
    if (end == argument || *end || !(top->view.interval_seconds >= least_interval) ||
        top->view.interval_seconds > most_interval)
      argp_error(state, "--interval %s is no number of seconds from 0.1 to 3600: --interval 2",
                 argument);
    return 0;
  case KEY_JOB:
    errno = 0;
    top->job = strtoull(argument, &end, 16);
    if (errno || end == argument || *end || *argument == '-')
      argp_error(state, "--job %s is no job's name: take it from the line that begins with `job`",
                 argument);
    top->job_given = true;
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_option options[] = {
    {"once", KEY_ONCE, NULL, 0, "print what is there once, without a terminal's codes", 0},
    {"interval", KEY_INTERVAL, "SECONDS", 0, "time between looks; 1 when not given", 0},
    {"job", KEY_JOB, "JOB", 0, "this job's ranks alone: the name in its line", 0},
    {0}};

static const struct argp argp = {
    options, parse, NULL, "Keys: q quits, s sorts by another column, p pauses.", NULL, NULL, NULL};

int offload_top(int argc, char **argv) {
  static struct top top;
  top.view = (struct top_view){.interval_seconds = 1};
  setlocale(LC_CTYPE, "");
  registry_root(getenv("OFFLOAD_SYSROOT"));
  top.view.utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8");
  command_parse(&argp, argc, argv, 0, &top);
  if (top.once)
    return once(&top);
  if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)) {
    say("top: standard input and output are no terminal: offload top --once");
    return EXIT_FAILURE;
  }
  top.view.keys = true;
  top.view.colour = output_coloured();
  return live(&top);
}
