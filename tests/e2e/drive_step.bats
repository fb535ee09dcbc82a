#!/usr/bin/env bats
# The step on drives itself, on programs that do nothing but step: what frames keep from step to step, a program that never
# synchronises or is itself waited for, a proof that is refused, and failed reads. Compared with the program alone, after the report has
# said that state was stepped which came from a drive.
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

PTX=$BUILD/tests/e2e/exact-212-adamw.ptx

setup() {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
}
teardown() { loop_unmount; }

# on_drive MODE PROGRAM KERNEL ARGS...: with room for a few pieces in host memory, and less staging than there is state.
on_drive() {
  local mode=$1 program=$BUILD/tests/e2e/$2
  shift 2
  [ "$mode" = cpu ] || local -x OFFLOAD_THREADS # of no use there
  OFFLOAD_STEP=$mode OFFLOAD_HOST_MEMORY=${HOST:-1MiB} OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_PIECE=${PIECE:-64KiB} \
    OFFLOAD_NVME_STAGING=${STAGING:-2MiB} under_preload "$SIM" "$program" "$@"
}

# same_on_drive MODE PROGRAM KERNEL ARGS...: and ends with the same hashes as alone.
same_on_drive() {
  local alone
  alone=$("$SIM" "$BUILD/tests/e2e/$2" "${@:3}" 2>/dev/null) || return 1
  on_drive "$@"
  assert_ended || return 1
  expect '.totals.drive_read_bytes > 0 and .totals.elements_drive > 0' "elements stepped whose state was read from a drive" || return 1
  if [ "$(cat "$BATS_TEST_TMPDIR/with.out")" != "$alone" ]; then
    echo "without: $alone"
    echo "with:    $(cat "$BATS_TEST_TMPDIR/with.out")"
    return 1
  fi
  assert_clean
}

# 16 MiB of state of one launch, 16 frames of 256 KiB, 7 steps that find it on the drive.
@test "the next step begins with what the last one ended with: all that frames hold is found there" {
  for mode in cpu stream; do
    HOST=64KiB PIECE=256KiB STAGING=4MiB same_on_drive $mode train_step "$PTX" chunks=32 steps=8
    expect ".totals.drive_hit_bytes >= $((7 * (4 << 20) * 9 / 10))" "as many bytes a step as frames hold"
  done
}

@test "a step of several launches finds what half of the frames keep" {
  for mode in cpu stream; do
    HOST=64KiB PIECE=256KiB STAGING=4MiB same_on_drive $mode train_step "$PTX" chunks=32 steps=8 groups=4
    expect ".totals.drive_hit_bytes >= $((7 * (2 << 20) * 9 / 10))" "as many bytes a step as half of the frames hold"
  done
}

@test "a program that never synchronises gets its numbers from drives, also from a queue of three entries that blocks it" {
  for mode in cpu stream; do
    same_on_drive $mode step_program "$PTX" copies=0 steps=5 groups=2
    GPUSIM_DEPTH=3 GPUSIM_QUEUES=1 same_on_drive $mode step_program "$PTX" copies=0 steps=5
  done
}

@test "three states of two-byte types and scaled gradients that are left out at times give the program's numbers from drives" {
  for mode in cpu stream; do
    same_on_drive $mode step_program "$BUILD/tests/e2e/exact-212-adam_amsgrad.ptx" copies=0 steps=6 entry=3 hostile=1 \
      found_inf=1 grad_scale=1
  done
}

@test "where the proof is refused what lies on drives is streamed, and the numbers are the program's" {
  same_on_drive cpu step_program "$BUILD/tests/e2e/sly-adamw.ptx" copies=0 steps=12
  expect '.totals.refusals == 1 and .totals.elements_cpu > 0 and .totals.elements_stream > 0' "a refusal after steps by the CPU"
}

@test "a program that the GPU waits for is kept waiting for a proof some seconds at most, and once" {
  SECONDS=0
  PIECE=256KiB STAGING=8MiB GPUSIM_DEADLOCK_MS=60000 same_on_drive cpu step_program "$PTX" copies=0 steps=5 gate=3
  expect '.totals.elements_cpu > 0 and .totals.elements_stream > 0' "the CPU's steps and then streamed ones"
  [ "$SECONDS" -lt 29 ] # three proofs, of ten seconds each if all were waited for
  expect '[.reasons[] | select(test("streamed from now on"))] | length == 1' "why, once"
}

@test "a failed read ends a program that never synchronises, by cpu and by stream, within seconds and with the way back" {
  for mode in cpu stream; do
    SECONDS=0
    OFFLOAD_TEST_NVME=read_eio=100+ on_drive $mode step_program "$PTX" copies=0 steps=20
    [ "$offloaded_status" -ne 0 ]
    [ "$SECONDS" -lt 15 ]
    expect '.totals.drive_read_bytes > 0 and .totals.elements_drive > 0' "steps before it"
    grep 'could not be read back from a drive' "$BATS_TEST_TMPDIR/with.err" | grep 'in the middle of a step' | grep -q 'last checkpoint'
  done
}
