#!/usr/bin/env bats
# Drivers before CUDA 12.4, which tell neither parameters (12.4) nor names (12.3) of kernels: both come from what the program
# loads. Host memory handles begin with 12.2; until then a step is recognised and stays.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/step_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
IMAGES=$BUILD/tests/e2e/images
STEPS=6
export OFFLOAD_PIECE=16KiB
export OFFLOAD_LOG=quiet
export GPUSIM_DRIVER=12.2

# compare MODE OPTIONS...: step_program without and with the preload; the last steps must have gone by MODE.
compare() {
  local mode=$1
  shift
  "$SIM" "$PROGRAM" "$KERNEL" small=1 "$@" >"$BATS_TEST_TMPDIR/without.out" || return 1
  OFFLOAD_STEP=$mode under_preload timeout -k 9 60 "$SIM" "$PROGRAM" "$KERNEL" small=1 "$@"
  case $mode in
  left) assert_ended && expect '.totals.moved_bytes_peak == 0' "nothing moved" || return 1 ;;
  *) assert_done "$mode" || return 1 ;;
  esac
  diff "$BATS_TEST_TMPDIR/without.out" "$BATS_TEST_TMPDIR/with.out" || return 1
  assert_clean
}

# A text that 11.8 translates, too.
old_text() {
  sed 's/^\.version .*/.version 7.8/' "$KERNEL" >"$BATS_TEST_TMPDIR/kernel.ptx"
  KERNEL=$BATS_TEST_TMPDIR/kernel.ptx
}

@test "12.2 and 12.3: an Adam program with a runtime is recognised and stepped by cpu and stream, bit for bit" {
  plain default --steps $STEPS
  for driver in 12.2 12.3; do
    for mode in cpu stream; do
      GPUSIM_DRIVER=$driver OFFLOAD_STEP=$mode offloaded --steps $STEPS
      assert_done $mode
      assert_same default
      assert_clean
    done
  done
}

@test "12.2 and 12.3: each way of loading a kernel leads to its image, also from memory that is freed then" {
  old_text
  for driver in 12.2 12.3; do
    for way in 0 1 2 3 4 5; do
      GPUSIM_DRIVER=$driver compare cpu load=$way
    done
  done
  compare stream load=0 unload=1
}

@test "12.2: fatbins of two architectures are read plain and packed by LZ4" {
  for image in plain lz4; do
    for way in 0 1 4; do
      STEP_IMAGE=$IMAGES/$image.fatbin compare cpu load=$way
    done
  done
}

@test "12.2: an image packed by zstd is left alone, with the reason" {
  STEP_IMAGE=$IMAGES/zstd.fatbin OFFLOAD_STEP=cpu compare left load=1
  expect '.functions[0].why | test("packed by zstd.*update the driver.*left alone")' "the function's reason"
  expect '.reasons | map(test("packed by zstd")) | any' "the reason"
}

@test "11.8 and 12.1: a step is recognised, and the report says why nothing moves" {
  old_text
  for driver in 11.8 12.1; do
    GPUSIM_DRIVER=$driver compare left
    expect '.functions[0] | .name == "AdamW fp32" and .launches == 4 and .mode == "direct"' "recognised"
    expect '.reasons | map(test("no state moves: this driver .CUDA 1[12].[18]. can.t make host memory")) | any' "the reason"
  done
}

@test "12.2: copies over the border of device and host memory, which such drivers refuse, are cut there" {
  old_text
  for mode in cpu stream; do
    OFFLOAD_HOST_MEMORY=640KiB compare $mode
    expect '.functions[0].blocks_taken > 0 and .functions[0].blocks_taken < .functions[0].blocks' "some state on the host, some not"
  done
}

@test "12.2: launches are scanned for state: a foreign kernel sees moved state and is seen" {
  plain ema --steps 8 --ema-every 3
  OFFLOAD_STEP=cpu offloaded --steps 8 --ema-every 3
  assert_done cpu
  expect '.totals.foreign_touches > 0 and .totals.pieces_home > 0' "the foreign kernel was seen and its pieces went home"
  assert_same ema
  assert_clean
}

@test "12.2 with a second device that has no context: the report says what to do" {
  old_text
  GPUSIM_DEVICES=2 compare left
  expect '.reasons | map(test("CUDA_VISIBLE_DEVICES")) | any' "the reason"
}
