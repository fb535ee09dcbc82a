#!/usr/bin/env bats
# charlm by itself, without the library: what the other end-to-end tests take for granted about it.
load ../lib/e2e

# shellcheck disable=SC2153 # TEXT comes from e2e.bash
# charlm NAME ARGUMENTS...: one small run on the simulated GPU; results in $BATS_TEST_TMPDIR/NAME.{json,out}.
charlm() {
  local name=$1
  shift
  "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" "$@" --json "$BATS_TEST_TMPDIR/$name.json" \
    >"$BATS_TEST_TMPDIR/$name.out" 2>&1
}

# of NAME FILTER: a question to a run's summary.
of() { jq -c "$2" "$BATS_TEST_TMPDIR/$1.json"; }

numbers='{params, state, losses}'

# same A B [FILTER], differ A B [FILTER]: compare two runs.
same() {
  local a b
  a=$(of "$1" "${3:-$numbers}") && b=$(of "$2" "${3:-$numbers}") || return 1
  [ "$a" = "$b" ] || {
    echo "$1: $a"
    echo "$2: $b"
    return 1
  }
}
differ() { [ "$(of "$1" "${3:-$numbers}")" != "$(of "$2" "${3:-$numbers}")" ]; }

@test "charlm learns: the loss of the last characters is a whole unit below the first" {
  charlm run --steps 30 --batch 128 --lr 0.02
  [ "$(of run '.loss_first - .loss_last > 1 and .steps == 30 and .outcome == "trained"')" = true ]
  [ "$(of run '.losses | length')" = 30 ]
}

# The moments of a checkpoint after step 1 give the gradient: exp_avg = (1 - beta1) g. Prints |g|^2.
squared_gradient() {
  python3 - "$1" <<'END'
import array, struct, sys

data = open(sys.argv[1], "rb").read()
tensors, at, total = struct.unpack_from("<Q", data, 16)[0], 88, 0.0
for _ in range(tensors):
    count = struct.unpack_from("<q", data, at)[0]
    exp_avg = array.array("f", data[at + 8 + 4 * count:at + 8 + 8 * count])
    total += sum((m / 0.1) ** 2 for m in exp_avg)
    at += 8 + 12 * count + 4
assert at == len(data)
print(total)
END
}

@test "the gradient is the loss's: a small step along it lowers the loss by its squared length" {
  # Five characters have one position to predict, so every batch is the same. A huge eps makes Adam's step lr/eps * g.
  printf 'abcde' >"$BATS_TEST_TMPDIR/text"
  descent=(--kernel 3336_float --weight-decay 0 --eps 1e4 --lr 10)
  TEXT=$BATS_TEST_TMPDIR/text charlm one --steps 1 "${descent[@]}" --save "$BATS_TEST_TMPDIR/checkpoint"
  TEXT=$BATS_TEST_TMPDIR/text charlm two --steps 2 "${descent[@]}"
  squared=$(squared_gradient "$BATS_TEST_TMPDIR/checkpoint")
  ratio=$(of two "(.losses[0] - .losses[1]) / (0.001 * $squared)")
  echo "|g|^2 = $squared, fall of the loss over its first-order value = $ratio"
  jq -en "$ratio > 0.98 and $ratio < 1.02"
}

@test "the numbers depend on the seed, not on queues, delays or how often the program waits" {
  charlm first --steps 6
  overtaken=0
  for queues in 1 8; do
    for seed in $SEEDS; do
      GPUSIM_QUEUES=$queues GPUSIM_SEED=$seed GPUSIM_DELAY_US=300 GPUSIM_REPORT=$BATS_TEST_TMPDIR/sim.json \
        charlm delayed --steps 6 --sync-every 100
      same first delayed
      overtaken=$((overtaken + $(sim .out_of_order)))
    done
  done
  [ "$overtaken" -gt 0 ]
  charlm other --steps 6 --seed 2
  differ first other
}

@test "a saved run resumes to the numbers of an uninterrupted one" {
  for optimizer in --adamw --adam; do
    charlm whole --steps 6 $optimizer --lr 0.003
    charlm half --steps 3 $optimizer --lr 0.003 --save "$BATS_TEST_TMPDIR/checkpoint"
    differ whole half
    charlm resumed --steps 6 $optimizer --lr 0.003 --resume "$BATS_TEST_TMPDIR/checkpoint"
    same whole resumed '{params, state}'
    [ "$(of resumed .losses)" = "$(of whole '.losses[3:]')" ]
  done
}

@test "a checkpoint of another model, of another text or cut short is refused with the reason" {
  charlm saved --steps 1 --save "$BATS_TEST_TMPDIR/checkpoint"
  run charlm resumed --steps 2 --hidden 8 --resume "$BATS_TEST_TMPDIR/checkpoint"
  [ "$status" -eq 1 ]
  grep -q 'belongs to another model' "$BATS_TEST_TMPDIR/resumed.out"
  head -c 100000 "$BATS_TEST_TMPDIR/checkpoint" >"$BATS_TEST_TMPDIR/short"
  run charlm resumed --steps 2 --resume "$BATS_TEST_TMPDIR/short"
  [ "$status" -eq 1 ]
  grep -q 'cut short' "$BATS_TEST_TMPDIR/resumed.out"
  [ "$(of resumed .outcome)" = '"failed"' ]
  head -c 5000 "$TEXT" >"$BATS_TEST_TMPDIR/text"
  TEXT=$BATS_TEST_TMPDIR/text run charlm resumed --steps 2 --resume "$BATS_TEST_TMPDIR/checkpoint"
  [ "$status" -eq 1 ]
  grep -q 'another model, seed or text' "$BATS_TEST_TMPDIR/resumed.out"
}

@test "out of device memory ends with status 3 and names what did not fit and the totals" {
  charlm large --steps 2
  status=0
  GPUSIM_MEMORY=$(($(of large .device_peak) * 7 / 10)) charlm small --steps 2 || status=$?
  [ "$status" -eq 3 ]
  grep -Eq 'out of device memory: exp_avg(_sq)? of [a-z]+ .* needs a segment of [0-9]+ bytes; [0-9]+ of [0-9]+ bytes' \
    "$BATS_TEST_TMPDIR/small.out"
  [ "$(of small '.outcome == "out of memory" and .params == null and .device_peak > 0')" = true ]
}

@test "under memory pressure cached segments go back to the driver and the run goes on" {
  # Activations of 64 KiB have segments of their own, and are free and too small when state is created.
  activations=(--steps 1 --batch 1024 --segment-scale 256)
  charlm large "${activations[@]}"
  [ "$(of large .segments_released)" = 0 ]
  GPUSIM_MEMORY=$(($(of large .device_peak) - 131072)) charlm tight "${activations[@]}"
  [ "$(of tight '.segments_released > 0')" = true ]
  same large tight
}

@test "a device limit makes the device small for the program alone" {
  status=0
  charlm limited --steps 2 --device-limit 1536KiB || status=$?
  [ "$status" -eq 3 ]
  charlm roomy --steps 2 --device-limit 64MiB
  charlm unlimited --steps 2
  same roomy unlimited
}

@test "every fused kernel's mangled name has the shape of the shipped ones" {
  names=$(strings -n 100 "$CHARLM" | grep -E '^_ZN2at6native5[12]_GLOBAL__N__[^L]*25multi_tensor_apply_kernel' | sort -u)
  tail='25multi_tensor_apply_kernelINS1_32FusedOptimizerTensorListMetadataILi4EEENS1_20FusedAdamMathFunctorIfLi4ELNS0_9ADAM_MODEE'
  pack='ELb0EEEJPKfdddddbS9_S9_EEEvT_T0_DpT1_'
  adam="^_ZN2at6native51_GLOBAL__N__[0-9a-f]{8}_18_fused_adam_impl_cu_[0-9a-f]{8}${tail}0${pack}\$"
  adamw="^_ZN2at6native52_GLOBAL__N__[0-9a-f]{8}_19_fused_adamw_impl_cu_[0-9a-f]{8}${tail}1${pack}\$"
  kernels=$(grep -c '^KERNEL' "$ROOT/integration/charlm/kernels/kernels.def")
  echo "$names"
  [ "$(grep -cE "$adam" <<<"$names")" -eq "$kernels" ]
  [ "$(grep -cE "$adamw" <<<"$names")" -eq "$kernels" ]
  [ "$(wc -l <<<"$names")" -eq $((2 * kernels)) ]
}

@test "every fused kernel equals its formula bit for bit and the launch loop covers every chunk once" {
  run "$SIM" "$BUILD/test/charlm_adam"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(grep -c '^ok ' <<<"$output")" -eq 22 ]
}

@test "layouts of one generation agree and each hidden variant differs from what it resembles" {
  for kernel in 3336_double 3336_float 25544_float wrong_layout unfused ulp other_fusion; do
    charlm "$kernel" --steps 6 --kernel "$kernel"
  done
  same 3336_float 25544_float
  same 3336_float wrong_layout
  for kernel in 3336_double unfused ulp other_fusion; do
    differ 3336_float "$kernel"
  done
  for kernel in 3336_float ulp; do
    charlm "$kernel-2" --steps 2 --kernel "$kernel"
  done
  same 3336_float-2 ulp-2
}

@test "garbage in the unused part of the metadata is not read" {
  for kernel in 3336_double 25544_float; do
    charlm clean --steps 3 --kernel $kernel
    charlm garbage --steps 3 --kernel $kernel --garbage-tail
    same clean garbage
  done
}

@test "more tensors than a launch holds train as the same numbers in both layouts" {
  many=(--steps 3 --table-count 40 --tables 4000)
  charlm narrow --kernel 3336_float "${many[@]}"
  charlm wide --kernel 25544_float "${many[@]}"
  same narrow wide
}

@test "maximising the negative loss, or scaling by a power of two, gives the numbers of plain training" {
  charlm plain --steps 5
  charlm maximized --steps 5 --maximize
  same plain maximized
  charlm scaled --steps 5 --grad-scale 1024
  same plain scaled
}

@test "found_inf skips one step and does not count it" {
  charlm five --steps 5 --grad-scale 1024
  charlm six --steps 6 --grad-scale 1024
  charlm skipped --steps 6 --grad-scale 1024 --found-inf-at 4
  same five skipped .step_counters
  differ six skipped
  [ "$(of six '.losses[:4]')" = "$(of skipped '.losses[:4]')" ]
  [ "$(of six '.losses[4]')" != "$(of skipped '.losses[4]')" ]
}

@test "what touches the optimizer changes the numbers: schedule, device learning rate, foreign kernel, dropped state" {
  charlm plain --steps 6
  for option in --lr-schedule --tensor-lr "--ema-every 3" "--free-state-at 4" "--weight-decay 0" --adam "--lr 0.002"; do
    # shellcheck disable=SC2086 # an option and its value
    charlm changed --steps 6 $option
    differ plain changed
  done
  charlm dropped --steps 6 --free-state-at 4
  charlm three --steps 3
  same dropped three .step_counters
  [ "$(of dropped '.scratch_sum != 0')" = true ]
}

@test "placing a parameter beside its state changes addresses, not numbers" {
  charlm plain --steps 4
  charlm shared --steps 4 --share-piece
  same plain shared
}

@test "freeing an unknown pointer is an invalid value and does no harm" {
  charlm plain --steps 2
  charlm freed --steps 2 --free-unknown
  grep -q '^free of an unknown pointer: cudaErrorInvalidValue$' "$BATS_TEST_TMPDIR/freed.out"
  same plain freed
}

@test "wrong usage ends with status 2 and a sentence that names the option and the remedy" {
  wrong() {
    run "$CHARLM" "$@"
    echo "$output"
    [ "$status" -eq 2 ]
  }
  wrong
  grep -q 'no text file was named; give its path' <<<"$output"
  wrong "$TEXT" --stepz 3
  grep -q "unknown option --stepz" <<<"$output"
  wrong "$TEXT" --lr
  grep -q -- '--lr needs a value' <<<"$output"
  wrong "$TEXT" --lr fast
  grep -q -- "--lr is 'fast', which is not a finite number" <<<"$output"
  wrong "$TEXT" --device-limit 3MB
  grep -q -- "--device-limit is '3MB', which is not a size such as" <<<"$output"
  wrong "$TEXT" --kernel none
  grep -q -- "--kernel is 'none'; the kernels are listed by --help" <<<"$output"
  wrong "$TEXT" --segment-scale 3
  grep -q 'power of two' <<<"$output"
  wrong "$TEXT" --adam --adamw
  wrong "$TEXT" --beta1 1
  wrong "$TEXT" "$TEXT"
  run "$CHARLM" --help
  [ "$status" -eq 0 ]
  grep -q -- '--free-state-at STEP' <<<"$output"
}

@test "a text that is missing or too short is a clear error" {
  for text in "$BATS_TEST_TMPDIR/none" /dev/null; do
    status=0
    TEXT=$text charlm run --steps 1 || status=$?
    [ "$status" -eq 1 ]
    [ "$(of run .outcome)" = '"failed"' ]
  done
  grep -q '/dev/null has 0 bytes; the model needs more than 4' "$BATS_TEST_TMPDIR/run.out"
}
