#!/usr/bin/env bats
# `offload run`: what it preloads, what it says, and that it gets out of the way. A small library of our own stands in for
# liboffload.so where a program must tell whether it was loaded.

# The programs' own variables are quoted from this shell on purpose.
# shellcheck disable=SC2016

bats_require_minimum_version 1.5.0
BUILD=${OFFLOAD_TEST_BUILD:-$BATS_TEST_DIRNAME/../../build}
OFFLOAD=$BUILD/offload

setup_file() {
  export FILES=$BATS_FILE_TMPDIR
  ${CC:-gcc} -shared -fPIC "$BATS_TEST_DIRNAME/../unit/preload_me.c" -o "$FILES/liboffload-mark.so"
  printf 'int main(void) { return 7; }\n' >"$FILES/seven.c"
  ${CC:-gcc} -static "$FILES/seven.c" -o "$FILES/static"
  ${CC:-gcc} "$FILES/seven.c" -o "$FILES/dynamic"
  mkdir -p "$FILES/one/bin" "$FILES/one/lib" "$FILES/two"
  cp "$OFFLOAD" "$FILES/one/bin"
  cp "$FILES/liboffload-mark.so" "$FILES/one/lib/liboffload.so"
  cp "$OFFLOAD" "$FILES/liboffload-mark.so" "$FILES/two"
  cp "$FILES/liboffload-mark.so" "$FILES/two/liboffload.so"
  cp "$OFFLOAD" "$FILES/alone"
}

# marked ARGS...: runs with the marking library.
marked() { "$OFFLOAD" run --library "$FILES/liboffload-mark.so" "$@"; }

@test "a program started by offload run has the library loaded, and nothing is said" {
  run marked -- sh -c 'echo "mark ${PRELOADED_MARK:-none}"'
  [ "$status" -eq 0 ]
  [ "$output" = "mark 1" ]
}

@test "the real library is found beside the program and loads" {
  run "$OFFLOAD" run -- cat /proc/self/maps
  [ "$status" -eq 0 ]
  [[ $output == *"/liboffload.so"* ]]
  [[ $output != *"NOT loaded"* ]]
}

@test "the library is found beside the program, or in ../lib from there, under an absolute path" {
  run "$FILES/two/offload" run -- printenv LD_PRELOAD
  [ "$output" = "$(realpath "$FILES/two/liboffload.so")" ]
  cd "$FILES/one/bin"
  run ./offload run -- printenv LD_PRELOAD
  [ "$output" = "$(realpath "$FILES/one/lib/liboffload.so")" ]
}

@test "without a library anywhere it names the places and the remedy, and runs nothing" {
  run "$FILES/alone" run -- echo ran
  [ "$status" -eq 2 ]
  [[ $output == *"--library PATH"* ]]
  [[ $output != *ran* ]]
}

@test "an LD_PRELOAD that is there already stays, behind ours" {
  LD_PRELOAD=$FILES/two/liboffload-mark.so run marked -- printenv LD_PRELOAD
  [ "$output" = "$FILES/liboffload-mark.so:$FILES/two/liboffload-mark.so" ]
}

@test "a path that LD_PRELOAD can't carry is refused with the reason, and the remedy it names works" {
  mkdir -p "$FILES/with blank"
  cp "$FILES/liboffload-mark.so" "$FILES/with blank/liboffload.so"
  run "$OFFLOAD" run --library "$FILES/with blank/liboffload.so" -- true
  [ "$status" -eq 2 ]
  [[ $output == *"blanks and colons"*"ln -s '$FILES/with blank'"*"--library /tmp/offload/liboffload.so"* ]]
  ln -sfn "$FILES/with blank" "$FILES/link"
  run "$OFFLOAD" run --require --library "$FILES/link/liboffload.so" -- sh -c 'sleep 0.2; echo "$PRELOADED_MARK $LD_PRELOAD"'
  [ "$status" -eq 0 ]
  [ "$output" = "1 $FILES/link/liboffload.so" ]
  cd "$FILES/link/.."
  run "$OFFLOAD" run --library link/liboffload.so -- printenv LD_PRELOAD
  [ "$output" = "$PWD/link/liboffload.so" ]
}

@test "a --library that is not liboffload is refused with a sentence, and nothing runs" {
  cp "$FILES/liboffload-mark.so" "$FILES/other.so"
  head -c 2000 "$FILES/liboffload-mark.so" >"$FILES/liboffload-short.so"
  echo "no library" >"$FILES/liboffload-text.so"
  : >"$FILES/liboffload-empty.so"
  mkdir -p "$FILES/liboffload-folder.so"
  for name in other.so:"not called liboffload" liboffload-short.so:"exports no cuInit" liboffload-text.so:"exports no cuInit" \
    liboffload-empty.so:"exports no cuInit" liboffload-folder.so:"is not a file"; do
    run "$OFFLOAD" run --library "$FILES/${name%%:*}" -- echo ran
    [ "$status" -eq 2 ]
    [[ $output == *"${name#*:}"*"--library PATH/liboffload.so"* ]]
    [[ $output != *ran* ]]
  done
  run "$OFFLOAD" run --library "$BUILD/liboffload-adam.so" -- echo ran
  [ "$status" -eq 2 ]
  [[ $output == *"exports no cuInit"* ]]
}

@test "options and assignments become variables of the program" {
  run marked --mode pressure --host-memory 20GiB OFFLOAD_LOG=verbose OTHER=1 -- \
    sh -c 'echo $OFFLOAD_MODE $OFFLOAD_HOST_MEMORY $OFFLOAD_LOG $OTHER'
  [ "$status" -eq 0 ]
  [ "$output" = "pressure 20GiB verbose 1" ]
}

@test "--observe and the option of a variable that has another field set what they name" {
  run --separate-stderr marked --observe --metrics m -- sh -c 'echo $OFFLOAD_MODE $OFFLOAD_METRICS'
  [ "$status" -eq 0 ]
  [ "$output" = "observe m" ]
  run marked --free 3GiB --signal USR2 --test-ahead 0 -- sh -c 'echo $OFFLOAD_FREE $OFFLOAD_SIGNAL $OFFLOAD_TEST_AHEAD'
  [ "$status" -eq 0 ]
  [ "$output" = "3GiB USR2 0" ]
}

# reporting JSON...: a program that leaves these reports where OFFLOAD_REPORT says, each as if by a process of its own.
reporting() {
  local i=0 one
  for one; do
    i=$((i + 1))
    printf '%s\n' "$one" >"$BATS_TEST_TMPDIR/given.$i"
  done
  printf '%s\n' 'i=0' "for file in $BATS_TEST_TMPDIR/given.*; do" '  i=$((i + 1))' '  cp "$file" "$(printf %s "$OFFLOAD_REPORT" | sed "s/%p/$i/")"' \
    'done' 'printf %s "$OFFLOAD_REPORT" >"$1"' 'exit 5' >"$BATS_TEST_TMPDIR/reporting"
}
observation() { echo '{"schema":1,"version":"0","pid":1,"observed":{"state_bytes":'"$1"',"move_bytes":'"$2"',"way":"'"$3"'","rates":"measured","exposed_ns":'"$4"',"step_ns":100000000},"advice":['"$5"'],"reasons":["a reason"]}'; }

@test "after run --observe the job's processes are summed up from temporary reports, which are gone then" {
  reporting "$(observation 2147483648 1073741824 cpu 20000000 '{"kind":"fused","text":"use fused=True"}')" \
    "$(observation 2147483648 2147483648 stream 50000000 '{"kind":"fused","text":"use fused=True"}')"
  run --separate-stderr marked --observe -- sh "$BATS_TEST_TMPDIR/reporting" "$BATS_TEST_TMPDIR/path"
  [ "$status" -eq 5 ]
  [ -z "$output" ]
  [ "${stderr_lines[0]}" = "offload run: observed: 3.00 GiB of 4.00 GiB of optimizer state would move to the host, in 2 processes" ]
  [ "${stderr_lines[1]}" = "offload run: observed: a step would take 150 ms instead of 100 ms: offload would add 50.0 ms (33 %), by \`stream\` and measured rates" ]
  [ "${stderr_lines[2]}" = "offload run: observed: use fused=True" ]
  [[ ${stderr_lines[3]} == *"temporary: --report FILE keeps one"* ]]
  [ "${#stderr_lines[@]}" -eq 4 ]
  path=$(cat "$BATS_TEST_TMPDIR/path")
  [[ $path == */%p.json ]]
  [ ! -e "${path%/*}" ]
}

# trained ARGS...: charlm on the simulated GPU, in pieces that fit it.
trained() {
  GPUSIM_GRANULARITY=16KiB OFFLOAD_MIN_ALLOCATION=16KiB OFFLOAD_LOG=quiet "$OFFLOAD" run "$@" -- "$BUILD/gpusim/run" "$BUILD/charlm" \
    "$BATS_TEST_DIRNAME/../../integration/charlm/text.txt" --segment-scale 64 --tables 8192 --hidden 16 --batch 16 --steps 8 --json "$BATS_TEST_TMPDIR/result.json"
}

@test "what run --observe says would move is what a run without it moves, and the numbers are the same" {
  trained --report "$BATS_TEST_TMPDIR/moved.json" >/dev/null
  moved=$(jq .totals.moved_bytes_peak "$BATS_TEST_TMPDIR/moved.json")
  [ "$moved" -gt 0 ]
  hashes=$(jq -c '[.params, .state]' "$BATS_TEST_TMPDIR/result.json")
  run --separate-stderr trained --observe --report "$BATS_TEST_TMPDIR/observed.json"
  [ "$status" -eq 0 ]
  [ "$(jq .totals.moved_bytes_peak "$BATS_TEST_TMPDIR/observed.json")" -eq 0 ]
  [ "$(jq .observed.move_bytes "$BATS_TEST_TMPDIR/observed.json")" -eq "$moved" ]
  [ "$(jq -c '[.params, .state]' "$BATS_TEST_TMPDIR/result.json")" = "$hashes" ]
  [[ ${stderr_lines[0]} == "offload run: observed: $(awk -v b="$moved" 'BEGIN { printf "%.2f MiB", b / 1048576 }') of "*" would move to the host, in 1 process" ]]
  [[ ${stderr_lines[1]} == "offload run: observed: a step would "*" rates" ]]
}

@test "the line at exit names the report of run --observe that the user asked for, and none that is removed" {
  run --separate-stderr trained --observe OFFLOAD_LOG=normal --report "$BATS_TEST_TMPDIR/observed.json"
  [[ $stderr == *"liboffload: would move "*"; report in $BATS_TEST_TMPDIR/observed.json"* ]]
  run --separate-stderr trained --observe OFFLOAD_LOG=normal
  [[ $stderr == *"liboffload: would move "*"its reports were temporary"* ]]
  [[ $stderr != *"report in "* ]]
}

@test "reports that the user asked for stay, old ones beside them don't count, and reasons stand in for advice" {
  reporting "$(observation 2147483648 0 cpu 0 '')"
  observation 4096 4096 cpu 1 '' >"$BATS_TEST_TMPDIR/r.old.json"
  touch -d '1 hour ago' "$BATS_TEST_TMPDIR/r.old.json"
  run --separate-stderr marked --mode observe --report "$BATS_TEST_TMPDIR/r.%p.json" -- sh "$BATS_TEST_TMPDIR/reporting" "$BATS_TEST_TMPDIR/path"
  [ "${stderr_lines[0]}" = "offload run: observed: 0 of 2.00 GiB of optimizer state would move to the host, in 1 process" ]
  [ "${stderr_lines[1]}" = "offload run: observed: a reason" ]
  [ "${#stderr_lines[@]}" -eq 2 ]
  [ -e "$BATS_TEST_TMPDIR/r.1.json" ]
  [ -e "$BATS_TEST_TMPDIR/r.old.json" ]
}

@test "when nothing was observed that is said, and without observe nothing is" {
  run marked --observe -- sh -c 'echo "$OFFLOAD_REPORT"'
  [ "$status" -eq 0 ]
  [[ ${lines[0]} == */%p.json ]]
  [ ! -e "${lines[0]%/*}" ]
  [ "${lines[1]}" = "offload run: observed: no process told of CUDA: none initialised it, or all were killed; \`offload check -- COMMAND\` tells whether it can on this machine" ]
  run marked -- sh -c 'echo "${OFFLOAD_REPORT-none}"'
  [ "$output" = none ]
}

@test "arguments of the program are its own, with and without --" {
  run marked sh -c 'echo "$@"' name --mode x A=1
  [ "$output" = "--mode x A=1" ]
  run marked -- echo --require
  [ "$output" = "--require" ]
}

@test "a bad value on the command line is named with the remedy, exit 2" {
  run marked --mode fast -- echo ran
  [ "$status" -eq 2 ]
  [[ $output == *"not run: OFFLOAD_MODE=fast: write one of full, pressure, observe, off" ]]
  run marked OFFLOAD_HOST_MEMORY=20GB -- echo ran
  [ "$status" -eq 2 ]
  [[ $output == *"not run: OFFLOAD_HOST_MEMORY=20GB: write 20GiB" ]]
  run marked OFFLOAD_MOED=full -- echo ran
  [ "$status" -eq 2 ]
  [[ $output == *"did you mean OFFLOAD_MODE?"* ]]
}

@test "unknown options, subcommands and a missing command: a sentence, exit 2" {
  run "$OFFLOAD" run --frobnicate -- true
  [ "$status" -eq 2 ]
  [[ $output == *"--help"* ]]
  run "$OFFLOAD" frobnicate
  [ "$status" -eq 2 ]
  [[ $output == *frobnicate*--help* ]]
  run "$OFFLOAD" rum
  [ "$status" -eq 2 ]
  [[ $output == *"'rum' is no command; did you mean \`offload run\`?"* ]]
  run "$OFFLOAD"
  [ "$status" -eq 2 ]
  [[ $output == *"no command"*--help* ]]
  run "$OFFLOAD" variables extra
  [ "$status" -eq 2 ]
  [[ $output == *"variables takes no argument, so not 'extra'"* ]]
  run marked
  [ "$status" -eq 2 ]
  [[ $output == *"no command"* ]]
  run "$OFFLOAD" run --library /nowhere/liboffload.so -- true
  [ "$status" -eq 2 ]
  [[ $output == *"/nowhere/liboffload.so"* ]]
}

@test "the exit status is the program's, 127 when there is none, 126 when it may not run" {
  run marked -- sh -c 'exit 3'
  [ "$status" -eq 3 ]
  run -127 marked -- no-such-program-anywhere
  [[ $output == *no-such-program-anywhere* ]]
  run marked -- /etc/passwd
  [ "$status" -eq 126 ]
}

@test "a program that dies of a signal gives 128 and the signal" {
  run marked -- sh -c 'kill -9 $$'
  [ "$status" -eq 137 ]
  run marked -- sh -c 'kill -SEGV $$'
  [ "$status" -eq 139 ]
}

@test "signals are passed on to the program" {
  "$OFFLOAD" run --library "$FILES/liboffload-mark.so" -- sh -c 'trap "echo got TERM; exit 5" TERM; echo ready; while :; do sleep 0.05; done' >"$FILES/signals" 3>&- &
  pid=$!
  for _ in $(seq 200); do grep -q ready "$FILES/signals" && break; sleep 0.05; done
  kill -TERM $pid
  status=0
  wait $pid || status=$?
  [ "$status" -eq 5 ]
  grep -q "got TERM" "$FILES/signals"
}

@test "when offload itself is killed the program is ended too" {
  "$OFFLOAD" run --library "$FILES/liboffload-mark.so" -- sh -c 'echo $$ >"$FILES/child"; while :; do sleep 0.05; done' 3>&- &
  pid=$!
  for _ in $(seq 200); do [ -s "$FILES/child" ] && break; sleep 0.05; done
  child=$(cat "$FILES/child")
  kill -0 "$child"
  kill -KILL $pid
  for _ in $(seq 200); do kill -0 "$child" 2>/dev/null || break; sleep 0.05; done
  run kill -0 "$child"
  [ "$status" -ne 0 ]
}

@test "a static program runs, and it is said that the library is not loaded in it" {
  run marked -- "$FILES/static"
  [ "$status" -eq 7 ]
  [[ $output == *"NOT loaded"*"statically linked"* ]]
}

@test "a script is judged by its interpreter" {
  printf '#!%s\n' "$FILES/static" >"$FILES/script"
  chmod +x "$FILES/script"
  run marked -- "$FILES/script"
  [[ $output == *"NOT loaded"*"statically linked"* ]]
  printf '#!/usr/bin/env sh\nexit 4\n' >"$FILES/script2"
  chmod +x "$FILES/script2"
  run marked -- "$FILES/script2"
  [ "$status" -eq 4 ]
  [ -z "$output" ]
}

# patched BYTE VALUE...: a copy of the dynamic program with bytes of its ELF header replaced.
patched() {
  cp "$FILES/dynamic" "$FILES/patched"
  printf '%b' "$2" | dd of="$FILES/patched" bs=1 seek="$1" conv=notrunc status=none
}

@test "a 32-bit program, another processor's and one linked with musl are named as what they are" {
  patched 4 '\0001'
  run marked --require -- "$FILES/patched"
  [ "$status" -eq 2 ]
  [[ $output == *"32-bit"* ]]
  patched 18 '\0363'
  run marked --require -- "$FILES/patched"
  [ "$status" -eq 2 ]
  [[ $output == *"another kind of processor"* ]]
  ${CC:-gcc} "$FILES/seven.c" -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1 -o "$FILES/musl"
  run marked --require -- "$FILES/musl"
  [ "$status" -eq 2 ]
  [[ $output == *"musl"* ]]
}

@test "a set-user-ID program of another user is named as such" {
  [ "$(id -u)" -eq 0 ] || skip "only root can give a file to another user"
  cp "$FILES/dynamic" "$FILES/suid"
  chown 65534 "$FILES/suid"
  chmod 4755 "$FILES/suid"
  run marked --require -- "$FILES/suid"
  [ "$status" -eq 2 ]
  [[ $output == *"set-user-ID"* ]]
}

@test "--require runs nothing that can't load the library" {
  run marked --require -- "$FILES/static"
  [ "$status" -eq 2 ]
  [[ $output == *"not run"* ]]
}

@test "a library that the dynamic linker refuses is noticed in the running program" {
  cp "$FILES/liboffload-mark.so" "$FILES/liboffload-broken.so" # for another kind of processor
  printf '\363' | dd of="$FILES/liboffload-broken.so" bs=1 seek=18 conv=notrunc status=none
  run "$OFFLOAD" run --library "$FILES/liboffload-broken.so" -- sleep 1
  [ "$status" -eq 0 ]
  [[ $output == *"NOT loaded in sleep: it runs without"* ]]
  run "$OFFLOAD" run --require --library "$FILES/liboffload-broken.so" -- sleep 20
  [ "$status" -eq 2 ]
  [[ $output == *"stopped, as --require asks"* ]]
}

@test "help and the table name every variable of variables.def" {
  run "$OFFLOAD" --help
  [ "$status" -eq 0 ]
  help=$output
  run "$OFFLOAD" variables
  [ "$status" -eq 0 ]
  [ "$(wc -l <<<"$output")" -eq "$(grep -c '^VARIABLE(' "$BATS_TEST_DIRNAME/../../policy/variables.def")" ] # a line each where it is no terminal
  [[ ${output##*"(for tests)"} == "" && ${output%%"(for tests)"*} == *OFFLOAD_NVME_CHECKSUM* ]]
  count=0
  while IFS='"' read -r _ name rest; do
    [[ $output == *"OFFLOAD_$name "* ]]
    if [[ $rest == *"(for tests)"* ]]; then
      [[ $help != *"OFFLOAD_$name "* ]]
    else
      [[ $help == *"OFFLOAD_$name "* ]]
    fi
    count=$((count + 1))
  done < <(grep '^VARIABLE(' "$BATS_TEST_DIRNAME/../../policy/variables.def")
  [ "$count" -ge 12 ]
  run "$OFFLOAD" --version
  [[ $output == "offload "[0-9]* ]]
}

@test "help fits into 80 columns, and the table into those of the terminal" {
  "$OFFLOAD" --help >"$BATS_TEST_TMPDIR/help"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/help")" -gt 40 ]
  [ "$(grep -cE '.{81}' "$BATS_TEST_TMPDIR/help")" -eq 0 ]
  [ "$(tr -s ' \n' ' ' <"$BATS_TEST_TMPDIR/help" | grep -cF 'anew every five seconds with figures for Prometheus (text format; node_exporter reads')" -eq 1 ]
  for columns in 60 100; do
    COLUMNS=$columns script -qec "stty cols $columns; '$OFFLOAD' variables" /dev/null </dev/null | tr -d '\r' >"$BATS_TEST_TMPDIR/table"
    [ "$(wc -L <"$BATS_TEST_TMPDIR/table")" -le "$columns" ]
    [ "$(wc -L <"$BATS_TEST_TMPDIR/table")" -gt $((columns - 15)) ]
  done
}
