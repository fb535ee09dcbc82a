#!/usr/bin/env bats
# The whole path: an unmodified program without and with the preload, bit for bit.
load ../lib/e2e

STEPS=6

# matrix KERNEL: every step mode, 1 and 8 hardware queues, every seed of delays.
matrix() {
  local kernel=$1 mode=$2 queues seed out_of_order=0
  plain "$kernel" --kernel "$kernel" --steps $STEPS --lr-schedule
  for queues in 1 8; do
    for seed in $SEEDS; do
      GPUSIM_QUEUES=$queues GPUSIM_SEED=$seed GPUSIM_DELAY_US=300 OFFLOAD_STEP=$mode \
        offloaded --kernel "$kernel" --steps $STEPS --lr-schedule
      echo "queues $queues seed $seed"
      assert_done "$mode"
      assert_same "$kernel"
      assert_clean
      out_of_order=$((out_of_order + $(sim .out_of_order)))
    done
  done
  [ "$out_of_order" -gt 0 ]
}

@test "3,336 bytes, double scalars: the cpu step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 3336_double cpu
  expect '.functions[0].generation | test("2.3")' "the generation with double scalars"
}
@test "3,336 bytes, double scalars: the stream step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 3336_double stream
}
@test "3,336 bytes, double scalars: the direct step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 3336_double direct
}
@test "3,336 bytes, fp32 fma: the cpu step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 3336_float cpu
  expect '.functions[0].metadata_bytes == 3336 and (.functions[0].generation | test("2.11"))' "the fp32 generation"
}
@test "3,336 bytes, fp32 fma: the stream step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 3336_float stream
}
@test "3,336 bytes, fp32 fma: the direct step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 3336_float direct
}
@test "25,544 bytes, fp32 fma: the cpu step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 25544_float cpu
  expect '.functions[0].metadata_bytes == 25544 and .functions[0].family == "torch_fused_adamw"' "the wide layout"
}
@test "25,544 bytes, fp32 fma: the stream step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 25544_float stream
}
@test "25,544 bytes, fp32 fma: the direct step equals the program alone under 1 and 8 queues and seeded delays" {
  matrix 25544_float direct
}

@test "Adam with L2 decay: cpu and stream equal the program alone" {
  plain l2 --adam --steps $STEPS --weight-decay 0.1 --lr-schedule
  for mode in cpu stream; do
    OFFLOAD_STEP=$mode offloaded --adam --steps $STEPS --weight-decay 0.1 --lr-schedule
    assert_done $mode
    assert_same l2
    assert_clean
  done
  expect '.functions[0].family == "torch_fused_adam"' "Adam, not AdamW"
}

@test "without weight decay, with maximize, and with the learning rate in device memory the cpu step equals the program alone" {
  plain nodecay --steps $STEPS --weight-decay 0
  OFFLOAD_STEP=cpu offloaded --steps $STEPS --weight-decay 0
  assert_done cpu
  assert_same nodecay
  plain maximize --steps 4 --maximize --lr 1e-4
  OFFLOAD_STEP=cpu offloaded --steps 4 --maximize --lr 1e-4
  assert_done cpu
  assert_same maximize
  plain tensorlr --steps $STEPS --tensor-lr --lr-schedule
  OFFLOAD_STEP=cpu offloaded --steps $STEPS --tensor-lr --lr-schedule
  assert_done cpu
  assert_same tensorlr
}

@test "grad_scale and found_inf go by cpu and by stream and equal the program alone, a skipped step included" {
  plain scaled --steps $STEPS --grad-scale 1024 --found-inf-at 4
  local mode
  for mode in cpu stream; do
    OFFLOAD_STEP=$mode offloaded --steps $STEPS --grad-scale 1024 --found-inf-at 4
    assert_done $mode
    assert_same scaled
    assert_clean
  done
}

@test "a run saved with the preload resumes without it, and the reverse, bit for bit" {
  plain whole --steps 6
  OFFLOAD_STEP=cpu offloaded --steps 3 --save "$BATS_TEST_TMPDIR/with.ckpt"
  assert_done cpu
  GPUSIM_REPORT='' "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 6 --resume "$BATS_TEST_TMPDIR/with.ckpt" \
    --json "$BATS_TEST_TMPDIR/resumed.json"
  [ "$(jq -c '[.params,.state]' "$BATS_TEST_TMPDIR/resumed.json")" = "$(jq -c '[.params,.state]' "$BATS_FILE_TMPDIR/whole.json")" ]
  "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 3 --save "$BATS_TEST_TMPDIR/without.ckpt" --json "$BATS_TEST_TMPDIR/x.json"
  OFFLOAD_STEP=cpu offloaded --steps 6 --resume "$BATS_TEST_TMPDIR/without.ckpt"
  assert_done cpu
  [ "$(jq -c '[.params,.state]' "$BATS_TEST_TMPDIR/with.json")" = "$(jq -c '[.params,.state]' "$BATS_FILE_TMPDIR/whole.json")" ]
}

@test "with too small a budget a part of the state moves and the report names the limit" {
  plain default --steps $STEPS
  offloaded --steps $STEPS
  all=$(report .totals.moved_bytes_peak)
  OFFLOAD_HOST_MEMORY=256KiB OFFLOAD_STEP=cpu offloaded --steps $STEPS
  assert_done cpu
  assert_same default
  [ "$(report .totals.moved_bytes_peak)" -le 262144 ]
  [ "$(report .totals.moved_bytes_peak)" -lt "$all" ]
  expect '.budget.limited_by == "OFFLOAD_HOST_MEMORY"' "the limit's name"
  expect '.reasons | map(test("OFFLOAD_HOST_MEMORY")) | any' "a reason naming it"
}

@test "where HOST_NUMA handles are refused, HOST handles serve" {
  plain default --steps $STEPS
  GPUSIM_HOST_NUMA=0 OFFLOAD_STEP=cpu offloaded --steps $STEPS
  assert_done cpu
  assert_same default
  expect '.tier == "host"' "the second rung of the ladder"
}

@test "where no host handle can be made nothing moves, the numbers are the same and the report names the remedy" {
  plain default --steps $STEPS
  GPUSIM_HOST_NUMA=0 GPUSIM_HOST=0 offloaded --steps $STEPS
  [ "$offloaded_status" -eq 0 ]
  expect '.totals.moved_bytes_peak == 0 and .tier == "none"' "nothing moved"
  expect '.reasons | map(test("SYS_NICE")) | any' "the flag that would allow it"
  assert_same default
}

# A copy of the library in a folder of its own, without or with another companion.
library_alone() {
  mkdir -p "$BATS_TEST_TMPDIR/lib"
  cp "$LIBOFFLOAD" "$BATS_TEST_TMPDIR/lib/liboffload.so"
  [ $# -eq 0 ] || cp "$1" "$BATS_TEST_TMPDIR/lib/liboffload-adam.so"
}

@test "without the companion object the step streams and the report says why" {
  plain default --steps $STEPS
  library_alone
  LIBOFFLOAD=$BATS_TEST_TMPDIR/lib/liboffload.so offloaded --steps $STEPS
  assert_done stream
  assert_same default
  expect '[.functions[].why, .reasons[]] | map(test("liboffload-adam.so")) | any' "the missing file's name"
}

@test "with a companion object of another version the step streams and the report says why" {
  plain default --steps $STEPS
  library_alone "$BUILD/test/liboffload-adam-other-abi.so"
  LIBOFFLOAD=$BATS_TEST_TMPDIR/lib/liboffload.so offloaded --steps $STEPS
  assert_done stream
  assert_same default
  expect '[.functions[].why, .reasons[]] | map(test("version|interface")) | any' "the version"
}

@test "garbage in the unused tail of the metadata does no harm" {
  for kernel in 3336_double 25544_float; do
    plain "$kernel-tail" --kernel "$kernel" --steps $STEPS
    for mode in cpu stream direct; do
      OFFLOAD_STEP=$mode offloaded --kernel "$kernel" --steps $STEPS --garbage-tail
      assert_done $mode
      assert_same "$kernel-tail"
      assert_clean
    done
  done
}

@test "a step whose enqueue blocks on a queue of three entries neither deadlocks nor differs" {
  plain default --steps $STEPS
  for mode in cpu stream; do
    GPUSIM_DEPTH=3 GPUSIM_QUEUES=1 GPUSIM_DELAY_US=100 OFFLOAD_STEP=$mode offloaded --steps $STEPS
    assert_done $mode
    assert_same default
    assert_clean
    [ "$(sim .blocked_submits)" -gt 0 ]
  done
}

@test "freed state that another kernel re-uses goes home and the numbers stay the same" {
  plain freed --steps 8 --free-state-at 4
  for mode in cpu stream direct; do
    OFFLOAD_STEP=$mode offloaded --steps 8 --free-state-at 4
    assert_done $mode
    assert_same freed
    assert_clean
    expect '.totals.pieces_home > 0' "pieces came home"
  done
}

@test "a foreign kernel that reads and writes moved state sees it and is seen" {
  plain ema --steps 8 --ema-every 3
  for mode in cpu stream direct; do
    OFFLOAD_STEP=$mode offloaded --steps 8 --ema-every 3
    assert_done $mode
    assert_same ema
    assert_clean
    expect '.totals.foreign_touches > 0 and .totals.pieces_home > 0' "the foreign kernel was seen and its pieces went home"
  done
}

@test "two state tensors in one piece move together and a piece shared with a parameter stays" {
  plain shared --steps $STEPS --share-piece
  for mode in cpu stream; do
    GPUSIM_GRANULARITY=64KiB OFFLOAD_STEP=$mode offloaded --steps $STEPS --share-piece
    assert_done $mode
    assert_same shared
    assert_clean
  done
}

@test "allocations that are all below OFFLOAD_MIN_ALLOCATION: a reason names the variable, its value and the largest" {
  plain default --steps $STEPS
  OFFLOAD_MIN_ALLOCATION=1GiB offloaded --steps $STEPS
  assert_same default
  expect '.totals.moved_bytes_peak == 0 and .totals.steps > 0' "steps, and nothing moved"
  expect '.reasons | map(select(test("OFFLOAD_MIN_ALLOCATION \\(1.00 GiB; the largest was [0-9.]+ [KM]iB\\)"))) | length == 1' "the reason"
  grep 'no optimizer state was moved in .*OFFLOAD_MIN_ALLOCATION' "$BATS_TEST_TMPDIR/with.err"
}

@test "the right name with the wrong layout is left alone and reported" {
  plain wrong --kernel wrong_layout --steps 4
  offloaded --kernel wrong_layout --steps 4
  [ "$offloaded_status" -eq 0 ]
  assert_same wrong
  expect '.totals.moved_bytes_peak == 0' "nothing moved"
  expect '[.functions[] | select(.why | test("layout|parameter|metadata"))] | length > 0' "the reason"
  expect '.reasons | map(select(test("AdamW.*laid out"))) | length == 1' "among the reasons too"
  grep 'nothing was moved: .*laid out.*PyTorch: fused=True' "$BATS_TEST_TMPDIR/with.err"
}

# hidden VARIANT: refused by calibration or by the proof; the program's own kernel does the step, with the right numbers.
hidden() {
  plain "$1" --kernel "$1" --steps $STEPS --lr-schedule
  OFFLOAD_STEP=cpu offloaded --kernel "$1" --steps $STEPS --lr-schedule
  [ "$offloaded_status" -eq 0 ]
  expect '.totals.moved_bytes_peak > 0' "state moved all the same"
  expect '[.functions[] | select(.why != "")] | length > 0' "a reason"
  assert_same "$1"
  assert_clean
}

@test "a kernel with another fusion of the moments is refused by calibration and training goes on with the right numbers" {
  hidden other_fusion
  expect '.totals.elements_cpu == 0' "no element by the CPU"
}
@test "a kernel whose bias correction is one ulp off from the third step on is refused by the proof and goes on with the right numbers" {
  hidden ulp
  expect '.totals.refusals > 0 or .totals.elements_cpu == 0' "refused"
}
@test "a kernel compiled without the fused decay is told apart and carried out exactly" {
  hidden_or_exact=unfused
  plain $hidden_or_exact --kernel unfused --steps $STEPS --lr-schedule
  OFFLOAD_STEP=cpu offloaded --kernel unfused --steps $STEPS --lr-schedule
  assert_done cpu
  expect '[.functions[] | select(.decay == "unfused")] | length > 0' "the unfused decay"
  assert_same unfused
}

@test "ordinary hyper-parameters over a million elements and twenty steps stay bit-equal by the cpu step" {
  local big=(--segment-scale 8 --tables 65536 --hidden 16 --batch 8 --steps 20 --lr-schedule)
  for hyper in "1e-3 0.1" "1e-5 0.01"; do
    read -r lr decay <<<"$hyper"
    plain "big-$lr" "${big[@]}" --lr "$lr" --weight-decay "$decay"
    GPUSIM_GRANULARITY=64KiB OFFLOAD_STEP=cpu offloaded "${big[@]}" --lr "$lr" --weight-decay "$decay"
    assert_done cpu
    assert_same "big-$lr"
    expect '.totals.elements_cpu > 15000000' "a million elements in each of at least fifteen steps"
  done
}

@test "tensors of several chunks, split over launches, step by cpu and stream as they do alone" {
  # 23 million elements a table: 352 chunks, more than a launch of the small layout holds
  local big=(--segment-scale 1 --table-count 1 --tables 1441792 --steps 4 --kernel 3336_float)
  export GPUSIM_GRANULARITY=2MiB OFFLOAD_MIN_ALLOCATION=2MiB
  plain chunks "${big[@]}"
  for mode in cpu stream; do
    OFFLOAD_STEP=$mode offloaded "${big[@]}"
    assert_done $mode
    assert_same chunks
    assert_clean
    expect '.functions[0].launches > 4' "more launches than steps"
  done
}

@test "state that does not fit begins its life on the host and the numbers are those of a bigger device" {
  local model=(--tables 131072 --steps "$STEPS")
  plain large "${model[@]}"
  peak=$(jq .device_peak "$BATS_FILE_TMPDIR/large.json")
  small=$((peak * 7 / 10))
  status=0
  GPUSIM_MEMORY=$small "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" "${model[@]}" || status=$?
  [ "$status" -eq 3 ]
  for mode in cpu stream direct; do
    GPUSIM_MEMORY=$small OFFLOAD_STEP=$mode offloaded "${model[@]}"
    assert_done $mode
    assert_same large
    assert_clean
    expect '.totals.provisional_bytes > 0 or .totals.evictions > 0' "helped under pressure"
    [ "$(grep -c 'the device is full' "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
    [[ $(report .totals.provisional_bytes) -eq 0 ]] || grep 'iB began there because the device was full' "$BATS_TEST_TMPDIR/with.err"
  done
  GPUSIM_MEMORY=$small OFFLOAD_OVERFLOW=0 offloaded "${model[@]}"
  [ "$offloaded_status" -eq 3 ]
}

@test "a free of an unknown pointer is the driver's error, with the library as without" {
  run "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 1 --free-unknown
  without=$(grep 'free of an unknown pointer' <<<"$output")
  [ -n "$without" ]
  LD_PRELOAD=$LIBOFFLOAD run "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 1 --free-unknown
  [ "$(grep 'free of an unknown pointer' <<<"$output")" = "$without" ]
}

@test "unknown and bad OFFLOAD_ values are named with the remedy and the job runs on" {
  plain default --steps $STEPS
  OFFLOAD_STEP=gpu OFFLOAD_HOST_MEMORY=20Gigs OFFLOAD_STEPP=cpu offloaded --steps $STEPS
  [ "$offloaded_status" -eq 0 ]
  assert_same default
  grep -q 'OFFLOAD_STEP.*gpu.*cpu, stream' "$BATS_TEST_TMPDIR/with.err"
  grep -q 'OFFLOAD_HOST_MEMORY.*20Gigs' "$BATS_TEST_TMPDIR/with.err"
  grep -q 'OFFLOAD_STEPP' "$BATS_TEST_TMPDIR/with.err"
}

@test "OFFLOAD_MODE=off and observe move nothing and change nothing" {
  plain default --steps $STEPS
  OFFLOAD_MODE=off offloaded --steps $STEPS
  [ "$offloaded_status" -eq 0 ]
  assert_same default
  [ ! -s "$BATS_TEST_TMPDIR/with.err" ]
  OFFLOAD_MODE=observe offloaded --steps $STEPS
  [ "$offloaded_status" -eq 0 ]
  assert_same default
  expect '.totals.moved_bytes_peak == 0 and .totals.steps > 0' "steps seen, nothing moved"
}
