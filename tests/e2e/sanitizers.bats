#!/usr/bin/env bats
# Everything that is ours built with sanitizers: the simulated GPU, the library and the unit tests, and one whole run.
load ../lib/e2e
load ../lib/loop

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

# sanitized SAN: from here on programs run on that build.
sanitized() {
  local folder runtime
  case $1 in
  address*) runtime=$("${CC:-gcc}" -print-file-name=libasan.so) ;;
  thread) runtime=$("${CC:-gcc}" -print-file-name=libtsan.so) ;;
  esac
  folder=$(built "$1") || { echo "$folder"; return 1; }
  SIM=$folder/gpusim/run LIBOFFLOAD="$runtime $folder/liboffload.so"
  export OFFLOAD_CALLERS='*' # a sanitizer's own frames stand between the caller and us
}

# unsaid: no sanitizer said a word of the last program under the preload.
unsaid() {
  ! grep -E 'ERROR: (Address|Thread|Leak)Sanitizer|runtime error|WARNING: ThreadSanitizer' "$BATS_TEST_TMPDIR/with.err"
}

# clean MODE: nor was it stepped by anything but MODE.
clean() {
  unsaid || return 1
  assert_done "$1"
}

# whole SAN: charlm without the preload on the usual build, then with everything sanitized, by cpu and by stream.
whole() {
  plain "san" --steps 4
  sanitized "$1" || return 1
  for mode in cpu stream; do
    OFFLOAD_STEP=$mode OFFLOAD_TEST_RECORD_MS=2 OFFLOAD_METRICS=$BATS_TEST_TMPDIR/m.prom OFFLOAD_TRACE=$BATS_TEST_TMPDIR/trace.json \
      offloaded --steps 4
    clean $mode || return 1
    assert_same san || return 1
    [ -s "$BATS_TEST_TMPDIR/m.prom" ] && [ -s "$BATS_TEST_TMPDIR/trace.json" ] || return 1
  done
}

# types SAN: a few steps of every type, with three states, by cpu.
types() {
  sanitized "$1" || return 1
  for entry in 0 1 2 3 4; do
    OFFLOAD_STEP=cpu under_preload "$SIM" "$BUILD/tests/e2e/step_program" "$BUILD/tests/e2e/exact-212-adam_amsgrad.ptx" \
      small=1 hostile=1 steps=3 entry=$entry
    clean cpu || return 1
  done
}

# drives SAN: steps whose state comes from a drive, by cpu and by stream, then with a drive that fails.
drives() {
  local reason fault
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  sanitized "$1" || return 1
  loop_mount 1 64M || return 1
  for mode in cpu stream; do
    for fault in "" write_eio=60 read_eio=60+; do
      OFFLOAD_TEST_NVME=$fault OFFLOAD_STEP=$mode OFFLOAD_HOST_MEMORY=64KiB OFFLOAD_PIECE=64KiB OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} \
        OFFLOAD_NVME_STAGING=2MiB under_preload "$SIM" "$BUILD/tests/e2e/step_program" "$BUILD/tests/e2e/exact-212-adamw.ptx" \
        copies=0 steps=4 groups=2 chunks=10
      unsaid || return 1
      [ "$fault" = read_eio=60+ ] || assert_ended || return 1
      expect '.totals.elements_drive > 0 and .totals.drive_read_bytes > 0' "elements stepped whose state was read from a drive" || return 1
    done
  done
}
teardown() { loop_unmount; }

export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

@test "the unit tests, the simulated GPU's among them, run clean under AddressSanitizer and UBSan" {
  built address,undefined
  unit address,undefined
}
@test "a whole run under the preload is clean under AddressSanitizer and UBSan" {
  whole address,undefined
}
@test "steps of every type by cpu are clean under AddressSanitizer and UBSan" {
  types address,undefined
}
@test "steps of state on drives, and drives that fail, are clean under AddressSanitizer and UBSan" {
  drives address,undefined
}
@test "the unit tests, the simulated GPU's among them, run clean under ThreadSanitizer" {
  built thread
  unit thread
}
@test "a whole run under the preload is clean under ThreadSanitizer" {
  whole thread
}
@test "steps of every type by cpu are clean under ThreadSanitizer" {
  types thread
}
@test "steps of state on drives, and drives that fail, are clean under ThreadSanitizer" {
  drives thread
}
@test "threads that launch and free while optimizers of unknown name are looked for are clean under ThreadSanitizer" {
  sanitized thread
  OFFLOAD_TEST_RECORD_MS=2 under_preload "$SIM" "$BUILD/tests/e2e/unknown_threads" "$BUILD/tests/e2e/unknown.ptx" frees=1 steps=200
  assert_ended && unsaid
  expect '.advice | map(.kind) == ["unknown"]' "an optimizer that was looked for"
}
