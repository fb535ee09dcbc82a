#!/usr/bin/env bats
# Optimizers of unknown name: kernels whose names say nothing (unknown/unknown.cu) are judged by what they use. Each test asserts from the
# report that an optimizer is found, with its bytes, by the program and settings with which the other kernels are not taken for one.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/unknown
KERNELS=$BUILD/tests/e2e/unknown.ptx
export OFFLOAD_PIECE=2MiB
export OFFLOAD_MIN_ALLOCATION=64KiB

# job SETTINGS...: the program under the preload, without a step of a known optimizer.
job() {
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNELS" "$@"
  assert_ended && assert_clean || return 1
  expect '.totals.steps == 0 and .totals.allocations_seen > 0' "large allocations, and no step"
}

# named KERNEL RANGES BYTES STATE: the only advice.
named() {
  expect ".advice | map(.kind) == [\"unknown\"]" "advice of an unknown optimizer, and no other" || { report .advice && return 1; }
  expect ".advice[0].text | test(\"no known optimizer was seen; the kernel $1 uses $2 ranges of one size, $3 a step, $4 of them alone: it looks like an optimizer\")" \
    "the kernel with its numbers" || { report .advice && return 1; }
}
not_named() {
  expect '.advice | map(.kind) == ["no_optimizer"]' "that there was none" || { report .advice && return 1; }
}

@test "an optimizer of unknown name is named with what it uses a step and what of it is state" {
  job
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  expect '.advice[0].text | test("AdamW.*fused=True.*report the kernel.s name")' "what to do"
  job tensors=3 do=narrow # parameters and gradients of two bytes
  named lattice_relax_narrow 4 "2.25 MiB" "1.50 MiB"
  job do=packed # parameters in one buffer, of a length that is no multiple of eight
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  job tensors=4 do=list # all in one launch, by a struct
  named lattice_relax_all 16 "4.00 MiB" "2.00 MiB"
}

@test "tensors cut out of one allocation are told apart by where the next begins" {
  job segment=1
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  job segment=1 do=narrow
  named lattice_relax_narrow 4 "1.50 MiB" "1.00 MiB"
  job segment=1 do=blend
  not_named
}

@test "the line at exit names an optimizer of unknown name that has much state" {
  job elements=2097152 tensors=1
  named lattice_relax 4 "32.0 MiB" "16.0 MiB"
  grep -q "advice: no known optimizer was seen; the kernel lattice_relax" "$BATS_TEST_TMPDIR/with.err"
  job
  run grep -c "advice:" "$BATS_TEST_TMPDIR/with.err"
  [ "$output" -eq 0 ]
}

@test "elementwise kernels of four tensors of one size, and momentum, are not taken for an unknown optimizer" {
  job steps=20
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  job steps=20 do=blend
  not_named
  job steps=20 do=fed
  not_named
  job steps=20 do=momentum
  not_named
}

@test "state that is read by copies or made anew each step is nobody's, and a few steps tell nothing" {
  job steps=4
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  job steps=3
  not_named
  job reads=1
  not_named
  job frees=1
  not_named
}

@test "where something runs each step whose addresses can't be told, no memory is known to be used by one kernel alone" {
  local beside
  job
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  for beside in graph opaque unload; do
    job beside=$beside
    not_named || { echo "beside=$beside" && return 1; }
  done
}

@test "beside steps of a known optimizer no other is looked for" {
  under_preload timeout -k 9 60 "$SIM" "$BUILD/tests/e2e/policy_program" "$BUILD/tests/e2e/25544_float-adamw.ptx" sync=1
  assert_ended && assert_clean
  expect '.totals.steps == 8' "steps"
  expect '.advice | map(.kind) | index("unknown") == null and index("no_optimizer") == null' "no unknown optimizer"
  OFFLOAD_MODE=observe job # where nothing moves anyway, what is seen is the same
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  OFFLOAD_MODE=off under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNELS"
  assert_ended && assert_clean
  [ ! -e "$BATS_TEST_TMPDIR/report.json" ] || expect '.advice | length == 0' "nothing is said"
}

@test "threads that launch while memory is freed are told apart, and their forked children wait for nobody" {
  run_threads() { under_preload timeout -k 9 60 "$SIM" "$BUILD/tests/e2e/unknown_threads" "$KERNELS" "$@"; }
  run_threads spread=1 steps=5000 forks=100 # of more addresses than are remembered
  assert_ended && assert_clean
  grep -Ex "forked [1-9][0-9]+" "$BATS_TEST_TMPDIR/with.out"
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
  run_threads frees=1 steps=1000 forks=20
  assert_ended && assert_clean
  named lattice_relax 4 "2.00 MiB" "1.00 MiB"
}
