#!/usr/bin/env bats
# The guards of the build (tests/check): the library passes, and each guard refuses what breaks its rule.
bats_require_minimum_version 1.5.0
load ../lib/e2e

GUARDS=$ROOT/tests/check

@test "the built library passes the guards of the build" {
  "$GUARDS/exports" "$BUILD/liboffload.so" "$ROOT/shim/exports.txt"
  "$GUARDS/exports" "$BUILD/liboffload-adam.so" "$GUARDS/adam_exports.txt"
  "$GUARDS/symbols" "$BUILD/liboffload.so" "$BUILD/liboffload-adam.so"
  "$GUARDS/dlsym" "$BUILD/liboffload.so"
  (cd "$ROOT" && "$GUARDS/table_lock" shim/*.c)
}

# library CODE FLAGS...: a shared object made of a line of C.
library() {
  local code=$1
  shift
  echo "$code" | "${CC:-gcc}" -xc -shared -fPIC "$@" -o "$BATS_TEST_TMPDIR/broken.so" -
}

# refused WORDS COMMAND...: it fails and says so.
refused() {
  local words=$1
  shift
  run "$@"
  echo "$output"
  [ "$status" -ne 0 ]
  grep -q "$words" <<<"$output"
}

@test "each guard of the build refuses a library that breaks its rule" {
  hardened=("-Wl,-z,relro,-z,now,-z,noexecstack")
  library 'int cuInit(unsigned f) { return (int)f; } int leaked(void) { return 1; }' "${hardened[@]}"
  refused leaked "$GUARDS/exports" "$BATS_TEST_TMPDIR/broken.so" "$ROOT/shim/exports.txt"
  library 'int one(void) { return 1; }'
  refused BIND_NOW "$GUARDS/symbols" "$BATS_TEST_TMPDIR/broken.so"
  library 'int one(void) { return 1; }' "${hardened[@]}" -Wl,-rpath,/nowhere
  refused RPATH "$GUARDS/symbols" "$BATS_TEST_TMPDIR/broken.so"
  library 'int one(void) { return 1; }' "${hardened[@]}" -Wl,-z,execstack
  refused 'executable stack' "$GUARDS/symbols" "$BATS_TEST_TMPDIR/broken.so"
  library 'extern void *real; static int lock; void *dlsym_find(void) { return real; } void *real;
    void *dlsym(void *h, const char *n) { __atomic_fetch_add(&lock, 1, 5); (void)h; (void)n; return dlsym_find(); }
    void *dlvsym(void *h, const char *n, const char *v) { (void)v; return dlsym(h, n); }' "${hardened[@]}" -O2
  refused . "$GUARDS/dlsym" "$BATS_TEST_TMPDIR/broken.so"
  cat >"$BATS_TEST_TMPDIR/locked.c" <<'C'
void held(void) {
  pthread_rwlock_rdlock(&table);
  driver.cuMemUnmap(0, 0);
  pthread_rwlock_unlock(&table);
}
C
  refused cuMemUnmap "$GUARDS/table_lock" "$BATS_TEST_TMPDIR/locked.c"
}

@test "a claim without a test is refused, and so is one whose test was skipped unlisted" {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/tests/check" "$copy/tests/e2e" "$copy/build/test"
  cp "$GUARDS/claims.py" "$copy/tests/check/"
  printf '#!/usr/bin/env bats\n@test "it works" {\n  true\n}\n' >"$copy/tests/e2e/one.bats"
  : >"$copy/tests/skips.txt"
  printf '3\ta claim\ttests/e2e/one.bats\tit works\n' >"$copy/tests/claims.tsv"
  python3 "$copy/tests/check/claims.py"
  printf '3\tanother\ttests/e2e/one.bats\tit flies\n' >>"$copy/tests/claims.tsv"
  refused 'it flies' python3 "$copy/tests/check/claims.py"
  printf '3\ta claim\ttests/e2e/two.bats\tit works\n' >"$copy/tests/claims.tsv"
  refused 'does not exist' python3 "$copy/tests/check/claims.py"
  printf '3\ta claim\ttests/e2e/one.bats\tit works\n' >"$copy/tests/claims.tsv"
  printf 'ok 1 - it works # skip no reason\n1..1\n' >"$copy/build/test/one.tap"
  refused 'skipped' python3 "$copy/tests/check/claims.py"
}

@test "a checkout whose files git doesn't list fails the checks with the remedy, instead of checking nothing" {
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_TEST_ASSUME_DIFFERENT_OWNER=1
  for part in check check-format check-tidy check-cppcheck check-shell check-clang; do
    refused "git config --global --add safe.directory '$ROOT'" make -s -C "$ROOT" $part
  done
}

# installed PREFIX: what is built goes there, without being built again.
installed() {
  run make -s -C "$ROOT" B="$BUILD" -o "$BUILD/liboffload.so" -o "$BUILD/liboffload-adam.so" -o "$BUILD/offload" install "PREFIX=$1" "DESTDIR=${2-}"
  echo "$output"
  [ "$status" -eq 0 ]
  cmp "$BUILD/liboffload.so" "${2-}$1/lib/liboffload.so"
  cmp "$BUILD/liboffload-adam.so" "${2-}$1/lib/liboffload-adam.so"
  cmp "$BUILD/offload" "${2-}$1/bin/offload"
}

@test "an installation goes under PREFIX and DESTDIR, also when they have blanks, and says how to use it" {
  installed "$BATS_TEST_TMPDIR/plain"
  [[ $output == *"LD_PRELOAD=$BATS_TEST_TMPDIR/plain/lib/liboffload.so PROGRAM"* ]]
  installed "$BATS_TEST_TMPDIR/with blank"
  [[ $output == *"ln -s '$BATS_TEST_TMPDIR/with blank/lib' /tmp/offload"* ]]
  installed /usr/local "$BATS_TEST_TMPDIR/staged here"
}

@test "the GPU kernels assemble for every architecture of the toolkit, and a toolkit that names none is told" {
  run make -s -C "$ROOT" check-kernels
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"sm_80: assembled"*"sm_90: assembled"* ]]
  mkdir -p "$BATS_TEST_TMPDIR/toolkit/bin"
  printf '#!/bin/sh\n' >"$BATS_TEST_TMPDIR/toolkit/bin/nvcc"
  chmod +x "$BATS_TEST_TMPDIR/toolkit/bin/nvcc"
  refused 'names no architecture: set CUDA_HOME' make -s -C "$ROOT" CUDA_HOME="$BATS_TEST_TMPDIR/toolkit" check-kernels
}

@test "no comment and no README refers to notes that a clone does not have" {
  run -1 grep -rnE "shared/fact[s]|fact[s]/exact|[f]acts:|kept with the project's desig[n]" "$ROOT"/{README.md,adam,policy,shim,nvme,tests,integration} \
    --include='*.[ch]' --include='*.def' --include='*.md' --include='*.mk' --include='*.cu*' --include='*.bats' --include='*.tsv'
}
