#!/usr/bin/env python3
"""Breaks the code one rule at a time and demands that a test notices.

tests/mutants.def is an INI file, one section a mutant:
  rule     the rule that is broken, in words
  file     the source to change
  find     the text to replace; white space matches any white space; must occur exactly once
  replace  what stands there instead ('' removes it)
  test     a bats file and a filter (a regular expression of test names), separated by ' :: ', run against the mutant
           library, or a file of tests/pytorch and the name of a case; the same after 'gpu ', run against the simulated driver and gpu-probe of the mutated tree, or
           after 'program ', run against its `offload` and what belongs to that; or
           'unit NAME', a unit-test program of the mutated tree
A mutant is caught when the build of its test or the test fails (a mutant library that does not build is an error, not a catch).

--check runs nothing: it says which mutants have gone stale, because their text is no longer there once or no test has that name.

usage: mutants.py [--check] [--only REGEX] [--slice K/N] [--jobs N]"""
import argparse
import configparser
import os
import re
import shutil
import signal
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


def mutated(root, mutant):
    """The source with the rule broken; ValueError says why there is none."""
    try:
        with open(os.path.join(root, mutant["file"]), encoding="utf-8") as source:
            text = source.read()
    except OSError as problem:
        raise ValueError(str(problem)) from None
    pattern = spaced(mutant["find"])
    found = len(pattern.findall(text))
    if found != 1:
        raise ValueError(f"the text to replace occurs {found} times in {mutant['file']}")
    return pattern.sub(lambda _: mutant.get("replace", ""), text)


def parts(test):
    """Kind ('unit', 'gpu', 'program', 'bats' or 'python'), file or program, and name of the test that a mutant names."""
    if test.startswith("unit "):
        return "unit", test[5:].strip(), ""
    for kind in ("gpu", "program"):
        if test.startswith(kind + " "):
            file, _, name = (part.strip() for part in test[len(kind):].partition("::"))
            return kind, file, name
    file, _, name = (part.strip() for part in test.partition("::"))
    return ("python" if file.endswith(".py") else "bats"), file, name


def stale(mutant):
    """What keeps a mutant from being tried, or ''."""
    try:
        mutated(ROOT, mutant)
    except ValueError as problem:
        return str(problem)
    kind, file, name = parts(mutant["test"])
    if kind == "unit":  # a program of any folder, made of a C file of its name
        names = {os.path.splitext(f)[0] for _, _, files in os.walk(os.path.join(ROOT, "tests")) for f in files if f.endswith(".c")}
        return "" if os.path.basename(file) in names else f"no C file under tests is named as the unit test {file}"
    try:
        with open(os.path.join(ROOT, file), encoding="utf-8") as source:
            text = source.read()
    except OSError as problem:
        return str(problem)
    names = re.findall(r"""def (\w+)|["']([^"'\n]+)["']""", text) if kind == "python" else re.findall(r'^@test "(.*)" \{$', text, re.M)
    names = [n if isinstance(n, str) else n[0] or n[1] for n in names]
    if any(re.search(name, n) for n in names):
        return ""
    return f"no test matches '{name}' in {file}"


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


SKIPPED = re.compile(r"# skip", re.I)
running = set()  # leaders of the process groups of what runs now


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_all(*_):
    for process in list(running):
        end_group(process)
    os._exit(128 + signal.SIGTERM)


def run(command, cwd, env=None, limit=TIMEOUT_SECONDS):
    """Status and output. A broken program may hang with children of its own: all end with it, after `limit` seconds."""
    with subprocess.Popen(command, cwd=cwd, env=env, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, start_new_session=True) as process:
        running.add(process)
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            end_group(process)
            return 124, process.communicate()[0]
        finally:
            end_group(process)
            running.discard(process)


def mutate(name, mutant):
    """Returns (verdict, detail); verdict is 'caught', 'survived', 'skipped' (by its test, which can't be run here) or 'error'."""
    tree = fresh_tree(name)
    try:
        text = mutated(tree, mutant)
    except ValueError as problem:
        return "error", str(problem)
    with open(os.path.join(tree, mutant["file"]), "w", encoding="utf-8") as source:
        source.write(text)
    kind, file, name = parts(mutant["test"])
    lenient = ["make", "-s", "WARN=-w"]
    if kind == "unit":
        program = "build/" + file
        code, out = run(lenient + [program], tree)
        if code:
            return "error", "does not build:\n" + out[-2000:]
        code, out = run([os.path.join(tree, program)], tree)
        shutil.rmtree(tree, ignore_errors=True)
        return verdict_of(code, out), first_failure(out)
    if kind == "gpu":
        programs = ["build/gpusim/libcuda.so.1", "build/gpusim/run", "build/gpu/gpu-probe"]
        env = dict(os.environ, OFFLOAD_TEST_BUILD=os.path.join(tree, "build"))
    elif kind == "program":
        programs = ["build/offload", "build/offload-probe", "build/liboffload.so", "build/liboffload-adam.so", "build/gpusim/libcuda.so.1", "build/gpusim/run", "build/man/made"]
        env = dict(os.environ, OFFLOAD_TEST_BUILD=os.path.join(tree, "build"))
    else:
        programs = ["build/liboffload.so", "build/liboffload-adam.so"]
        env = dict(os.environ, LIBOFFLOAD=os.path.join(tree, "build", "liboffload.so"))
    code, out = run(lenient + programs, tree)
    if code:
        return "error", "does not build:\n" + out[-2000:]
    python = kind == "python"
    command = ["tests/pytorch/harness.py", file, "--only", name] if python else ["bats", "--tap", "-f", name, file]
    code, out = run(command, ROOT, env)
    if not re.search(r"^1\.\.[1-9]", out, re.M) or (python and "has cases and can be loaded" in out):
        return "error", f"no test matches '{name}' in {file}\n{out[-500:]}"
    shutil.rmtree(tree, ignore_errors=True)
    return verdict_of(code, out), first_failure(out)


def verdict_of(code, out):
    results = re.findall(r"^ok .*$", out, re.M)
    if not code and results and all(SKIPPED.search(line) for line in results):
        return "skipped"
    return "caught" if code else "survived"


def build_tests():
    """A test whose programs aren't there fails whatever is broken: what tests of this tree need is built before any of them counts."""
    code, out = run(["make", "-s", "all", "test-programs"], ROOT, limit=None)
    if code:
        sys.exit("mutants.py: the tests' programs do not build:\n" + out[-2000:])


def first_failure(out):
    for line in out.splitlines():
        if line.startswith("not ok"):
            return line
    return out.strip().splitlines()[-1][:200] if out.strip() else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="run nothing; which mutants have gone stale?")
    parser.add_argument("--only", default="", help="names to run, a regular expression")
    parser.add_argument("--slice", default="0/1", help="K/N: every N-th mutant, starting with the K-th")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_all)
    mutants = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=True)
    mutants.read(os.path.join(ROOT, "tests", "mutants.def"), encoding="utf-8")
    k, n = (int(x) for x in options.slice.split("/"))
    names = [m for i, m in enumerate(mutants.sections()) if i % n == k and re.search(options.only, m)]
    if not names:
        sys.exit("mutants.py: no mutant matches")
    if options.check:
        problems = [f"mutant {name}: {problem}" for name in names if (problem := stale(mutants[name]))]
        print("\n".join(problems) or f"mutants: {len(names)} can be tried")
        sys.exit(1 if problems else 0)
    if any(parts(mutants[name]["test"])[0] != "unit" for name in names):
        build_tests()
    failed = 0
    print(f"1..{len(names)}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda m: (m, *mutate(m, mutants[m])), names)
        for number, (name, verdict, detail) in enumerate(results, 1):
            good = verdict in ("caught", "skipped")
            failed += not good
            print(f"{'ok' if good else 'not ok'} {number} - mutant {name}: {mutants[name]['rule']} ({verdict})", flush=True)
            if detail:
                print("\n".join("# " + line for line in detail.splitlines()), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
