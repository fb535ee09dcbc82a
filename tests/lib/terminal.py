"""A program in a terminal of 80 by 24 that only we see: what it shows, keys, resizing, and how it leaves the terminal. For tests of `offload top` and
for pictures. Knows the codes that our programs use, and refuses any other, so that none is passed over in silence."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

CODE = re.compile(rb"\x1b(?:\[(\??)([0-9;]*)([A-Za-z]))")


class Screen:
    """Cells of (character, attributes); attributes are a frozenset of SGR numbers."""

    def __init__(self, columns=80, lines=24):
        self.alternate, self.cursor_shown = False, True
        self.ink = frozenset()
        self.rest = b""
        self.scrolled = 0
        self.resize(columns, lines)

    def resize(self, columns, lines):
        self.columns, self.lines = columns, lines
        self.clear()

    def clear(self):
        self.cells = [[(" ", frozenset())] * self.columns for _ in range(self.lines)]
        self.row = self.column = 0

    def put(self, character):
        if self.column == self.columns:
            self.column = 0
            self.down()
        self.cells[self.row][self.column] = (character, self.ink)
        self.column += 1

    def down(self):
        if self.row + 1 < self.lines:
            self.row += 1
        else:
            self.cells = self.cells[1:] + [[(" ", frozenset())] * self.columns]
            self.scrolled += 1

    def code(self, private, numbers, letter):
        if private:
            if (numbers, letter) not in {("1049", "h"), ("1049", "l"), ("25", "h"), ("25", "l")}:
                raise ValueError(f"unknown code ?{numbers}{letter}")
            if numbers == "1049":
                self.alternate = letter == "h"
                self.clear()
            else:
                self.cursor_shown = letter == "h"
        elif letter == "m":
            for number in numbers.split(";"):
                self.ink = self.ink | {int(number)} if number not in ("", "0") else frozenset()
        elif letter == "H" and not numbers:
            self.row = self.column = 0
        elif letter == "K" and not numbers:
            self.cells[self.row][self.column:] = [(" ", frozenset())] * (self.columns - self.column)
        elif letter == "J" and not numbers:
            self.cells[self.row][self.column:] = [(" ", frozenset())] * (self.columns - self.column)
            for row in range(self.row + 1, self.lines):
                self.cells[row] = [(" ", frozenset())] * self.columns
        else:
            raise ValueError(f"unknown code {numbers}{letter}")

    def feed(self, data):
        data, self.rest = self.rest + data, b""
        while data:
            if data[0] == 0x1B:
                match = CODE.match(data)
                if not match:
                    if len(data) > 16:
                        raise ValueError(f"unknown code {data[:16]}")
                    self.rest = data
                    return
                self.code(match[1].decode(), match[2].decode(), match[3].decode())
                data = data[match.end():]
                continue
            size = 1 if data[0] < 0x80 else 2 if data[0] < 0xE0 else 3 if data[0] < 0xF0 else 4
            if len(data) < size:
                self.rest = data
                return
            character, data = data[:size].decode(), data[size:]
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self.down()
            elif character >= " ":
                self.put(character)
            else:
                raise ValueError(f"unknown control character {character!r}")

    def text(self):
        return ["".join(character for character, _ in row).rstrip() for row in self.cells]


class Terminal:
    """A program running in one, for a `with` statement."""

    def __init__(self, command, columns=80, lines=24, **variables):
        self.screen = Screen(columns, lines)
        environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **variables}
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ.update(environment)
            time.sleep(0.05)  # until the size is set
            os.execvpe(command[0], command, environment)
        self.status = None
        self.size(columns, lines)
        self.before = termios.tcgetattr(self.file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        os.close(self.file)

    def size(self, columns, lines):
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(columns, lines)

    def read(self, seconds):
        """Takes in what comes in that time; False when the program has ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self.file], [], [], left)
            if ready:
                try:
                    data = os.read(self.file, 65536)
                except OSError:
                    data = b""
                if not data:
                    return False
                self.screen.feed(data)
        return True

    def until(self, condition, what, seconds=30):
        """Reads until the screen's lines fulfil the condition."""
        end = time.monotonic() + seconds
        while not condition(self.screen.text()):
            alive = self.read(0.05)
            if time.monotonic() > end or not alive and not condition(self.screen.text()):
                raise AssertionError(f"{what}: not seen in {seconds} s; the screen:\n" + "\n".join(self.screen.text()))

    def keys(self, text):
        os.write(self.file, text.encode())

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=10):
        """The wait status once it has ended; what it wrote at its end is taken in."""
        end = time.monotonic() + seconds
        while self.status is None:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
            elif time.monotonic() > end:
                raise AssertionError(f"the program hasn't ended in {seconds} s")
        self.read(0.05)
        return self.status

    def restored(self):
        """Whether the terminal is as it was: the shell's screen, a cursor, lines and echo."""
        return not self.screen.alternate and self.screen.cursor_shown and termios.tcgetattr(self.file) == self.before
