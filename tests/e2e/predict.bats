#!/usr/bin/env bats
# What the library foretells of steps of full size against the simulated clock (tests/predict.py): a slice of machines, sizes and types
# that changes from day to day; `make predict` compares all, as make test-long does.
bats_require_minimum_version 1.5.0
load ../lib/e2e

SLICES=12

@test "on the simulated clock steps take what was foretold within 20 percent, and the way that was chosen is the cheapest" {
  unset OFFLOAD_THREADS OFFLOAD_RATES
  run -0 python3 "$ROOT/tests/predict.py" --build "$BUILD" --slice "$((10#$(date +%j) % SLICES))/$SLICES"
  [[ $output =~ "5 cases, "[1-3]" ways chosen" ]]
}
