#!/usr/bin/env bats
# Everything that is ours built with sanitizers: the simulated GPU, the library and the unit tests, and one whole run.
load ../lib/e2e

# built SAN: the folder of a sanitizer build, which is made or brought up to date.
built() {
  make -C "$ROOT" --no-print-directory -s -k -j2 SAN="$1" sanitized >"$BATS_TEST_TMPDIR/build.log" 2>&1 || {
    grep -E 'error|Error|\*\*\*' "$BATS_TEST_TMPDIR/build.log" | head -20
    return 1
  }
  echo "$ROOT/build/san-${1//,/-}"
}

# unit SAN: its unit tests, counted as everywhere.
unit() {
  make -C "$ROOT" --no-print-directory -s SAN="$1" sanitized-unit
}

# whole SAN: charlm without the preload on the usual build, then with everything sanitized, by cpu and by stream.
whole() {
  local folder runtime
  case $1 in
  address*) runtime=$("${CC:-gcc}" -print-file-name=libasan.so) ;;
  thread) runtime=$("${CC:-gcc}" -print-file-name=libtsan.so) ;;
  esac
  folder=$(built "$1") || { echo "$folder"; return 1; }
  plain "san" --steps 4
  export OFFLOAD_CALLERS='*' # a sanitizer's own frames stand between the caller and us
  for mode in cpu stream; do
    SIM=$folder/gpusim/run LIBOFFLOAD="$runtime $folder/liboffload.so" OFFLOAD_STEP=$mode offloaded --steps 4
    ! grep -E 'ERROR: (Address|Thread|Leak)Sanitizer|runtime error|WARNING: ThreadSanitizer' "$BATS_TEST_TMPDIR/with.err" || return 1
    assert_done $mode || return 1
    assert_same san || return 1
  done
}

export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

@test "the unit tests, the simulated GPU's among them, run clean under AddressSanitizer and UBSan" {
  built address,undefined
  unit address,undefined
}
@test "a whole run under the preload is clean under AddressSanitizer and UBSan" {
  whole address,undefined
}
@test "the unit tests, the simulated GPU's among them, run clean under ThreadSanitizer" {
  built thread
  unit thread
}
@test "a whole run under the preload is clean under ThreadSanitizer" {
  whole thread
}
