#!/usr/bin/env python3
"""Reads a file in Prometheus's text format (0.0.4) strictly, as its parsers do, and prints it as JSON: {name: {"type", "samples":
[{"labels", "value"}]}}. A line that the format doesn't allow, a sample without a type, a name out of its group, or a series that comes
twice is an error. `prometheus.py FILE`."""
import json
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})? ([^ ]+)")
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\[\\n])*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")


def read(text):
    metrics, present, helped = {}, None, None
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    for number, line in enumerate(text[:-1].split("\n"), 1):
        if found := HELP.fullmatch(line):
            helped = found[1]
        elif found := TYPE.fullmatch(line):
            present = found[1]
            if present in metrics or helped != present:
                raise ValueError(f"line {number}: {present} begins twice or without its help")
            metrics[present] = {"type": found[2], "samples": []}
            if found[2] == "counter" and not present.endswith("_total"):
                raise ValueError(f"line {number}: a counter's name ends in _total")
        elif found := SAMPLE.fullmatch(line):
            if found[1] != present:
                raise ValueError(f"line {number}: a sample of {found[1]} stands among those of {present}")
            labels = dict(part.split("=", 1) for part in re.findall(LABEL, found[2] or ""))
            labels = {name: value[1:-1] for name, value in labels.items()}
            if any(labels == sample["labels"] for sample in metrics[present]["samples"]):
                raise ValueError(f"line {number}: this series came before")
            metrics[present]["samples"].append({"labels": labels, "value": float(found[3])})
        else:
            raise ValueError(f"line {number} is none of the format: {line[:80]!r}")
    return metrics


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        try:
            metrics = read(file.read())
        except ValueError as problem:
            sys.exit(f"{sys.argv[1]}: {problem}")
    empty = [name for name, metric in metrics.items() if not metric["samples"]]
    if empty or not metrics:
        sys.exit(f"{sys.argv[1]}: without a sample: {', '.join(empty) or 'everything'}")
    json.dump(metrics, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
