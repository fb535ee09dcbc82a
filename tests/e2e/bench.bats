#!/usr/bin/env bats
# `make bench`: what it writes, on buffers that are small here. Nothing is asserted about speed.
load ../lib/e2e

@test "the bench writes every row it promises" {
  out=$BATS_TEST_TMPDIR/bench.json
  python3 "$ROOT/tests/bench.py" "$out" "$BUILD/adam-bench --elements 1000000 --rounds 1" "$BUILD/launch-bench" "$BUILD/caller-bench" \
    "$BUILD/bench/preload $LIBOFFLOAD $(python3 -c 'import sys; print(sys.executable)') $BUILD/gpusim $BUILD/bench/hello $BUILD/bench $BUILD/bench/calls 3"
  jq -e '.triad_bytes_per_s > 0' "$out"
  jq -e '[.adam[] | .isa, .threads, .generation] | length > 0' "$out"
  jq -e '[.adam[] | .elements == 1000000 and .params_per_s > 0 and .bytes_per_param > 0] | all' "$out"
  jq -e '[.adam[].isa] | index("scalar") != null' "$out"
  jq -e '[.launch_overhead_ns[] | [.bytes, .moved]] | sort ==
    [[0, 0], [0, 1000], [96, 0], [96, 1000], [25544, 0], [25544, 1000]]' "$out"
  jq -e '[.launch_overhead_ns[].ns] | all(. >= 0)' "$out"
  jq -e '[.caller_lookup_ns[] | [.way, .depth]] == [["first walk", 1], ["direct", 0], ["walk", 1], ["walk", 4], ["walk", 16], ["walk", 64]]' "$out"
  # Deeper stacks were walked, up to the frames that are looked at.
  jq -e '[.caller_lookup_ns[] | select(.way == "walk").ns] | .[0] > 0 and .[2] > .[0]' "$out"
  jq -e '[.copy_overhead_ns[].moved] == [0, 1000]' "$out"
  jq -e '[.startup[] | .program] == ["python3 -c pass", "CUDA hello"]' "$out"
  jq -e '[.startup[] | .pairs == 3 and .clock_ratio > 0 and .processor_ratio > 0 and .hooked_clock_ms > 0 and
    .unhooked_clock_ms > 0 and .hooked_processor_ms > 0 and .unhooked_processor_ms > 0] | all' "$out"
  jq -e '[.calls[].call] | map(test("dlsym|cuGetProcAddress|Launch|Memcpy|MemAlloc")) | length >= 9' "$out"
  # The library was there: a large allocation becomes a range, which is far more than a call.
  jq -e '.calls[] | select(.call == "cuMemAlloc and cuMemFree, 64 MiB") | .hooked_ns > 10 * .unhooked_ns' "$out"
  jq -e '[.calls[] | .hooked_ns > 0 and .unhooked_ns > 0] | all' "$out"
}

@test "the start-up bench refuses a program that fails, an even number of pairs and a missing argument" {
  bench=("$BUILD/bench/preload" "$LIBOFFLOAD")
  run "${bench[@]}"
  [ "$status" -eq 2 ]
  [[ $output == usage:* ]]
  run "${bench[@]}" /bin/false "$BUILD/gpusim" "$BUILD/bench/hello" "$BUILD/bench" "$BUILD/bench/calls" 3
  [ "$status" -eq 1 ]
  [[ $output == *"preload-bench: /bin/false"* ]]
  run "${bench[@]}" /bin/true "$BUILD/gpusim" "$BUILD/bench/hello" "$BUILD/bench" "$BUILD/bench/calls" 4
  [ "$status" -eq 1 ]
  [[ $output == *"odd number"* ]]
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
