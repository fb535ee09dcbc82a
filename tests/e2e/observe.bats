#!/usr/bin/env bats
# OFFLOAD_MODE=observe: nothing moves, no allocation is changed, and what is foretold to move is what moves in a run without it.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/policy_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
export OFFLOAD_PIECE=16KiB

# observed SETTINGS...: the program alone and observed; the same hashes, nothing moved, no range made, and something was foretold.
observed() {
  "$SIM" "$PROGRAM" "$KERNEL" sync=1 "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  OFFLOAD_MODE=observe under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" sync=1 "$@"
  assert_ended || return 1
  expect '.totals.steps > 0 and .totals.moved_bytes_peak == 0 and .totals.ranges == 0 and .totals.link_bytes_up == 0' "nothing was changed" || return 1
  expect '.observed.state_bytes > 0' "it was observed" || return 1
  [ "$(sim .host_piece_bytes_peak)" -le 16384 ] || return 1 # whether the driver makes host memory was tried once
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

@test "observe foretells the bytes that move without it, in allocations of a tensor and in those that many share" {
  observed steps=12
  local foretold
  expect '.observed.state_bytes == 2097152 and .observed.tensors == 4' "all state is seen"
  foretold=$(report .observed.move_bytes)
  under_preload "$SIM" "$PROGRAM" "$KERNEL" sync=1 steps=12
  expect ".totals.moved_bytes_peak == $foretold and $foretold == 2097152" "as much as moves"
  OFFLOAD_MODE=observe offloaded --steps 6
  assert_ended
  foretold=$(report .observed.move_bytes)
  [ "$foretold" -gt 1000000 ]
  offloaded --steps 6
  expect ".totals.moved_bytes_peak as \$moved | \$moved > 0 and ($foretold - \$moved | fabs) <= \$moved / 20" "charlm: within a twentieth of what moves"
  # Pieces so large that a quarter of the state fills none.
  export OFFLOAD_PIECE=256KiB
  OFFLOAD_MODE=observe offloaded --steps 6
  assert_ended
  expect '.observed.move_bytes < .observed.state_bytes * 4 / 5' "only whole pieces count"
  foretold=$(report .observed.move_bytes)
  offloaded --steps 6
  expect ".totals.moved_bytes_peak == $foretold and $foretold > 500000" "as many as move"
}

@test "state that fills no piece is told as the reason why nothing would move" {
  OFFLOAD_PIECE=16MiB GPUSIM_MEMORY=1GiB OFFLOAD_MODE=observe under_preload "$SIM" "$PROGRAM" "$KERNEL" sync=1
  assert_ended
  expect '.observed.possible and .observed.state_bytes == 2097152 and .observed.move_bytes == 0' "it is seen, and too small"
  grep -q "would move 0 of 2.00 MiB .*: 2.00 MiB of optimizer state fills no piece of 16.0 MiB: it stays" "$BATS_TEST_TMPDIR/with.err"
}

@test "what would stay for OFFLOAD_FREE, for the budget and for a driver is left out" {
  OFFLOAD_FREE=1MiB observed
  expect '.observed.move_bytes == 1048576 and .observed.movable_bytes == 2097152' "no more than asked for"
  OFFLOAD_HOST_MEMORY=640KiB observed
  expect '.observed.move_bytes == 655360 and .observed.budget_bytes == 655360' "no more than the budget"
  GPUSIM_HOST=0 GPUSIM_HOST_NUMA=0 OFFLOAD_MODE=observe under_preload "$SIM" "$PROGRAM" "$KERNEL"
  assert_ended
  expect '.observed.state_bytes == 2097152 and .observed.move_bytes == 0 and (.observed.possible | not) and (.reasons | map(test("SYS_NICE")) | any)' "nothing where no host memory is made, and why"
  grep -q "would move 0 of 2.00 MiB .*SYS_NICE" "$BATS_TEST_TMPDIR/with.err"
}

@test "observe foretells each way's cost, and says at exit what would move and at what price" {
  observed steps=40
  expect '.policy.functions[0].foretold | .cpu.possible and .stream.possible and .direct.possible and .stream.exposed_ns > 0 and .stay.exposed_ns == 0' "every way"
  expect '.observed | .way as $way | ($way | IN("cpu", "stream", "direct")) and .exposed_ns > 0 and .rates == "assumed"' "the way of a run that knows no more"
  expect '.policy.functions[0].foretold[.observed.way].exposed_ns == .observed.exposed_ns' "with its cost"
  expect '.observed.step_ns > 0' "beside a step as it is"
  grep -Eq "would move 2.00 MiB of 2.00 MiB of optimizer state in 4 tensors, foretold cost .* of a step of .* \([0-9.]+ %\) by (cpu|stream|direct), from assumed rates" "$BATS_TEST_TMPDIR/with.err"
  printf 'up 1e9\ndown 1e9\nup_both 1e9\ndown_both 1e9\nkernel_read 1e9\nkernel_write 1e9\ncpu_elements 1e7\n' >"$BATS_TEST_TMPDIR/rates"
  local before
  before=$(report .observed.exposed_ns)
  OFFLOAD_RATES=$BATS_TEST_TMPDIR/rates observed steps=40
  expect ".observed.rates == \"told\" and .observed.exposed_ns > 3 * $before" "a slower link costs more"
}

@test "observe foretells the way that a run takes, for steps too small to choose by and for others" {
  printf 'up 1e9\ndown 1e9\nup_both 1e9\ndown_both 1e9\nkernel_read 1e12\nkernel_write 1e12\ncpu_elements 1e7\n' >"$BATS_TEST_TMPDIR/rates"
  export OFFLOAD_RATES=$BATS_TEST_TMPDIR/rates
  local setting way
  for setting in OFFLOAD_TEST_CHOOSE_FROM=4 OFFLOAD_TEST_CHOOSE_FROM=0; do
    export "${setting?}"
    observed steps=40
    way=$(report .observed.way)
    expect '.policy.functions[0].foretold[.observed.way].exposed_ns == .observed.exposed_ns and .observed.exposed_ns > 0' "$setting: with its cost"
    # so few that what they take on a busy machine doesn't count yet
    under_preload "$SIM" "$PROGRAM" "$KERNEL" sync=1 steps=12
    expect ".totals.moved_bytes_peak > 0 and .policy.functions[0].way == \"$way\"" "$setting: a run goes by $way"
    if [ "${setting#*=}" = 0 ]; then [ "$way" = direct ]; else [ "$way" = cpu ]; fi
  done
}

@test "the report of a job that only observed gives the reason of the way that would be taken" {
  observed steps=20
  expect '.policy.functions[0] | .way == "stay" and (.why | test("^cpu")) and (.why | test("not by cpu") | not)' "the CPU wasn't refused: nothing was offered to it"
  expect '.observed.way == "cpu"' "and would do the step"
  OFFLOAD_STEP=stream observed steps=20
  expect '.observed.way == "cpu" and (.policy.functions[0].why | test("^cpu"))' "OFFLOAD_STEP has no effect here, on the reason neither"
  OFFLOAD_STEP=auto under_preload "$SIM" "$PROGRAM" "$KERNEL" sync=1 steps=20
  expect '.totals.moved_bytes_peak > 0 and .policy.functions[0].way == "cpu" and (.policy.functions[0].why | test("^cpu"))' "as a run does"
}

# share_of KEY WHOLE: what the report has at KEY of what it has at WHOLE, in words as all lines have it.
share_of() { report "(($1) / ($2) * 100)" | awk '{ printf(($1 >= 9.995 ? "%.0f %%" : "%.1f %%"), $1) }'; }

@test "what an observed step would cost is one share, in the line at exit, the advice, the report and offload run" {
  printf 'up 1e8\ndown 1e8\nup_both 1e8\ndown_both 1e8\n' >"$BATS_TEST_TMPDIR/rates"
  OFFLOAD_RATES=$BATS_TEST_TMPDIR/rates observed steps=40
  expect '.observed | .rates == "told" and .step_ns > 0 and .exposed_ns > .step_ns / 19' "it costs more than the target"
  local share
  share=$(share_of .observed.exposed_ns '.observed.step_ns + .observed.exposed_ns')
  grep -qF "($share) by " "$BATS_TEST_TMPDIR/with.err"
  expect ".advice | map(select(.kind == \"accumulate\").text | contains(\"foretold to take\") and contains(\" of a step, $share;\")) == [true]" "the advice: $share"
  "$BUILD/offload" report "$BATS_TEST_TMPDIR/report.json" | tr -s '\n ' ' ' | grep -qF "($share), by "
  expect '.steps.median_exposed_ns == 0' "nothing was added to the steps as they were"
}
