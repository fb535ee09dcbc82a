#!/usr/bin/env bats
# `make bench-nvme`: steps of state on drives through the step's own rooms, and what the bench writes. Nothing is asserted about speed.
load ../lib/e2e

MIB=$((1 << 20))

# Drives with frames for 1 MiB, an eighth of the state.
setup() {
  export OFFLOAD_LOG=quiet OFFLOAD_NVME_STAGING=1MiB GPUSIM_GRANULARITY=64KiB
  directory=$BUILD/$BATS_SUITE_TEST_NUMBER.drives
  mkdir -p "$directory/one" "$directory/two"
  run steps drives 2
  [[ $output != *"name a directory of a local"* ]] || skip "the build's folder is on a file system that can't hold state"
}

teardown() { rm -rf "$directory"; }

# steps STATE N: N steps of 8 MiB of state in units of 64 KiB.
steps() {
  "$BUILD/drive-bench" --state "$1" --bytes $((8 * MIB)) --unit 65536 --steps "$2" --directory "${3:-$directory/one}"
}

hash_of() { jq -r .hash <<<"$1"; }

@test "steps of state on drives leave the numbers of steps in memory, and all state passes the drives twice a step" {
  memory=$(steps memory 3)
  fewer=$(steps memory 2)
  [ "$(hash_of "$memory")" != "$(hash_of "$fewer")" ]
  for rung in defer coop plain threads; do
    drives=$(OFFLOAD_TEST_NVME_RUNG=$rung steps drives 3)
    echo "$drives"
    jq -e --arg rung "$rung" '.rung == $rung' <<<"$drives"
    # the frames hold an eighth, from which the next step begins
    jq -e ".written_bytes >= 3 * 7 * $MIB and .written_bytes <= 3 * 8 * $MIB" <<<"$drives"
    jq -e ".read_bytes >= (8 + 2 * 7) * $MIB and .read_bytes <= 3 * 8 * $MIB" <<<"$drives"
    [ "$(hash_of "$drives")" = "$(hash_of "$memory")" ]
  done
  drives=$(steps drives 3 "$directory/one:$directory/two")
  [ "$(hash_of "$drives")" = "$(hash_of "$memory")" ]
  [ -z "$(find "$directory" -type f)" ]
}

@test "the bench of steps ends with a sentence when a drive reads wrong bytes, fails, or takes no state" {
  for fault in read_flip=300 read_eio=300; do
    run env OFFLOAD_TEST_NVME=$fault "$BUILD/drive-bench" --state drives --bytes $((8 * MIB)) --unit 65536 \
      --directory "$directory/one"
    echo "$fault: $status $output"
    [ "$status" -eq 1 ]
    [[ $output == *"drive-bench: "*"$directory/one"* ]]
  done
  run steps drives 1 /proc
  [ "$status" -eq 1 ]
  [[ $output == *"drive-bench: frames: OFFLOAD_NVME:"*/proc* ]]
  run "$BUILD/drive-bench" --state drives --bytes 65536 --unit 65536
  [ "$status" -eq 2 ]
}

@test "bench-nvme writes a row for each mix and the step, and leaves no file" {
  out=$BATS_TEST_TMPDIR/bench_nvme.json
  unset OFFLOAD_NVME_STAGING GPUSIM_GRANULARITY
  python3 "$ROOT/nvme/bench_nvme.py" --build "$BUILD" --directory "$directory/one" --out "$out" --size $((4 * MIB)) --depth 4 \
    --seconds 1 --pairs 1 --rounds 1 --step-bytes $((64 * MIB))
  jq -e '[.rows[].mix] == ["read", "write", "half"]' "$out"
  jq -e '[.rows[] | .ours > 0 and .fio > 0 and .ratio == .ours / .fio and .pairs == 1] | all' "$out"
  jq -e '.step | .seconds > 0 and .bound == ([.fio_seconds, .cpu_seconds] | max) and .fio_seconds > 0 and .cpu_seconds > 0' "$out"
  jq -e ".step | .ratio == .seconds / .bound and .moved_bytes > 64 * $MIB" "$out"
  [ -z "$(find "$directory" -type f)" ]
  run python3 "$ROOT/nvme/bench_nvme.py" --build "$BUILD" --step-bytes 5
  [ "$status" -eq 1 ]
  [[ $output == *NVME_STEP_BYTES* ]]
}
