#!/usr/bin/env bats
# `offload check`: each thing that limits or blocks is made to be so, and its verdict, remedy and the exit status are asked.

bats_require_minimum_version 1.5.0
ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
OFFLOAD=$BUILD/offload
SIM=$BUILD/gpusim/run

setup_file() {
  export FILES=$BATS_FILE_TMPDIR
  ${CC:-gcc} "$BATS_TEST_DIRNAME/check/deny.c" -o "$FILES/deny"
  mkdir -p "$FILES/fake"
  ${CC:-gcc} -shared -fPIC "$BATS_TEST_DIRNAME/check/driver.c" -o "$FILES/fake/libcuda.so.1"
  printf 'int main(void) { return 7; }\n' >"$FILES/seven.c"
  ${CC:-gcc} -static "$FILES/seven.c" -o "$FILES/static"
}

# A machine without limits, whatever this one has.
setup() {
  export OFFLOAD_THREADS=2 XDG_CACHE_HOME=$BATS_TEST_TMPDIR GPUSIM_MEMORY=64MiB
  unset LD_PRELOAD CUDA_VISIBLE_DEVICES PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF OFFLOAD_TEST_BUILD
  unset SLURM_JOB_ID KUBERNETES_SERVICE_HOST APPTAINER_CONTAINER SINGULARITY_CONTAINER
}

# checked STATUS [ARGS...]: runs it on the simulated GPU (or by $BY) and keeps what it wrote; the JSON is as its schema says.
checked() {
  local expected=$1 status=0
  shift
  ${BY:-"$SIM"} "$OFFLOAD" check --json "$@" >"$BATS_TEST_TMPDIR/check.json" || status=$?
  python3 "$ROOT/tests/lib/validate.py" "$ROOT/policy/check.schema.json" "$BATS_TEST_TMPDIR/check.json"
  [ "$status" -eq "$expected" ] || {
    echo "exit status $status"
    jq -c '.checks[] | select(.verdict != "good")' "$BATS_TEST_TMPDIR/check.json"
    return 1
  }
}
asked() { jq -r "$1" "$BATS_TEST_TMPDIR/check.json"; }

# says NAME VERDICT [FOUND [REMEDY]]: one finding of this check has this verdict, with these words.
says() {
  jq -e --arg name "$1" --arg verdict "$2" --arg found "${3:-}" --arg remedy "${4:-}" \
    '[.checks[] | select(.name == $name and .verdict == $verdict and (.found | contains($found)) and (.remedy | contains($remedy)))] | length > 0' \
    "$BATS_TEST_TMPDIR/check.json" >/dev/null || {
    echo "no such finding; what $1 says:"
    jq -c --arg name "$1" '.checks[] | select(.name == $name)' "$BATS_TEST_TMPDIR/check.json"
    return 1
  }
}

@test "on a machine where nothing stands in the way every check is good, and every one is there" {
  checked 0 -- sh
  # A container's filter is no fault of ours.
  if grep -q '^Seccomp:[[:space:]]*2' /proc/self/status && says sandbox limits >/dev/null; then
    [ "$(asked '[.checks[] | select(.verdict != "good").name] | unique | join(" ")')" = sandbox ]
  else
    [ "$(asked .verdict)" = good ]
  fi
  [ "$(asked '.gpus | length')" -eq 1 ]
  [ "$(asked '.gpus[0] | .vmm and .host_numa_handles and .host_memory_used')" = true ]
  [ "$(asked '.gpus[0].bytes')" -eq $((64 << 20)) ]
  [ "$(asked .driver)" -eq 13000 ]
  [ "$(asked .threads)" -eq 2 ]
  [ "$(asked .budget_bytes)" -gt 0 ]
  names=$(sed -n 's/^CHECK(\([a-z]*\),.*/\1/p' "$ROOT/policy/checks.def")
  [ "$(wc -w <<<"$names")" -ge 15 ]
  [ "$(asked '[.checks[].name] | unique | sort | join(" ")')" = "$(sort <<<"$names" | paste -sd' ')" ]
}

@test "a job that may not use the memory or the CPUs of the GPU's node is told so, with the distance" {
  root=$BATS_TEST_TMPDIR/root
  mkdir -p "$root"/proc/self "$root"/sys/devices/system/node/node{0,1}
  cp "$ROOT/tests/data/cgroup_v1/proc/meminfo" "$root/proc"
  echo 0-3 >"$root/sys/devices/system/node/node0/cpulist"
  echo 4-7,12 >"$root/sys/devices/system/node/node1/cpulist"
  echo 10 21 >"$root/sys/devices/system/node/node0/distance"
  export OFFLOAD_SYSROOT=$root
  printf 'Cpus_allowed_list:\t2,12\nMems_allowed_list:\t0-1\n' >"$root/proc/self/status"
  checked 0
  [ "$(asked '[.checks[] | select(.name == "gpu").verdict] | unique | join(" ")')" = good ]
  says gpu good "node 0"
  printf 'Cpus_allowed_list:\t4-12\nMems_allowed_list:\t0-1\n' >"$root/proc/self/status"
  checked 0
  says gpu limits "on node 0, this process on the CPUs of another (distance 21)" "numactl --cpunodebind=0"
  printf 'Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1\n' >"$root/proc/self/status"
  checked 0
  says gpu limits "its host memory is node 0, of which this process may take none (1)" "--cpuset-mems 0"
}

@test "each visible GPU is tried, with its driver calls counted" {
  export GPUSIM_DEVICES=2 GPUSIM_REPORT=$BATS_TEST_TMPDIR/sim.json
  checked 0
  [ "$(asked '[.gpus[].host_memory_used] | all')" = true ]
  says gpu good "0: Simulated GPU 0"
  says gpu good "1: Simulated GPU 1"
  [ "$(jq .launches "$BATS_TEST_TMPDIR/sim.json")" -eq 2 ]
  CUDA_VISIBLE_DEVICES=1 checked 0
  says gpu good "CUDA_VISIBLE_DEVICES=1: 1 visible"
}

@test "a driver before CUDA 12.2 blocks, one before 12.4 limits, with the release to use" {
  GPUSIM_DRIVER=12.1 checked 1
  says driver blocks "CUDA 12.1" "driver 550.54"
  says gpu blocks "no host memory handles" "driver 550.54"
  [ "$(asked .verdict)" = blocks ]
  GPUSIM_DRIVER=12.2 checked 0
  says driver limits "CUDA 12.2" CUDA_VISIBLE_DEVICES
  GPUSIM_DRIVER=12.4 checked 0
  says driver good "CUDA 12.4"
}

@test "where no host handle can be made that blocks, and where only HOST handles can it limits" {
  GPUSIM_HOST_NUMA=0 GPUSIM_HOST=0 checked 1
  says gpu blocks "HOST_NUMA: CUDA_ERROR_NOT_PERMITTED, HOST: CUDA_ERROR_NOT_SUPPORTED" "--cap-add SYS_NICE"
  GPUSIM_HOST_NUMA=0 checked 0
  says gpu limits "by HOST handles, used by CPU and kernel" "--cap-add SYS_NICE"
  [ "$(asked '.gpus[0] | .host_handles and (.host_numa_handles | not)')" = true ]
}

@test "without virtual memory management, as in WSL2 and vGPU, nothing can move" {
  GPUSIM_ODD=wsl2 checked 1
  says gpu blocks "no virtual memory management" "native Linux"
  mkdir -p "$BATS_TEST_TMPDIR/root/proc/sys/kernel"
  echo 5.15.90.1-microsoft-standard-WSL2 >"$BATS_TEST_TMPDIR/root/proc/sys/kernel/osrelease"
  cp "$ROOT/tests/data/cgroup_v1/proc/meminfo" "$BATS_TEST_TMPDIR/root/proc"
  OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root checked 0
  says machine limits WSL2 "native Linux"
}

@test "a kernel that can't work on host memory blocks" {
  GPUSIM_FAULT='cuModuleLoadData:*:CUDA_ERROR_JIT_COMPILER_NOT_FOUND' checked 1
  says gpu blocks "a kernel could not work on host memory: CUDA_ERROR_JIT_COMPILER_NOT_FOUND" libnvidia-ptxjitcompiler
}

@test "a GPU that another process has for itself can't be tried, and that is said" {
  GPUSIM_FAULT='cuDevicePrimaryCtxRetain:*:CUDA_ERROR_DEVICE_UNAVAILABLE' checked 1
  says gpu blocks "could not be tried: CUDA_ERROR_DEVICE_UNAVAILABLE" "nvidia-smi"
}

@test "without a driver, or with one that finds no GPU, the remedy names the flags of containers" {
  mkdir "$BATS_TEST_TMPDIR/none"
  echo "no library" >"$BATS_TEST_TMPDIR/none/libcuda.so.1"
  export LD_LIBRARY_PATH=$BATS_TEST_TMPDIR/none
  BY="env" checked 1
  says driver blocks "no CUDA driver" "docker run --gpus all"
  says gpu blocks "none could be asked"
  export LD_LIBRARY_PATH=$FILES/fake
  FAKE_DRIVER=100 BY="env" checked 1
  says driver blocks "cuInit failed with" "nvidia-smi should list one"
}

@test "a driver that crashes or hangs is named with the call, and check itself goes on" {
  export LD_LIBRARY_PATH=$FILES/fake
  FAKE_DRIVER=crash BY="env" checked 1
  says driver blocks "cuInit ended with signal 6" "don't preload"
  FAKE_DRIVER=hang BY="env" checked 1 --timeout 1
  says driver blocks "cuInit did not return in 1 s"
  says library good
}

@test "locked memory of 64 KiB limits drives, and nothing without them" {
  mkdir -p "$BATS_TEST_TMPDIR/root" "$BATS_TEST_TMPDIR/drive"
  cp -r "$ROOT/tests/data/memlock/proc" "$BATS_TEST_TMPDIR/root"
  cp "$ROOT/tests/data/cgroup_v1/proc/meminfo" "$BATS_TEST_TMPDIR/root/proc"
  sed -i 's/^Max locked memory .*/Max locked memory         65536                65536                bytes/' "$BATS_TEST_TMPDIR/root/proc/self/limits"
  export OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root
  checked 0
  says memlock good "RLIMIT_MEMLOCK leaves"
  OFFLOAD_NVME=$BATS_TEST_TMPDIR/drive checked 0
  says memlock limits "256 MiB are wanted" "ulimit -l 327680"
}

@test "a control group's memory limit is the budget, v1 and v2, and limits where a full GPU has more state" {
  for tree in cgroup_v1 cgroup_v2_nested; do
    export OFFLOAD_SYSROOT=$ROOT/tests/data/$tree
    checked 0
    says memory good "cgroup memory limit"
    [ "$(asked .budget_bytes)" -eq $(((6 << 30) * 80 / 100)) ]
    GPUSIM_MEMORY=16GiB checked 0
    says memory limits "the state of one full GPU is up to 8.00 GiB" "docker --memory"
    OFFLOAD_HOST_MEMORY=0 checked 1
    says memory blocks "none may be pinned (OFFLOAD_HOST_MEMORY)"
  done
}

@test "one CPU limits: the remedy names flags and the step that needs none" {
  unset OFFLOAD_THREADS
  BY="taskset -c 0 $SIM" checked 0
  says cores limits "1 for the CPU step; 1 CPUs may be used" "--cpus-per-task"
  says cores limits "" "OFFLOAD_STEP=stream"
}

# denied CALL: the command in front that has the kernel refuse this call; the test is skipped where no filter may be set.
denied() {
  "$FILES/deny" "$1" -- true 2>/dev/null || skip "no system call may be filtered here"
  BY="$FILES/deny $1 -- $SIM"
}

@test "where a sandbox denies get_mempolicy the flag that allows it is named" {
  denied get_mempolicy
  checked 0
  says sandbox limits "get_mempolicy is denied" "--cap-add SYS_NICE"
}

@test "a drive is told with its space, and that io_uring is not allowed where it isn't" {
  [[ $(stat -f -c %T "$BUILD") =~ ^(ext2/ext3|xfs)$ ]] || skip "the build's folder is on a file system that can't hold state"
  OFFLOAD_NVME=$(mktemp -d "$BUILD/check-drive.XXXXXX")
  export OFFLOAD_NVME
  checked 0
  says drives good "free, direct access works"
  denied io_uring_setup
  checked 0
  says drives limits "io_uring is not allowed" "seccomp"
}
teardown() { [ -z "${OFFLOAD_NVME:-}" ] || rmdir "$BUILD"/check-drive.* 2>/dev/null || true; }

@test "a directory that can't hold state is named with the reason" {
  mkdir /dev/shm/offload-check-$$
  OFFLOAD_NVME=/dev/shm/offload-check-$$ checked 0
  rmdir /dev/shm/offload-check-$$
  says drives limits "on tmpfs" "ext4 or xfs"
  OFFLOAD_NVME=/nowhere/at/all checked 0
  says drives limits "/nowhere/at/all: No such file" "create the directory"
}

@test "bad settings are findings with what to write, and mode off blocks" {
  OFFLOAD_HOST_MEMORY=20GB OFFLOAD_MOED=full checked 0
  says settings limits OFFLOAD_HOST_MEMORY=20GB "write 20GiB"
  says settings limits "did you mean OFFLOAD_MODE?"
  OFFLOAD_MODE=off checked 1
  says settings blocks OFFLOAD_MODE=off "unset it"
  OFFLOAD_MODE=observe checked 0
  says settings limits "moves nothing"
}

@test "a command that nothing can be preloaded into blocks, one that is not there too" {
  checked 1 -- "$FILES/static"
  says command blocks "statically linked" "dynamically"
  checked 1 no-such-program-anywhere
  says command blocks "No such file"
  checked 0 sh -c 'exit 3'
  says command good "can be preloaded"
}

@test "the library that would be preloaded is really loaded, and what keeps it out is said" {
  mkdir "$BATS_TEST_TMPDIR/library"
  cp "$BUILD/liboffload.so" "$BATS_TEST_TMPDIR/library"
  checked 0 --library "$BATS_TEST_TMPDIR/library/liboffload.so"
  says library limits "no companion" "liboffload-adam.so beside it"
  says library limits "offload-probe can't be run" OFFLOAD_RATES
  printf '\363' | dd of="$BATS_TEST_TMPDIR/library/liboffload.so" bs=1 seek=18 conv=notrunc status=none
  checked 1 --library "$BATS_TEST_TMPDIR/library/liboffload.so"
  says library blocks "not loaded by the dynamic linker"
  checked 1 --library /nowhere/liboffload.so
  says library blocks /nowhere/liboffload.so
}

@test "another library that defines dlsym or the driver's names is named" {
  printf 'void *dlsym(void *h, const char *n) { (void)h; (void)n; return 0; }\n' >"$BATS_TEST_TMPDIR/hook.c"
  ${CC:-gcc} -shared -fPIC "$BATS_TEST_TMPDIR/hook.c" -o "$BATS_TEST_TMPDIR/libhook.so"
  mkdir -p "$BATS_TEST_TMPDIR/root/etc" "$BATS_TEST_TMPDIR/root/proc"
  cp "$ROOT/tests/data/cgroup_v1/proc/meminfo" "$BATS_TEST_TMPDIR/root/proc"
  echo "$BATS_TEST_TMPDIR/libhook.so" >"$BATS_TEST_TMPDIR/root/etc/ld.so.preload"
  OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root checked 0
  says preloads limits "libhook.so in /etc/ld.so.preload defines dlsym too" "offload run"
  CUDA_INJECTION64_PATH=/opt/profiler.so checked 0
  says preloads limits CUDA_INJECTION64_PATH=/opt/profiler.so
}

@test "allocator settings that keep memory where it is block" {
  PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True checked 1
  says allocator blocks "expandable segments" "take expandable_segments:True out"
  PYTORCH_ALLOC_CONF=backend:cudaMallocAsync checked 1
  says allocator blocks "cudaMallocAsync" "take backend:cudaMallocAsync out"
}

# python VERSION: an interpreter that answers as one with this PyTorch would.
python() {
  printf '#!/bin/sh\necho found %s\n' "$1" >"$BATS_TEST_TMPDIR/python3"
  chmod +x "$BATS_TEST_TMPDIR/python3"
}

@test "PyTorch before 2.0 blocks, a later one is told with what must be set" {
  python 1.13.1+cu117
  checked 1 -- "$BATS_TEST_TMPDIR/python3" train.py
  says pytorch blocks 1.13.1 "PyTorch 2.0"
  python 2.11.0
  checked 0 -- "$BATS_TEST_TMPDIR/python3" train.py
  says pytorch good "2.11.0; state moves of Adam and AdamW with fused=True"
  printf '#!%s\n' "$BATS_TEST_TMPDIR/python3" >"$BATS_TEST_TMPDIR/torchrun"
  chmod +x "$BATS_TEST_TMPDIR/torchrun"
  checked 0 -- "$BATS_TEST_TMPDIR/torchrun" train.py
  says pytorch good 2.11.0
}

@test "containers and batch systems are recognised, with flags for what is missing" {
  mkdir -p "$BATS_TEST_TMPDIR/root/proc" "$BATS_TEST_TMPDIR/root/run"
  cp "$ROOT/tests/data/cgroup_v1/proc/meminfo" "$BATS_TEST_TMPDIR/root/proc"
  export OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root
  checked 0
  says container good "none found"
  touch "$BATS_TEST_TMPDIR/root/.dockerenv"
  GPUSIM_HOST_NUMA=0 GPUSIM_HOST=0 checked 1
  says container good docker "docker run --gpus all --cap-add SYS_NICE"
  says container good docker "-v /opt/offload:/opt/offload:ro"
  says container good docker "IMAGE /opt/offload/bin/offload run -- COMMAND"
  rm "$BATS_TEST_TMPDIR/root/.dockerenv"
  touch "$BATS_TEST_TMPDIR/root/run/.containerenv"
  checked 0
  says container good podman "podman run --device nvidia.com/gpu=all"
  KUBERNETES_SERVICE_HOST=10.0.0.1 GPUSIM_DEVICES=2 checked 0
  says container good Kubernetes "nvidia.com/gpu: 2, cpu: 4"
  says container good Kubernetes "SYS_NICE"
  rm "$BATS_TEST_TMPDIR/root/run/.containerenv"
  SLURM_JOB_ID=7 APPTAINER_CONTAINER=/image.sif checked 0
  says container good Slurm "--cpus-per-task=4"
  says container good Apptainer "apptainer exec --nv"
}

@test "without a place where ranks can meet, and without a cache, that is a limit" {
  mkdir -p "$BATS_TEST_TMPDIR/root/proc"
  cp "$ROOT/tests/data/cgroup_v1/proc/meminfo" "$BATS_TEST_TMPDIR/root/proc"
  export OFFLOAD_SYSROOT=$BATS_TEST_TMPDIR/root TMPDIR=/nowhere XDG_RUNTIME_DIR=/nowhere
  checked 0
  says shared limits "no directory" "--shm-size"
  mkdir -p "$BATS_TEST_TMPDIR/root/dev/shm"
  checked 0
  says shared good "root/dev/shm"
  XDG_CACHE_HOME=$FILES/seven.c/cache checked 0
  says cache limits "can't be written to" "XDG_CACHE_HOME"
}

@test "for people: 80 columns, no colour in a file, colour on a terminal unless NO_COLOR says no" {
  export OFFLOAD_MODE=observe
  run "$SIM" "$OFFLOAD" check -- sh
  [ "$status" -eq 0 ]
  [[ $output == *"limits settings"*"> unset it for moving"*"State can move"* ]]
  [[ $output != *$'\033'* ]]
  # Lines that are to be copied are as long as they are.
  [ "$(awk 'length > 80 && !/^                          / { n++ } END { print n + 0 }' <<<"$output")" -eq 0 ]
  on_terminal() { python3 -c 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)' "$SIM" "$OFFLOAD" check; }
  TERM=xterm run on_terminal
  [[ $output == *$'\033[33mlimits '* ]]
  NO_COLOR='' TERM=xterm run on_terminal # set, and empty: as if it weren't
  [[ $output == *$'\033[33mlimits '* ]]
  TERM=dumb run on_terminal
  [[ $output != *$'\033'* ]]
  NO_COLOR=1 TERM=xterm run on_terminal
  [[ $output != *$'\033'* ]]
  [[ $output == *"limits settings"* ]]
}

@test "wrong usage is a sentence and exit 2" {
  run "$OFFLOAD" check --frobnicate
  [ "$status" -eq 2 ]
  run "$OFFLOAD" check --timeout soon
  [ "$status" -eq 2 ]
  [[ $output == *"--timeout soon: write a whole number of seconds"* ]]
}
