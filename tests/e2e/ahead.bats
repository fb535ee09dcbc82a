#!/usr/bin/env bats
# Across launches (shim/ahead.h): a step of many launches (ahead_program.c), with everything that a program can put between two of
# them. What comes between writes what the later launch reads: fetched too early it would give other bits.
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/ahead_program
KERNELS=$BUILD/tests/e2e
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet

# ahead MODE KERNEL AHEAD CLOSED OPTIONS...: the program without and with the preload; of its launches so many were fetched ahead,
# and so many times something closed the window.
ahead() {
  local mode=$1 kernel=$KERNELS/$2.ptx ahead=$3 closed=$4 alone
  shift 4
  alone=$BATS_FILE_TMPDIR/$(basename "$kernel")${*//[^a-z0-9_]/-}.out
  [ -e "$alone" ] || "$SIM" "$PROGRAM" "$kernel" "$@" >"$alone" || return 1
  OFFLOAD_STEP=$mode under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$kernel" "$@"
  assert_done "$mode" || return 1
  expect ".totals.launches_ahead == $ahead and .totals.ahead_closed == $closed" "$ahead launches ahead, $closed windows closed ($*)" || return 1
  diff "$alone" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# closes OPERATIONS OPTIONS...: each of these before the third launch of a step's four: that launch waits for its place, by cpu on one
# hardware queue and by stream on eight; in three of four steps, since the first is what moves state.
closes() {
  local operation operations=$1
  shift
  for operation in $operations; do
    GPUSIM_QUEUES=1 ahead cpu 25544_float-adamw 6 3 "between=$operation" "$@" || return 1
    GPUSIM_QUEUES=8 ahead cpu 25544_float-adam 6 3 "between=$operation" "$@" || return 1
    GPUSIM_QUEUES=8 ahead stream 25544_float-adamw 6 3 "between=$operation" "$@" || return 1
    expect '.reasons | map(test("launches of a step waited for those in front of them")) | any' "the reason" || return 1
  done
}

MANY=(launches=300 tensors=1 elements=512 at=300)

@test "a step of 300 launches is fetched ahead by cpu and by stream, with 1 and 8 hardware queues, and equals the program alone" {
  for queues in 1 8; do
    GPUSIM_QUEUES=$queues ahead cpu 25544_float-adamw 598 0 "${MANY[@]}" steps=3
    GPUSIM_QUEUES=$queues ahead stream 25544_float-adamw 598 0 "${MANY[@]}" steps=3
  done
}

@test "neither delays nor a slow worker nor a late stream change what was fetched ahead" {
  for seed in $SEEDS; do
    GPUSIM_SEED=$seed GPUSIM_DELAY_US=300 ahead cpu 25544_float-adam 21 0 launches=8
    GPUSIM_SEED=$seed GPUSIM_DELAY_US=300 ahead stream 25544_float-adamw 21 0 launches=8
  done
  for stream in 1 2 3 4 5 6; do
    GPUSIM_SLOW_STREAM=$stream GPUSIM_SLOW_US=3000 ahead cpu 25544_float-adamw 9 0 between=count
  done
  OFFLOAD_TEST_WORKER_LAG_MS=2 GPUSIM_DEPTH=3 GPUSIM_QUEUES=1 ahead cpu 25544_float-adamw 9 0 between=count
}

@test "the trace shows the gradients of a launch on their way before the launch in front of it has ended" {
  # shellcheck disable=SC2016 # the variables are jq's
  local early='
    def last(n): sort_by(.ts) | .[-n:];
    [.traceEvents[] | select(.ph == "X")] as $all |
    ($all | map(select(.pid == 2 and .name == "copy to the host" and .args.unscaled_bytes == 2048)) | last(300)) as $gradients |
    ($all | map(select(.pid == 2 and (.name | test("BinaryOpScalarFunctor")))) | .[0].tid) as $stream | # the program counts there
    ($all | map(select(.pid == 2 and .tid == $stream and (.name | test("_fused_adamw_")))) | last(300)) as $ends |
    [range(1; 300) as $i | select($gradients[$i].ts < $ends[$i - 1].ts)] | length'
  export GPUSIM_PROFILE=h100-8 GPUSIM_SCALE=1000 GPUSIM_TIMELINE=$BATS_TEST_TMPDIR/trace.json
  ahead cpu 25544_float-adamw 299 0 "${MANY[@]}" steps=2
  [ "$(jq "$early" "$GPUSIM_TIMELINE")" -ge 200 ]
  OFFLOAD_TEST_AHEAD=0 ahead cpu 25544_float-adamw 0 0 "${MANY[@]}" steps=2
  [ "$(jq "$early" "$GPUSIM_TIMELINE")" -eq 0 ]
}

# step_ns MODE AHEAD_PER_STEP OPTIONS...: simulated time of a step.
step_ns() {
  local mode=$1 per_step=$2 two
  shift 2
  ahead "$mode" 25544_float-adamw "$per_step" 0 steps=2 "$@" || return 1
  two=$(sim .clock_total_ns)
  ahead "$mode" 25544_float-adamw $((per_step * 3)) 0 steps=4 "$@" || return 1
  echo $((($(sim .clock_total_ns) - two) / 2))
}

@test "a step of 300 launches takes a few percent more than one of 4 on the clock, and far more when each waits for the one before" {
  export GPUSIM_PROFILE=h100-8 GPUSIM_SCALE=1000
  for mode in cpu stream; do
    few=$(step_ns $mode 3 launches=4 tensors=75 elements=512 at=4)
    many=$(step_ns $mode 299 "${MANY[@]}")
    drained=$(OFFLOAD_TEST_AHEAD=0 step_ns $mode 0 "${MANY[@]}")
    echo "$mode: $few ns in 4 launches, $many in 300, $drained draining at each"
    [ "$many" -le $((few * 104 / 100)) ]
    [ "$drained" -ge $((many * 118 / 100)) ]
  done
}

@test "memsets, copies and words between two launches that write the second's gradients close the window" {
  closes "memset copy upload write batch"
}

@test "kernels and graphs between two launches that write the second's gradients close the window" {
  closes "kernel cooperative attributes graph stranger"
}

@test "another stream that writes the second launch's gradients, waited for by event or by value, closes the window" {
  closes "event event_early value unknown"
}

@test "another thread, a function of the host and memory in stream order between two launches close the window" {
  closes "thread pool"
  closes "host callback" lr_pointer=1
}

@test "the legacy stream, which a blocking stream's launches wait for, closes the window" {
  closes "legacy legacy_event" blocking=1
}

@test "step counters that a foreach kernel adds to are read in the launch's place, its gradients ahead of it" {
  for queues in 1 8; do
    GPUSIM_QUEUES=$queues ahead cpu 25544_float-adamw 9 0 between=count
    GPUSIM_QUEUES=$queues ahead cpu 25544_float-adam 9 0 between=count tensors=9
    GPUSIM_QUEUES=$queues ahead stream 25544_float-adamw 9 0 between=count
  done
}

@test "a launch without a configuration, which the driver refuses, changes nothing" {
  for mode in cpu stream; do
    ahead $mode 25544_float-adamw 9 0 between=refused
  done
}

@test "gradients that a foreach kernel adds to are read in the launch's place, and nothing closes" {
  for mode in cpu stream; do
    ahead $mode 25544_float-adamw 6 0 between=scale
    ahead $mode 25544_float-adam 6 0 between=scale grad_scale=1
  done
}

@test "launches with the same gradients are fetched ahead unless the first divides them by its scale" {
  for mode in cpu stream; do
    ahead $mode 25544_float-adamw 9 0 shared=1
    ahead $mode 25544_float-adam 6 0 shared=1 grad_scale=1
  done
}

@test "a launch that steps a parameter of the launch before it waits for its place" {
  for mode in cpu stream; do
    ahead $mode 25544_float-adamw 6 0 shared=2
    ahead $mode 25544_float-adam 6 0 shared=2
  done
}

@test "a program that was given a driver function newer than the library's header is fetched nothing ahead" {
  export GPUSIM_DRIVER=13.1
  for mode in cpu stream; do
    ahead $mode 25544_float-adamw 9 0 newer=13000
    ahead $mode 25544_float-adamw 0 0 newer=1
    expect '.reasons | map(test("the driver gave the program cuLaunchHostFunc, which is newer than CUDA 13.0")) | any' "the reason"
  done
}
