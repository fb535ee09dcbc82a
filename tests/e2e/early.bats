#!/usr/bin/env bats
# State that is copied up before its step (shim/early.h): that it is there early, and that what was touched since is never used.
# The program (early/early.c) runs without and with the preload; every comparison first asserts, from the report, that state was
# copied up early and used, and where something touched it, that copies were thrown away.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/early
TOUCH=$BUILD/tests/e2e/touch.ptx
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet
export OFFLOAD_STEP=stream

# both OPTIONS...: the program without and with the preload; the results are the same, and state was used early.
both() {
  local adam=$BUILD/tests/e2e/${kernel:-25544_float-adamw}.ptx
  GPUSIM_MEMORY=1GiB "$SIM" "$PROGRAM" "$adam" "$TOUCH" "$@" >"$BATS_TEST_TMPDIR/without.out" 2>/dev/null || return 1
  under_preload timeout -k 9 120 "$SIM" "$PROGRAM" "$adam" "$TOUCH" "$@"
  assert_done stream || return 1
  expect ".totals.early_bytes_used > ${least:-5000000}" "state that was there early" || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}
dropped() { expect '.totals.early_bytes_dropped > 1000000' "what was copied up early was thrown away"; }
stayed() { expect '.totals.pieces_home == 0' "the state stayed on the host"; }

@test "state that nobody touches is copied up before its step and used, with 1 and 8 hardware queues and any delays" {
  both
  expect '.totals.early_bytes_dropped == 0 and .totals.early_bytes_used > 0.8 * .totals.early_bytes' "nothing in vain"
  for queues in 1 8; do
    GPUSIM_QUEUES=$queues GPUSIM_SEED=$queues GPUSIM_DELAY_US=300 both sync=$((queues / 8))
  done
  for slow in 2 4 5 6; do
    GPUSIM_SLOW_STREAM=$slow GPUSIM_SLOW_US=4000 both steps=7
  done
}

@test "a copy, a memset, a word or a kernel that writes state on the host between two steps: what was copied up before is thrown away" {
  for how in copy memset word kernel foreach; do
    both touch=$how full=1
    dropped && stayed
  done
}

@test "a kernel's large struct, a graph and a collective's list in memory, which name state where it can't be seen" {
  for how in large graph collective; do
    both touch=$how
    dropped && stayed
  done
  GPUSIM_QUEUES=1 GPUSIM_DELAY_US=300 both touch=graph loop=1 steps=12
}

@test "a kernel of another stream that is still at work on state when the step before ends" {
  GPUSIM_SLOW_STREAM=2 GPUSIM_SLOW_US=4000 both touch=other full=1 loop=1 at=6
  dropped && stayed
  GPUSIM_SLOW_STREAM=2 GPUSIM_SLOW_US=4000 both touch=late full=1 loop=1 at=6
  stayed
}

@test "a kernel that was queued before the step and runs behind it, since it waits for a word that is written then" {
  GPUSIM_SLOW_STREAM=2 GPUSIM_SLOW_US=3000 both touch=inverted full=1
  stayed
}

@test "state that is freed and allocated again, loaded from a checkpoint, or sent home" {
  both touch=realloc
  dropped
  both touch=load
  dropped
  both touch=kernel
  dropped
  expect '.totals.pieces_home > 0 and .totals.pieces_moved > 242' "pieces came home and moved again"
}

@test "groups in another order, a tensor less, a tensor more, a step left out, a step that found_inf skips" {
  both touch=reorder
  both touch=shrink
  dropped
  both touch=grow
  both touch=skip
  expect '.totals.early_bytes_dropped == 0' "a step later is early enough"
  both found_inf=1
  expect '.totals.early_bytes_dropped == 0' "nothing in vain"
}

@test "state that is only read between steps stays valid on the device" {
  both touch=read loop=1
  expect '.totals.early_bytes_dropped == 0' "nothing in vain"
}

@test "more tensors than a list, state at odd addresses, several tensors a slot: few launches, all as they were" {
  both many=300 groups=1 steps=8
  expect '.functions[0].launches_stream == 14 and .functions[0].blocks_taken > 2000' "every little tensor was staged"
  # backward is 308 launches a step
  [ "$(sim .launches)" -lt $((308 * 8 + 120)) ] && [ "$(sim .copies)" -lt 3500 ]
  least=2000000
  kernel=3336_double-adamw both many=40 skew=4 steps=7
  kernel=typed-212-adam_amsgrad both entry=0 skew=8 steps=7 many=20
}

@test "the first pieces are on their way up while backward runs, and the step is that much shorter" {
  export GPUSIM_PROFILE=h200 GPUSIM_SCALE=1000
  adam=$BUILD/tests/e2e/25544_float-adamw.ptx
  for touch in none collective; do
    for steps in 6 10; do
      GPUSIM_TIMELINE=$BATS_TEST_TMPDIR/trace.json under_preload "$SIM" "$PROGRAM" "$adam" "$TOUCH" groups=1 rounds=200 touch=$touch loop=1 at=2 steps=$steps
      assert_done stream
      sim .clock_copy_exposed_ns >"$BATS_TEST_TMPDIR/$touch.$steps"
    done
    # copies to the device that begin while a kernel of backward runs
    jq '[.traceEvents[] | select(.ph == "X" and .pid == 3)] as $all
      | [$all[] | select(.name == "backward") | {from: .ts, to: (.ts + .dur)}] as $backward
      | [$all[] | select(.name == "copy to the device") | .ts as $at | select($backward | map(.from <= $at and $at < .to) | any)] | length' \
      "$BATS_TEST_TMPDIR/trace.json" >"$BATS_TEST_TMPDIR/$touch.during"
  done
  [ "$(cat "$BATS_TEST_TMPDIR/none.during")" -ge 10 ]
  [ "$(cat "$BATS_TEST_TMPDIR/collective.during")" -le 4 ]
  # exposed time of four steps
  early=$(($(cat "$BATS_TEST_TMPDIR/none.10") - $(cat "$BATS_TEST_TMPDIR/none.6")))
  late=$(($(cat "$BATS_TEST_TMPDIR/collective.10") - $(cat "$BATS_TEST_TMPDIR/collective.6")))
  echo "exposed: $early ns early, $late ns otherwise"
  [ $((early * 100)) -le $((late * 92)) ]
}

@test "an allocation that the device has no room for but for staging gets it, at once" {
  export GPUSIM_MEMORY=40MiB
  both touch=grab steps=12
  expect '.totals.staging_given_back == 1 and .totals.evictions == 0 and .totals.refused_out_of_memory == 0' "staging went first"
  grep -q 'all that was free and more' "$BATS_TEST_TMPDIR/with.err"
}
