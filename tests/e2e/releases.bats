#!/usr/bin/env bats
# Releases of PyTorch: what is said when an environment can't be built, how the newest is found, and a slice of the tests
# with other releases than the default, another one from day to day; `make test-releases` runs them all.
load ../lib/e2e

# with_index URL COMMAND...: with this index, no other, and no environment built before.
with_index() {
  env -u PIP_EXTRA_INDEX_URL -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL="$1" \
    XDG_CACHE_HOME="$BATS_TEST_TMPDIR/cache" "${@:2}"
}

# A port of this machine at which nobody listens.
NOBODY=http://127.0.0.1:9/simple

# index RELEASE...: an index of files, with a wheel of torch for each release; $index is its URL.
index() {
  local folder=$BATS_TEST_TMPDIR/index/torch release
  mkdir -p "$folder"
  for release in "$@"; do
    echo "<a href=\"torch-$release-py3-none-any.whl\">torch-$release-py3-none-any.whl</a>"
    : >"$folder/torch-$release-py3-none-any.whl"
  done >"$folder/index.html"
  index=file://${folder%/torch}
}

# A copy of the sources and of what is built of them, without any environment of PyTorch. What is tested of a make that
# fails is then out of the way of the run that this test is part of.
copy_without_pytorch() {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/build/pytorch"
  (cd "$ROOT" && cp -a Makefile ./*.mk deps shim adam policy nvme tests integration "$copy")
  local part
  for part in "$BUILD"/*; do
    case ${part##*/} in
    pytorch | mutants | test | check | san-* | *.log | downloads) ;;
    toolkit) ln -s "$part" "$copy/build/toolkit" ;;
    *) cp -a "$part" "$copy/build" ;;
    esac
  done
  for part in "$BUILD"/pytorch/*; do
    case ${part##*/} in
    [0-9]*) ;;
    *) cp -a "$part" "$copy/build/pytorch" ;;
    esac
  done
}

@test "where PyTorch's environment can't be built make test-pytorch fails, skips nothing and says why" {
  copy_without_pytorch
  cd "$copy"
  run with_index "$NOBODY" make --no-print-directory test-pytorch PYTORCH_TESTS='tests/pytorch/test_kernels.py tests/pytorch/test_unseen.py'
  echo "$output"
  [ "$status" -ne 0 ]
  grep -q '^pytorch: fetching the packages failed (status [1-9][0-9]*); the whole output is in ' <<<"$output"
  grep -q '^pytorch: run `make pytorch` again once there is a network' <<<"$output"
  grep -q '^FAIL build: not everything could be built' <<<"$output"
  grep -q '^FAIL test_kernels' <<<"$output"
  grep -q '^FAIL test_unseen' <<<"$output"
  grep -q '^0 passed, [1-9][0-9]* failed$' <<<"$output"
  [ -z "$(find "$BATS_TEST_TMPDIR/cache" -name torch -type d)" ]
}

@test "the newest release is the index's newest that is none to come" {
  index 2.9.1 2.10.0 2.11.0rc1 2.9.0
  run with_index "$index" python3 "$ROOT/integration/pytorch/environment.py" --newest
  echo "$output"
  [ "$status" -eq 0 ]
  [ "${lines[-1]}" = 2.10.0 ]
}

@test "a newer release on the index takes the place of the last one on the list, and is told of" {
  index 2.11.0 99.1.2
  run with_index "$index" python3 "$ROOT/tests/pytorch/releases.py" --list
  echo "$output"
  [ "$status" -eq 0 ]
  grep -q '^releases: 99\.1\.2 is on the index; when it passes, write it into pytorch_releases.txt' <<<"$output"
  for file in "$ROOT"/tests/pytorch/test_*.py; do
    grep -qx "2\.11\.0 ${file##*/}" <<<"$output"
    grep -qx "99\.1\.2 ${file##*/}" <<<"$output"
  done
  [ "$(grep -c '^[0-9]' <<<"$output")" -eq "$((2 * $(ls "$ROOT"/tests/pytorch/test_*.py | wc -l)))" ]
}

@test "without an index the releases aren't tested, which is a failure" {
  run with_index "$NOBODY" python3 "$ROOT/tests/pytorch/releases.py"
  echo "$output"
  [ "$status" -ne 0 ]
  grep -q "^pytorch: the index doesn't say which release of torch is the newest" <<<"$output"
  grep -q '^releases: without the newest release this says less than it should' <<<"$output"
  ! grep -q '^PyTorch' <<<"$output"
}

@test "each turn is one file with one release, and the turns come to all of them" {
  index 2.11.0 2.15.0
  all=$(with_index "$index" python3 "$ROOT/tests/pytorch/releases.py" --list)
  count=$(wc -l <<<"$all")
  [ "$count" -gt 30 ]
  for turn in $(seq 100 "$((99 + count))"); do
    with_index "$NOBODY" python3 "$ROOT/tests/pytorch/releases.py" --list --turn "$turn"
  done | sort >"$BATS_TEST_TMPDIR/turns"
  diff "$BATS_TEST_TMPDIR/turns" <(sort <<<"$all")
}

@test "today's file of PyTorch's tests passes with today's release" {
  OFFLOAD_TEST_BUILD=$BUILD run python3 "$ROOT/tests/pytorch/releases.py" --turn "$((10#$(date +%j)))"
  echo "$output"
  [ "$status" -eq 0 ]
  grep -q '^[1-9][0-9]* passed, 0 failed' <<<"$output"
}
