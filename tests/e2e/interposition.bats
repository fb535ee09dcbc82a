#!/usr/bin/env bats
# How programs meet the library: every way to a driver function leads to the same wrapper, everything else stays as it
# was, and a process that doesn't use CUDA sees nothing of it.
# bats runs each test in a subshell.
# shellcheck disable=SC2030,SC2031

ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
LIB=${LIBOFFLOAD:-$BUILD/liboffload.so}
SIM=$BUILD/gpusim/run
PROGRAMS=$BUILD/test/interposition
# In a sanitizer build its runtime has to come first; `run` knows it.
SANITIZER=$(sed -n "s/^sanitizer='\(.*\)'$/\1/p" "$SIM")
PRELOAD=${SANITIZER:+$SANITIZER:}$LIB
# What a sanitized library may open beyond a plain one, as a pattern; otherwise nothing.
SANITIZED=${SANITIZER:+'libstdc[+][+]|libubsan\.so|libgcc_s\.so|libm\.so|/proc/self/'}

setup() {
  export GPUSIM_GRANULARITY=16KiB
  export OFFLOAD_REPORT=$BATS_TEST_TMPDIR/report.json
  unset OFFLOAD_TEST_BUILD OFFLOAD_TEST_SEEDS
  export ASAN_OPTIONS=detect_leaks=0 # shells and compilers leak, and under strace nothing can be said
  cd "$BATS_TEST_TMPDIR" || return 1
}

# with PROGRAM ARGS...: on the simulated GPU, under the preload; standard error goes to the file `err`.
with() { LD_PRELOAD=$PRELOAD "$SIM" "$PROGRAMS/$1" "${@:2}" 2>err; }
without() { "$SIM" "$PROGRAMS/$1" "${@:2}" 2>err; }

# lives EXPECTED WORDS...: what `life` under the preload prints, its lines joined by commas.
lives() {
  local expected=$1 got
  shift
  got=$(with life "$@" | paste -sd, -)
  if [ "$got" != "$expected" ]; then
    printf 'words    %s\nexpected %s\ngot      %s\n' "$*" "$expected" "$got"
    cat err
    return 1
  fi
}

# leads WAY NAME HOOK: one line of ways_in.
leads() {
  grep -qx "$1 $2: liboffload.so $3" ways || {
    echo "$1 $2 should lead to $3, but:"
    grep "^$1 $2:" ways
    return 1
  }
}

@test "a direct link meets the wrappers" {
  with ways_in >ways
  leads direct cuMemAlloc_v2 cuMemAlloc_v2
  leads direct cuLaunchKernel cuLaunchKernel
}

@test "dlsym on the driver's handle and in the default scope meets the wrappers" {
  with ways_in >ways
  for name in cuInit cuMemAlloc_v2 cuMemFree_v2 cuLaunchKernel cuLaunchKernel_ptsz cuMemcpyHtoD_v2 cuGetProcAddress cuGetProcAddress_v2; do
    leads dlsym $name $name
    leads default $name $name
  done
}

@test "dlvsym meets the wrappers, and a version that doesn't exist is not found" {
  run env LD_LIBRARY_PATH="$PROGRAMS/driver_with_versions" LD_PRELOAD="$PRELOAD" "$PROGRAMS/versioned"
  [ "${lines[0]}" = 'cuInit DRIVER_1: liboffload.so' ]
  [ "${lines[1]}" = 'cuInit DRIVER_2: none' ]
  [ "${lines[2]}" = 'cuDeviceGet DRIVER_1: libcuda.so.1' ]
}

@test "cuGetProcAddress meets the wrappers in both versions, and in its own answers" {
  with ways_in >ways
  for version in v1 v2; do
    leads proc-$version-default cuMemAlloc cuMemAlloc_v2
    leads proc-$version-default cuLaunchKernel cuLaunchKernel
    leads proc-$version-default cuGetProcAddress cuGetProcAddress
    leads proc-$version-default cuGetProcAddress cuGetProcAddress_v2
  done
}

@test "the flag for per-thread streams leads to the per-thread wrapper, or to the only one" {
  with ways_in >ways
  for version in v1 v2; do
    leads proc-$version-per-thread cuLaunchKernel cuLaunchKernel_ptsz
    leads proc-$version-legacy cuLaunchKernel cuLaunchKernel
    leads proc-$version-per-thread cuMemAlloc cuMemAlloc_v2
  done
}

@test "functions that are not ours are the driver's own" {
  with ways_in >ways
  without ways_in >plain
  diff <(grep cuDeviceGet plain) <(grep cuDeviceGet ways)
  [ "$(grep -c 'cuDeviceGet: libcuda.so.1' ways)" -ge 7 ]
}

@test "unknown names, wrong versions and empty places are answered as the driver and the loader answer them" {
  without questions >plain
  with questions >ways
  [ "$(wc -l <plain)" -gt 20 ]
  diff plain ways
}

@test "RTLD_NEXT asked by a library still means after that library" {
  [ "$("$PROGRAMS/next")" = 21 ]
  [ "$(LD_PRELOAD=$PRELOAD "$PROGRAMS/next")" = 21 ]
}

@test "another preloaded wrapper of cuInit reaches the driver, before and behind us" {
  local preload
  for preload in "$PRELOAD:$PROGRAMS/libnext1.so" "${SANITIZER:+$SANITIZER:}$PROGRAMS/libnext1.so:$LIB"; do
    [ "$(LD_PRELOAD=$preload "$SIM" "$PROGRAMS/life" init 2>err)" = 'init 0' ]
  done
}

@test "without a driver the weak references of a program answer not initialised" {
  [ "$(LD_PRELOAD=$PRELOAD "$PROGRAMS/no_driver")" = '3 3' ]
}

@test "each module registers its kernels with its own runtime, all arguments intact" {
  LD_PRELOAD=$PRELOAD "$PROGRAMS/two_runtimes" "$PROGRAMS/libmodule1.so" "$PROGRAMS/libmodule2.so" >out 2>err
  diff out - <<'END'
runtime 1: handle host device name 5 6 7 8 9 10
count 100000
runtime 2: handle host device name 5 6 7 8 9 10
count 100000
END
}

@test "a large allocation of the program becomes a range that answers as device memory" {
  lives 'init 0,range yes,bounds 0 base 4194304,type 0 2 0 base,copy 0 0 equal,free 0' init range bounds type copy free
}

@test "freeing inside a range is refused, and freeing in stream order works" {
  lives 'init 0,range yes,free 1,free 0' init range free-inside free-async
}

@test "where legacy IPC is asked for, it is refused as for any virtual memory and later allocations stay native" {
  lives 'init 0,range yes,ipc refused,free 0,range no,free 0' init range ipc free range free
  grep -q 'cudaIpcGetMemHandle' report.json
}

@test "after the primary context's reset, ranges can be made again" {
  lives 'init 0,range yes,reset 0,init 0,range yes,copy 0 0 equal,free 0' init range reset init range copy free
}

@test "a refused destruction of the primary context leaves its ranges as they were" {
  lives 'init 0,range yes,destroy refused,copy 0 0 equal,bounds 0 base 4194304,free 0' init range destroy copy bounds free
}

@test "with a context of the program's own its ranges go, and a new one can have ranges again" {
  lives 'init 0,create 0,range yes,destroy done,free 1,create 0,range yes,copy 0 0 equal,destroy done' \
    init create range destroy free create range copy destroy
}

@test "a child forked before CUDA starts fresh" {
  lives 'init 0,range yes,free 0,child ended' fork init range free
  [ "$(jq .totals.ranges report.json)" -eq 1 ]
}

@test "a child forked after CUDA started is inert and leaves the report to its parent" {
  # In the child the driver itself answers "not initialised" (3), also to what we could answer from memory.
  lives 'init 0,range yes,bounds 3 other 0,alloc 3,child ended,bounds 0 base 4194304,range yes' init range fork-then bounds range
  [ "$(jq .totals.ranges report.json)" -eq 2 ]
  [ "$(grep -c 'report in' err)" -eq 1 ]
}

@test "a program that executes itself after CUDA started begins anew" {
  lives 'init 0,init 0,range yes,free 0' init exec init range free
}

@test "OFFLOAD_MODE=off passes everything through and prints nothing" {
  OFFLOAD_MODE=off lives 'init 0,range no,free 0' init range free
  [ ! -s err ]
  [ ! -e report.json ]
}

@test "bad and unknown OFFLOAD_* values are named with the remedy, and the job runs on" {
  OFFLOAD_STEP=sideways OFFLOAD_HOST_MEMORY=lots OFFLOAD_PEICE=1 lives 'init 0,range yes,free 0' init range free
  grep 'OFFLOAD_STEP=sideways' err
  grep 'OFFLOAD_HOST_MEMORY=lots' err
  grep 'OFFLOAD_PEICE' err
}

@test "allocations of an unknown library stay native; libc10_cuda and what OFFLOAD_CALLERS names may move" {
  lives 'init 0,range no,free 0' init by "$PROGRAMS/liballocator.so" free
  OFFLOAD_CALLERS=libother,liballocator lives 'init 0,range yes,free 0' init by "$PROGRAMS/liballocator.so" free
  OFFLOAD_CALLERS='*' lives 'init 0,range yes,free 0' init by "$PROGRAMS/liballocator.so" free
  cp "$PROGRAMS/liballocator.so" libc10_cuda.so
  lives 'init 0,range yes,free 0' init by "$PWD/libc10_cuda.so" free
}

@test "memory that only an unknown library asked for: a reason names it and OFFLOAD_CALLERS, in the report and at exit" {
  lives 'init 0,range no,free 0' init by "$PROGRAMS/liballocator.so" free
  jq -e '.reasons | map(select(test("OFFLOAD_CALLERS=liballocator.so"))) | length == 1' report.json
  grep 'nothing was moved: .*OFFLOAD_CALLERS=liballocator.so.*PyTorch: fused=True' err
  lives 'init 0,range yes,free 0' init range free
  jq -e '.reasons | map(test("OFFLOAD_CALLERS")) | any | not' report.json
}

@test "allocations below OFFLOAD_MIN_ALLOCATION stay native" {
  OFFLOAD_MIN_ALLOCATION=8MiB lives 'init 0,range no,free 0' init range free
}

@test "a program may ask for the report at any time once it has initialised CUDA" {
  lives 'report no data,init 0,report written,range yes,report written,free 0' report early.json init report before.json range report after.json free
  [ ! -e early.json ]
  python3 "$ROOT/tests/lib/validate.py" "$ROOT/policy/report.schema.json" before.json
  [ "$(jq .totals.ranges before.json),$(jq .totals.ranges after.json)" = 0,1 ]
  lives 'init 0,report no path,report no folder' init report none report nowhere/at/all.json
  lives 'init 0,report no data,child ended' init fork report child.json
  OFFLOAD_MODE=off lives 'init 0,report no data' init report off.json
  [ "$(without life init report none)" = $'init 0\nreport unknown' ]
}

# calls COMMAND...: the system calls of interest of a command, without what differs from run to run. A file per process
# keeps their lines whole.
calls() {
  rm -f trace.* a
  strace -ff -qq -e trace=open,openat,creat,write,clone,clone3,fork,vfork,socket,connect,unlink,rename -e signal=none -o trace "$@" >out 2>&1
  cat trace.* | sed -e 's/0x[0-9a-f]*/P/g' -e 's/[0-9]\{3,\}/N/g' -e 's|/tmp/cc[A-Za-z0-9]*|/tmp/ccX|g' |
    grep -v -e liboffload -e 'libdl\.so' -e 'libpthread\.so' -e 'To be restarted' | grep -Ev "${SANITIZED:-^$}" | sort
}

# unseen COMMAND...: the same calls and the same output with the preload as without.
unseen() {
  LD_PRELOAD=$SANITIZER calls "$@" >plain
  mv out plain.out
  LD_PRELOAD=$PRELOAD calls "$@" >preloaded
  [ -s plain ]
  diff plain preloaded
  diff plain.out out
}

@test "with the variable set, /bin/true opens no file, prints nothing and starts no thread" { unseen /bin/true; }
@test "with the variable set, a shell behaves the same" { unseen sh -c 'echo one; (echo two); echo three | cat'; }
@test "with the variable set, a compiler behaves the same" {
  echo 'int main(void) { return 0; }' >a.c
  unseen gcc -O1 -o a a.c
}
