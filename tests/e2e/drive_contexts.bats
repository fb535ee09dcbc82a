#!/usr/bin/env bats
# Contexts that end while state of theirs is on drives and steps are in flight: frames and keeper go with them, the store stays. Programs
# of life/ train and print a hash of parameters, gradients and state, the same as without the library; the report must say that state
# was stepped from drives.
bats_require_minimum_version 1.5.0
load ../lib/e2e

KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
export OFFLOAD_PIECE=16KiB OFFLOAD_HOST_MEMORY=0 OFFLOAD_NVME_STAGING=1280KiB
unset OFFLOAD_THREADS

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  directory=$BUILD/drive_contexts.$BATS_TEST_NUMBER
  mkdir -p "$directory"
}
teardown() { rmdir "$directory"; }

# trained WORDS...: without the library and with it, by cpu and by stream.
trained() {
  local mode
  timeout -k 9 60 "$SIM" "$BUILD/test/life/contexts" "$KERNEL" "$@" >without.out
  for mode in cpu stream; do
    echo "$mode $*"
    OFFLOAD_NVME=$directory OFFLOAD_STEP=$mode OFFLOAD_REPORT=report.json OFFLOAD_TEST_WORKER_LAG_MS=1 \
      LD_PRELOAD=$LIBOFFLOAD timeout -k 9 60 "$SIM" "$BUILD/test/life/contexts" "$KERNEL" "$@" >with.out 2>with.err
    cat with.err
    if grep -q 'name a directory of a local' with.err; then
      skip "the build's folder is on a file system that can't hold state"
    fi
    [ -z "$(find "$directory" -type f)" ]
    jq -e ".totals.elements_drive > 0 and .totals.drive_written_bytes > 0 and
      ([.functions[].launches_$mode] | add) > 0" report.json
    diff without.out with.out
  done
}

@test "the primary context is reset or released with state on drives and steps in flight: the training after it has the same numbers" {
  trained reset
  trained release
  jq -e '.totals.drive_pieces_out > 200' report.json # those of every round
}

@test "several contexts step from drives in turn, and one that is destroyed in mid-step takes only its own along" {
  trained contexts
  jq -e '[.functions[] | select(.launches_stream > 0)] | length == 3' report.json
}

@test "a context whose GPU was lost with state on drives is released, or reset, in seconds, and the training after it has the same numbers" {
  SECONDS=0
  trained lost-then-release
  trained lost-then-reset
  grep -q '^after: ' with.out
  [ "$SECONDS" -lt 40 ]
}
