#!/usr/bin/env python3
"""Opens a page in a real headless browser: `browser.py [--width N]... [--dark] [--screenshot FILE] PAGE`. Problems go to stdout, exit status 1: what the
browser logs, whatever it asks for beyond the page, charts without a size, text that is cut off or covered. Exit status 3: there is no browser.

The browser is spoken to over two pipes in its DevTools protocol: messages are JSON, ended by a zero byte."""
import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60

# What is wrong with the layout, as sentences. Text that is cut off: an element wider than its clipping ancestor that doesn't scroll, text of a chart beyond
# its picture, labels on each other, or the page wider than the window.
LAYOUT = r"""
(() => {
  const problems = [], wide = document.documentElement.clientWidth;
  const name = e => '<' + e.tagName.toLowerCase() + (e.className && e.className.baseVal === undefined ? '.' + e.className : '') + '> "' +
    (e.textContent || '').trim().slice(0, 30) + '"';
  if (document.documentElement.scrollWidth > wide)
    problems.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${wide}`);
  if (!document.title) problems.push('the page has no title');
  if (!document.documentElement.lang) problems.push('the page has no language');
  const charts = [...document.querySelectorAll('svg')];
  for (const svg of charts) {
    const box = svg.getBoundingClientRect();
    if (!(box.width > 50 && box.height > 20)) problems.push(`a chart is ${box.width} by ${box.height}`);
    if (svg.getAttribute('role') !== 'img' || !svg.querySelector('title')) problems.push('a chart has no name for those who hear it');
    if (!svg.querySelector('rect, path')) problems.push('a chart has nothing drawn in it');
    const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
    for (const [t, b] of texts) {
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
        problems.push(`text of a chart is beyond its picture: ${name(t)}`);
      for (const [u, c] of texts)
        if (t !== u && b.left < c.right - 1 && c.left < b.right - 1 && b.top < c.bottom - 2 && c.top < b.bottom - 2)
          problems.push(`labels of a chart cover each other: ${name(t)} and ${name(u)}`);
    }
    for (const r of svg.querySelectorAll('rect')) {
      const b = r.getBoundingClientRect();
      if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
        problems.push('a bar is beyond its picture');
    }
  }
  const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
  for (const e of document.body.querySelectorAll('h1, h2, p, li, th, td, dt, dd, figcaption, summary')) {
    const b = e.getBoundingClientRect();
    if (!b.width || !(e.textContent || '').trim()) continue;
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && !scrolls(e)) problems.push(`text is wider than its place: ${name(e)}`);
    let outer = e.parentElement;
    while (outer && !scrolls(outer)) {
      const o = outer.getBoundingClientRect();
      if (getComputedStyle(outer).overflowX === 'hidden' && (b.right > o.right + 1 || b.left < o.left - 1)) problems.push(`text is cut off: ${name(e)}`);
      outer = outer.parentElement;
    }
    if (!outer && (b.right > wide + 1 || b.left < -1)) problems.push(`text is beyond the window: ${name(e)}`);
  }
  return JSON.stringify({problems: [...new Set(problems)], charts: charts.length, sections: document.querySelectorAll('section').length,
    high: document.documentElement.scrollHeight, scripts: document.scripts.length});
})()
"""


def find():
    """The browser's program, or None. OFFLOAD_BROWSER names another."""
    named = os.environ.get("OFFLOAD_BROWSER")
    return next((path for path in map(shutil.which, [named] if named else NAMES) if path), None)


class Browser:
    """One browser with one page, for a `with` statement."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(prefix="browser.")
        down, self.to = os.pipe()
        self.from_, up = os.pipe()

        def pipes():
            # Both may be 3 or 4 already: put them out of the way first.
            a, b = os.dup2(down, 20), os.dup2(up, 21)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars", "--disable-extensions", "--no-first-run",
             "--force-color-profile=srgb", "--font-render-hinting=none", f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self.number, self.rest, self.events = 0, b"", []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    session = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.from_)
        try:
            self.folder.cleanup()
        except OSError:
            pass  # its helpers may still be writing there

    def message(self, deadline):
        """The next message, or None at the deadline."""
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return None
            got = os.read(self.from_, 1 << 20)
            if not got:
                raise RuntimeError(f"the browser ended with {self.process.wait()}")
            self.rest += got
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while (message := self.message(deadline)) is not None:
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)
        raise RuntimeError(f"{method}: no answer in {TIMEOUT_S} s")

    def await_event(self, name):
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event.get("method") == name for event in self.events):
            message = self.message(deadline)
            if message is None:
                raise RuntimeError(f"no {name} in {TIMEOUT_S} s")
            self.events.append(message)

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "a script failed"))
        return result["result"].get("value")

    def open(self, path, width, height=900, dark=False):
        """Loads the page; sentences of what it logged and asked for."""
        url = "file://" + os.path.abspath(path)
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        self.await_event("Page.loadEventFired")
        # What the page starts when it is loaded has until now to be asked for.
        self.evaluate("new Promise(done => setTimeout(done, 0))")
        problems = []
        for event in self.events:
            name, of = event.get("method"), event.get("params", {})
            if name == "Log.entryAdded":
                problems.append(f"the browser logs: {of['entry']['text']}")
            elif name == "Runtime.exceptionThrown":
                problems.append(f"a script failed: {of['exceptionDetails'].get('text')}")
            elif name == "Runtime.consoleAPICalled":
                problems.append(f"the page writes to the console: {[a.get('value') for a in of['args']]}")
            elif name == "Page.javascriptDialogOpening":
                problems.append("the page opens a dialog")
            elif name == "Network.requestWillBeSent" and of["request"]["url"] != url:
                problems.append(f"the page asks for {of['request']['url'][:80]}")
        return problems

    def layout(self):
        return json.loads(self.evaluate(LAYOUT))

    def screenshot(self, path, width, height):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--screenshot")
    parser.add_argument("page")
    asked = parser.parse_args()
    program = find()
    if not program:
        print("no browser is installed: apt-get install chromium-headless-shell (Debian), or name one with OFFLOAD_BROWSER")
        return 3
    bad = False
    with Browser(program) as browser:
        for width in asked.width or [1280]:
            problems = browser.open(asked.page, width, dark=asked.dark)
            seen = browser.layout()
            for problem in problems + seen["problems"]:
                bad = True
                print(f"{width} wide: {problem}")
            print(f"# {width} wide: {seen['charts']} charts, {seen['sections']} sections, {seen['scripts']} scripts, {seen['high']} high")
            if asked.screenshot:
                browser.screenshot(asked.screenshot, width, seen["high"])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
