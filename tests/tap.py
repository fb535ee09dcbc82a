#!/usr/bin/env python3
"""Runs test programs and bats files that speak TAP, and sums up.

    tap.py [--out DIR] [--jobs N] [--timeout S] [--build-status N] TEST...

A TEST is an executable or a *.bats file. Each one's output goes to DIR/<name>.tap. What counts as failed: "not ok"
(with or without TODO), a result that the plan promised and that is missing, one too many, a missing or second plan,
a crash or a non-zero exit that no "not ok" explains, a time-out, a file that is missing, "Bail out!", and a skip that
is not in skips.txt (name, tab, reason). The last line is "N passed, N failed", and ", N skipped" when some were.
Exit status: 0 when nothing failed.

Each file has an XDG_CACHE_HOME of its own, removed at its end, so that no test writes into the user's, or finds there what
another left; TAP_USER_CACHE names the user's, for what builds PyTorch's environment there. Native code that the simulated GPU
keeps in its cache, under names that are hashes, is lent to the next file and kept in DIR/native.
"""
import argparse
import concurrent.futures
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RESULT = re.compile(r"^(not )?ok\b *(\d+)? *(?:- *)?(.*)$")
PLAN = re.compile(r"^1\.\.(\d+)(?: *#.*)?$")
SKIP_DIRECTIVE = re.compile(r"(?:^|\s)#\s*skip\S*\s*(.*)$", re.IGNORECASE)
TODO_DIRECTIVE = re.compile(r"(?:^|\s)#\s*todo\b", re.IGNORECASE)
KILL_AFTER_S = 5  # between asking an overdue test to end and ending it

running = set()
running_lock = threading.Lock()  # protects `running` and `stopping`
stopping = False


class Outcome:
    """What one test file came to."""

    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.skipped = 0
        self.failures = []  # sentences, each with the comment lines that followed it
        self.seconds = 0.0

    def fail(self, sentence, comments=()):
        self.failures.append((sentence, list(comments)))


def read_table(path):
    """Lines of two fields separated by a tab; comments start with #."""
    table = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                line = line.rstrip("\n")
                if not line or line.startswith("#"):
                    continue
                fields = line.split("\t")
                if len(fields) != 2 or not all(fields):
                    sys.exit(f"{path}:{number}: expected two fields separated by one tab: {line!r}")
                table[fields[0]] = fields[1]
    except FileNotFoundError:
        pass
    return table


def judge(text, status, outcome, allowed_skips):
    """Adds up one file's TAP output and exit status."""
    plan = None
    numbers = []
    comments = None  # of the failure last seen
    for line in text.splitlines():
        plan_match = PLAN.match(line)
        result = RESULT.match(line)
        if plan_match:
            if plan is not None:
                outcome.fail("there is a second plan: " + line)
            plan = int(plan_match[1])
        elif line.startswith("Bail out!"):
            outcome.fail(line)
        elif result:
            numbers.append(int(result[2]) if result[2] else len(numbers) + 1)
            comments = judge_result(bool(result[1]), result[3], outcome, allowed_skips)
        elif line.startswith("#") and comments is not None:
            comments.append(line)
    if plan is None:
        outcome.fail("there is no plan: it ended before its end")
    elif plan != len(numbers):
        for _ in range(max(1, plan - len(numbers))):
            outcome.fail(f"{plan} results were planned and {len(numbers)} came")
    elif numbers != list(range(1, plan + 1)):
        outcome.fail("the results are not numbered 1 to " + str(plan))
    elif plan == 0:
        outcome.fail("it contains no test")
    if status < 0:
        outcome.fail(f"it was ended by {signal.Signals(-status).name}", text.splitlines()[-5:])
    elif status > 0 and not outcome.failures:
        outcome.fail(f"it ended with status {status} though no test failed", text.splitlines()[-5:])


def judge_result(not_ok, words, outcome, allowed_skips):
    """Adds one result; returns the list that collects comments when it is a failure."""
    skip = SKIP_DIRECTIVE.search(words)
    if not_ok or TODO_DIRECTIVE.search(words):
        outcome.fail(words)
    elif not skip:
        outcome.passed += 1
        return None
    else:
        sentence, reason = words[: skip.start()].strip(), skip[1].strip()
        if allowed_skips.get(sentence) == reason:
            outcome.skipped += 1
            return None
        outcome.fail(f"{sentence}: skipped ({reason}), and tests/skips.txt does not list that")
    return outcome.failures[-1][1]


def signal_group(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def run_file(path, name, out_dir, timeout_s, allowed_skips):
    outcome = Outcome(name)
    if not os.path.isfile(path):
        outcome.fail(f"{path} is missing: it was not built")
        return outcome
    kept = os.path.join(out_dir, "native")
    os.makedirs(kept, exist_ok=True)
    cache = tempfile.mkdtemp(prefix="tap-cache-")
    try:
        native = os.path.join(cache, "gpusim")
        os.mkdir(native, 0o700)
        link_new(kept, native)
        run_with_cache(path, outcome, cache, out_dir, timeout_s, allowed_skips)
        link_new(native, kept)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    return outcome


def user_cache():
    return (os.environ.get("TAP_USER_CACHE") or os.environ.get("XDG_CACHE_HOME")
            or os.path.join(os.path.expanduser("~"), ".cache"))


def link_new(origin, target):
    """A second name in `target` for each native object of `origin`; a copy where it's another file system."""
    if not os.path.isdir(origin):
        return
    for name in os.listdir(origin):
        if not name.endswith(".so") or os.path.exists(os.path.join(target, name)):
            continue
        try:
            os.link(os.path.join(origin, name), os.path.join(target, name))
        except OSError as error:
            if error.errno == errno.EXDEV:
                with tempfile.NamedTemporaryFile(dir=target, delete=False) as copy:
                    shutil.copy(os.path.join(origin, name), copy.name)
                os.rename(copy.name, os.path.join(target, name))


def run_with_cache(path, outcome, cache, out_dir, timeout_s, allowed_skips):
    command = ["bats", "--tap", path] if path.endswith(".bats") else [os.path.abspath(path)]
    tap_path = os.path.join(out_dir, outcome.name + ".tap")
    start = time.monotonic()
    with open(tap_path, "wb") as output:
        with running_lock:
            if stopping:
                outcome.fail("it was not run: interrupted")
                return
            try:
                # A session of its own, so that what a test leaves behind can be ended with it.
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                           stderr=subprocess.STDOUT, start_new_session=True,
                                           env={**os.environ, "XDG_CACHE_HOME": cache, "TAP_USER_CACHE": user_cache()})
            except OSError as error:
                outcome.fail(f"{command[0]} can't be run: {error.strerror}")
                return
            running.add(process)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            outcome.fail(f"no end after {timeout_s} s (tests/timeouts.txt can allow more)")
            signal_group(process, signal.SIGTERM)
            try:
                process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                pass
        signal_group(process, signal.SIGKILL)
        process.wait()
        with running_lock:
            running.discard(process)
    outcome.seconds = time.monotonic() - start
    with open(tap_path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    timed_out = bool(outcome.failures)
    # Ended by us: the status says nothing more.
    judge(text, 0 if timed_out else process.returncode, outcome, allowed_skips)


def report(outcome):
    counts = f"{outcome.passed} passed"
    if outcome.skipped:
        counts += f", {outcome.skipped} skipped"
    if outcome.failures:
        counts += f", {len(outcome.failures)} failed"
    word = "FAIL" if outcome.failures else "ok  "
    print(f"{word} {outcome.name}: {counts} ({outcome.seconds:.1f} s)")
    for sentence, comments in outcome.failures:
        print(f"       not ok: {sentence}")
        for line in comments[:20]:
            print(f"         {line}")
    sys.stdout.flush()


def unique_names(paths):
    """A name for each file: its own, or with its folder's where two are called the same."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    return [stem if stems.count(stem) == 1
            else os.path.basename(os.path.dirname(os.path.abspath(path))) + "-" + stem
            for path, stem in zip(paths, stems)]


def stop(number, _frame):
    global stopping
    with running_lock:
        stopping = True
        for process in running:
            signal_group(process, signal.SIGTERM)
    print(f"interrupted by {signal.Signals(number).name}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--out", default="build/test")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=600)
    parser.add_argument("--build-status", type=int, default=0)
    parser.add_argument("--skips", default=os.path.join(HERE, "skips.txt"))
    parser.add_argument("--timeouts", default=os.path.join(HERE, "timeouts.txt"))
    parser.add_argument("tests", nargs="*")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    allowed_skips = read_table(arguments.skips)
    timeouts = read_table(arguments.timeouts)
    for name, seconds in timeouts.items():
        if not seconds.isdigit() or int(seconds) == 0:
            sys.exit(f"{arguments.timeouts}: {name}: {seconds!r} is not a number of seconds")
    os.makedirs(arguments.out, exist_ok=True)
    for old in os.listdir(arguments.out):
        if old.endswith(".tap"):
            os.unlink(os.path.join(arguments.out, old))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)

    passed = failed = skipped = 0
    if arguments.build_status != 0:
        print("FAIL build: not everything could be built; what could not is listed above")
        failed += 1
    if not arguments.tests:
        print("FAIL: no tests were given")
        failed += 1
    names = unique_names(arguments.tests)
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        futures = [pool.submit(run_file, path, name, arguments.out,
                               int(timeouts.get(name, arguments.timeout)), allowed_skips)
                   for path, name in zip(arguments.tests, names)]
        for future in concurrent.futures.as_completed(futures):
            outcome = future.result()
            report(outcome)
            passed += outcome.passed
            failed += len(outcome.failures)
            skipped += outcome.skipped
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
