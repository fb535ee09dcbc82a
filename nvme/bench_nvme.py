#!/usr/bin/env python3
"""The engine against fio on one file system: make bench-nvme.

Alternating pairs of build/nvme-bench and fio (io_uring, O_DIRECT) on the same file with the same block, depth and mix, both with
buffers of huge pages, registered; medians of bytes per second. Writes {"rows": [{"mix", "ours", "fio", "ratio", "pairs", ...}],
"checksums": {"ns_per_byte", "share", "with", "without", "ratio"}}.
The file is removed at the end."""

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


def fail(sentence):
    sys.exit(f"bench-nvme: {sentence}")


def run(command):
    try:
        environment = dict(os.environ, GLIBC_TUNABLES=HUGE_PAGES)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        fail(f"{command[0]} is not there: apt-get install fio, or make")
    if done.returncode:
        fail(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return json.loads(done.stdout)


def ours(options, file, mix):
    answer = run([os.path.join(options.build, "nvme-bench"), "--file", file, "--mix", mix, "--block", str(options.block),
                  "--depth", str(options.depth), "--seconds", str(options.seconds)])
    return answer["bytes_per_s"], answer["rung"]


def fio(options, file, mix):
    answer = run(["fio", "--name=bench", f"--filename={file}", f"--size={options.size}", "--ioengine=io_uring", "--direct=1",
                  f"--bs={options.block}", f"--iodepth={options.depth}", f"--runtime={options.seconds}", "--time_based",
                  "--fixedbufs", "--registerfiles", "--output-format=json", *MIXES[mix]])
    job = answer["jobs"][0]
    if job["error"]:
        fail(f"fio reports error {job['error']} for {mix}")
    return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


def row(options, file, mix):
    pairs = []
    for i in range(options.pairs):
        # who goes first changes, so that neither always finds the drive as the other left it
        if i % 2:
            theirs, (rate, rung) = fio(options, file, mix), ours(options, file, mix)
        else:
            (rate, rung), theirs = ours(options, file, mix), fio(options, file, mix)
        if rate <= 0 or theirs <= 0:
            fail(f"nothing was transferred for {mix}")
        pairs.append((rate, theirs))
    rate, theirs = (statistics.median(column) for column in zip(*pairs))
    return {"mix": mix, "ours": rate, "fio": theirs, "ratio": rate / theirs, "pairs": len(pairs), "rung": rung,
            "block": options.block, "depth": options.depth, "each": pairs}


def checksums(options):
    """What the store's checksums cost its reads: nanoseconds of a core per byte, and the reading's speed with and without."""
    parts = run([os.path.join(options.build, "nvme-store-bench"), "--directories", os.path.abspath(options.directory or options.build),
                 "--bytes", str(max(options.size // 2, 1 << 25)), "--seconds", str(options.seconds), "--pairs", str(options.pairs)])
    rate = {on: statistics.median(part["bytes"] / part["seconds"] for part in parts if part["checksums"] == on) for on in (True, False)}
    checked = [part for part in parts if part["checksums"]]
    return {"ns_per_byte": statistics.median(part["checksum_seconds"] * 1e9 / part["bytes"] for part in checked),
            "share": statistics.median(part["checksum_seconds"] / part["seconds"] for part in checked),
            "with": rate[True], "without": rate[False], "ratio": rate[True] / rate[False], "pairs": len(checked)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--directory", help="on the file system to be measured (default: the build directory)")
    parser.add_argument("--out", default="build/bench_nvme.json")
    parser.add_argument("--size", type=int, default=1 << 30, help="bytes of the file")
    parser.add_argument("--block", type=int, default=1 << 20, help="bytes")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=3, help="of each run")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    if options.pairs < 1 or options.seconds < 1 or options.size < options.block * options.depth:
        fail("--pairs and --seconds are at least 1, --size at least --block times --depth")
    descriptor, file = tempfile.mkstemp(prefix="bench-nvme-", dir=options.directory or options.build)
    try:
        # written through, because blocks that were only allocated are read without the drive
        noise = os.urandom(1 << 20)
        for at in range(0, options.size, len(noise)):
            os.pwrite(descriptor, noise[: options.size - at], at)
        os.fsync(descriptor)
        rows = [row(options, file, mix) for mix in MIXES]
    finally:
        os.close(descriptor)
        os.unlink(file)
    summed = checksums(options)
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump({"rows": rows, "checksums": summed}, out, indent=1)
        out.write("\n")
    for line in rows:
        print(f"{line['mix']:5} ours {line['ours'] / 1e9:.2f} GB/s, fio {line['fio'] / 1e9:.2f} GB/s, ratio {line['ratio']:.3f}")
    print(f"checksums {summed['ns_per_byte']:.3f} ns a byte, {summed['share']:.1%} of a core while it reads; "
          f"read {summed['with'] / 1e9:.2f} GB/s with, {summed['without'] / 1e9:.2f} GB/s without")


if __name__ == "__main__":
    main()
