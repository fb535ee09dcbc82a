#!/usr/bin/env bats
# `offload report`: text and figures of reports that runs on the simulator wrote (tests/data/reports, made by `make report-fixtures`), of older and
# broken ones, and of one written here.
bats_require_minimum_version 1.5.0
load ../lib/e2e

OFFLOAD=$BUILD/offload
REPORTS=$ROOT/tests/data/reports

setup() {
  export LC_ALL=C.UTF-8
  cd "$BATS_TEST_TMPDIR" || return 1
}

# shown FILE...: the text in ./text, all of whose lines fit and hold nothing that a terminal obeys.
shown() {
  "$OFFLOAD" report "$@" >text
  python3 - <<'PY'
import sys
lines = open("text", encoding="utf-8").read().split("\n")
wide = [line for line in lines if len(line) > 80]
odd = [line for line in lines if any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E for c in line)]
blank = [line for line in lines if line.endswith(" ")]
for what, found in (("wider than 80 columns", wide), ("with control characters", odd), ("with blanks at the end", blank)):
    if found:
        sys.exit(f"lines {what}: {found[:3]}")
PY
}

# time_of NS: as the text has it, three figures.
time_of() {
  python3 -c '
import sys
ns = float(sys.argv[1])
unit, value = ("us", ns / 1e3) if ns < 0.9995e6 else ("ms", ns / 1e6) if ns < 0.9995e9 else ("s", ns / 1e9)
print(f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}" if ns else "0")' "$1"
}

@test "a report's text says what moved, what a step costs and which way it goes, in the report's own figures" {
  offloaded --steps 20
  assert_done cpu
  cp report.json one.json
  [ "$(jq '.steps.last | length' one.json)" -gt 0 ]
  shown one.json
  moved=$(jq .totals.moved_bytes_peak one.json)
  [ "$((moved % 1048576))" -eq 0 ] # a whole number of MiB, so that the text has it exactly
  grep -qF "$((moved / 1048576)).00 MiB of optimizer state was in host memory at most; 20 steps." text
  grep -qE '^  steps +20$' text
  grep -qE "^  step, the median +$(time_of "$(jq .steps.median_step_ns one.json)")$" text
  grep -qE "^  of it added by offload, measured +$(time_of "$(jq .steps.median_exposed_ns one.json)")$" text
  grep -qE '^  AdamW fp32 +cpu ' text
  grep -qE '^  OFFLOAD_THREADS +0 +2$' text
  grep -qF 'Nothing stood in the way.' text
  [[ $(cat text) == *"added by offload (exposed)"*"state in host memory"*"Link, a step"* ]]
}

@test "reports of two ranks have a column each, and what both say stands once with both names" {
  shown "$REPORTS/rank1.json" "$REPORTS/rank0.json"
  grep -qE '^2 processes, by liboffload' text
  first=$(jq -r .pid "$REPORTS/rank0.json") second=$(jq -r .pid "$REPORTS/rank1.json")
  grep -qE "^ +(rank 0 +rank 1|pid $first +pid $second)$" text
  [ "$(grep -cE '^  state in host memory, most at once +[0-9.]+ MiB +[0-9.]+ MiB$' text)" -eq 1 ]
  jq '.reasons += ["a reason of both"]' "$REPORTS/rank0.json" >a.json
  jq '.reasons += ["a reason of both", "one of the second"]' "$REPORTS/rank1.json" >b.json
  shown a.json b.json
  [ "$(grep -c 'a reason of both' text)" -eq 1 ]
  grep -qE '^  • (rank 0, rank 1|pid [0-9]+, pid [0-9]+): a reason of both$' text
  grep -qE '^  • (rank 1|pid [0-9]+): one of the second$' text
}

@test "reports that are no ranks of one job are named by their files, in the order given" {
  jq '.totals.steps = 111' "$REPORTS/one.json" >zebra.json
  jq '.totals.steps = 222' "$REPORTS/one.json" >apple.json
  shown zebra.json apple.json
  grep -qE '^ +zebra +apple$' text
  grep -qE '^  steps +111 +222$' text
  # the same rank of two jobs, then two ranks of jobs that never saw each other
  mkdir first second
  jq '.totals.steps = 111' "$REPORTS/rank1.json" >second/report.json
  jq '.totals.steps = 222' "$REPORTS/rank1.json" >first/report.json
  shown second/report.json first/report.json
  grep -qE '^ +second/report +first/report$' text
  grep -qE '^  steps +111 +222$' text
  jq '.node.ranks |= map(.pid = 1)' "$REPORTS/rank0.json" >first/report.json
  shown second/report.json first/report.json
  grep -qE '^ +second/report +first/report$' text
  # names of any length and kind fit
  long=$(printf 'a%.0s' {1..60})
  cp zebra.json "$long"-one.json
  cp apple.json "$long"-two.json
  cp apple.json $'\x1b[31m\xff: x.json'
  shown "$long"-{one,two}.json $'\x1b[31m\xff: x.json' - <apple.json
  grep -qE '^ +aaaaaaa\.\.aaa-one +aaaaaaa\.\.aaa-two( +\?\[31m\?: x)?$' text
  grep -qE '^ +(\?\[31m\?: x +)?standard input$' text
  shown zebra.json zebra.json
  grep -qE '^ +zebra +file 2$' text
}

@test "more ranks than fit side by side are shown below each other, none left out" {
  for i in $(seq 0 15); do jq ".pid = 1000 + $i | .totals.steps = 5000 + $i" "$REPORTS/one.json" >"$i.json"; done
  shown {0..15}.json
  for i in $(seq 0 15); do
    [ "$(grep -E '^  steps ' text | grep -oF "5,0$(printf %02d "$i")" | wc -l)" -eq 1 ]
  done
}

@test "a report of the first release is shown, with a line for each object that it lacks" {
  shown "$REPORTS/first.json"
  grep -qF 'The report has no "steps" here: the time of a step isn'\''t known.' text
  grep -qF 'The report has no "advice" here' text
  grep -qF 'The report has no "memory.samples" here' text
  grep -qE '^  steps +60$' text
  grep -qE '^  AdamW fp32 +cpu ' text
}

@test "the report of a killed process says that it isn't the last word" {
  [ "$(jq .final "$REPORTS/killed.json")" = false ]
  shown "$REPORTS/killed.json"
  grep -q 'Written at .* before the end' text
  shown "$REPORTS/one.json"
  run -1 grep -q 'before the end' text
}

@test "a report that moved nothing says so" {
  [ "$(jq .totals.moved_bytes_peak "$REPORTS/observed.json")" -eq 0 ]
  shown "$REPORTS/observed.json"
  grep -qF 'no optimizer state was moved in 60 steps' <(tr -s '\n ' ' ' <text)
  grep -qE '^  OFFLOAD_MODE +full +observe$' text
}

@test "a report of a job that only observed says what would move and at what price, in text and HTML" {
  jq '.observed |= (.state_bytes = 102400000 | .move_bytes = 100663296 | .budget_bytes = 1073741824 | .way = "stream" | .exposed_ns = 50000000 | .step_ns = 100000000)' \
    "$REPORTS/observed.json" >would.json
  shown would.json
  "$OFFLOAD" report --html would.html would.json
  for file in text would.html; do
    tr -s '\n ' ' ' <"$file" >line
    grep -qF '96.0 MiB of 97.7 MiB would move; the budget of host memory is 1.00 GiB. A step would take 150 ms instead of 100 ms: offload would add 50.0 ms (33 %), by stream and measured rates.' line
    grep -qF 'What would move, and what that would cost' line
    run -1 grep -F 'What moved, and where to' line
  done
  jq '.observed |= (.way = null | .rates = null)' would.json | "$OFFLOAD" report - | tr -s '\n ' ' ' >line
  grep -qF 'would move; the budget of host memory is 1.00 GiB. What that would cost was not foretold yet' line
  shown "$REPORTS/one.json"
  grep -qF 'What moved, and where to' text
}

@test "a report that moved nothing claims nothing of a step for offload, in text and HTML, and one that did does" {
  [ "$(jq '[.steps.last[] | select(.way == "stay" and .optimizer_ns > 0)] | length' "$REPORTS/observed.json")" -gt 0 ]
  shown "$REPORTS/observed.json"
  "$OFFLOAD" report --html page.html "$REPORTS/observed.json"
  for file in text page.html; do
    run -1 grep -iE 'added by offload \(exposed\)|offload adds|of it added by offload' "$file"
    grep -q 'the program' "$file"
  done
  grep -q 'nothing of them was moved' page.html
  shown "$REPORTS/one.json"
  grep -q 'offload adds' text
}

@test "hostile texts in a report reach neither the terminal nor its lines" {
  shown "$REPORTS/hostile.json"
  grep -qF '<script>alert(1)</script>' text
  LC_ALL=C run -0 "$OFFLOAD" report "$REPORTS/hostile.json"
  LC_ALL=C grep -qvP '[^\x20-\x7e\n]' <<<"$output"
  LC_ALL=C run -1 grep -qP '[^\x20-\x7e]' <<<"$output"
}

@test "keys of any other kind than the schema's are as those that are missing, one at a time" {
  python3 - "$OFFLOAD" "$REPORTS/rank0.json" <<'PY'
import copy, json, subprocess, sys
offload, path = sys.argv[1:]
report = json.load(open(path, encoding="utf-8"))
OTHERS = [None, -1, 1e300, "x", [], {}, [[{}]], True]
def places(value, at=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield at + (key,)
            yield from places(inner, at + (key,))
    elif isinstance(value, list) and value:
        yield at + (0,)
        yield from places(value[0], at + (0,))
tried = 0
for number, place in enumerate(places(report)):
    if len(place) == 2 and place[0] in ("totals", "settings") and number % 5:
        continue
    changed = copy.deepcopy(report)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = OTHERS[number % len(OTHERS)]
    if place in (("schema",), ("version",)):
        continue
    for how in (["-"], ["--html", "-", "-"]):
        done = subprocess.run([offload, "report", *how], input=json.dumps(changed), capture_output=True, text=True)
        if done.returncode or done.stderr:
            sys.exit(f"{place} as {OTHERS[number % len(OTHERS)]!r}: {done.returncode} {done.stderr}")
        tried += 1
print(tried)
assert tried > 150
PY
}

@test "the JSON has each report's figures as the report has them, null where it has none" {
  "$OFFLOAD" report --json "$REPORTS/one.json" "$REPORTS/first.json" >figures.json
  [ "$(jq '.reports | length' figures.json)" -eq 2 ]
  jq -e --slurpfile one "$REPORTS/one.json" '.reports[] | select(.file | endswith("one.json")) | .pid == $one[0].pid and .reasons == $one[0].reasons
    and (.figures | .steps == $one[0].totals.steps and .moved_bytes_peak == $one[0].totals.moved_bytes_peak
    and .median_exposed_ns == $one[0].steps.median_exposed_ns and .moved_bytes_peak > 0)' figures.json
  [ "$(jq '.reports[] | select(.file | endswith("first.json")).figures.median_step_ns' figures.json)" = null ]
  jq -e '.reports[0].figures | .link_down_bytes_per_step > 0 and .cpu_ns_per_step > 0' figures.json
}

@test "what is no report is refused by name, with the remedy" {
  : >empty
  echo '{"a": 1}' >other.json
  echo '{"schema": 1,' >cut.json
  echo '[1]' >list.json
  for file in empty other.json cut.json list.json nowhere.json .; do
    run -2 "$OFFLOAD" report "$REPORTS/one.json" "$file"
    [[ $output == *"offload report: $file"*"name a file that OFFLOAD_REPORT wrote"* ]]
  done
  [[ $output == *"offload report: . can't be read (Is a directory)"* ]]
  run -2 "$OFFLOAD" report
  [[ $output == *"no file: name one that OFFLOAD_REPORT wrote"* ]]
  run -2 "$OFFLOAD" report --json --html x.html "$REPORTS/one.json"
  [[ $output == *"ask for one"* ]]
  [ ! -e x.html ]
}

@test "what can't be written is said" {
  run -1 "$OFFLOAD" report --html nowhere/page.html "$REPORTS/one.json"
  [[ $output == *"--html nowhere/page.html can't be written"*"name a file"* ]]
  run -1 "$OFFLOAD" report --html /dev/full "$REPORTS/one.json"
  [[ $output == *"/dev/full can't be written (No space left on device)"* ]]
}

@test "a standard output that takes nothing is said once and ends each command with an error" {
  local arguments expected
  while IFS=$'\t' read -r expected arguments; do
    run --separate-stderr bash -c "'$SIM' '$OFFLOAD' $arguments >/dev/full"
    # shellcheck disable=SC2154
    if [ "$status" -ne "$expected" ] || [ "$(wc -l <<<"$stderr")" -ne 1 ] || [[ $stderr != *"written"*"No space left on device"* ]]; then
      echo "$arguments: $status: $stderr"
      return 1
    fi
  done <<EOF
1	--help
1	--version
1	variables
1	plan --help
1	plan 7B
1	plan 7B --json
1	report $REPORTS/one.json
1	report --json $REPORTS/one.json
1	report --html - $REPORTS/one.json
1	top --once
1	bench --rates rates
1	bench --rates rates --json
126	check
126	check --json
EOF
}

@test "a FIFO that nobody writes is no report and no wait, one that somebody does is read" {
  mkfifo nobody
  run -2 timeout -k 9 20 "$OFFLOAD" report nobody
  [[ $output == *"offload report: nobody, line 1"*"name a file that OFFLOAD_REPORT wrote"* ]]
  run -0 bash -c "'$OFFLOAD' report <(sleep 0.2; cat '$REPORTS/one.json')"
  [[ $output == *"What liboffload did"* ]]
}
