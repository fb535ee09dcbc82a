#!/usr/bin/env python3
"""make.py OFFLOAD OUT: man pages and the completion of bash, from what the program OFFLOAD tells of itself (`offload --dump`, `offload
COMMAND --dump`: one tab-separated line for each thing) and the texts beside this file. Nothing of commands, options and variables is
written down twice."""
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def dump(program, *words):
    """The lines that the program tells, each a list of fields; "\\n" in a field is a new line."""
    text = subprocess.run([program, *words, "--dump"], capture_output=True, text=True, check=True).stdout
    return [[field.replace("\\n", "\n") for field in line.split("\t")] for line in text.splitlines()]


class Command:
    def __init__(self, program, name, arguments, summary):
        self.name, self.arguments, self.summary = name, arguments, summary
        self.doc, self.options = "", []  # options: (group or None, name, letter, argument, help)
        group = None
        for kind, *fields in dump(program, name):
            if kind == "doc":
                self.doc = fields[0]
            elif kind == "group":
                group = fields[0]
            elif kind == "option":
                self.options.append((group, *fields))

    def usage(self):
        return " ".join((["[OPTION...]"] if self.options else []) + ([self.arguments] if self.arguments else []))


def roff(text):
    """Text as it is: no command, no escape; minus signs that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\`")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def paragraphs(text):
    return "\n.PP\n".join(roff(part) for part in text.split("\n\n"))


def sentence(text):
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def manual_of(command):
    lines = [f".SS offload {command.name} {roff(command.usage())}".rstrip(), roff(sentence(command.summary))]
    if command.doc:
        lines += [".PP", paragraphs(command.doc)]
    group = None
    for of_group, name, letter, argument, text in command.options:
        if of_group != group:
            group = of_group
            lines += [".PP", roff(group)]
        takes = f"=\\fI{roff(argument)}\\fR" if argument else ""
        short = f"\\-{letter}, " if letter else ""
        lines += [".TP", f"\\fB{short}\\-\\-{roff(name)}\\fR{takes}", roff(text) or "\\&"]
    return "\n".join(lines)


def variable_of(name, words, kind, initial, text):
    takes = "|".join(words) or kind
    otherwise = f"; {roff(initial)} when not set" if initial else ""
    return f".TP\n\\fBOFFLOAD_{roff(name)}\\fR=\\fI{roff(takes)}\\fR{otherwise}\n{roff(sentence(text))}"


def listed(name, macro):
    """Names of a .def file of the program: the first argument of each use of the macro."""
    return re.findall(rf"^{macro}\(([^,\s]+),", (HERE.parent / name).read_text(), flags=re.MULTILINE)


def fill(name, **parts):
    text = (HERE / name).read_text()
    for key, value in parts.items():
        text = text.replace(f"@{key}@", value)
    left = re.search(r"@[A-Z]+@", text)
    if left:
        sys.exit(f"{name}: nothing fills {left[0]}")
    return text


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    told = dump(program)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    commands = [Command(program, *fields) for kind, *fields in told if kind == "command"]
    arguments = {name: argument for command in commands if command.name == "run" for _, name, _, argument, _ in command.options}
    variables = []
    for kind, *fields in told:
        if kind == "variable":
            name, of_kind, initial, text = fields
            argument = arguments.get(name.lower().replace("_", "-"), of_kind)  # what tests set has no option that is shown
            variables.append((name, argument.split("|") if "|" in argument else [], argument, initial, text))
    out.mkdir(parents=True, exist_ok=True)

    def title(name, section):
        return f'.TH {name} {section} "" "offload {version}" "liboffload"\n.nh\n'

    (out / "offload.1").write_text(title("OFFLOAD", 1) + fill(
        "offload.1.in",
        SYNOPSIS="\n.br\n".join([f".B offload {c.name}\n{roff(c.usage())}".rstrip() for c in commands]
                                + [".B offload \\-\\-help\n.br\n.B offload \\-\\-version"]),
        COMMANDS="\n".join(manual_of(c) for c in commands)))
    (out / "liboffload.7").write_text(title("LIBOFFLOAD", 7) + fill(
        "liboffload.7.in",
        VARIABLES="\n".join(variable_of(*v) for v in variables if "(for tests)" not in v[4]),
        COUNTERS="\n".join(f".TP\n.B {f[0]}\n{roff(sentence(f[1]))}" for kind, *f in told if kind == "counter")))

    # What the program lists in its help by these tables.
    words = {("plan", "gpu"): listed("gpus.def", "PROFILE"), ("plan", "optimizer"): listed("optimizers.def", "OPTIMIZER")}
    if not all(words.values()):
        sys.exit("make.py: gpus.def or optimizers.def has no name")

    def options_of(command):
        lines = [f"--{name} {'|'.join(words.get((command.name, name), [])) or argument}".rstrip() for _, name, _, argument, _ in command.options] + ["--help", "--usage", "--version"]
        return f"  {command.name}) echo '" + "\n".join(lines) + "' ;;"

    (out / "offload.bash").write_text(fill(
        "completion.bash.in",
        COMMANDS=" ".join(c.name for c in commands),
        VARIABLES=" ".join(f"OFFLOAD_{v[0]}" for v in variables if "(for tests)" not in v[4]),
        OPTIONS="\n".join(options_of(c) for c in commands),
        VALUES="\n".join(f"  OFFLOAD_{name}) echo '{argument}' ;;" for name, _, argument, _, _ in variables)))


main()
