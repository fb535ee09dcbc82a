/* The text of rates: what is read, what is refused and how it is told, and that what is written reads back. */
#include "policy/rates.h"
#include "tests/lib/tap.h"
#include <fcntl.h>
#include <locale.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char problem[600];

static struct rates assumed(void) {
  struct rates rates;
  rates_assume(&rates);
  return rates;
}

static void test_read(void) {
  struct rates rates = assumed();
  tap_ok(rates.up == 25e9 && rates.drive_read == 0 && rates.numa_distance == 10 &&
             rates.source == RATES_ASSUMED && rates.charged_cgroup == CHARGE_UNKNOWN,
         "what is assumed is the list's column, and of charges nothing");
  const bool good = rates_parse(&rates,
                                "# measured\n\nup 54.1e9 # the link\n\tdown\t5.23E+10\r\nlaunch "
                                "2.5e-6\nnuma_distance 20\ncharged_cgroup yes\n",
                                problem, sizeof problem);
  tap_ok(good && rates.up == 54.1e9 && rates.down == 52.3e9 && rates.launch == 2.5e-6 &&
             rates.numa_distance == 20 && rates.charged_cgroup == CHARGE_YES,
         "lines of name and value are read, comments and blanks passed over");
  tap_ok(rates.up_both == 12e9 && rates.dram == 40e9 && rates.charged_memlock == CHARGE_UNKNOWN,
         "what isn't named stays as it is");
  tap_ok(rates_parse(&rates, "", problem, sizeof problem) && rates.up == 54.1e9,
         "an empty text changes nothing");
  tap_ok(rates_parse(&rates, "up 0.000", problem, sizeof problem) && rates.up == 0,
         "a rate of nothing is one that isn't known, and the last line needs no end");
}

static void test_refused(void) {
  static const struct {
    const char *text, *says, *sentence;
  } cases[] = {
      {"up 5e9\nupp 5e9\n", "line 2: \"upp\" is no rate", "an unknown name"},
      {"up\n", "line 1: \"up\" has no value", "a name without a value"},
      {"up 5e9 6e9\n", "line 1: \"6e9\" is too much", "a second value"},
      {"up 5e9\n\nup 6e9", "line 3: \"up\" is there twice", "a name that is there twice"},
      {"up 5GB\n", "up is \"5GB\"", "a number with a unit"},
      {"up -5e9\n", "up is \"-5e9\"", "a negative number"},
      {"up nan\n", "up is \"nan\"", "no number at all"},
      {"up inf\n", "up is \"inf\"", "infinity"},
      {"up 5e\n", "up is \"5e\"", "an exponent without digits"},
      {"up 5e99\n", "up is \"5e99\"", "a number that no machine has"},
      {"up 5,4e9\n", "up is \"5,4e9\"", "a decimal comma"},
      {"up .\n", "up is \".\"", "a point alone"},
      {"charged_cgroup 1\n", "charged_cgroup is \"1\": write yes, no or unknown",
       "a charge that is no word of it"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct rates rates = assumed();
    const struct rates before = rates;
    const bool read = rates_parse(&rates, cases[i].text, problem, sizeof problem);
    if (!tap_ok(!read && strstr(problem, cases[i].says) && strchr(problem, ':') &&
                    !memcmp(&rates, &before, sizeof rates),
                "%s is refused with line and remedy, and nothing has changed", cases[i].sentence))
      printf("# %s\n", read ? "read" : problem);
  }
}

static void test_file(void) {
  char path[] = "/tmp/rates-XXXXXX";
  const int file = mkstemp(path);
  struct rates rates = assumed();
  const char text[] = "up 1e9\nsideways 2\n";
  bool good = file >= 0 && write(file, text, sizeof text - 1) == sizeof text - 1;
  good &= !rates_read(&rates, path, problem, sizeof problem);
  tap_ok(good && strstr(problem, path) == problem && strstr(problem, "line 2: \"sideways\"") &&
             rates.up == 25e9,
         "what is wrong in a file is told with its name and line");
  good = !ftruncate(file, 0) && pwrite(file, text, 7, 0) == 7;
  tap_ok(good && rates_read(&rates, path, problem, sizeof problem) && rates.up == 1e9 &&
             rates.source == RATES_TOLD,
         "what a file says is told");
  struct rates nothing = assumed();
  tap_ok(rates_read(&nothing, "/dev/null", problem, sizeof problem) &&
             nothing.source == RATES_ASSUMED && nothing.up == 25e9,
         "a file that names nothing leaves what is assumed");
  good = !ftruncate(file, 1 << 20);
  tap_ok(good && !rates_read(&rates, path, problem, sizeof problem) && strstr(problem, "too large"),
         "a large file is refused unread");
  good = !ftruncate(file, 20);
  tap_ok(good && !rates_read(&rates, path, problem, sizeof problem) && strstr(problem, "no text"),
         "a file that is no text is refused");
  close(file);
  unlink(path);
  tap_ok(!rates_read(&rates, path, problem, sizeof problem) && strstr(problem, path) == problem &&
             strstr(problem, "No such file") && strstr(problem, "offload bench"),
         "a missing file is named with what writes one");
  tap_ok(!rates_read(&rates, "/", problem, sizeof problem) && *problem == '/',
         "a directory is no file of rates");
  good = !mkfifo(path, 0600);
  const int reader = open(path, O_RDWR | O_CLOEXEC);
  good &= reader >= 0 && write(reader, "up 3e9\n", 7) == 7;
  tap_ok(good && !rates_read(&rates, path, problem, sizeof problem) &&
             strstr(problem, path) == problem && strstr(problem, "neither a regular file") &&
             rates.up == 1e9 && !rates_read(&rates, "/dev/zero", problem, sizeof problem) &&
             strstr(problem, "neither a regular file"),
         "nor is a FIFO or a device");
  close(reader);
  unlink(path);
}

static void test_written(void) {
  struct rates rates = assumed(), again = assumed();
  rates.up = 54.12345678e9;
  rates.launch = 2.75e-6;
  rates.dram = 999.99999e9;
  rates.kernel_read = 0;
  rates.charged_available = CHARGE_NO;
  char text[4096], small[9] = "";
  const int length = rates_format(&rates, text, sizeof text);
  tap_ok(length == (int)strlen(text) && rates_format(&rates, NULL, 0) == length &&
             rates_format(&rates, small, sizeof small) == length && strlen(small) == 8 &&
             !strncmp(text, small, 8),
         "the text's length is told, whatever room there is");
  tap_ok(!strstr(text, "kernel_read") && !strstr(text, "drive_read") &&
             strstr(text, "charged_available no\n"),
         "what isn't known isn't written");
  again.kernel_read = 7;
  tap_ok(rates_parse(&again, text, problem, sizeof problem) && again.up == 54.1235e9 &&
             again.launch == 2.75e-6 && again.dram == 1000e9 && again.down == 25e9 &&
             again.kernel_read == 7 && again.charged_available == CHARGE_NO,
         "what is written reads back, to six digits");
  if (setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "C.UTF-8")) {
    char other[4096];
    rates_format(&rates, other, sizeof other);
    tap_ok(!strcmp(other, text), "whatever the locale");
  }
}

int main(void) {
  test_read();
  test_refused();
  test_file();
  test_written();
  return tap_done();
}
