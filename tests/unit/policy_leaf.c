/* What is written at exit may not wait for a lock that is never let go (leaf.h), and sorts in place (sort.h). */
#include "nvme/clock.h"
#include "policy/leaf.h"
#include "policy/sort.h"
#include "tests/lib/tap.h"
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, other = PTHREAD_MUTEX_INITIALIZER;

static void *let_go_soon(void *unused) {
  (void)unused;
  pthread_mutex_lock(&other);
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  pthread_mutex_unlock(&other);
  return NULL;
}

static uint64_t waited_ns(pthread_mutex_t *lock, bool *had) {
  const uint64_t begun = clock_now_ns();
  *had = leaf_lock(lock);
  return clock_now_ns() - begun;
}

static void test_locks(void) {
  const uint64_t second_ns = 1000000000;
  pthread_t thread;
  bool had;
  tap_ok(leaf_lock(&held) && pthread_mutex_trylock(&held), "a leaf lock that is had is held");
  leaf_ending();
  const uint64_t first = waited_ns(&held, &had);
  tap_ok(!had && first < second_ns,
         "one that is never let go is given up as the process ends, after less than a second");
  uint64_t again = 0;
  for (unsigned i = 0; i < 10; i++)
    again += waited_ns(&held, &had);
  tap_ok(!had && again < first, "and is not waited for again");
  if (pthread_create(&thread, NULL, let_go_soon, NULL))
    abort();
  while (pthread_mutex_trylock(&other) == 0) {
    pthread_mutex_unlock(&other);
    sched_yield();
  }
  tap_ok(leaf_lock(&other), "one that another thread lets go is had");
  pthread_mutex_unlock(&other);
  pthread_join(thread, NULL);
}

struct item {
  uint32_t key, rest;
  char filler[11];
};

static int by_key(const void *one, const void *another) {
  const struct item *a = one, *b = another;
  return a->key < b->key ? -1 : a->key > b->key;
}

static void test_sort(void) {
  enum { MOST = 300 };
  static struct item items[MOST];
  uint32_t random = 12345;
  bool sorted = true, same = true;
  for (size_t count = 0; count <= MOST; count++) {
    uint64_t before = 0, after = 0;
    for (size_t i = 0; i < count; i++) {
      random = random * 1664525 + 1013904223;
      items[i] = (struct item){.key = random >> 16 & 127, .rest = random};
      memset(items[i].filler, (int)(random >> 24), sizeof items[i].filler);
      before += (uint64_t)random * random;
    }
    sort_in_place(items, count, sizeof *items, by_key);
    for (size_t i = 0; i < count; i++) {
      sorted = sorted && (!i || items[i - 1].key <= items[i].key);
      same = same && items[i].key == (items[i].rest >> 16 & 127) &&
             items[i].filler[10] == (char)(items[i].rest >> 24);
      after += (uint64_t)items[i].rest * items[i].rest;
    }
    same = same && before == after;
  }
  tap_ok(sorted, "lists of every length up to 300 come out in order");
  tap_ok(same, "with the items that they had");
}

int main(void) {
  test_locks();
  test_sort();
  return tap_done();
}
