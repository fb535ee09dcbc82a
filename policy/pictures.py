#!/usr/bin/env python3
"""Makes the pictures of policy/README.md: `pictures.py --build BUILD [--out FOLDER]`. Real programs run on the simulated GPU with the library; what
`offload check`, `plan`, `top` and `report` show in a terminal of 80 columns becomes SVG, the page of `report --html` is photographed in a headless browser."""
import argparse
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
import browser as browsers  # noqa: E402
from terminal import Screen, Terminal  # noqa: E402

RANKS = 2
STEPS = 30
TOP_LEAST_STEPS = 12  # before the picture of `top` is taken
CHARLM = ["--batch", "512", "--hidden", "128", "--tables", "65536"]
PLAN = ["plan", "7B", "--gpu", "h100", "--gpus", "8", "--shard", "zero1", "--tokens", "32K"]
PAGE_WIDE, PAGE_HIGH = 1000, 1560
MOST_BYTES = 150_000

# ---- the terminal as SVG ----

CELL_WIDE, CELL_HIGH, MARGIN, BAR_HIGH = 8.4, 18, 14, 30
PAPER, INK, SOFT = "#161b20", "#d7dde2", "#87939d"
COLOURS = {1: "#ffffff", 2: SOFT, 33: "#e6b450"}
# Drawn as boxes: fonts leave gaps between them. The share of ink, and of the cell's height from below.
BLOCKS = {"█": (1, 1), "▓": (0.72, 1), "▒": (0.5, 1), "░": (0.25, 1), **{c: (1, (i + 1) / 8) for i, c in enumerate("▁▂▃▄▅▆▇")}}


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def runs(row):
    """Parts of a row with the same attributes and kind, as (column, text, attributes, block). Two blanks end a part, so that every column begins where
    it is meant to."""
    begin = 0
    while begin < len(row):
        character, ink = row[begin]
        end = begin + 1
        same = (lambda c: c == character) if character in BLOCKS else (lambda c: c not in BLOCKS)
        while end < len(row) and row[end][1] == ink and same(row[end][0]) and not (row[end][0] == " " and row[end - 1][0] == " "):
            end += 1
        yield begin, "".join(c for c, _ in row[begin:end]), ink, character in BLOCKS
        begin = end


def terminal_svg(screen, lines, command, title):
    rows = screen.cells[:lines]
    wide, high = screen.columns * CELL_WIDE + 2 * MARGIN, lines * CELL_HIGH + 2 * MARGIN + BAR_HIGH
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" height="{high:.0f}" role="img" aria-label="{escape(title)}">',
           f"<title>{escape(title)}</title>",
           f'<rect width="{wide:.0f}" height="{high:.0f}" rx="8" fill="{PAPER}"/>',
           *(f'<circle cx="{20 + 18 * i}" cy="17" r="5.5" fill="{colour}"/>' for i, colour in enumerate(("#e0655b", "#e3b04b", "#5fb36a"))),
           f'<g font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="14" fill="{INK}">',
           f'<text x="{wide / 2:.0f}" y="22" text-anchor="middle" fill="{SOFT}">{escape(command)}</text>']
    for number, row in enumerate(rows):
        y = MARGIN + BAR_HIGH + number * CELL_HIGH
        for column, text, ink, block in runs(row):
            x = MARGIN + column * CELL_WIDE
            if block:
                share, part = BLOCKS[text[0]]
                out.append(f'<rect x="{x:.1f}" y="{y + CELL_HIGH * (1 - part) + 1:.1f}" width="{len(text) * CELL_WIDE:.1f}" height="{CELL_HIGH * part - 2 * part:.1f}" '
                           f'fill="#6cb6d9" opacity="{share}"/>')
                continue
            colour = next((COLOURS[i] for i in ink if i in COLOURS), None)
            if 7 in ink:
                out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{len(text) * CELL_WIDE:.1f}" height="{CELL_HIGH}" fill="#39444e" shape-rendering="crispEdges"/>')
            stripped = text.strip(" ")
            if not stripped:
                continue
            x += (len(text) - len(text.lstrip(" "))) * CELL_WIDE
            style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if 1 in ink else "")
            out.append(f'<text x="{x:.1f}" y="{y + 13.5:.1f}" textLength="{len(stripped) * CELL_WIDE:.1f}" lengthAdjust="spacingAndGlyphs"{style}>'
                       f"{escape(stripped)}</text>")
    return "\n".join(out) + "\n</g>\n</svg>\n"


def printed(command, environment, good, most_lines, neutral=()):
    """A screen, as high as needed, of what a command prints; `neutral`: what is of this machine alone, and what stands for it."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
    if done.returncode not in good:
        sys.exit(f"pictures: {' '.join(command)} ended with {done.returncode}: {done.stdout.decode()[-500:]}")
    text = done.stdout.decode()
    for found, shown in neutral:
        text = re.sub(found, shown, text)
    text = text.rstrip("\n").split("\n")
    screen = Screen(80, max(24, min(len(text), most_lines)))
    for number, line in enumerate(text[:screen.lines]):
        if len(line) > screen.columns:
            sys.exit(f"pictures: a line of {' '.join(command)} is wider than 80 columns: {line}")
        screen.feed((line + ("\r\n" if number + 1 < min(len(text), screen.lines) else "")).encode())
    return screen, min(len(text), screen.lines)


# ---- PNG with a palette ----

def unfiltered(data, wide, high, size):
    """The rows of a PNG's decompressed data."""
    row, at = bytearray(wide * size), 0
    for _ in range(high):
        kind, line = data[at], bytearray(data[at + 1:at + 1 + wide * size])
        at += 1 + wide * size
        for i in range(len(line)):
            left, up, corner = (line[i - size] if i >= size else 0), row[i], (row[i - size] if i >= size else 0)
            if kind == 1:
                line[i] = (line[i] + left) & 255
            elif kind == 2:
                line[i] = (line[i] + up) & 255
            elif kind == 3:
                line[i] = (line[i] + (left + up) // 2) & 255
            elif kind == 4:
                guess = left + up - corner
                a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
                line[i] = (line[i] + (left if a <= b and a <= c else up if b <= c else corner)) & 255
        yield line
        row = line


def quantise(path):
    """Writes a PNG again with the 256 colours that it has most of; others become the nearest of these."""
    with open(path, "rb") as file:
        png = file.read()
    at, packed = 8, b""
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if name == b"IHDR":
            wide, high, depth, kind = struct.unpack(">IIBB", body[:10])
        elif name == b"IDAT":
            packed += body
        at += 12 + length
    assert depth == 8 and kind in (2, 6), "a PNG of another kind"
    size = 3 if kind == 2 else 4
    rows = [[bytes(row[i:i + 3]) for i in range(0, len(row), size)] for row in unfiltered(zlib.decompress(packed), wide, high, size)]
    count = {}
    for row in rows:
        for colour in row:
            count[colour] = count.get(colour, 0) + 1
    palette = sorted(count, key=lambda colour: (-count[colour], colour))[:256]
    index = {colour: number for number, colour in enumerate(palette)}
    for colour in count:
        if colour not in index:
            index[colour] = min(range(len(palette)), key=lambda n: sum((a - b) ** 2 for a, b in zip(colour, palette[n])))

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    data = b"".join(b"\0" + bytes(index[colour] for colour in row) for row in rows)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 3, 0, 0, 0)) + chunk(b"PLTE", b"".join(palette)) +
                   chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


# ---- the runs ----

def environment_of(folder, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OFFLOAD_", "GPUSIM_")) and k not in ("LD_PRELOAD", "NO_COLOR")}
    # A registry of our own: no other ranks in the picture.
    root = os.path.join(folder, "root")
    if not os.path.exists(root):
        os.makedirs(os.path.join(root, "dev", "shm"))
        for name in ("proc", "sys"):
            os.symlink("/" + name, os.path.join(root, name))
    return {**environment, "LC_ALL": "C.UTF-8", "OFFLOAD_SYSROOT": root, "XDG_CACHE_HOME": os.path.join(folder, "cache"), **variables}


def start_ranks(build, folder):
    return [subprocess.Popen(
        [os.path.join(build, "offload"), "run", "--library", os.path.join(build, "liboffload.so"), "--threads", "2", "--report", f"rank{rank}.json",
         os.path.join(build, "gpusim", "run"), os.path.join(build, "charlm"), os.path.join(ROOT, "integration", "charlm", "text.txt"), *CHARLM,
         "--steps", str(STEPS)],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=environment_of(folder, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS), GPUSIM_MEMORY="768MiB", OFFLOAD_TEST_RECORD_MS="500"))
        for rank in range(RANKS)]


def top_screen(build, folder):
    """`top` in a terminal of 80 by 24 once every rank has stepped for a while."""
    environment = environment_of(folder)

    def stepped(lines):
        job = next((line for line in lines if line.startswith("job ")), "")
        shown = [line.split() for line in lines if len(line.split()) == 9 and line.split()[0].isdigit()]
        return len(shown) == RANKS and all(row[7] != "-" and row[4] != "-" for row in shown) and int(job.split(" step ")[1].split()[0]) >= TOP_LEAST_STEPS
    with Terminal([os.path.join(build, "offload"), "top", "--interval", "0.5"], **environment) as terminal:
        terminal.until(stepped, "the ranks' steps", 240)
        terminal.keys("q")
        shown = terminal.screen.cells
        terminal.wait()
    screen = Screen(80, 24)
    screen.cells = shown
    return screen


def write(out, name, text):
    with open(os.path.join(out, name), "w", encoding="utf-8") as file:
        file.write(text)


def photograph(build, folder, out, reports):
    program = browsers.find()
    if not program:
        sys.exit("pictures: no headless browser: apt-get install chromium-headless-shell, or name one with OFFLOAD_BROWSER")
    page = os.path.join(folder, "report.html")
    subprocess.run([os.path.join(build, "offload"), "report", "--html", page, *reports], cwd=folder, check=True)
    with browsers.Browser(program) as browser:
        for name, dark in (("report-light.png", False), ("report-dark.png", True)):
            problems = browser.open(page, PAGE_WIDE, PAGE_HIGH, dark) + browser.layout()["problems"]
            if problems:
                sys.exit(f"pictures: the page: {problems}")
            browser.screenshot(os.path.join(out, name), PAGE_WIDE, PAGE_HIGH)
            quantise(os.path.join(out, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", default=os.path.join(ROOT, "policy", "pictures"))
    asked = parser.parse_args()
    build, out = os.path.abspath(asked.build), os.path.abspath(asked.out)
    offload = os.path.join(build, "offload")
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures.") as folder:
        ranks = start_ranks(build, folder)
        try:
            write(out, "top.svg", terminal_svg(top_screen(build, folder), 24, "offload top", "offload top: two ranks as they step"))
            for rank in ranks:
                if rank.wait():
                    sys.exit(f"pictures: a rank ended with {rank.returncode}")
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.send_signal(signal.SIGTERM)
                    rank.wait()
        reports = [os.path.join(folder, f"rank{rank}.json") for rank in range(RANKS)]
        for path in reports:
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            if not report["totals"]["moved_bytes_peak"] or not report["steps"]["last"]:
                sys.exit("pictures: a rank moved no state or measured no step, so there is nothing to show")
        # Paths and a kernel of this machine's are no part of the picture.
        neutral = [(re.escape(os.path.join(folder, "root")), ""), (re.escape(folder), "~"), (re.escape(build), "/usr/local/lib"),
                   (r"(Linux +\d+\.\d+\.\d+)-\S+", r"\1")]
        shown = [("check", [os.path.join(build, "gpusim", "run"), offload, "check"], (0, 1), "offload check", "offload check: what this machine has of what is needed", 40),
                 ("plan", [offload, *PLAN], (0,), "offload " + " ".join(PLAN), "offload plan: bytes and times of a model, foretold", 60),
                 ("report", [offload, "report", reports[0]], (0,), "offload report rank0.json", "offload report: what one rank did", 62)]
        for name, command, good, typed, title, most in shown:
            screen, lines = printed(command, environment_of(folder), good, most, neutral)
            write(out, name + ".svg", terminal_svg(screen, lines, typed, title))
        photograph(build, folder, out, reports)
    for name in sorted(os.listdir(out)):
        size = os.path.getsize(os.path.join(out, name))
        print(f"pictures: {name} {size} bytes")
        if size > MOST_BYTES:
            sys.exit(f"pictures: {name} is larger than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
