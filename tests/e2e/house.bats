#!/usr/bin/env bats
# The commands that start from nothing: deps/install.sh, tests/run, integration/demo, .ci/run. Each runs in a copy, beside
# stand-ins for what it calls, so that nothing is installed.
# bats ends a test at the first failing command, runs each in a subshell, and stand-ins are expanded later.
# shellcheck disable=SC2164,SC2030,SC2031,SC2016

setup() {
  ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  cd "$BATS_TEST_TMPDIR"
  mkdir -p deps tests integration .ci tools home/bin
  cp "$ROOT"/deps/* deps/
  cp "$ROOT/tests/run" tests/
  cp "$ROOT/integration/demo" integration/
  cp "$ROOT/.ci/run" .ci/
  stand_in home/bin/nvcc 'exit 0'
  export CUDA_HOME=$PWD/home
  unset DEPS_TIMEOUT
}

# stand_in FILE BODY: a shell script in place of a program.
stand_in() {
  printf '#!/bin/sh\n%s\n' "$2" >"$1"
  chmod +x "$1"
}

# Only these packages are wanted, with the probes of apt.txt.
wanted() { printf '%s\n' "$@" >deps/apt.txt; }

with_tools() { PATH=$PWD/tools:$PATH "$@"; }

@test "deps prints one line when nothing is missing" {
  wanted '# a comment' '' 'bash command bash' 'libc6-dev header stdio.h' 'libc6 shared libc.so.6' 'python3 python json'
  run ./deps/install.sh
  [ "$status" -eq 0 ]
  [ "$output" = 'deps: nothing is missing' ]
}

@test "deps finds an administrator's tools with the PATH of a user" {
  local tool
  for tool in /usr/sbin/*; do # one that no other folder has
    [ ! -x "$tool" ] || [ -e "/usr/bin/${tool##*/}" ] || [ -e "/bin/${tool##*/}" ] || break
  done
  wanted "tool command ${tool##*/}"
  PATH=/usr/local/bin:/usr/bin:/bin run ./deps/install.sh
  [ "$status" -eq 0 ]
  [ "$output" = 'deps: nothing is missing' ]
}

@test "deps installs what is missing and nothing else" {
  wanted 'bash command bash' 'thing command the-thing' 'other header no/such/header.h' 'third library libnothing.a' \
    'fourth shared libnothing.so.9' 'fifth python nothing_at_all'
  stand_in tools/id 'echo 0'
  stand_in tools/apt-get 'echo "$*" >>asked'
  run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'installing thing other third fourth fifth'* ]]
  [[ $output == *'still missing after installing: thing other third fourth fifth'* ]]
  tail -n 1 asked | grep -Fx 'install -y --no-install-recommends thing other third fourth fifth'
}

@test "a package that one distribution alone has is asked for there and left out elsewhere" {
  wanted 'bash command bash' 'thing command the-thing debian'
  echo 'ID=ubuntu' >release
  OS_RELEASE=release run ./deps/install.sh
  [ "$output" = 'deps: nothing is missing' ]
  OS_RELEASE=nowhere run ./deps/install.sh
  [ "$output" = 'deps: nothing is missing' ]
  printf 'NAME="Debian GNU/Linux"\nID=debian\n' >release
  stand_in tools/id 'echo 0'
  stand_in tools/apt-get 'echo "$*" >>asked'
  OS_RELEASE=release run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  tail -n 1 asked | grep -Fx 'install -y --no-install-recommends thing'
}

@test "deps says so when it has installed something" {
  wanted 'thing command the-thing'
  stand_in tools/id 'echo 0'
  stand_in tools/apt-get 'cp tools/id tools/the-thing'
  run with_tools ./deps/install.sh
  [ "$status" -eq 0 ]
  [ "${lines[-1]}" = 'deps: installed what was missing' ]
  run with_tools ./deps/install.sh
  [ "$output" = 'deps: nothing is missing' ]
}

@test "deps without root names the packages and the command" {
  wanted 'thing command the-thing' 'other command the-other'
  stand_in tools/id 'echo 1000'
  stand_in tools/sudo 'exit 1'
  stand_in tools/apt-get 'touch asked'
  run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'missing: thing other'*'apt-get install thing other'* ]]
  [ ! -e asked ]
}

@test "deps needs no root when nothing is missing" {
  wanted 'bash command bash'
  stand_in tools/id 'echo 1000'
  stand_in tools/sudo 'touch asked'
  stand_in tools/apt-get 'touch asked'
  run with_tools ./deps/install.sh
  [ "$status" -eq 0 ]
  [ ! -e asked ]
}

@test "deps shows the end of a failed installation and names the packages" {
  wanted 'thing command the-thing'
  stand_in tools/id 'echo 0'
  stand_in tools/apt-get 'echo "the mirror is away"; exit 100'
  run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'the mirror is away'*'installing failed: thing'*'build/deps.log'* ]]
}

@test "deps fetches the compiler where there is no toolkit, and completes its tree" {
  wanted 'bash command bash'
  export CUDA_HOME=$PWD/nowhere
  stand_in tools/python3 'while [ "$1" != --target ]; do shift; done; t=$2/nvidia/cu13
mkdir -p "$t/bin" "$t/include" "$t/lib"; cp home/bin/nvcc "$t/bin/"; touch "$t/include/cuda.h" "$t/lib/libcudart.so.13"'
  run with_tools ./deps/install.sh
  [ "$status" -eq 0 ]
  [ -x build/toolkit/cuda/bin/nvcc ]
  [ -e build/toolkit/cuda/lib64/libcudart.so ]
  [ ! -e build/toolkit.new ]
  run with_tools ./deps/install.sh
  [ "$output" = 'deps: nothing is missing' ]
}

@test "a failed fetch leaves no toolkit and says what to do" {
  wanted 'bash command bash'
  export CUDA_HOME=
  stand_in tools/python3 'echo "no route to the index"; exit 1'
  run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'no route to the index'*'fetching the CUDA compiler failed'*'CUDA_HOME='* ]]
  [ ! -e build/toolkit ]
  [ ! -e build/toolkit.new ]
}

@test "a fetch without end is ended and named" {
  wanted 'bash command bash'
  export CUDA_HOME='' DEPS_TIMEOUT=1
  stand_in tools/python3 'exec sleep 60'
  run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'no end after 1 s'*DEPS_TIMEOUT* ]]
}

@test "packages of another layout are refused by name" {
  wanted 'bash command bash'
  export CUDA_HOME=
  stand_in tools/python3 'while [ "$1" != --target ]; do shift; done; mkdir -p "$2/nvidia/cu14/bin"'
  run with_tools ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'nvidia/cu13'* ]]
  [ ! -e build/toolkit ]
}

@test "a bad DEPS_TIMEOUT is named with the remedy" {
  DEPS_TIMEOUT=soon run ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *'DEPS_TIMEOUT=soon'*'DEPS_TIMEOUT=900'* ]]
}

@test "an unknown probe in the list is named" {
  wanted 'thing wish the-thing'
  run ./deps/install.sh
  [ "$status" -ne 0 ]
  [[ $output == *"unknown probe 'wish'"* ]]
}

@test "every compiler package of the fetched toolkit is pinned to 13.0" {
  [ "$(grep -c '^nvidia-' deps/pip.txt)" -eq 6 ]
  [ "$(grep -cE '^nvidia-[a-z-]+==13\.0\.[0-9]+$' deps/pip.txt)" -eq 6 ]
}

@test "the test command installs make when there is none, from any folder" {
  stand_in deps/install.sh 'printf "#!/bin/sh\necho made \$*\n" >tools/make; chmod +x tools/make'
  cd /
  run env PATH="$BATS_TEST_TMPDIR/tools:$PATH" "$BATS_TEST_TMPDIR/tests/run"
  [ "$status" -eq 0 ]
  [ "$output" = 'made --no-print-directory test' ]
}

@test "the demo command installs make when there is none, from any folder" {
  stand_in deps/install.sh 'printf "#!/bin/sh\necho made \$*\n" >tools/make; chmod +x tools/make'
  cd /
  run env PATH="$BATS_TEST_TMPDIR/tools:$PATH" "$BATS_TEST_TMPDIR/integration/demo"
  [ "$status" -eq 0 ]
  [ "$output" = 'made --no-print-directory demo' ]
}

@test "a failed installation stops the test command" {
  stand_in deps/install.sh 'exit 3'
  stand_in tools/make 'touch made'
  run with_tools ./tests/run
  [ "$status" -eq 3 ]
  [ ! -e made ]
}

@test "the build server's command ends with the sum and keeps the status" {
  stand_in tests/run 'echo "5 passed, 2 failed, 1 skipped"; echo "make: *** Error 1" >&2; exit 2'
  run .ci/run
  [ "$status" -eq 2 ]
  [ "${lines[-1]}" = '5 passed, 2 failed, 1 skipped' ]
  stand_in tests/run 'echo "7 passed, 0 failed"'
  run .ci/run
  [ "$status" -eq 0 ]
  [ "${lines[-1]}" = '7 passed, 0 failed' ]
}

@test "the build server's command counts tests that did not end as failed" {
  stand_in tests/run 'echo "building"; exit 0'
  run .ci/run
  [ "$status" -ne 0 ]
  [ "${lines[-1]}" = '0 passed, 1 failed' ]
}
