#!/usr/bin/env bats
# The life of a process whose optimizer state lies on the host: children at every moment, threads that are cancelled, ends of
# every kind, contexts and libraries that go away. Each program (life/) trains a little on the driver API and prints a hash of
# parameters, gradients and state; it prints the same without the library. Before that is compared, the report must say that
# state moved and that steps ran by the mode asked for.
# bats runs each test in a subshell.
# shellcheck disable=SC2030,SC2031
bats_require_minimum_version 1.5.0
load ../lib/e2e
load ../lib/loop

PROGRAMS=$BUILD/test/life
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
export OFFLOAD_PIECE=16KiB
unset OFFLOAD_THREADS

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache TMPDIR=$BATS_TEST_TMPDIR/tmp LIFE_MARK=$BATS_TEST_TMPDIR
  export OFFLOAD_TEST_RECORD_MS=2 # the recorder is at work all the time
  mkdir -p "$TMPDIR"
  set -o pipefail
}
teardown() { loop_unmount; }

# plainly PROGRAM WORDS...: without the library, to without.out; its status in $plain_status. Through a pipe, which a daemon
# keeps open.
plainly() {
  plain_status=0
  timeout -k 9 60 "$SIM" "$PROGRAMS/$1" "$KERNEL" "${@:2}" 2>without.err | cat >without.out || plain_status=$?
}

# preloaded MODE PROGRAM WORDS...: with it, to with.out, with.err and report.json; its status in $offloaded_status. The CPU
# step is slow, so that steps are in flight when something happens. `sim_report` is empty where a handler may end the process on top of
# malloc, which the simulator asks for room for its own report.
preloaded() {
  local without_sim_report=()
  [ -n "${sim_report-sim.json}" ] || without_sim_report=(env -u GPUSIM_REPORT)
  offloaded_status=0
  rm -f report*.json sim.json
  OFFLOAD_STEP=$1 OFFLOAD_REPORT=${report_path:-report.json} GPUSIM_REPORT=sim.json OFFLOAD_TEST_WORKER_LAG_MS=${lag:-3} \
    LD_PRELOAD=$LIBOFFLOAD timeout "${limit:-60}" "${without_sim_report[@]}" "$SIM" "$PROGRAMS/$2" "$KERNEL" "${@:3}" 2>with.err | cat >with.out || offloaded_status=$?
}

# said COUNT: on standard error stand the lines that COUNT processes write, one when they move state and one at their end,
# and nothing else.
said() {
  if [ "$(grep -c '^liboffload: moved .* of optimizer state to host memory in ' with.err)" -ne "$1" ] ||
    [ "$(grep -c '^liboffload: .* of optimizer state was on the host, .* steps by ' with.err)" -ne "$1" ] ||
    [ "$(wc -l <with.err)" -ne $((2 * $1)) ]; then
    echo "expected the two lines of $1 process(es), and nothing else, but:"
    cat with.err
    return 1
  fi
}

# unfinished: if there is a report, it is one of those that are written meanwhile, whole.
unfinished() { [ ! -e report.json ] || [ "$(report '.final')" = false ]; }

# stepped MODE: state moved and steps ran by this mode, whatever the program's status.
stepped() {
  local status=$offloaded_status result=0
  offloaded_status=0
  assert_done "$1" || result=1
  offloaded_status=$status
  return $result
}

# same: the program's output and status are those without the library.
same() {
  diff without.out with.out || return 1
  [ "$offloaded_status" -eq "$plain_status" ] || {
    echo "without the library it ends with $plain_status, with it with $offloaded_status"
    tail -n 5 with.err
    return 1
  }
}

# each_mode PROGRAM WORDS...: by cpu and by stream, everything as without the library.
each_mode() {
  local mode
  plainly "$@"
  [ -s without.out ] || { cat without.err; return 1; }
  for mode in cpu stream; do
    preloaded "$mode" "$@"
    if ! stepped "$mode" || ! said 1 || ! same || ! assert_clean; then
      echo "by $mode"
      return 1
    fi
  done
}

# left: what there is that a process could leave behind: files here, in the usual places and in shared memory, and processes.
left() {
  find "$BATS_TEST_TMPDIR" /dev/shm /var/tmp -mindepth 1 ! -name '*.out' ! -name '*.err' ! -name '*.json' ! -name before ! -name after 2>&1 | sort
  local process
  for process in /proc/[0-9]*; do
    grep -qsz "^LIFE_MARK=$LIFE_MARK\$" "$process/environ" && ! grep -qs -e bats -e bash "$process/comm" &&
      tr '\0' ' ' <"$process/cmdline"
  done
  true
}

# ---- children ----

@test "a forked child trains when its parent never used CUDA: the same numbers and a report of its own" {
  each_mode forks child-trains
  [ "$(report .pid)" -gt 0 ]
}

@test "fork before CUDA: children and parent train, each with the same numbers, its own lines and, by %p, its own report" {
  report_path=report.%p.json
  plainly forks all-train
  for mode in cpu stream; do
    preloaded $mode forks all-train
    said 3
    same
    [ "$(find . -name 'report.*.json' | wc -l)" -eq 3 ]
    for file in report.*.json; do
      [ "$file" = "report.$(jq .pid "$file").json" ]
      cp "$file" report.json
      stepped $mode
      rm report.json
    done
  done
}

@test "children forked after CUDA was initialised, before the first step, are left alone" {
  each_mode forks before-steps
}

@test "children forked with state on the host and pinned memory are left alone: exit, _exit, exec, vfork, spawn, abort, grandchild" {
  each_mode forks between-steps
  grep -q '^child exit: batch, PATH set, 1 threads, answers 3 3 3 3 3 3$' with.out
}

@test "children forked while a step is in flight are left alone, and the parent's numbers stay" {
  each_mode forks in-step
  [ "$(grep -c '^child exit: .* 1 threads' with.out)" -eq 3 ]
}

@test "one thread forks again and again while another is inside of launches" {
  lag=1 each_mode forks during-launches
  grep -q '^children: 0$' with.out
}

@test "a child made by clone alone, and one that is process 1 of a namespace as its parent is, leave the report alone" {
  each_mode forks clone
  if unshare -Urpf true 2>err; then
    plainly forks clone-namespace
    for mode in cpu stream; do
      preloaded $mode forks clone-namespace
      stepped $mode
      said 1
      same
    done
    [ "$(report .pid)" -eq 1 ]
    grep -q '^child 1: exit 3$' with.out
  else
    grep -qi -e 'not permitted' -e 'no space left' -e 'invalid argument' err
  fi
}

@test "a program that executes itself while a step is in flight trains anew" {
  plainly forks exec-in-step
  for mode in cpu stream; do
    preloaded $mode forks exec-in-step
    stepped $mode
    [ "$(grep -c ' moved ' with.err)" -eq 2 ] # the first image says no more when it is gone
    [ "$(grep -c 'was on the host' with.err)" -eq 1 ]
    same
  done
}

@test "a daemon trains when it left its parent before CUDA" {
  each_mode forks daemon-first
}

@test "a daemon that leaves its parent while a step is in flight is left alone" {
  plainly forks daemon-in-step
  for mode in cpu stream; do
    preloaded $mode forks daemon-in-step
    same
    grep -q '^child daemon: .* 1 threads' with.out
    [ "$(grep -c '' with.err)" -eq 1 ] # the parent moved state
    unfinished
  done
}

# loaders START: Python's data loaders beside a training, in both modes.
loaders() {
  local mode training=("$ROOT/tests/e2e/life/loaders.py" "$PROGRAMS/libtrainer.so" "$KERNEL" "$1")
  export OFFLOAD_CALLERS=libtrainer.so
  plain_status=0 offloaded_status=0
  timeout -k 9 60 "$SIM" python3 "${training[@]}" >without.out
  for mode in cpu stream; do
    rm -f report.json
    OFFLOAD_STEP=$mode OFFLOAD_REPORT=report.json GPUSIM_REPORT=sim.json OFFLOAD_TEST_WORKER_LAG_MS=2 LD_PRELOAD=$LIBOFFLOAD \
      timeout -k 9 60 "$SIM" python3 "${training[@]}" >with.out 2>with.err
    stepped "$mode"
    said 1
    same
  done
  grep -q "^$1: [0-9a-f]*, as preloaded as we are: True$" with.out
}

@test "data loaders that Python forks do nothing of ours, and the training's numbers stay" {
  loaders fork
  grep -q "^a loader's CUDA answers (3, 3)$" with.out
}

@test "data loaders that Python spawns, or forks from a server, do nothing of ours, and the training's numbers stay" {
  loaders spawn
  loaders forkserver
}

# ---- threads ----

@test "a thread that is cancelled at a launch, while state moves or a step is enqueued, leaves after it and takes nothing along" {
  for at in 1 2 3; do
    each_mode threads cancel $at
    grep -q '^thread: cancelled$' with.out
  done
}

@test "a thread that is cancelled while it waits in a step, for a driver queue that is full, leaves after it" {
  plainly threads cancel 3
  for mode in cpu stream; do
    GPUSIM_QUEUES=1 GPUSIM_DEPTH=3 lag=4 preloaded $mode threads cancel 3
    stepped $mode
    [ "$(sim .blocked_submits)" -gt 0 ]
    same
  done
}

@test "a thread with a stack of 24 KiB starts CUDA, trains and ends the process" {
  each_mode threads small-stack
}

@test "state on a drive that is wanted behind a step waiting for another thread lets that thread launch" {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
  for word in step-held all-held; do
    plainly threads $word
    OFFLOAD_HOST_MEMORY=0 OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_NVME_STAGING=4MiB preloaded stream threads $word
    [ "$(report '.totals.elements_drive > 0 and .totals.drive_faults > 0')" = true ]
    same
    assert_clean
  done
}

@test "signals that interrupt every wait change nothing" {
  each_mode threads interrupted
  grep -q '^interrupted$' with.out
}

# ---- ends ----

@test "exit in the middle of a step ends the program as it would without, with a whole report" {
  left >before
  for mode in cpu stream; do
    plainly ends exit
    preloaded $mode ends exit
    stepped $mode
    said 1
    same
    assert_clean
    expect ".functions[0] | .launches == 4 and .launches_direct == 1 and .launches_$mode == 3" "every launch accounted for"
  done
  grep -q '^in flight: yes$' with.out
  left >after
  diff before after
}

@test "exit beside a thread that is inside of launches ends the program, with a whole report" {
  plainly threads exit-beside
  for mode in cpu stream; do
    for lag in 1 4; do
      preloaded $mode threads exit-beside
      stepped $mode
      said 1
      same
    done
  done
}

@test "exit from a signal's handler, and on top of a step, ends the program" {
  each_mode ends exit-in-handler
  plainly ends exit-in-step
  for mode in cpu stream; do
    SECONDS=0
    sim_report="" preloaded $mode ends exit-in-step
    same
    [ "$SECONDS" -lt 30 ]
  done
}

# ended_in_allocator MODE: the program's handler called exit on top of malloc. Everything is written, and nothing asked for memory.
ended_in_allocator() {
  stepped "$1" && same || return 1
  if [ "$(report '.final')" != true ] || [ "$(grep -c '^offload_running{.*} 0$' metrics.prom)" -ne 1 ] ||
    [ "$(jq '.otherData.spans > 0 and (.traceEvents | length > 0)' trace.json)" != true ]; then
    echo "what was written at exit isn't whole"
    return 1
  fi
  if [ "$(tail -n 1 with.err)" != 'the allocator was asked 0 times as the process ended' ]; then
    grep 'called from' with.err | sort | uniq -c | sort -n
    tail -n 1 with.err
    return 1
  fi
}

@test "exit from a handler on top of malloc, below a step, asks the allocator for nothing and writes all that was asked for" {
  local mode call failed=0
  export OFFLOAD_METRICS=metrics.prom OFFLOAD_TRACE=trace.json
  plainly allocator exit 1
  [ "$plain_status" -eq 5 ]
  for mode in cpu stream direct; do
    for call in 1 3 10 30; do
      rm -f metrics.prom trace.json
      limit=20 preloaded $mode allocator exit $call
      ended_in_allocator $mode || { echo "by $mode, at call $call"; return 1; }
      failed=$((failed + $(grep -c 'handler ends the process while optimizer steps are still in flight' with.err || true)))
    done
  done
  [ "$failed" -gt 0 ] # steps were interrupted in the middle
}

@test "exit from a handler on top of malloc, with state on a drive, asks the allocator for nothing either" {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 1 64M
  export OFFLOAD_METRICS=metrics.prom OFFLOAD_TRACE=trace.json
  plainly allocator exit 1
  for call in 1 10; do
    OFFLOAD_HOST_MEMORY=0 OFFLOAD_NVME=${LOOP_DIRECTORIES[0]} OFFLOAD_NVME_STAGING=4MiB preloaded stream allocator exit $call
    expect '.totals.elements_drive > 0 and .drives.steps > 0 and .drives.written_bytes > 0 and .final' "steps on a drive, in the last report"
    [ "$(tail -n 1 with.err)" = 'the allocator was asked 0 times as the process ended' ]
    same
  done
}

@test "abort, SIGTERM, SIGKILL and quick_exit in the middle of a step leave nothing behind" {
  left >before
  for end in abort quick_exit "raise 15" "raise 9"; do
    # shellcheck disable=SC2086 # a word and its argument
    plainly ends $end
    for mode in cpu stream; do
      # shellcheck disable=SC2086
      preloaded $mode ends $end
      grep -q '^liboffload: moved ' with.err
      grep -q '^in flight: yes$' with.out
      same
      unfinished
    done
  done
  left >after
  diff before after
}

@test "SIGKILL at any moment leaves no file, no shared memory and no process" {
  left >before
  for mode in cpu stream; do
    for ms in 0 20 100 300; do
      rm -f with.out
      OFFLOAD_STEP=$mode OFFLOAD_REPORT=report.json OFFLOAD_TEST_WORKER_LAG_MS=1 LD_PRELOAD=$LIBOFFLOAD \
        "$SIM" "$PROGRAMS/ends" "$KERNEL" live >with.out 2>with.err &
      local process=$!
      for _ in $(seq 200); do
        grep -qs training with.out && break
        sleep 0.05
      done
      sleep "0.$(printf %03d $ms)"
      kill -KILL $process
      status=0
      wait $process || status=$?
      [ $status -eq 137 ]
      grep -q '^liboffload: moved ' with.err
    done
  done
  unfinished
  left >after
  diff before after
}

@test "SIGTERM with a save: the checkpoint equals that of the run without the library, byte for byte" {
  plainly ends save plain.checkpoint.out
  [ -s plain.checkpoint.out ]
  for mode in cpu stream; do
    preloaded $mode ends save with.checkpoint.out
    stepped $mode
    said 1
    same
    cmp plain.checkpoint.out with.checkpoint.out
  done
}

@test "a GPU that is lost in the middle of a step: one line, the program sees the error it would see, and all passes through for good" {
  GPUSIM_FAULT=cuLaunchKernel:4-:CUDA_ERROR_ECC_UNCORRECTABLE plainly ends lost
  grep -q '^again: 214$' without.out
  local lost
  for lost in "cpu 45" "cpu 50" "cpu 55" "stream 12" "stream 20" "stream 31"; do
    GPUSIM_FAULT=cuLaunchKernel:${lost#* }-:CUDA_ERROR_ECC_UNCORRECTABLE preloaded "${lost% *}" ends lost
    expect ".totals.moved_bytes_peak > 0 and .functions[0].mode == \"${lost% *}\" and .functions[0].blocks_taken > 0" "a step by ${lost% *}"
    [ "$(grep -c 'everything passes through from now on' with.err)" -eq 1 ]
    grep -q 'liboffload: an optimizer step broke off in the middle (error 214 from [a-z_]*); everything passes through' with.err
    [ "$(grep -c '^liboffload: ' with.err)" -eq 3 ]
    same
    expect '.reasons | map(select(test("everything passed through from then on"))) | length == 1' "the reason in the report"
  done
}

@test "a GPU that is lost while staging is made: one line, and the program's kernel goes on being asked" {
  for call in cuStreamWaitEvent cuStreamCreateWithPriority cuMemHostAlloc; do
    GPUSIM_FAULT=$call:1-:CUDA_ERROR_ECC_UNCORRECTABLE preloaded cpu ends lost
    [ "$(grep -c 'everything passes through from now on' with.err)" -eq 1 ]
    [ "$(grep -c 'is stepped by' with.err)" -eq 0 ]
    expect '.totals.moved_bytes_peak > 0' "state had moved"
  done
}

@test "a context whose GPU was lost under queued steps is released, or reset, at once, and the training after it has the same numbers" {
  for end in release reset; do
    plainly contexts lost-then-$end
    grep -q '^after: ' without.out
    for mode in cpu stream; do
      SECONDS=0
      # so slow that the worker is amid a piece when the context goes
      lag=40 preloaded $mode contexts lost-then-$end
      stepped $mode
      [ "$SECONDS" -lt 8 ]
      same
    done
  done
}

# ---- contexts ----

@test "the primary context is reset with state on the host and steps in flight: the training after it has the same numbers" {
  each_mode contexts reset
  expect '[.functions[].launches_stream] | add > 12' "steps of every round"
}

@test "the primary context is released with state on the host and steps in flight: the training after it has the same numbers" {
  each_mode contexts release
  expect '[.functions[].launches_stream] | add > 12' "steps of every round"
}

@test "another thread resets or releases the primary context with steps in flight" {
  each_mode contexts reset-elsewhere
  each_mode contexts release-elsewhere
  expect '[.functions[].launches_stream] | add > 12' "steps of every round"
}

@test "the primary context is reset under a thread that is inside of launches: it gets an error, and the next training is offloaded" {
  lag=1 each_mode contexts reset-under
}

@test "several contexts step in turn, each with its own numbers, and one that is destroyed in mid-step takes only its own along" {
  each_mode contexts contexts
  expect '[.functions[] | select(.launches_stream > 0)] | length == 3' "steps in each context"
}

@test "several devices step in turn, each with its own numbers, and one that is reset leaves the other's state" {
  export GPUSIM_DEVICES=2
  each_mode contexts devices
  expect '[.functions[] | select(.launches_stream > 0)] | length == 2' "steps on each device"
}

@test "a thread a device: both step at once, each with its own numbers" {
  export GPUSIM_DEVICES=2
  each_mode contexts device-threads
  expect '[.functions[] | select(.launches_stream > 0)] | length == 2' "steps on each device"
}

# ---- libraries ----

@test "dlclose of libraries with kernels of their own, with steps in flight and without" {
  each_mode contexts libraries "$PROGRAMS/liblibrary.so"
  [ "$(grep -c '^library: [0-9]*$' with.out)" -eq 4 ]
}

@test "the module with the Adam kernel is unloaded while its launches are queued, and loaded again" {
  each_mode contexts unload
}
