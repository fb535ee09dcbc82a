#!/usr/bin/env bats
# Jobs under the limits that nodes and containers set: control groups' memory of both versions, locked memory, one core, no /dev/shm.
# Real limits where this machine lets us set them, else what such a machine says in /proc and /sys (OFFLOAD_SYSROOT). Each job must move
# what the limit leaves room for, say which limit that was, and have the numbers of the program alone.

load ../lib/e2e.bash

setup() {
  cd "$BATS_TEST_TMPDIR" || return
  unset OFFLOAD_THREADS XDG_RUNTIME_DIR
  plain default --steps 6
}

teardown() {
  [ ! -d "${GROUP:-/nowhere}" ] || rmdir "$GROUP"
}

# own_group CONTROLLER: makes a group of version 1 below this shell's own, GROUP; fails where none may be made.
own_group() {
  local mount path
  mount=$(awk -v want="$1" '$3 == "cgroup" { n = split($4, o, ","); for (i = 1; i <= n; i++) if (o[i] == want) { print $2; exit } }' /proc/mounts)
  [ -n "$mount" ] || return 1
  path=$(awk -F: -v want="$1" '{ n = split($2, o, ","); for (i = 1; i <= n; i++) if (o[i] == want) { print $3; exit } }' /proc/self/cgroup)
  [ -d "$mount$path" ] || path=
  GROUP=$mount$path/offload_limits_$$
  mkdir "$GROUP" 2>/dev/null || return 1
  [ -w "$GROUP/cgroup.procs" ]
}

# in_group COMMAND...: starts it in GROUP.
in_group() { sh -c 'echo 0 >"$0/cgroup.procs" && exec "$@"' "$GROUP" "$@"; }

# trained COMMAND...: charlm by this command under the preload has moved state and has the numbers of the program alone.
trained() {
  under_preload "$@" "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 6 --json with.json
  assert_ended
  expect '.totals.moved_bytes_peak > 0' "state moved to the host"
  assert_same default
  assert_clean
}

@test "a real control group's memory limit bounds what is pinned, and is named" {
  own_group memory || skip "no memory group may be made here"
  echo $((400 << 20)) >"$GROUP/memory.limit_in_bytes"
  trained in_group
  expect '.budget.limited_by == "cgroup memory limit"' "the group is what limits"
  expect "(.budget.bytes > $((100 << 20))) and (.budget.bytes <= $((320 << 20)))" "80% of what the group had left"
}

@test "where a control group leaves room for a part of the state just that moves, and the line says why" {
  cp -r "$ROOT/tests/data/cgroup_v1" root
  local limit
  limit=$(cat root/sys/fs/cgroup/memory/memory.limit_in_bytes)
  echo $((limit - (640 << 10))) >root/sys/fs/cgroup/memory/memory.usage_in_bytes
  : >root/sys/fs/cgroup/memory/memory.stat
  OFFLOAD_SYSROOT=$PWD/root trained env
  expect '.budget.limited_by == "cgroup memory limit" and .budget.bytes == 524288' "80% of 640 KiB"
  expect '.totals.moved_bytes_peak <= 524288' "no more moved"
  grep -q 'cgroup memory limit' with.err
  expect '[.reasons[] | select(contains("stays on the device"))] | length > 0' "what stayed, and why"
}

@test "memory limits of control groups, version 1 and 2, nested and in namespaces, are the budget of a job that runs there" {
  for tree in cgroup_v1 cgroup_v2_nested; do
    OFFLOAD_SYSROOT=$ROOT/tests/data/$tree trained env
    expect '.budget.limited_by == "cgroup memory limit"' "$tree: the group is what limits"
    expect ".budget.bytes == $(((6 << 30) * 80 / 100))" "$tree: 80% of what it leaves"
  done
}

# 64 KiB of locked memory, and no privilege to lock more; with $1 in front of the command.
little_locked() { prlimit --memlock=65536:65536 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@"; }

@test "64 KiB of locked memory, really set, keep no state from moving" {
  little_locked true 2>/dev/null || skip "no privilege may be given up here"
  trained little_locked
  expect '[.functions[] | select(.launches_cpu > 0)] | length > 0' "steps by the CPU"
  expect '[.reasons[] | select(contains("RLIMIT_MEMLOCK") or contains("locked memory"))] | length == 0' "no word of it: it bounds nothing here"
}

@test "64 KiB of locked memory, really set, keep state off drives, and the line says what to set" {
  little_locked true 2>/dev/null || skip "no privilege may be given up here"
  mkdir drive
  OFFLOAD_NVME=$PWD/drive OFFLOAD_HOST_MEMORY=64KiB under_preload little_locked \
    "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 6 --json with.json
  assert_ended
  assert_same default
  expect '.totals.drive_bytes_peak == 0' "nothing went to the drive"
  grep -q 'no state goes to drives.*RLIMIT_MEMLOCK.*ulimit -l' with.err
}

@test "on one core the CPU step has one thread, and the numbers are the same" {
  if own_group cpuset && cat "$GROUP/../cpuset.mems" >"$GROUP/cpuset.mems" && echo 0 >"$GROUP/cpuset.cpus"; then
    trained in_group
  else
    trained taskset -c 0
  fi
  assert_done cpu
  report .node.threads;   expect '.node.threads == 1' "one thread"
}

@test "without /dev/shm ranks meet in the next place there is, and state moves" {
  unset OFFLOAD_SYSROOT
  unshare -m true 2>/dev/null || skip "no mount namespace may be made here"
  mkdir meet
  TMPDIR=$PWD/meet trained unshare -m sh -c 'while umount /dev/shm 2>/dev/null; do :; done; rm -rf /dev/shm/liboffload-*; mount -t tmpfs -o ro none /dev/shm && exec "$@"' sh
  [ -d meet/liboffload-"$(id -u)" ]
}

@test "without any place to meet a rank goes by its launcher alone, which is said once, and state moves" {
  unset OFFLOAD_SYSROOT
  unshare -m true 2>/dev/null || skip "no mount namespace may be made here"
  TMPDIR=/nowhere trained unshare -m sh -c 'while umount /dev/shm 2>/dev/null; do :; done; mount -t tmpfs -o ro none /dev/shm && exec "$@"' sh
  expect '[.reasons[] | select(contains("/dev/shm"))] | length == 1' "the reason names the place"
}
