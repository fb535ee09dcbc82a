#!/usr/bin/env bats
# Several processes on one node: host memory, cores and staging are parted among them, however they were started. The node is a recorded
# tree (OFFLOAD_SYSROOT) with little memory, and a registry of its own. Processes meet in the middle and before the end, so that all are
# there at the same time.
bats_require_minimum_version 1.5.0
load ../lib/e2e

PROGRAM=$BUILD/tests/e2e/step_program
KERNEL=$BUILD/tests/e2e/25544_float-adamw.ptx
STATE=1015808 # bytes of pieces that the program's state fills
STEPS=12
export OFFLOAD_PIECE=16KiB GPUSIM_MEMORY=64MiB OFFLOAD_STEP=stream
unset OFFLOAD_THREADS

setup() {
  DIR=$BATS_TEST_TMPDIR
  mkdir -p "$DIR/node/proc" "$DIR/node/dev/shm" "$DIR/1" "$DIR/2"
  "$SIM" "$PROGRAM" "$KERNEL" small=1 steps=$STEPS >"$DIR/alone"
}

teardown() {
  for pid in ${pids-}; do kill -KILL "$pid" 2>/dev/null || true; done
}

# node KIB: what the machine has for all.
node() { printf 'MemTotal: 99999 kB\nMemAvailable: %s kB\n' "$1" >"$DIR/node/proc/meminfo"; }

# started BY RANK RANKS: what a launcher puts into the environment.
started() {
  case $1 in
    torchrun) echo "LOCAL_RANK=$2 LOCAL_WORLD_SIZE=$3 MASTER_ADDR=localhost MASTER_PORT=29500" ;;
    deepspeed) echo "LOCAL_RANK=$2 LOCAL_SIZE=$3 MASTER_ADDR=localhost MASTER_PORT=29500" ;;
    slurm) echo "SLURM_LOCALID=$2 SLURM_STEP_TASKS_PER_NODE=7,$3(x2) SLURM_NODEID=1 SLURM_JOB_ID=5 SLURM_STEP_ID=0" ;;
    openmpi) echo "OMPI_COMM_WORLD_LOCAL_RANK=$2 OMPI_COMM_WORLD_LOCAL_SIZE=$3 PMIX_NAMESPACE=five" ;;
    mpich) echo "MPI_LOCALRANKID=$2 MPI_LOCALNRANKS=$3 PMI_PORT=localhost:5" ;;
    none) echo "STARTED_BY=hand" ;;
  esac
}

# start BY RANK RANKS WORDS...: a rank in the background; its files are DIR/{report,out,err}.RANK.
start() {
  local by=$1 rank=$2 ranks=$3
  shift 3
  # shellcheck disable=SC2046 # words
  env $(started "$by" "$rank" "$ranks") OFFLOAD_SYSROOT="$DIR/node" OFFLOAD_REPORT="$DIR/report.$rank" LD_PRELOAD="$LIBOFFLOAD" \
    timeout -s KILL 60 "$SIM" "$PROGRAM" "$KERNEL" small=1 steps=$STEPS meet="$DIR" "$@" >"$DIR/out.$rank" 2>"$DIR/err.$rank" 3>&- &
  pids+=" $!"
}

# all BY RANKS [WORDS...]: starts so many and waits for them; each has the program's own numbers.
all() {
  local by=$1 ranks=$2 rank pid
  shift 2
  pids=
  rm -f "$DIR"/[12]/* "$DIR"/report.*
  for ((rank = 0; rank < ranks; rank++)); do start "$by" "$rank" "$ranks" ranks="$ranks" "$@"; done
  for pid in $pids; do wait "$pid" || { tail -n 3 "$DIR"/err.*; return 1; }; done
  pids=
  for ((rank = 0; rank < ranks; rank++)); do
    diff "$DIR/alone" "$DIR/out.$rank" >/dev/null || { echo "rank $rank has other numbers"; return 1; }
  done
}

# each FILTER: true in all reports; in_all FILTER: true of the list of reports.
each() {
  jq -es "map($1) | all" "$DIR"/report.* >/dev/null || { echo "not in every report: $1"; jq -c '[.totals.moved_bytes_peak, .budget, .node]' "$DIR"/report.*; return 1; }
}
in_all() {
  jq -es "$1" "$DIR"/report.* >/dev/null || { echo "not so: $1"; jq -c '[.totals.moved_bytes_peak, .budget, .node]' "$DIR"/report.*; return 1; }
}

# parted BY RANKS: what must be so whatever started them. 80 % of the node's memory is for state.
parted() {
  local ranks=$2 available=$3
  each ".node.registered and (.node.ranks | length) == $ranks and .totals.moved_bytes_peak > 0" || return 1
  each ".node.machine_bytes == ($available * 1024 * 80 / 100 | floor)" || return 1
  in_all "(map(.totals.moved_bytes_peak) | add) <= .[0].node.machine_bytes" || return 1
  # as each saw them when all were there
  each "(.node | (.ranks | map(.host_bytes) | add) <= .machine_bytes and (.ranks | map(.host_bytes + .staging_bytes) | add) <= $available * 1024)" || return 1
  # Those whom nobody counts claim in portions: one may have waited for what another gave back.
  [ "$1" = none ] || each '.node.ranks | map(select(.declines)) == []'
}

@test "1, 2 and 4 ranks of every launcher share a node's memory equally, with the program's own numbers" {
  local by ranks
  for by in torchrun deepspeed slurm openmpi mpich; do
    for ranks in 1 2 4; do
      [ $by = torchrun ] || [ $ranks = 4 ] || continue
      node 3000
      all $by $ranks || { echo "$by, $ranks ranks"; return 1; }
      parted $by $ranks 3000 || { echo "$by, $ranks ranks"; return 1; }
      each ".budget.bytes == (.node.machine_bytes / $ranks | floor) and .node.local_ranks == $ranks and .node.sharers == $ranks and .node.missing == 0" || return 1
      in_all 'map(.node.local_rank) | sort == [range(length)]' || return 1
    done
  done
  in_all 'map(.totals.moved_bytes_peak) | all(. < 1015808 and . > 500000)'
}

@test "1, 2 and 4 processes that nobody counts take what they need of a node, and no more than there is" {
  local ranks
  for ranks in 1 2 4; do
    node 4400
    all none $ranks || return 1
    parted none $ranks 4400 || return 1
    each '.node.launcher == null and .node.local_ranks == null' || return 1
  done
  # three have all their state there, the fourth what is left
  in_all "map(.totals.moved_bytes_peak) | sort | .[1:] == [$STATE, $STATE, $STATE] and .[0] < $STATE and (add > .[0] + 3 * $STATE - 16384)" ||
    in_all "(map(.totals.moved_bytes_peak) | add) > 4400 * 1024 * 80 / 100 - 4 * 16384"
}

@test "a killed rank's share is used by the one that lives on" {
  local first pid
  node 2000
  start none 0 1 ranks=99
  first=$!
  while [ ! "$(ls "$DIR/1")" ]; do sleep 0.02; done
  start none 1 1 ranks=3
  pid=$!
  while [ "$(find "$DIR/1" -type f | wc -l)" -lt 2 ]; do sleep 0.02; done
  # both hold what they could get: the one in the middle has not all
  pkill -KILL -P "$first" || kill -KILL "$first"
  wait "$first" || true
  touch "$DIR/1/third" "$DIR/2/second" "$DIR/2/third"
  wait "$pid" || { cat "$DIR/err.1"; return 1; }
  diff "$DIR/alone" "$DIR/out.1"
  jq -e ".totals.moved_bytes_peak == $STATE" "$DIR/report.1" || { jq -c '[.totals, .node, .reasons]' "$DIR/report.1"; return 1; }
  # its state didn't fit beside the other's: the first move was a part of it
  jq -e '(.reasons | any(contains("stays on the device"))) and (.node.ranks | length) == 2 and (.node.ranks | map(.live)) == [true, false]' "$DIR/report.1"
}

@test "cores and pinned staging of all ranks stay within the node's, and a rank without room for staging goes by stream" {
  local ranks
  export OFFLOAD_STEP=cpu OFFLOAD_DEVICE_STAGING=1100KiB
  node 40000
  all none 2 || return 1
  parted none 2 40000 || return 1
  each '.functions[0].mode == "cpu" and .node.staging_bytes > 0 and (.node.ranks | map(.staging_bytes > 0) | all)' || return 1
  each "(.node.ranks | map(.threads) | add) <= ([$(nproc) - 2, 2] | max)" || return 1
  node 16000 # state of both, and staging of one
  all none 2 || return 1
  parted none 2 16000 || return 1
  in_all 'map(.functions[0].mode) | sort == ["cpu", "stream"]' &&
    in_all 'any(.reasons | any(contains("for staging beside what the processes of this node have claimed")))'
}

@test "rank 0 names a rank that moves nothing, with its reason, and one that never came" {
  node 8000
  pids=
  start torchrun 0 3 ranks=2
  OFFLOAD_HOST_MEMORY=1 start torchrun 1 3 ranks=2
  for pid in $pids; do wait "$pid" || { tail -n 3 "$DIR"/err.*; return 1; }; done
  pids=
  jq -e '.node.missing == 1 and (.node.ranks | map([.local_rank, .declines]) == [[0, false], [1, true]]) and (.node.ranks[1].note | contains("OFFLOAD_HOST_MEMORY"))' \
    "$DIR/report.0" || { jq .node "$DIR/report.0"; return 1; }
  grep "rank 1 of this node (process [0-9]*) steps and moves nothing: .*OFFLOAD_HOST_MEMORY" "$DIR/err.0"
  [ "$(grep -c "moves nothing" "$DIR/err.1")" -eq 0 ]
}

# seeds BY WAY SEED SEED: two ranks that step this way, with state of equal sizes and these numbers. They wait for each step, as
# programs do that look at their loss: what is read of the state of one that only queues steps is of no step.
seeds() {
  local by=$1 way=$2 seed=("$3" "$4") rank pid
  rm -f "$DIR"/[12]/* "$DIR"/report.*
  pids=
  for rank in 0 1; do OFFLOAD_STEP=$way start "$by" $rank 2 ranks=2 sync=1 seed="${seed[rank]}"; done
  for pid in $pids; do wait "$pid" || { tail -n 3 "$DIR"/err.*; return 1; }; done
  pids=
  for rank in 0 1; do
    "$SIM" "$PROGRAM" "$KERNEL" small=1 steps=$STEPS sync=1 seed="${seed[rank]}" | diff - "$DIR/out.$rank" || return 1
  done
  each ".totals.moved_bytes_peak == $STATE and .functions[0].launches_$way > 0 and (.node.ranks | map(.state_bytes) | length == 2 and .[0] == .[1])"
}

@test "ranks of one job that keep the same state are told of ZeRO-1 and FSDP, others are not" {
  node 40000
  seeds torchrun stream 7 7 || return 1
  grep '2 ranks keep the same state, 989 KiB each, 1.93 MiB of this node in all; ZeRO-1 .* or FSDP keeps it once' "$DIR/err.0"
  ! grep "keep the same state" "$DIR/err.1" || return 1
  each '.node.replicas == 2 and .node.replicated_bytes == 1012504' || return 1
  seeds none stream 7 7 || return 1
  ! grep "keep the same state" "$DIR"/err.* || return 1
  each '.node.replicas <= 1 and .node.replicated_bytes == 0'
}

@test "ranks whose state has the same sizes and other values, as FSDP's shards may have, are not said to repeat it" {
  local way
  node 40000
  seeds torchrun stream 7 8 || return 1
  each '.node.replicas <= 1 and .node.replicated_bytes == 0' || return 1
  for way in cpu direct; do
    seeds torchrun $way 7 7 || return 1
    each '.node.replicas == 2' || return 1
    grep '2 ranks keep the same state' "$DIR/err.0"
    seeds torchrun $way 7 8 || return 1
    each '.node.replicas <= 1 and .node.replicated_bytes == 0' || return 1
    ! grep "keep the same state" "$DIR"/err.* || return 1
  done
}

@test "without a place for the registry ranks go by their launcher's number, and that is said" {
  rmdir "$DIR/node/dev/shm"
  node 3000
  all torchrun 2 || return 1
  each '.node.registered == false and .node.sharers == 2 and .totals.moved_bytes_peak > 0 and .budget.bytes == (3000 * 1024 * 80 / 100 / 2 | floor)' || return 1
  each '(.node.problem | contains("/dev/shm")) and (.reasons | any(contains("there is no registry of ranks")))'
}
