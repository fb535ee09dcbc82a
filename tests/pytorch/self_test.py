#!/usr/bin/env python3
"""The harness must tell what is not ok: runs broken_cases.py, each case of which breaks one rule."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import harness

HERE = pathlib.Path(__file__).resolve().parent

# Case of broken_cases.py (its docstring), and what the harness must say about it.
EXPECTED = {
    "sound": None,
    "no kernel of the family": "no launch of AdamW fp32 was recognised",
    "a single step, in which nothing moves yet": "no state moved to the host",
    "one of two families": "no launch of Adam fp32 was recognised",
    "another mode than the one under test": "no launch of AdamW fp32 was carried out by stream",
    "state moves where none should": "bytes of state moved where none should have",
    "one bit of one value differs": "model.0.weight: 1 of 196608 values differ, the first at 3",
    "a shape differs": "zeros: float32 [3, 2] without, float32 [2, 3] with the library",
    "more is recorded with the library": "recorded with the library: ['losses', 'more']",
    "nothing is recorded": "the case records nothing",
    "what the case asks of the report is not so": "unmet: a million steps",
    "it fails with the library": "a failure of its own",
    "a program that it runs fails": "ended with status 3",
    "one of two ranks moves no state": "rank 1: no state moved to the host",
    "one bit of one rank differs": "rank 1: bit: 1 of 1 values differ",
    "the process dies": "the process ended with status 7",
    "one behind it": "the process ended with status 7",
}


def run(path, *arguments):
    return subprocess.run([sys.executable, HERE / "harness.py", path, *arguments], capture_output=True, text=True, check=False)


def results(text):
    """{name: (ok, comments)}, and the plan."""
    found, comments, plan = {}, [], None
    for line in text.splitlines():
        match = re.match(r"(not )?ok \d+ - (.*)", line)
        if match:
            comments = []
            found[match[2]] = (not match[1], comments)
        elif line.startswith("#"):
            comments.append(line)
        elif line.startswith("1.."):
            plan = int(line[3:])
    return found, plan


def test_broken_cases(tap):
    done = run(HERE / "broken_cases.py")
    found, plan = results(done.stdout)
    for sentence, said in EXPECTED.items():
        ok, comments = found.get(f"{sentence} (stream)", (None, []))
        right = ok is True if said is None else ok is False and any(said in line for line in comments)
        tap.result(f"the harness says {'ok' if said is None else 'not ok, and why'}: {sentence}",
                   [] if right else [f"it said {ok}, where '{said}' was expected", *comments])
    rest = {name: ok for name, (ok, _) in found.items() if "ends well" in name}
    tap.result("a process that dies is not ok by itself, and the others are",
               [] if sorted(rest.values()) == [False, True, True] else [str(rest)])
    tap.result("every result is counted, and the status tells of failures",
               [] if plan == len(found) == len(EXPECTED) + 3 and done.returncode == 1 else [f"plan {plan}, status {done.returncode}"])


def test_files(tap, folder):
    for name, text in (("that is empty", ""), ("that can't be loaded", "import nothing_of_that_name\n")):
        path = folder / "cases_of_mine.py"
        path.write_text(text)
        done = run(path)
        found, plan = results(done.stdout)
        tap.result(f"a file {name} is not ok", [] if plan == 1 and done.returncode == 1 and not any(ok for ok, _ in found.values())
                   else [done.stdout, done.stderr])
    done = run(folder / "missing.py")
    tap.result("a missing file is named", [] if done.returncode and "missing.py is missing" in done.stderr else [done.stderr])


def test_simulator(tap, folder):
    """The process ended well, but not for the simulator."""
    said = []
    for report in ({"violations": 0, "kernel_errors": 0}, {"violations": 1, "kernel_errors": 0},
                   {"violations": 0, "kernel_errors": 2}, {}):
        (folder / "simulator.json").write_text(json.dumps(report))
        (folder / "output").write_text("")
        said.append(bool(harness.judge_run(harness.Run(folder, 0))))
    (folder / "simulator.json").unlink()
    said.append(bool(harness.judge_run(harness.Run(folder, 0))))
    tap.result("a broken promise to the driver, or no word about it, is not ok",
               [] if said == [False, True, True, True, True] else [str(said)])


def main():
    tap = harness.Tap()
    with tempfile.TemporaryDirectory() as folder:
        test_files(tap, pathlib.Path(folder))
        test_simulator(tap, pathlib.Path(folder))
    test_broken_cases(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
