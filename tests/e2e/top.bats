#!/usr/bin/env bats
# `offload top`: the ranks of a node, of real runs on the simulator and of processes that show themselves as ranks (shown_rank.c), once in a pipe and
# live in a terminal of 80 by 24 (tests/lib/terminal.py).
bats_require_minimum_version 1.5.0
load ../lib/e2e

OFFLOAD=$BUILD/offload
RANK=$BUILD/tests/e2e/shown_rank

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
  # A registry of this test's own.
  export OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root LC_ALL=C.UTF-8 COLUMNS=80
  mkdir -p "$OFFLOAD_SYSROOT/dev/shm"
  ln -s /proc /sys "$OFFLOAD_SYSROOT"
  ranks=()
}

teardown() {
  [ ${#ranks[@]} -eq 0 ] || kill "${ranks[@]}" 2>/dev/null || true
}

# show RANK RANKS JOB EXPOSED_MS NOTE: a rank that shows itself, from now on.
show() {
  mkfifo "ready.$1.$3"
  "$RANK" "$@" >"ready.$1.$3" 3>&- &
  ranks+=($!)
  read -r -t 20 _ <"ready.$1.$3"
}

# train NAME: a rank on the simulator that steps until it is ended.
train() {
  OFFLOAD_REPORT=$1.json GPUSIM_REPORT=$1.sim LD_PRELOAD=$LIBOFFLOAD LOCAL_RANK=$1 LOCAL_WORLD_SIZE=$2 \
    "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps 1000000 >"$1.out" 2>&1 3>&- &
  ranks+=($!)
}

# until_shown REGEX COUNT: top shows so many lines like that, in time; they are in ./seen.
until_shown() {
  for _ in $(seq 200); do
    "$OFFLOAD" top --once >seen
    [ "$(grep -cE "$1" seen)" -eq "$2" ] && return 0
    sleep 0.1
  done
  echo "not seen: $1"
  cat seen
  tail -n 3 ./*.out || true
  return 1
}

# in_terminal PYTHON: with `top` running as `t` beside the ranks that are shown.
in_terminal() {
  timeout -k 9 100 python3 -c "
import os, signal, sys, time
sys.path.insert(0, '$ROOT/tests/lib')
from terminal import Terminal
def begins(text):
    return lambda lines: any(line.startswith(text) for line in lines)
def has(*texts):
    return lambda lines: all(any(text in line for line in lines) for text in texts)
def order(lines):
    return [int(line.split()[0]) for line in lines if len(line.split()) == 9 and line.split()[0].isdigit()]
with Terminal([${PROGRAM:-'$OFFLOAD', 'top', '--interval', '0.2'}]) as t:
    t.until(has('q quit'), 'the keys')
$1"
}

@test "without ranks it says how to start one, and with none of the job that is asked for too" {
  run -0 "$OFFLOAD" top --once
  [[ $output == *"offload run -- python train.py"* ]]
  show 0 1 7a 12 ''
  run -0 "$OFFLOAD" top --once --job 7b
  [[ $output == *"0 ranks of 0 jobs"*"offload run -- python train.py"* ]]
}

@test "two and four ranks on the simulator show themselves, each with its way and times, and are gone when they end" {
  for count in 2 4; do
    ranks=()
    for rank in $(seq 0 $((count - 1))); do train "$rank" "$count"; done
    until_shown '^ +[0-3] +[0-9]+  [0-9a-f]+:[0-9a-f]+\.0  cpu(\+[a-z+]+)? +[0-9.]+ +[0-9.]+ +[0-9.]+ ' "$count"
    [ "$(awk '$4 ~ /^cpu/ { print $1 }' seen | sort -n | tr '\n' ' ')" = "$(seq 0 $((count - 1)) | tr '\n' ' ')" ]
    for pid in "${ranks[@]}"; do grep -qE "^ +[0-9]+ +$pid " seen; done
    # Every rank has state on the host, says so, and its device's memory is a bar.
    [ "$(grep -cE '^     device [█░]{16} +[0-9]+ % of .*host [0-9.]+ (KiB|MiB) ' seen)" -eq "$count" ]
    grep -qE "^offload top   $count ranks of 1 job" seen
    [ "$(wc -L <seen)" -le 80 ]
    kill "${ranks[@]}"
    wait "${ranks[@]}" || true
    until_shown 'No rank of yours' 1
  done
}

@test "in a pipe it prints plain lines of 80 columns once" {
  show 0 2 7a 12 ''
  show 1 2 7a 15 'the budget of host memory keeps 2.00 GiB of the state on the device'
  "$OFFLOAD" top --once >seen
  LC_ALL=C run -1 grep -qP '[\x00-\x09\x0b-\x1f]' seen
  run -1 grep -qE ' $' seen
  grep -qE '^ +0 +[0-9]+  41:00.0  cpu +345.1 +12.00 +3.5 +11.90 +18.7$' seen
  grep -qE '^     the budget of host memory keeps 2.00 GiB' seen
  grep -qE '^job 7a  train.py   step [0-9,]+   state 28.0 GiB   host 24.0 GiB   drives 1.00 GiB$' seen
  LC_ALL=C "$OFFLOAD" top --once >ascii
  LC_ALL=C run -1 grep -qP '[^\n\x20-\x7e]' ascii
  grep -qF '########-------- ' ascii
}

@test "a rank that was killed is no longer shown" {
  show 0 2 7a 12 ''
  show 1 2 7a 15 ''
  kill -KILL "${ranks[1]}"
  wait "${ranks[1]}" || true
  "$OFFLOAD" top --once >seen
  grep -qE '^offload top   1 rank of 1 job' seen
  grep -qE '^ +0 ' seen
  run -1 grep -qE '^ +1 ' seen
}

@test "four ranks fit a terminal of 80 by 24, which follows them, sorts, pauses and is left as it was" {
  for rank in 0 1 2 3; do show "$rank" 4 7a $((12 + 5 * (rank % 3))) "note of rank $rank"; done
  in_terminal "
    t.until(has('4 ranks of 1 job', 'note of rank 0', 'note of rank 3', 'device ████████░░░░░░░░', 'by rank'), 'four ranks')
    lines = t.screen.text()
    assert t.screen.alternate and not t.screen.cursor_shown and t.screen.scrolled == 0, 'another screen, no cursor, nothing scrolled'
    assert lines[23].startswith('q quit') and order(lines) == [0, 1, 2, 3], lines
    step = next(line for line in lines if line.startswith('job 7a'))
    t.until(lambda now: not begins(step)(now), 'the next step')
    t.keys('s')
    t.until(lambda now: has('by exposed time')(now) and order(now) == [2, 1, 0, 3], 'sorted by exposed time')
    t.keys('s')
    t.until(lambda now: has('by step time')(now) and order(now) == [3, 2, 1, 0], 'sorted by step time')
    t.keys('p')
    t.until(has('PAUSED', 'p go on'), 'paused')
    t.read(0.3)
    lines = t.screen.text()
    t.read(0.8)
    assert t.screen.text() == lines, 'paused, it stays as it is'
    t.keys('p')
    t.until(lambda now: now != lines and not has('PAUSED')(now), 'going on')
    t.keys('x')
    t.keys('q')
    status = t.wait()
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 and t.restored(), status
"
}

@test "a terminal that changes its size is filled anew, and a small one loses notes and bars first" {
  for rank in 0 1 2 3; do show "$rank" 4 7a 12 "note of rank $rank"; done
  in_terminal "
    t.until(has('note of rank 3'), 'notes')
    t.size(70, 13)
    t.signal(signal.SIGWINCH)
    t.until(lambda now: len(order(now)) == 4 or [l[:70] for l in now] and sum('device ' in l for l in now) == 4, 'four ranks')
    t.read(0.5)
    lines = t.screen.text()
    assert lines[12].startswith('q quit') and not has('note of')(lines) and sum('device ' in line for line in lines) == 4, lines
    t.size(120, 9)
    t.signal(signal.SIGWINCH)
    t.until(lambda now: len(order(now)) == 4 and not has('device ')(now), 'a line each')
    assert t.screen.scrolled == 0
    t.keys('q')
    assert t.wait() == 0 and t.restored()
"
}

@test "signals that end or stop it leave the terminal as it was" {
  show 0 1 7a 12 ''
  for name in SIGTERM SIGHUP SIGINT SIGQUIT; do
    in_terminal "
    t.until(has('1 rank of 1 job'), 'a rank')
    t.keys(chr(3)) if '$name' == 'SIGINT' else t.signal(signal.$name)
    status = t.wait()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.$name and t.restored(), status
"
  done
  # A shell with job control: what no such shell has started is not stopped.
  PROGRAM="'bash', '-mc', '\"$OFFLOAD\" top --interval 0.2; echo ended with \$?; read -r; fg >/dev/null; echo then \$?'" in_terminal "
    t.keys(chr(26))
    t.until(has('ended with 148'), 'stopped')
    assert t.restored(), 'stopped with the terminal as it was'
    t.keys(chr(10))
    t.until(has('1 rank of 1 job', 'q quit'), 'the screen again')
    assert t.screen.alternate
    t.keys('q')
    t.until(has('then 0'), 'ended')
    assert t.wait() == 0 and t.restored()
"
}

@test "without a terminal and with bad options it says what to do" {
  run -1 "$OFFLOAD" top </dev/null
  [[ $output == *"no terminal: offload top --once"* ]]
  for interval in 0 -1 abc 1e9 nan; do
    run -2 "$OFFLOAD" top --once --interval "$interval"
    [[ $output == *"--interval $interval is no number of seconds from 0.1 to 3600: --interval 2"* ]]
  done
  run -2 "$OFFLOAD" top --once --job xyz
  [[ $output == *"--job xyz is no job's name"* ]]
}
