#!/usr/bin/env python3
"""Runs the tests of PyTorch with the releases of deps/pytorch_releases.txt, in place of whose last the newest on the index
comes, if that is another.

    releases.py               every file of cases with every release
    releases.py --turn N      one file with one release, the N-th of them all in turn; the index isn't asked for the newest
    releases.py --list        says which these are, and runs nothing

`make pytorch` builds a release's environment. Results lie in build/test/<release>/*.tap."""
import argparse
import os
import pathlib
import re
import subprocess
import sys

import harness

LIST = harness.ROOT / "deps" / "pytorch_releases.txt"
ENVIRONMENT = harness.ROOT / "integration" / "pytorch" / "environment.py"


def listed():
    lines = [line.strip() for line in LIST.read_text(encoding="utf-8").splitlines()]
    releases = [line for line in lines if line and not line.startswith("#")]
    wrong = [release for release in releases if not re.fullmatch(r"\d+\.\d+\.\d+", release)]
    if wrong or len(releases) < 2:
        sys.exit(f"releases: {LIST} is to hold two releases or more, like 2.11.0, one a line: {wrong or releases}")
    return releases


def number(release):
    return [int(part) for part in release.split(".")]


def with_newest(releases):
    done = subprocess.run([sys.executable, ENVIRONMENT, "--newest"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit("releases: without the newest release this says less than it should")
    newest = done.stdout.strip()
    if number(newest) > number(releases[-1]):
        print(f"releases: {newest} is on the index; when it passes, write it into {LIST.name} in place of {releases[-1]}")
        return releases[:-1] + [newest]
    return releases


def run(release, files):
    """Builds the release's environment and runs files of cases with it; whether all is well."""
    print(f"PyTorch {release}:", flush=True)
    environment = dict(os.environ)
    if "TAP_USER_CACHE" in environment:  # tap.py gives a test a cache of its own, which is removed
        environment["XDG_CACHE_HOME"] = environment["TAP_USER_CACHE"]
    built = subprocess.run(["make", "--no-print-directory", "-s", "pytorch", f"TORCH={release}"], cwd=harness.ROOT,
                           env=environment, check=False)
    if built.returncode:
        print(f"not ok: PyTorch {release} can't be built", flush=True)
        return False
    return subprocess.run([sys.executable, harness.ROOT / "tests" / "tap.py", "--out", harness.BUILD / "test" / release,
                           *files], cwd=harness.ROOT, env={**os.environ, "TORCH": release,
                                                           "OFFLOAD_TEST_BUILD": str(harness.BUILD)}, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--turn", type=int)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    files = sorted(pathlib.Path(__file__).resolve().parent.glob("test_*.py"))
    releases = listed() if arguments.turn is not None else with_newest(listed())
    wanted = [(release, file) for file in files for release in releases]
    if arguments.turn is not None:
        wanted = [wanted[arguments.turn % len(wanted)]]
    if arguments.list:
        print("\n".join(f"{release} {file.name}" for release, file in wanted))
        return
    results = [run(release, [file for its, file in wanted if its == release])
               for release in releases if any(its == release for its, _ in wanted)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
