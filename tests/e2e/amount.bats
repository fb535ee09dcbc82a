#!/usr/bin/env bats
# How much of the state moves: OFFLOAD_FREE, and OFFLOAD_MODE=pressure, which grows back (policy_program.c: four tensors, each with m and v of
# 256 KiB in allocations of their own, pieces of 16 KiB). Where each lies is read from the simulator's memory, how much from the report;
# then the numbers are compared with the program's alone.
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

PROGRAM=$BUILD/tests/e2e/policy_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
export OFFLOAD_PIECE=16KiB
KIB=1024

teardown() { loop_unmount; }

# same SETTINGS...: the program alone and under the preload, where it says before each step of $AT where its tensors are; the same hashes.
same() {
  GPUSIM_MEMORY=1GiB "$SIM" "$PROGRAM" "$KERNEL" "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  under_preload timeout -k 9 100 "$SIM" "$PROGRAM" "$KERNEL" where=1 "report=$BATS_TEST_TMPDIR/at" "at=${AT:-8}" "$@"
  assert_ended || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# lie STEP WORDS: where the first bytes of each tensor's m and v were before the step.
lie() {
  grep -qx "step $1: $2" "$BATS_TEST_TMPDIR/with.err" || {
    echo "before step $1 expected: $2"
    grep "^step" "$BATS_TEST_TMPDIR/with.err"
    return 1
  }
}

at() { jq -r "$2" "$BATS_TEST_TMPDIR/at.$1"; }

@test "OFFLOAD_FREE moves just enough, by whole pieces with their partners, and what the step names first stays" {
  OFFLOAD_FREE=512KiB same # one tensor's m and v
  lie 8 "device device device host"
  expect ".totals.moved_bytes_peak == $((512 * KIB)) and .free == {asked_bytes: 524288, devices: [{device: 0, freed_bytes: 524288, why: \"\"}]}" "exactly so much"
  OFFLOAD_FREE=513KiB same # and a piece of each of the next one's
  expect ".totals.moved_bytes_peak == $((544 * KIB)) and .free.devices[0].freed_bytes == $((544 * KIB))" "no more than a pair of pieces beyond"
  run ! grep "OFFLOAD_FREE:" "$BATS_TEST_TMPDIR/with.err"
  lie 8 "device device device host" # of the third its last pieces
  OFFLOAD_FREE=1 same
  expect ".totals.moved_bytes_peak == $((32 * KIB)) and .totals.pieces_moved == 2" "one pair for a byte"
}

@test "OFFLOAD_FREE gives the program's numbers by cpu, stream and direct" {
  for mode in cpu stream direct; do
    OFFLOAD_FREE=1MiB OFFLOAD_STEP=$mode same
    lie 8 "device device host host"
    expect '.totals.moved_bytes_peak == 1048576' "half of the state"
    [ "$mode" = direct ] || expect ".functions[0].launches_$mode > 0 and .totals.elements_direct > 0" "a part of each launch by $mode"
  done
}

@test "when less than OFFLOAD_FREE can move all does, the report says how much and why, and state that joins later moves too" {
  AT=5,8 OFFLOAD_FREE=2304KiB same join=5
  [ "$(at 5 '.free.devices[0].freed_bytes')" -eq $((2048 * KIB)) ]
  [[ "$(at 5 '.free.devices[0].why')" == "no more can move: the last step named 2.00 MiB of state"* ]]
  lie 5 "host host host host device"
  lie 8 "host host host host device" # half of it: its last pieces
  expect '.free.devices[0].freed_bytes == 2359296 and .free.devices[0].why == ""' "now there is enough"
  AT=5,8 OFFLOAD_FREE=4MiB same join=5
  lie 8 "host host host host host"
}

@test "OFFLOAD_FREE beyond the host budget says so, and with a drive the rest goes there" {
  OFFLOAD_FREE=1536KiB OFFLOAD_HOST_MEMORY=1MiB same
  expect '.totals.moved_bytes_peak == 1048576 and .free.devices[0].freed_bytes == 1048576 and (.free.devices[0].why | test("OFFLOAD_HOST_MEMORY"))' "the budget is the limit"
  grep -q "OFFLOAD_FREE: 1.00 MiB of device 0 freed, 1.50 MiB asked for: the host memory budget" "$BATS_TEST_TMPDIR/with.err"
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
  OFFLOAD_FREE=1536KiB OFFLOAD_HOST_MEMORY=1MiB OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_NVME_STAGING=1MiB same
  expect '.totals.moved_bytes_peak == 1048576 and .totals.drive_bytes_peak == 524288 and .free.devices[0].freed_bytes == 1572864 and .free.devices[0].why == ""' "the rest on the drive"
}

@test "with OFFLOAD_FREE a device that runs short all the same gets more" {
  # 7 MiB: parameters and gradients 2, state 2, of which 0.5 is to move; staging; the block wants what is left and more
  GPUSIM_MEMORY=7MiB OFFLOAD_STEP=direct OFFLOAD_FREE=512KiB AT=4,7 same steps=8 block=4000000 block_at=5 block_until=9
  [ "$(at 4 '.totals.moved_bytes')" -eq $((512 * KIB)) ]
  [ "$(at 7 '.totals.evictions > 0 and .free.devices[0].freed_bytes > 524288')" = true ]
}

@test "OFFLOAD_MODE=pressure moves nothing while there is room" {
  OFFLOAD_MODE=pressure same
  expect '.totals.moved_bytes_peak == 0 and .totals.evictions == 0 and (.reasons | map(test("never ran short")) | any)' "nothing moved"
}

@test "after pressure state comes home again by and by, what the step names first before the rest" {
  AT=4,16,37,60 GPUSIM_MEMORY=7MiB OFFLOAD_STEP=direct OFFLOAD_MODE=pressure same steps=60 block=4000000 block_at=3 block_until=5
  local away
  away=$(at 4 .totals.moved_bytes)
  [ "$away" -gt 500000 ]
  [ "$(at 4 '.totals.evictions')" -ge 1 ]
  [ "$(at 16 ".totals.regrowths == 0 and .totals.moved_bytes == $away")" = true ] # not at once
  [ "$(at 37 ".totals.regrowths > 0 and .totals.moved_bytes > 0 and .totals.moved_bytes < $away")" = true ] # a part, and of the third tensor's
  lie 4 "device device device host"
  lie 37 "device device device host"
  [ "$(at 60 '.totals.moved_bytes == 0 and .totals.pieces_home > 0')" = true ]
  [ "$(at 60 '.totals.regrowths')" -ge 4 ] # of so many bytes at most each
  lie 60 "device device device device"
}

@test "state that came home and was soon evicted again waits twice as long before it comes home" {
  AT=34,42,44,90,115 GPUSIM_MEMORY=7MiB OFFLOAD_STEP=direct OFFLOAD_MODE=pressure same steps=115 block=4000000 block_at=3 block_until=5 block_every=40 block_times=2
  local grown
  [ "$(at 34 '.totals.evictions == 1 and .totals.regrowths == 0')" = true ]
  [ "$(at 42 '.totals.regrowths > 0')" = true ] # after two waits of 16 steps, in the first of which the block was there
  [ "$(at 44 '.totals.evictions == 2 and .totals.moved_bytes > 500000')" = true ]
  grown=$(at 44 .totals.regrowths)
  [ "$(at 90 ".totals.regrowths == $grown and .totals.evictions == 2")" = true ] # two waits of 16 are over
  [ "$(at 115 ".totals.regrowths > $grown and .totals.moved_bytes == 0")" = true ] # two of 32, too
}

@test "a block that comes and goes makes no state flap: moves stay few over 200 steps" {
  for every in 8 40; do
    AT=200 GPUSIM_MEMORY=7MiB OFFLOAD_STEP=direct OFFLOAD_MODE=pressure same steps=200 block=4000000 block_at=3 block_until=5 block_every=$every block_times=50
    expect '.totals.evictions >= 1 and .totals.moved_bytes_peak > 500000' "it was short"
    expect '.totals.evictions <= 6 and .totals.moved_out_bytes <= 6 * .totals.moved_bytes_peak' "few evictions for every=$every"
  done
}
