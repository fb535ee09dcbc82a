#!/usr/bin/env bats
# What a job with state on drives leaves behind when it is killed, and whether it grows while it runs. Moments are random by a
# seed, which is printed with them. OFFLOAD_TEST_KILLS and OFFLOAD_TEST_FLAT_STEPS: how many (20 and 500).
# bats runs each test in a subshell.
# shellcheck disable=SC2030,SC2031
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

KILLS=${OFFLOAD_TEST_KILLS:-${TESTED_KILLS:-20}}
FLAT_STEPS=${OFFLOAD_TEST_FLAT_STEPS:-${TESTED_FLAT_STEPS:-500}}
export TESTED_KILLS=$KILLS TESTED_FLAT_STEPS=$FLAT_STEPS
unset OFFLOAD_TEST_KILLS OFFLOAD_TEST_FLAT_STEPS

export OFFLOAD_PIECE=16KiB OFFLOAD_NVME_STAGING=512KiB OFFLOAD_HOST_MEMORY=64KiB
PROGRAMS=$BUILD/test/drive_kill
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx

setup() {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  set -o pipefail
  CHILDREN=$BATS_TEST_TMPDIR/children
  loop_mount 1 64M
  DIRECTORY=${LOOP_DIRECTORIES[0]}
  EMPTY=$(loop_free "$DIRECTORY")
}

teardown() {
  end_children
  [ -z "${job-}" ] || kill -9 "$job" 2>/dev/null || true
  loop_unmount
}

# start_job: charlm with state on the drive, to be ended by a signal; its number is in $job.
start_job() {
  OFFLOAD_NVME=$DIRECTORY OFFLOAD_STEP=$1 OFFLOAD_LOG=quiet LD_PRELOAD=$LIBOFFLOAD${FORKER:+:$FORKER} \
    "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 1000000 >"$BATS_TEST_TMPDIR/job.out" 2>&1 3>&- &
  job=$!
}

# kill_job: with signal 9; the job must have lived until then.
kill_job() {
  kill -0 "$job" || { tail -n 5 "$BATS_TEST_TMPDIR/job.out"; return 1; }
  kill -9 "$job"
  wait "$job" 2>/dev/null || [ $? -eq 137 ] || { tail -n 5 "$BATS_TEST_TMPDIR/job.out"; return 1; }
  job=
}

now_us() { echo "${EPOCHREALTIME/[^0-9]/}"; }

# microseconds US: as sleep takes them.
seconds() { printf '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000)); }

# sectors: how many were read from and written to the file system's device so far.
sectors() {
  local device
  device=$(findmnt -no SOURCE "$DIRECTORY")
  awk '{ print $3, $7 }' "/sys/block/${device##*/}/stat"
}

# measure_start MODE: the microseconds after which a job's files hold space, in START_US; random moments are taken from three times
# that, so that some come before the files and most while state goes to and fro.
measure_start() {
  local since
  since=$(now_us)
  start_job "$1"
  while [ "$(loop_free "$DIRECTORY")" = "$EMPTY" ]; do
    kill -0 "$job" || { cat "$BATS_TEST_TMPDIR/job.out"; return 1; }
    sleep 0.01
  done
  START_US=$(($(now_us) - since))
  kill_job
  nothing_left
}

# random BELOW: of the seeded sequence, in $REPLY.
random() { REPLY=$(((RANDOM << 15 | RANDOM) % $1)); }

# nothing_left: no file, and every block and inode is free again. The kernel gives a dead process's requests and files back a
# moment later.
nothing_left() {
  local i now files
  for ((i = 0; i < 200; i++)); do
    now=$(loop_free "$DIRECTORY")
    files=$(find "$DIRECTORY" -mindepth 1 -not -name lost+found)
    if [ "$now" = "$EMPTY" ] && [ -z "$files" ]; then
      return 0
    fi
    sleep 0.05
  done
  echo "blocks and inodes free before: $EMPTY; now: $now; files: ${files:-none}"
  return 1
}

end_children() {
  local child
  [ -e "$CHILDREN" ] || return 0
  while read -r child; do
    kill -9 "$child" 2>/dev/null || true
  done <"$CHILDREN"
  rm -f "$CHILDREN"
}

# kill_often COUNT MODE...: jobs of these modes by turns, each killed at a random moment. Counts those that held space then (HELD).
kill_often() {
  local i count=$1 seed=${SEEDS%% *} moment
  shift
  local modes=("$@")
  measure_start "$1" || return 1
  RANDOM=$seed
  HELD=0
  echo "seed $seed, files after $START_US us"
  for ((i = 0; i < count; i++)); do
    random $((3 * START_US))
    moment=$REPLY
    if [ -n "${FORKER-}" ]; then
      random $((moment + 1))
      export FORKER_AT_US=$((REPLY / 2)),$REPLY FORKER_CHILDREN=$CHILDREN FORKER_PROGRAM=${CHARLM##*/}
    fi
    echo "job $i by ${modes[i % ${#modes[@]}]}: killed after $moment us, forks at ${FORKER_AT_US:-none}"
    start_job "${modes[i % ${#modes[@]}]}"
    sleep "$(seconds "$moment")"
    [ "$(loop_free "$DIRECTORY")" = "$EMPTY" ] || HELD=$((HELD + 1))
    kill_job || return 1
    ${AFTER_KILL:-true} || return 1
    nothing_left || return 1
    end_children
  done
}

# moved_both_ways BEFORE: state was read from the drive and written there.
moved_both_ways() {
  local read_before written_before read_now written_now
  read -r read_before written_before <<<"$1"
  read -r read_now written_now <<<"$(sectors)"
  echo "sectors read: $((read_now - read_before)), written: $((written_now - written_before))"
  [ "$((read_now - read_before))" -gt 1000 ] && [ "$((written_now - written_before))" -gt 1000 ]
}

@test "a job with state on a drive that is killed at any moment leaves no file and no block behind" {
  before=$(sectors)
  kill_often "$KILLS" cpu stream
  echo "$HELD of $KILLS held space"
  [ "$HELD" -ge $((KILLS / 4)) ]
  moved_both_ways "$before"
}

# children_live: those that were forked are there, and have no file of the drive and no ring open.
children_live() {
  local child open
  [ -e "$CHILDREN" ] || return 0
  while read -r child; do
    kill -0 "$child" || { echo "child $child is gone"; return 1; }
    SEEN=$((SEEN + 1))
    open=$(find "/proc/$child/fd" -printf '%l\n' | grep -e "^$DIRECTORY" -e io_uring) || continue
    echo "child $child has open: $open"
    return 1
  done <"$CHILDREN"
}

@test "children that live on after the job was killed hold no space on its drive" {
  SEEN=0
  local count=$(((KILLS + 1) / 2))
  FORKER=$PROGRAMS/libforker.so AFTER_KILL=children_live kill_often "$count" stream cpu
  echo "$HELD of $count held space, $SEEN children lived"
  [ "$HELD" -ge $((count / 4)) ] && [ "$SEEN" -ge $((count / 2)) ]
}

# flat NAME MORE: this number of the program's second look is at most MORE above the first one.
flat() {
  local looks
  read -r -a looks <<<"$(sed -n "s/^at .* $1 \([0-9]*\).*/\1/p" "$BATS_TEST_TMPDIR/with.out" | tr '\n' ' ')"
  echo "$1: ${looks[*]}"
  [ "${#looks[@]}" -eq 2 ] && [ "${looks[1]}" -le $((looks[0] + $2)) ]
}

@test "a job of many steps with state on a drive holds no more descriptors, threads or memory at its end than after 100 steps" {
  export GPUSIM_ENGINE=native # else kernels are translated, which takes 0.4 MiB, whenever they get hot
  "$SIM" "$PROGRAMS/flat" "$KERNEL" flat "$FLAT_STEPS" | grep '^trained' >"$BATS_TEST_TMPDIR/without.out"
  for mode in cpu stream; do
    OFFLOAD_NVME=$DIRECTORY OFFLOAD_NVME_STAGING=1280KiB OFFLOAD_STEP=$mode under_preload "$SIM" "$PROGRAMS/flat" "$KERNEL" flat "$FLAT_STEPS"
    assert_ended
    expect ".totals.steps >= $FLAT_STEPS - 1 and .totals.drive_read_bytes > 10000 * $FLAT_STEPS and .totals.drive_written_bytes > 10000 * $FLAT_STEPS and
      .totals.elements_drive > 1000 * $FLAT_STEPS" "steps whose state came from the drive"
    diff "$BATS_TEST_TMPDIR/without.out" <(grep '^trained' "$BATS_TEST_TMPDIR/with.out")
    flat descriptors 0
    flat threads 0
    flat locked_kib 0
    flat pinned_kib 0
    flat allocated 49152 # caches of threads fill by up to 22 KB in 10,000 steps
    flat resident_kib 1536 # the worker's queue, 0.8 MiB, is touched once all round in the first 350 steps
    nothing_left
  done
}
