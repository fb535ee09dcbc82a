#!/usr/bin/env bats
# Every command that README.md and the recipes tell a user to type: each line of their blocks marked sh is run here, in the order it
# stands there. docker, kubectl and Slurm are stand-ins (recipes/stand_in) that take the real programs' options only; `python
# train.py` is charlm on the simulated GPU.
# The stand-ins' program is expanded by the shell that they start.
# shellcheck disable=SC2016,SC2164

load ../lib/e2e.bash

setup_file() {
  export TOOLS=$BATS_FILE_TMPDIR/tools
  mkdir -p "$TOOLS" "$BATS_FILE_TMPDIR/installed"
  for name in docker kubectl sbatch srun scontrol torchrun python; do
    ln -s "$ROOT/tests/e2e/recipes/stand_in" "$TOOLS/$name"
  done
  make -s -C "$ROOT" B="$BUILD" install DESTDIR="$BATS_FILE_TMPDIR/installed" PREFIX=/opt/offload >"$BATS_FILE_TMPDIR/install.log" 2>&1
}

setup() {
  cd "$BATS_TEST_TMPDIR"
  ln -s "$ROOT/integration" integration
  ln -s "$BUILD" build
  mkdir -p a b home/.cache
  export PATH=$TOOLS:$PATH
  export STAND_IN_PATH=$PATH HOME=$PWD/home STAND_IN_LOG=$PWD/trained
  export STAND_IN_GPU=$SIM STAND_IN_PREFIX=$BATS_FILE_TMPDIR/installed/opt/offload
  export STAND_IN_PROGRAM="exec '$SIM' '$CHARLM' '$TEXT' ${SMALL[*]} --steps 6"
  : >trained
}

# commands FILE: its lines to type, without comments.
commands() { awk '/^```/ { inside = ($0 == "```sh"); next } inside && NF' "$1" | sed 's/ *#.*//'; }

# here LINE: as it is typed on this machine, with this test's folders.
here() {
  local line=${1/#\/opt\/offload\/bin\/offload check/$SIM $STAND_IN_PREFIX/bin/offload check}
  line=${line/#build\/offload check/$SIM build/offload check}
  line=${line/#build\/offload bench/$SIM build/offload bench}
  line=${line/#\/opt\/offload/$STAND_IN_PREFIX}
  line=${line//\/mnt\/a:\/mnt\/b/$PWD/a:$PWD/b}
  printf '%s\n' "${line//\/path\/to\/liboffload.so/$LIBOFFLOAD}"
}

# moved COUNT: so many reports say that state moved and was stepped from where it went.
moved() {
  local found=0 file
  for file in report*.json; do
    [ -e "$file" ] || continue
    found=$((found + $(jq '[select(.totals.moved_bytes_peak > 0 and .totals.elements_cpu + .totals.elements_stream > 0)] | length' "$file")))
  done
  [ "$found" -eq "$1" ] || { echo "$found reports of moved state, not $1" && tail -n 20 out && return 1; }
}

# typed LINE: runs it, and looks at what it was for.
typed() {
  local line=$1
  case $line in
  './integration/demo' | './tests/run') # what they do is demo.bats' and house.bats' to show
    [ -x "$ROOT/$line" ]
    return
    ;;
  *integration/pytorch/run*)
    [ -x integration/pytorch/run ] && integration/pytorch/run --help | grep -q 'run SCRIPT'
    return
    ;;
  esac
  [[ $line == *'offload report'* ]] || rm -f report*.json # of the command before
  : >trained
  eval "$(here "$line")" >out 2>&1 </dev/null || { echo "$line: ended with $?" && tail -n 20 out && return 1; }
  case $line in
  *'offload check'*) grep -qi 'driver' out ;;
  *'offload plan'*) grep -q 'step by .*exposed' out ;;
  *'offload bench'*) grep -qi 'link' out ;;
  *'offload top'*) grep -q '^offload top' out ;;
  *'offload report'*) grep -q '<svg' report.html ;;
  *'run --observe'*) grep -q 'would move' out ;;
  'LD_PRELOAD='*) grep -q 'of optimizer state was on the host' out ;;
  'kubectl apply'*) moved 1 ;;
  'kubectl logs'*) grep -q 'of optimizer state was on the host' out ;;
  sbatch* | srun*train.py | torchrun* | *torchrun*)
    [ "$(grep -c 'trained preload=yes' trained)" -eq 2 ]
    if [[ $line == *report.* || $line == sbatch* ]]; then moved 2; else [ "$(grep -c 'of optimizer state was on the host' out)" -eq 2 ]; fi
    ;;
  *report.json*train.py) moved 1 ;;
  *train.py) grep -q 'of optimizer state was on the host' out ;;
  *) echo "no test knows what '$line' is for" && return 1 ;;
  esac
}

# each FILE: all its commands; there must be some.
each() {
  local line count=0
  while IFS= read -r line; do
    echo "\$ $line"
    typed "$line" || return 1
    count=$((count + 1))
  done < <(commands "$1")
  [ "$count" -ge "$2" ]
}

@test "every command of README.md does what it is there for" {
  each "$ROOT/README.md" 12
}

@test "every command of the recipes for Docker, Kubernetes, Slurm and torchrun starts ranks whose state moves" {
  each "$ROOT/integration/recipes/README.md" 9
}

@test "the stand-ins refuse what the real programs don't take" {
  run docker run --gpus all --cap-add SYS_NICE --memory lots IMAGE python train.py
  [ "$status" -ne 0 ]
  run srun --such-option python train.py
  [ "$status" -ne 0 ]
  sed 's/SYS_NICE/SYS_TIME/' "$ROOT/integration/recipes/pod.yaml" >pod.yaml
  run kubectl apply -f pod.yaml
  [ "$status" -ne 0 ]
  [[ $output == *SYS_NICE* ]]
  [ ! -s trained ]
}

@test "README's table of what works has a row for each optimizer and framework that is tested, and each names its test" {
  run python3 "$ROOT/tests/check/readme_tables.py"
  [ "$status" -eq 0 ]
  for word in PyTorch 'Hugging Face' DDP FSDP2 ZeroRedundancyOptimizer bitsandbytes 'Apex, DeepSpeed, Megatron'; do
    grep -q "^|.*$word" "$ROOT/README.md"
  done
}
