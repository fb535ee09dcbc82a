#!/usr/bin/env bats
# Memory that isn't ours, and calls of others about memory that is: left alone, or answered as for native memory, as the
# design says. The program (foreign/foreign.c) trains one tensor and prints hashes and answers; each test first asserts from
# the report that state moved, or that it stayed and why, and then compares what is printed with and without the preload.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/foreign
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
STATIC=$BUILD/tests/e2e/libcollective_static.so
SHARED=$BUILD/tests/e2e/libcollective_shared.so
STATE=524288 # bytes of m and v
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet
export GPUSIM_DEVICES=2
export ASAN_OPTIONS=detect_leaks=0

# both WORDS...: the program without and with the preload.
both() {
  "$SIM" "$PROGRAM" "$KERNEL" "$@" >"$BATS_TEST_TMPDIR/without.out" 2>"$BATS_TEST_TMPDIR/without.err" || return 1
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" "$@"
  assert_ended || return 1
  assert_clean
}
same() { diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"; }
says() { grep -qx "$1" "$BATS_TEST_TMPDIR/with.out" || { cat "$BATS_TEST_TMPDIR/with.out" && return 1; }; }
tells() { expect ".reasons | map(test(\"$1\")) | any" "a reason like '$1'"; }

# moves WORDS...: all state is on the host at the end, never came back, and the lines are the same.
moves() {
  both "$@" || return 1
  expect ".totals.moved_bytes == $STATE and .totals.pieces_home == 0" "all state on the host" || return 1
  same
}

# stays WORDS...: state was stepped and seen, never moved, the report says why, and the lines are the same.
stays() {
  both "$@" || return 1
  expect '.totals.ranges >= 4 and .totals.steps >= 3 and .totals.moved_bytes_peak == 0' "no state moved" || return 1
  tells '256 KiB of state .and its partners. stays on the device: its memory was registered, exported' || return 1
  same
}

@test "where legacy IPC is asked for before state moves, its memory stays, later allocations are native and can be shared" {
  both new ipc:m train:4 new ipc:new
  expect '.totals.steps == 4 and .totals.moved_bytes_peak == 0' "the state stayed"
  tells 'cudaIpcGetMemHandle, which virtual memory can.t.*stayed native'
  says 'ipc m refused'
  says 'ipc new given'
  [ "$(grep '^new' "$BATS_TEST_TMPDIR/with.err" | paste -sd,)" = 'new virtual,new native' ]
  diff <(grep -v 'ipc m' "$BATS_TEST_TMPDIR/without.out") <(grep -v 'ipc m' "$BATS_TEST_TMPDIR/with.out")
}

@test "where legacy IPC is asked for moved state, the state stays on the host, and later allocations are native" {
  both train:3 ipc:m new ipc:new train:3
  expect ".totals.moved_bytes == $STATE and .totals.pieces_home == 0 and .functions[0].launches_cpu == 5" "state on the host throughout"
  tells 'cudaIpcGetMemHandle'
  says 'ipc m refused'
  says 'ipc new given'
  diff <(grep -v 'ipc m' "$BATS_TEST_TMPDIR/without.out") <(grep -v 'ipc m' "$BATS_TEST_TMPDIR/with.out")
}

@test "a handle of our memory that somebody retains can't be exported, and what it stands for isn't exchanged" {
  stays retain:m train:4
  says 'export refused'
  moves train:3 retain:m train:3
  says 'export refused'
}

@test "a descriptor for an address range is the driver's answer, and what it would stand for isn't exchanged" {
  stays range:m train:4
  moves train:3 range:m train:3
}

@test "registered and pinned host memory is left alone, and copies between it and moved state are right" {
  moves train:3 registered pinned train:2 registered pinned
  says 'registered equal'
  says 'pinned equal'
}

@test "stream-ordered allocations and pools are left alone, and copies between them and moved state are right" {
  moves train:3 async pool train:2 async pool
  says 'async equal'
  says 'pool equal'
}

@test "managed and pitched memory is left alone, and copies between it and moved state are right" {
  moves train:3 managed pitched train:2
  says 'managed equal'
}

@test "copies of moved state into arrays and out of them are right" {
  moves train:3 array train:2 array
}

@test "segments that the program maps piece by piece beside moved state are left alone" {
  moves train:3 segment train:2 segment
  says 'segment equal'
}

@test "state in a segment that the program maps piece by piece stays there, and the report gives its bytes and advice" {
  both in:segment train:4
  expect ".totals.native_state_bytes == $STATE and .totals.ranges == 0 and .totals.steps == 4" "state in no range"
  tells '512 KiB of optimizer state lies in virtual memory.*expandable_segments:True out of PYTORCH_CUDA_ALLOC_CONF'
  expect '.reasons | length == 1' "no other advice"
  same
}

@test "state in a pool or in managed memory stays there, and the report gives its bytes and what it lies in" {
  both in:pool train:4
  expect ".totals.native_state_bytes == $STATE and .totals.ranges == 0" "state in no range"
  tells '512 KiB of optimizer state lies in a memory pool .cudaMallocAsync.*backend:cudaMallocAsync'
  same
  both in:managed train:4
  tells '512 KiB of optimizer state lies in managed memory'
  same
}

@test "a kernel of a peer device reads moved state, and state that a peer may read stays where it is" {
  moves train:3 peer train:3 peer
  tells 'peer access between devices: allocations from then on stayed native'
  both peer train:4 peer new
  expect '.totals.steps == 4 and .totals.moved_bytes_peak == 0' "the state stayed"
  grep -qx 'new native' "$BATS_TEST_TMPDIR/with.err"
  same
}

@test "copies of state to another device, in that device's streams, are waited for when the state moves" {
  for stream in 0 2 3 4 5 6 7; do
    GPUSIM_SLOW_STREAM=$stream GPUSIM_SLOW_US=20000 moves peer-copy train:3 peer-copy train:2
  done
  GPUSIM_DELAY_US=2000 moves train:1 peer-copy train:2 peer-copy train:1 peer-copy train:1
}

@test "memory information is the driver's at every moment, and null pointers are answered as by it" {
  moves info train:3 info train:2 info
  [ "$(grep -c '^info within, one total' "$BATS_TEST_TMPDIR/with.out")" -eq 3 ]
}

@test "every pointer attribute of a range, moved or not, is answered as for native memory, one by one and together" {
  moves train:3 attributes:m train:2 attributes:m
  expect ".totals.moved_bytes == $STATE" "asked while the memory was on the host"
  stays attributes:m train:3 attributes:m
}

@test "the attributes that consumers of tensors ask for don't keep state from moving" {
  moves consumer:m train:3 consumer:m train:2
}

@test "SYNC_MEMOPS, which virtual memory refuses, is granted by its context, and the state isn't exchanged" {
  stays sync:m train:4
  says 'sync CUDA_SUCCESS'
  moves train:3 sync:m train:2
}

@test "the bounds of an allocation are those that were asked for, however its pieces lie" {
  moves bounds:m train:3 bounds:m
  says 'bounds CUDA_SUCCESS 0 262144, CUDA_SUCCESS 262144, past it another or none'
}

@test "a library with a runtime of its own inside allocates native memory, while the program's state moves" {
  moves library:"$STATIC":buffer train:3 library:"$STATIC":buffer
  says 'buffer answers 0'
  OFFLOAD_CALLERS=libcollective_static both library:"$STATIC":buffer train:3
  says 'buffer answers -1'
}

@test "a library on the shared runtime is the caller, not the runtime; libc10_cuda may have ranges" {
  moves library:"$SHARED":buffer train:3
  says 'buffer answers 0'
  cp "$SHARED" "$BATS_TEST_TMPDIR/libc10_cuda.so"
  both library:"$BATS_TEST_TMPDIR/libc10_cuda.so":buffer train:3
  says 'buffer answers -1'
}

@test "a collectives library's own mapped memory is freed by what the driver says of its address, as ever" {
  moves library:"$STATIC":mapped library:"$SHARED":mapped train:3 library:"$STATIC":mapped library:"$STATIC":host_probe
  [ "$(grep -c 'answers 0' "$BATS_TEST_TMPDIR/with.out")" -eq 4 ]
  OFFLOAD_CALLERS='*' moves library:"$STATIC":mapped train:3
  says 'mapped answers 0'
}

@test "state that a collectives library registers stays where it is" {
  stays library:"$STATIC":registered train:4
  moves train:3 library:"$STATIC":registered train:3
  says 'registered answers 0'
}
