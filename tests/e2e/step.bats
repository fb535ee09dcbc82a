#!/usr/bin/env bats
# The step rooms alone: a driver program that queues memsets and steps and never synchronises (step_program.c), on kernels that
# were made to be told apart (kernels/). Every comparison first asserts, from the report, what was done.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/step_program
KERNELS=$BUILD/tests/e2e
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet

# compare MODE KERNEL OPTIONS...: the program without and with the preload; the last steps must have gone by MODE.
compare() {
  local mode=$1 kernel=$KERNELS/$2.ptx small=1
  shift 2
  [ -z "${full-}" ] || small=0
  # without the preload on a device that is large enough
  GPUSIM_MEMORY=1GiB "$SIM" "$PROGRAM" "$kernel" small=$small "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$kernel" small=$small "$@"
  assert_done "$mode" || return 1
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# both KERNEL OPTIONS...: by stream and by cpu, whose report is there afterwards.
both() {
  OFFLOAD_STEP=stream compare stream "$@" && expect '.functions[0].mode == "stream"' "the streamed step" || return 1
  OFFLOAD_STEP=cpu compare cpu "$@" && expect '.functions[0].mode == "cpu"' "the CPU step"
}

why() { report '.functions[0].why'; }

@test "queued steps equal the program alone by cpu, stream and direct, with 1 and 8 hardware queues" {
  for queues in 1 8; do
    GPUSIM_QUEUES=$queues GPUSIM_DELAY_US=200 both 25544_float-adamw changing_lr=1
    GPUSIM_QUEUES=$queues GPUSIM_DELAY_US=200 OFFLOAD_STEP=direct compare direct 25544_float-adamw changing_lr=1
  done
}

@test "one stream that is late never changes the result" {
  for stream in 1 2 3 4 5 6 7 8; do
    GPUSIM_SLOW_STREAM=$stream GPUSIM_SLOW_US=10000 both 25544_float-adamw steps=3
  done
}

@test "a slow worker never changes the result" {
  OFFLOAD_TEST_WORKER_LAG_MS=4 OFFLOAD_STEP=cpu compare cpu 25544_float-adamw
  OFFLOAD_TEST_WORKER_LAG_MS=4 GPUSIM_QUEUES=1 OFFLOAD_STEP=cpu compare cpu 25544_float-adam
}

@test "a driver queue of three entries, which blocks the program in the middle of a step, is no deadlock" {
  GPUSIM_QUEUES=1 GPUSIM_DEPTH=3 OFFLOAD_TEST_WORKER_LAG_MS=2 both 25544_float-adamw
  [ "$(sim .blocked_submits)" -gt 0 ]
}

@test "Adam with L2 decay ships the gradient with its decay" {
  both 25544_float-adam decay=0.1
  expect '.functions[0].decay == "fused"' "fused decay"
}

@test "double scalars are recognised and stepped" {
  both 3336_double-adamw decay=0.01 changing_lr=1
  expect '.functions[0].metadata_bytes == 3336' "the small layout"
}

@test "scalars of 2.0 to 2.2 are told from those of 2.3 to 2.10" {
  OFFLOAD_STEP=cpu compare cpu old-adam
  expect '.functions[0].generation == "torch 2.0-2.2"' "the older generation"
}

@test "no decay, maximize, lr by pointer: each branch of the kernel is calibrated by itself" {
  both 25544_float-adamw decay=0
  expect '.functions[0].decay == "none"' "no decay"
  both 25544_float-adam maximize=1
  both 25544_float-adamw maximize=1 lr_pointer=1 changing_lr=1
}

@test "packed parameters and nonsense in the list's unused tail do no harm" {
  both 25544_float-adamw extra=1 garbage=1
}

@test "tensors that no vector can be loaded from take the kernel's scalar loop" {
  both 25544_float-adam packed=1
}

@test "several parameter groups with their own learning rates" {
  GPUSIM_DELAY_US=200 both 25544_float-adamw groups=3 steps=6
}

@test "parameter groups with betas and eps of their own, more in flight than the proof keeps inputs for" {
  OFFLOAD_TEST_WORKER_LAG_MS=2 OFFLOAD_STEP=cpu compare cpu 25544_float-adamw groups=5 own_betas=1 changing_lr=1 steps=8
  expect '.totals.refusals == 0 and .functions[0].launches_cpu >= 8' "no refusal"
  expect '.functions[0].launches_cpu + .functions[0].launches_stream >= 28' "none that the program's kernel did over the link"
  OFFLOAD_STEP=cpu compare cpu exact-212-adam entry=3 groups=5 own_betas=1 sync=1 steps=4
  expect '.totals.refusals == 0 and .functions[0].launches_cpu >= 12 and .functions[0].launches_stream == 0' "bf16, each group proven"
}

@test "two program streams step in turn: the CPU takes each step that finds the other stream's done" {
  both 25544_float-adamw groups=3 streams=2 steps=6 sync=1
  expect '.functions[0].launches_direct <= 3 and .functions[0].launches_cpu >= 15' "only the first step is direct"
  GPUSIM_DELAY_US=2000 OFFLOAD_STEP=cpu compare cpu 25544_float-adamw groups=3 streams=2 steps=6
}

@test "a step that waits for another stream's step, which comes after it, is no deadlock" {
  for mode in stream cpu; do
    OFFLOAD_STEP=$mode compare $mode 25544_float-adamw groups=2 gate=1
  done
  expect '.reasons | map(test("steps of several streams at once")) | any' "the reason"
}

@test "every tensor is stepped with the scalars of its own step counter" {
  both 25544_float-adamw own_steps=1
}

@test "more learning rates in flight than the proof keeps inputs for: each is proven with its own" {
  OFFLOAD_TEST_WORKER_LAG_MS=2 OFFLOAD_STEP=cpu compare cpu 25544_float-adamw changing_lr=1 steps=20
  expect '.totals.refusals == 0 and .functions[0].launches_cpu >= 8' "no refusal"
  expect '.functions[0].launches_cpu + .functions[0].launches_stream == 19' "none that the program's kernel did over the link"
}

@test "more learning rates than the proof keeps inputs for, all behind a word of the host's, are no deadlock" {
  OFFLOAD_STEP=cpu compare cpu 25544_float-adamw gate=14
  expect '.functions[0].launches_stream >= 6 and .functions[0].launches_cpu >= 8' "eight by the CPU, the others streamed"
  expect '.reasons | map(test("more steps are in flight")) | any' "the reason"
}

@test "a device that is busy puts calibration off: the step is streamed, and nothing waits for ever" {
  GPUSIM_QUEUES=1 OFFLOAD_STEP=cpu compare cpu 25544_float-adamw gate=2 new_branch=1
  expect '.functions[0].launches_stream == 2 and .totals.calibrations == 1' "the gated steps streamed"
  expect '.reasons | map(test("calibration waits: the device is busy")) | any' "the reason"
}

@test "modules of others that are unloaded between steps cost no calibration" {
  OFFLOAD_STEP=cpu compare cpu 25544_float-adamw unload=1 steps=8
  expect '.totals.calibrations == 1 and .functions[0].launches == 8 and .functions[0].launches_cpu == 7' "one calibration, every launch recognised"
}

@test "a program whose GPU is lost in the middle of a step ends without waiting for it" {
  SECONDS=0
  OFFLOAD_STEP=cpu compare cpu 25544_float-adamw lost=1 >/dev/null 2>&1 || true # the simulator counts the kernel's error
  [ "$SECONDS" -lt 8 ]
  assert_done cpu
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out"
  [ "$(sim .kernel_errors)" -eq 1 ] && [ "$(sim .violations)" -eq 0 ]
}

@test "a budget for part of the state: the other blocks stay the program's kernel's, in the same launch" {
  for mode in cpu stream; do
    OFFLOAD_HOST_MEMORY=640KiB OFFLOAD_STEP=$mode compare $mode 25544_float-adam
    expect '.functions[0].blocks_taken > 0 and .totals.elements_direct > 200000' "some blocks ours, some not"
  done
}

@test "state that began on the host because the device was full is stepped by the first launch, behind its memsets" {
  for mode in cpu stream; do
    GPUSIM_MEMORY=17MiB GPUSIM_SLOW_STREAM=1 GPUSIM_SLOW_US=5000 OFFLOAD_DEVICE_STAGING=1100KiB OFFLOAD_STEP=$mode \
      full=1 compare $mode 25544_float-adamw copies=0 steps=2
    expect '.totals.provisional_bytes > 0 and .functions[0].blocks_taken == .functions[0].blocks' "every block ours, from the first step"
  done
}

@test "steps on the legacy stream" {
  both 25544_float-adamw legacy=1
}

@test "a step number that grows large, and steps at which float powers differ" {
  OFFLOAD_STEP=cpu compare cpu 25544_float-adamw first_step=99998 steps=5
  OFFLOAD_STEP=cpu compare cpu 25544_float-adam first_step=101 steps=5 beta2=0.9999
}

@test "a step that found_inf skips is skipped by the CPU, too, and grad_scale is divided by and written back" {
  OFFLOAD_STEP=cpu compare cpu 25544_float-adamw found_inf=1
  expect '.functions[0].mode == "cpu" and .functions[0].launches_cpu == 3 and .totals.elements_cpu == 2 * 126563' "one of three skipped"
  for kernel in exact-212-adam exact-23-adamw exact-20-adamw_amsgrad; do
    for entry in 0 1 2 3; do
      OFFLOAD_STEP=cpu compare cpu $kernel entry=$entry grad_scale=1 found_inf=2 steps=3
      expect '.functions[0].launches_cpu == 2 and .totals.refusals == 0' "$kernel $entry"
    done
  done
}

@test "decay fused by unroll slot is no arithmetic of ours: calibration refuses it, and the steps are streamed" {
  OFFLOAD_STEP=cpu compare stream slot-adam
  expect '.totals.elements_cpu == 0 and .totals.calibrations == 1' "no element by the CPU"
  [[ $(why) == calibration* ]]
}

@test "a device whose powers are not libm's is proven by a neighbouring float" {
  OFFLOAD_STEP=cpu compare cpu power-adamw
  expect '.totals.proofs_nudged == .totals.proofs' "every proof by a neighbour"
}

@test "a kernel that is wrong at one step only is refused by the proof, and the program's kernel does that step" {
  OFFLOAD_STEP=cpu compare cpu sly-adamw first_step=7 steps=6
  expect '.totals.refusals == 1 and .functions[0].launches_refused == 1' "one refusal"
  [[ $(why) == *proof* ]]
}

@test "after a refusal the function's launches are streamed, and the report says why" {
  OFFLOAD_STEP=cpu compare cpu sly-adamw first_step=7 steps=8 sync=1
  expect '.totals.refusals == 1 and .functions[0].mode == "stream" and .functions[0].launches_stream == 4' "streamed from then on"
  [[ $(why) == "the running proof refused a launch"* ]]
}

@test "a parameter group with several refused launches in flight ends with the right numbers" {
  OFFLOAD_STEP=cpu compare cpu sly-adamw first_step=8 steps=5 groups=3
  expect '.totals.refusals > 1' "several refusals"
}

# every_type RELEASE OPTIONS...: all types of a release's kernels with each optimizer, by stream and direct.
every_type() {
  local release=$1 optimizer mode entry name
  shift
  for optimizer in adam adamw adam_amsgrad adamw_amsgrad; do
    for ((entry = 0; entry < types; entry++)); do
      for mode in $modes; do
        OFFLOAD_STEP=$mode compare $mode "typed-$release-$optimizer" entry="$entry" "$@" || return 1
        name=$(report '.functions[0].name')
        expect ".functions[0].mode == \"$mode\" and .totals.pieces_moved > 0" "$name by $mode" || return 1
        [ $mode = direct ] || expect '.totals.elements_stream > 0 and .functions[0].blocks_taken > 0' "$name streamed" || return 1
        names="$names$name;"
      done
    done
  done
}

@test "fp32, fp64, fp16 and bf16, with and without amsgrad, of 2.0 and 2.1 equal the program alone by stream and direct" {
  types=4 names='' modes="stream direct"
  every_type 20 garbage=1
  modes=stream
  every_type 21 garbage=1 lr_pointer=1 changing_lr=1
  [[ $names == *"AdamW amsgrad fp64;"* && $names == *"Adam fp16;"* && $names == *"Adam amsgrad bf16;"* ]]
}

@test "state whose alignment is its own takes the kernel's scalar loop in stream, too: 8 bytes of fp32, 16 of fp64, 4 of bf16" {
  for skewed in "0 8" "1 16" "3 4"; do
    # shellcheck disable=SC2086 # two words
    set -- $skewed
    for packed in 0 1; do
      OFFLOAD_STEP=stream compare stream typed-212-adamw_amsgrad entry="$1" skew="$2" packed=$packed
      OFFLOAD_STEP=stream compare stream typed-212-adam entry="$1" skew="$2" packed=$packed decay=0
    done
  done
}

@test "tensors of many chunks, three states of doubles: runs as long as a slot, which is made larger for them" {
  full=1 GPUSIM_DELAY_US=200 OFFLOAD_STEP=stream compare stream typed-23-adam_amsgrad entry=1
  full=1 OFFLOAD_DEVICE_STAGING=4400KiB OFFLOAD_STEP=stream compare stream typed-212-adamw_amsgrad entry=1 groups=2
  expect '.totals.link_bytes_up > 60000000' "three lists of doubles went up"
  OFFLOAD_DEVICE_STAGING=3MiB compare direct typed-212-adamw_amsgrad entry=1
  [[ $(why) == *OFFLOAD_DEVICE_STAGING=* ]]
}

@test "kernels whose arithmetic is nobody's are streamed by default, and the report names them" {
  compare stream typed-212-adamw entry=3
  expect '.functions[0].name == "AdamW bf16" and .functions[0].family == "torch_fused_adamw"' "the kernel"
  [[ $(why) == "calibration: none of the"* ]]
  compare stream typed-212-adam_amsgrad entry=0
  expect '.functions[0].name == "Adam amsgrad fp32" and .functions[0].launches_cpu == 0' "amsgrad"
}

# exactly GENERATION RELEASE TYPES OPTIMIZER...: every type's kernel by the CPU, over steps with hostile numbers, branches that
# change, a skipped step.
exactly() {
  local generation=$1 release=$2 types=$3 optimizer entry
  shift 3
  for optimizer; do
    for ((entry = 0; entry < types; entry++)); do
      OFFLOAD_STEP=cpu compare cpu "exact-$release-$optimizer" entry="$entry" steps=11 hostile=1 found_inf=1 sync=1 "${options[@]}" || return 1
      expect ".functions[0].launches_cpu == 10 and .totals.refusals == 0 and .functions[0].mode == \"cpu\"" \
        "all steps of $optimizer $entry by the CPU" || return 1
      [[ $(report '.functions[0].generation') =~ $generation ]] || return 1
    done
  done
}

@test "all kernels of 2.0 and 2.1 equal the program alone by cpu over ten steps with hostile numbers" {
  options=(changing_lr=1)
  exactly '2\.0-2\.2|2\.3-2\.10' 20 4 adam adamw adam_amsgrad adamw_amsgrad
  options=(branches=1)
  exactly '2\.0-2\.2|2\.3-2\.10' 21 4 adam adamw_amsgrad
}

@test "all 16 kernels of 2.3 to 2.10 equal the program alone by cpu over ten steps with hostile numbers" {
  options=(branches=1)
  exactly '2\.3-2\.10' 23 4 adam adamw adam_amsgrad adamw_amsgrad
}

@test "all 16 kernels of 2.11 equal the program alone by cpu over ten steps with hostile numbers" {
  options=(branches=1 packed=1)
  exactly '2\.11' 211 4 adam adamw adam_amsgrad adamw_amsgrad
}

@test "all 20 kernels of 2.12 and later equal the program alone by cpu over ten steps with hostile numbers" {
  options=(branches=1)
  exactly '2\.11|2\.12' 212 5 adam adamw adam_amsgrad adamw_amsgrad
}

@test "decay that is fused by unroll slot is streamed in every type; all fused, or none, is the CPU's" {
  for entry in 0 2 3 4; do
    OFFLOAD_STEP=cpu compare stream exact-slots-adam entry=$entry
    [[ $(why) == "calibration: none of the"* ]]
    OFFLOAD_STEP=cpu compare cpu exact-slots-adam entry=$entry maximize=1
    expect '.functions[0].decay == "unfused"' "none fused"
    OFFLOAD_STEP=cpu compare cpu exact-slots-adam entry=$entry grad_scale=1
    expect '.functions[0].decay == "fused"' "all fused with a scale"
  done
  OFFLOAD_STEP=cpu compare cpu exact-slots-adam entry=1
  OFFLOAD_STEP=cpu compare cpu exact-slots-adam_amsgrad entry=2
}

# types_of_today COUNT NUMBER: all types in a long run, else one that changes from day to day and with the number.
types_of_today() {
  if [ "$(wc -w <<<"$SEEDS")" -gt 2 ]; then
    seq 0 $(($1 - 1))
  else
    echo $(((10#$(date +%j) + $2) % $1))
  fi
}

# refused_variants FAMILY OPTIMIZER VARIANTS TYPES: kernels as variants of enum wrong (kernels/typed/exact.cuh).
refused_variants() {
  local entry variant
  for variant in $3; do
    for entry in $(types_of_today "$4" "$variant"); do
      OFFLOAD_STEP=cpu compare stream "exact-$1_wrong-$2" entry="$entry" steps=2 wrong="$variant" || return 1
      expect '.totals.elements_cpu == 0 and .totals.calibrations == 1' "$1 $2 $entry $variant" || return 1
      [[ $(why) == "calibration: none of the"* ]] || return 1
    done
  done
}

@test "variants of every family are refused: scalars a unit off, other fusion, a swapped product, another order, in types that change daily" {
  refused_variants 20 adam "1 3 5 7 8 10 12" 4
  refused_variants 20 adamw_amsgrad "2 4 9 10 11" 4
  refused_variants 23 adam "1 2 5 7 8" 4
  refused_variants 23 adamw "3 4 8 9 10" 4
  refused_variants 23 adam_amsgrad "2 4 10 11" 4
  refused_variants 23 adamw_amsgrad "1 5 7 12" 4
  refused_variants 212 adam "1 2 5 6" 5
  refused_variants 212 adamw "3 4 7 9" 5
  refused_variants 212 adam_amsgrad "2 8 10 11" 5
  refused_variants 212 adamw_amsgrad "1 6 10 12" 5
}

@test "both products of the moments swapped are the other form of 2.3 to 2.10, which the CPU knows; under the names of 2.0 it is nobody's" {
  for kernel in 23_wrong-adam 23_wrong-adamw; do
    for entry in 0 1 2 3; do
      OFFLOAD_STEP=cpu compare cpu exact-$kernel entry=$entry wrong=6
      expect '.functions[0].launches_cpu == 3 and .totals.refusals == 0' "$kernel $entry"
    done
  done
  refused_variants 20 adam 6 1
}

@test "a kernel of any family that is wrong at one step only is refused by the proof at that step, in every type" {
  for kernel in 20_wrong-adamw_amsgrad 23_wrong-adam 212_wrong-adamw 212_wrong-adam_amsgrad; do
    for entry in 0 1 2 3 4; do
      [[ $entry -lt 4 || $kernel == 212* ]] || continue
      local wrong=$((entry % 2 ? 2 : 3))
      OFFLOAD_STEP=cpu compare cpu exact-$kernel entry=$entry wrong=$wrong wrong_step=4 steps=6 sync=1
      expect '.totals.refusals == 1 and .functions[0].launches_refused == 1 and .functions[0].launches_stream == 2' "$kernel $entry $wrong"
      [[ $(why) == "the running proof refused a launch"* ]]
    done
  done
}

@test "betas of 0 and next to 1, an eps or lr of 0, a decay that is nothing as a float: every type is stepped by the CPU, or streamed and told why" {
  local kernel scalars entry
  for kernel in exact-212-adamw exact-23-adam; do
    for entry in 0 1 2 3 4; do
      [[ $entry -lt 4 || $kernel == *212* ]] || continue
      for scalars in "beta1=0" "beta2=0" "beta1=0 beta2=0 eps=0" "lr=0" "beta1=0.999 beta2=0.9999" "decay=1e-46"; do
        local mode=cpu
        [[ $scalars != decay* || $entry == 1 ]] || mode=stream
        # shellcheck disable=SC2086 # several words
        OFFLOAD_STEP=cpu compare $mode $kernel entry=$entry changing_lr=1 $scalars || { echo "$kernel $entry $scalars"; return 1; }
        expect ".totals.refusals == 0 and .functions[0].launches_$mode == 3" "$kernel $entry $scalars" || return 1
        [ $mode = cpu ] || [ "$(why)" = "the weight decay is nothing as a float" ]
      done
    done
  done
}

@test "scalars that the proof's data can't tell from their neighbours are refused, and the steps are streamed from then on" {
  OFFLOAD_STEP=cpu compare stream exact-212-adamw entry=2 beta1=0.9999999 steps=8 sync=1
  expect '.totals.refusals == 1 and .functions[0].launches_stream > 0 and .functions[0].mode == "stream"' "one refusal"
  [[ $(why) == "the running proof refused a launch"* ]]
}

@test "every tensor of a narrow type is proven with its own step counter, changing learning rates and their pointers" {
  for entry in 1 2 3 4; do
    OFFLOAD_STEP=cpu compare cpu exact-212-adamw entry=$entry own_steps=1 changing_lr=1 lr_pointer=1 first_step=998
    OFFLOAD_STEP=cpu compare cpu exact-212-adam entry=$entry own_steps=1 groups=2 beta2=0.95 eps=1e-6
    expect '.totals.refusals == 0' "no refusal"
  done
}

@test "fp32 kernels under the names and arguments of 2.0 and 2.1 are calibrated and stepped by the CPU" {
  for kernel in typed-20-adamw typed-20-adam typed-21-adamw typed-21-adam; do
    OFFLOAD_STEP=cpu compare cpu $kernel garbage=1 changing_lr=1 extra=1
    expect '.functions[0].generation == "torch 2.0-2.2" and .totals.proofs > 0' "the generation of $kernel"
  done
  OFFLOAD_STEP=cpu compare cpu typed-21-adam lr_pointer=1 maximize=1
}

@test "all 16 kernels of 2.3 and all 20 of 2.12 equal the program alone by stream and direct" {
  types=4 names='' modes=stream
  every_type 23 garbage=1 extra=1
  types=5 modes="stream direct"
  GPUSIM_DELAY_US=200 every_type 212 garbage=1 lr_pointer=1 changing_lr=1 groups=2
  [ "$(tr ';' '\n' <<<"$names" | grep . | sort -u | wc -l)" -eq 20 ]
}

@test "staging as small as two slots of a chunk is enough" {
  OFFLOAD_DEVICE_STAGING=1100KiB both 25544_float-adam
  # a launch of many groups, the copies down or up late: a slot waits for its own
  for slow in 3 4 5; do
    GPUSIM_SLOW_STREAM=$slow GPUSIM_SLOW_US=1000 OFFLOAD_DEVICE_STAGING=1100KiB OFFLOAD_STEP=stream full=1 compare stream 25544_float-adam steps=3
  done
}

@test "little state takes little staging: what is free on the device stays free for the program" {
  OFFLOAD_STEP=cpu compare cpu 25544_float-adamw
  [ "$(sim .device_bytes_peak)" -lt $((6 << 20)) ]
}

@test "staging that holds no chunk leaves the steps to the program's kernel and says what to set" {
  OFFLOAD_DEVICE_STAGING=100KiB compare direct 25544_float-adamw
  [[ $(why) == *OFFLOAD_DEVICE_STAGING* ]]
  # also where `stream` was asked for: on stderr, once
  OFFLOAD_LOG=normal OFFLOAD_STEP=stream OFFLOAD_DEVICE_STAGING=100KiB compare direct 25544_float-adamw
  [[ $(why) == *OFFLOAD_DEVICE_STAGING* ]]
  [ "$(grep -c 'is stepped by direct: .*OFFLOAD_DEVICE_STAGING' "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
}

@test "without the companion object the steps are streamed and the report says why" {
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/"
  LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream 25544_float-adamw
  [[ $(why) == *"liboffload-adam.so is missing"* ]]
}

@test "a mode worse than the one wanted is one reason and one line on stderr; one that was asked for is none" {
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/"
  OFFLOAD_LOG=normal LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream 25544_float-adamw
  expect '.reasons | map(select(test("AdamW fp32 is stepped by stream: liboffload-adam.so is missing"))) | length == 1' "the reason"
  [ "$(grep -c 'is stepped by stream: liboffload-adam.so' "$BATS_TEST_TMPDIR/with.err")" -eq 1 ]
  OFFLOAD_LOG=normal OFFLOAD_STEP=stream LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream 25544_float-adamw
  expect '.reasons | map(test("stepped by")) | any | not' "no reason"
  run -1 grep "is stepped by" "$BATS_TEST_TMPDIR/with.err"
}

@test "a companion that is cut short is told as broken, not as missing, and the steps are streamed" {
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/"
  for bytes in 0 30 4096 60000 $(($(stat -c %s "$BUILD/liboffload-adam.so") - 1)); do
    head -c "$bytes" "$BUILD/liboffload-adam.so" >"$BATS_TEST_TMPDIR/liboffload-adam.so"
    LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream 25544_float-adamw
    [[ $(why) == *"liboffload-adam.so beside liboffload.so can't be loaded"*"install both anew"* ]]
    [[ $(why) != *"missing"* ]]
  done
}

@test "a companion of another version is refused, and the steps are streamed" {
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/"
  cp "$BUILD/test/liboffload-adam-other-abi.so" "$BATS_TEST_TMPDIR/liboffload-adam.so"
  LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream 25544_float-adamw
  [[ $(why) == *"of another version (interface 1, this library wants"*"install both together" ]]
}

@test "on a machine without vector code the steps are streamed, or the CPU's by plain code where that is asked for" {
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/"
  cp "$BUILD/test/liboffload-adam-plain.so" "$BATS_TEST_TMPDIR/liboffload-adam.so"
  LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream exact-212-adamw entry=3
  [[ $(why) == "the CPU step needs AVX2"*"OFFLOAD_ISA=scalar"* ]]
  OFFLOAD_ISA=avx2 LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare stream exact-212-adamw entry=3
  [[ $(why) == "OFFLOAD_ISA=avx2 is not to be had: this machine offers scalar"* ]]
  OFFLOAD_ISA=scalar LIBOFFLOAD=$BATS_TEST_TMPDIR/liboffload.so compare cpu exact-212-adamw entry=3
}

@test "every instruction set of this machine gives the program's bits in every type" {
  local instructions="scalar" isa entry
  ! grep -q ' avx2 ' /proc/cpuinfo || instructions+=" avx2"
  ! grep -q ' avx512f ' /proc/cpuinfo || instructions+=" avx512"
  [ "$(uname -m)" != aarch64 ] || instructions+=" neon"
  for isa in $instructions; do
    for entry in 0 1 2 3 4; do
      OFFLOAD_ISA=$isa OFFLOAD_STEP=cpu compare cpu exact-212-adamw_amsgrad entry=$entry hostile=1 steps=3
      expect ".settings.isa == \"$isa\" and .totals.refusals == 0" "$isa"
    done
  done
}

@test "an instruction set that is not there leaves the steps to stream" {
  local missing=neon
  [ "$(uname -m)" = x86_64 ] || missing=avx2
  OFFLOAD_ISA=$missing compare stream 25544_float-adamw
  [[ $(why) == *$missing* ]] || [[ $(why) == *ISA* ]]
}
