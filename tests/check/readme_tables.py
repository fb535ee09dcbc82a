#!/usr/bin/env python3
"""Keeps the README's table of variables equal to policy/variables.def. With --write it replaces the table, else it compares;
and no README may hold a line that is only a placeholder such as @THIS@."""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEGIN, END = "<!-- variables: from policy/variables.def -->", "<!-- end of variables -->"


def table():
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


def main():
    path = os.path.join(ROOT, "README.md")
    with open(path, encoding="utf-8") as source:
        readme = source.read()
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md lacks the lines '{BEGIN}' and '{END}'")
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--write" in sys.argv[1:]:
        with open(path, "w", encoding="utf-8") as target:
            target.write(wanted)
    elif readme != wanted:
        sys.exit("README.md: the table of variables differs from policy/variables.def; run tests/check/readme_tables.py --write")
    for readme_path in glob.glob(os.path.join(ROOT, "**", "*.md"), recursive=True):
        if os.path.relpath(readme_path, ROOT).startswith("build"):
            continue
        with open(readme_path, encoding="utf-8") as source:
            for number, line in enumerate(source, 1):
                if re.fullmatch(r"@[A-Z]+@\s*", line):
                    sys.exit(f"{os.path.relpath(readme_path, ROOT)}:{number}: a placeholder, {line.strip()}, was never filled in")
    print("readme tables: as policy/variables.def says")


if __name__ == "__main__":
    main()
