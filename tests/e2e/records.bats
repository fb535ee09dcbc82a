#!/usr/bin/env bats
# What the library writes while a program runs and when it ends: the report by the minute, OFFLOAD_METRICS, lines of ranks. Periods are
# some milliseconds here (OFFLOAD_TEST_RECORD_MS).
bats_require_minimum_version 1.5.0
load ../lib/e2e

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  export OFFLOAD_STEP=cpu
}

valid() { python3 "$ROOT/tests/lib/validate.py" "$ROOT/policy/report.schema.json" "$1"; }

# metric NAME [JQ]: a metric's only value, or what JQ says of it.
metric() { python3 "$ROOT/tests/lib/prometheus.py" "${metrics:-m.prom}" | jq ".offload_$1 | ${2:-.samples[0].value}"; }

# Steps of 2 ms or more, so that some hundred take a while.
endless() {
  OFFLOAD_REPORT=killed.json LD_PRELOAD=$LIBOFFLOAD exec "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 1000000 >steps.out 2>steps.err
}

# rewritten FILE: until it is another, for 5 seconds at most.
rewritten() {
  local before
  before=$(stat -c %i.%y "$1" 2>/dev/null || true)
  for _ in $(seq 500); do
    [ "$(stat -c %i.%y "$1" 2>/dev/null || true)" = "$before" ] || return 0
    sleep 0.01
  done
}

@test "a report survives kill -9: at twenty moments the last one is whole, valid and not older than a period" {
  local due kills=0 reports=0 written steps age
  export OFFLOAD_TEST_RECORD_MS=20 OFFLOAD_METRICS=killed.prom
  for i in $(seq 20); do
    rm -f killed.json killed.prom
    endless &
    local pid=$!
    # The first kills come before there is anything to write, or while it is written for the first time.
    if [ "$i" -gt 4 ]; then
      while [ ! -e killed.json ] && kill -0 $pid; do sleep 0.01; done
    fi
    sleep "0.$((RANDOM % 2))$((RANDOM % 10))$((RANDOM % 10))"
    # What was done two reports before the kill is in the last one.
    due=0
    if [ "$i" -gt 4 ]; then
      due=$(grep -c '^step' steps.out || true)
      rewritten killed.json && rewritten killed.json
    fi
    kill -9 $pid
    wait $pid || true
    kills=$((kills + 1))
    [ -e killed.json ] || continue
    reports=$((reports + 1))
    valid killed.json
    [ "$(jq '.final' killed.json)" = false ]
    steps=$(jq '.totals.steps' killed.json)
    [ "$steps" -ge "$due" ] || { echo "$due steps were printed two reports before the kill, the report has $steps" && return 1; }
    python3 "$ROOT/tests/lib/prometheus.py" killed.prom >metrics.json
    [ "$(jq '.offload_running.samples[0].value' metrics.json)" = 1 ]
    written=$(date -d "$(jq -r .written killed.json)" +%s%N)
    age=$((($(date +%s%N) - written) / 1000000))
    [ "$age" -lt 5000 ] || { echo "the report was $age ms old" && return 1; }
  done
  [ "$kills" -eq 20 ]
  [ "$reports" -ge 16 ]
  [ "$(jq '.totals.moved_bytes' killed.json)" -gt 0 ] # the last run was at work
  [ "$(find . -name '*.tmp' | wc -l)" -eq 0 ]         # nothing half written is left
}

@test "without a file to write there is no recorder, with one it is a thread, and none before the first step" {
  threads() { OFFLOAD_REPORT=$1 OFFLOAD_METRICS=$2 LD_PRELOAD=$LIBOFFLOAD "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 1000000 >/dev/null 2>&1 & }
  names() { cat /proc/$!/task/*/comm 2>/dev/null || true; }
  wait_for() { for _ in $(seq 200); do names | grep -qx "$1" && return 0 || sleep 0.05; done; }
  threads '' ''
  wait_for offload-step # which comes with the second step
  names >none
  kill -9 $!
  threads report.json ''
  wait_for offload-step
  names >report
  kill -9 $!
  threads '' m.prom
  wait_for offload-step
  names >metrics
  kill -9 $!
  for file in none report metrics; do grep -qx offload-step $file; done
  run -1 grep -x offload-record none
  grep -qx offload-record report
  grep -qx offload-record metrics
}

@test "the report's memory series is bounded, in order, and shows state on the host and the device's memory" {
  plain default --steps 40
  OFFLOAD_TEST_RECORD_MS=1 offloaded --steps 40
  assert_done cpu
  assert_same default
  valid report.json
  expect '.final == true' "the report at exit is the final one"
  expect '.memory.samples | length >= 3 and length <= 512' "a bounded number of samples"
  expect '.memory.samples | [.[].time_ns] | . == (sort)' "samples in the order of time"
  expect '.memory.device_bytes == 4294967296' "the device's memory"
  expect '[.memory.samples[] | select(.host_bytes > 0 and .state_bytes >= .host_bytes and .device_used_bytes > 0)] | length >= 1' \
    "state on the host, less than there is of it"
  expect '([.memory.samples[].host_bytes] | max) == .totals.moved_bytes_peak' "the peak among the samples"
}

@test "a step of two ways is told so by the metrics and among the ranks, which have its last step and a whole clause of why" {
  export OFFLOAD_METRICS=m.prom OFFLOAD_PIECE=2MiB
  SMALL=()
  offloaded --steps 6
  assert_done cpu
  expect '.totals.elements_direct > 0 and .totals.steps == 6' "a part stays on the device"
  expect '.node.ranks[0] | .way == "cpu+direct" and .steps == 6' "the rank's way and its steps"
  expect '.node.ranks[0].note as $n | .reasons | map(startswith($n | rtrimstr("..."))) | any' "why not all moves"
  [[ $(report '.node.ranks[0].note') == *"with other memory..." ]]
  [ "$(metric way '[.samples[] | select(.value == 1).labels.way] | join("+")')" = '"cpu+direct"' ]
  [ "$(metric way '[.samples[].labels.function] | unique')" = "$(report '[.functions[].name] | unique')" ]
}

@test "OFFLOAD_METRICS is Prometheus text with every counter of the report, and replaced while the program runs" {
  plain twenty --steps 20
  export OFFLOAD_TEST_RECORD_MS=5 OFFLOAD_METRICS=m.%p.prom LOCAL_RANK=3 LOCAL_WORLD_SIZE=4
  offloaded --steps 20
  assert_done cpu
  assert_same twenty
  metrics=m.$(report .pid).prom
  [ "$(metric running)" = 0 ]
  [ "$(metric link_bytes_down_total)" = "$(report .totals.link_bytes_down)" ]
  [ "$(metric link_bytes_down_total '.samples[0].labels.local_rank')" = '"3"' ]
  [ "$(metric link_bytes_down_total '.samples[0].labels.device')" = '"0"' ]
  [ "$(metric steps_total)" = 20 ]
  [ "$(metric moved_bytes_peak .type)" = '"gauge"' ]
  [ "$(metric moved_bytes_peak)" = "$(report .totals.moved_bytes_peak)" ]
  [ "$(metric way '[.samples[] | select(.value == 1).labels.way] | join("+")')" = "\"$(report '.node.ranks[0].way')\"" ]
  [ "$(metric function_launches_total '[.samples[] | select(.labels.way == "cpu")][0].value')" = "$(report .functions[0].launches_cpu)" ]
  # None of the report's counters is missing, seconds where it has nanoseconds.
  python3 "$ROOT/tests/lib/prometheus.py" "$metrics" | jq -r keys[] >names
  report '.totals | keys[]' | while read -r name; do
    grep -qxE "offload_(${name%_ns}_seconds_total|${name}(_total)?)" names || { echo "no metric of $name" && return 1; }
  done
  [ "$(metric cpu_seconds_total '.samples[0].value * 1e9 | round')" = "$(report .totals.cpu_ns)" ]
  [ "$(find . -name '*.tmp' | wc -l)" -eq 0 ]
}

@test "metrics and reports that can't be written are told once, and the program runs on" {
  plain twenty --steps 20
  OFFLOAD_TEST_RECORD_MS=5 OFFLOAD_METRICS=/nowhere/m.prom offloaded --steps 20
  assert_done cpu
  assert_same twenty
  [ "$(grep -c 'OFFLOAD_METRICS=/nowhere/m.prom could not be written (No such file or directory): name a file' with.err)" -eq 1 ]
}

@test "lines of several ranks carry the rank, under every launcher's variables, and those of one rank don't" {
  lines() { env "$@" OFFLOAD_REPORT= LD_PRELOAD="$LIBOFFLOAD" "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 3 2>&1 >/dev/null | grep -c "$prefix" || true; }
  prefix='^liboffload\[2\]: .* of optimizer state was on the host'
  [ "$(lines LOCAL_RANK=2 LOCAL_WORLD_SIZE=4)" -eq 1 ]
  [ "$(lines OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4)" -eq 1 ]
  [ "$(lines MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4)" -eq 1 ]
  [ "$(lines SLURM_LOCALID=2 SLURM_STEP_TASKS_PER_NODE=4)" -eq 1 ]
  [ "$(lines MV2_COMM_WORLD_LOCAL_RANK=2 MV2_COMM_WORLD_LOCAL_SIZE=4)" -eq 1 ]
  prefix='^liboffload: .* of optimizer state was on the host'
  [ "$(lines LOCAL_RANK=0 LOCAL_WORLD_SIZE=1)" -eq 1 ]
  [ "$(lines A=b)" -eq 1 ]
}
