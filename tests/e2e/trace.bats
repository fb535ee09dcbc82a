#!/usr/bin/env bats
# OFFLOAD_TRACE: the timeline of the last steps is JSON that Chrome and Perfetto read, its bytes are the report's, its times lie within the
# run, and the numbers are what they are without it.
bats_require_minimum_version 1.5.0
load ../lib/e2e

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

now_us() { python3 -c 'import time; print(int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6))'; }

# traced ARGS...: a run with a trace, in sums.json; began and ended in $from and $to.
traced() {
  from=$(now_us)
  OFFLOAD_TRACE=trace.json offloaded "$@"
  to=$(now_us)
  python3 "$ROOT/tests/lib/trace.py" trace.json >sums.json
}

sums() { jq -r "$1" sums.json; }

# says FILTER SENTENCE: of the sums.
says() {
  [ "$(sums "$1")" = true ] || {
    echo "expected: $2"
    jq -c . sums.json
    return 1
  }
}

within_run() {
  says "(.begin_us >= $from and .end_us <= $to)" "all spans between $from and $to" &&
    says '.lost == 0' "no span is lost"
}

@test "the trace of cpu steps: gradients and proofs down, the CPU step, updates up, as many bytes as the report says, within the run" {
  plain default --steps 20
  OFFLOAD_STEP=cpu traced --steps 20
  assert_done cpu
  assert_same default
  assert_clean
  within_run
  [ "$(sums '.tracks["copy down"].bytes')" = "$(report .totals.link_bytes_down)" ]
  [ "$(sums '.tracks["copy up"].bytes')" = "$(report .totals.link_bytes_up)" ]
  [ "$(sums '.tracks["CPU step"].elements')" = "$(report .totals.elements_cpu)" ]
  [ "$(sums '.tracks["moves"].bytes')" = "$(report .totals.moved_out_bytes)" ]
  says '.tracks["copy down"].names == ["gradient", "proof"] and .tracks["copy up"].names == ["update"]' "what is copied"
  says '.tracks["CPU step"].names == ["proof", "step"] and .tracks["CPU step"].threads == 1' "one worker"
  says '.tracks | with_entries(select(.value.of_no_step > 0)) | keys | . == ["moves"] or . == []' "each span of a step has its number"
  says '.tracks["optimizer on the program'\''s stream"].spans == 20' "a span for each launch"
  says '.tracks["program'\''s stream waits for it"].spans == 19' "and what it waited for, all but the first, which moved"
  # The clocks of the device and the host are one: the worker begins behind the first copy down, and the last update follows it.
  says '.tracks["CPU step"].begin_us > .tracks["copy down"].begin_us - 2000' "the step follows the gradient"
  says '.tracks["copy up"].end_us > .tracks["CPU step"].end_us - 2000' "the update follows the step"
  says '.tracks["copy up"].end_us < .tracks["optimizer on the program'\''s stream"].end_us + 2000' "and ends in the launch"
}

@test "the trace of streamed steps: state up and down, as many bytes as the report says" {
  plain default --steps 20
  OFFLOAD_STEP=stream traced --steps 20
  assert_done stream
  assert_same default
  assert_clean
  within_run
  [ "$(sums '.tracks["copy down"].bytes')" = "$(report .totals.link_bytes_down)" ]
  [ "$(sums '.tracks["copy up"].bytes')" = "$(report .totals.link_bytes_up)" ]
  says '.tracks["copy up"].names | index("state") != null' "state goes up"
  says '.tracks["CPU step"] == null' "the CPU has no part"
}

@test "the trace of early copies counts each once" {
  from=$(now_us)
  OFFLOAD_PIECE=16KiB OFFLOAD_STEP=stream OFFLOAD_TRACE=trace.json under_preload timeout -k 9 60 "$SIM" "$BUILD/tests/e2e/early" \
    "$BUILD/tests/e2e/25544_float-adamw.ptx" "$BUILD/tests/e2e/touch.ptx"
  to=$(now_us)
  assert_done stream
  python3 "$ROOT/tests/lib/trace.py" trace.json >sums.json
  within_run
  expect '.totals.early_bytes_used > 1000000' "state was copied up early"
  [ "$(sums '.tracks["copy up"].bytes')" = "$(report .totals.link_bytes_up)" ]
  says '.tracks["copy up"].names | index("state, early") != null' "and shows as such"
}

@test "the trace of state on drives: reads, writes and moves with their bytes, cpu and stream" {
  plain twelve --steps 12
  mkdir -p drive
  for mode in cpu stream; do
    OFFLOAD_STEP=$mode OFFLOAD_HOST_MEMORY=128KiB OFFLOAD_NVME=$PWD/drive OFFLOAD_NVME_STAGING=512KiB traced --steps 12
    assert_done $mode
    assert_same twelve
    within_run
    expect '.totals.drive_read_bytes > 0 and .totals.drive_written_bytes > 0' "state came from drives"
    [ "$(sums '.tracks["drive read"].bytes')" = "$(report .totals.drive_read_bytes)" ]
    [ "$(sums '.tracks["copy down"].bytes')" = "$(report .totals.link_bytes_down)" ]
    [ "$(sums '.tracks["copy up"].bytes')" = "$(report .totals.link_bytes_up)" ]
    says '.tracks["moves"].names | index("to drives") != null' "moves to drives"
  done
}

@test "one hardware queue and seeded delays: the trace is whole, and the numbers are the same" {
  plain default --steps 20
  for seed in $SEEDS; do
    GPUSIM_QUEUES=1 GPUSIM_SEED=$seed GPUSIM_DELAY_US=300 OFFLOAD_STEP=cpu traced --steps 20
    assert_done cpu
    assert_same default
    assert_clean
    within_run
    [ "$(sums '.tracks["copy down"].bytes')" = "$(report .totals.link_bytes_down)" ]
  done
}
