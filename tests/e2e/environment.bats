#!/usr/bin/env bats
# The environment a job is started in: privileges, variables, descriptors, limits, file systems, other C libraries. The job
# is charlm (or a program of environment/ where charlm can't show it); it runs on, and its numbers stay the same.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAMS=$BUILD/test/environment
STEPS=3

# moved_and_same: the run under the preload moved state and printed the bits of the run without.
moved_and_same() {
  assert_done cpu
  assert_same default
  assert_clean
}

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
}

# ---- privileges ----

# privileged HOW: a folder that another user may enter, with a program of secure.c that has privileges in HOW (set-uid or
# capability) beside one that has none, each once as it is and once with the library linked in. $folder names it.
privileged() {
  [ "$(id -u)" -eq 0 ] || skip "only root can give a program privileges"
  folder=$(mktemp -d /tmp/offload-privileged.XXXXXX)
  chmod 755 "$folder"
  mkdir -m 777 "$folder/out"
  cp "$LIBOFFLOAD" "$(dirname "$LIBOFFLOAD")/liboffload-adam.so" "$BUILD/gpusim/libcuda.so.1" "$folder"
  local linked=("$PROGRAMS/secure.o" -L"$folder" -l:libcuda.so.1 -Xlinker --allow-shlib-undefined -Xlinker -rpath -Xlinker "$folder")
  ${CC:-gcc} "${linked[@]}" -o "$folder/plain"
  ${CC:-gcc} -Wl,--no-as-needed -L"$folder" -l:liboffload.so "${linked[@]}" -o "$folder/linked"
  local name
  for name in plain linked; do
    cp "$folder/$name" "$folder/$name-privileged"
    if [ "$1" = set-uid ]; then
      chmod 4755 "$folder/$name-privileged"
    else
      setcap cap_net_raw+ep "$folder/$name-privileged"
    fi
  done
}
teardown() {
  rm -rf "${folder:-/nonexistent}"
}

# as_user PROGRAM [NAME=VALUE...]: as a user without rights; what it prints, its lines joined by commas.
as_user() {
  (cd "$folder/out" && setpriv --reuid 65534 --regid 65534 --clear-groups \
    env OFFLOAD_REPORT="$folder/out/report.json" "${@:2}" "$folder/$1" 2>"$folder/out/err" | paste -sd,)
}

# secure_execution HOW: a privileged program runs as without the library, whether it is preloaded or linked in, and nothing
# that a variable names is written with its privileges. The same program without privileges is the control.
secure_execution() {
  privileged "$1"
  [ "$(as_user plain "LD_PRELOAD=$folder/liboffload.so")" = 'secure no,library yes,range yes,value 42' ]
  [ -s "$folder/out/report.json" ]
  rm "$folder/out/report.json"
  [ "$(as_user plain-privileged "LD_PRELOAD=$folder/liboffload.so")" = 'secure yes,library no,range no,value 42' ]
  [ ! -s "$folder/out/err" ]
  [ ! -e "$folder/out/report.json" ]

  [ "$(as_user linked)" = 'secure no,library yes,range yes,value 42' ]
  [ -s "$folder/out/report.json" ]
  rm "$folder/out/report.json"
  [ "$(as_user linked-privileged)" = 'secure yes,library yes,range no,value 42' ]
  [ ! -s "$folder/out/err" ]
  [ ! -e "$folder/out/report.json" ]
}

@test "a set-user-ID program runs without the library's help, and no variable makes it write a file" {
  secure_execution set-uid
}
@test "a program with file capabilities runs without the library's help, and no variable makes it write a file" {
  secure_execution capability
}

# ---- variables ----

# values: hostile values, by the names that the tests show.
declare -gA VALUES=(
  [spaces]='   ' [huge]=99999999999999999999999999 [negative]=-1 [no-utf8]=$'\xff\xfe\x80'
  [format]='%s%n%s%n%x' [newline]=$'full\nOFFLOAD_MODE=off' [long]="$(printf '%0100000d' 0 | tr 0 A)"
  [folder]=/ [device]=/dev/null [full-device]=/dev/full
)

# variables: NAME and kind of each line of variables.def.
variables() { sed -n 's/^VARIABLE([a-z_]*, "\([A-Z_]*\)", \([A-Z_]*\),.*/\1 \2/p' "$ROOT/policy/variables.def"; }

# job ARGS... with the variables of the environment: charlm under the preload in an empty folder; it must have moved state and
# have the numbers of `default`. $1 names the run when something is wrong.
job() {
  rm -rf job with.json
  mkdir job
  (cd job && GPUSIM_REPORT='' LD_PRELOAD="${HELPER:+$HELPER:}$LIBOFFLOAD" "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps $STEPS \
    "${SIZES[@]}" --json ../with.json >../with.out 2>../with.err) ||
    { echo "$1: ended with $?" && tail -n 5 with.err && return 1; }
  assert_same "${SAME:-default}" || { echo "$1: other numbers" && return 1; }
  # A piece of the line at exit; a log level that is refused stays at normal.
  grep -aq 'of optimizer state was on the host' with.err || { echo "$1: nothing moved" && cat -v with.err && return 1; }
}

# complaints NAME: the lines that name the variable, apart from the line at exit.
complaints() { grep -aw "OFFLOAD_$1" with.err | grep -avc 'of optimizer state was on the host'; }

# one_line_each SHOWN NAME...: for each variable exactly one line begins with it: the value as a terminal may show it, and what to write.
one_line_each() {
  SHOWN=$1 NAMES=${*:2} LC_ALL=C awk '
    BEGIN { count = split(ENVIRON["NAMES"], names, " ") }
    /[^ -~]/ { printf "a line that a terminal had better not see: "; bad = 1 }
    { for (i = 1; i <= count; i++) {
        start = "liboffload: OFFLOAD_" names[i]
        lines[i] += substr($0, 1, length(start)) == start && substr($0, length(start) + 1, 1) !~ /[A-Z_]/
        good[i] += index($0, start "=" ENVIRON["SHOWN"]) == 1 && index($0, ": write ")
    } }
    END { for (i = 1; i <= count; i++)
        if (lines[i] != 1 || good[i] != 1) { print "OFFLOAD_" names[i] "=" ENVIRON["SHOWN"] ": " lines[i] + 0 " lines, " good[i] + 0 " good"; bad = 1 }
      exit bad }' with.err || {
    echo "expected one printable line each with the value and the remedy, got"
    cat -v with.err | cut -c1-400
    return 1
  }
}

# shown VALUE: how a refused value is shown: 60 characters, and a ? for what a terminal had better not see.
shown() { printf %s "${1:0:60}" | LC_ALL=C tr -c ' -~' '?'; }

# names KINDS: the variables whose kind the regular expression KINDS matches whole.
names() { variables | grep -E " ($1)\$" | cut -d' ' -f1; }

REFUSED='WORD_.*|SIZE|BYTES|COUNT|SAMPLE|FLAG|SIGNAL|WEAR' # kinds that take none of the hostile values
TOGETHER=6                                                 # refused variables of a run: so many lines fit into config->problems

# with_all VALUE NAME...: the job, in a function's scope, with all these variables at VALUE, which may be refused. A refused least size
# stays at 2 MiB, and only allocations of PyTorch's real sizes are as large.
with_all() {
  local name SIZES=(--segment-scale 1) SAME=large
  for name in "${@:2}"; do local -x "OFFLOAD_$name=$1"; done
  job "${*:2}"
}

@test "hostile values of every variable are named in one line with the remedy, and the job's numbers stay the same" {
  plain large --steps $STEPS --segment-scale 1
  local refused lists name value seen=0 at
  mapfile -t refused < <(names "$REFUSED")
  mapfile -t lists < <(names LIST)
  local files=''
  for name in $(names PATH); do [ "$name" = RATES ] || files+=" $name"; done
  for value in "${!VALUES[@]}"; do
    echo "value: $value"
    for ((at = 0; at < ${#refused[@]}; at += TOGETHER)); do
      with_all "${VALUES[$value]}" "${refused[@]:at:TOGETHER}"
      one_line_each "$(LC_ALL=C shown "${VALUES[$value]}")" "${refused[@]:at:TOGETHER}"
    done
    with_all "${VALUES[$value]}" "${lists[@]}" RATES
    for name in "${lists[@]}"; do [ "$(complaints "$name")" -eq 0 ]; done
    [ "$(find job -type f | wc -l)" -eq 0 ]
    with_all "${VALUES[$value]}" SYSROOT NVME
    [ "$(complaints SYSROOT)" -le 1 ] # the root is one
    [ "$(complaints NVME)" -le 1 ]    # looked at when they are needed
    [ "$(find job -type f | wc -l)" -eq 0 ]
    for name in $files; do # what is written: below
      with_all "${VALUES[$value]}" "$name"
      seen=$((seen + 1))
    done
    seen=$((seen + ${#refused[@]} + ${#lists[@]} + 3))
  done
  [ "$seen" -eq $(($(variables | wc -l) * ${#VALUES[@]})) ] || { echo "variables.def has a new kind" && variables && return 1; }
  [ "$seen" -ge 300 ]
}

@test "an empty value of any variable is the same as none" {
  plain large --steps $STEPS --segment-scale 1
  local all name
  mapfile -t all < <(names '.*')
  [ "${#all[@]}" -ge 30 ]
  with_all '' "${all[@]}"
  for name in "${all[@]}"; do [ "$(complaints "$name")" -eq 0 ]; done
  [ -z "$(ls -A job)" ]
}

@test "a value of a MiB, set by the program itself, is refused or taken like any other" {
  plain large --steps $STEPS --segment-scale 1
  local refused taken name at SIZES=(--segment-scale 1) SAME=large start
  local -x LONG_VALUE
  start=$(printf %60s '' | tr ' ' A)...
  mapfile -t refused < <(names "$REFUSED|ROOT")
  mapfile -t taken < <(names 'LIST|DIRECTORIES|PATH')
  [ $((${#refused[@]} + ${#taken[@]})) -eq "$(variables | wc -l)" ]
  for ((at = 0; at < ${#refused[@]}; at += TOGETHER)); do
    LONG_VALUE=${refused[*]:at:TOGETHER}
    HELPER=$PROGRAMS/liblong_value.so job "a MiB in each of $LONG_VALUE"
    one_line_each "$start" "${refused[@]:at:TOGETHER}"
  done
  LONG_VALUE=${taken[*]}
  HELPER=$PROGRAMS/liblong_value.so job "a MiB in each of $LONG_VALUE"
  for name in $(names 'LIST|DIRECTORIES'); do [ "$(complaints "$name")" -eq 0 ]; done
  grep -aq 'OFFLOAD_RATES=.*AAA\.\.\.: .*: name a file that' with.err
  for name in $(names PATH); do
    [ "$name" = RATES ] || grep -aq "OFFLOAD_$name=.*AAA\.\.\. could not be written (File name too long): name a file" with.err
  done
}

@test "the largest and smallest values that a variable may have break nothing" {
  plain default --steps $STEPS
  local name kind value
  while read -r name kind; do
    case $kind in
    SIZE | BYTES) set -- 0 1 18446744073709551615 16777215TiB ;;
    SAMPLE) set -- 0 1 10000 all ;;
    COUNT) set -- 0 1 4096 ;;
    FLAG) set -- 0 1 ;;
    *) continue ;;
    esac
    for value; do
      # A lag of milliseconds in each of some hundred launches is long enough.
      export "OFFLOAD_$name=$value"
      offloaded --steps $STEPS
      unset "OFFLOAD_$name"
      [ "$offloaded_status" -eq 0 ] && assert_same default && assert_clean || { echo "OFFLOAD_$name=$value" && return 1; }
      jq -e . report.json >/dev/null
    done
    [ "$name" != THREADS ] || export OFFLOAD_THREADS=2
    [ "$name" != MIN_ALLOCATION ] || export OFFLOAD_MIN_ALLOCATION=16KiB
  done < <(variables)
}

@test "a report goes where an odd path says, or one line says why not" {
  plain default --steps $STEPS
  SIZES=()
  local value
  for value in spaces huge negative no-utf8 format newline; do
    OFFLOAD_REPORT=${VALUES[$value]} job "OFFLOAD_REPORT, $value"
    [ "$(ls -A job | wc -l)" -ge 1 ]
    jq -e '.totals.moved_bytes_peak > 0 and (.settings.report | length > 0)' "job/${VALUES[$value]}"
    [ "$(grep -ac . with.err)" -eq 2 ] # moved; the line at exit
  done
  OFFLOAD_REPORT=/dev/null job 'OFFLOAD_REPORT, a device'
  [ "$(grep -ac . with.err)" -eq 2 ]
  local -A wrong=([/]="Is a directory" [/dev/full]="No space left on device" ["${VALUES[long]}"]="File name too long"
    [/dev/null/report]="Not a directory" [/nowhere/report]="No such file or directory")
  for value in "${!wrong[@]}"; do
    OFFLOAD_REPORT=$value job "OFFLOAD_REPORT, ${wrong[$value]}"
    [ "$(grep -acF "could not be written (${wrong[$value]}): name a file in a directory that this process may write to" with.err)" -eq 1 ]
    [ "$(grep -ac . with.err)" -eq 3 ]
  done
}

@test "the report stays JSON whatever a variable holds" {
  plain default --steps $STEPS
  local value
  for value in spaces no-utf8 format newline long; do
    OFFLOAD_STEP=cpu OFFLOAD_CALLERS=${VALUES[$value]} offloaded --steps $STEPS
    moved_and_same
    expect '.settings.callers | length > 0' "the value among the settings"
    python3 "$ROOT/tests/lib/validate.py" "$ROOT/policy/report.schema.json" report.json
  done
}

# ---- file systems and limits ----

# alone COMMAND...: in a mount namespace of its own, as root of it; the shell's functions come along.
alone() {
  local flags=(-m)
  [ "$(id -u)" -eq 0 ] || flags=(-Urm)
  unshare "${flags[@]}" true 2>/dev/null || skip "no mount namespace may be made here"
  export -f offloaded under_preload report alone
  export BATS_TEST_TMPDIR LIBOFFLOAD SIM CHARLM TEXT STEPS
  unshare "${flags[@]}" bash -c "set -e; SMALL=(${SMALL[*]}); $1"
}

@test "without /dev/shm state moves and the numbers stay the same" {
  plain default --steps $STEPS
  export OFFLOAD_STEP=cpu
  alone 'mount -t tmpfs -o ro,size=4k none /dev/shm; if touch /dev/shm/x 2>/dev/null; then exit 1; fi
    offloaded --steps $STEPS; echo $offloaded_status >status'
  offloaded_status=$(cat status)
  moved_and_same
}

@test "on a read-only file system the job runs, and one line says that the report could not be written" {
  plain default --steps $STEPS
  mkdir ro
  export OFFLOAD_STEP=cpu HOME=$PWD/ro TMPDIR=$PWD/ro XDG_CACHE_HOME=$PWD/ro
  alone 'mount --bind ro ro; mount -o remount,bind,ro ro; if touch ro/x 2>/dev/null; then exit 1; fi
    offloaded --steps $STEPS; echo $offloaded_status >status
    cd ro; OFFLOAD_REPORT=report.json GPUSIM_REPORT="" LD_PRELOAD=$LIBOFFLOAD "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps $STEPS \
      --json ../second.json >../second.out 2>../second.err'
  offloaded_status=$(cat status)
  moved_and_same
  grep -q 'OFFLOAD_REPORT=.*/ro/report.json could not be written (Read-only file system): name a file' second.err
  grep -q 'of optimizer state was on the host' second.err
  [ "$(jq -c '[.losses,.params,.state]' second.json)" = "$(jq -c '[.losses,.params,.state]' with.json)" ]
}

@test "with 64 KiB of lockable memory state moves all the same" {
  plain default --steps $STEPS
  ulimit -l 64
  [ "$(ulimit -l)" = 64 ]
  OFFLOAD_STEP=cpu offloaded --steps $STEPS
  moved_and_same
}

# ---- descriptors ----

@test "with standard input, output and error closed state moves, and no file of the job has a line of ours" {
  plain default --steps $STEPS
  OFFLOAD_REPORT=$PWD/report.json GPUSIM_REPORT=$PWD/sim.json OFFLOAD_STEP=cpu OFFLOAD_LOG=verbose LD_PRELOAD=$LIBOFFLOAD \
    "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps $STEPS --json "$PWD/with.json" --save "$PWD/with.ckpt" <&- >&- 2>&-
  offloaded_status=0
  moved_and_same
  run -1 grep -al 'liboffload: ' with.json with.ckpt sim.json
}

# three_files PROGRAM: with descriptors 0 to 2 closed its files get these numbers and hold what it wrote and nothing else.
three_files() {
  local file
  OFFLOAD_REPORT=$PWD/report.json LD_PRELOAD=$LIBOFFLOAD "$SIM" "$1" 2>err
  grep -q '^liboffload: nothing was moved' err # the line that is due
  rm -f ./*.dat report.json
  OFFLOAD_REPORT=$PWD/report.json LD_PRELOAD=$LIBOFFLOAD "$SIM" "$1" <&- >&- 2>&-
  [ "$(jq .totals.allocations_seen report.json)" -eq 1 ]
  for file in one:0 two:1 three:2; do
    [ "$(cat "${file%:*}.dat")" = "descriptor ${file#*:} answer 42" ]
  done
}

@test "a reader of standard error that went away ends nothing" {
  plain default --steps "$STEPS"
  offloaded_status=0
  mkfifo nobody
  exec 8<>nobody
  exec 9>nobody 8>&-
  OFFLOAD_LOG=verbose OFFLOAD_REPORT=report.json GPUSIM_REPORT=sim.json LD_PRELOAD=$LIBOFFLOAD "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" \
    --steps "$STEPS" --json with.json >with.out 2>&9 || offloaded_status=$?
  moved_and_same
}

@test "a limit on the size of files ends nothing, and one line says that the report could not be written" {
  local status=0
  set -o pipefail
  (ulimit -f 0 && OFFLOAD_MIN_ALLOCATION=1GiB OFFLOAD_REPORT=$PWD/report.json LD_PRELOAD=$LIBOFFLOAD GPUSIM_POISON=0 "$SIM" "$CHARLM" "$TEXT" \
    "${SMALL[@]}" --steps "$STEPS") 2>&1 >/dev/null | cat >with.err || status=$?
  cat with.err
  [ "$status" -eq 0 ]
  [ "$(grep -c 'OFFLOAD_REPORT=.* could not be written (File too large)' with.err)" -eq 1 ]
  [ -z "$(ls report.json*)" ]
}

@test "a container that refuses statx gets lines and a report" {
  plain default --steps "$STEPS"
  under_preload "$PROGRAMS/denied" statx "$SIM" "$CHARLM" "$TEXT" "${SMALL[@]}" --steps "$STEPS" --json with.json
  [ "$offloaded_status" -ne 77 ] || skip "no system call may be filtered here"
  moved_and_same
  grep -q '^liboffload: .* of optimizer state was on the host, .*; report in ' with.err
}

@test "a file that got the number of a closed standard error gets no line of ours" {
  three_files "$PROGRAMS/files"
}
@test "nor does one that an interpreter opened before it came to CUDA" {
  three_files "$PROGRAMS/close_on_exec"
}

@test "lines follow a standard error that is redirected to a log, and don't go into a file that took its number" {
  export OFFLOAD_REPORT=report.json # without it a program that asks for no memory gets no line
  LD_PRELOAD=$LIBOFFLOAD "$SIM" "$PROGRAMS/redirect" log append
  grep -q 'nothing was moved' log
  LD_PRELOAD=$LIBOFFLOAD "$SIM" "$PROGRAMS/redirect" data write
  [ -e data ]
  [ ! -s data ]
}

# ---- before CUDA ----

# system_calls COMMAND...: the names of all its system calls with their paths, sorted; addresses and sizes left out.
system_calls() {
  strace -f -qq -e signal=none -o calls "$@"
  sed -E 's/^[0-9]+ +//; s/^([a-z0-9_]+)\(.*"([^"]*\.so[^"]*)".*/\1 \2/; s/^([a-z0-9_]+)\(.*/\1/' calls | LC_ALL=C sort
}

@test "a program without CUDA makes no system call beyond the loader's mapping of the library and what it needs" {
  local command
  for command in /bin/true /bin/echo; do
    system_calls "$command" >plain
    LD_PRELOAD=$LIBOFFLOAD system_calls "$command" >preloaded
    LC_ALL=C comm -13 plain preloaded >added
    LC_ALL=C comm -23 plain preloaded >missing
    grep -q 'openat .*/liboffload.so' added # it was there
    # Files: the library and the two parts of glibc that it names. Otherwise what maps an object.
    run -1 grep -vE '^(openat .*/(liboffload|libdl|libpthread)\.so[.0-9]*|openat /etc/ld\.so\.cache|(read|pread64|newfstatat|fstat|mmap|mprotect|close|munmap)|newfstatat .*)$' added
    [ ! -s missing ]
    run -1 grep -E 'getrandom|clone|write|futex|prlimit|sched|sysinfo|readlink|getpid' added
  done
}

# ---- other C libraries and widths ----

# child_runs PROGRAM: prints and ends the same with the preload; on standard error comes what the test then looks at.
child_runs() {
  "$1" >plain.out 2>plain.err || plain=$?
  LD_PRELOAD=$LIBOFFLOAD "$1" >preloaded.out 2>preloaded.err || preloaded=$?
  [ "$plain" -eq 3 ]
  [ "$preloaded" -eq 3 ]
  grep -q "^width $2 own yes next yes none no$" plain.out
  diff plain.out preloaded.out
}

@test "a child program that is linked with musl runs the same" {
  command -v musl-gcc >/dev/null || skip "no compiler for musl"
  musl-gcc "$BATS_TEST_DIRNAME/environment/child.c" -o child
  child_runs ./child 64
  diff plain.err preloaded.err
}

@test "a 32-bit child program runs the same; the loader says in one line that it left the library out" {
  ${CC:-gcc} -m32 "$BATS_TEST_DIRNAME/environment/child.c" -o child 2>/dev/null || skip "no compiler for 32 bits"
  child_runs ./child 32
  [ "$(cat preloaded.err)" = "ERROR: ld.so: object '$LIBOFFLOAD' from LD_PRELOAD cannot be preloaded (wrong ELF class: ELFCLASS64): ignored.
end" ]
}
