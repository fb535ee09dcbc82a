#!/usr/bin/env python3
"""Runs bench programs and merges what they print: `bench.py OUT PROGRAM...`. Each PROGRAM is a command line whose stdout is
one JSON object; OUT gets all their keys. Two programs with the same key, a failing program or output that is no JSON
object is an error, and OUT stays as it was."""
import json
import os
import shlex
import subprocess
import sys


def run(command):
    """The JSON object that a program prints."""
    print(f"bench: {command}", file=sys.stderr, flush=True)
    result = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=False, text=True)
    if result.returncode != 0:
        sys.exit(f"bench: {command} ended with {result.returncode}")
    try:
        value = json.loads(result.stdout)
    except ValueError as error:
        sys.exit(f"bench: {command} printed no JSON: {error}")
    if not isinstance(value, dict):
        sys.exit(f"bench: {command} printed no JSON object")
    return value


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    merged = {}
    for command in sys.argv[2:]:
        for key, value in run(command).items():
            if key in merged:
                sys.exit(f"bench: {command} prints '{key}', which another program printed before")
            merged[key] = value
    temporary = f"{sys.argv[1]}.tmp"
    with open(temporary, "w", encoding="utf-8") as out:
        json.dump(merged, out, indent=1)
        out.write("\n")
    os.replace(temporary, sys.argv[1])


if __name__ == "__main__":
    main()
