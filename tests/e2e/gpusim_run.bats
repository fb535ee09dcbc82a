#!/usr/bin/env bats
# build/gpusim/run: what it sets, what it keeps, what it explains.
# bats ends a test at the first failing command, runs each in a subshell, and stand-ins are expanded later.
# shellcheck disable=SC2164,SC2030,SC2031,SC2016

bats_require_minimum_version 1.5.0

setup() {
  ROOT=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  BUILD=${OFFLOAD_TEST_BUILD:-$ROOT/build}
  RUN=$BUILD/gpusim/run
  cd "$BATS_TEST_TMPDIR"
}

# A runtime that is not ours, in other/, and a program linked against it with the given linker options.
other_runtime() {
  mkdir other
  echo 'int cudaRuntimeGetVersion(int *v) { *v = 1; return 0; }' >other.c
  echo 'libcudart.so.13 { global: *; };' >other.map
  gcc -shared -fPIC -Wl,-soname,libcudart.so.13 -Wl,--version-script=other.map -o other/libcudart.so.13 other.c
  cat >version.c <<'EOF'
#include <stdio.h>
int cudaRuntimeGetVersion(int *);
int main(void) { int v = 0; cudaRuntimeGetVersion(&v); printf("%d\n", v); return 0; }
EOF
  gcc -o version version.c other/libcudart.so.13 "$@"
}

@test "help lists every switch of switches.def with its default" {
  run "$RUN" --help
  [ "$status" -eq 0 ]
  switches=$(grep -c '^SWITCH(' "$ROOT/tests/gpusim/switches.def")
  [ "$switches" -gt 10 ]
  [ "$(grep -c '^  GPUSIM_[A-Z_]* .*\[.*\]$' <<<"$output")" -eq "$switches" ]
  while read -r name; do
    grep -q "^  $name " <<<"$output"
  done < <(sed -n 's/^SWITCH([^,]*, *\([A-Z_]*\),.*/\1/p' "$ROOT/tests/gpusim/switches.def")
}

@test "without a program it says how to be used" {
  run "$RUN"
  [ "$status" -eq 2 ]
  [[ $output == *"no program given"*"--help"* ]]
}

@test "an unknown option is named" {
  run "$RUN" --fast /bin/true
  [ "$status" -eq 2 ]
  [[ $output == *"unknown option --fast"* ]]
}

@test "a program that is missing and one that can't be executed are told apart" {
  run -127 "$RUN" ./nothing
  [[ $output == *"./nothing: no such program"* ]]
  touch text
  run "$RUN" ./text
  [ "$status" -eq 126 ]
  [[ $output == *"chmod +x ./text"* ]]
}

@test "arguments, exit status and output are the program's" {
  run "$RUN" sh -c 'echo "$#:$1:$2"; exit 7' sh 'a b' '*'
  [ "$status" -eq 7 ]
  [ "$output" = '2:a b:*' ]
}

@test "existing values of LD_LIBRARY_PATH and LD_PRELOAD are kept" {
  LD_LIBRARY_PATH=/first:/second run "$RUN" sh -c 'echo "$LD_LIBRARY_PATH"'
  [ "$output" = "$BUILD/gpusim:/first:/second" ]
  gcc -shared -fPIC -o preload.so -x c - <<<'int preloaded;'
  LD_PRELOAD=$PWD/preload.so run "$RUN" sh -c 'echo "$LD_PRELOAD"'
  [ "$output" = "$PWD/preload.so" ]
  unset LD_LIBRARY_PATH
  run "$RUN" sh -c 'echo "$LD_LIBRARY_PATH"'
  [ "$output" = "$BUILD/gpusim" ]
}

@test "it finds its folder through a symbolic link" {
  ln -s "$RUN" linked
  run ./linked sh -c 'echo "$LD_LIBRARY_PATH"'
  [[ $output == "$BUILD/gpusim"* ]]
}

@test "a missing driver is named with the remedy" {
  cp "$RUN" alone
  run ./alone /bin/true
  [ "$status" -eq 1 ]
  [[ $output == *"libcuda.so.1 is missing"*make* ]]
}

@test "a program whose RUNPATH names another runtime gets the simulated one" {
  other_runtime -Wl,--enable-new-dtags,-rpath,"$PWD/other"
  [ "$(./version)" = 1 ]
  run "$RUN" ./version
  [ "$status" -eq 0 ]
  [ "$output" = 13000 ]
}

@test "a program with DT_RPATH is told why it may not" {
  other_runtime -Wl,--disable-new-dtags,-rpath,"$PWD/other"
  run "$RUN" ./version
  [[ $output == *"./version has DT_RPATH"*"--enable-new-dtags"* ]]
  [[ ${lines[-1]} == 1 ]]
}

@test "the runtime exports exactly the committed names, in the version node libcudart.so.13" {
  nm -D --defined-only "$BUILD/gpusim/libcudart.so.13" | awk '$2 ~ /[TW]/ { print $3 }' | sort >exported
  grep -v '^#' "$ROOT/tests/gpusim/gen/runtime_names.txt" | sed 's/$/@@libcudart.so.13/' | sort >committed
  [ -s committed ]
  diff committed exported
  readelf -d "$BUILD/gpusim/libcudart.so.13" | grep -F 'soname: [libcudart.so.13]'
}

@test "the driver exports exactly the committed names of its version, 13.0" {
  nm -D --defined-only "$BUILD/gpusim/libcuda.so.1" | awk '$3 ~ /^cu/ { print $3 }' | sort >exported
  grep -v '^#' "$ROOT/tests/gpusim/gen/driver_names.txt" | awk '$3 <= 13000 { print $1 }' | sort >committed
  [ -s committed ]
  diff committed exported
}
