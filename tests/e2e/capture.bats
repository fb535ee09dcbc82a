#!/usr/bin/env bats
# Captures and graphs beside training: while anything captures everything passes through; what a graph names stays where
# it is until the graph is gone. The program (foreign/capture.c) prints hashes of state and of what graphs copy; each test
# first asserts, from the report and the simulator's counters, where state lay and what was captured and launched.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/capture
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
STATE=524288 # bytes of m and v
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet

# compare WORDS...: the program without and with the preload; its lines must be the same, and not "nothing was trained".
compare() {
  "$SIM" "$PROGRAM" "$KERNEL" "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" "$@"
  assert_ended || return 1
  expect '.totals.ranges >= 5' "allocations that became ranges" || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# stays WORDS...: compare; graphs kept all state on the device, and the report says so.
stays() {
  compare "$@" || return 1
  expect '.totals.steps >= 3 and .totals.moved_bytes_peak == 0' "no state moved" || return 1
  expect '.reasons | map(test("256 KiB of state .and its partners. stays on the device as long as CUDA graphs name")) | any' "the reason"
}

# moves WORDS...: compare; all state is on the host at the end.
moves() {
  compare "$@" || return 1
  expect ".totals.moved_bytes == $STATE" "all state on the host at the end"
}

# captured N, launched N: nodes that captures recorded, launches of graphs.
captured() { [ "$(sim .captured_operations)" -eq "$1" ]; }
launched() { [ "$(sim .graph_launches)" -eq "$1" ]; }

@test "state that a capture copies stays put until its graph is destroyed, in all capture modes" {
  for mode in global thread relaxed; do
    stays begin:$mode record:copy end:a train:4
    captured 1
    moves begin:$mode record:copy end:a train:4 destroy:a train:3
    captured 1
  done
}

@test "state that a captured kernel's parameters or a captured fill name stays put until the graph is destroyed" {
  for what in kernel fill; do
    stays begin:relaxed record:$what end:a train:4
    moves begin:relaxed record:$what end:a train:4 destroy:a train:3
    captured 1
  done
}

@test "state that a stream names which joined the capture by an event stays put until the graph is destroyed" {
  stays begin:global record:fork end:a train:4
  captured 1
  moves begin:global record:fork end:a train:4 destroy:a train:3
}

@test "state that a capture in the thread's default stream names stays put until the graph is destroyed" {
  stays begin:global:thread record:copy end:a train:4
  captured 1
  moves begin:global:thread record:copy end:a train:4 destroy:a train:3
}

@test "state that was on the host when a capture named it stays there, and the graph's launches read it" {
  moves train:3 begin:relaxed record:copy record:kernel end:a instantiate:a:x train:2 launch:x train:2 launch:x
  expect '.totals.pieces_home == 0' "nothing came home"
  captured 2
  launched 2
}

@test "a graph may be destroyed while its executable lives: only the executable's end lets state move" {
  stays begin:relaxed record:kernel end:a instantiate:a:x destroy:a train:3 launch:x train:2
  launched 1
  moves begin:relaxed record:kernel end:a instantiate:a:x destroy:a train:3 launch:x destroy-exec:x train:3
  launched 1
}

@test "of several executables of one graph, the last one's end lets state move" {
  stays begin:relaxed record:kernel end:a instantiate:a:x instantiate:a:y destroy:a destroy-exec:x train:3 launch:y
  moves begin:relaxed record:kernel end:a instantiate:a:x instantiate:a:y destroy:a destroy-exec:x train:3 launch:y destroy-exec:y train:3
  launched 1
}

@test "a clone names what its original named" {
  stays begin:relaxed record:kernel end:a clone:a:b destroy:a train:3
  moves begin:relaxed record:kernel end:a clone:a:b destroy:a train:3 destroy:b train:3
}

@test "a graph names what its child names, and so does its executable" {
  stays graph:b begin:relaxed record:kernel end:a child:b:a destroy:a train:3
  stays graph:b begin:relaxed record:kernel end:a child:b:a destroy:a instantiate:b:x destroy:b train:3 launch:x
  launched 1
  moves graph:b begin:relaxed record:kernel end:a child:b:a destroy:a instantiate:b:x destroy:b train:3 launch:x destroy-exec:x train:3
}

@test "a graph that is launched into a capture becomes part of what is captured" {
  stays begin:relaxed record:kernel end:a instantiate:a:x destroy:a begin:relaxed record:exec:x end:b destroy-exec:x train:3
  captured 1
  moves begin:relaxed record:kernel end:a instantiate:a:x destroy:a begin:relaxed record:exec:x end:b destroy-exec:x train:3 destroy:b train:3
}

@test "nodes made by hand name state like captured ones" {
  for what in kernel copy; do
    stays graph:a $what:a train:3
    moves graph:a $what:a train:3 instantiate:a:x launch:x destroy:a destroy-exec:x train:3
    launched 1
  done
}

@test "a capture into a graph that is there already names state for that graph" {
  stays to:c record:kernel end:c train:3
  captured 1
  moves to:c record:kernel end:c train:3 destroy:c train:3
}

@test "an executable graph that is updated names what the new graph names, and nothing else" {
  stays begin:relaxed record:other end:a instantiate:a:x begin:relaxed record:kernel end:b update:x:b destroy:a destroy:b train:3 launch:x
  launched 1
  moves begin:relaxed record:kernel end:a instantiate:a:x begin:relaxed record:other end:b update:x:b destroy:a destroy:b train:3 launch:x
  launched 1
}

@test "an update that is refused leaves state named by both graphs" {
  stays begin:relaxed record:kernel end:a instantiate:a:x begin:relaxed record:other record:copy end:b update:x:b destroy:a destroy:b train:3 launch:x
  launched 1
  grep -qx 'update CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE' "$BATS_TEST_TMPDIR/with.out"
}

@test "parameters set in an executable graph name state until its end" {
  stays graph:a other:a instantiate:a:x set:x:a destroy:a train:3 launch:x
  launched 1
  moves graph:a other:a instantiate:a:x set:x:a destroy:a train:3 launch:x destroy-exec:x train:3
}

@test "a capture that breaks off names nothing" {
  moves begin:global record:copy broken train:4
  captured 1
  grep -q '^broken CUDA_ERROR_STREAM_CAPTURE' "$BATS_TEST_TMPDIR/with.out"
}

@test "a stream that is destroyed in the middle of its capture ends the capture, and state moves" {
  moves begin:global record:copy drop train:4
  captured 1
}

@test "the reset of a context in the middle of a capture ends the capture, and new state moves" {
  moves begin:global record:copy reset train:4
  captured 1
}

@test "memory freed while a graph that names it lives is given back, and new state at its address moves" {
  compare begin:relaxed record:copy end:a train:3 free allocate train:4
  expect ".totals.moved_bytes == $STATE" "the new state moved"
  compare begin:relaxed record:copy end:a train:3 free allocate train:4 destroy:a train:2
  expect ".totals.moved_bytes == $STATE and .totals.pieces_home == 0" "the new state stays there"
  captured 1
}

@test "memory freed in the order of another stream while a capture is open doesn't break the capture" {
  compare train:3 begin:global record:kernel beside:free end:a allocate train:3 destroy:a
  expect ".totals.moved_bytes_peak == $STATE" "state moved"
  captured 1
  grep -qx 'captured 1 nodes' "$BATS_TEST_TMPDIR/with.out"
}

# passed BYTES WORDS...: compare; while something captured, optimizer launches that named so many bytes of state were the
# program's own, and the report says so with what to change.
passed() {
  local bytes=$1
  shift
  compare "$@" || return 1
  expect ".totals.captured_state_bytes == $bytes" "state of launches that passed through" || return 1
  expect '.reasons | map(test("optimizer launches that named .* were made while a CUDA graph was captured.*capturable=False")) | any' "the remedy"
}

@test "an Adam launch inside a capture is not taken over, whatever the mode, and the report names bytes and remedy" {
  for mode in global thread relaxed; do
    passed $STATE train:3 begin:$mode record:adam end:a instantiate:a:x launch:x launch:x train:2
    expect '.functions[0].launches == 5 and .totals.steps == 5' "the captured launch was no step of ours"
    captured 1
    launched 2
  done
  passed $STATE train:3 begin:global:thread record:adam end:a instantiate:a:x launch:x train:2
}

@test "a program that steps by graph launches alone keeps its numbers, and its state stays on the device" {
  passed $STATE begin:thread record:adam end:a instantiate:a:x launch:x launch:x launch:x
  expect '.totals.steps == 0 and .totals.moved_bytes_peak == 0' "nothing moved"
  launched 3
}

@test "while another stream captures, or another thread, optimizer launches are the program's own" {
  passed $STATE train:3 begin:global record:copy beside:step end:a destroy:a train:3
  expect '.functions[0].launches == 6' "six launches of ours around it"
  passed $((3 * STATE)) train:3 begin:thread:other train:3 end:a train:3
  passed $STATE train:3 begin:global:other beside:step end:a train:3
  passed $((3 * STATE)) train:3 begin:relaxed:other train:3 end:a train:3
  captured 1
}

@test "while something captures nothing moves, and it moves at a step after" {
  compare begin:thread:other train:4
  expect '.totals.moved_bytes_peak == 0 and .totals.captured_state_bytes > 0' "nothing moved while a capture was open"
  moves begin:thread:other train:4 end:a train:3
}

@test "what runs beside a capture is not of its graph: state that only such a step named moves while the graph lives" {
  moves begin:relaxed:other train:2 end:a train:3
  captured 1
}

@test "an answer other than 'not capturing' counts as capturing" {
  GPUSIM_FAULT=cuStreamIsCapturing:1-:CUDA_ERROR_STREAM_CAPTURE_IMPLICIT compare train:4
  [ "$(sim .injected_faults)" -ge 4 ]
  expect ".totals.captured_state_bytes == 4 * $STATE and .totals.moved_bytes_peak == 0" "no launch taken over"
}
