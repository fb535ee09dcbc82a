#!/usr/bin/env bats
# `make bench`: what it writes, on buffers that are small here. Nothing is asserted about speed.
load ../lib/e2e

@test "the bench writes every row it promises" {
  out=$BATS_TEST_TMPDIR/bench.json
  python3 "$ROOT/tests/bench.py" "$out" "$BUILD/adam-bench --elements 1000000 --rounds 1" "$BUILD/launch-bench"
  jq -e '.triad_bytes_per_s > 0' "$out"
  jq -e '[.adam[] | .isa, .threads, .generation] | length > 0' "$out"
  jq -e '[.adam[] | .elements == 1000000 and .params_per_s > 0 and .bytes_per_param > 0] | all' "$out"
  jq -e '[.adam[].isa] | index("scalar") != null' "$out"
  jq -e '[.launch_overhead_ns[] | [.bytes, .moved]] | sort ==
    [[0, 0], [0, 1000], [96, 0], [96, 1000], [25544, 0], [25544, 1000]]' "$out"
  jq -e '[.launch_overhead_ns[].ns] | all(. >= 0)' "$out"
}

@test "a bench program that fails or prints no JSON leaves the figures as they were" {
  out=$BATS_TEST_TMPDIR/bench.json
  echo '{"kept": 1}' >"$out"
  run python3 "$ROOT/tests/bench.py" "$out" false
  [ "$status" -ne 0 ]
  run python3 "$ROOT/tests/bench.py" "$out" "echo no"
  [ "$status" -ne 0 ]
  [ "$(cat "$out")" = '{"kept": 1}' ]
}
