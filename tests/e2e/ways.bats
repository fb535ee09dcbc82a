#!/usr/bin/env bats
# Steps that go one way and then another: the numbers stay those of the program alone after every change, whatever made it, and the
# report says which ways were gone and why. In small programs the ways are told (OFFLOAD_TEST_WAYS), or chosen by rates that are told
# and by what steps take.
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

KERNELS=$BUILD/tests/e2e
PTX=$KERNELS/exact-212-adamw.ptx
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet
export OFFLOAD_STEP=auto

teardown() { loop_unmount; }

# turns WAYS KERNEL OPTIONS...: step_program by these ways in turn. By each of those named, elements must have been stepped.
turns() {
  local ways=$1 kernel=$KERNELS/$2.ptx way
  shift 2
  GPUSIM_MEMORY=1GiB "$SIM" "$KERNELS/step_program" "$kernel" small=1 "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  OFFLOAD_TEST_WAYS=$ways under_preload timeout -k 9 60 "$SIM" "$KERNELS/step_program" "$kernel" small=1 "$@"
  went "${ways//,/ }" || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# went WAYS: state moved, and each way has had launches of which some was ours.
went() {
  local way
  assert_ended || return 1
  expect '.totals.moved_bytes_peak > 0' "state moved to the host" || return 1
  for way in $1; do
    expect ".totals.elements_$way > 0 and ([.functions[] | select(.launches_$way > 0)] | length > 0)" "elements stepped by $way" || return 1
  done
  expect '[.policy.functions[].switch_count] | add >= 3' "three changes of way" || return 1
  expect '[.policy.functions[].switches[] | select(.from != .to and .step > 0 and .why != "")] | length >= 3' "the last changes, each with why"
}

@test "queued steps that change their way at every step equal the program alone, in every order of ways" {
  for ways in cpu,stream,direct direct,stream,cpu cpu,stream stream,direct cpu,direct; do
    GPUSIM_DELAY_US=200 turns $ways 25544_float-adamw steps=10 changing_lr=1
  done
}

@test "so do steps of several launches, one of which waits behind another way's, with one hardware queue" {
  GPUSIM_QUEUES=1 GPUSIM_DEPTH=3 OFFLOAD_TEST_WORKER_LAG_MS=2 turns cpu,stream,stream,direct,cpu,cpu 25544_float-adamw steps=9 groups=3
  GPUSIM_SLOW_STREAM=$((1 + RANDOM % 8)) GPUSIM_SLOW_US=5000 turns stream,cpu,direct 25544_float-adam steps=7 groups=2 lr_pointer=1 changing_lr=1
}

@test "so do steps of doubles, of bf16 with amsgrad, and of an optimizer whose scale and skipped steps come and go" {
  turns cpu,stream,direct 3336_double-adamw steps=8
  turns direct,cpu,stream exact-212-adam_amsgrad entry=3 steps=8
  turns cpu,stream,direct 25544_float-adamw steps=12 found_inf=3 grad_scale=1
}

@test "a model trained by each way in turn trains the same" {
  plain plain --steps 12
  OFFLOAD_TEST_WAYS=cpu,stream,direct,stream offloaded --steps 12
  went "cpu stream direct"
  assert_same plain
  assert_clean
}

@test "with state on drives steps go by cpu and stream in turn, never direct, and equal the program alone" {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
  rates
  printf '%s\n' "drive_read 1e9" "drive_write 1e9" >>"$OFFLOAD_RATES"
  on_drives "$PTX" copies=0 steps=12
  on_drives "$KERNELS/exact-212-adam_amsgrad.ptx" copies=0 steps=8 entry=3 hostile=1
}

# on_drives KERNEL OPTIONS...: step_program with most of its state on a drive, by ways in turn.
on_drives() {
  local alone
  alone=$("$SIM" "$KERNELS/step_program" "$@" 2>/dev/null) || return 1
  OFFLOAD_TEST_WAYS=cpu,stream,direct,cpu OFFLOAD_HOST_MEMORY=1MiB OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_PIECE=64KiB \
    OFFLOAD_NVME_STAGING=2MiB under_preload "$SIM" "$KERNELS/step_program" "$@"
  assert_ended || return 1
  expect '.totals.drive_read_bytes > 0 and .totals.elements_drive > 0' "elements stepped whose state was read from a drive" || return 1
  expect '.totals.elements_cpu > 0 and .totals.elements_stream > 0' "both ways stepped elements" || return 1
  expect '[.policy.functions[].switch_count] | add >= 3' "three changes of way" || return 1
  expect '[.policy.functions[].foretold | (.stream.possible and (.direct.possible | not))] | all' "direct is not possible with drives" || return 1
  [ "$(cat "$BATS_TEST_TMPDIR/with.out")" = "$alone" ] || return 1
  assert_clean
}

# rates NAME=VALUE...: a file of rates under which a small step costs what its bytes do; those named instead of the usual ones.
rates() {
  local line file=$BATS_TEST_TMPDIR/rates
  printf '%s\n' "up 1e9" "down 1e9" "up_both 1e9" "down_both 1e9" "kernel_read 1" "kernel_write 1" "device 1e12" "dram 1e12" "dram_thread 1e12" \
    "cpu_elements 1e9" "launch 1e-9" >"$file"
  for line in "$@"; do
    sed -i "s/^${line%=*} .*/${line%=*} ${line#*=}/" "$file"
  done
  export OFFLOAD_RATES=$file OFFLOAD_TEST_CHOOSE_FROM=0
}

# steps N: train_step, whose program waits for each step, compared with itself alone.
steps() {
  local alone
  alone=$("$SIM" "$KERNELS/train_step" "$PTX" chunks=8 layers=4 steps="$1") || return 1
  under_preload "$SIM" "$KERNELS/train_step" "$PTX" chunks=8 layers=4 steps="$1"
  assert_ended || return 1
  expect '.totals.moved_bytes_peak > 0 and .policy.functions[0].rates == "told"' "state moved, rates are told" || return 1
  [ "$(cat "$BATS_TEST_TMPDIR/with.out")" = "$alone" ] || return 1
  assert_clean
}

@test "a CPU step that is slower than it was foretold to be is left for stream, with the numbers of both in the report" {
  rates
  OFFLOAD_TEST_WORKER_LAG_MS=100 steps 32
  expect '.totals.elements_cpu > 0 and .totals.elements_stream > 0' "both ways stepped elements"
  expect '.policy.functions[0] | .way == "stream" and .switch_count >= 1 and .switches[-1].from == "cpu" and .switches[-1].to == "stream"' "from cpu to stream"
  expect '.policy.functions[0].switches[-1].why | test("stream [0-9.]+ (us|ms|s)") and test("cpu [0-9.]+ (us|ms|s), measured [0-9.]+ times that")' "a sentence with numbers"
  expect '.steps.count > 10 and ([.steps.last[].way] | index("cpu") != null and index("stream") != null)' "steps measured by both ways"
}

@test "a way that is tried and proves slower still is left again, and the numbers stay the same" {
  # Copies are told to take next to nothing, and take what they take here; the CPU's lag is more than that.
  rates up=1e15 down=1e15 up_both=1e15 down_both=1e15 cpu_elements=1e9
  OFFLOAD_TEST_WORKER_LAG_MS=200 steps 120
  expect '.totals.elements_cpu > 0 and .totals.elements_stream > 0' "both ways stepped elements"
  expect '.policy.functions[0] | .way == "stream" and .switch_count >= 2 and .switches[0].to == "cpu" and .switches[1].to == "stream"' "to cpu and back"
}

@test "steps of few elements keep the usual way, whatever the rates say" {
  rates cpu_elements=1e3
  OFFLOAD_TEST_CHOOSE_FROM=1 steps 8
  expect '.totals.elements_cpu > 0 and .totals.elements_stream == 0 and .policy.functions[0].switch_count == 0' "by cpu alone"
  expect '.policy.functions[0].why | test("the usual way: steps of so few elements")' "it says why"
}

@test "with state on drives whose rates are not known the usual way stays" {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
  rates
  OFFLOAD_HOST_MEMORY=1MiB OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_PIECE=64KiB OFFLOAD_NVME_STAGING=2MiB under_preload "$SIM" \
    "$KERNELS/step_program" "$PTX" copies=0 steps=6
  assert_done cpu
  expect '.totals.elements_drive > 0 and (.policy.functions[0].why | test("the rates lack"))' "by cpu, with why"
}

@test "without rates the usual way stays, and the report says that they are assumed" {
  OFFLOAD_TEST_CHOOSE_FROM=0 under_preload "$SIM" "$KERNELS/train_step" "$PTX" chunks=8 layers=4 steps=5
  assert_done cpu
  expect '.policy.functions[0] | .rates == "assumed" and .way == "cpu" and (.why | test("neither measured nor told"))' "assumed"
}

@test "OFFLOAD_STEP is obeyed, and the report says when another way is foretold to cost less" {
  rates cpu_elements=1e3
  OFFLOAD_STEP=cpu steps 6
  expect '.totals.elements_cpu > 0 and .totals.elements_stream == 0' "by cpu as told"
  expect '.policy.functions[0] | .asked == "cpu" and .way == "cpu" and (.advice | test("OFFLOAD_STEP=cpu: .* by stream [0-9.]+ (us|ms|s); OFFLOAD_STEP=auto"))' "advice"
  OFFLOAD_STEP=stream steps 6
  expect '.totals.elements_cpu == 0 and .totals.elements_stream > 0 and .policy.functions[0].advice == null' "by stream, which is the cheapest"
}

@test "where direct is foretold cheapest it is taken, and the row says that its cost was the reason" {
  rates up=1e12 down=1e12 up_both=1e12 down_both=1e12 kernel_read=1e12 kernel_write=1e12 cpu_elements=1e6
  steps 6
  expect '.functions[0].mode == "direct" and (.functions[0].why | test("foretold to cost least")) and .policy.functions[0].way == "direct"' "direct by choice"
  expect '.totals.elements_cpu == 0 and .totals.elements_stream == 0 and .functions[0].elements_host > 0' "over state on the host"
}
