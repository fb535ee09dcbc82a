#!/usr/bin/env bats
# Every way in which a program reaches the driver, and many at once: the program prints the same with and without the
# preload, and, where the way leads past a wrapper, the wrapper was met.
# bats runs each test in a subshell.
# shellcheck disable=SC2030,SC2031

ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
LIB=${LIBOFFLOAD:-$BUILD/liboffload.so}
SIM=$BUILD/gpusim/run
PROGRAMS=$BUILD/test/interposition
NAMES=$ROOT/tests/gpusim/gen/driver_names.txt
# In a sanitizer build its runtime has to come first; `run` knows it.
SANITIZER=$(sed -n "s/^sanitizer='\(.*\)'$/\1/p" "$SIM")
# Rounds of what shows by chance only: ten a seed.
read -ra seeds <<<"${OFFLOAD_TEST_SEEDS:-1 2}"
ROUNDS=$((10 * ${#seeds[@]}))

setup() {
  export GPUSIM_GRANULARITY=16KiB OFFLOAD_MIN_ALLOCATION=64KiB OFFLOAD_CALLERS='*'
  unset OFFLOAD_TEST_BUILD OFFLOAD_TEST_SEEDS
  cd "$BATS_TEST_TMPDIR" || return 1
}

# preloaded LIST PROGRAM ARGS...: on the simulated GPU; standard output to OUT, standard error to OUT.err. Who waits for
# ever is stopped.
preloaded() {
  LD_PRELOAD=${SANITIZER:+$SANITIZER:}$1 timeout -k 9 60 "$SIM" "$PROGRAMS/$2" "${@:3}" >"$OUT" 2>"$OUT.err"
}

# same PROGRAM ARGS...: succeeds with and without the library and prints the same. With BESIDE=FILE and ORDER=before or
# behind, another preloaded library is there both times, and stands before or behind this one.
same() {
  local status=0 list=$LIB
  [ -z "${BESIDE-}" ] || if [ "$ORDER" = before ]; then list=$BESIDE:$LIB; else list=$LIB:$BESIDE; fi
  rm -f report.json
  OUT=without preloaded "${BESIDE-}" "$@" || status=$?
  [ $status -eq 0 ] && [ -s without ] || {
    echo "$*: without the library it ends with $status"
    tail -n 5 without without.err
    return 1
  }
  OUT=with OFFLOAD_REPORT=$PWD/report.json preloaded "$list" "$@" || status=$?
  [ $status -eq 0 ] && diff without with || {
    echo "$*: with LD_PRELOAD=$list it ends with $status"
    tail -n 5 with.err
    return 1
  }
}

# ranges: how many allocations of the last run became ranges; "none" when cuInit's wrapper was never met.
ranges() { if [ -e report.json ]; then jq .totals.ranges report.json; else echo none; fi; }

# met N PROGRAM ARGS...: the same, and N allocations became ranges.
met() {
  same "${@:2}" || return 1
  [ "$(ranges)" = "$1" ] || {
    echo "${*:2}: expected $1 ranges, got $(ranges)"
    return 1
  }
}

# passes PROGRAM ARGS...: the same, and no wrapper was met.
passes() { met none "$@"; }

@test "a program that is linked against the driver does the same, and its allocations become ranges" {
  met 1 way_direct
  met 1 way library "$PROGRAMS/libuses.so"
}

@test "dlopen and dlsym: by soname, by path, in the default scope, on the program's own handle" {
  met 1 way dlsym
  met 1 way dlsym "$BUILD/gpusim/libcuda.so.1"
  met 1 way default
  met 1 way main
}

@test "a dlsym that was itself looked up by version is glibc's: it passes us by, unharmed" {
  passes way taken
}

@test "a driver in a linker namespace of its own passes us by, unharmed" {
  passes way dlmopen
}

@test "a library opened with RTLD_DEEPBIND passes us by, unharmed" {
  passes way deepbind "$PROGRAMS/libuses.so"
}

@test "cuGetProcAddress leads to the wrappers in both forms, for every flag, at each name's first version and the newest" {
  for form in proc proc-v1; do
    for flags in 0 1 2; do
      met 1 way $form 0 $flags
      met 1 way $form 12000 $flags
      met 1 way $form 13000 $flags
    done
  done
}

@test "every name of the driver resolves to the same address or to its own wrapper, at every version, with every flag" {
  [ "$(grep -vc "^#" "$NAMES")" -eq 638 ] # those of 13.0, and one of 13.1
  for driver in 11.8 12.0 12.2 12.4 12.8 13.0; do
    export GPUSIM_DRIVER=$driver
    OUT=without preloaded "" every_name <"$NAMES"
    OUT=with preloaded "$LIB" every_name <"$NAMES"
    [ "$(wc -l <without)" -gt 7000 ]
    [ "$(grep -c somewhere without)" -eq 0 ] # every answer is a function that begins there and has a name
    # The wrapper of a function has its name: nothing but the object differs.
    sed 's/liboffload\.so cu/libcuda.so.1 cu/' with | diff without -
    # Exactly the functions of hooks.def that this driver has are wrappers, wherever they came from.
    sed -n 's/.*libcuda\.so\.1 \(cu.*\)/\1/p' without | sort -u >there
    sed -nE "s/^(HOOK|SEEN)\\(([^,]*),.*/\\2/p" "$ROOT/shim/hooks.def" | sort -u | comm -12 - there >hooked
    [ "$(wc -l <hooked)" -gt 80 ]
    sed -n 's/.*liboffload\.so \(cu.*\)/\1/p' with | sort -u | diff hooked -
    sed -n 's/.*libcuda\.so\.1 \(cu.*\)/\1/p' with | sort -u | comm -12 - hooked >missed
    [ ! -s missed ]
  done
}

@test "the shared runtime, kernels and driver functions found through it do the same" {
  met 3 runtime_shared
}

@test "a runtime linked into the program does the same" {
  met 3 runtime_static
}

@test "per-thread default streams: a driver program and a runtime program do the same" {
  met 1 way_per_thread
  met 3 runtime_per_thread
  nm -D "$PROGRAMS/way_per_thread" | grep -q ' cuMemcpyHtoD_v2_ptds$'
}

@test "static objects that call CUDA in constructors and destructors, of programs and of libraries" {
  met 3 runtime_shared
  [ "$(grep -c '^early' with)" -eq 4 ]
  met 7 runtime_shared "$PROGRAMS/libruntime_shared.so"
  [ "$(grep -c '^early' with)" -eq 8 ]
}

@test "two runtimes in one process, shared and static, each freeing what the other allocated" {
  met 7 runtime_shared "$PROGRAMS/libruntime_static.so"
  met 7 runtime_static "$PROGRAMS/libruntime_shared.so"
  met 7 runtime_static "$PROGRAMS/libruntime_static.so"
  [ "$(grep -c 'foreign: contents right' with)" -eq 1 ]
}

@test "the driver's library is closed and opened again" {
  met 2 way dlsym libcuda.so.1 again
  met 2 way proc 0 0 again
  met 2 way library "$PROGRAMS/libuses.so" again
}

@test "libraries that hold kernel images are closed and opened again" {
  met 11 runtime_shared "$PROGRAMS/libruntime_shared.so" twice
  met 11 runtime_static "$PROGRAMS/libruntime_static.so" twice
  met 19 runtime_shared "$PROGRAMS/libruntime_static.so" "$PROGRAMS/libruntime_shared.so" twice
  [ "$(grep -c '^close 0' with)" -eq 4 ]
}

@test "a library with kernels that comes to lie where another one lay registers with its own runtime" {
  same in_turn "$PROGRAMS/libmodule1.so" "$PROGRAMS/libmodule2.so" "$PROGRAMS/libmodule1.so"
  grep -qx 'at the same place' with
  [ "$(grep -c '^runtime 1' with)" -eq 2 ]
  [ "$(grep -c '^runtime 2' with)" -eq 1 ]
}

# with_allocator FILE: each kind of program with this allocator before and behind the library.
with_allocator() {
  local BESIDE=$1 ORDER
  for ORDER in before behind; do
    met 1 way_direct || return 1
    met 1 way proc 13000 2 || return 1
    met 7 runtime_shared "$PROGRAMS/libruntime_static.so" || return 1
    met 1 waiting "$PROGRAMS/libwaiting_library.so" use || return 1
  done
  # It was really there.
  LD_PRELOAD=$BESIDE sh -c "grep -q ${BESIDE%%.so*} /proc/self/maps" # the shell's child has it, too
}

@test "jemalloc preloaded before and behind the library" {
  with_allocator libjemalloc.so.2
}

@test "tcmalloc preloaded before and behind the library" {
  with_allocator libtcmalloc_minimal.so.4
}

@test "another dlsym hooker behind the library: both are met" {
  local ORDER=behind
  for BESIDE in "$PROGRAMS/libhooker.so" "$PROGRAMS/libhooker_symbolic.so"; do
    met 1 way_direct
    met 1 way dlsym
    met 1 way proc 0 0
    met 3 runtime_shared
    grep -q '^hooker: [1-9][0-9]* lookups' with.err
  done
  # What stays native goes through the hooker's own wrapper, where it can name that.
  for program in 'way dlsym' way_direct; do
    # shellcheck disable=SC2086
    OFFLOAD_MIN_ALLOCATION=1GiB met 0 $program
    grep -q '^hooker: .* 1 allocations' with.err
  done
}

@test "another dlsym hooker before the library: it decides, the program does the same, and the report says so" {
  local ORDER=before
  for BESIDE in "$PROGRAMS/libhooker.so" "$PROGRAMS/libhooker_symbolic.so"; do
    passes way dlsym
    passes way proc 0 0
    passes runtime_shared
    met 0 way_direct
    jq -e '.reasons | map(select(test("^libhooker.*hooks dlsym too.*name liboffload.so first in LD_PRELOAD"))) | length == 1' report.json
  done
  unset BESIDE
  met 1 way_direct
  jq -e '.reasons | map(test("hooks dlsym")) | any | not' report.json
}

@test "a tool that the driver injects inside cuInit finds and calls driver functions" {
  export CUDA_INJECTION64_PATH=$PROGRAMS/libinjection.so
  met 1 way_direct
  grep -qx 'injection: 9 of 9 found' with
  grep -qx 'injection: init 0' with
  met 1 way dlsym
  met 3 runtime_shared
  met 3 runtime_static
  CUDA_INJECTION64_PATH=/nowhere/tool.so met 1 way_direct
}

# often PROGRAM ARGS...: many rounds, each of which must succeed; the last is compared with one without the library.
often() {
  for ((round = 1; round <= ROUNDS; round++)); do
    rm -f report.json
    OUT=with OFFLOAD_REPORT=$PWD/report.json preloaded "$LIB" "$@" || {
      echo "$*: round $round ended with $?"
      tail -n 5 with with.err
      return 1
    }
    # A thread may allocate between another one's cuInit and the library's start.
    [ "$(ranges)" -ge 1 ]
  done
  OUT=without preloaded "" "$@"
  diff <(tail -n 1 without) <(tail -n 1 with)
}

@test "sixteen threads starting cold, each by another way, while libraries are opened and closed" {
  often cold "$PROGRAMS/libuses.so" "$PROGRAMS/libnext1.so"
  grep -qx '16 threads, 0 failures' with
  [ "$(ranges)" -ge 8 ]
}

@test "sixteen threads starting cold in a program that is linked against the driver" {
  often cold_direct "$PROGRAMS/libuses.so" "$PROGRAMS/libnext1.so"
  grep -qx '16 threads, 0 failures' with
  [ "$(ranges)" -ge 8 ]
}

@test "a thread that starts CUDA while another one is still finding the driver's functions" {
  local BESIDE=$PROGRAMS/libhooker.so ORDER=behind
  # Where it has found little but cuInit; no launch; nothing that makes ranges; not which device is current.
  for name in cuGetProcAddress cuLaunchKernel cuMemAddressReserve cuCtxGetDevice; do
    HOOKER_STOPS_AT=$name met 1 finding "$PROGRAMS/libuses.so"
    grep -qx 'finding: in the middle' with.err
  done
}

@test "a thread that allocates through the runtime while another one is opening the unwinder's library" {
  met 1 unwinding "$PROGRAMS/libunwinding_library.so"
  # A sanitizer's runtime brings that library along.
  [ -n "$SANITIZER" ] || grep -qx 'unwinding: not there before, being opened' with.err
  grep -qx 'library 1' with
}

@test "a constructor that waits for a thread which looks driver functions up" {
  for ((round = 1; round <= ROUNDS; round++)); do
    same waiting "$PROGRAMS/libwaiting_library.so" lookup
  done
  [ "$(grep -c ' found$' with)" -eq 9 ]
}

@test "a constructor that waits for a thread which starts and uses CUDA" {
  for ((round = 1; round <= ROUNDS; round++)); do
    met 1 waiting "$PROGRAMS/libwaiting_library.so" use
  done
}

@test "a constructor that waits for a thread which allocates through the runtime for the first time" {
  for ((round = 1; round <= ROUNDS; round++)); do
    met 2 runtime_waiting "$PROGRAMS/libwaiting_library.so"
  done
}
