#!/usr/bin/env bats
# A slice of the mutants that changes from day to day; `make test-mutants` runs them all.
load ../lib/e2e

SLICES=11

@test "today's slice of the mutants is caught" {
  run python3 "$ROOT/tests/mutants.py" --slice "$((10#$(date +%j) % SLICES))/$SLICES"
  echo "$output"
  [ "$status" -eq 0 ]
  grep -q '^1\.\.[1-9]' <<<"$output"
}

@test "a mutant that nothing notices is told, and so is one whose text is not found" {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/tests" "$copy/build"
  cp "$ROOT/tests/mutants.py" "$copy/tests/"
  mkdir "$copy/shim"
  printf '#!/bin/sh\nexit 0\n' >"$copy/shim/t.c"
  printf 'build/t: shim/t.c\n\tcp shim/t.c build/t; chmod +x build/t\n' >"$copy/Makefile"
  {
    printf '[unnoticed]\nrule = the comment\nfile = shim/t.c\nfind = bin/sh\nreplace = bin/bash\ntest = unit t\n'
    printf '[missing]\nrule = no such text\nfile = shim/t.c\nfind = nowhere\ntest = unit t\n'
    printf '[noticed]\nrule = the status\nfile = shim/t.c\nfind = exit 0\nreplace = exit 1\ntest = unit t\n'
  } >"$copy/tests/mutants.def"
  run python3 "$copy/tests/mutants.py"
  echo "$output"
  [ "$status" -ne 0 ]
  grep -q '^not ok 1 - mutant unnoticed: the comment (survived)' <<<"$output"
  grep -q '^not ok 2 - mutant missing: no such text (error)' <<<"$output"
  grep -q '^ok 3 - mutant noticed: the status (caught)' <<<"$output"
}

@test "a mutant is not called caught because the program of its test was missing" {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/tests/e2e" "$copy/shim"
  cp "$ROOT/tests/mutants.py" "$copy/tests/"
  echo 'one two' >"$copy/shim/t.c"
  printf '@test "a rule is kept" {\n  "%s/build/program"\n}\n' "$copy" >"$copy/tests/e2e/t.bats"
  {
    printf '.PHONY: all test-programs\nall: build/liboffload.so build/liboffload-adam.so\ntest-programs: build/program\n'
    printf 'build/%%.so: shim/t.c\n\tmkdir -p build; cp $< $@\n'
    printf 'build/program:\n\tmkdir -p build; cp /bin/true $@\n'
  } >"$copy/Makefile"
  printf '[unnoticed]\nrule = r\nfile = shim/t.c\nfind = one\ntest = tests/e2e/t.bats :: a rule is\n' >"$copy/tests/mutants.def"
  run python3 "$copy/tests/mutants.py"
  echo "$output"
  [ "$status" -eq 1 ]
  grep -q '^not ok 1 - mutant unnoticed: r (survived)' <<<"$output"
  # nor where it can't be built
  rm -r "$copy/build"
  sed -i 's,cp /bin/true,false,' "$copy/Makefile"
  run python3 "$copy/tests/mutants.py"
  echo "$output"
  [ "$status" -eq 1 ]
  grep -q "^mutants.py: the tests' programs do not build:" <<<"$output"
}

@test "a mutant whose test can't be run here is told as skipped, and one that a single test could try is not" {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/tests" "$copy/build" "$copy/shim"
  cp "$ROOT/tests/mutants.py" "$copy/tests/"
  printf '#!/bin/sh\necho "ok 1 - a # skip not here"\nexit 0\n' >"$copy/shim/t.c"
  printf '#!/bin/sh\necho "ok 1 - a # skip not here"\necho "ok 2 - b"\nexit 0\n' >"$copy/shim/u.c"
  printf 'build/%%: shim/%%.c\n\tcp $< $@; chmod +x $@\n' >"$copy/Makefile"
  {
    printf '[skipped]\nrule = r\nfile = shim/t.c\nfind = bin/sh\nreplace = bin/bash\ntest = unit t\n'
    printf '[unnoticed]\nrule = r\nfile = shim/u.c\nfind = bin/sh\nreplace = bin/bash\ntest = unit u\n'
  } >"$copy/tests/mutants.def"
  run python3 "$copy/tests/mutants.py"
  echo "$output"
  [ "$status" -eq 1 ]
  grep -q '^ok 1 - mutant skipped: r (skipped)' <<<"$output"
  grep -q '^not ok 2 - mutant unnoticed: r (survived)' <<<"$output"
}

@test "a mutant whose text or test is gone is found without running it" {
  copy=$BATS_TEST_TMPDIR/copy
  mkdir -p "$copy/tests/e2e" "$copy/shim"
  cp "$ROOT/tests/mutants.py" "$copy/tests/"
  echo 'one two two' >"$copy/shim/t.c"
  printf '@test "a rule is kept" {\n  true\n}\n' >"$copy/tests/e2e/t.bats"
  touch "$copy/tests/t.c"
  {
    printf '[fresh]\nrule = r\nfile = shim/t.c\nfind = one\ntest = tests/e2e/t.bats :: a rule is\n'
    printf '[twice]\nrule = r\nfile = shim/t.c\nfind = two\ntest = unit tests/t\n'
    printf '[nameless]\nrule = r\nfile = shim/t.c\nfind = one\ntest = tests/e2e/t.bats :: another rule\n'
    printf '[homeless]\nrule = r\nfile = shim/t.c\nfind = one\ntest = unit tests/unit/gone\n'
  } >"$copy/tests/mutants.def"
  run python3 "$copy/tests/mutants.py" --check
  echo "$output"
  [ "$status" -ne 0 ]
  [ "${#lines[@]}" -eq 3 ]
  grep -q "^mutant twice: the text to replace occurs 2 times in shim/t.c" <<<"$output"
  grep -q "^mutant nameless: no test matches 'another rule'" <<<"$output"
  grep -q "^mutant homeless: no C file" <<<"$output"
  run python3 "$copy/tests/mutants.py" --check --only fresh
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$output" = 'mutants: 1 can be tried' ]
}
