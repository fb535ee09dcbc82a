#!/usr/bin/env bats
# The table of PyTorch's kernels in shim/README.md: a slice of its rows that changes from day to day, each family every day, and what is
# said of a table that isn't one. `make kernel-table` runs every row, and those with more chunks than a launch.
bats_require_minimum_version 1.5.0
load ../lib/e2e

SLICES=24
TABLE=$ROOT/tests/kernel_table.py
export OFFLOAD_TEST_BUILD=$BUILD LIBOFFLOAD

@test "today's slice of PyTorch's kernels gives, by cpu and by stream, what shim/README.md says" {
  run -0 python3 "$TABLE" --slice "$((10#$(date +%j) % SLICES))/$SLICES"
  [[ $output == *"kernels are as the table says" ]]
}

@test "a kernel of every family is as the table says: hostile data, every edge of sizes, more tensors than a list, skipped steps, branches in turn" {
  local types=(fp32 fp16 bf16) today=$((10#$(date +%j)))
  local type=${types[$((today % 3))]}
  for family in "2.1.2-2.2.2 AdamW $type" "2.3.1-2.10.0 Adam $type" "2.11.0 AdamW amsgrad $type" "2.12.0-2.15.0 AdamW fp32/bf16 state" \
    "2.12.0-2.15.0 Adam $type sm_75"; do
    run -0 python3 "$TABLE" --only "^$family"
    [[ $output == *"1 kernels are as the table says" ]]
  done
}

@test "a tensor of more chunks than a launch takes is cut between launches and gives the same by cpu and by stream" {
  local families=(2.1.2 2.3.1 2.11.0)
  run -0 python3 "$TABLE" --large --only "^${families[$((10#$(date +%j) % 3))]}"
  [[ $output == *"1 kernels are as the table says" ]]
}

# changed PATTERN REPLACEMENT: what is said of the table with its first line of that kind changed.
changed() {
  awk -v pattern="$1" -v by="$2" '!done && $0 ~ pattern { sub(pattern, by); done = 1; if ($0 == "") next } { print }' \
    "$ROOT/shim/README.md" >"$BATS_TEST_TMPDIR/README.md"
  run ! diff -q "$ROOT/shim/README.md" "$BATS_TEST_TMPDIR/README.md"
  run -1 python3 "$TABLE" --check --readme "$BATS_TEST_TMPDIR/README.md"
}

@test "a table with a row missing, double, invented, miscounted or of no known result is refused, and so is one that was written by hand" {
  run -0 python3 "$TABLE" --check
  changed '^[|] 2.1.2-2.2.2.*' ''
  [[ $output == *"has no line: ('2.1.2-2.2.2', "* ]]
  changed '^[|] 2.1.2-2.2.2 [|]' '| 2.0.1 |'
  [[ $output == *"is in two lines"* ]]
  changed '^[|] 2.1.2-2.2.2 [|]' '| 1.13 |'
  [[ $output == *"is no row of the data file"* ]]
  changed '[|] 16 [|]' '| 15 |'
  [[ $output == *"says 15 kernels and names 16"* ]]
  changed 'cpu identical, stream identical' 'cpu nearly identical'
  [[ $output == *"unknown result: cpu nearly identical"* ]]
  changed '^[|] PyTorch [|]' '| Torch |'
  [[ $output == *"is not as kernel_table.py --write writes it"* ]]
}

@test "a table that promises what a kernel doesn't do is found out by running it" {
  sed 's/| with L2 decay stream identical, .* |$/| cpu identical, stream identical |/' "$ROOT/shim/README.md" >"$BATS_TEST_TMPDIR/README.md"
  run -1 python3 "$TABLE" --readme "$BATS_TEST_TMPDIR/README.md" --only "^2.12.0-2.15.0 Adam bf16 sm_75"
  [[ $output == *"the table says 'cpu identical, stream identical', measured is 'with L2 decay stream identical"* ]]
}

@test "a kernel that isn't the one of the table's row is wrong, not identical" {
  mkdir -p "$BATS_TEST_TMPDIR/tests/e2e"
  ln -s "$BUILD"/{liboffload.so,liboffload-adam.so,gpusim} "$BATS_TEST_TMPDIR/"
  ln -s "$BUILD/tests/e2e/step_program" "$BATS_TEST_TMPDIR/tests/e2e/"
  ln -s "$BUILD/tests/e2e/exact-23-adamw.ptx" "$BATS_TEST_TMPDIR/tests/e2e/exact-211-adamw.ptx"
  OFFLOAD_TEST_BUILD=$BATS_TEST_TMPDIR run -1 python3 "$TABLE" --only "^2.11.0 AdamW bf16"
  [[ $output == *"WRONG: cpu: "*"its generation"* ]]
}
