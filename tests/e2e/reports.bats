#!/usr/bin/env bats
# What users of other preloaded libraries for CUDA reported, each test named after the symptom: it does not occur here. Reports
# that other files show are listed in tests/claims.tsv, and those that can't occur, with the reason.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAMS=$BUILD/test/reports
STEPS=3

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  export OFFLOAD_REPORT=$BATS_TEST_TMPDIR/report.json
}

# same COMMAND...: ends in time with the preload, and prints and returns what it does without.
same() {
  local plain=0 preloaded=0
  timeout -k 9 60 "$@" >plain 2>plain.err || plain=$?
  LD_PRELOAD=$LIBOFFLOAD timeout -k 9 60 "$@" >preloaded 2>preloaded.err || preloaded=$?
  [ -s plain ]
  [ "$plain" -eq "$preloaded" ] || { echo "ended with $plain without, $preloaded with" && tail -n 3 preloaded.err && return 1; }
  diff plain preloaded
}

@test "undefined symbol _dl_sym, version GLIBC_PRIVATE: nothing private of glibc is needed" {
  for object in liboffload.so liboffload-adam.so offload; do
    objdump -T "$BUILD/$object" >symbols
    grep -q 'GLIBC_2' symbols
    run -1 grep GLIBC_PRIVATE symbols
  done
}

@test "cudnnCreate calls itself without end: libraries whose names begin with cu, hip or ompt find their own and each other's functions" {
  same "$PROGRAMS/names_user"
  for name in cudnnCreate cublasCreate_v2 cufftPlan1d cuvidCreateDecoder hipInit ompt_start_tool; do
    grep -qx "$name gives 2" preloaded
    grep -qx "$name one at 0: next another, first found, own found" preloaded
    grep -qx "$name two at 1: next none, first found, own found" preloaded
  done
  # The same with the driver's functions there.
  cat >driver.py <<'PY'
import ctypes, os, sys
ctypes.CDLL("libcuda.so.1").cuInit(0)
names = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
print(names.cudnnCreate(0), names.hipInit(0), flush=True)
PY
  same "$SIM" python3 driver.py "$PROGRAMS/libnames1.so"
  grep -qx '2 2' preloaded
}

@test "import spins at 100 % CPU: a probe for the next tool in a library's constructor ends" {
  same python3 -c 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).ompt_start_tool(0), flush=True)' "$PROGRAMS/libnames1.so"
  grep -qx 2 preloaded
}

@test "WSL: the driver's own look-up of cuInit recurses or hangs: a driver that stands before another one starts" {
  export LD_LIBRARY_PATH=$PROGRAMS
  same "$PROGRAMS/through_front"
  grep -qx 'init 0' preloaded
  grep -qx 'alloc 0 0x7008' preloaded
  grep -qx 'cuMemAlloc 12000: liboffload.so' preloaded.err # our wrapper was met, and led to the driver
}

@test "hang or failure with a driver newer than the library: unknown names and versions are the driver's own" {
  export LD_LIBRARY_PATH=$PROGRAMS
  same "$PROGRAMS/through_front"
  grep -qx 'newer 0 0x9008' preloaded
  grep -qx 'unheard of says 77' preloaded
  grep -qx 'cuNobodyKnows 99000: 0 none' preloaded
  grep -qx 'cuMemAlloc 99000: libcuda_behind.so' preloaded.err
  grep -qx 'cuUnheardOf 99000: libcuda_behind.so' preloaded.err
}

@test "hang at start with drivers 12.8 and 13.0: the job trains" {
  plain default --steps $STEPS
  for version in 12.4 12.8 13.0; do
    GPUSIM_DRIVER=$version OFFLOAD_STEP=cpu offloaded --steps $STEPS
    assert_done cpu
    assert_same default
  done
}

@test "the second look-up by RTLD_NEXT finds nothing: 20,000 of them find what the first did, from four threads" {
  same "$PROGRAMS/repeated"
  grep -qx 'wrong 0' preloaded
  same python3 -c 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).repeated(), flush=True)' "$PROGRAMS/librepeated.so"
  grep -qx 0 preloaded
}

@test "illegal device id, crash in cuMemCreate: calls without a context are answered as the driver does" {
  same "$SIM" "$PROGRAMS/calls"
  grep -qx 'create type 3 id 0: 0 release 0' preloaded # HOST_NUMA
  grep -qx 'alloc 201' preloaded
  [ -s report.json ] # the library was at work
}

@test "invalid device ordinal when freeing: pointers that the library doesn't know are the driver's business" {
  same "$SIM" "$PROGRAMS/calls" context
  grep -qx 'range yes' preloaded.err # in the middle of the same calls an allocation of ours
  grep -q '^free unknown [1-9]' preloaded
  grep -q '^free in order: unknown [1-9]' preloaded
}

@test "minutes until hundreds of processes have started: a hundred start at once, while some are killed" {
  local pids=() ended=0
  OFFLOAD_REPORT='' timeout -k 9 60 bash -c 'for i in $(seq 100); do
      LD_PRELOAD=$1 OFFLOAD_LOG=quiet "$2" "$3" context >out.$i 2>err.$i &
      [ $((i % 10)) -ne 0 ] || { kill -9 $! && killed=$((killed + 1)); }
    done; wait; echo "killed $killed"' - "$LIBOFFLOAD" "$SIM" "$PROGRAMS/calls" >all
  grep -qx 'killed 10' all
  for i in $(seq 100); do
    [ $((i % 10)) -eq 0 ] || { grep -qx 'range yes' "err.$i" && grep -q '^attribute' "out.$i" && ended=$((ended + 1)); }
  done
  [ "$ended" -eq 90 ]
  [ "$(find . -newer all -name '*offload*' | wc -l)" -eq 0 ]
}

@test "cuLaunchKernelEx is missing: optimizer launches that come by it are stepped like any other" {
  local program=("$SIM" "$BUILD/tests/e2e/step_program" "$BUILD/tests/e2e/25544_float-adamw.ptx" small=1)
  export OFFLOAD_PIECE=16KiB
  LD_PRELOAD=$PROGRAMS/liblaunch_ex.so GPUSIM_MEMORY=1GiB "${program[@]}" >plain 2>plain.err
  for mode in cpu stream; do
    offloaded_status=0
    OFFLOAD_STEP=$mode GPUSIM_REPORT=$PWD/sim.json LD_PRELOAD=$PROGRAMS/liblaunch_ex.so:$LIBOFFLOAD timeout -k 9 60 "${program[@]}" \
      >with.out 2>with.err || offloaded_status=$?
    assert_done $mode
    diff plain with.out
    grep -q '^cuLaunchKernelEx [1-9][0-9]* times' with.err
    [ "$(report '[.functions[].launches] | add')" -gt 1 ]
  done
}
