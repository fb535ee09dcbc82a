#!/usr/bin/env python3
"""Keeps the README's tables equal to what they are made of: variables to policy/variables.def, what works to tests/compatibility.tsv,
each of whose rows names a test that there must be. With --write it replaces them, else it compares; and no README may hold a line
that is only a placeholder such as @THIS@."""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MARKS = {
    "variables": ("<!-- variables: from policy/variables.def -->", "<!-- end of variables -->"),
    "compatibility": ("<!-- compatibility: from tests/compatibility.tsv -->", "<!-- end of compatibility -->"),
}


def variables():
    with open(os.path.join(ROOT, "policy", "variables.def"), encoding="utf-8") as source:
        text = re.sub(r"/\*.*?\*/", "", source.read(), flags=re.S)
    rows = re.findall(r'VARIABLE\(\s*(\w+),\s*"(\w+)",\s*(\w+),\s*"([^"]*)",\s*((?:"[^"]*"\s*)+)\)', text)
    if len(rows) != text.count("VARIABLE("):
        sys.exit("readme_tables: policy/variables.def has a line that this script can't read")
    lines = ["| variable | unset means | what it does |", "| --- | --- | --- |"]
    for _, name, _, initial, help_text in rows:
        words = "".join(re.findall(r'"([^"]*)"', help_text)).replace("|", "\\|")
        lines.append(f"| `OFFLOAD_{name}` | {'`' + initial + '`' if initial else ''} | {words} |")
    return "\n".join(lines)


def compatibility():
    lines = ["| optimizer | framework | releases | moves | numbers stay | stepped by |", "| --- | --- | --- | --- | --- | --- |"]
    with open(os.path.join(ROOT, "tests", "compatibility.tsv"), encoding="utf-8") as source:
        rows = [line.rstrip("\n").split("\t") for line in source if line.strip() and not line.startswith("#")]
    for row in rows:
        if len(row) != 8 or not all(row):
            sys.exit(f"tests/compatibility.tsv: wants eight fields: {row}")
        path, name = row[6:]
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as source:
                there = name in re.sub(r'"\s*"', "", source.read())
        except OSError:
            there = False
        if not there:
            sys.exit(f"tests/compatibility.tsv: {path} has no test '{name}' ({row[0]}, {row[1]})")
        lines.append(f"| {' | '.join(row[:6])} |")
    return "\n".join(lines)


def replaced(readme, name, table):
    begin, end = MARKS[name]
    before, begins, rest = readme.partition(begin)
    _, ends, after = rest.partition(end)
    if not begins or not ends:
        sys.exit(f"README.md lacks the lines '{begin}' and '{end}'")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main():
    path = os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as source:
        readme = source.read()
    wanted = replaced(replaced(readme, "variables", variables()), "compatibility", compatibility())
    if "--write" in sys.argv[1:]:
        with open(path, "w", encoding="utf-8") as target:
            target.write(wanted)
    elif readme != wanted:
        sys.exit("README.md: a table differs from policy/variables.def or tests/compatibility.tsv; run tests/check/readme_tables.py --write")
    for readme_path in glob.glob(os.path.join(ROOT, "**", "*.md"), recursive=True):
        if os.path.relpath(readme_path, ROOT).startswith("build"):
            continue
        with open(readme_path, encoding="utf-8") as source:
            for number, line in enumerate(source, 1):
                if re.fullmatch(r"@[A-Z]+@\s*", line):
                    sys.exit(f"{os.path.relpath(readme_path, ROOT)}:{number}: a placeholder, {line.strip()}, was never filled in")
    print("readme tables: as policy/variables.def and tests/compatibility.tsv say")


if __name__ == "__main__":
    main()
