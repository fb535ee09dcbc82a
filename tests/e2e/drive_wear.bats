#!/usr/bin/env bats
# What the drive tier costs its drives, and directories that vanish under it: the report's "drives" object against the counters and
# against what is mounted where, the wear limit in bytes, and a directory that is removed or unmounted while the job runs.
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

export OFFLOAD_PIECE=16KiB
export OFFLOAD_STEP=cpu
export OFFLOAD_HOST_MEMORY=16KiB # a piece: everything else is for drives

setup() {
  reason=$(loop_why_not)
  [[ -z "$reason" || "$BATS_TEST_DESCRIPTION" == without* ]] || skip "$reason"
}
teardown() {
  [ -z "${job-}" ] || kill -KILL "$job" 2>/dev/null || true
  loop_unmount
}

# on_drives ARGS...: the program with its state on the loop file systems.
on_drives() {
  OFFLOAD_NVME=$(IFS=:; echo "${LOOP_DIRECTORIES[*]}") OFFLOAD_NVME_STAGING=1MiB offloaded "$@"
}

# assert_from_drives: state was written to drives and elements were stepped from there, before anything is compared.
assert_from_drives() {
  assert_ended || return 1
  expect '.totals.drive_written_bytes > 0 and .totals.elements_drive > 0' "state stepped from drives"
}

# drive_under DIRECTORY: the disk on which the image of a loop file system lies; "" where that can't be told in this way.
drive_under() {
  local device
  device=$(stat -c '%Hd:%Ld' "$1.image")
  [ -e "/sys/dev/block/$device" ] || return 0
  device=$(realpath "/sys/dev/block/$device")
  [ ! -e "$device/partition" ] || device=$(dirname "$device")
  [ -n "$(find "$device/slaves" -mindepth 1 2>/dev/null)" ] || basename "$device"
}

@test "the report names each directory with the drive under it, its bytes add up, and rates are per step" {
  loop_mount 2 64M
  plain eight --steps 8
  on_drives --steps 8
  assert_from_drives
  expect '.drives.written_bytes == .totals.drive_written_bytes and ([.drives.directories[].written_bytes] | add) == .drives.written_bytes' \
    "the bytes of the directories add up to those that steps wrote"
  expect '[.drives.directories[] | .written_bytes > 0 and (.failed | not)] | all' "each was written"
  expect '.drives | .steps >= 4 and .bytes_per_step > 0 and .steps * .bytes_per_step < .written_bytes and .step_ns > 0' \
    "a rate, without what came to the drives at first"
  expect '.drives.bytes_per_step == ([.drives.directories[].bytes_per_step] | add)' "the rates add up"
  expect '.drives | .block_bytes > 0 and .depth > 0 and .checksum_ns > 0 and .kept_bytes == 0 and .failed_directories == 0 and .wear_limit_reached == false' \
    "what the store is"
  grep -q ' KiB on drives, .* written there; report in ' "$BATS_TEST_TMPDIR/with.err"
  for i in 0 1; do
    [ "$(report ".drives.directories[$i].path")" = "${LOOP_DIRECTORIES[i]}" ]
    drive=$(drive_under "${LOOP_DIRECTORIES[i]}")
    [ -z "$drive" ] || [ "$(report ".drives.directories[$i].device")" = "$drive" ]
  done
  assert_same eight
  assert_clean
}

@test "without drives the report says that there are none" {
  OFFLOAD_HOST_MEMORY=4MiB offloaded --steps 2
  assert_done cpu
  expect '.drives == null and .totals.drive_written_bytes == 0' "no drives"
}

@test "when the wear limit is reached no more state goes to drives, which is said once, and the numbers stay the program's" {
  loop_mount 1 64M
  plain anew --steps 8 --free-state-at 4
  on_drives --steps 8 --free-state-at 4
  assert_from_drives
  assert_same anew
  without=$(report .totals.drive_pieces_out)
  expect '.drives.wear_limit_reached == false' "no limit"
  # What comes to the drive first is less than this, and one step more than the rest.
  OFFLOAD_NVME_WEAR_LIMIT=900kB on_drives --steps 8 --free-state-at 4
  assert_from_drives
  expect '.drives.wear_limit_reached and .drives.written_bytes >= 900000' "the limit is reached"
  expect ".totals.drive_pieces_out > 0 and .totals.drive_pieces_out * 2 <= $without" \
    "the state that was made anew stays off the drive ($without pieces went there without the limit)"
  [ "$(grep -c 'no more state goes to drives: OFFLOAD_NVME_WEAR_LIMIT is reached' "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
  assert_same anew
  assert_clean
}

# job_stops_on_drives ARGS...: starts the program, and stops it (SIGSTOP) once state is on drives.
job_stops_on_drives() {
  OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_NVME_STAGING=512KiB OFFLOAD_REPORT=$BATS_TEST_TMPDIR/report.json \
    GPUSIM_REPORT=$BATS_TEST_TMPDIR/sim.json LD_PRELOAD=$LIBOFFLOAD "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" "$@" \
    --json "$BATS_TEST_TMPDIR/with.json" >"$BATS_TEST_TMPDIR/with.out" 2>"$BATS_TEST_TMPDIR/with.err" 3>&- &
  job=$!
  for ((i = 0; i < 1000; i++)); do
    grep -q 'of optimizer state to drives' "$BATS_TEST_TMPDIR/with.err" && break
    sleep 0.01
  done
  kill -STOP "$job"
  [ -e "/proc/$job/fd" ] && [ ! -e "$BATS_TEST_TMPDIR/with.json" ] || {
    echo "the job was over before anything could vanish"
    return 1
  }
}

# job_goes_on NAME: lets it run to its end; it has read from the drive, and its numbers are those of `plain NAME`.
job_goes_on() {
  kill -CONT "$job"
  offloaded_status=0
  wait "$job" || offloaded_status=$?
  job=
  assert_from_drives || return 1
  expect '.totals.drive_read_bytes > 0 and .drives.failed_directories == 0' "the drive was read" || return 1
  assert_same "$1" || return 1
  assert_clean
}

@test "a directory that is removed while the job runs takes nothing with it: same numbers, no block left" {
  loop_mount 1 64M
  before=$(loop_free "${LOOP_DIRECTORIES[0]}")
  mkdir "${LOOP_DIRECTORIES[0]}/state"
  mount=${LOOP_DIRECTORIES[0]}
  LOOP_DIRECTORIES=("$mount/state")
  plain forty --steps 40
  job_stops_on_drives --steps 40
  rm -rf "$mount/state"
  job_goes_on forty
  [ "$(loop_free "$mount")" = "$before" ]
}

@test "a file system that is unmounted lazily while the job runs stays until it ends: same numbers, its device is free then" {
  loop_mount 1 64M
  image=${LOOP_DIRECTORIES[0]}.image
  plain forty --steps 40
  job_stops_on_drives --steps 40
  umount -l "${LOOP_DIRECTORIES[0]}"
  [ -n "$(losetup -j "$image")" ] # the job has it still
  job_goes_on forty
  for ((i = 0; i < 50; i++)); do
    [ -n "$(losetup -j "$image")" ] || return 0
    sleep 0.1
  done
  losetup -j "$image"
  return 1
}
