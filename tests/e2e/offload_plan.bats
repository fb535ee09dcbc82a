#!/usr/bin/env bats
# `offload plan`: figures worked out by hand, what it says of machines and of bad input, and its three forms. What it foretells of
# seconds is held against the clock in sim_steps.bats, the cost model itself in tests/unit/policy_cost.c.

# jq's variables, not the shell's.
# shellcheck disable=SC2016

bats_require_minimum_version 1.5.0
load ../lib/e2e

OFFLOAD=$BUILD/offload
MODELS=$ROOT/tests/data/models

setup() {
  unset OFFLOAD_RATES OFFLOAD_SYSROOT
  export XDG_CACHE_HOME=$BATS_TEST_TMPDIR/cache # nothing was measured
}

# planned FILTER ARGS...: the filter must answer true of the plan's JSON.
planned() {
  local filter=$1
  shift
  "$OFFLOAD" plan --json "$@" >"$BATS_TEST_TMPDIR/plan.json" || return 1
  jq -e "def near(\$wanted): . >= \$wanted * 0.98 and . <= \$wanted * 1.02; $filter" "$BATS_TEST_TMPDIR/plan.json" >/dev/null || {
    cat "$BATS_TEST_TMPDIR/plan.json"
    return 1
  }
}

# advises KIND TEXT ARGS...: a sentence of that kind with that text; `lacks KIND ARGS...`: none.
advises() {
  local kind=$1 text=$2
  shift 2
  planned "[.advice[] | select(.kind == \"$kind\") | .text | contains(\"$text\")] | any" "$@"
}
lacks() {
  local kind=$1
  shift
  planned "[.advice[] | select(.kind == \"$kind\")] | length == 0" "$@"
}

# refused TEXT ARGS...: exit status 2 and a sentence with that text, nothing on stdout.
refused() {
  local text=$1
  shift
  run --separate-stderr "$OFFLOAD" plan "$@"
  # shellcheck disable=SC2154
  if [ "$status" -ne 2 ] || [ -n "$output" ] || [[ $stderr != *"$text"* ]]; then
    echo "status $status: $stderr, expected: $text"
    return 1
  fi
}

@test "the parameters of a config.json are those of the published models" {
  planned '.model.parameters == 6738415616 and .model.type == "llama"' "$MODELS/llama-2-7b.json"
  planned '.model.parameters == 8030261248' "$MODELS/llama-3.1-8b.json"
  planned '.model.parameters == 494032768' "$MODELS/qwen2.5-0.5b.json"
  planned '.model.parameters == 7615616512' "$MODELS/qwen2.5-7b.json"
  planned '.model.parameters == 124439808' "$MODELS/gpt2.json"
  planned '.model.parameters == 2614341888' "$MODELS/gemma-2-2b.json"
  planned '.model.parameters == 6857302016' "$MODELS/pythia-6.9b.json"
  planned '.model.parameters == 1315758080' "$MODELS/opt-1.3b.json"
}

@test "of experts all are parameters, and those that are chosen work on a token" {
  planned '.model.parameters == 46702792704 and (.model.active | near(12.9e9))' "$MODELS/mixtral-8x7b.json"
  planned '.model.parameters == 30532122624 and (.model.active | near(3.35e9))' "$MODELS/qwen3-30b-a3b.json"
  # less the 256 numbers of each router's correction, which no optimizer steps
  planned '.model.parameters == 671026419200 - 58 * 256 and (.model.active | near(37.6e9))' "$MODELS/deepseek-v3.json"
  planned '.compute_seconds | near(6 * 3.353e9 * 16384 / 0.5 / 989e12)' "$MODELS/qwen3-30b-a3b.json" --gpu h200 --tokens 16K
}

@test "a directory with a config.json is a model, and a kind that isn't known is counted as a Llama, which is said" {
  mkdir "$BATS_TEST_TMPDIR/model"
  jq '.model_type = "newer"' "$MODELS/llama-2-7b.json" >"$BATS_TEST_TMPDIR/model/config.json"
  planned '.model.parameters == 6738415616 and .model.counted_as_llama' "$BATS_TEST_TMPDIR/model"
  "$OFFLOAD" plan "$BATS_TEST_TMPDIR/model" | grep -F 'model_type "newer" is not known'
  jq '{model_type: "both", text_config: .}' "$MODELS/gemma-2-2b.json" >"$BATS_TEST_TMPDIR/model/config.json"
  planned '.model.parameters == 2614341888 and (.model.counted_as_llama | not)' "$BATS_TEST_TMPDIR/model"
}

@test "bytes of a GPU are those of the optimizer, without and with" {
  planned '.without == {parameters: 28e9, gradients: 28e9, state: 56e9, staging: 0, left: (141 * 1073741824 - 112e9), fits: true}' 7B --gpu h200
  planned '.with == {parameters: 28e9, gradients: 28e9, state: 0, staging: 268435456, left: (141 * 1073741824 - 56e9 - 268435456), fits: true}
    and .host_bytes == 56e9 and .drive_bytes == 0' 7B --gpu h200
  planned '.without.parameters == 14e9 and .without.gradients == 14e9 and .host_bytes == 28e9' 7B --dtype bf16
  planned '.without.parameters == 56e9 and .host_bytes == 112e9' 7B --dtype fp64
  planned '.without.parameters == 28e9 and .host_bytes == 84e9' 7B --optimizer amsgrad
  planned '.without.parameters == 28e9 and .without.gradients == 28e9 and .host_bytes == 56e9' 7B --optimizer amp --dtype bf16
  planned '.without.parameters == 42e9 and .host_bytes == 56e9' 7B --optimizer copy --dtype bf16
  planned '.host_bytes == 28e9 and .without.parameters == 28e9' 7B --optimizer bf16-state
}

@test "what no step moves stays on the device, and is said" {
  planned '.moves == false and .host_bytes == 0 and .with.state == 56e9 and .best == null' 7B --optimizer foreach
  advises fused "52.2 GiB of state on the device, 37 % of it" 7B --optimizer foreach --gpu h200
  planned '.with.state == 84e9' 7B --optimizer master
  advises foreign "FusedAdam with a master weight is not taken over: its 78.2 GiB" 7B --optimizer master
  planned '.with.state == 14e9' 7B --optimizer 8bit
  lacks foreign 7B
}

@test "ranks of DDP repeat all, ZeRO-1 divides the state, FSDP everything" {
  planned '.without.parameters == 28e9 and .host_bytes == 56e9 and .node.host_bytes == 448e9 and .elements == 7e9' 7B --gpus 8
  advises shard "each of 8 ranks keeps and steps the same 52.2 GiB of state, 417 GiB in all: ZeRO-1" 7B --gpus 8
  planned '.without.parameters == 28e9 and .host_bytes == 7e9 and .node.host_bytes == 56e9 and .elements == 875e6' 7B --gpus 8 --shard zero1
  planned '.without.parameters == 3.5e9 and .without.gradients == 3.5e9 and .host_bytes == 7e9' 7B --gpus 8 --shard fsdp
  lacks shard 7B --gpus 8 --shard zero1
  "$OFFLOAD" plan 7B --gpus 8 | tr '\n' ' ' | grep -F 'each with everything (DDP)'
}

@test "state beyond the host memory stays on the device, or goes to drives" {
  planned '.host_bytes == 32 * 1073741824 and .with.state == 56e9 - 32 * 1073741824 and .drive_bytes == 0' 7B --host-memory 32GiB
  advises host "is 32.0 GiB, by --host-memory, so 20.2 GiB of it stays on the device" 7B --host-memory 32GiB
  planned '.with.state == 0 and .drive_bytes == 56e9 - 32 * 1073741824 and .ways.direct.possible == false' 7B --host-memory 32GiB --drives 2
  # 10 GB/s of two drives, first read, then written
  planned '.ways.cpu.seconds | near(2 * (56 - 32 * 1.073741824) / 10)' 7B --host-memory 32GiB --drives 2 --gpu h200
  planned '.drive_bytes == 56e9 - 32 * 1073741824 and (.ways.cpu.seconds | near(2 * (56 - 32 * 1.073741824) / 10))' \
    7B --host-memory 32GiB --nvme /a:/b --gpu h200
  # of the node, by eight ranks
  planned '.host_bytes == 4 * 1073741824 and .node.host_bytes == 32 * 1073741824' 7B --gpus 8 --host-memory 32GiB
  lacks host 7B --host-memory 64GiB
}

@test "seconds are those of the model of costs, and the cheapest way is named" {
  planned '(.ways.cpu.seconds | near(7 * 36 / 300)) and .ways.cpu.bound == "host memory" and .best == "cpu"' 7B --gpu h200
  planned '(.ways.stream.seconds | near(7 * 16 * 8 / 616)) and .best == "stream"' 7B --gpu h200 --gpus 8
  planned '(.ways.direct.seconds | near(7 * 8 / 35.2)) and (.ways.stay.seconds / (7 * 28 / 4800) | . >= 1 and . < 1.05)' 7B --gpu h200
  planned '[.ways[] | (.exposed + .hidden - .seconds | fabs) < 1e-9 and .seconds > 0] | all' 7B --gpu h200 --tokens 16K
  planned '.compute_seconds as $c | .ways.stay.seconds as $s | .ways.cpu | .longer == .exposed / ($c + $s)' 7B --gpu h200 --tokens 16K
  planned '.ways.stream.bound == "starts" and .with.staging == 1048576' 7B --gpu h200 --device-staging 1MiB # a piece a chunk
  planned '.compute_seconds == null and .ways.cpu.longer == null' 7B --gpu h200
}

@test "what fits is told of the device, with its parameters and gradients alone where these are too many" {
  planned '(.without.fits | not) and .with.fits and .with.left > 0' 13B --gpu h200
  planned '.device_bytes == 80 * 1073741824' 7B --gpu h100 # a card says 79.6 GiB, its vendor 80 GB
  "$OFFLOAD" plan 13B --gpu h200 | grep -E '^  fits +no +yes$'
  planned '.with.fits | not' 30B --gpu h200
  advises shard "moving state can't make them fit; FSDP or ZeRO-3 over 2 GPUs" 30B --gpu h200
  planned '.without.fits == null and .without.left == null' 13B
  planned '.without.left == 200 * 1073741824 - 208e9 and .without.fits' 13B --device-memory 200GiB
}

@test "more tokens are asked for until the target is met" {
  advises accumulate "a target of 5.0 % needs 11 times the tokens a step (180,224 for 16,384)" 7B --gpu h200 --tokens 16K
  advises accumulate "a target of 20 % needs 3 times" 7B --gpu h200 --tokens 16K --target 20%
  lacks accumulate 7B --gpu h200 --tokens 256K
  advises lora "LoRA" 7B --gpu h200 --gpus 8 --tokens 4096
}

@test "the rates are the measured ones where there are some, else told, known or assumed, and it says which" {
  planned '.rates_source == "assumed"' 7B
  "$OFFLOAD" plan 7B | grep -F 'rates assumed of a modest machine'
  planned '.rates_source == "told" and (.machine | startswith("h100-8: each of eight H100"))' 7B --gpu h100
  printf 'dram 100e9 # of this one\n' >"$BATS_TEST_TMPDIR/rates"
  planned '.rates_source == "told" and (.ways.cpu.needs["host memory"] | near(7 * 36 / 100))' 7B --rates "$BATS_TEST_TMPDIR/rates"
  planned '.machine | endswith(", else of h200")' 7B --rates "$BATS_TEST_TMPDIR/rates" --gpu h200
  export OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root
  mkdir -p "$OFFLOAD_SYSROOT/proc/sys/kernel/random" "$OFFLOAD_SYSROOT/sys/module/nvidia" "$XDG_CACHE_HOME"
  echo 11111111-2222-3333-4444-555555555555 >"$OFFLOAD_SYSROOT/proc/sys/kernel/random/boot_id"
  echo 580.1 >"$OFFLOAD_SYSROOT/sys/module/nvidia/version"
  planned '.rates_source == "assumed"' 7B
  mkdir -p "$XDG_CACHE_HOME/liboffload"
  kept=$XDG_CACHE_HOME/liboffload/rates-11111111
  keep() { # FILE BUS DRIVES RATE...
    printf '# what this machine does in a second, measured by offload-probe on NVIDIA H200\n# boot %s, driver 580.1, GPU %s, drives %s\n' \
      11111111-2222-3333-4444-555555555555 "$2" "$3" >"$kept-$1"
    printf '%s\n' "${@:4}" >>"$kept-$1"
  }
  keep 1 0000:C1:00.0 none 'dram 72e9'
  # not of a GPU that is no longer there, which is said
  planned '.rates_source == "assumed" and (.machine | contains("those kept of NVIDIA H200 0000:C1:00.0, which is not here, are not taken: --rates '"$kept-1"'"))' 7B
  gpu=$OFFLOAD_SYSROOT/proc/driver/nvidia/gpus/0000:c1:00.0
  mkdir -p "$gpu"
  printf 'Model: \t\t NVIDIA L4\n' >"$gpu/information"
  planned '.rates_source == "assumed"' 7B
  printf 'Model: \t\t NVIDIA H200\n' >"$gpu/information"
  planned '.rates_source == "measured" and (.machine | startswith("rates measured on this machine'"'"'s NVIDIA H200 0000:C1:00.0, 2")
    and contains("'"$kept-1"'")) and (.ways.cpu.needs["host memory"] | near(7 * 36 / 72))' 7B
  planned '.rates_source == "told" and (.machine | startswith("h200"))' 7B --gpu h200
  # drives' rates only where these drives are asked for
  touch -d '1 hour ago' "$kept-1"
  keep 2 0000:C1:00.0 /a:/b 'dram 72e9' 'drive_read 100e9' 'drive_write 100e9'
  planned '(.ways.cpu.needs["drives, reading"] | near((56 - 32 * 1.073741824) / 10)) and (.machine | contains(", drives assumed (5.00 GB/s each)"))' 7B --host-memory 32GiB --drives 2
  planned '(.ways.cpu.needs["drives, reading"] | near((56 - 32 * 1.073741824) / 10)) and (.machine | contains(", drives assumed (5.00 GB/s each)"))' 7B --host-memory 32GiB --nvme /a:/c
  planned '(.ways.cpu.needs["drives, reading"] | near((56 - 32 * 1.073741824) / 100)) and (.machine | contains("drives") | not)' 7B --host-memory 32GiB --nvme /a:/b
}

@test "assumed rates are told to have this machine's threads, or those that were asked for" {
  planned '.machine | test(", but [0-9]+ threads? a GPU, which this machine has")' 7B
  planned '.machine | endswith(", but 7 threads a GPU, by --threads")' 7B --threads 7
  planned '.machine | contains("threads") | not' 7B --gpu h200
}

@test "the table, the arithmetic and the help are within 80 columns" {
  local options
  for options in "7B" "7B --gpu h200 --tokens 16K --explain" "$MODELS/qwen3-30b-a3b.json --gpu h100 --gpus 8 --tokens 4K" \
    "70B --gpu rtx4090 --host-memory 40GiB --drives 1" "405B --gpus 1024 --shard fsdp --optimizer copy" "7B --optimizer 8bit" \
    "405B --gpus 1024 --optimizer bf16-state --explain"; do
    # shellcheck disable=SC2086
    "$OFFLOAD" plan $options >"$BATS_TEST_TMPDIR/text"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/text")" -gt 12 ]
    [ "$(grep -cE '.{81}' "$BATS_TEST_TMPDIR/text")" -eq 0 ]
  done
  [ "$("$OFFLOAD" plan --help | grep -cE '.{81}')" -eq 0 ]
}

@test "the arithmetic is printed with its terms" {
  "$OFFLOAD" plan 1B --gpu h200 --explain >"$BATS_TEST_TMPDIR/text"
  grep -F 'host memory      36.000 GB / 300.0 GB/s = 0.12 s' "$BATS_TEST_TMPDIR/text"
  grep -F 'link down        8.000 GB / 49.0 GB/s, 53.5 alone' "$BATS_TEST_TMPDIR/text"
}

@test "the picture is well-formed XML that has the figures, whatever the model's name" {
  cp "$MODELS/llama-2-7b.json" "$BATS_TEST_TMPDIR/a<b&\"c"$'\xff'".json"
  "$OFFLOAD" plan "$BATS_TEST_TMPDIR/a<b&\"c"$'\xff'".json" --gpu h200 --tokens 16K --svg "$BATS_TEST_TMPDIR/plan.svg" >/dev/null
  python3 - "$BATS_TEST_TMPDIR/plan.svg" <<'EOF'
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
space = "{http://www.w3.org/2000/svg}"
assert root.tag == space + "svg", root.tag
words = [text.text for text in root.iter(space + "text")]
for wanted in ("A GPU's memory", "without", "with", "cpu", "stream", "direct", "device: 141 GiB"):
    assert wanted in words, (wanted, words)
assert any('a<b&"c?.json' in word for word in words), words
bars = [bar for bar in root.iter(space + "rect") if bar.find(space + "title") is not None]
assert len(bars) >= 12, len(bars)
ends = [float(bar.get("x")) + float(bar.get("width")) for bar in bars]
assert max(ends) <= 660, max(ends)
by_name = [bar.find(space + "title").text for bar in bars]
assert "optimizer state: 50.2 GiB" in by_name and by_name.count("parameters: 25.1 GiB") == 2, by_name
EOF
}

@test "what is missing to tell how much longer a step gets is named, and nothing else" {
  "$OFFLOAD" plan 7B | grep -xF 'longer: unknown without --tokens and a known --gpu'
  "$OFFLOAD" plan 7B --tokens 16K | grep -xF 'longer: unknown without a known --gpu'
  "$OFFLOAD" plan 7B --gpu h200 | grep -xF 'longer: unknown without --tokens'
}

@test "the type in a config.json is told where another is planned" {
  jq '.torch_dtype = "bfloat16" | del(.dtype)' "$MODELS/llama-2-7b.json" >"$BATS_TEST_TMPDIR/a.json"
  jq '.dtype = "float32" | del(.torch_dtype)' "$MODELS/llama-2-7b.json" >"$BATS_TEST_TMPDIR/b.json"
  planned '.model.dtype == "bfloat16" and .dtype == "fp32"' "$BATS_TEST_TMPDIR/a.json"
  "$OFFLOAD" plan "$BATS_TEST_TMPDIR/a.json" | grep -F 'its config.json says bfloat16; planned is fp32, which --dtype tells'
  run -1 grep -F 'config.json says' <("$OFFLOAD" plan "$BATS_TEST_TMPDIR/a.json" --dtype bf16)
  run -1 grep -F 'config.json says' <("$OFFLOAD" plan "$BATS_TEST_TMPDIR/b.json")
  planned '.model.dtype == null' 7B
}

@test "rates of a machine with another number of GPUs are called that" {
  planned '.machine | endswith("by public figures, of a machine with 2 GPUs, not 8")' 7B --gpu a100-40-2 --gpus 8
  planned '.machine | endswith("by public figures")' 7B --gpu a100-40-2 --gpus 2
}

@test "a picture on standard output is alone there" {
  "$OFFLOAD" plan 7B --gpu h200 --svg - >"$BATS_TEST_TMPDIR/one.svg"
  "$OFFLOAD" plan 7B --gpu h200 --svg "$BATS_TEST_TMPDIR/two.svg" >/dev/null
  [ "$(wc -c <"$BATS_TEST_TMPDIR/one.svg")" -gt 2000 ]
  cmp "$BATS_TEST_TMPDIR/one.svg" "$BATS_TEST_TMPDIR/two.svg"
  refused "--json and --svg - are two answers" 7B --json --svg -
  run bash -c "'$OFFLOAD' plan 7B --svg - >/dev/full"
  [ "$status" -eq 1 ]
}

@test "what can't be understood is refused with argument, value and remedy" {
  refused "no model: give a size such as 7B" --gpus 2
  refused "'7G' is no size of a model (350M, 7B, 1.5B) and no config.json" 7G
  refused "give the path of its config.json, which Hugging Face has among the model's files" meta-llama/Llama-3-8B
  refused "one model at a time, so not '8B' beside '7B'" 7B 8B
  refused "--gpus 0: give a whole number from 1" 7B --gpus 0
  refused "--gpus -1" 7B --gpus=-1
  refused "--tokens 1.5: give a whole number" 7B --tokens 1.5
  refused "--optimizer amsgrat is not known, the nearest is amsgrad: known are" 7B --optimizer amsgrat
  refused "known are adamw, adam, amsgrad" 7B --optimizer sgd
  refused "--dtype fp8 is none of fp32, bf16, fp16, fp64" 7B --dtype fp8
  refused "--gpu h300 is no known machine: known are h200" 7B --gpu h300
  refused "--gpu a100 is more than one machine" 7B --gpu a100
  refused "--shard zero9 is none of none, zero1, fsdp" 7B --shard zero9
  refused "--host-memory 5GB: give a size such as 80GiB" 7B --host-memory 5GB
  refused "--device-memory 80%: give a size" 7B --device-memory 80%
  refused "--nvme ':' names no directory" 7B --nvme :
  refused "--target 100: give a share" 7B --target 100
  refused "--threads x: give a whole number" 7B --threads x
  refused "/nowhere" 7B --rates /nowhere
}

@test "a config.json that isn't one is refused with what is missing in it" {
  echo '{"hidden_size": 4096,' >"$BATS_TEST_TMPDIR/broken.json"
  refused "broken.json is no JSON: line 2" "$BATS_TEST_TMPDIR/broken.json"
  refused "give a language model's config.json of Hugging Face, or a size such as 7B" "$BATS_TEST_TMPDIR/broken.json"
  echo '[]' >"$BATS_TEST_TMPDIR/list.json"
  refused "list.json has no JSON object" "$BATS_TEST_TMPDIR/list.json"
  jq 'del(.num_hidden_layers)' "$MODELS/llama-2-7b.json" >"$BATS_TEST_TMPDIR/less.json"
  refused "less.json has no num_hidden_layers: give a language model's config.json" "$BATS_TEST_TMPDIR/less.json"
  jq '.vocab_size = -3' "$MODELS/llama-2-7b.json" >"$BATS_TEST_TMPDIR/odd.json"
  refused "odd.json: vocab_size is no whole number from 1" "$BATS_TEST_TMPDIR/odd.json"
  jq '.num_experts_per_tok = 9' "$MODELS/mixtral-8x7b.json" >"$BATS_TEST_TMPDIR/experts.json"
  jq ".num_hidden_layers = 1000000" "$MODELS/mixtral-8x7b.json" >"$BATS_TEST_TMPDIR/deep.json"
  refused "num_hidden_layers is more than 100000" "$BATS_TEST_TMPDIR/deep.json"
  refused "num_experts_per_tok is more than the 8 experts" "$BATS_TEST_TMPDIR/experts.json"
  refused "config.json" "$BATS_TEST_TMPDIR"
  mkfifo "$BATS_TEST_TMPDIR/nobody"
  run -2 timeout -k 9 20 "$OFFLOAD" plan "$BATS_TEST_TMPDIR/nobody" # without a wait
  [[ $output == *"nobody is no JSON"* ]]
}

@test "a picture or output that can't be written is an error, not a plan" {
  run "$OFFLOAD" plan 7B --svg "$BATS_TEST_TMPDIR/nowhere/plan.svg"
  [ "$status" -eq 1 ]
  [[ $output == *"--svg $BATS_TEST_TMPDIR/nowhere/plan.svg: No such file or directory"* ]]
  run bash -c "'$OFFLOAD' plan 7B --json >/dev/full"
  [ "$status" -eq 1 ]
  [ "$output" = "offload plan: standard output can't be written (No space left on device)" ]
}
