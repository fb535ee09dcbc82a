#!/usr/bin/env bats
# The clock over whole steps of the library: queued by step_program, on machines of policy/gpus.def. Data are 1000 times larger
# than they are. The difference of a long and a short run leaves out what happens once.
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/step_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet
export GPUSIM_SCALE=1000

# clocked NAME STEPS: a run under the preload; reports in NAME.json and NAME.sim.json, timeline in NAME.trace.json.
clocked() {
  OFFLOAD_REPORT=$BATS_TEST_TMPDIR/$1.json GPUSIM_REPORT=$BATS_TEST_TMPDIR/$1.sim.json \
    GPUSIM_TIMELINE=$BATS_TEST_TMPDIR/$1.trace.json LD_PRELOAD=$LIBOFFLOAD \
    timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" copies=0 steps="$2" >"$BATS_TEST_TMPDIR/$1.out" 2>"$BATS_TEST_TMPDIR/$1.err"
}

# more FILTER SUFFIX: by how much a question's answer grows from the short run to the long one.
more() { echo $(($(jq "$1" "$BATS_TEST_TMPDIR/long$2.json") - $(jq "$1" "$BATS_TEST_TMPDIR/short$2.json"))); }

# between LOW VALUE HIGH
between() {
  [ "$1" -le "$2" ] && [ "$2" -le "$3" ] || {
    echo "expected $1 <= $2 <= $3"
    return 1
  }
}

@test "a CPU step on one of eight GPUs takes 36 bytes an element at its 77 GB/s of host memory" {
  export GPUSIM_PROFILE=h100-8 OFFLOAD_STEP=cpu
  clocked short 4
  clocked long 8
  elements=$(more .totals.elements_cpu "")
  [ "$elements" -gt 1000000 ]
  by_hand=$((elements * 36000 / 77)) # ns: 4 down, 28 for the step, 4 up
  between $((by_hand * 9 / 10)) "$(more .clock_total_ns .sim)" $((by_hand * 11 / 10))
  between $((by_hand * 6 / 10)) "$(more .clock_host_exposed_ns .sim)" "$by_hand"
  [ "$(jq .clock_inferred_waits "$BATS_TEST_TMPDIR/long.sim.json")" -gt 0 ]
  [ "$(jq .clock_assumed_waits "$BATS_TEST_TMPDIR/long.sim.json")" -eq 0 ]
}

@test "a streamed step is faster than its bytes up and down in turn, and no faster than the link's two directions" {
  export GPUSIM_PROFILE=h200 OFFLOAD_STEP=stream
  clocked short 4
  clocked long 8
  elements=$(more .totals.elements_stream "")
  [ "$elements" -gt 1000000 ]
  both=$((elements * 8000 / 49)) # ns
  in_turn=$((elements * 8000 * 10 / 554 + elements * 8000 * 10 / 535))
  between $((both * 98 / 100)) "$(more .clock_total_ns .sim)" "$in_turn"
  [ "$(jq .clock_host_ns "$BATS_TEST_TMPDIR/long.sim.json")" -eq 0 ]
}

@test "the timeline is a Chrome trace with streams, engines, the host and its worker" {
  GPUSIM_PROFILE=rtx4090 OFFLOAD_STEP=cpu clocked long 4
  trace=$BATS_TEST_TMPDIR/long.trace.json
  jq -e '.traceEvents | all(.ph == "M" or (.ph == "X" and .ts >= 0 and .dur >= 0 and (.name | length) > 0))' "$trace"
  for row in "streams of device 0" "engines of device 0" "kernels 0" "copies to the host 0" "inferred worker 0" host; do
    jq -e --arg row "$row" '[.traceEvents[] | select(.ph == "M" and .args.name == $row)] | length > 0' "$trace"
  done
  # an engine does one thing at a time, and the last event is the end
  jq -e '[.traceEvents[] | select(.ph == "X" and .pid == 3 and .tid == 2)] | sort_by(.ts) |
    [range(1; length) as $i | .[$i].ts - .[$i - 1].ts - .[$i - 1].dur] | all(. > -0.01)' "$trace"
  end=$(jq '[.traceEvents[] | select(.ph == "X") | .ts + .dur] | max * 1000 | floor' "$trace")
  between $((end - 5000)) "$(jq .clock_total_ns "$BATS_TEST_TMPDIR/long.sim.json")" $((end + 5000))
}

@test "the end of a clocked run says what was exposed" {
  GPUSIM_PROFILE=gh200 OFFLOAD_STEP=cpu clocked long 2
  grep -qE '^gpusim: clock of gh200: [0-9.]+ ms in all; kernels run [0-9.]+; copies [0-9.]+, exposed [0-9.]+; the CPU' "$BATS_TEST_TMPDIR/long.err"
}

@test "help names the machines' switch, and an unknown machine is answered with those that are known" {
  "$SIM" --help | grep -q GPUSIM_PROFILE
  GPUSIM_PROFILE=h300 run "$SIM" "$PROGRAM" "$KERNEL" steps=1
  [ "$status" -eq 87 ]
  [[ $output == *"GPUSIM_PROFILE=h300: no such machine; known are h200, h100-8, a100-pcie4, rtx4090, gh200, h200-8, a100-40-2, rtx4070tis"* ]]
}
