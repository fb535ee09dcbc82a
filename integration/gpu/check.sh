#!/bin/bash
# Asks a real GPU what the library relies on, trains without and with it, and measures; under 4 minutes, no network, no
# toolkit. What it needs lies in one folder, $GPU_CHECK_PROGRAMS (build/gpu, made by `make gpu-check-programs`); results go
# to $OUT (build/gpu-check): summary.json, probes.jsonl, reports.jsonl, log.txt. README.md has the details.
# Exit status: 0 all that is expected held, 1 something did not, 2 it could not be begun.
set -u
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
programs=$(cd -- "${GPU_CHECK_PROGRAMS:-$root/build/gpu}" 2>/dev/null && pwd) || programs=
text=$root/integration/charlm/text.txt
out=${OUT:-$root/build/gpu-check}
total_s=${GPU_CHECK_SECONDS:-230}
probe_s=20
training_s=30
patience_s=3 # more than a step's own limit, for its end to be told

stop() {
  printf 'check.sh: %s\n' "$1" >&2
  exit 2
}

[[ $total_s =~ ^[1-9][0-9]*$ ]] || stop "GPU_CHECK_SECONDS=$total_s: wants a whole number of seconds"
[ -n "$programs" ] && [ -x "$programs/gpu-probe" ] ||
  stop "no gpu-probe in ${GPU_CHECK_PROGRAMS:-$root/build/gpu}: make gpu-check-programs builds it; carry that folder here"
mkdir -p "$out" || stop "OUT=$out can't be made"
out=$(cd -- "$out" && pwd)
scratch=$(mktemp -d) || stop "no temporary folder"
trap 'rm -rf -- "$scratch"' EXIT
: >"$out/probes.jsonl" || stop "OUT=$out can't be written"
: >"$out/reports.jsonl"
: >"$out/log.txt"
SECONDS=0
all_ok=true
probes=() preloaded=() trainings=() not_run=()

log() { printf '%s\n' "$*" | tee -a "$out/log.txt"; }

# quoted TEXT: a JSON string.
quoted() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//[$'\n\t\r']/ }
  printf '"%s"' "$text"
}

# joined ITEM...: with commas between.
joined() {
  local IFS=,
  printf '%s' "$*"
}

# limited SECONDS COMMAND...: at most so long, and never beyond the end of the whole; 124 when it was too long.
limited() {
  local limit=$1 left=$((total_s - SECONDS))
  shift
  [ "$left" -ge 1 ] || return 124
  [ "$limit" -le "$left" ] || limit=$left
  timeout --kill-after=2 "$limit" "$@"
}

# number KEY FILE: the first number of that name in a JSON file; nothing if there is none.
number() { grep -o "\"$1\": *-\?[0-9.e+-]*" "$2" 2>/dev/null | head -n 1 | sed 's/.*: *//'; }

# ---- the carried libraries ----
# After what the caller has set: a simulated driver brings a runtime of its own.
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$programs/lib
whole_path=true
for name in charlm liboffload.so liboffload-adam.so; do
  [ -e "$programs/$name" ] || {
    not_run+=("$(quoted "training: $programs/$name is missing")")
    whole_path=false
  }
done
loads() { # whether the loader finds what the programs need
  "$programs/charlm" --help >/dev/null 2>>"$out/log.txt" &&
    [ -z "$(LD_PRELOAD=$programs/liboffload-adam.so /bin/true 2>&1)" ]
}
if $whole_path && ! loads; then
  export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$programs/lib/fallback
  loads || {
    not_run+=("$(quoted "training: the loader can't start charlm here, see log.txt")")
    whole_path=false
    all_ok=false
  }
fi

# ---- probes ----
# probe NAME [PRELOAD]: one line of JSON in $line, also when the probe itself can't be started or ended.
probe() {
  local status=0 mark=${2:+ under the preload}
  line=$(LD_PRELOAD=${2:-${LD_PRELOAD-}} limited $((probe_s + patience_s)) "$programs/gpu-probe" --limit $probe_s "$1" 2>>"$out/log.txt") ||
    status=$?
  if [[ $line != '{'*'}' ]]; then
    line="{\"probe\": \"$1\", \"id\": \"\", \"ok\": false, \"simulated\": false, \"seconds\": 0, \"question\": \"\", \"rule\": null, "
    line+="\"facts\": {}, \"error\": \"no result, status $status$([ $status -ne 124 ] || echo ': the time was over')\"}"
  fi
  if [[ $line == *'"ok": true'* && $status -eq 0 ]]; then
    log "ok      $1$mark"
  else
    all_ok=false
    log "FAILED  $1$mark: $(sed 's/.*"error": //; s/}$//' <<<"$line")"
  fi
}

log "device check, $(date -u +%Y-%m-%dT%H:%M:%SZ), at most $total_s s"
names=$("$programs/gpu-probe" --list 2>>"$out/log.txt") || stop "gpu-probe can't be started here, see $out/log.txt"
for name in $names; do
  probe "$name"
  probes+=("$line")
  printf '%s\n' "$line" >>"$out/probes.jsonl"
done
simulated=false
[[ ${probes[0]} != *'"simulated": true'* ]] || simulated=true

# ---- what the preload costs and changes for a program that it has nothing to do for ----
launch_ns=$(grep '"probe": "launches"' "$out/probes.jsonl" | sed -n 's/.*"launch_median_ns": \([0-9.e+]*\).*/\1/p')
launch_preloaded_ns=
if [ -e "$programs/liboffload.so" ]; then
  for name in resolvers kernel_cast launches; do
    probe "$name" "$programs/liboffload.so${LD_PRELOAD:+:$LD_PRELOAD}"
    preloaded+=("$line")
    launch_preloaded_ns=$(sed -n 's/.*"launch_median_ns": \([0-9.e+]*\).*/\1/p' <<<"$line")
  done
fi

# ---- training: an unmodified program, alone and with the library ----
if $simulated; then
  size=(--segment-scale 64 --tables 8192 --hidden 16 --batch 16 --steps 6)
else
  size=(--tables 4194304 --hidden 32 --batch 4096 --steps 12)
fi

# train NAME KERNEL: results in $scratch/NAME.json; false when it failed.
train() {
  local status=0
  limited $training_s "$programs/charlm" "$text" "${size[@]}" --kernel "$2" --lr 0.02 --lr-schedule --json "$scratch/$1.json" \
    >"$scratch/$1.out" 2>&1 || status=$?
  { echo "---- $1, status $status"; tail -n 30 "$scratch/$1.out"; } >>"$out/log.txt"
  [ $status -eq 0 ]
}

# numbers NAME: what two runs must agree on.
numbers() { sed -n '/^  "losses":/p;/^  "params":/p;/^  "state":/p' "$scratch/$1.json" 2>/dev/null; }

# trained NAME ERROR FIELD...: into the summary.
trained() {
  local name=$1 error=$2
  shift 2
  if [ -z "$error" ]; then
    log "ok      training $name"
    trainings+=("{\"name\": \"$name\", \"ok\": true, \"error\": null$(printf ', %s' "$@")}")
  else
    log "FAILED  training $name: $error"
    all_ok=false
    trainings+=("{\"name\": \"$name\", \"ok\": false, \"error\": $(quoted "$error")$(printf ', %s' "$@")}")
  fi
}

seconds_field() { printf '"seconds": %s' "$(number seconds "$scratch/$1.json" | grep . || echo null)"; }

with_library() {
  local kernel=$1 mode=$2 name=${1}_$2 error='' moved launches identical=false
  if ! OFFLOAD_STEP=$mode OFFLOAD_REPORT=$scratch/$name.report LD_PRELOAD=$programs/liboffload.so${LD_PRELOAD:+:$LD_PRELOAD} \
    train "$name" "$kernel"; then
    error="it did not train: $(tail -n 1 "$scratch/$name.out")"
  fi
  [ ! -e "$scratch/$name.report" ] || { tr -d '\n' <"$scratch/$name.report" && echo; } >>"$out/reports.jsonl"
  moved=$(number moved_bytes_peak "$scratch/$name.report") launches=$(number "launches_$mode" "$scratch/$name.report")
  if [ -z "$error" ]; then
    [ "$(numbers "$name")" != "$(numbers "${kernel}_alone")" ] || identical=true
    $identical || error="losses, parameters or state differ from the run without the library"
    [ "${moved:-0}" -gt 0 ] || error+="${error:+; }no state moved"
    [ "${launches:-0}" -gt 0 ] || error+="${error:+; }no step was carried out by $mode"
  fi
  trained "$name" "$error" "\"identical\": $identical" "\"moved_bytes\": ${moved:-0}" "$(seconds_field "$name")"
}

if $whole_path; then
  for kernel in 25544_float 3336_double; do
    if ! train "${kernel}_alone" "$kernel" || [ -z "$(numbers "${kernel}_alone")" ]; then
      trained "${kernel}_alone" "it did not train: $(tail -n 1 "$scratch/${kernel}_alone.out")" '"identical": null' '"moved_bytes": 0' \
        '"seconds": null'
      continue
    fi
    trained "${kernel}_alone" "" '"identical": null' '"moved_bytes": 0' "$(seconds_field "${kernel}_alone")"
    for mode in cpu stream direct; do
      with_library "$kernel" $mode
    done
  done
fi

# ---- summary ----
figures=("\"launch_ns\": ${launch_ns:-null}" "\"launch_preloaded_ns\": ${launch_preloaded_ns:-null}")
while read -r figure; do
  figures+=("$figure")
done < <(grep '"probe": "bandwidth"' "$out/probes.jsonl" | grep -o '"[A-Za-z0-9_]*_GBps": [0-9.e+-]*')
for reason in "${not_run[@]}"; do
  log "not run $reason"
done
log "$($all_ok && echo 'everything that is expected held' || echo 'something that is expected did not hold'), $SECONDS s"
cat >"$out/summary.json" <<END
{"ok": $all_ok, "simulated": $simulated, "seconds": $SECONDS,
"not_run": [$(joined "${not_run[@]}")],
"figures": {$(joined "${figures[@]}")},
"probes": [$(joined "${probes[@]}")],
"preloaded": [$(joined "${preloaded[@]}")],
"trainings": [$(joined "${trainings[@]}")]}
END
$all_ok
