#!/usr/bin/env bats
# `make bench` and `make bench-peers`: what they write, on buffers that are small here. Nothing is asserted about speed.
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

@test "the bench of records runs with each kind of record, which is written, and gives its ratios" {
  cd "$BATS_TEST_TMPDIR" && python3 "$ROOT/policy/bench_record.py" "$BUILD" "$TEXT" --rounds 1 --steps 6 >record.json
  jq -e '.record_ratios | .report_and_metrics_clock > 0 and .report_and_metrics_processor > 0 and .trace_clock > 0 and .trace_processor > 0' record.json
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

# bench_peers.py OUTPUT ARGUMENTS...: 200,000 elements, in the environment of `make pytorch`.
peers() {
  environment=$BUILD/pytorch/$(sed -n 's/^torch==//p' "$ROOT/deps/pytorch.txt")/environment
  [ -x "$environment/bin/python" ] || skip "no environment with PyTorch: make pytorch-environment"
  python3 "$ROOT/integration/pytorch/stubs.py" --cc "${CC:-gcc}" "$environment"/lib/python*/site-packages/torch/lib \
    "$BATS_TEST_TMPDIR/libraries"
  output=$1
  shift
  env LD_LIBRARY_PATH="$BATS_TEST_TMPDIR/libraries:$BUILD/gpusim" PYTHONPYCACHEPREFIX="$BATS_TEST_TMPDIR/pycache" \
    "$environment/bin/python" "$ROOT/adam/bench_peers.py" --companion "$BUILD/liboffload-adam.so" --work "${work:-$BUILD/bench_peers}" \
    --output "$output" --elements 200000 --rounds 1 --threads 1 "$@"
}

peers_shape() {
  jq -e '.rows | length >= 12' "$1"
  jq -e '[.rows[] | keys] | unique == [["beside", "case", "clock", "deepspeed_params_per_s", "elements", "isa",
    "ours_params_per_s", "ratio_beside", "ratio_deepspeed", "ratio_torch", "ratio_triad", "threads", "torch_params_per_s"]]' "$1"
  jq -e '[.rows[] | .elements == 200000 and .threads == 1 and .ours_params_per_s > 0 and .ratio_triad > 0] | all' "$1"
  jq -e '[.rows[] | select(.case == ("f32 staged", "f32 dram", "bf16 avx2")) | .torch_params_per_s > 0 and .ratio_torch > 0] |
    length == 3 and all' "$1"
  jq -e '.rows[] | select(.case == "bf16 avx2") | .isa == "avx2"' "$1"
  jq -e '.rows[] | select(.case == "f32 dram, 100000 tensors") | .beside == "100 tensors" and .ratio_beside > 0' "$1"
}

@test "bench-peers lets ours and PyTorch's step take turns, checks that both did it, and writes its rows" {
  peers "$BATS_TEST_TMPDIR/peers.json" --without-deepspeed
  peers_shape "$BATS_TEST_TMPDIR/peers.json"
  jq -e '[.rows[] | .deepspeed_params_per_s == null and .ratio_deepspeed == null] | all' "$BATS_TEST_TMPDIR/peers.json"
}

@test "bench-peers has DeepSpeed's CPU Adam among them, which did the same step" {
  [ -e "$BUILD/bench_peers/ds_native.so" ] && [ -e "$BUILD/bench_peers/ds_avx2.so" ] ||
    skip "DeepSpeed's CPU Adam is not built here: make bench-peers-build"
  peers "$BATS_TEST_TMPDIR/peers.json"
  peers_shape "$BATS_TEST_TMPDIR/peers.json"
  jq -e '[.rows[] | select(.case == ("f32 staged", "f32 dram", "bf16 avx2")) | .deepspeed_params_per_s > 0 and .ratio_deepspeed > 0] |
    length == 3 and all' "$BATS_TEST_TMPDIR/peers.json"
}

@test "bench-peers stops at a contestant that does no step" {
  work=$BATS_TEST_TMPDIR/work
  mkdir "$work"
  sed 's/= peer->api->step(peer->team, &jobs\[i\])/= peer \&\& jobs/' "$ROOT/adam/bench_peers.c" >"$work/idle.c"
  run cmp -s "$work/idle.c" "$ROOT/adam/bench_peers.c"
  [ "$status" -eq 1 ]
  ${CC:-gcc} -O2 -fPIC -fopenmp -I"$ROOT/adam" -shared "$work/idle.c" -o "$work/libpeers.so" -ldl
  run peers "$BATS_TEST_TMPDIR/peers.json" --without-deepspeed
  [[ $output != *"no environment with PyTorch"* ]] || skip "no environment with PyTorch: make pytorch-environment"
  [ "$status" -ne 0 ]
  [[ $output == *"f32 staged: ours left its arrays as they were"* ]]
  [ ! -e "$BATS_TEST_TMPDIR/peers.json" ]
}
