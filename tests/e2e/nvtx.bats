#!/usr/bin/env bats
# NVTX ranges around our work on the program's thread, as a profiler's library sees them (nvtx/injection.c), and nothing at all where none
# is attached.
bats_require_minimum_version 1.5.0
load ../lib/e2e

TOOL=$BUILD/test/nvtx/libinjection.so

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

@test "a profiler that is attached by NVTX_INJECTION64_PATH gets a range for each step and move, and all of them end" {
  plain default --steps 20
  for mode in cpu stream; do
    OFFLOAD_STEP=$mode NVTX_INJECTION64_PATH=$TOOL NVTX_COUNTED=counted offloaded --steps 20
    assert_done $mode
    assert_same default
    read -r _ pushed _ popped _ astray _ deepest <counted
    [ "$pushed" -eq "$popped" ]
    [ "$astray" -eq 0 ]
    [ "$deepest" -eq 1 ]
    [ "$(grep -c "^1 offload step [0-9]* ($mode)$" counted)" -eq 19 ]
    grep -qx "1 offload step 20 ($mode)" counted
    grep -qx '1 offload move' counted
    [ "$pushed" -eq 20 ]
  done
}

@test "what brings state back from drives is a range of its own" {
  mkdir -p drive
  # After every second step another kernel writes state, which comes back for it.
  OFFLOAD_STEP=cpu OFFLOAD_HOST_MEMORY=128KiB OFFLOAD_NVME=$PWD/drive OFFLOAD_NVME_STAGING=512KiB NVTX_INJECTION64_PATH=$TOOL NVTX_COUNTED=counted \
    offloaded --steps 12 --ema-every 2
  assert_ended
  expect '.totals.drive_faults > 0' "state was brought back"
  grep -q '^[1-9][0-9]* offload fault$' counted
  read -r _ pushed _ popped _ astray _ <counted
  [ "$pushed" -eq "$popped" ]
  [ "$astray" -eq 0 ]
}

@test "without a profiler no library is opened and no range made; one that can't be loaded is told and changes nothing" {
  plain default --steps 20
  export OFFLOAD_STEP=cpu
  NVTX_COUNTED=counted LD_DEBUG=files LD_DEBUG_OUTPUT=loaded offloaded --steps 20
  assert_done cpu
  assert_same default
  [ ! -e counted ]
  grep -q liboffload-adam.so loaded.*
  run -1 grep -i nvtx loaded.*
  run -1 grep -i libinjection loaded.*
  NVTX_INJECTION64_PATH=/nowhere/tool.so offloaded --steps 20
  assert_done cpu
  assert_same default
  expect '[.reasons[] | select(startswith("no NVTX ranges: the library that NVTX_INJECTION64_PATH names (/nowhere/tool.so)"))] | length == 1' "why there are none"
}
