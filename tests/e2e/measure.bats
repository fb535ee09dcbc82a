#!/usr/bin/env bats
# Measuring the machine: when offload-probe is started, what of it is kept and for whom, and that the program meets nothing of it.
# On a simulated GPU the rates mean nothing, but are rates.
bats_require_minimum_version 1.5.0
load ../lib/e2e

WATCHER=$BUILD/test/measure/watcher
PROBE=$BUILD/offload-probe

# A copy of the library beside a probe of the test's: one that notes each start, or whatever `probe_is` makes it.
setup_file() {
  export FOLDER=$BATS_FILE_TMPDIR/lib
  mkdir "$FOLDER"
  cp "$LIBOFFLOAD" "$FOLDER/liboffload.so"
  cp "$(dirname "$LIBOFFLOAD")/liboffload-adam.so" "$FOLDER"
}
setup() {
  unset OFFLOAD_RATES
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache STARTS=$BATS_TEST_TMPDIR/starts GPUSIM_GRANULARITY=2MiB GPUSIM_MEMORY=1GiB
  KEPT=$XDG_CACHE_HOME/liboffload
  : >"$STARTS"
  # shellcheck disable=SC2016 # the probe's own
  probe_is 'echo "$*" >>"$STARTS"; GPUSIM_REPORT= '"$PROBE"' "$@"; status=$?; : >"$STARTS.done"; exit $status'
}

# probe_is TEXT: the probe beside the copy is this shell script.
probe_is() {
  printf '#!/bin/sh\n%s\n' "$1" >"$FOLDER/offload-probe"
  chmod +x "$FOLDER/offload-probe"
}

# watch ARGS...: the watcher under the copy; what it saw in $BATS_TEST_TMPDIR/seen, its report as `report` asks.
watch() {
  OFFLOAD_REPORT=$BATS_TEST_TMPDIR/report.json LD_PRELOAD=$FOLDER/liboffload.so "$SIM" "$WATCHER" "$@" >"$BATS_TEST_TMPDIR/seen" \
    2>"$BATS_TEST_TMPDIR/with.err"
}

# measured: the same until the probe has ended, at most 20 seconds.
measured() {
  rm -f "$STARTS.done"
  watch until "$STARTS.done" 20000
}
# wanted: the file that this boot, driver and GPU get: its name is the probe's own, asked once in a cache of its own.
wanted() {
  [ -s "$BATS_FILE_TMPDIR/name" ] ||
    { XDG_CACHE_HOME=$BATS_FILE_TMPDIR/named "$SIM" "$PROBE" --cached >"$BATS_FILE_TMPDIR/rates" &&
      basename -a "$BATS_FILE_TMPDIR"/named/liboffload/rates-*[0-9a-f] | grep -v lock >"$BATS_FILE_TMPDIR/name"; }
  echo "$KEPT/$(cat "$BATS_FILE_TMPDIR/name")"
}
# ready: the cache has them already.
ready() {
  wanted >/dev/null
  mkdir -p "$KEPT"
  cp "$BATS_FILE_TMPDIR/rates" "$(wanted)"
}
starts() { grep -c . "$STARTS" || true; }
source_is() { expect ".rates.source == \"$1\"" "rates that are $1"; }

@test "the first range of a device starts a measurement that the program's wait, signals and descriptors don't show" {
  measured
  [ "$(starts)" -eq 1 ]
  source_is measured
  [ "$(cat "$BATS_TEST_TMPDIR/seen")" = "looked yes, signals 0, children 0, descriptors changed 0" ]
  expect '.rates | .up > 0 and .down > 0 and .up_both > 0 and .kernel_read > 0 and .device > 0 and .dram > 0 and .dram_thread > 0 and
    .cpu_elements > 0 and .launch > 0 and .why == null' "every rate but the drives'"
  expect '.rates.charged_memlock == "no" and .rates.charged_available != "unknown"' "what host pages are charged to"
  [ "$(report .rates.path)" = "$(wanted)" ]
  [ "$(stat -c %a "$KEPT" "$(wanted)" | paste -sd,)" = 700,600 ]
  [ -z "$(find "$KEPT" -name '*.tmp')" ]
}

@test "nothing is started before an allocation becomes a range, nor where nothing would be chosen by rates" {
  export OFFLOAD_MIN_ALLOCATION=64MiB
  watch until - 300
  [ "$(starts)" -eq 0 ]
  expect '.rates == null' "no rates of a program without ranges"
  unset OFFLOAD_MIN_ALLOCATION
  OFFLOAD_STEP=stream watch until - 300
  [ "$(starts)" -eq 0 ]
  source_is assumed
  expect '.rates.why | contains("OFFLOAD_STEP")' "the reason why rates are assumed"
}

@test "rates that are kept are taken without a measurement" {
  ready
  watch until - 300
  [ "$(starts)" -eq 0 ]
  source_is measured
  [ "$(report .rates.path)" = "$(wanted)" ]
}

@test "another boot and another driver are measured anew" {
  export OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/machine
  mkdir -p "$OFFLOAD_SYSROOT"/{proc/sys/kernel/random,sys/module/nvidia}
  echo 11111111-2222-3333-4444-555555555555 >"$OFFLOAD_SYSROOT/proc/sys/kernel/random/boot_id"
  ready
  measured
  [ "$(starts)" -eq 1 ]
  source_is measured
  [[ $(report .rates.path) == "$KEPT/rates-11111111-"* ]]
  grep -q 'boot 11111111-2222-3333-4444-555555555555, driver CUDA 13.0' "$(report .rates.path)"
  watch until - 300
  [ "$(starts)" -eq 1 ]
  echo 999.1 >"$OFFLOAD_SYSROOT/sys/module/nvidia/version"
  measured
  [ "$(starts)" -eq 2 ]
  grep -q 'driver 999.1,' "$(report .rates.path)"
}

@test "processes that want to know at the same time measure once" {
  local i pids=()
  wanted >/dev/null
  for i in 1 2 3; do
    env STARTS="$BATS_TEST_TMPDIR/starts.$i" OFFLOAD_REPORT="$BATS_TEST_TMPDIR/report.$i.json" LD_PRELOAD="$FOLDER/liboffload.so" \
      "$SIM" "$WATCHER" until "$BATS_TEST_TMPDIR/starts.$i.done" 20000 >"$BATS_TEST_TMPDIR/seen.$i" &
    pids+=($!)
  done
  wait "${pids[@]}"
  [ "$(cat "$STARTS".{1,2,3} | wc -l)" -eq 3 ]
  jq -e '.rates.source == "measured"' "$BATS_TEST_TMPDIR"/report.{1,2,3}.json
  # What is measured twice differs.
  [ "$(jq -c .rates "$BATS_TEST_TMPDIR"/report.{1,2,3}.json | sort -u | wc -l)" -eq 1 ]
  grep -q 'signals 0, children 0, descriptors changed 0' "$BATS_TEST_TMPDIR"/seen.1
}

# left ID: whether a process of this number still runs.
left() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:.*Z' "/proc/$1/status"; }
# slow: a probe that tells its number and takes its time.
slow() {
  # shellcheck disable=SC2016
  probe_is 'echo $$ $PPID >"$STARTS"; exec sleep 50'
}
gone() {
  local probe guard i
  read -r probe guard <"$STARTS"
  for i in {1..50}; do
    left "$probe" || left "$guard" || return 0
    sleep 0.1
  done
  echo "probe $probe or its guard $guard is left"
  return 1
}

@test "a job that is killed leaves neither probe nor guard" {
  slow
  LD_PRELOAD=$FOLDER/liboffload.so "$SIM" "$WATCHER" on >"$BATS_TEST_TMPDIR/seen" &
  local job=$! i probe
  for i in {1..100}; do
    [ -s "$STARTS" ] && break
    sleep 0.1
  done
  read -r probe _ <"$STARTS"
  left "$probe"
  kill -9 "$job"
  gone
}

@test "a job that ends before its measurement leaves neither probe nor guard, and waits for none" {
  slow
  SECONDS=0
  watch until "$STARTS" 5000
  sleep 0.2
  [ "$SECONDS" -lt 10 ]
  [ -s "$STARTS" ]
  gone
  source_is assumed
}

@test "without a home, or where nothing can be written, what is measured serves the process alone" {
  XDG_CACHE_HOME='' HOME='' measured
  [ "$(starts)" -eq 1 ]
  source_is measured
  expect '.rates.path == null' "no file"
  XDG_CACHE_HOME=/proc/none measured
  [ "$(starts)" -eq 2 ]
  source_is measured
  expect '.rates.path == null' "no file"
}

@test "a file that is damaged, or another machine's under this one's name, is measured anew and replaced" {
  ready
  sed -i 's/^up .*/up many/' "$(wanted)"
  measured
  [ "$(starts)" -eq 1 ]
  source_is measured
  run ! grep -q many "$(wanted)"
  sed -i '2s/boot [0-9a-f]*/boot 99999999/' "$(wanted)"
  measured
  [ "$(starts)" -eq 2 ]
  run ! grep -q 99999999 "$(wanted)"
}

@test "rates that steps disagree with are measured again, once in a process" {
  ready
  sed -i 's/e9$/e13/' "$(wanted)"
  OFFLOAD_TEST_CHOOSE_FROM=0 GPUSIM_GRANULARITY=16KiB LIBOFFLOAD=$FOLDER/liboffload.so offloaded --steps 300
  assert_done cpu
  [ "$(cat "$STARTS")" = "--gpu 0000:01:00.0 --ranks 1 --again" ]
  source_is measured
}

@test "OFFLOAD_RATES is taken as it is, and a bad one is named with line and remedy while the job runs on" {
  printf 'up 7e9 # told\n' >"$BATS_TEST_TMPDIR/told"
  OFFLOAD_RATES=$BATS_TEST_TMPDIR/told watch until - 100
  source_is told
  expect '.rates.up == 7000000000 and .rates.down == 25000000000' "the file's rate, and the assumed one for what it leaves out"
  printf 'up 7e9\nsideways 3\n' >"$BATS_TEST_TMPDIR/told"
  OFFLOAD_RATES=$BATS_TEST_TMPDIR/told watch until - 100
  [ "$(grep -c "OFFLOAD_RATES=$BATS_TEST_TMPDIR/told: line 2: \"sideways\" is no rate" "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
  source_is assumed
  grep -q signals "$BATS_TEST_TMPDIR/seen"
  [ "$(starts)" -eq 0 ]
}

@test "where the probe is missing or fails, rates are assumed and the report says why" {
  rm "$FOLDER/offload-probe"
  watch until - 1500
  source_is assumed
  expect '.rates.why | contains("offload-probe is missing: put it beside liboffload.so")' "the reason"
  probe_is 'echo "no luck today" >&2; exit 1'
  watch until - 1500
  expect '.rates.why | contains("no luck today")' "the probe's own words"
  probe_is 'kill -SEGV $$'
  watch until - 1500
  expect '.rates.why | contains("status 139")' "the signal that ended it"
  [ "$(cat "$BATS_TEST_TMPDIR/seen")" = "looked yes, signals 0, children 0, descriptors changed 0" ]
}

@test "offload bench shows what was measured and keeps it, or writes a file that OFFLOAD_RATES takes" {
  run -0 "$SIM" "$BUILD/offload" bench
  [[ $output == *"up "*"GB/s"*"MemAvailable"*"A step of 1e9 parameters"*"bound by"*"Kept in $(wanted)"* ]]
  watch until - 100
  [ "$(starts)" -eq 0 ]
  source_is measured
  mkdir "$BATS_TEST_TMPDIR/drive"
  "$SIM" "$BUILD/offload" bench --json --nvme "$BATS_TEST_TMPDIR/drive" --rates "$BATS_TEST_TMPDIR/file" >"$BATS_TEST_TMPDIR/bench.json"
  jq -e '.rates | .source == "measured" and .drive_read > 0 and .drive_write > 0' "$BATS_TEST_TMPDIR/bench.json"
  [ -z "$(ls -A "$BATS_TEST_TMPDIR/drive")" ]
  OFFLOAD_RATES=$BATS_TEST_TMPDIR/file watch until - 100
  source_is told
  [ "$(report .rates.drive_read)" = "$(jq .rates.drive_read "$BATS_TEST_TMPDIR/bench.json")" ]
}

@test "offload bench and the probe name what is wrong" {
  run -1 "$SIM" "$BUILD/offload" bench --gpu 7
  [[ $output == "offload bench: no GPU 7 here, where there is one: name it 0, or by its PCI bus id"* ]]
  run -1 env GPUSIM_DEVICES=3 "$SIM" "$BUILD/offload" bench --gpu 3
  [[ $output == "offload bench: no GPU 3 here, where there are 3: name one by number, 0 to 2, or by PCI bus id"* ]]
  run -1 "$SIM" "$BUILD/offload" bench --gpu 0x
  [[ $output == "offload bench: no GPU 0x here"* ]]
  run -1 env -u LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES= "$BUILD/offload" bench
  [[ ${lines[0]} == "offload bench: no NVIDIA driver"* || ${lines[0]} == "offload bench: "*"no GPU"* ]]
  [[ ${lines[1]} == "offload bench: nothing was measured; \`offload check\` "*"remedy" ]]
  # before anything is measured, and nothing is kept
  run -2 "$SIM" "$BUILD/offload" bench --nvme "$BATS_TEST_TMPDIR:/nowhere"
  [[ $output == "offload bench: --nvme: "*"/nowhere"* ]]
  [ "${#lines[@]}" -eq 1 ]
  [ ! -e "$(wanted)" ]
  run -2 "$SIM" "$BUILD/offload" bench --nvme :
  [[ $output == "offload bench: --nvme ':' names no directory"* ]]
  run -2 "$SIM" "$BUILD/offload" bench --ranks none
  [[ $output == *"--ranks=none: write how many"* ]]
  run -2 "$SIM" "$BUILD/offload" bench --ranks=-1
  [[ $output == *"--ranks=-1: write how many"* ]]
  run -1 "$SIM" "$BUILD/offload" bench --rates /proc/none/file
  [[ $output == *"/proc/none/file can't be written"* ]]
  run -1 env -u LD_LIBRARY_PATH "$PROBE"
  [[ $output == *"no NVIDIA driver"* || $output == *"no GPU"* ]]
  run -2 "$PROBE" --sideways
}
