#!/usr/bin/env python3
"""Breaks the code one rule at a time and demands that a test notices.

tests/mutants.def is an INI file, one section a mutant:
  rule     the rule that is broken, in words
  file     the source to change
  find     the text to replace; white space matches any white space; must occur exactly once
  replace  what stands there instead ('' removes it)
  test     a bats file and a filter (a regular expression of test names), separated by ' :: ', run against the mutant
           library, or a file of tests/pytorch and the name of a case; the same after 'gpu ', run against the simulated driver and gpu-probe of the mutated tree; or
           'unit NAME', a unit-test program of the mutated tree
A mutant is caught when the build of its test or the test fails (a mutant library that does not build is an error, not a catch).

usage: mutants.py [--only REGEX] [--slice K/N] [--jobs N]"""
import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import concurrent.futures

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = ["Makefile", "deps.mk", "check.mk", "shim", "adam", "policy", "nvme", "deps", "tests", "integration"]
BUILT = ["shim", "adam", "policy", "gen", "gpusim", "tests", "liboffload.so", "liboffload-adam.so"]
TIMEOUT_SECONDS = 180


def spaced(text):
    """A pattern that finds `text` whatever the formatter did to its white space."""
    return re.compile(r"\s*".join(re.escape(t) for t in re.findall(r"\w+|\S", text)))


def fresh_tree(name):
    tree = os.path.join(ROOT, "build", "mutants", name)
    shutil.rmtree(tree, ignore_errors=True)
    os.makedirs(tree)
    for source in SOURCES:
        path = os.path.join(ROOT, source)
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(tree, source), symlinks=True)
        elif os.path.exists(path):
            shutil.copy2(path, tree)
    # what a mutant leaves as it is needn't be built again
    os.makedirs(os.path.join(tree, "build"))
    for part in BUILT:
        src, dst = os.path.join(ROOT, "build", part), os.path.join(tree, "build", part)
        if os.path.isdir(src):
            shutil.copytree(src, dst, symlinks=True)
        elif os.path.exists(src):
            shutil.copy2(src, dst)
    return tree


def run(command, cwd, env=None):
    try:
        done = subprocess.run(command, cwd=cwd, env=env, timeout=TIMEOUT_SECONDS, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        return 124, out.decode(errors="replace") if isinstance(out, bytes) else out


def mutate(name, mutant):
    """Returns (verdict, detail); verdict is 'caught', 'survived' or 'error'."""
    tree = fresh_tree(name)
    path = os.path.join(tree, mutant["file"])
    try:
        with open(path, encoding="utf-8") as source:
            text = source.read()
    except OSError as problem:
        return "error", str(problem)
    pattern = spaced(mutant["find"])
    found = len(pattern.findall(text))
    if found != 1:
        return "error", f"the text to replace occurs {found} times in {mutant['file']}"
    with open(path, "w", encoding="utf-8") as source:
        source.write(pattern.sub(lambda _: mutant.get("replace", ""), text))
    test = mutant["test"]
    lenient = ["make", "-s", "WARN=-w"]
    if test.startswith("unit "):
        program = "build/" + test[5:].strip()
        code, out = run(lenient + [program], tree)
        if code:
            return "error", "does not build:\n" + out[-2000:]
        code, out = run([os.path.join(tree, program)], tree)
        verdict = "caught" if code else "survived"
        shutil.rmtree(tree, ignore_errors=True)
        return verdict, first_failure(out)
    if test.startswith("gpu "):
        test, programs = test[4:], ["build/gpusim/libcuda.so.1", "build/gpusim/run", "build/gpu/gpu-probe"]
        env = dict(os.environ, OFFLOAD_TEST_BUILD=os.path.join(tree, "build"))
    else:
        programs = ["build/liboffload.so", "build/liboffload-adam.so"]
        env = dict(os.environ, LIBOFFLOAD=os.path.join(tree, "build", "liboffload.so"))
    code, out = run(lenient + programs, tree)
    if code:
        return "error", "does not build:\n" + out[-2000:]
    file, _, name = (part.strip() for part in test.partition("::"))
    python = file.endswith(".py")
    command = ["tests/pytorch/harness.py", file, "--only", name] if python else ["bats", "--tap", "-f", name, file]
    code, out = run(command, ROOT, env)
    if not re.search(r"^1\.\.[1-9]", out, re.M) or (python and "has cases and can be loaded" in out):
        return "error", f"no test matches '{name}' in {file}\n{out[-500:]}"
    shutil.rmtree(tree, ignore_errors=True)
    return ("caught" if code else "survived"), first_failure(out)


def first_failure(out):
    for line in out.splitlines():
        if line.startswith("not ok"):
            return line
    return out.strip().splitlines()[-1][:200] if out.strip() else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="names to run, a regular expression")
    parser.add_argument("--slice", default="0/1", help="K/N: every N-th mutant, starting with the K-th")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    mutants = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=True)
    mutants.read(os.path.join(ROOT, "tests", "mutants.def"), encoding="utf-8")
    k, n = (int(x) for x in options.slice.split("/"))
    names = [m for i, m in enumerate(mutants.sections()) if i % n == k and re.search(options.only, m)]
    if not names:
        sys.exit("mutants.py: no mutant matches")
    failed = 0
    print(f"1..{len(names)}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda m: (m, *mutate(m, mutants[m])), names)
        for number, (name, verdict, detail) in enumerate(results, 1):
            good = verdict == "caught"
            failed += not good
            print(f"{'ok' if good else 'not ok'} {number} - mutant {name}: {mutants[name]['rule']} ({verdict})", flush=True)
            if detail:
                print("\n".join("# " + line for line in detail.splitlines()), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
