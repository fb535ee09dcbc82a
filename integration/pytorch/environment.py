"""Builds the Python environment with an unmodified PyTorch, or finds the one that is there. Called by `make pytorch`.

It lives outside the tree, so that checkouts share it:
${XDG_CACHE_HOME:-~/.cache}/liboffload/pytorch/<release>-<hash of what it is made from>. It is built in a folder beside
its place under a lock and renamed when complete: what carries the name is whole, whoever else builds at the same time.
"""

import argparse
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE.parent.parent / "deps" / "pytorch.txt"
# Part of the hash: raise it when this file makes another environment from the same list.
RECIPE = "1"


def fail(what, remedy):
    sys.exit(f"pytorch: {what}\npytorch: {remedy}")


def say(text):
    print(f"pytorch: {text}", flush=True)


def requirements(release):
    """The committed list, with the asked-for release of torch."""
    lines = [line.strip() for line in LIST.read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines or not lines[0].startswith("torch=="):
        fail(f"{LIST} doesn't begin with torch==RELEASE", "restore it: git checkout deps/pytorch.txt")
    if release:
        if not re.fullmatch(r"\d+\.\d+\.\d+", release):
            fail(f"TORCH={release} is not a release", "use for example TORCH=2.11.0")
        lines[0] = f"torch=={release}"
    return lines


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "liboffload" / "pytorch"


def place_of(lines):
    made_from = "\n".join([RECIPE, sys.implementation.cache_tag, *lines])
    release = lines[0].partition("==")[2]
    return cache_folder() / f"{release}-{hashlib.sha256(made_from.encode()).hexdigest()[:12]}"


def run(command, log, what, remedy):
    """Into the log; every now and then a line that says it goes on."""
    start = time.monotonic()
    with open(log, "ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        while True:
            try:
                status = process.wait(timeout=20)
                break
            except subprocess.TimeoutExpired:
                say(f"{what}, {time.monotonic() - start:.0f} s so far")
    if status:
        tail = log.read_text(errors="replace").splitlines()[-8:]
        print("\n".join(tail), file=sys.stderr)
        fail(f"{what} failed (status {status}); the whole output is in {log}", remedy)


def build(place, lines):
    new = place.with_name(place.name + ".new")
    log = place.with_name(place.name + ".log")
    log.unlink(missing_ok=True)
    # Left over from an interrupted build: we hold the lock, so nobody is writing there.
    shutil.rmtree(new, ignore_errors=True)
    say(f"building {lines[0]} and {len(lines) - 1} packages in {place} (about 530 MB to fetch, 1.4 GB on disk)")
    start = time.monotonic()
    run([sys.executable, "-m", "venv", "--without-pip", new], log, "python3 -m venv",
        "install what it asks for (`make deps`; Debian: apt-get install python3-venv), then `make pytorch` again")
    wanted = new / "requirements.txt"
    wanted.write_text("\n".join(lines) + "\n")
    run([sys.executable, "-m", "pip", "--python", new / "bin" / "python", "install", "--disable-pip-version-check",
         "--no-input", "--no-deps", "--only-binary", ":all:", "--no-compile", "--timeout", "60", "--retries", "3",
         "-r", wanted], log, "fetching the packages",
        "run `make pytorch` again once there is a network (no pip: `make deps`); a release that has no wheel for this "
        "Python can't be used")
    # Imported it can't be yet: its libraries want those that are made from this environment.
    version = next(new.glob("lib/python*/site-packages/torch/version.py"), None)
    if version is None or not re.search(r"^cuda\b.*=\s*['\"]\d", version.read_text(), re.M):
        fail(f"{lines[0]} came without CUDA for this Python and machine", f"take a release that has it, as in {LIST}")
    os.rename(new, place)
    log.unlink()
    say(f"built in {time.monotonic() - start:.0f} s")


def environment(release):
    lines = requirements(release)
    place = place_of(lines)
    if not place.is_dir():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = open(place.with_name(place.name + ".lock"), "w")
        except OSError as error:
            fail(f"{place.parent}: {error.strerror}", "name a writable folder: XDG_CACHE_HOME=/path make pytorch")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.is_dir():
                build(place, lines)
    return place


def newest():
    """The newest release on the index that has a wheel for this Python."""
    done = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "torch", "--only-binary", ":all:", "--no-input",
                           "--disable-pip-version-check", "--timeout", "60", "--retries", "3"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = re.match(r"torch \((\d+\.\d+\.\d+)\)", done.stdout)
    if done.returncode or not found:
        print("\n".join((done.stdout + done.stderr).splitlines()[-4:]), file=sys.stderr)
        fail("the index doesn't say which release of torch is the newest",
             "try again once there is a network, or name a release: make pytorch TORCH=2.11.0")
    return found[1]


def link(place, name):
    """Makes `name` point at the environment, and writes NAME.path when that changes: make goes by its time."""
    path = pathlib.Path(f"{name}.path")
    if os.path.islink(name) and os.readlink(name) == str(place) and path.exists() and path.read_text() == f"{place}\n":
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = f"{name}.{os.getpid()}"
    os.symlink(place, temporary)
    os.replace(temporary, name)
    path.write_text(f"{place}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--release", default="", help="of PyTorch; default: the one in deps/pytorch.txt")
    parser.add_argument("--link", help="symbolic link to make")
    parser.add_argument("--newest", action="store_true", help="print the newest release on the index and build nothing")
    arguments = parser.parse_args()
    if arguments.newest:
        print(newest())
        return
    place = environment(arguments.release)
    if arguments.link:
        link(place, arguments.link)
    else:
        print(place)


main()
