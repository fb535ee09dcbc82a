#!/usr/bin/env python3
"""Every claim has a test: checks tests/claims.tsv (issue, claim, test file, test name).

A row is refused when its file doesn't exist, when the file has no test of that name, or when the last run (build/test/*.tap)
skipped that test without a line in tests/skips.txt. A claim may have several rows.

A fault that others reported and that can't occur here has 'cannot occur' for a file, and for a test the reason: a sentence,
then in parentheses the evidence that is looked up: (FILE: text) which the file must have, or (FILE: no text) which it mustn't."""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def evidence(reason):
    """What is wrong with the reason why something can't occur, or None."""
    found = re.match(r"([A-Z].*\S) \(([^():]+): (no )?(.+)\)$", reason)
    if not found or len(found[1].split()) < 6:
        return "wants a sentence of six words or more and the evidence: REASON (FILE: text) or REASON (FILE: no text)"
    _, path, absent, text = found.groups()
    full = os.path.join(ROOT, path)
    if not os.path.isfile(full):
        return f"{path} does not exist"
    with open(full, encoding="utf-8") as source:
        there = text in source.read()
    if there == bool(absent):
        return f"{path} {'has' if there else 'does not have'} '{text}'"
    return None


def main():
    problems, rows = [], 0
    skips = set()
    with open(os.path.join(ROOT, "tests", "skips.txt"), encoding="utf-8") as listed:
        for line in listed:
            if line.strip() and not line.startswith("#"):
                name, tab, reason = line.rstrip("\n").partition("\t")
                if not tab or not reason.strip():
                    problems.append(f"tests/skips.txt: '{name}' has no reason")
                skips.add(name)
    skipped = set()
    for tap in glob.glob(os.path.join(ROOT, "build", "test", "*.tap")):
        with open(tap, encoding="utf-8", errors="replace") as results:
            for line in results:
                found = re.match(r"ok \d+ (?:- )?(.*?) # skip", line, re.I)
                if found:
                    skipped.add(found.group(1))
    with open(os.path.join(ROOT, "tests", "claims.tsv"), encoding="utf-8") as claims:
        for number, line in enumerate(claims, 1):
            if not line.strip() or line.startswith("#"):
                continue
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 4 or not all(fields):
                problems.append(f"tests/claims.tsv:{number}: wants four fields: issue, claim, file, test name")
                continue
            rows += 1
            _, claim, path, name = fields
            if path == "cannot occur":
                wrong = evidence(name)
                if wrong:
                    problems.append(f"tests/claims.tsv:{number}: {wrong} (claim: {claim})")
                continue
            full = os.path.join(ROOT, path)
            if not os.path.exists(full):
                problems.append(f"tests/claims.tsv:{number}: {path} does not exist (claim: {claim})")
                continue
            with open(full, encoding="utf-8") as source:
                text = source.read()
            flat = re.sub(r'"\s*"', "", text)  # C string literals broken over lines
            if name not in flat:
                problems.append(f"tests/claims.tsv:{number}: {path} has no test '{name}' (claim: {claim})")
            if name in skipped and name not in skips:
                problems.append(f"tests/claims.tsv:{number}: '{name}' was skipped, and tests/skips.txt doesn't list it")
    if not rows:
        problems.append("tests/claims.tsv has no claims")
    for problem in problems:
        print(problem)
    print(f"claims: {rows} rows, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
