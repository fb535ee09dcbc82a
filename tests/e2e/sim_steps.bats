#!/usr/bin/env bats
# Whole training steps on the clock, for models and machines of all sizes: tests/sim_steps.py runs once, its rows are held against
# hand's arithmetic and README.md.
load ../lib/e2e

STEPS=$BUILD/tests/e2e/train_step
KERNEL=$BUILD/tests/e2e/exact-212-adamw.ptx

setup_file() {
  python3 "$ROOT/tests/sim_steps.py" --build "$BUILD" --out "$BATS_FILE_TMPDIR/all.json" >"$BATS_FILE_TMPDIR/table"
}

setup() {
  unset GPUSIM_GRANULARITY OFFLOAD_MIN_ALLOCATION OFFLOAD_THREADS # models here are large enough
}

# all FILTER SENTENCE: the figures must answer true.
all() {
  local answer
  answer=$(jq "$1" "$BATS_FILE_TMPDIR/all.json") || return 1
  [ "$answer" = true ] || {
    echo "expected: $2; answered: $answer"
    return 1
  }
}

# rows: the definition of one row, by its fields, for filters.
ROW='def row($profile; $parameters; $gpus; $tokens; $type; $mode): .rows[] | select(.profile == $profile and .parameters == $parameters
  and .gpus == $gpus and .tokens == $tokens and .type == $type and .mode == $mode);
  def near($wanted; $part): . >= $wanted * (1 - $part) and . <= $wanted * (1 + $part);'

@test "behind the figures all state moved, was stepped as asked and ended with the bits of the program alone" {
  all '[.runs[] | [.mode, .type]] | unique | length == 8' "the program alone and each way of stepping, for two types"
  all '[.runs[] | select(.mode != "without")] | all(.moved_bytes_peak == .elements * (if .type == "float" then 8 else 4 end))' "all state moved"
  all '[.runs[] | select(.mode == "cpu")] | all(.elements_cpu == 5 * .elements and .elements_stream == 0 and .proofs > 0 and .refusals == 0)' "by the CPU"
  all '[.runs[] | select(.mode == "stream")] | all(.elements_stream == 5 * .elements and .elements_cpu == 0 and .early_bytes > 0)' "streamed, the first pieces copied up early"
  all '[.runs[] | select(.mode == "direct")] | all(.elements_direct == 6 * .elements)' "by the program's kernel over host pages"
  all '[.runs[] | select(.type == "float") | .hashes] | unique | length == 1' "the same numbers in fp32"
  all '[.runs[] | select(.type == "bfloat16") | .hashes] | unique | length == 1' "the same numbers in bf16"
  all '[.runs[].hashes] | unique | length == 2' "numbers of either type"
}

@test "there is a row for 1, 7, 13 and 70 billion parameters, each machine, mode and type, at 4K to 64K tokens, alone and shared by eight" {
  all '[.rows[] | [.profile, .parameters, .gpus, .tokens, .type, .mode]] | unique | length == 6 * 4 * 2 * 5 * 2 * 3' "as many rows as cases"
  all '.rows | length == 6 * 4 * 2 * 5 * 2 * 3' "each once"
  all '.rows | all(.step_s > .forward_backward_s and .without_s > .forward_backward_s and .step_s > .without_s)' "offload costs time"
}

@test "the bytes each way are those of the mode" {
  all '[.rows[] | select(.type == "float" and .mode == "cpu") | (.bytes_up, .bytes_down) / (.parameters / .gpus)] | all(. >= 4 and . < 4.01)' "cpu, fp32"
  all '[.rows[] | select(.type == "bfloat16" and .mode == "cpu") | (.bytes_up / 2, .bytes_down) / (.parameters / .gpus)] | all(. >= 2 and . < 2.02)' "cpu, bf16"
  all '[.rows[] | select(.mode != "cpu") | (.bytes_up, .bytes_down) / (.parameters / .gpus) / (if .type == "float" then 8 else 4 end)] | all(. > 0.999 and . < 1.001)' "stream and direct"
}

@test "a CPU step is what host memory makes it, by hand" {
  # h100-8: 4 down, 28 for the step, 4 up, at 77 GB/s
  all "$ROW"' row("h100-8"; 7e9; 1; 16384; "float"; "cpu") | .bound_by == "host memory" and (.exposed_s | near(7 * 36 / 77; 0.1))' "eight GPUs"
  # in bf16: 2 down, 14 for the step, 4 up; of eight that share the state each has an eighth
  all "$ROW"' row("h200-8"; 13e9; 8; 65536; "bfloat16"; "cpu") | .bound_by == "host memory" and (.exposed_s | near(13 / 8 * 20 / 77; 0.1))' "shared"
}

@test "a streamed step takes its slower direction of the link, or host memory, by hand" {
  # rtx4090: 8 each way at 18.5; h100-8: 16 at 77
  all "$ROW"' row("rtx4090"; 1e9; 1; 8192; "float"; "stream") | .bound_by == "link" and (.exposed_s | near(8 / 18.5; 0.1))' "the link"
  all "$ROW"' row("h100-8"; 70e9; 8; 4096; "float"; "stream") | .bound_by == "host memory" and (.exposed_s | near(70 / 8 * 16 / 77; 0.1))' "host memory"
}

@test "a direct step takes the multiprocessors' reading over the link, by hand" {
  all "$ROW"' row("h200"; 7e9; 1; 32768; "float"; "direct") | .bound_by == "link" and (.exposed_s | near(7 * 8 / 35.2; 0.1))' "fp32"
  all "$ROW"' row("h200"; 7e9; 1; 32768; "bfloat16"; "direct") | .bound_by == "link" and (.exposed_s | near(7 * 4 / 35.2; 0.1))' "bf16"
}

@test "forward and backward take 6 FLOP for each parameter and token at half the peak, and the program's own Adam its bytes" {
  all "$ROW"' row("h200"; 7e9; 1; 16384; "float"; "cpu") | .forward_backward_s | near(6 * 7e9 * 16384 / 0.5 / 989e12; 0.001)' "H200"
  all "$ROW"' row("rtx4090"; 1e9; 8; 4096; "float"; "cpu") | .forward_backward_s | near(6 * 1e9 * 4096 / 0.5 / 165.2e12; 0.001)' "shared by eight, of the whole model"
  all "$ROW"' row("h200"; 7e9; 1; 16384; "float"; "cpu") | .without_s - .forward_backward_s | near(7 * 28 / 4800; 0.02)' "28 bytes at 4.8 TB/s"
}

@test "with more tokens a step takes longer, no more of it is exposed, and no less hidden" {
  all '[.rows | group_by([.profile, .parameters, .gpus, .type, .mode])[] | sort_by(.tokens) | [range(1; length) as $i | [.[$i - 1], .[$i]]][] |
    .[1].step_s > .[0].step_s and .[1].exposed_s <= .[0].exposed_s * 1.001 and .[1].hidden_s >= .[0].hidden_s * 0.999] | all' "rows by tokens"
}

@test "what is exposed and what is hidden add up to the optimizer's work, but for gaps" {
  all '.rows | all(.exposed_s + .hidden_s >= .work_s * 0.999 and .exposed_s + .hidden_s <= .work_s * 1.03)' "exposed + hidden = work"
}

# another CHUNKS MODES: the figures in fp32 of another size of the model that is run, in another.json.
another() {
  python3 "$ROOT/tests/sim_steps.py" --build "$BUILD" --chunks "$1" --modes "$2" --types float --out "$BATS_TEST_TMPDIR/another.json"
}

# same_rows FILTER: of each pair of a row and that of another size, the filter's figures differ by 2 % at most.
same_rows() {
  jq -e -n --slurpfile a "$BATS_FILE_TMPDIR/all.json" --slurpfile b "$BATS_TEST_TMPDIR/another.json" \
    "def key: [.profile, .parameters, .gpus, .tokens, .type, .mode] | tostring;
    (\$a[0].rows | map({key: key, value: .}) | from_entries) as \$all |
    [\$b[0].rows[] | . as \$row | \$all[key] as \$other | $1 | {bound: (\$row.bound_by == \$other.bound_by), ratio: ((\$row | figure) / (\$other | figure))}] |
    length >= 100 and all(.bound and .ratio > 0.98 and .ratio < 1.02)"
}

@test "the same by a model twice as large: figures don't depend on the scale" {
  another 256 cpu,direct
  same_rows 'def figure: .exposed_s; .'
}

@test "the same by half the model: nor do those of stream, whose slots hold another share of it" {
  another 64 stream
  same_rows 'select(.parameters / .gpus >= 5e9) | def figure: .exposed_s + .hidden_s; .'
}

@test "what fits a device is said of parameters and gradients, and with the state" {
  all "$ROW"' [row("h200"; 70e9; 1, 8; 4096; "float"; "cpu") | .fits] == [false, true]' "560 GB, and a share of 70"
  all "$ROW"' [row("rtx4090"; 1e9, 7e9; 1; 4096; "bfloat16"; "cpu") | .fits, .fits_without] == [true, true, false, false]' "4 and 28 GB"
  all "$ROW"' row("h200"; 13e9; 1; 4096; "float"; "cpu") | .fits and (.fits_without | not)' "104 GB without state, 208 with"
}

@test "one GPU on a socket is best stepped by the CPU, eight on two sockets by streaming" {
  all '[.rows[] | select(.type == "float" and .profile == "h200")] | group_by([.parameters, .gpus, .tokens]) | all(min_by(.exposed_s).mode == "cpu")' "h200"
  all '[.rows[] | select(.type == "float" and .profile == "h200-8")] | group_by([.parameters, .gpus, .tokens]) | all(min_by(.exposed_s).mode == "stream")' "h200-8"
}

@test "offload plan foretells steps, work and what is exposed within a fifth of the clock, on each machine" {
  python3 "$ROOT/tests/cost_profiles.py" --build "$BUILD" --steps "$BATS_FILE_TMPDIR/all.json" | tee "$BATS_TEST_TMPDIR/out"
  grep -q '^1440 rows of 6 machines, 0 beyond 20 %$' "$BATS_TEST_TMPDIR/out"
  python3 "$ROOT/tests/sim_steps.py" --build "$BUILD" --machines a100-40-2,rtx4070tis --types float --out "$BATS_TEST_TMPDIR/others.json"
  python3 "$ROOT/tests/cost_profiles.py" --build "$BUILD" --steps "$BATS_TEST_TMPDIR/others.json" | tee "$BATS_TEST_TMPDIR/out"
  grep -q '^240 rows of 2 machines, 0 beyond 20 %$' "$BATS_TEST_TMPDIR/out"
}

@test "published figures stand beside the simulation's, with the difference and why" {
  all '.anchors | length >= 10 and all((.source | length > 0) and (.what | length > 0) and (.why | length > 0))' "anchors"
  all '[.anchors[] | select(.simulated != null)] | length >= 6 and all(.published > .published_without and .simulated > .published_without
    and .simulated == .modes.cpu and .difference_percent == 100 * (.simulated / .published - 1))' "the simulated ones"
  # prime-rl, eight H200: 30.5 billion over eight, 36 bytes at 77 GB/s, on 1.75 s
  all '.anchors[3] | .simulated >= 1.75 + 30.5 / 8 * 36 / 77 - 0.05 and .simulated <= 1.75 + 30.5 / 8 * 36 / 77 + 0.05' "one by hand"
}

@test "README.md has the table that comes out" {
  sed -n '/^<!-- sim-steps:/,/^<!-- end of sim-steps/p' "$ROOT/README.md" | sed '1d;$d' | diff - "$BATS_FILE_TMPDIR/table" || {
    echo "the table in README.md is another: make sim-steps-table writes it"
    return 1
  }
}

@test "a step's exposed and hidden time are those of the timeline" {
  terms='scale=500 starts=100 kernel_time=forward*=1000us,backward*=2000us'
  printf 'label=same %s\n' "$terms" >"$BATS_TEST_TMPDIR/replays"
  for mode in cpu stream; do
    GPUSIM_PROFILE=h200 GPUSIM_SCALE=500 GPUSIM_STARTS=100 GPUSIM_KERNEL_TIME='forward*=1000,backward*=2000' GPUSIM_REPLAYS=$BATS_TEST_TMPDIR/replays \
      GPUSIM_TIMELINE=$BATS_TEST_TMPDIR/trace.json OFFLOAD_STEP=$mode OFFLOAD_DEVICE_STAGING=4194816 OFFLOAD_LOG=quiet \
      LD_PRELOAD=$LIBOFFLOAD "$SIM" "$STEPS" "$KERNEL" chunks=64 steps=6 >"$BATS_TEST_TMPDIR/out"
    jq '.[0].marks[-1]' "$BATS_TEST_TMPDIR/replays.json" >"$BATS_TEST_TMPDIR/step.json"
    python3 - "$BATS_TEST_TMPDIR/trace.json" "$BATS_TEST_TMPDIR/step.json" "$mode" <<'EOF'
import json, sys
events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
said = json.load(open(sys.argv[2]))
marks = {e["name"]: e["ts"] for e in events if e["pid"] == 1 and e["name"].startswith("step ")}
begin, end = marks["step 5"], marks["step 6"]

def union(wanted):
    """Times in the last step at which something wanted runs."""
    spans = sorted((max(e["ts"], begin), min(e["ts"] + e["dur"], end)) for e in events if wanted(e) and e["ts"] < end and e["ts"] + e["dur"] > begin)
    out = []
    for first, last in spans:
        if out and first <= out[-1][1]:
            out[-1][1] = max(out[-1][1], last)
        else:
            out.append([first, last])
    return out

def length(spans):
    return sum(last - first for first, last in spans) * 1000

given = lambda e: e["name"] in ("forward_layer", "backward_layer")
engine_or_worker = lambda e: e["pid"] == 3 or (e["pid"] == 1 and e["tid"] == 100000)
both = lambda e: engine_or_worker(e) or given(e)
model, work = union(lambda e: engine_or_worker(e) and given(e)), union(lambda e: engine_or_worker(e) and not given(e))
all_of_it = union(both)
hidden = length(model) + length(work) - length(all_of_it)
print(said, end - begin, length(model), length(work), hidden)
close = lambda a, b: abs(a - b) <= 0.01 * said["ns"]
assert said["ns"] > 0 and length(model) > 0 and length(work) > 0
assert hidden > 0 or sys.argv[3] != "stream"  # pieces come up before the launch
assert close((end - begin) * 1000, said["ns"]) and close(length(model), said["given_ns"])
assert close(length(work), said["other_ns"]) and close(hidden, said["hidden_ns"])
EOF
  done
}

@test "a line of the replays that isn't understood ends the program, with the words" {
  echo 'profile=h200 size=7' >"$BATS_TEST_TMPDIR/replays"
  GPUSIM_PROFILE=h200 GPUSIM_REPLAYS=$BATS_TEST_TMPDIR/replays run "$SIM" "$STEPS" "$KERNEL"
  [ "$status" -eq 87 ]
  [[ $output == *"GPUSIM_REPLAYS=size=7: expected label=, profile=, scale=, starts=, kernel_time= or host_work="* ]]
}
