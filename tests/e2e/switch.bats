#!/usr/bin/env bats
# The switch at run time: a signal brings all state home, and offloading ends while the program runs on (policy_program.c raises it itself;
# charlm is sent it from outside). Each test first asserts from reports before and after that state had moved and is home, then compares.
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

PROGRAM=$BUILD/tests/e2e/policy_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
STATE=$((2 << 20)) # four tensors of 256 KiB, twice
export OFFLOAD_PIECE=16KiB

teardown() { loop_unmount; }

# switched SETTINGS...: the program alone without the signal, then under the preload with it before step 5; the same hashes. $BOTH is a setting
# of both, $SIGNAL what the second has instead of signal=5.
switched() {
  # shellcheck disable=SC2086 # a setting or none
  GPUSIM_MEMORY=1GiB "$SIM" "$PROGRAM" "$KERNEL" ${BOTH-} "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  # shellcheck disable=SC2086 # several settings
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" ${SIGNAL:-signal=5} "report=$BATS_TEST_TMPDIR/at" "at=${AT:-5,6}" "$@"
  assert_ended || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# at STEP FILTER SENTENCE: what the report said before that step.
at() {
  [ "$(jq -r "$2" "$BATS_TEST_TMPDIR/at.$1")" = true ] || {
    echo "expected before step $1: $3"
    jq -c '.node.ranks, .totals, .switch, .reasons' "$BATS_TEST_TMPDIR/at.$1"
    return 1
  }
}

# was_away BYTES: so much was off the device before the signal, all came home at the next launch, and nothing of ours is left.
was_away() {
  at 5 ".totals.moved_bytes + .totals.drive_bytes == $1" "$1 bytes were off the device" || return 1
  at 5 '.switch.used == false and .switch.watched == true and .switch.number > 34' "the signal is named beforehand" || return 1
  at 6 ".switch.used and .switch.whole and .switch.home_bytes == $1 and .switch.step == 4" "it all came home" || return 1
  at 6 '.totals.moved_bytes == 0 and .totals.drive_bytes == 0 and .totals.steps == 4' "nothing is left, and no step is counted any more" || return 1
  expect '.totals.moved_bytes_peak > 0 or .totals.drive_bytes_peak > 0' "state had moved" || return 1
  at 5 '.node.ranks[0].mode != "off" and .node.ranks[0].moved_bytes + .node.ranks[0].drive_bytes > 0' "other ranks saw it away" || return 1
  at 6 '.node.ranks[0] | .mode == "off" and .moved_bytes == 0 and (.note | test("switched off"))' "and see that it is home, and why" || return 1
  at 5 '.node.ranks[0].host_bytes > 0 and .node.claimed_bytes > 0' "it was claimed of the node" || return 1
  at 6 '.node.ranks[0] | .host_bytes + .staging_bytes + .drive_bytes + .threads == 0' "no claim of this rank's is left" || return 1
  at 6 '.node.claimed_bytes + .node.staging_bytes + .node.threads == 0' "the others have all of the node" || return 1
  grep -q "switched off by SIGRTMIN+9 at step 4: 2.00 MiB came home" "$BATS_TEST_TMPDIR/with.err"
}

@test "the signal brings all state home from each way of stepping, staging and pinned memory are given back, and the numbers go on" {
  for mode in cpu stream direct; do
    OFFLOAD_STEP=$mode switched
    was_away $STATE
    [ "$mode" = direct ] || at 6 '.switch.released_device_bytes > 100000' "staging is given back"
    [ "$mode" != cpu ] || at 6 '.switch.released_pinned_bytes > 1000000' "pinned memory is given back"
  done
  [ "$(report '[.functions[].launches] | add')" -eq 4 ] # what follows is the program's own
}

@test "steps that are still in flight when the signal comes are waited for" {
  GPUSIM_DELAY_US=2000 OFFLOAD_TEST_WORKER_LAG_MS=20 OFFLOAD_STEP=cpu switched
  was_away $STATE
  GPUSIM_QUEUES=1 GPUSIM_DELAY_US=500 OFFLOAD_STEP=stream switched
  was_away $STATE
}

@test "the signal brings state home from drives" {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
  for mode in cpu stream; do
    OFFLOAD_HOST_MEMORY=512KiB OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_NVME_STAGING=1MiB OFFLOAD_STEP=$mode switched
    at 5 '.totals.drive_bytes == 1572864' "three quarters on the drive"
    was_away $STATE
  done
}

@test "a signal in a capture is acted upon at the first launch behind it" {
  AT=5,6,7 switched capture=1
  at 6 '.switch.used == false and .totals.moved_bytes == 2097152' "not in the capture"
  at 7 '.switch.whole and .switch.home_bytes == 2097152 and .totals.moved_bytes == 0' "behind it"
}

@test "a program's own handler, or its ignoring the signal, is left alone" {
  BOTH=signal=5 switched handler=1
  grep -qx "handled 1" "$BATS_TEST_TMPDIR/with.out"
  expect '.switch.watched == false and .switch.used == false and (.switch.why | test("the program handles this signal"))' "not watched, and why"
  expect ".totals.moved_bytes == $STATE" "state stays where it is"
  BOTH=signal=5 switched handler=2
  expect ".switch.watched == false and .totals.moved_bytes == $STATE" "ignored is ignored"
  BOTH=signal=5 switched handler=3 # set later than ours
  grep -qx "handled 1" "$BATS_TEST_TMPDIR/with.out"
  expect ".switch.used == false and .totals.moved_bytes == $STATE" "the program's came later, and is the one that counts"
}

@test "another signal can be named, or none" {
  OFFLOAD_SIGNAL=USR2 switched number=12
  at 5 '.switch.signal == "USR2" and .switch.number == 12' "its name and number"
  at 6 ".switch.whole and .switch.home_bytes == $STATE" "home"
  grep -q "switched off by SIGUSR2" "$BATS_TEST_TMPDIR/with.err"
  SIGNAL=signal=0 OFFLOAD_SIGNAL=none switched
  expect '.switch.signal == "none" and .switch.number == 0 and .switch.watched == false' "none"
}

@test "the signal twice is the signal once" {
  SIGNAL="signal=5 again=7" switched
  was_away $STATE
  [ "$(grep -c "switched off" "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
}

@test "what the device has no room for stays on the host, stepped in place, and comes home when there is room" {
  # 4 MiB of parameters, gradients and state, and a block that takes the room of state until step 8
  GPUSIM_MEMORY=7MiB OFFLOAD_STEP=stream OFFLOAD_DEVICE_STAGING=1200KiB AT=5,6,9,10 switched steps=12 block=3400000 block_at=4 block_until=9
  at 5 ".totals.moved_bytes == $STATE" "all on the host"
  at 6 '.switch.used and (.switch.whole | not) and .switch.host_bytes > 0 and .switch.home_bytes > 0' "a part came home"
  at 6 ".switch.host_bytes + .switch.home_bytes == $STATE and .switch.host_bytes == .totals.moved_bytes" "the rest is on the host"
  at 9 '.totals.moved_bytes > 0 and (.functions[0].why | test("no room for its state")) and .functions[0].mode == "direct"' "stepped by the program's kernel"
  at 10 ".switch.whole and .switch.home_bytes == $STATE and .totals.moved_bytes == 0" "home when the block was gone"
  grep -q "stays on the host because the device has no room" "$BATS_TEST_TMPDIR/with.err"
  grep -q "has come home: 2.00 MiB in all" "$BATS_TEST_TMPDIR/with.err"
}

@test "state of every context comes home, on one device and on two" {
  for devices in 1 2; do
    GPUSIM_DEVICES=$devices AT=5,6,7 switched contexts=2
    at 5 ".totals.moved_bytes == $((2 * STATE))" "both contexts' state had moved"
    at 7 ".switch.whole and .switch.home_bytes == $((2 * STATE)) and .totals.moved_bytes == 0" "all of it is home"
  done
}

@test "a context that is at work comes home at a launch of its own" {
  # reports wait for the program's streams: none right before the signal
  GPUSIM_DELAY_US=1000 OFFLOAD_STEP=stream AT=4,6 switched contexts=2 busy=400
  at 4 ".totals.moved_bytes == $((2 * STATE))" "both contexts' state had moved"
  grep -q "2.00 MiB came home; 2.00 MiB stays on the host because .* its context is at work" "$BATS_TEST_TMPDIR/with.err"
  grep -q "what had stayed .* has come home: 4.00 MiB in all" "$BATS_TEST_TMPDIR/with.err"
  at 6 ".switch.whole and .switch.home_bytes == $((2 * STATE)) and .totals.moved_bytes == 0" "all of it is home"
}

@test "state of contexts that step no more comes home with a launch of another, on one device and on two" {
  for devices in 1 2; do
    GPUSIM_DEVICES=$devices switched contexts=3 alone=5
    at 5 ".totals.moved_bytes == $((3 * STATE))" "all contexts' state had moved"
    at 6 ".switch.whole and .switch.home_bytes == $((3 * STATE)) and .totals.moved_bytes == 0" "the first one's launch brought all of it home"
  done
}

@test "two threads that step while the signal comes are both brought home" {
  GPUSIM_DELAY_US=300 switched contexts=2 threads=1 steps=30
  expect '.totals.moved_bytes_peak > 0 and .switch.whole and .switch.home_bytes > 0 and .totals.moved_bytes == 0' "all home"
}

@test "charlm that is sent the signal from outside goes on with the same numbers" {
  plain default --steps 60
  rm -f "$BATS_TEST_TMPDIR"/{with,report,sim}.json
  OFFLOAD_REPORT=$BATS_TEST_TMPDIR/report.json GPUSIM_REPORT=$BATS_TEST_TMPDIR/sim.json LD_PRELOAD=$LIBOFFLOAD \
    "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 60 --json "$BATS_TEST_TMPDIR/with.json" >"$BATS_TEST_TMPDIR/with.out" 2>"$BATS_TEST_TMPDIR/with.err" &
  local job=$!
  for _ in $(seq 3000); do
    grep -q "moved .* to host memory" "$BATS_TEST_TMPDIR/with.err" && break
    sleep 0.01
  done
  kill -RTMIN+9 "$job"
  wait "$job"
  expect '.totals.moved_bytes_peak > 0 and .switch.whole and .switch.home_bytes == .totals.moved_bytes_peak and .totals.moved_bytes == 0' "all had moved and came home"
  [ "$(report .totals.steps)" -lt 60 ]
  assert_same default
  assert_clean
}
