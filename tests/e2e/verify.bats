#!/usr/bin/env bats
# OFFLOAD_VERIFY: pieces of the CPU step are done by the program's kernel as well and compared. With the right companion nothing may
# differ, and exactly the pieces whose turn it was are compared; with one that is wrong where a test says (verify/wrong_adam.c),
# the difference is found, named, and nothing wrong is kept.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/step_program
KERNELS=$BUILD/tests/e2e
export OFFLOAD_PIECE=16KiB
export OFFLOAD_STEP=cpu
PIECES=5 # a step of step_program's small tensors: 20000, 3, 65536, 1024 and 40000 elements

# verified N STEPS: pieces that are compared in so many CPU steps.
verified() {
  local turn piece count=0
  for ((turn = 0; turn < $2; turn++)); do
    for ((piece = 0; piece < PIECES; piece++)); do
      [ "$1" != all ] && [ $(((turn + piece) % $1)) -ne 0 ] || count=$((count + 1))
    done
  done
  echo $count
}

# alone KERNEL OPTIONS...: the program without the preload.
alone() {
  local kernel=$KERNELS/$1.ptx
  shift
  "$SIM" "$PROGRAM" "$kernel" small="${small-1}" "$@" >"$BATS_TEST_TMPDIR/without.out"
}

# with VERIFY KERNEL OPTIONS...: with it.
with() {
  local kernel=$KERNELS/$2.ptx
  OFFLOAD_VERIFY=$1 under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$kernel" small="${small-1}" "${@:3}"
}

# compare N STEPS KERNEL OPTIONS...: the same bits, and exactly the pieces of so many CPU steps compared, none of which differed.
compare() {
  local every=$1 steps=$2 expected
  expected=$(verified "$every" "$steps")
  shift 2
  alone "$@" || return 1
  with "$every" "$@"
  assert_done cpu || return 1
  expect ".totals.verified_pieces == $expected and .functions[0].verified == $expected and $expected > 0" \
    "$expected pieces verified of $*" || return 1
  expect '.totals.mismatches == 0 and .totals.unverified_pieces == 0 and .totals.verified_bytes > 0 and .totals.verify_link_bytes > 0' \
    "no difference" || return 1
  expect '.functions[0] | .mode == "cpu" and .mismatches == 0 and .doubt_first_step == 0 and .doubt_last_step == 0' "nothing in doubt" || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# wrong_companion: the library beside one whose step WRONG_ADAM makes wrong.
wrong_companion() {
  [ "$LIBOFFLOAD" = "$BATS_TEST_TMPDIR/liboffload.so" ] || cp "$LIBOFFLOAD" "$BATS_TEST_TMPDIR/"
  cp "$BUILD/test/liboffload-adam-wrong.so" "$BATS_TEST_TMPDIR/liboffload-adam.so"
  LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so
}

# differs N OPTIONS...: the program under the wrong companion; the sentences about it are in $told, the function's row in $row.
differs() {
  wrong_companion
  alone 25544_float-adamw steps=10 "${@:2}"
  with "$1" 25544_float-adamw steps=10 "${@:2}"
  told=$(report '.reasons[] | select(startswith("OFFLOAD_VERIFY:"))')
  row=$(report '.functions[0] | "\(.mode) verified \(.verified) mismatches \(.mismatches) doubt \(.doubt_first_step) to \(.doubt_last_step) cpu \(.launches_cpu) stream \(.launches_stream)"')
  printf '%s\n' "$told" "$row"
}

@test "every piece, one in seven, and all before they are applied: counted exactly, and the same bits" {
  for every in 1 7 all; do
    compare $every 8 25544_float-adamw steps=9 changing_lr=1
  done
  compare 2 7 3336_double-adamw steps=8 extra=1 garbage=1
}

@test "every type with a third state, hostile numbers, other branches and a skipped step is verified without a difference" {
  # found_inf skips the third step, by the CPU the second: its pieces are nobody's.
  for entry in 0 1 2 3 4; do
    for every in 1 all; do
      alone exact-212-adamw_amsgrad entry=$entry steps=6 hostile=1 branches=1 found_inf=1
      with $every exact-212-adamw_amsgrad entry=$entry steps=6 hostile=1 branches=1 found_inf=1
      assert_done cpu
      expect '.totals.verified_pieces == 20 and .totals.mismatches == 0 and .functions[0].launches_cpu == 5' "four of five CPU steps verified"
      diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
      assert_clean
    done
  done
}

@test "L2 decay, a gradient scale that is written back, maximize and lr by pointer are verified without a difference" {
  for every in 1 all; do
    compare $every 3 exact-212-adam entry=0 steps=4 grad_scale=1 found_inf=2 hostile=1
    compare $every 3 exact-23-adamw_amsgrad entry=3 steps=4 grad_scale=1 maximize=1
    compare $every 3 exact-23-adam entry=2 steps=4 packed=1 lr_pointer=1 changing_lr=1
  done
}

@test "one hardware queue, a queue of three entries, a late stream and a slow worker are no deadlock and no difference" {
  for every in 1 all; do
    GPUSIM_QUEUES=1 GPUSIM_DELAY_US=200 compare $every 3 25544_float-adamw steps=4
    GPUSIM_QUEUES=1 GPUSIM_DEPTH=3 OFFLOAD_TEST_WORKER_LAG_MS=2 compare $every 3 25544_float-adamw steps=4
    [ "$(sim .blocked_submits)" -gt 0 ]
    for stream in 1 2 3 4; do
      GPUSIM_SLOW_STREAM=$stream GPUSIM_SLOW_US=10000 compare $every 2 25544_float-adamw steps=3
    done
  done
}

@test "a refused proof stays one: the program's kernel does that step, and nothing that was made of copies is kept" {
  for every in 1 all; do
    alone sly-adamw first_step=7 steps=6
    with $every sly-adamw first_step=7 steps=6
    assert_done cpu
    expect '.totals.refusals == 1 and .totals.verified_pieces == 20 and .totals.mismatches == 0' "one of five CPU steps refused"
    diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
    assert_clean
  done
}

@test "a sampled difference names kernel, tensor, element, both numbers with their bits, and the steps in doubt" {
  # Wrong from the second step on in the moments of tensors 2 and 4; those of tensor 4 are first compared at the fifth.
  export OFFLOAD_VERIFY_ACTION=warn
  WRONG_ADAM="m 30000 0 0" differs 7 sync=1
  [[ $told =~ ^'OFFLOAD_VERIFY: AdamW fp32, tensor 4 of the launch (parameter at 0x'[0-9a-f]+'): exp_avg[30000] is '(.*)' (0x'(.{8})') from the CPU, '(.*)' (0x'(.{8})") from the program's kernel; in doubt: steps 2 to 5"$ ]]
  local ours=${BASH_REMATCH[1]} our_bits=${BASH_REMATCH[2]} right=${BASH_REMATCH[3]} right_bits=${BASH_REMATCH[4]}
  [ $((0x$our_bits ^ 0x$right_bits)) -eq 1 ]
  python3 - "$ours" "$our_bits" "$right" "$right_bits" <<'EOF'
import struct, sys
for text, bits in zip(sys.argv[1::2], sys.argv[2::2]):
    assert struct.pack(">f", float(text)) == bytes.fromhex(bits), (text, bits)
EOF
  [ "$(grep -c 'exp_avg\[30000\] is' "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
  # A tensor of ten chunks, each a piece of its own: the fourth, in which 30000 is counted from the tensor's beginning.
  wrong_companion
  export WRONG_ADAM="v 30000 3 0" OFFLOAD_DEVICE_STAGING=1100KiB small=0
  with 1 25544_float-adamw steps=2 copies=0
  expect '.reasons | map(test("tensor 0 of the launch .*: exp_avg_sq.226608. is .*in doubt: step 2$")) | any' "the element of the tensor"
}

@test "after a difference the function is streamed; with OFFLOAD_VERIFY_ACTION=warn the job goes on" {
  export OFFLOAD_VERIFY_ACTION=warn
  WRONG_ADAM="v 50000 0 0" differs 7 sync=1
  assert_ended
  # Tensor 2 alone has so many elements: turn 5, the seventh step, is its first.
  [[ $told == *"tensor 2 of the launch"*"exp_avg_sq[50000]"*"in doubt: steps 2 to 7" ]]
  [ "$row" = "stream verified 4 mismatches 1 doubt 2 to 7 cpu 6 stream 3" ]
  [[ $(report '.functions[0].why') == "OFFLOAD_VERIFY found a difference"* ]]
  assert_clean
}

@test "the steps in doubt begin behind the last good verification of the pieces that differ" {
  export OFFLOAD_VERIFY_ACTION=warn
  # Of two jobs a step that are long enough: right in four, wrong from the sixth step on. Pieces in turn: 0 and 3, 2, 1 and 4, ...
  WRONG_ADAM="m 30000 8 0" differs 3 sync=1
  [[ $told == *"tensor 2 of the launch"*"in doubt: steps 4 to 6" ]]
  WRONG_ADAM="m 30000 8 0" differs 1 sync=1
  [[ $told == *"tensor 2 of the launch"*"in doubt: step 6" ]]
  # Queued launches go on by the CPU and are in doubt as well.
  WRONG_ADAM="m 30000 8 0" differs 1
  [[ $row == cpu*"doubt 6 to 10 cpu 9 stream 0" ]]
}

@test "a sampled difference stops the job with a CUDA error and a report, in a state or in the parameter" {
  for wrong in "m 30000 5 0" "v 30000 5 0" "u 30000 5 20"; do
    WRONG_ADAM=$wrong differs 1 sync=1
    [ "$offloaded_status" -eq 2 ]
    [[ $told == *"; in doubt: step 4"*"OFFLOAD_VERIFY: the job is stopped by a CUDA error: go back to a checkpoint"* ]]
    [[ $row == *"mismatches 1 doubt 4 to 4 cpu 3 stream 0" ]]
    grep -q 'step_program.*CUDA_ERROR_LAUNCH_FAILED' "$BATS_TEST_TMPDIR/with.err"
    # Up to the step before, the third, everything was right.
    diff <(head -n 3 "$BATS_TEST_TMPDIR/without.out") "$BATS_TEST_TMPDIR/with.out"
    [ "$(sim .violations)" -eq 0 ]
  done
}

@test "a job that aborts at the CUDA error leaves the report of the difference behind" {
  WRONG_ADAM="m 30000 5 0" differs 1 sync=1 abort=1
  [ "$offloaded_status" -eq 134 ]
  [[ $told == *"exp_avg[30000]"*"the job is stopped"* ]]
}

@test "all with a wrong companion ends with the program's own bits: states, parameter, every type, queued and in step" {
  local wrong
  for wrong in "m 30000 0 0" "v 5000 3 22" "u 30000 5 20"; do
    for sync in 0 1; do
      WRONG_ADAM=$wrong differs all sync=$sync
      assert_ended
      [[ $told == *"was done by the program's kernel, nothing is in doubt" ]]
      expect '.totals.mismatches > 0 and .functions[0].doubt_first_step == 0' "differences were found"
      [ $sync = 0 ] || [[ $row == stream* ]]
      diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
      assert_clean
    done
  done
  for entry in 0 1 2 3 4; do
    alone exact-212-adamw_amsgrad entry=$entry grad_scale=1 found_inf=1
    WRONG_ADAM="x 5000 0 3" with all exact-212-adamw_amsgrad entry=$entry grad_scale=1 found_inf=1
    assert_done cpu
    expect '.totals.mismatches > 0 and (.reasons | map(test("max_exp_avg_sq.5000")) | any)' "the maximum differs"
    diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
    assert_clean
  done
}

@test "where there is no scratch N counts what it could not verify and goes on, and all is streamed" {
  # The pinned memory that is asked for last is that of the scratch.
  local call
  alone 25544_float-adamw
  for call in 15 14 16 13 17 12 18; do
    GPUSIM_FAULT=cuMemHostAlloc:$call-:CUDA_ERROR_OUT_OF_MEMORY with 1 25544_float-adamw
    [ "$(report '.totals.unverified_pieces')" = 0 ] || break
  done
  assert_done cpu
  expect '.totals.unverified_pieces == 15 and .totals.verified_pieces == 0' "fifteen pieces not verified"
  expect '.reasons | map(test("^OFFLOAD_VERIFY: pieces whose turn it was were not verified: there is no memory")) | any' "why"
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
  GPUSIM_FAULT=cuMemHostAlloc:$call-:CUDA_ERROR_OUT_OF_MEMORY with all 25544_float-adamw
  assert_done stream
  expect '.functions[0] | .mode == "stream" and .launches_cpu == 0 and (.why | test("scratch of OFFLOAD_VERIFY"))' "streamed instead"
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
}

@test "a GPU that is lost while pieces are verified ends the program without waiting" {
  for every in 1 all; do
    SECONDS=0
    alone 25544_float-adamw lost=1 || true
    with $every 25544_float-adamw lost=1
    [ "$SECONDS" -lt 12 ]
    assert_done cpu
    expect '.totals.verified_pieces > 0 and .totals.mismatches == 0' "verified before, no difference made of it"
    diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
  done
}

@test "what the program's kernel steps by itself leaves nothing to verify, and the report says so" {
  with 1 slot-adam
  assert_done stream
  expect '.totals.verified_pieces == 0 and (.reasons | map(test("nothing of Adam fp32 was there to verify.*stream")) | any)' "the reason"
  OFFLOAD_STEP=direct with all 25544_float-adamw
  assert_done direct
  expect '.reasons | map(test("nothing of AdamW fp32 was there to verify.*direct")) | any' "the reason"
  grep -q 'OFFLOAD_VERIFY has nothing to verify with OFFLOAD_STEP=direct' "$BATS_TEST_TMPDIR/with.err"
}

@test "bad values are named with the remedy, and nothing is verified" {
  local EXPECT_IGNORED=1
  for value in -1 x ALL 10001 99999999999999999999 1.5 "1 "; do
    with "$value" 25544_float-adamw steps=3
    assert_done cpu
    grep -qF "OFFLOAD_VERIFY=$value is ignored: write 0 for none, a whole number up to 10000 for one piece in so many, or all; it stays at 0" \
      "$BATS_TEST_TMPDIR/with.err"
    expect '.settings.verify == 0 and .totals.verified_pieces == 0' "nothing verified with $value"
  done
  OFFLOAD_VERIFY_ACTION=abort with 1 25544_float-adamw steps=3
  grep -qF "OFFLOAD_VERIFY_ACTION=abort is ignored: write stop or warn; it stays at stop" "$BATS_TEST_TMPDIR/with.err"
  expect '.settings.verify == 1 and .settings.verify_action == "stop" and .totals.verified_pieces == 10' "the other setting holds"
}
