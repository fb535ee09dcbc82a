# What end-to-end tests share: running charlm on the simulated GPU without and with the preload, and asking the reports.
# A comparison first asserts that something was done: see `assert_done`.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=${OFFLOAD_TEST_BUILD:-${TESTED_BUILD:-$ROOT/build}}
LIBOFFLOAD=${LIBOFFLOAD:-$BUILD/liboffload.so}
SIM=$BUILD/gpusim/run
CHARLM=$BUILD/charlm
TEXT=$ROOT/integration/charlm/text.txt
SEEDS=${OFFLOAD_TEST_SEEDS:-${TESTED_SEEDS:-"1 2"}}
# Programs don't inherit these: the library tells of names that it doesn't know. bats reads a file once more for each test.
export TESTED_BUILD=$BUILD TESTED_SEEDS=$SEEDS
unset OFFLOAD_TEST_BUILD OFFLOAD_TEST_SEEDS

# Small pieces make small programs useful: 16 KiB pieces, segments 64 times smaller than PyTorch's.
export GPUSIM_GRANULARITY=16KiB
export OFFLOAD_MIN_ALLOCATION=16KiB
export OFFLOAD_LOG=normal
export OFFLOAD_THREADS=2 # a team, also where two CPUs would give one thread
export OFFLOAD_RATES=/dev/null # nothing is measured: rates are the assumed ones
# A node of this file's own: the machine's limits, and no ranks of tests beside it, with whom memory and drives would be shared.
if [ -n "${BATS_FILE_TMPDIR:-}" ]; then
  export OFFLOAD_SYSROOT=$BATS_FILE_TMPDIR/node
  [ -d "$OFFLOAD_SYSROOT" ] || { mkdir -p "$OFFLOAD_SYSROOT/dev/shm" && ln -s /proc /sys "$OFFLOAD_SYSROOT"; }
fi
SMALL=(--segment-scale 64 --tables 8192 --hidden 16 --batch 16)

# plain NAME ARGS...: the program alone, once per test file and set of arguments; results in $BATS_FILE_TMPDIR/NAME.json.
plain() {
  local name=$1
  shift
  [ -e "$BATS_FILE_TMPDIR/$name.json" ] ||
    GPUSIM_REPORT=$BATS_FILE_TMPDIR/$name.sim.json "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" "$@" \
      --json "$BATS_FILE_TMPDIR/$name.json" >"$BATS_FILE_TMPDIR/$name.out" 2>&1
}

# offloaded ARGS...: the program under the preload; results in $BATS_TEST_TMPDIR/{with,report,sim}.json and with.{out,err}.
# It may fail: the caller asks $offloaded_status.
offloaded() {
  rm -f "$BATS_TEST_TMPDIR/with.json"
  under_preload "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" "$@" --json "$BATS_TEST_TMPDIR/with.json"
}

# under_preload COMMAND...: the same of any command on the simulated GPU, without with.json.
under_preload() {
  offloaded_status=0
  rm -f "$BATS_TEST_TMPDIR"/{report,sim}.json
  OFFLOAD_REPORT=$BATS_TEST_TMPDIR/report.json GPUSIM_REPORT=$BATS_TEST_TMPDIR/sim.json LD_PRELOAD=$LIBOFFLOAD \
    "$@" >"$BATS_TEST_TMPDIR/with.out" 2>"$BATS_TEST_TMPDIR/with.err" || offloaded_status=$?
}

# assert_ended: the program under the preload succeeded, and no setting of the test was ignored, but for those of EXPECT_IGNORED=1.
assert_ended() {
  [ "$offloaded_status" -eq 0 ] || {
    echo "the program under the preload ended with $offloaded_status"
    tail -n 5 "$BATS_TEST_TMPDIR/with.out" "$BATS_TEST_TMPDIR/with.err"
    return 1
  }
  [ -n "${EXPECT_IGNORED-}" ] || ! grep -E '^liboffload.*: OFFLOAD_[A-Z_]+(=.*)? is ignored: ' "$BATS_TEST_TMPDIR/with.err"
}

# report FILTER: a jq question to the library's report; sim FILTER: to the simulator's.
report() { jq -r "$1" "$BATS_TEST_TMPDIR/report.json"; }
sim() { jq -r "$1" "$BATS_TEST_TMPDIR/sim.json"; }

# expect FILTER SENTENCE: the report must answer true.
expect() {
  local answer
  answer=$(report "$1") || return 1
  if [ "$answer" != true ]; then
    echo "expected: $2"
    echo "the report answers '$answer' to: $1"
    jq -c '.totals, .functions, .reasons' "$BATS_TEST_TMPDIR/report.json"
    tail -n 5 "$BATS_TEST_TMPDIR/with.err"
    return 1
  fi
}

# assert_done MODE: state moved, and this function's steps were carried out in this mode, before anything is compared.
assert_done() {
  assert_ended || return 1
  expect '.totals.moved_bytes_peak > 0' "state moved to the host" || return 1
  expect "[.functions[] | select(.launches_$1 > 0)] | length > 0" "launches carried out by $1" || return 1
  case $1 in
  cpu) expect '.totals.proofs > 0 and .totals.elements_cpu > 0 and .totals.link_bytes_down > 0 and .totals.link_bytes_up > 0' \
    "elements stepped by the CPU after a proof" ;;
  stream) expect '.totals.elements_stream > 0 and .totals.link_bytes_up > 0' "elements streamed" ;;
  direct) expect '.totals.elements_cpu == 0 and .totals.elements_stream == 0' "no other mode" ;;
  esac
}

# assert_same NAME: losses, parameters and state equal those of `plain NAME`, bit for bit.
assert_same() {
  local both
  both=$(jq -c '{losses, params, state}' "$BATS_FILE_TMPDIR/$1.json" "$BATS_TEST_TMPDIR/with.json") || return 1
  if [[ $both != *$'\n'* || ${both%%$'\n'*} != "${both#*$'\n'}" ]]; then
    echo "without the preload, with it:"
    echo "$both"
    return 1
  fi
}

# assert_clean: the simulator saw no broken promise.
assert_clean() {
  [ "$(sim '.violations == 0 and .kernel_errors == 0')" = true ] || {
    echo "the simulator reports violations:"
    sim .
    tail -n 5 "$BATS_TEST_TMPDIR/with.err"
    return 1
  }
}
