/* The registry of a node's ranks, between real processes: claims never add up to more than there is, what a killed one had comes back,
   a stopped one keeps nobody waiting, a fork holds nothing, and neither a broken file nor a directory of others is used. */
#define _GNU_SOURCE
#include "policy/registry.h"
#include "policy/registry_file.h"
#include "tests/lib/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char tree[64], directory[128], path[160];

static bool join(uint64_t group) {
  char problem[640] = "";
  const bool joined = registry_join(&(struct registry_entry){.memory_group = group, .device = 3},
                                    problem, sizeof problem);
  if (!joined)
    printf("# %s\n", problem);
  return joined;
}

static enum registry_outcome claim(uint64_t host, uint64_t machine, uint64_t group,
                                   uint64_t *left) {
  return registry_claim(&(struct registry_claim){.host_bytes = host},
                        &(struct registry_bounds){{machine, machine}, {group, group}}, left);
}

/* A child that does as its pipe says; it answers with one byte. */
struct child {
  pid_t pid;
  int orders, answers;
};

static void serve(int orders, int answers, uint64_t group) __attribute__((noreturn));
static void serve(int orders, int answers, uint64_t group) {
  uint64_t bytes, left;
  char answer = join(group) ? 'j' : 'n';
  while (write(answers, &answer, 1) == 1 && read(orders, &bytes, sizeof bytes) == sizeof bytes)
    answer = claim(bytes, 1000, 500, &left) == REGISTRY_CLAIMED ? 'c' : 'f';
  _exit(0); /* without leaving: as if it were killed */
}

static char answer_of(const struct child *child) {
  char answer = 0;
  return read(child->answers, &answer, 1) == 1 ? answer : 0;
}

static struct child start(uint64_t group) {
  int orders[2], answers[2];
  struct child child = {.pid = -1};
  if (pipe2(orders, O_CLOEXEC) || pipe2(answers, O_CLOEXEC))
    return child;
  child.pid = fork();
  if (!child.pid) {
    registry_forked();
    close(orders[1]);
    close(answers[0]);
    serve(orders[0], answers[1], group);
  }
  close(orders[0]);
  close(answers[1]);
  child.orders = orders[1];
  child.answers = answers[0];
  tap_ok(answer_of(&child) == 'j', "a child of the test has joined");
  return child;
}

static char order(const struct child *child, uint64_t bytes) {
  return write(child->orders, &bytes, sizeof bytes) == sizeof bytes ? answer_of(child) : 0;
}

static void end(struct child *child, int with) {
  kill(child->pid, with);
  close(child->orders);
  close(child->answers);
  waitpid(child->pid, NULL, 0);
}

static void test_claims(void) {
  uint64_t left = 0;
  struct child one = start(0), two = start(0);
  tap_ok(join(0) && registry_joined(), "this process joins");
  tap_ok(order(&one, 400) == 'c' && order(&two, 500) == 'c' && order(&two, 601) == 'f',
         "claims are granted as long as all together stay within the node's");
  tap_ok(claim(101, 1000, 0, &left) == REGISTRY_FULL && left == 100,
         "what is too much is refused with what is left");
  tap_ok(claim(100, 1000, 0, &left) == REGISTRY_CLAIMED && order(&one, 401) == 'f',
         "the rest can be had, and then nobody gets more");
  tap_ok(order(&two, 200) == 'c' && order(&one, 700) == 'c',
         "what one gives back another may claim");
  struct registry_entry entries[8];
  const size_t count = registry_list(entries, 8);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; i++)
    sum += entries[i].claim.host_bytes;
  tap_ok(count == 3 && sum == 1000 && entries[0].pid == getpid() && entries[0].device == 3 &&
             entries[0].updated_ns >= entries[0].started_ns && entries[0].started_ns,
         "the list has all three and their claims, this process's first");
  const uint32_t changes = registry_changes();
  end(&one, SIGKILL);
  tap_ok(claim(800, 1000, 0, &left) == REGISTRY_CLAIMED && registry_changes() != changes,
         "what a killed one had comes back to the others, who see that something changed");
  tap_ok(registry_list(entries, 8) == 2, "and it is on no list any more");
  struct child three = start(0);
  tap_ok(order(&three, 1) == 'f' && claim(799, 1000, 0, &left) == REGISTRY_CLAIMED &&
             order(&three, 1) == 'c',
         "whoever takes its slot begins with nothing");
  tap_ok(claim(2000, 1000, 0, &left) == REGISTRY_FULL &&
             claim(799, 0, 0, &left) == REGISTRY_CLAIMED &&
             claim(5, 0, 0, &left) == REGISTRY_CLAIMED,
         "a claim of no more than before is granted even where there is too little by now");
  end(&two, SIGKILL);
  end(&three, SIGKILL);
  registry_leave();
  tap_ok(!registry_joined() && registry_list(entries, 8) == 0,
         "after all have left nobody is listed");
}

static void test_groups(void) {
  uint64_t left = 0;
  struct child mine = start(7), other = start(8);
  tap_ok(join(7) && order(&mine, 300) == 'c' && order(&other, 400) == 'c',
         "three ranks, two groups");
  tap_ok(claim(201, 1000, 500, &left) == REGISTRY_FULL && left == 200 &&
             claim(200, 1000, 500, &left) == REGISTRY_CLAIMED,
         "a group's limit counts the ranks of that group alone");
  tap_ok(claim(301, 1000, 5000, &left) == REGISTRY_FULL && left == 100,
         "the machine's counts those of all groups");
  end(&mine, SIGKILL);
  end(&other, SIGKILL);
  registry_leave();
}

static enum registry_outcome both(uint64_t state, uint64_t staging, uint64_t *left) {
  return registry_claim(&(struct registry_claim){.host_bytes = state, .staging_bytes = staging},
                        &(struct registry_bounds){{800, 1000}, {UINT64_MAX, UINT64_MAX}}, left);
}

static void test_staging(void) {
  uint64_t left = 0;
  struct child other = start(0);
  tap_ok(order(&other, 500) == 'c' && join(0) && both(301, 0, &left) == REGISTRY_FULL &&
             left == 300 && both(300, 0, &left) == REGISTRY_CLAIMED,
         "state may be a part of all there is");
  tap_ok(
      both(300, 201, &left) == REGISTRY_FULL && left == 200 &&
          both(300, 200, &left) == REGISTRY_CLAIMED && both(100, 401, &left) == REGISTRY_FULL &&
          both(100, 400, &left) == REGISTRY_CLAIMED && both(301, 0, &left) == REGISTRY_FULL,
      "staging beside it all of the rest, and what staging gives back doesn't make more of state");
  struct registry_sums sums;
  registry_found(&(struct registry_room){700, 600}, 9);
  registry_sum(&sums);
  tap_ok(sums.live == 2 && sums.machine.state_bytes == 600 && sums.machine.all_bytes == 1000 &&
             sums.group.all_bytes == 500 && sums.own.staging_bytes == 400 &&
             sums.machine.room_bytes == 0,
         "sums are of all, and of those in the same group");
  end(&other, SIGKILL);
  registry_leave();
}

/* Eight processes, each claiming and giving back as fast as it can, and each looking that all claims together never are too much. */
static void test_race(void) {
  enum { PROCESSES = 8, ROUNDS = 150 };
  bool good = true;
  for (unsigned i = 0; i < PROCESSES; i++)
    if (!fork()) {
      uint64_t left;
      unsigned granted = 0;
      bool sane = join(0);
      for (unsigned round = 0; sane && round < ROUNDS; round++) {
        struct registry_entry entries[PROCESSES + 1];
        const bool had = claim(60 + i, 200, 0, &left) == REGISTRY_CLAIMED;
        granted += had;
        /* Those who claim less meanwhile are seen with more or with less: of the rest the sum holds. */
        const size_t count = registry_list(entries, PROCESSES + 1);
        sane = count >= 1 && count <= PROCESSES;
        for (size_t k = 0; sane && k < count; k++)
          sane = entries[k].claim.host_bytes <= 60 + PROCESSES;
        if (had)
          sane &= claim(0, 200, 0, &left) == REGISTRY_CLAIMED;
      }
      _exit(sane && granted ? 0 : 1);
    }
  for (unsigned i = 0; i < PROCESSES; i++) {
    int status = 1;
    good &= wait(&status) > 0 && status == 0;
  }
  tap_ok(good, "eight processes at once claim and give back, and each gets something");

  /* All take what they can and keep it. */
  int gate[2];
  if (pipe2(gate, O_CLOEXEC))
    return;
  pid_t pids[PROCESSES];
  for (unsigned i = 0; i < PROCESSES; i++)
    if (!(pids[i] = fork())) {
      uint64_t left, have = 0;
      bool sane = join(0);
      for (unsigned round = 0; sane && round < 40; round++)
        if (claim(have + 7, 1000, 0, &left) == REGISTRY_CLAIMED)
          have += 7;
      char done = sane ? 'd' : 'x';
      sane &= write(gate[1], &done, 1) == 1;
      pause();
      _exit(0);
    }
  char done[PROCESSES] = {0};
  size_t got = 0;
  for (ssize_t one; got < PROCESSES && (one = read(gate[0], done + got, PROCESSES - got)) > 0;)
    got += (size_t)one;
  struct registry_entry entries[PROCESSES];
  uint64_t sum = 0;
  const size_t count = registry_list(entries, PROCESSES);
  for (size_t i = 0; i < count; i++)
    sum += entries[i].claim.host_bytes;
  tap_ok(got == PROCESSES && !memchr(done, 'x', PROCESSES) && count == PROCESSES && sum <= 1000 &&
             sum > 1000 - 7,
         "what eight take in portions at the same time is all there is, and no more");
  for (unsigned i = 0; i < PROCESSES; i++) {
    kill(pids[i], SIGKILL);
    waitpid(pids[i], NULL, 0);
  }
  close(gate[0]);
  close(gate[1]);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void test_stopped(void) {
  uint64_t left;
  int ready[2];
  char byte;
  tap_ok(join(0) && claim(10, 100, 0, &left) == REGISTRY_CLAIMED, "this process has a claim");
  if (pipe2(ready, O_CLOEXEC))
    return;
  const pid_t pid = fork();
  if (!pid) { /* takes the ledger's lock and is stopped with it */
    const int file = open(path, O_RDWR | O_CLOEXEC);
    const bool locked = file >= 0 && registry_file_lock(file, REGISTRY_LEDGER_AT, true);
    if (write(ready[1], locked ? "l" : "n", 1) == 1)
      raise(SIGSTOP);
    _exit(0);
  }
  const bool locked = read(ready[0], &byte, 1) == 1 && byte == 'l';
  waitpid(pid, NULL, WUNTRACED);
  const uint64_t begin = now_ns();
  const enum registry_outcome more = claim(20, 100, 0, &left);
  const uint64_t waited = now_ns() - begin;
  tap_ok(locked && more == REGISTRY_NONE && waited >= 100000000 && waited < 2000000000,
         "one that is stopped in the middle keeps others no longer than a fraction of a second");
  tap_ok(claim(5, 100, 0, &left) == REGISTRY_CLAIMED, "meanwhile they may claim less");
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  tap_ok(claim(20, 100, 0, &left) == REGISTRY_CLAIMED, "and more again once it is gone");
  registry_leave();
  close(ready[0]);
  close(ready[1]);
}

static void test_forks(void) {
  struct registry_entry entries[4];
  tap_ok(join(0), "this process joins");
  const pid_t pid = fork();
  if (!pid) {
    registry_forked();
    /* Its list is one from outside: the parent is on it, and closing it took nothing from the parent. */
    const bool seen = registry_list(entries, 4) == 1 && entries[0].pid == getppid();
    _exit(!seen || registry_joined());
  }
  int status = 1;
  waitpid(pid, &status, 0);
  const pid_t outside = fork();
  if (!outside) {
    registry_forked();
    _exit(registry_list(entries, 4) != 1);
  }
  int still = 1;
  waitpid(outside, &still, 0);
  tap_ok(!status && !still,
         "a forked child has no slot, and what it closes takes none from its parent");
  /* As daemons do. */
  for (int i = 3; i < 1024; i++)
    close(i);
  uint64_t left;
  const bool again = claim(1, 10, 0, &left) == REGISTRY_CLAIMED;
  const pid_t look = fork();
  if (!look) {
    registry_forked();
    _exit(registry_list(entries, 4) != 1 || entries[0].claim.host_bytes != 1);
  }
  waitpid(look, &status, 0);
  tap_ok(again && !status,
         "a program that closes every descriptor is registered anew at its next claim");
  registry_leave();
}

static bool write_file(const void *bytes, size_t count) {
  const int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool good = file >= 0 && write(file, bytes, count) == (ssize_t)count;
  if (file >= 0)
    close(file);
  return good;
}

static void test_files(void) {
  static unsigned char junk[sizeof(struct registry_file)];
  char problem[640] = "";
  struct registry_entry entries[4];
  memset(junk, 0xa5, sizeof junk);
  const bool whole = write_file(junk, sizeof junk) && !registry_list(entries, 4) && join(0);
  const size_t listed = registry_list(entries, 4);
  registry_leave();
  const bool cut = write_file(junk, 100) && !registry_list(entries, 4) && join(0);
  registry_leave();
  tap_ok(whole && listed == 1 && cut, "a file full of junk, or cut short, is begun anew");

  /* Junk in the slots of a good file: nobody lives there. */
  const bool init = write_file("", 0) && join(0);
  registry_leave();
  const int file = open(path, O_RDWR | O_CLOEXEC);
  const bool wrote = pwrite(file, junk, 4096 * 16, 4096) == 4096 * 16;
  close(file);
  uint64_t left;
  tap_ok(init && wrote && join(0) && claim(100, 100, 0, &left) == REGISTRY_CLAIMED &&
             registry_list(entries, 4) == 1,
         "slots that hold junk and belong to nobody count for nothing");
  registry_leave();

  /* Another layout in use. */
  int ready[2];
  char byte = 0;
  if (pipe2(ready, O_CLOEXEC))
    return;
  write_file(junk, sizeof junk);
  const pid_t pid = fork();
  if (!pid) {
    const int other = open(path, O_RDWR | O_CLOEXEC);
    registry_file_lock(other, REGISTRY_LOCKS_AT + 9, true);
    if (write(ready[1], "l", 1) == 1)
      pause();
    _exit(0);
  }
  const bool waiting = read(ready[0], &byte, 1) == 1;
  const bool refused = !registry_join(&(struct registry_entry){0}, problem, sizeof problem);
  tap_ok(waiting && refused && strstr(problem, "another release"),
         "a file that another release's ranks use is left alone, and that is said");
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  close(ready[0]);
  close(ready[1]);
  tap_ok(join(0), "once they are gone it is ours");
  registry_leave();
}

/* Any touch of a page beyond the file's end would end this process. */
static void test_shortened(void) {
  struct registry_entry entries[4];
  uint64_t left;
  struct child other = start(0);
  bool good =
      join(0) && claim(300, 1000, 0, &left) == REGISTRY_CLAIMED && order(&other, 200) == 'c';
  good &= !truncate(path, 0);
  registry_show(&(struct registry_state){.steps = 7});
  good &= order(&other, 201) == 'c';
  const size_t count = registry_list(entries, 4);
  tap_ok(good && count == 2 && entries[0].state.steps == 7 && entries[0].claim.host_bytes == 300 &&
             entries[1].claim.host_bytes == 201,
         "a file that is emptied while ranks have it ends none of them, and they find each other "
         "in it "
         "again");
  good = !truncate(path, 0);
  tap_ok(good && registry_changes() != 0 && registry_joined(), "nor does who only looks");
  good = !truncate(path, 0);
  registry_leave();
  tap_ok(good && !registry_joined(), "nor who leaves");
  end(&other, SIGKILL);
}

static bool refused(const char *why) {
  char problem[640] = "";
  const bool joined = registry_join(&(struct registry_entry){0}, problem, sizeof problem);
  if (joined)
    registry_leave();
  if (joined || !strstr(problem, why))
    printf("# %s\n", joined ? "joined" : problem);
  return !joined && strstr(problem, why);
}

static void test_places(void) {
  uint64_t left;
  char elsewhere[160];
  chmod(directory, 0755);
  tap_ok(refused("may be entered by others"), "a directory that others may look into is refused");
  chmod(directory, 0700);
  chmod(path, 0644);
  tap_ok(refused("no file of ours alone"), "so is a file that others may read");
  unlink(path);
  snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", tree);
  tap_ok(!symlink(elsewhere, path) && refused("node: ") && access(elsewhere, F_OK),
         "a link in the file's place is not followed");
  unlink(path);
  rmdir(directory);
  tap_ok(!mkdir(elsewhere, 0700) && !symlink(elsewhere, directory) && refused("liboffload-"),
         "nor one in the directory's");
  unlink(directory);
  if (geteuid() == 0) {
    mkdir(directory, 0700);
    const bool given = !chown(directory, 65534, 65534);
    tap_ok(given && refused("belongs to user 65534"), "another user's directory is refused");
    rmdir(directory);
  } else {
    tap_skip("another user's directory is refused", "needs root");
  }
  tap_ok(claim(1, 10, 0, &left) == REGISTRY_NONE,
         "without a registry nothing can be claimed there");
  char shm[128];
  snprintf(shm, sizeof shm, "%s/dev/shm", tree);
  rmdir(shm);
  tap_ok(refused("No such file or directory"), "no /dev/shm at all is told");
  mkdir(shm, 0755);
}

int main(void) {
  snprintf(tree, sizeof tree, "/tmp/policy_registry.XXXXXX");
  if (!mkdtemp(tree))
    return 1;
  char made[128];
  snprintf(made, sizeof made, "%s/dev", tree);
  mkdir(made, 0755);
  snprintf(made, sizeof made, "%s/dev/shm", tree);
  mkdir(made, 0755);
  snprintf(directory, sizeof directory, "%s/dev/shm/liboffload-%u", tree, (unsigned)geteuid());
  snprintf(path, sizeof path, "%s/node", directory);
  registry_root(tree);
  test_claims();
  test_groups();
  test_staging();
  test_race();
  test_stopped();
  test_forks();
  test_files();
  test_shortened();
  test_places();
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", tree);
  return system(command) ? 1 : tap_done();
}
