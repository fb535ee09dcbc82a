#!/usr/bin/env bats
# State on drives: charlm whose host may hold none, a quarter or half of its state, the rest on loop file systems, compared bit for
# bit with the program alone; and drives that fail. Every comparison first asserts from the report that state was written to the
# drive, read from there and stepped.
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

export OFFLOAD_PIECE=16KiB
# 16 blocks, 8 MiB of state: more than staging holds, so that each step reads.
SMALL=(--segment-scale 64 --tables 65536 --table-count 4 --hidden 16 --batch 16)
STATE_BYTES=$((8 << 20))
STEPS=6
RUNGS=(defer coop plain threads)

setup() {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
}
teardown() { loop_unmount; }

# on_drives MODE PERCENT ARGS...: the program under the preload, with this share of the state in host memory.
on_drives() {
  local mode=$1 percent=$2 directories
  shift 2
  directories=$(IFS=:; echo "${LOOP_DIRECTORIES[*]}")
  [ "$mode" = cpu ] || local -x OFFLOAD_THREADS # of no use there
  OFFLOAD_HOST_MEMORY=$((STATE_BYTES * percent / 100)) OFFLOAD_NVME=$directories OFFLOAD_STEP=$mode \
    OFFLOAD_NVME_STAGING=${STAGING:-2304KiB} offloaded "$@"
}

# assert_from_drives MODE PERCENT: the drive was written and read, elements were stepped in this mode whose state came from it, and the
# host held no more than its share.
assert_from_drives() {
  assert_ended || return 1
  expect '.totals.drive_read_bytes > 0 and .totals.drive_written_bytes > 0 and .totals.elements_drive > 0' \
    "state stepped from drives" || return 1
  expect "[.functions[] | select(.launches_$1 > 0)] | length > 0" "launches carried out by $1" || return 1
  expect ".totals.moved_bytes_peak <= $((STATE_BYTES * $2 / 100))" "no more than $2 % on the host"
}

# same_from_drives MODE PERCENT: done, then the same as the program alone.
same_from_drives() {
  plain default --steps "$STEPS"
  on_drives "$1" "$2" --steps "$STEPS"
  assert_from_drives "$1" "$2" || return 1
  assert_same default || return 1
  assert_clean
}

@test "with 0, 25 and 50 % of the state in host memory cpu gives the program's numbers, and all the rest is on the drive" {
  loop_mount 1 64M
  for percent in 0 25 50; do
    same_from_drives cpu "$percent"
    expect ".totals.drive_bytes_peak == $((STATE_BYTES * (100 - percent) / 100))" "all of the rest on the drive"
    expect ".totals.moved_bytes_peak == $((STATE_BYTES * percent / 100))" "the host's share is used"
  done
}

@test "with 0, 25 and 50 % of the state in host memory stream gives the program's numbers, and all the rest is on the drive" {
  loop_mount 1 64M
  for percent in 0 25 50; do
    same_from_drives stream "$percent"
    expect ".totals.drive_bytes_peak == $((STATE_BYTES * (100 - percent) / 100))" "all of the rest on the drive"
    expect ".totals.moved_bytes_peak == $((STATE_BYTES * percent / 100))" "the host's share is used"
  done
}

@test "two directories are both used, and cpu and stream give the program's numbers" {
  loop_mount 2 64M
  for mode in cpu stream; do
    same_from_drives "$mode" 25
  done
  for directory in 0 1; do # which it tells by failing there alone
    OFFLOAD_TEST_NVME=directory=$directory,write_eio=100+ on_drives cpu 0 --steps "$STEPS"
    assert_ended
    grep -q "the file in ${LOOP_DIRECTORIES[directory]}: Input/output error" "$BATS_TEST_TMPDIR/with.err"
    assert_same default
  done
}

@test "every rung of the ladder gives the program's numbers" {
  loop_mount 2 64M
  for i in "${!RUNGS[@]}"; do
    modes=(cpu stream)
    # one a rung, and the other one tomorrow
    [ -n "${TESTED_WHOLE-}" ] || modes=("${modes[($(date +%j | sed 's/^0*//') + i) % 2]}")
    for mode in "${modes[@]}"; do
      OFFLOAD_TEST_NVME_RUNG=${RUNGS[i]} same_from_drives "$mode" 25
    done
  done
}

@test "what a step used last the next one uses first, without reading it again" {
  loop_mount 1 64M
  for mode in cpu stream; do
    same_from_drives "$mode" 0
    # A frame's worth for each element but those that were still in staging: a fifth of the state is.
    expect '.totals.drive_read_bytes - .totals.drive_served_bytes < .totals.elements_drive * 8 * 0.9' "less read than stepped"
  done
}

@test "a checkpoint is written from the drive, state stays there, and training resumes to the same numbers" {
  loop_mount 1 64M
  plain whole --steps 8
  on_drives cpu 25 --steps 5 --save "$BATS_TEST_TMPDIR/ckpt"
  assert_from_drives cpu 25
  expect '.totals.drive_served_bytes > 0 and .totals.drive_faults == 0' "bytes served, nothing brought in"
  on_drives stream 25 --steps 8 --resume "$BATS_TEST_TMPDIR/ckpt"
  assert_from_drives stream 25
  [ "$(jq -c '[.params, .state]' "$BATS_TEST_TMPDIR/with.json")" = "$(jq -c '[.params, .state]' "$BATS_FILE_TMPDIR/whole.json")" ]
}

@test "state on drives that is freed and made anew gives the program's numbers" {
  loop_mount 1 64M
  plain anew --steps 9 --free-state-at 6
  for mode in cpu stream; do
    on_drives "$mode" 25 --steps 9 --free-state-at 6
    assert_from_drives "$mode" 25
    expect '.totals.drive_bytes == 0' "nothing held at the end"
    assert_same anew
    assert_clean
  done
}

@test "a kernel that uses state on drives has it brought in, each time it does" {
  loop_mount 1 64M
  plain averaged --steps 12 --ema-every 5
  for mode in cpu stream; do
    on_drives "$mode" 25 --steps 12 --ema-every 5
    assert_from_drives "$mode" 25
    expect '.totals.drive_faults > 0 and .totals.drive_fault_bytes > 0 and .totals.drive_fault_ns > 0' "pieces brought in"
    expect '.totals.drive_fault_bytes > .totals.drive_bytes_peak' "more than once"
    assert_same averaged
    assert_clean
  done
}

@test "steps that found_inf leaves out change nothing on drives" {
  loop_mount 1 64M
  plain left_out --steps 7 --found-inf-at 5
  for mode in cpu stream; do
    on_drives "$mode" 25 --steps 7 --found-inf-at 5
    assert_from_drives "$mode" 25
    assert_same left_out
    assert_clean
  done
}

@test "writes that fail keep the values in host memory, no more go, and the numbers are the program's" {
  loop_mount 1 64M
  plain default --steps "$STEPS"
  # in the first move to the drive, and in a step
  for fault in write_eio=40 write_enospc=40+ write_eio=900 write_enospc=900+; do
    for mode in cpu stream; do
      OFFLOAD_TEST_NVME=$fault on_drives "$mode" 25 --steps "$STEPS"
      assert_ended
      expect '.totals.drive_write_failures > 0 and .totals.drive_written_bytes > 0' "a failed write"
      expect '.totals.drive_bytes == 0 and .totals.drive_faults > 0' "what was there is brought in"
      grep -q "write at byte [0-9]* of the file in ${LOOP_DIRECTORIES[0]}: .*; the values are kept in host memory" "$BATS_TEST_TMPDIR/with.err"
      grep -q "no more state goes to drives: a write failed" "$BATS_TEST_TMPDIR/with.err"
      assert_same default
      assert_clean
    done
  done
}

@test "no space when the files are made or grow leaves state where it is, and the report says so" {
  loop_mount 1 64M
  plain default --steps "$STEPS"
  for fault in allocate_enospc=1+ allocate_enospc=4+; do
    OFFLOAD_TEST_NVME=$fault on_drives cpu 25 --steps "$STEPS"
    assert_ended
    expect ".totals.drive_bytes_peak < $((STATE_BYTES / 2))" "most of it not on the drive"
    expect "[.reasons[] | select(contains(\"no more space in ${LOOP_DIRECTORIES[0]}: No space left on device\"))] | length == 1" "the reason"
    assert_same default
    assert_clean
  done
}

@test "a file system that fills up takes what it has room for" {
  loop_mount 1 4M
  plain default --steps "$STEPS"
  for mode in cpu stream; do
    on_drives "$mode" 25 --steps "$STEPS"
    assert_from_drives "$mode" 25
    expect '.totals.drive_bytes_peak < 4194304' "no more than there is"
    assert_same default
    assert_clean
  done
}

@test "short transfers, interruptions and a slow drive change nothing" {
  loop_mount 1 64M
  for fault in read_short=300,write_short=500 eintr=400,eagain=900 slow_us=100; do
    OFFLOAD_TEST_NVME=$fault same_from_drives cpu 25
    OFFLOAD_TEST_NVME=$fault same_from_drives stream 0
  done
}

# ends_in_a_step: the program got a CUDA error, and stderr says where it is and what the way back is.
ends_in_a_step() {
  [ "$offloaded_status" -ne 0 ] || return 1
  grep -q "state could not be read back from a drive (.*${LOOP_DIRECTORIES[0]}.*) in the middle of a step; go back to the last checkpoint" \
    "$BATS_TEST_TMPDIR/with.err" || return 1
  expect '.totals.elements_drive > 0 and .totals.drive_read_bytes > 0' "steps from drives before" || return 1
  [ "$(sim .violations)" = 0 ]
}

@test "a failed read ends the job in the middle of a step and names the last checkpoint as the way back" {
  loop_mount 1 64M
  for mode in cpu stream; do
    OFFLOAD_TEST_NVME=read_eio=900 on_drives "$mode" 0 --steps 20
    ends_in_a_step
    grep -q "read at byte [0-9]* of the file in ${LOOP_DIRECTORIES[0]}: Input/output error" "$BATS_TEST_TMPDIR/with.err"
  done
}

@test "wrong bytes are noticed and end the job in the same way" {
  loop_mount 1 64M
  for mode in cpu stream; do
    OFFLOAD_TEST_NVME=read_flip=900 on_drives "$mode" 0 --steps 20
    ends_in_a_step
    grep -q "they are not what was written" "$BATS_TEST_TMPDIR/with.err"
  done
}

@test "a drive that vanishes keeps what is to be written, and ends the job when it is to be read" {
  loop_mount 1 64M
  OFFLOAD_TEST_NVME=read_eio=700+,write_eio=1100+ on_drives cpu 0 --steps 20
  ends_in_a_step
  OFFLOAD_TEST_NVME=write_eio=900+ on_drives cpu 0 --steps "$STEPS"
  plain default --steps "$STEPS"
  assert_ended
  assert_same default
}

@test "a directory that is removed while the job runs changes nothing" {
  loop_mount 1 64M
  plain longer --steps 30
  directory=${LOOP_DIRECTORIES[0]}/mine
  mkdir "$directory"
  LOOP_DIRECTORIES=("$directory")
  OFFLOAD_TEST_NVME=slow_us=100 on_drives cpu 0 --steps 30 &
  job=$!
  sleep 0.7
  rmdir "$directory"
  wait "$job"
  [ ! -e "$directory" ]
  offloaded_status=0
  assert_from_drives cpu 0
  assert_same longer
  assert_clean
}

@test "a directory that isn't there, a file, and a tmpfs are refused by name with the remedy, and the job runs without drives" {
  plain default --steps "$STEPS"
  touch "$BATS_TEST_TMPDIR/a_file"
  for place in "$BATS_TEST_TMPDIR/missing" "$BATS_TEST_TMPDIR/a_file" /dev/shm; do
    LOOP_DIRECTORIES=("$place")
    on_drives cpu 25 --steps "$STEPS"
    assert_ended
    grep -q "no state goes to drives: .*$place" "$BATS_TEST_TMPDIR/with.err"
    expect '.totals.drive_written_bytes == 0 and .totals.moved_bytes_peak > 0' "nothing written"
    assert_same default
  done
}

@test "staging that is too small for a block is told with the least that would do, with which the numbers are the same" {
  loop_mount 1 64M
  plain default --steps "$STEPS"
  STAGING=256KiB on_drives cpu 25 --steps "$STEPS"
  assert_ended
  expect '.totals.elements_drive == 0' "nothing stepped from drives"
  assert_same default
  least=$(sed -n 's/.*set OFFLOAD_NVME_STAGING to at least \([0-9]*[KM]i\)B$/\1/p' "$BATS_TEST_TMPDIR/with.err")
  [ "$(numfmt --from=iec-i "$least")" -gt 262144 ]
  for mode in cpu stream; do
    STAGING=${least}B same_from_drives "$mode" 0
  done
}

@test "OFFLOAD_NVME_LIMIT bounds what lies on drives" {
  loop_mount 1 64M
  for mode in cpu stream; do
    OFFLOAD_NVME_LIMIT=3MiB same_from_drives "$mode" 25
    expect '.totals.drive_bytes_peak == 3145728' "the limit, and no more"
    expect '.reasons | map(test("so is the room on drives .OFFLOAD_NVME_LIMIT")) | any' "what keeps the rest on the device"
  done
}

@test "OFFLOAD_NVME_WEAR_LIMIT stops more state from going, says so, and the numbers stay the same" {
  loop_mount 1 64M
  plain default --steps "$STEPS"
  OFFLOAD_NVME_WEAR_LIMIT=1000000 on_drives cpu 25 --steps "$STEPS"
  assert_ended
  expect '.totals.drive_written_bytes > 1000000' "it was reached"
  grep -q "no more state goes to drives: OFFLOAD_NVME_WEAR_LIMIT is reached" "$BATS_TEST_TMPDIR/with.err"
  assert_same default
  assert_clean
}

@test "pieces that the program's kernel does as well are those in host memory, and the numbers stay the same" {
  loop_mount 1 64M
  OFFLOAD_VERIFY=1 same_from_drives cpu 50
  expect '.totals.verified_pieces > 0 and .totals.unverified_pieces > 0' "both kinds"
}

@test "two processes share a directory, each with files of its own, and leave nothing" {
  loop_mount 1 192M # the probes take some, too
  before=$(loop_free "${LOOP_DIRECTORIES[0]}")
  plain default --steps "$STEPS"
  mkdir "$BATS_TEST_TMPDIR/other"
  (BATS_TEST_TMPDIR=$BATS_TEST_TMPDIR/other && on_drives stream 0 --steps "$STEPS" && assert_from_drives stream 0 && assert_same default) &
  other=$!
  same_from_drives cpu 0
  wait "$other"
  [ "$(loop_free "${LOOP_DIRECTORIES[0]}")" = "$before" ]
  [ -z "$(find "${LOOP_DIRECTORIES[0]}" -mindepth 1 -not -name 'lost+found')" ]
}
