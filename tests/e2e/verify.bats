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
  "$SIM" "$PROGRAM" "$kernel" small=1 "$@" >"$BATS_TEST_TMPDIR/without.out"
}

# with VERIFY KERNEL OPTIONS...: with it.
with() {
  local kernel=$KERNELS/$2.ptx
  OFFLOAD_VERIFY=$1 under_preload timeout 60 "$SIM" "$PROGRAM" "$kernel" small=1 "${@:3}"
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
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/"
  cp "$BUILD/test/liboffload-adam-wrong.so" "$BATS_TEST_TMPDIR/liboffload-adam.so"
  LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so
}

# difference: the sentence that names it.
difference() { report '.reasons[] | select(startswith("OFFLOAD_VERIFY:") and contains("from the CPU"))'; }

@test "x" {
  wrong_companion
  alone 25544_float-adamw steps=6
  export WRONG_ADAM="m 30000 5 0"
  for v in 1 3 all; do for a in stop warn; do
  OFFLOAD_VERIFY_ACTION=$a with $v 25544_float-adamw steps=6
  echo $v $a $offloaded_status; cat $BATS_TEST_TMPDIR/with.err
  diff $BATS_TEST_TMPDIR/without.out $BATS_TEST_TMPDIR/with.out
  report '.functions[0]' | tr -d '\n'
  done; done
  false
}
