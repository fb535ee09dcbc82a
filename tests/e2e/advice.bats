#!/usr/bin/env bats
# Advice of a running job: each test asserts from the report what was seen, then which sentence follows and with which numbers, and that a job
# without that reason doesn't get it.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/policy_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
export OFFLOAD_PIECE=16KiB

# job SETTINGS...: the program under the preload, with rates that are told.
job() {
  cat >"$BATS_TEST_TMPDIR/rates" <<-EOF
	up ${LINK:-25e9}
	down ${LINK:-25e9}
	up_both ${LINK:-25e9}
	down_both ${LINK:-25e9}
	EOF
  OFFLOAD_RATES=$BATS_TEST_TMPDIR/rates under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" sync=1 "$@"
  assert_ended && assert_clean
}

# advised KIND PATTERN: the sentence is given; not_advised KIND.
advised() {
  expect ".advice | map(select(.kind == \"$1\") | .text | test(\"$2\")) | any" "advice of kind $1 like '$2'" || { report .advice && return 1; }
}
not_advised() {
  expect ".advice | map(.kind) | index(\"$1\") == null" "no advice of kind $1" || { report .advice && return 1; }
}

@test "allocator settings that keep state where it is are named, and only where nothing moves" {
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True job
  not_advised allocator
  PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True OFFLOAD_MIN_ALLOCATION=1GiB job
  expect '.totals.steps == 8 and .totals.moved_bytes_peak == 0' "steps, and nothing moved"
  advised allocator "expandable_segments:True"
  PYTORCH_ALLOC_CONF=backend:cudaMallocAsync OFFLOAD_MIN_ALLOCATION=1GiB job
  advised allocator "cudaMallocAsync"
  PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5 job
  expect '.totals.moved_bytes_peak > 0' "state moved"
  advised allocator "limit .set_per_process_memory_fraction"
}

@test "a step that costs more than its target gets the tokens that it takes, and one that costs little doesn't" {
  LINK=1e8 OFFLOAD_STEP=stream job steps=20
  expect '.totals.moved_bytes_peak == 2097152 and .functions[0].launches_stream > 0' "a slow link"
  advised accumulate "offload takes .* of a step, .* accumulate [0-9]+ micro-batches"
  advised way "OFFLOAD_STEP=stream makes a step .* longer, bound by link"
  LINK=1e15 OFFLOAD_STEP=stream job steps=20
  not_advised way
  # Rates that are only assumed foretell nothing to advise by; what steps took was measured all the same.
  OFFLOAD_RATES=/dev/null OFFLOAD_TEST_WORKER_LAG_MS=5 under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" sync=1 steps=20
  expect '.policy.functions[0].rates == "assumed" and .steps.median_exposed_ns > 4000000' "the CPU step took its time"
  advised accumulate "offload takes [0-9.]+ ms of a step, .* accumulate [0-9]+ micro-batches"
}

@test "the advice's share of a step is the report's summary's, and of few measured steps nothing is said" {
  local steps exposed
  export OFFLOAD_RATES=/dev/null OFFLOAD_TEST_WORKER_LAG_MS=5
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" sync=1 steps=20
  expect '.policy.functions[0].rates == "assumed" and ([.steps.last[] | select(.exposed_ns > 0)] | length >= 5)' "enough steps were measured"
  "$BUILD/offload" report "$BATS_TEST_TMPDIR/report.json" | tr -s '\n ' ' ' >"$BATS_TEST_TMPDIR/text"
  exposed=$(grep -oP 'of it offload adds \K[^)]*(?=\))' "$BATS_TEST_TMPDIR/text") # "5.12 ms (78 %"
  [[ $exposed == *" ("*" %" ]]
  advised accumulate "offload takes ${exposed/ \(/ of a step, };"
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" sync=1 steps=6
  steps=$(report '[.steps.last[] | select(.exposed_ns > 0)] | length')
  [ "$steps" -gt 0 ] && [ "$steps" -lt 5 ]
  not_advised accumulate
  not_advised lora
}

@test "a job without an optimizer that is known is told so, at its end" {
  job steps=0 tensors=2
  expect '.totals.steps == 0 and .totals.allocations_seen > 0' "no step"
  advised no_optimizer "fused=True"
  job steps=2
  not_advised no_optimizer
}

@test "an 8-bit optimizer is named with what to use in its place" {
  cat >"$BATS_TEST_TMPDIR/8bit.ptx" <<-EOF
	.version 6.5
	.target sm_70
	.address_size 64
	.visible .entry _Z34kOptimizerStatic8bit2StateBlockwiseI8bit2StateBlockwiseILi0EEvPfS0_i(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }
	EOF
  job beside="$BATS_TEST_TMPDIR/8bit.ptx"
  expect '[.functions[] | select(.family == "bitsandbytes" and .launches > 0)] | length == 1' "it was seen"
  advised foreign "bitsandbytes 8-bit Adam is not taken over"
  job
  not_advised foreign
}

@test "a container that forbids choosing a node, a driver that is too old and WSL2 are told apart" {
  GPUSIM_HOST=0 GPUSIM_HOST_NUMA=0 job
  expect '.tier == "none" and .totals.moved_bytes_peak == 0' "nothing can move"
  advised driver "cap-add SYS_NICE"
  mkdir -p "$BATS_TEST_TMPDIR/root/proc"
  echo "Linux version 5.15.0-microsoft-standard-WSL2" >"$BATS_TEST_TMPDIR/root/proc/version"
  GPUSIM_HOST=0 GPUSIM_HOST_NUMA=0 OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root job
  advised driver "WSL2"
  expect '.advice | map(.text | test("SYS_NICE")) | any | not' "no other reason"
  OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root job # where memory moves all the same
  not_advised driver
}

@test "a host budget that keeps state on the device is named with its bytes, and with a line at exit only where there is much state" {
  OFFLOAD_HOST_MEMORY=1MiB job
  expect '.totals.moved_bytes_peak == 1048576' "half moved"
  advised host "host memory for state is 1.00 MiB, by OFFLOAD_HOST_MEMORY, so 1.00 MiB of it stays on the device"
  run grep -c "advice:" "$BATS_TEST_TMPDIR/with.err"
  [ "$output" -eq 0 ]
  # With drives none are asked for: what they hold isn't missed, what they have no room for is.
  mkdir "$BATS_TEST_TMPDIR/drive"
  OFFLOAD_NVME=$BATS_TEST_TMPDIR/drive OFFLOAD_HOST_MEMORY=1MiB job
  expect '.totals.moved_bytes_peak == 1048576 and .totals.drive_bytes_peak == 1048576' "half on the host, half on the drive"
  not_advised host
  OFFLOAD_NVME=$BATS_TEST_TMPDIR/drive OFFLOAD_NVME_LIMIT=256KiB OFFLOAD_HOST_MEMORY=1MiB job
  expect '.totals.moved_bytes_peak == 1048576 and .totals.drive_bytes_peak == 262144' "less of it on the drive"
  advised host "so 768 KiB of it stays on the device: raise OFFLOAD_HOST_MEMORY, or make room on the drives .OFFLOAD_NVME_LIMIT"
  LINK=1e8 job chunks=10 steps=10 # 20 MiB of state
  expect '.totals.moved_bytes_peak > 20000000' "all moved"
  grep -q "advice: offload takes " "$BATS_TEST_TMPDIR/with.err"
}
