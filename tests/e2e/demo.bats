#!/usr/bin/env bats
# The demo, run once as `make demo` runs it.
load ../lib/e2e

setup_file() {
  unset GPUSIM_GRANULARITY OFFLOAD_MIN_ALLOCATION OFFLOAD_LOG OFFLOAD_THREADS
  status=0
  "${PYTHON:-python3}" "$ROOT/integration/demo.py" --device simulated --build "$BUILD" \
    --json "$BATS_FILE_TMPDIR/demo.json" >"$BATS_FILE_TMPDIR/demo.out" 2>&1 || status=$?
  echo $status >"$BATS_FILE_TMPDIR/status"
}

demo() { jq -e "$1" "$BATS_FILE_TMPDIR/demo.json"; }

@test "the demo runs out of memory without the library and trains with it, bit for bit the same" {
  cat "$BATS_FILE_TMPDIR/demo.out"
  [ "$(cat "$BATS_FILE_TMPDIR/status")" -eq 0 ]
  demo '[.runs[].name] == ["large, without", "small, without", "small, with"]'
  demo '[.runs[].exit] == [0, 3, 0]'
  demo '.runs[2].moved > 0 and .runs[2].link_bytes_per_param > 0'
  demo '.runs[2].device_memory < .runs[0].device_memory and .runs[2].device_peak <= .runs[2].device_memory'
  demo '.runs[0].params == .runs[2].params and .runs[0].state == .runs[2].state and .identical'
  demo '.runs[2].loss_last < .runs[2].loss_first'
}

@test "the demo's small device cannot hold parameters, gradients, m and v, activations aside" {
  line=$(grep 'the peak without activations' "$BATS_FILE_TMPDIR/demo.out")
  lasting=$(sed 's/.*m and v: \([0-9]*\)\..*MiB.*/\1/' <<<"$line")
  [ "$lasting" -gt $(($(jq '.runs[2].device_memory' "$BATS_FILE_TMPDIR/demo.json") / 1048576)) ]
}

@test "the demo prints a table and identical: yes" {
  grep -q '^identical: yes$' "$BATS_FILE_TMPDIR/demo.out"
  [ "$(grep -cE '^(large, without|small, without|small, with) ' "$BATS_FILE_TMPDIR/demo.out")" -eq 3 ]
}

@test "the demo writes its figures as JSON with the agreed fields" {
  demo 'keys == ["identical", "runs"]'
  demo '[.runs[] | keys] | unique == [["device_memory", "device_peak", "exit", "link_bytes_per_param", "loss_first",
    "loss_last", "moved", "name", "params", "seconds", "state", "steps"]]'
}
