#!/usr/bin/env bats
# Programs as CUDA's introductions show them, and Thrust and CUB, in both engines of the simulated GPU.
# bats ends a test at the first failing command and runs each in a subshell.
# shellcheck disable=SC2164,SC2030,SC2031

bats_require_minimum_version 1.5.0

setup() {
  ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
  export XDG_CACHE_HOME=$BUILD/tests/native_cache
  mkdir -p "$XDG_CACHE_HOME"
  cd "$BATS_TEST_TMPDIR"
}

# both PROGRAM LINES [SWITCH=VALUE...]: every line of it right, the same bits in both engines, each where it belongs.
both() {
  local program=$1 lines=$2 engine
  shift 2
  for engine in interpreter native; do
    env "$@" GPUSIM_ENGINE=$engine GPUSIM_REPORT=$engine.json "$BUILD/gpusim/run" \
      "$BUILD/tests/e2e/$program" >"$engine.out" 2>"$engine.err" || { cat "$engine.out" "$engine.err"; return 1; }
    [ "$(grep -c ' right ' "$engine.out")" -eq "$lines" ]
  done
  diff interpreter.out native.out
  [ "$(jq '.native_launches' interpreter.json)" -eq 0 ]
  [ "$(jq '.interpreted_launches == .launches and .launches > 0' interpreter.json)" = true ]
  [ "$(jq '.native_launches + .interpreted_launches == .launches' native.json)" = true ]
  [ "$(jq '.native_launches > .launches * 0.8' native.json)" = true ]
}

@test "reduction, scan, histogram, matrices, streams and events are right, and the same, in both engines" {
  both samples 5
}

@test "the samples stay right with contraction, seeded approximations, delays and one hardware queue" {
  both samples 5 GPUSIM_CONTRACT=1 GPUSIM_APPROX_SEED=7 GPUSIM_DELAY_US=100 GPUSIM_QUEUES=1
}

@test "Thrust and CUB sort, scan and reduce, and give the same bits in both engines" {
  both samples_thrust 8
}

@test "a bad engine is named with the remedy" {
  GPUSIM_ENGINE=fast run "$BUILD/gpusim/run" "$BUILD/tests/e2e/samples"
  [ "$status" -eq 87 ]
  [[ $output == *"GPUSIM_ENGINE=fast"*"auto, native or interpreter"* ]]
}
