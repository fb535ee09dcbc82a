/* nvme/fault: every word of OFFLOAD_TEST_NVME means what fault.h says, a bad one is named, and occasions are counted exactly. */
#include "nvme/fault.h"
#include "tests/lib/tap.h"
#include <pthread.h>
#include <string.h>

static const struct {
  const char *word;
  enum fault_kind kind;
} words[] = {
    {"read_eio", FAULT_READ_EIO},
    {"write_eio", FAULT_WRITE_EIO},
    {"write_enospc", FAULT_WRITE_ENOSPC},
    {"allocate_enospc", FAULT_ALLOCATE_ENOSPC},
    {"read_flip", FAULT_READ_FLIP},
    {"read_short", FAULT_READ_SHORT},
    {"write_short", FAULT_WRITE_SHORT},
    {"eintr", FAULT_EINTR},
    {"eagain", FAULT_EAGAIN},
};
_Static_assert(sizeof words / sizeof *words == FAULT_KINDS, "each kind has its word");

/* Strikes of ten occasions: bit n-1 is the n-th. */
static unsigned strikes(struct faults *faults, enum fault_kind kind) {
  unsigned struck = 0;
  for (unsigned i = 0; i < 10; i++)
    struck |= (unsigned)faults_strike(faults, kind) << i;
  return struck;
}

static void *count_on(void *argument) {
  unsigned *struck = argument;
  extern struct faults shared;
  for (unsigned i = 0; i < 10000; i++)
    *struck += faults_strike(&shared, FAULT_EINTR);
  return NULL;
}
struct faults shared;

static void refused(const char *text, const char *word) {
  struct faults faults;
  char why[300] = "";
  tap_ok(!faults_parse(text, &faults, why, sizeof why) &&
             strstr(why, "OFFLOAD_TEST_NVME: ") == why && strstr(why, word) &&
             strstr(why, "use e.g."),
         "\"%s\" is refused: %s", text, why);
}

int main(void) {
  struct faults faults;
  char why[300] = "", text[64];
  for (unsigned i = 0; i < FAULT_KINDS; i++) {
    snprintf(text, sizeof text, "%s=3", words[i].word);
    bool good = faults_parse(text, &faults, why, sizeof why);
    for (unsigned kind = 0; kind < FAULT_KINDS; kind++)
      good = good && strikes(&faults, (enum fault_kind)kind) == (kind == words[i].kind ? 4u : 0u);
    snprintf(text, sizeof text, "%s=3+", words[i].word);
    good = good && faults_parse(text, &faults, why, sizeof why) &&
           strikes(&faults, words[i].kind) == 0x3fcu;
    tap_ok(good, "%s strikes its third occasion, and with + all that follow, and no other kind",
           words[i].word);
  }
  tap_ok(faults_parse("", &faults, why, sizeof why) && faults.directory == -1 && !faults.slow_us &&
             !strikes(&faults, FAULT_READ_EIO) && !faults_strike(NULL, FAULT_READ_EIO),
         "without words, and without faults, nothing is struck");
  tap_ok(faults_parse("slow_us=250,read_eio=1,directory=2", &faults, why, sizeof why) &&
             faults.slow_us == 250 && faults.directory == 2 &&
             strikes(&faults, FAULT_READ_EIO) == 1,
         "several words hold together");
  unsigned struck[2] = {0};
  pthread_t other;
  tap_ok(faults_parse("eintr=15000+", &shared, why, sizeof why) &&
             !pthread_create(&other, NULL, count_on, &struck[1]) && !count_on(&struck[0]) &&
             !pthread_join(other, NULL) && struck[0] + struck[1] == 5001,
         "two threads count every occasion once");
  refused("read_eoi=1", "\"read_eoi=1\"");
  refused("read_eio", "\"read_eio\"");
  refused("read_eio=", "\"read_eio=\"");
  refused("read_eio=0", "\"read_eio=0\"");
  refused("read_eio=-1", "\"read_eio=-1\"");
  refused("read_eio= 1", "\"read_eio= 1\"");
  refused("read_eio=1x", "\"read_eio=1x\"");
  refused("read_eio=1++", "\"read_eio=1++\"");
  refused("read_eio=99999999999999999999", "\"read_eio=99999999999999999999\"");
  refused("slow_us=10000001", "\"slow_us=10000001\"");
  refused("slow_us=5+", "\"slow_us=5+\"");
  refused("directory=-1", "\"directory=-1\"");
  refused("directory=1001", "\"directory=1001\"");
  refused("eintr=1,,eagain=1", "\"\"");
  refused("eintr=1,flip=2,eagain=1", "\"flip=2\"");
  refused("eintr", "\"eintr\"");
  refused("=3", "\"=3\"");
  return tap_done();
}
