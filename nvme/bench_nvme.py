#!/usr/bin/env python3
"""The engine against fio, and the step of state on drives against what it can't be faster than: make bench-nvme.

rows: alternating pairs of build/nvme-bench and fio (io_uring, O_DIRECT) on the same file with the same block, depth and mix, both with
registered buffers of huge pages. "ours" and "fio" are medians of bytes per second, "ratio" is the median of the pairs' ratios.

step: alternating rounds of build/drive-bench with its state on drives, the same with its state in memory, and fio, half reads and half
writes on a file as large as the state. "seconds" is one step's; a round's bound is the larger of what fio takes for the bytes that the
step moved and what the step takes in memory; "ratio" is the median of the rounds' ratios. Both must leave the same numbers.

checksums: what the store's checksums cost its reads (build/nvme-store-bench): {"ns_per_byte", "share", "with", "without", "ratio"}.

Files lie in --directory and are removed at the end."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

# fio's buffers are malloc's, and of small pages otherwise, with which drives are slower: no match for ours
HUGE_PAGES = "glibc.malloc.hugetlb=1"
MIXES = {"read": ["--rw=read"], "write": ["--rw=write"], "half": ["--rw=rw", "--rwmixread=50"]}
STEPS = 2
UNIT = 2 << 20


def fail(sentence):
    sys.exit(f"bench-nvme: {sentence}")


def run(command):
    try:
        environment = dict(os.environ, GLIBC_TUNABLES=HUGE_PAGES, OFFLOAD_RATES="/dev/null")
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        fail(f"{command[0]} is not there: apt-get install fio, or make")
    if done.returncode:
        fail(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return json.loads(done.stdout)


def program(options, name):
    return os.path.join(options.build, name)


def ours(options, file, mix):
    answer = run([program(options, "nvme-bench"), "--file", file, "--mix", mix, "--block", str(options.block),
                  "--depth", str(options.depth), "--seconds", str(options.seconds)])
    return answer["bytes_per_s"], answer["rung"]


def fio(options, file, size, mix):
    answer = run(["fio", "--name=bench", f"--filename={file}", f"--size={size}", "--ioengine=io_uring", "--direct=1",
                  f"--bs={options.block}", f"--iodepth={options.depth}", f"--runtime={options.seconds}", "--time_based",
                  "--fixedbufs", "--registerfiles", "--output-format=json", *MIXES[mix]])
    job = answer["jobs"][0]
    if job["error"]:
        fail(f"fio reports error {job['error']} for {mix}")
    rate = job["read"]["bw_bytes"] + job["write"]["bw_bytes"]
    if rate <= 0:
        fail(f"fio transferred nothing for {mix}")
    return rate


def in_turns(calls, number):
    """What the calls return; who goes first changes, so that none always finds the drive as another left it."""
    if number % 2:
        return [call() for call in calls[::-1]][::-1]
    return [call() for call in calls]


def row(options, file, mix):
    pairs = []
    for i in range(options.pairs):
        (rate, rung), theirs = in_turns([lambda: ours(options, file, mix), lambda: fio(options, file, options.size, mix)], i)
        if rate <= 0:
            fail(f"nothing was transferred for {mix}")
        pairs.append((rate, theirs))
    rate, theirs = (statistics.median(column) for column in zip(*pairs))
    return {"mix": mix, "ours": rate, "fio": theirs, "ratio": statistics.median(a / b for a, b in pairs), "pairs": len(pairs),
            "rung": rung, "block": options.block, "depth": options.depth, "each": pairs}


def drive_bench(options, state):
    answer = run([program(options, "drive-bench"), "--state", state, "--bytes", str(options.step_bytes), "--unit", str(UNIT),
                  "--steps", str(STEPS), "--directory", os.path.abspath(options.directory)])
    moved = answer["read_bytes"] + answer["written_bytes"]
    if (moved > options.step_bytes) != (state == "drives"):
        fail(f"drives moved {moved} bytes in {STEPS} steps of {options.step_bytes} bytes of state in {state}")
    return answer


def step(options, file):
    rounds = []
    for i in range(options.rounds):
        drives, memory, rate = in_turns([lambda: drive_bench(options, "drives"), lambda: drive_bench(options, "memory"),
                                         lambda: fio(options, file, options.step_bytes, "half")], i)
        if drives["hash"] != memory["hash"]:
            fail("the step of state on drives left other numbers than that of state in memory")
        moved = (drives["read_bytes"] + drives["written_bytes"]) / STEPS
        rounds.append((drives["seconds"] / STEPS, moved / rate, memory["seconds"] / STEPS))
    seconds, fio_seconds, cpu_seconds = (statistics.median(column) for column in zip(*rounds))
    return {"seconds": seconds, "bound": max(fio_seconds, cpu_seconds),
            "ratio": statistics.median(a / max(b, c) for a, b, c in rounds), "fio_seconds": fio_seconds, "cpu_seconds": cpu_seconds,
            "bytes": options.step_bytes, "moved_bytes": moved, "rung": drives["rung"], "block": drives["block"],
            "depth": drives["depth"], "rounds": len(rounds), "each": rounds}


def checksums(options):
    """What the store's checksums cost its reads: nanoseconds of a core per byte, and the reading's speed with and without."""
    parts = run([program(options, "nvme-store-bench"), "--directories", os.path.abspath(options.directory),
                 "--bytes", str(max(options.size // 2, 1 << 25)), "--seconds", str(options.seconds), "--pairs", str(options.pairs)])
    rate = {on: statistics.median(part["bytes"] / part["seconds"] for part in parts if part["checksums"] == on) for on in (True, False)}
    checked = [part for part in parts if part["checksums"]]
    return {"ns_per_byte": statistics.median(part["checksum_seconds"] * 1e9 / part["bytes"] for part in checked),
            "share": statistics.median(part["checksum_seconds"] / part["seconds"] for part in checked),
            "with": rate[True], "without": rate[False], "ratio": rate[True] / rate[False], "pairs": len(checked)}


def written_file(options, size):
    """Written through, because blocks that were only allocated are read without the drive."""
    descriptor, file = tempfile.mkstemp(prefix="bench-nvme-", dir=options.directory)
    noise = os.urandom(1 << 20)
    try:
        for at in range(0, size, len(noise)):
            os.pwrite(descriptor, noise[: size - at], at)
        os.fsync(descriptor)
    except OSError as error:
        os.unlink(file)
        fail(f"{options.directory}: {size} bytes can't be written: {error.strerror}; --size and --step-bytes (NVME_STEP_BYTES) "
             "say how many")
    finally:
        os.close(descriptor)
    return file


def with_file(options, size, measure):
    file = written_file(options, size)
    try:
        return measure(file)
    finally:
        os.unlink(file)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--directory", help="on the file system to be measured (default: the build directory)")
    parser.add_argument("--out", help="a file; default: stdout, as a part of make bench's")
    parser.add_argument("--short", action="store_true", help="a few seconds: one pair, one round, small files")
    parser.add_argument("--size", type=int, default=1 << 30, help="bytes of the rows' file")
    parser.add_argument("--block", type=int, default=1 << 20, help="bytes")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=3, help="of each run")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--step-bytes", type=int, default=4 << 30, help="of state; 0: no step")
    parser.add_argument("--rounds", type=int, default=5, help="of the step")
    options = parser.parse_args()
    options.directory = options.directory or options.build
    if options.short:
        options.size, options.seconds, options.pairs, options.rounds = 256 << 20, 1, 1, 1
        options.step_bytes = min(options.step_bytes, 256 << 20)
    if min(options.pairs, options.seconds, options.rounds) < 1 or options.size < options.block * options.depth:
        fail("--pairs, --rounds and --seconds are at least 1, --size at least --block times --depth")
    if options.step_bytes % (2 * UNIT) or (options.step_bytes and options.step_bytes < options.block * options.depth):
        fail(f"--step-bytes (NVME_STEP_BYTES) {options.step_bytes} is not a multiple of {2 * UNIT}, or less than --block times --depth")
    return options


def main():
    options = parse()
    result = {"rows": with_file(options, options.size, lambda file: [row(options, file, mix) for mix in MIXES])}
    if options.step_bytes:
        result["step"] = with_file(options, options.step_bytes, lambda file: step(options, file))
    result["checksums"] = checksums(options)
    if not options.out:
        print(json.dumps({"nvme": result}))
        return
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    for line in result["rows"]:
        print(f"{line['mix']:5} ours {line['ours'] / 1e9:.2f} GB/s, fio {line['fio'] / 1e9:.2f} GB/s, ratio {line['ratio']:.3f}")
    line = result["checksums"]
    print(f"checksums {line['ns_per_byte']:.3f} ns a byte, {line['share']:.1%} of a core while it reads; "
          f"read {line['with'] / 1e9:.2f} GB/s with, {line['without'] / 1e9:.2f} GB/s without")
    if options.step_bytes:
        line = result["step"]
        print(f"step  {line['seconds']:.2f} s, bound {line['bound']:.2f} s (fio {line['fio_seconds']:.2f}, CPU {line['cpu_seconds']:.2f}), "
              f"ratio {line['ratio']:.3f}")


if __name__ == "__main__":
    main()
