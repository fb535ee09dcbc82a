#!/usr/bin/env bats
# integration/gpu on the simulated GPU: what each probe finds there, and that check.sh tells success from failure.
# bats runs each test in a subshell.
# shellcheck disable=SC2030,SC2031
bats_require_minimum_version 1.5.0

ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
SIM=$BUILD/gpusim/run
GPU=$ROOT/integration/gpu
PROBE=$BUILD/gpu/gpu-probe
export GPUSIM_GRANULARITY=64KiB

setup_file() {
  local status=0
  "$SIM" "$PROBE" all >"$BATS_FILE_TMPDIR/all.jsonl" 2>"$BATS_FILE_TMPDIR/all.err" || status=$?
  echo "$status" >"$BATS_FILE_TMPDIR/all.status"
}

# found PROBE FILTER SENTENCE [FILE]: a jq question to the facts of a probe must be answered with true.
found() {
  local file=${4:-$BATS_FILE_TMPDIR/all.jsonl}
  [ "$(jq -r "select(.probe == \"$1\") | .facts | $2" "$file")" = true ] || {
    echo "expected: $3"
    jq -c "select(.probe == \"$1\") | {ok, error, facts}" "$file"
    return 1
  }
}

# A driver of the given C text, in driver/: what a probe does with it is the test.
fake_driver() {
  mkdir -p "$BATS_TEST_TMPDIR/driver"
  gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$BATS_TEST_TMPDIR/driver/libcuda.so.1" -x c -
  export LD_LIBRARY_PATH=$BATS_TEST_TMPDIR/driver
}

@test "every probe of the list runs and passes on the simulated GPU" {
  sed -n 's/^PROBE(\([a-z0-9_]*\),.*/\1/p' "$GPU/probe/probes.def" >"$BATS_TEST_TMPDIR/listed"
  [ "$(wc -l <"$BATS_TEST_TMPDIR/listed")" -ge 17 ]
  jq -r .probe "$BATS_FILE_TMPDIR/all.jsonl" | diff "$BATS_TEST_TMPDIR/listed" -
  "$PROBE" --list | diff "$BATS_TEST_TMPDIR/listed" -
  jq -c 'select(.ok | not) | [.probe, .error]' "$BATS_FILE_TMPDIR/all.jsonl" | diff /dev/null -
  [ "$(cat "$BATS_FILE_TMPDIR/all.status")" = 0 ]
}

@test "every question P1 to P10 is asked" {
  for number in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(jq -s "any(.[]; .id == \"P$number\")" "$BATS_FILE_TMPDIR/all.jsonl")" = true ]
  done
}

@test "what a probe prints has the committed shape, and names the rule of the simulation" {
  python3 "$ROOT/tests/lib/schema.py" "$GPU/probe.schema.json" "$BATS_FILE_TMPDIR/all.jsonl"
  [ "$(jq -s 'all(.[]; .simulated and (.rule | type == "string") and .error == null)' "$BATS_FILE_TMPDIR/all.jsonl")" = true ]
}

@test "the README lists every probe with its question and its rule" {
  jq -r '"| \(.id) | `\(.probe)` | \(.question) | \(.rule) |"' "$BATS_FILE_TMPDIR/all.jsonl" >"$BATS_TEST_TMPDIR/wanted"
  sed -n '/^<!-- questions/,/^<!-- end of questions/{/^| P/p}' "$GPU/README.md" | diff "$BATS_TEST_TMPDIR/wanted" -
}

@test "the shape is really checked: lines without a fact, with a wrong type or a name twice are refused" {
  good=$(head -n 1 "$BATS_FILE_TMPDIR/all.jsonl")
  check() { python3 "$ROOT/tests/lib/schema.py" "$GPU/probe.schema.json" - <<<"$1"; }
  check "$good"
  run ! check "$(jq -c 'del(.facts)' <<<"$good")"
  run ! check "$(jq -c '.ok = "yes"' <<<"$good")"
  run ! check "$(jq -c '.facts.list = []' <<<"$good")"
  run ! check "$(jq -c '.more = 1' <<<"$good")"
  run ! check '{"probe": "a", "probe": "b"}'
  run python3 "$ROOT/tests/lib/schema.py" <(echo '{"oneOf": []}') - <<<"$good"
  [ "$status" -eq 2 ]
}

@test "granularity: half of it is refused, and so are node -1 and HOST_NUMA_CURRENT" {
  found granularity '.piece_bytes == 65536 and .create_half_of_device == "CUDA_ERROR_INVALID_VALUE" and
    .create_half_of_host_numa == "CUDA_ERROR_INVALID_VALUE" and .create_half_of_host == "CUDA_ERROR_INVALID_VALUE"' \
    "handles below the granularity are refused"
  found granularity '.create_host_numa_minus_1 == "CUDA_ERROR_INVALID_VALUE" and
    .create_host_numa_current == "CUDA_ERROR_INVALID_VALUE"' "nodes that aren't one are refused"
}

@test "remap: data survives, and the CPU is shut out until it was granted access" {
  found remap '[.intact_on_host, .intact_for_cpu, .intact_back_on_device, .intact_on_host_again] | all' "the data is intact"
  found remap '[.cpu_loads_device_piece, .cpu_loads_unmapped, .cpu_loads_before_access, .cpu_loads_with_device_access,
    .cpu_loads_after_return] | any | not' "the CPU is shut out"
  found remap '.cpu_loads_host_piece and .cpu_stores_host_piece and .device_access_before == 0' "and let in by access"
  found remap '.alias_reads_the_same and .alias_sees_stores and .alias_sees_kernels' "two mappings share the bytes"
}

@test "border: single copies, fills and kernels work across it; only copies between host memories block" {
  found border '[to_entries[] | select(.key | endswith("_border_right")) | .value] | length >= 8 and all' "all data is right"
  found border '[to_entries[] | select(.key | endswith("_device_blocks")) | .value] | length >= 8 and (any | not)' \
    "nothing with a device piece blocks"
  found border '.htod_host_blocks and .dtoh_host_blocks and .dtod_to_host_host_blocks and .dtod_to_host_border_blocks' \
    "host to host blocks"
  found border '.kernel_border_blocks or .memset_border_blocks or .dtod_to_device_border_blocks | not' "these don't"
  found border '.batch_to_device_border == "not supported by this driver" or .batch_to_device_border_right' \
    "a batch is right, or the driver has none"
}

@test "access: a host descriptor over a mixed range is refused and changes nothing" {
  found access '.device_over_both == "CUDA_SUCCESS" and .kernel_over_both' "a device descriptor is taken"
  found access '[.host_over_both, .device_and_host_over_both, .host_on_device_piece] | all(. == "CUDA_ERROR_INVALID_VALUE")' \
    "a host descriptor is refused"
  found access '(.refused_call_opened_the_host_piece | not) and .kernel_after_refused_call' "a refused call changes nothing"
  found access '[.map_with_offset, .unmap_half_a_mapping, .access_on_half_a_mapping, .map_over_a_mapping, .access_over_a_hole] |
    all(. == "CUDA_ERROR_INVALID_VALUE")' "mappings are wholes"
}

@test "cost: every call has a time, new memory is not zero, and only freeing waits for a kernel" {
  found cost '[.create_device_2MiB_us, .map_host_16MiB_us, .setaccess_host_32MiB_us, .unmap_device_64MiB_us,
    .release_host_64MiB_us, .create_host_64MiB_GBps] | all(. > 0)' "times"
  found cost '.new_device_memory_is_zero or .new_host_memory_is_zero | not' "memory that a program must not rely on"
  found cost '.cuMemFree_waits_for_running_kernel and .cuMemFreeHost_waits_for_running_kernel' "freeing waits"
  found cost '.unmap_waits_for_running_kernel or .setaccess_waits_for_running_kernel | not' "the simulated unmap does not"
}

@test "bandwidth: three kinds of host memory, both engines and kernels, both ways" {
  found bandwidth '[to_entries[] | select(.key | endswith("_GBps")) | .value] | length == 24 and all(. > 0)' "24 rates"
}

@test "attributes: the memory type follows a move, the range stays" {
  found attributes '.device_piece_memory_type == 2 and .host_piece_memory_type == 1 and .piece_back_on_device_memory_type == 2' \
    "HOST on a host piece only"
  found attributes '.device_piece_range_size == .host_piece_range_size and .host_piece_range_size == 3 * .host_piece_mapping_size' \
    "the range is the reservation"
  found attributes '.host_piece_address_range_base == -512 and .cu_mem_alloc_address_range_base == -512' "distances from the address"
}

@test "values: a waiting stream is not ready, waits are cyclic, words may lie on a host piece" {
  found values '.round_trip_median_us > 0 and .round_trip_fastest_us <= .round_trip_median_us' "a latency"
  found values '.stream_query_while_waiting == "CUDA_ERROR_NOT_READY" and .event_query_while_waiting == "CUDA_ERROR_NOT_READY"' \
    "queries say so"
  found values '.wait_is_cyclic and .wait_on_host_piece == "CUDA_SUCCESS"' "cyclic, and on a host piece"
  found values '.captured == "not supported by this driver" or .captured == "yes, and replayed"' "captured or said to be not"
}

@test "connections: with eight hardware queues the ninth waiting stream is held up, with one the second" {
  found connections '.last_of_8_runs and (.last_of_9_runs | not) and .independent_streams_at_least == 8' "eight queues"
  GPUSIM_QUEUES=1 "$SIM" "$PROBE" connections >"$BATS_TEST_TMPDIR/one.jsonl"
  found connections '(.last_of_2_runs | not) and .independent_streams_at_least == 1' "one queue" "$BATS_TEST_TMPDIR/one.jsonl"
}

@test "visibility: many repetitions in each direction, none of them stale" {
  found visible_down '[to_entries[] | select(.key | endswith("_wrong")) | .value] | length == 5 and all(. == 0)' "down"
  found visible_down '[to_entries[] | select(.key | endswith("_repeats")) | .value] | all(. >= 100)' "repeated"
  found visible_up '[to_entries[] | select(.key | endswith("_wrong")) | .value] | length == 6 and all(. == 0)' "up"
}

@test "graphs: made before a move, right after it, or said to be unsupported" {
  for origin in explicit captured; do
    for node in kernel memset copy_in copy_out; do
      found graphs ".${origin}_$node == \"not supported by this driver\" or (.${origin}_${node}_before == \"intact\" and
        .${origin}_${node}_on_host == \"intact\" and .${origin}_${node}_back_on_device == \"intact\")" "$origin $node"
    done
  done
}

@test "resolvers: every name of the library's table has one pointer, however it is asked for" {
  names=$(grep -cE '^(HOOK|SEEN|USE)\(' "$ROOT/shim/hooks.def")
  found resolvers ".names == $names and .same_pointer == $names and .all_pointers_same" "identity"
  found resolvers '.resolver_of_11_3_is_exported and .resolver_of_12_0_is_exported and .unknown_name_is_null' "both resolvers"
}

@test "a CUkernel passed as a CUfunction has its name and its parameters, and can be launched" {
  found kernel_cast '[.launch_of_cast, .cuFuncGetName_of_cast_right, .cuKernelGetParamInfo_right,
    .cuFuncGetParamInfo_of_cast_right] | all' "all of it"
}

@test "powers: the device's differ from the C library's by at most a few units, and some do" {
  found powers '[to_entries[] | select(.key | test("^powf?_[0-9.]+_most_units$")) | .value] | length == 12 and all(. <= 8)' \
    "a small neighbourhood"
  found powers '[to_entries[] | select(.key | test("^powf_.*_different$")) | .value] | add > 0' "they are not libm's"
}

@test "without HOST_NUMA the probes use HOST, and without either they say what to do" {
  GPUSIM_HOST_NUMA=0 "$SIM" "$PROBE" remap >"$BATS_TEST_TMPDIR/host.jsonl"
  found remap '.host_handles == "HOST" and .intact_on_host' "HOST handles" "$BATS_TEST_TMPDIR/host.jsonl"
  GPUSIM_HOST_NUMA=0 GPUSIM_HOST=0 run "$SIM" "$PROBE" remap
  [ "$status" -eq 1 ]
  python3 "$ROOT/tests/lib/schema.py" "$GPU/probe.schema.json" - <<<"$output"
  [[ $(jq -r .error <<<"$output") == "no host handles: HOST_NUMA"*"NOT_PERMITTED"*"--cap-add SYS_NICE"* ]]
}

@test "an expectation that does not hold fails the probe and is told in words; the facts stay" {
  GPUSIM_GRANULARITY=4MiB run "$SIM" "$PROBE" granularity
  [ "$status" -eq 1 ]
  python3 "$ROOT/tests/lib/schema.py" "$GPU/probe.schema.json" - <<<"$output"
  [ "$(jq -r .error <<<"$output")" = "2 MiB, the library's piece, is a multiple of 4194304" ]
  [ "$(jq '(.ok | not) and .facts.piece_bytes == 4194304' <<<"$output")" = true ]
}

@test "a driver that crashes is a result, with what was being done" {
  fake_driver <<<'#include <stdlib.h>
int cuInit(unsigned f) { (void)f; abort(); }'
  run "$PROBE" values
  [ "$status" -eq 1 ]
  python3 "$ROOT/tests/lib/schema.py" "$GPU/probe.schema.json" - <<<"$output"
  [[ $(jq -r .error <<<"$output") == "ended by signal 6"*"while starting the driver" ]]
  [ "$(jq .simulated <<<"$output")" = false ]
  [ "$(jq .rule <<<"$output")" = null ]
}

@test "a driver that hangs is a result after the limit, and what came after it is still run" {
  fake_driver <<<'#include <unistd.h>
int cuInit(unsigned f) { (void)f; for (;;) pause(); }'
  SECONDS=0
  run "$PROBE" --limit 1 values remap
  [ "$status" -eq 1 ]
  [ "$SECONDS" -le 6 ]
  [ "${#lines[@]}" -eq 2 ]
  [[ $(jq -r .error <<<"${lines[1]}") == "no end within 1 s, while starting the driver" ]]
}

@test "a driver that exits, and a machine without one, are results" {
  fake_driver <<<'#include <unistd.h>
int cuInit(unsigned f) { (void)f; _exit(0); }'
  run "$PROBE" values
  [ "$status" -eq 1 ]
  [[ $(jq -r .error <<<"$output") == "ended with status 0 before it was done"* ]]
  LD_LIBRARY_PATH='' run "$PROBE" values
  [ "$status" -eq 1 ]
  [[ $(jq -r .error <<<"$output") == "no driver: libcuda.so.1"* ]]
}

@test "wrong usage of gpu-probe is named" {
  run "$PROBE" nothing
  [ "$status" -eq 2 ]
  [[ $output == *"nothing: no such probe; --list names them"* ]]
  run "$PROBE" --limit soon values
  [ "$status" -eq 2 ]
  [[ $output == *"--limit soon: wants seconds"* ]]
  run "$PROBE"
  [ "$status" -eq 2 ]
  [[ $output == *"usage: gpu-probe"*"granularity"* ]]
}

@test "the program links nothing of CUDA and no other library than glibc's" {
  readelf -d "$PROBE" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$BATS_TEST_TMPDIR/needed"
  [ -s "$BATS_TEST_TMPDIR/needed" ]
  run grep -vE '^(libc|libm|libdl|libpthread|ld-linux-[a-z0-9-]+|lib[at]?u?b?san)\.so\.[0-9]+$' "$BATS_TEST_TMPDIR/needed"
  [ "$output" = "" ]
}

# check VARIABLES...: check.sh on the simulated GPU; results in $BATS_TEST_TMPDIR/out.
check() {
  OUT=$BATS_TEST_TMPDIR/out GPU_CHECK_PROGRAMS=$BUILD/gpu GPUSIM_GRANULARITY=16KiB OFFLOAD_MIN_ALLOCATION=16KiB OFFLOAD_THREADS=2 \
    run env "$@" "$SIM" "$GPU/check.sh"
  [ ! -e "$BATS_TEST_TMPDIR/out/summary.json" ] ||
    jq -c . "$BATS_TEST_TMPDIR/out/summary.json" | python3 "$ROOT/tests/lib/schema.py" "$GPU/summary.schema.json" -
}
summary() { jq -r "$1" "$BATS_TEST_TMPDIR/out/summary.json"; }

@test "check.sh: all probes, probes under the preload, and training that is identical in all modes" {
  check A=1
  [ "$status" -eq 0 ]
  [ "$(summary '.ok and .simulated and .not_run == []')" = true ]
  [ "$(summary '.probes | length')" = "$("$PROBE" --list | wc -l)" ]
  [ "$(summary '[.preloaded[] | .ok] | length == 3 and all')" = true ]
  [ "$(summary '.preloaded[2].facts.preloaded')" = true ]
  [ "$(summary '.preloaded[0].facts.all_pointers_same')" = true ]
  [ "$(summary '[.trainings[] | select(.name | endswith("_alone") | not) | .identical and .moved_bytes > 0] | length == 6 and all')" = true ]
  [ "$(summary '.figures.launch_ns > 0 and .figures.launch_preloaded_ns > 0 and .figures.copy_up_vmm_GBps > 0')" = true ]
  [ "$(ls "$BATS_TEST_TMPDIR/out" | wc -l)" -le 8 ]
  python3 "$ROOT/tests/lib/schema.py" "$GPU/probe.schema.json" "$BATS_TEST_TMPDIR/out/probes.jsonl"
}

@test "check.sh: what does not hold makes it fail, and is named" {
  check GPUSIM_HOST_NUMA=0 GPUSIM_HOST=0
  [ "$status" -eq 1 ]
  [ "$(summary .ok)" = false ]
  [[ $output == *"FAILED  remap: \"no host handles"* ]]
  [[ $output == *"FAILED  training 25544_float_cpu: no state moved"* ]]
  [ "$(summary '[.trainings[] | .identical] | index(false)')" = null ]
}

@test "check.sh: numbers that differ make it fail" {
  mkdir "$BATS_TEST_TMPDIR/programs"
  cp -r "$BUILD/gpu/." "$BATS_TEST_TMPDIR/programs"
  cat >"$BATS_TEST_TMPDIR/programs/charlm" <<END
#!/bin/sh
[ -z "\${OFFLOAD_STEP-}" ] || set -- "\$@" --seed 2
exec "$BUILD/charlm" "\$@"
END
  check GPU_CHECK_PROGRAMS="$BATS_TEST_TMPDIR/programs"
  [ "$status" -eq 1 ]
  [[ $output == *"FAILED  training 25544_float_stream: losses, parameters or state differ"* ]]
  [ "$(summary '[.trainings[] | select(.name | endswith("_alone") | not) | .identical] | any')" = false ]
}

@test "check.sh: it ends by its time limit, and says what had no time" {
  SECONDS=0
  check GPU_CHECK_SECONDS=2
  [ "$SECONDS" -le 8 ]
  [ "$status" -eq 1 ]
  [[ $output == *"the time was over"* ]]
  [ "$(summary '.probes[-1].ok')" = false ]
}

@test "check.sh: without the training program it says so, without its probes it does not begin" {
  mkdir "$BATS_TEST_TMPDIR/programs"
  cp "$PROBE" "$BATS_TEST_TMPDIR/programs"
  check GPU_CHECK_PROGRAMS="$BATS_TEST_TMPDIR/programs"
  [ "$status" -eq 0 ]
  [ "$(summary '.not_run | length')" = 3 ]
  [ "$(summary '.trainings | length')" = 0 ]
  rm "$BATS_TEST_TMPDIR/programs/gpu-probe"
  check GPU_CHECK_PROGRAMS="$BATS_TEST_TMPDIR/programs"
  [ "$status" -eq 2 ]
  [[ $output == *"no gpu-probe in"*"make gpu-check-programs"* ]]
  check GPU_CHECK_SECONDS=soon
  [ "$status" -eq 2 ]
  [[ $output == *"GPU_CHECK_SECONDS=soon"* ]]
}
