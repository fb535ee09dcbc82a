#!/usr/bin/env bats
# The guards of the build (tests/check): the library passes, and each guard refuses what breaks its rule.
bats_require_minimum_version 1.5.0
load ../lib/e2e

GUARDS=$ROOT/tests/check

@test "the built library passes the guards of the build" {
  "$GUARDS/exports" "$BUILD/liboffload.so" "$ROOT/shim/exports.txt"
  "$GUARDS/exports" "$BUILD/liboffload-adam.so" "$GUARDS/adam_exports.txt"
  "$GUARDS/symbols" "$BUILD/liboffload.so" "$BUILD/liboffload-adam.so" "$BUILD/offload" "$BUILD/offload-probe"
  "$GUARDS/starts" "$BUILD/liboffload.so" "$BUILD/liboffload-adam.so" "$BUILD/offload" "$BUILD/offload-probe"
  "$GUARDS/dlsym" "$BUILD/liboffload.so"
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

HARDENED=("-Wl,-z,relro,-z,now,-z,noexecstack" -fstack-protector-all -g)
BARE=("${HARDENED[0]}")

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
}

@test "an export that isn't listed is refused, and a listed one that is missing" {
  library 'int cuInit(unsigned f) { return (int)f; } int leaked(void) { return 1; }' "${HARDENED[@]}"
  refused '> leaked' "$GUARDS/exports" broken.so "$ROOT/shim/exports.txt"
  refused '< dlsym' "$GUARDS/exports" broken.so "$ROOT/shim/exports.txt"
}

@test "an object that isn't hardened is refused: tables, stacks, code, paths" {
  fine='int one(void) { return 1; }'
  cp "$GUARDS/symbols" . # beside a list of its own
  printf 'broken.so libc.so.6\nprogram libc.so.6\n' >needed.txt
  library "$fine" "${HARDENED[@]}"
  ./symbols broken.so

  library "$fine" -fstack-protector-all -Wl,-z,relro,-z,lazy
  refused 'lacks BIND_NOW' ./symbols broken.so
  library "$fine" -fstack-protector-all -Wl,-z,norelro,-z,now
  refused 'lacks GNU_RELRO' ./symbols broken.so
  library "$fine" "${HARDENED[@]}" -Wl,-z,execstack
  refused 'executable stack' ./symbols broken.so
  library "$fine" "${HARDENED[@]}" -Wl,-rpath,/nowhere
  refused 'has an RPATH' ./symbols broken.so
  library "$fine" "${HARDENED[@]}" -Wl,-rpath,/nowhere -Wl,--disable-new-dtags
  refused 'has an RPATH' ./symbols broken.so
  library "$fine" "${HARDENED[@]}" -nostdlib -Wl,-N
  refused 'writable and executable' ./symbols broken.so
  library "extern void *_dl_allocate_tls(void *); void *two(void) { return _dl_allocate_tls(0); } $fine" "${HARDENED[@]}"
  refused 'private to glibc' ./symbols broken.so
  library "$fine" "${HARDENED[@]}" -Wl,--no-as-needed -lm
  refused 'needs libm.so.6' ./symbols broken.so
  library "int x = 1; __asm__(\".text\\n.globl y\\ny: .quad x\\n\"); $fine" "${HARDENED[@]}" -Wl,-z,notext
  refused 'relocates its code' ./symbols broken.so

  library "$fine" "${BARE[@]}" -fno-stack-protector
  refused 'has no stack protector' ./symbols broken.so
  # One file without among others with: told by what the compiler notes for debuggers.
  echo "$fine" >bare.c
  ${CC:-gcc} -c -g -fPIC -fno-stack-protector bare.c -o bare.o
  if readelf --debug-dump=info bare.o | grep -q 'GNU C'; then # others note no flags
    echo 'int two(void) { return 2; }' >two.c
    ${CC:-gcc} -shared -fPIC "${HARDENED[@]}" two.c bare.o -o broken.so
    refused 'files without a stack protector (bare.c' ./symbols broken.so
  fi

  echo 'int main(void) { return 0; }' | ${CC:-gcc} -xc -no-pie "${HARDENED[@]}" -o program -
  refused 'not position-independent' ./symbols program
}

@test "an object that runs something when it is loaded or unloaded is refused" {
  library 'int one(void) { return 1; }' "${HARDENED[@]}"
  "$GUARDS/starts" broken.so
  library '__attribute__((constructor)) static void early(void) { }' "${HARDENED[@]}"
  refused 'init_array runs early' "$GUARDS/starts" broken.so
  library '__attribute__((destructor)) static void late(void) { }' "${HARDENED[@]}"
  refused 'fini_array runs late' "$GUARDS/starts" broken.so
  library 'void begin(void) { }' "${HARDENED[@]}" -Wl,-init=begin
  refused 'DT_INIT is begin' "$GUARDS/starts" broken.so
  library 'static int a(void) { return 1; } static void *pick(void) { return a; }
    int which(void) __attribute__((ifunc("pick")));' "${HARDENED[@]}"
  refused 'an indirect function' "$GUARDS/starts" broken.so
}

@test "a dlsym wrapper that calls, locks or returns is refused" {
  library 'extern void *real; static int lock; void *dlsym_find(void) { return real; } void *real;
    void *dlsym(void *h, const char *n) { __atomic_fetch_add(&lock, 1, 5); (void)h; (void)n; return dlsym_find(); }
    void *dlvsym(void *h, const char *n, const char *v) { (void)v; return dlsym(h, n); }' "${BARE[@]}" -O2
  refused 'not an instruction of the allowed list' "$GUARDS/dlsym" broken.so
  refused 'expected a jump to dlsym_cu' "$GUARDS/dlsym" broken.so
}

@test "a call of our own dlsym, or of a wrapper of ours, from inside is refused" {
  library 'void *dlsym(void *h, const char *n); int cuMemFree_v2(unsigned long long p) { return (int)p; }
    void *dlsym(void *h, const char *n) { return (void *)(h ? n : 0); }
    __attribute__((visibility("hidden"))) int inside(void) { return cuMemFree_v2(1) + !dlsym(0, "x"); }' "${BARE[@]}" -O0
  refused 'inside: .*uses dlsym, which this object exports: take dlsym_real' "$GUARDS/dlsym" broken.so
  refused 'inside: .*uses cuMemFree_v2, which this object exports: go through the table' "$GUARDS/dlsym" broken.so
  library '__attribute__((noinline)) void *dlsym(void *h, const char *n) { return (void *)(h ? n : 0); }
    __attribute__((visibility("hidden"), used)) void *tail(void *h) { return dlsym(h, "x"); }' "${BARE[@]}" -O2 -Wl,-Bsymbolic
  refused 'tail: .*uses dlsym' "$GUARDS/dlsym" broken.so
}

# locked CODE: into locked.c, behind locks of every kind and a table of driver functions.
locked() {
  cat >locked.c <<C
#include <dlfcn.h>
#include <pthread.h>
struct driver { int (*cuMemUnmap)(unsigned long, unsigned long); } driver;
struct room { int doors; pthread_mutex_t lock; };
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
$1
C
}
# locks_refused WORDS CODE
locks_refused() {
  locked "$2"
  refused "$1" "$GUARDS/locks" ir -- locked.c
}

@test "a driver or loader call under a lock is refused, however deep, on any branch, through any pointer" {
  locks_refused 'f holds locked.c:table at: a call through the driver' \
    'int f(void) { pthread_rwlock_rdlock(&table); int r = driver.cuMemUnmap(0, 0); pthread_rwlock_unlock(&table); return r; }'
  locks_refused 'f holds locked.c:a at: locked.c:g > locked.c:h: a call through the driver' \
    'static int h(void) { return driver.cuMemUnmap(0, 0); } static int g(void) { return h(); }
     int f(void) { pthread_mutex_lock(&a); int r = g(); pthread_mutex_unlock(&a); return r; }'
  locks_refused 'f holds locked.c:a at: a call through the driver' \
    'int f(int x) { pthread_mutex_lock(&a); if (x) pthread_mutex_unlock(&a); int r = driver.cuMemUnmap(0, 0);
       if (!x) pthread_mutex_unlock(&a); return r; }'
  locks_refused 'f holds room:1 at: a call through the driver' \
    'int f(struct room *r) { int (*call)(unsigned long, unsigned long) = driver.cuMemUnmap; pthread_mutex_lock(&r->lock);
       int x = call ? call(0, 0) : 0; pthread_mutex_unlock(&r->lock); return x; }'
  locks_refused 'each holds locked.c:a at: locked.c:g: a call through the driver' \
    'static int g(int x) { return driver.cuMemUnmap((unsigned long)x, 0); }
     static int each(int (*call)(int)) { pthread_mutex_lock(&a); int r = call(1); pthread_mutex_unlock(&a); return r; }
     int f(void) { return each(g); }'
  locks_refused 'f holds locked.c:a at: a call through a pointer' \
    'int (*anything)(void); int f(void) { pthread_mutex_lock(&a); int r = anything(); pthread_mutex_unlock(&a); return r; }'
  locks_refused 'f holds locked.c:a at: dlopen()' \
    'void *f(void) { pthread_mutex_lock(&a); void *r = dlopen("x", RTLD_NOW); pthread_mutex_unlock(&a); return r; }'
  locks_refused 'f holds locked.c:a at: a call through the driver' \
    'static void take(void) { pthread_mutex_lock(&a); } static void give(void) { pthread_mutex_unlock(&a); }
     int f(void) { take(); int r = driver.cuMemUnmap(0, 0); give(); return r; }'
}

@test "locks taken in both orders, one lock twice, and a thread that calls the driver are refused; sound code passes" {
  locks_refused 'takes locked.c:b under locked.c:a, and elsewhere the other way round' \
    'void f(void) { pthread_mutex_lock(&a); pthread_mutex_lock(&b); pthread_mutex_unlock(&b); pthread_mutex_unlock(&a); }
     static void in(void) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); }
     void g(void) { pthread_mutex_lock(&b); in(); pthread_mutex_unlock(&b); }'
  locks_refused 'takes locked.c:a under locked.c:a' \
    'static void in(void) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); }
     void f(void) { pthread_mutex_lock(&a); in(); pthread_mutex_unlock(&a); }'
  locks_refused 'takes locked.c:b under locked.c:a, and elsewhere the other way round' \
    'int leaf_lock(pthread_mutex_t *);
     void f(void) { if (!leaf_lock(&a)) return; pthread_mutex_lock(&b); pthread_mutex_unlock(&b); pthread_mutex_unlock(&a); }
     void g(void) { pthread_mutex_lock(&b); int had = leaf_lock(&a); if (had) pthread_mutex_unlock(&a); pthread_mutex_unlock(&b); }'
  locks_refused 'takes locked.c:a under locked.c:a' \
    'int leaf_lock(pthread_mutex_t *); void f(void) { if (!leaf_lock(&a)) return; pthread_mutex_lock(&a); pthread_mutex_unlock(&a); }'
  locks_refused 'the thread locked.c:work reaches the driver or the loader: locked.c:work > locked.c:in: a call through the driver' \
    'static void in(void) { driver.cuMemUnmap(0, 0); }
     static void *work(void *x) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); in(); return x; }
     int f(pthread_t *t) { return pthread_create(t, NULL, work, NULL); }'
  locks_refused 'no lock was found' 'int f(void) { return driver.cuMemUnmap(0, 0); }'

  locked 'static int pure(int x) { return x; } int leaf_lock(pthread_mutex_t *);
    static int tried(int x) { if (!leaf_lock(&a)) return x; x++; pthread_mutex_unlock(&a); return x; }
    static int each(int (*call)(int)) { pthread_mutex_lock(&a); int r = call(1); pthread_mutex_unlock(&a); return r; }
    int f(int x) { pthread_mutex_lock(&b); if (!x) { pthread_mutex_unlock(&b); return driver.cuMemUnmap(1, 1); }
      x = each(pure); pthread_mutex_unlock(&b); return tried(x) + driver.cuMemUnmap(0, 0); }
    struct adam_api { unsigned char (*byte)(void); } *api;
    void store(unsigned char *to) { *to = api->byte(); *to = (unsigned char)(*to + 1); }'
  run timeout -k 9 60 "$GUARDS/locks" ir -- locked.c
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"2 locks in "*"1 orders"* ]]
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

@test "a fault that can't occur needs a reason with evidence that is there" {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/tests/check" "$copy/shim"
  cp "$GUARDS/claims.py" "$copy/tests/check/"
  : >"$copy/tests/skips.txt"
  echo 'HOOK(cuInit)' >"$copy/shim/list"
  claim() { printf '5\ta fault\tcannot occur\t%s\n' "$1" >"$copy/tests/claims.tsv"; }
  claim 'Only the listed functions are hooked here (shim/list: HOOK(cuInit))'
  python3 "$copy/tests/check/claims.py"
  claim 'No memory handle of the program is hooked (shim/list: no HOOK(cuMemCreate))'
  python3 "$copy/tests/check/claims.py"
  claim 'Not here (shim/list: HOOK(cuInit))'
  refused 'wants a sentence of six words' python3 "$copy/tests/check/claims.py"
  claim 'Only the listed functions are hooked here'
  refused 'and the evidence' python3 "$copy/tests/check/claims.py"
  claim 'Only the listed functions are hooked here (shim/nothing: HOOK(cuInit))'
  refused 'shim/nothing does not exist' python3 "$copy/tests/check/claims.py"
  claim 'Only the listed functions are hooked here (shim/list: HOOK(cuMemCreate))'
  refused "does not have 'HOOK(cuMemCreate)'" python3 "$copy/tests/check/claims.py"
  claim 'No memory handle of the program is hooked (shim/list: no HOOK(cuInit))'
  refused "has 'HOOK(cuInit)'" python3 "$copy/tests/check/claims.py"
}

@test "a checkout whose files git doesn't list fails the checks with the remedy, instead of checking nothing" {
  export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_TEST_ASSUME_DIFFERENT_OWNER=1
  for part in check check-format check-tidy check-cppcheck check-shell check-clang; do
    refused "git config --global --add safe.directory '$ROOT'" make -s -C "$ROOT" $part
  done
}

# installed PREFIX: what is built goes there, without being built again.
installed() {
  run make -s -C "$ROOT" B="$BUILD" -o "$BUILD/liboffload.so" -o "$BUILD/liboffload-adam.so" -o "$BUILD/offload" -o "$BUILD/offload-probe" install "PREFIX=$1" "DESTDIR=${2-}"
  echo "$output"
  [ "$status" -eq 0 ]
  cmp "$BUILD/liboffload.so" "${2-}$1/lib/liboffload.so"
  cmp "$BUILD/liboffload-adam.so" "${2-}$1/lib/liboffload-adam.so"
  cmp "$BUILD/offload-probe" "${2-}$1/lib/offload-probe"
  cmp "$BUILD/offload" "${2-}$1/bin/offload"
  cmp "$BUILD/man/offload.1" "${2-}$1/share/man/man1/offload.1"
  cmp "$BUILD/man/liboffload.7" "${2-}$1/share/man/man7/liboffload.7"
  cmp "$BUILD/man/offload.bash" "${2-}$1/share/bash-completion/completions/offload"
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
