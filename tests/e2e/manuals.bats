#!/usr/bin/env bats
# What is made of the program's own tables: man pages, and the completion of bash.

bats_require_minimum_version 1.5.0
ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
OFFLOAD=$BUILD/offload
MAN=$BUILD/man

# text PAGE: as it is read, without the hyphens of a terminal's line ends.
text() { groff -man -Tascii -P-c -P-b -P-u "$MAN/$1" | sed 's/[[:space:]]\+/ /g' | tr '\n' ' ' | tr -s ' '; }

@test "the man pages render without a warning" {
  for page in offload.1 liboffload.7; do
    run groff -man -ww -Tutf8 -z "$MAN/$page"
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    [ "$(text "$page" | wc -w)" -gt 300 ]
  done
}

@test "every command, and every option that its help shows, is in offload(1)" {
  page=$(text offload.1)
  count=0
  while IFS='"' read -r start _; do
    name=${start#COMMAND(}
    name=${name%%,*}
    [[ $page == *"offload $name "* ]] || { echo "no $name"; return 1; }
    while read -r option; do
      [[ $page == *"$option"[=\ ]* ]] || { echo "no $option of $name"; return 1; }
      count=$((count + 1))
    done < <("$OFFLOAD" "$name" --help | grep -oE '^ +(-[A-Za-z], |    )--[a-z-]+' | grep -oE -e '--[a-z-]+' | grep -vxE -e '--(help|usage|version)')
  done < <(grep '^COMMAND(' "$ROOT/policy/commands.def")
  [ "$count" -ge 20 ]
}

@test "the page says where its lists of optimizers and machines stand" {
  [ "$(text offload.1 | grep -ciF 'listed below')" -eq 0 ]
  page=$(text offload.1)
  [[ $page == *"those listed under Optimizers"* && $page == *"Optimizers: adamw"* && $page == *"Machines: h200"* ]]
}

@test "every variable is in liboffload(7), but those for tests, and every counter" {
  page=$(text liboffload.7)
  count=0
  while read -r name; do
    [[ $page == *" OFFLOAD_$name="* ]] || { echo "no $name"; return 1; }
    count=$((count + 1))
  done < <(grep '^VARIABLE(' "$ROOT/policy/variables.def" | grep -v '(for tests)' | sed 's/^VARIABLE([a-z_]*, "\([A-Z_]*\)".*/\1/')
  [ "$count" -ge 15 ]
  [[ $page != *OFFLOAD_TEST_* ]]
  while read -r name; do
    [[ $page == *" $name "* ]] || { echo "no $name"; return 1; }
  done < <(sed -nE 's/^(COUNTER|GAUGE)\(([a-z_]*),.*/\2/p' "$ROOT/policy/counters.def")
}

# completed WORD...: what bash offers for the last word, with `=` a word of its own as bash makes it.
completed() {
  bash --norc -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _offload; printf "%s\n" "${COMPREPLY[@]}"' bash "$MAN/offload.bash" "$@" |
    sort | paste -sd' '
}

@test "bash completes commands, options, their values, settings and files" {
  run shellcheck -S warning -s bash "$MAN/offload.bash"
  [ "$status" -eq 0 ]
  [ "$(bash --norc -c 'source "$1"; complete -p offload' bash "$MAN/offload.bash")" = "complete -o bashdefault -o filenames -F _offload offload" ]
  [ "$(completed offload che)" = check ]
  [ "$(completed offload r)" = "$(grep -oE '^COMMAND\(r[a-z]*' "$ROOT/policy/commands.def" | cut -d'(' -f2 | sort | paste -sd' ')" ]
  [ "$(completed offload run --mo)" = --mode ]
  [ "$(completed offload run --mode '')" = "full observe off pressure" ]
  [ "$(completed offload run --mode = o)" = "observe off" ]
  [ "$(completed offload run --mode full --st)" = --step ]
  [ "$(completed offload run OFFLOAD_MO)" = OFFLOAD_MODE= ]
  [ "$(completed offload run OFFLOAD_STEP = d)" = direct ]
  [ "$(completed offload check --js)" = --json ]
  [ "$(completed offload plan --gpu h2)" = "h200 h200-8" ]
  [ "$(completed offload plan --gpu '' | wc -w)" -eq "$(grep -c '^PROFILE(' "$ROOT/policy/gpus.def")" ]
  [ "$(completed offload plan --optimizer = ad)" = "adam adamw" ]
  [ "$(completed offload plan --optimizer '' | wc -w)" -eq "$(grep -c '^OPTIMIZER(' "$ROOT/policy/optimizers.def")" ]
  cd "$BATS_TEST_TMPDIR"
  touch report_one.json
  [ "$(completed offload run --report rep)" = report_one.json ]
  [ "$(completed offload report rep)" = report_one.json ]
}

@test "behind the command all is the program's: bash completes files there, and no options of ours" {
  cd "$BATS_TEST_TMPDIR"
  touch train_one.py
  [ "$(completed offload run --mode full -- python tra)" = train_one.py ]
  [ "$(completed offload run OFFLOAD_LOG = quiet python tra)" = train_one.py ]
  [ "$(completed offload run --library x --require python --mo)" = "" ]
  [[ " $(completed offload run --require bas) " == *" bash "* ]]
}

@test "in an interactive bash the tab key completes an option" {
  printf 'source %q\nPS1="ready: "\n' "$MAN/offload.bash" >"$BATS_TEST_TMPDIR/rc"
  cat >"$BATS_TEST_TMPDIR/type.py" <<'END'
import os, pty, select, sys, time
pid, terminal = pty.fork()
if not pid:
    os.environ.update(TERM="dumb", INPUTRC="/dev/null", HISTFILE="/dev/null")
    os.execvp("bash", ["bash", "--noprofile", "--rcfile", sys.argv[1], "-i"])
seen = b""
def wait(text, seconds=20):
    global seen
    end = time.time() + seconds
    while text not in seen and time.time() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 4096)
    return text in seen
wait(b"ready: ")
os.write(terminal, b"offload run --mo\t")
found = wait(b"run --mode")
os.write(terminal, b"\x15exit\n")
print(seen.decode(errors="replace"))
sys.exit(not found)
END
  python3 "$BATS_TEST_TMPDIR/type.py" "$BATS_TEST_TMPDIR/rc"
}
