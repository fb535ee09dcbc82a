#!/usr/bin/env bats
# The page of `offload report --html`, opened in a real headless browser (tests/lib/browser.py): what the browser logs, asks for, draws and cuts
# off, at the widths of a telephone and of a desk, light and dark.
bats_require_minimum_version 1.5.0
load ../lib/e2e

OFFLOAD=$BUILD/offload
REPORTS=$ROOT/tests/data/reports

setup() {
  cd "$BATS_TEST_TMPDIR" || return 1
}

needs_browser() {
  [ -n "$(python3 -c "import sys; sys.path.insert(0, '$ROOT/tests/lib'); import browser; print(browser.find() or '')")" ] ||
    skip "no headless browser is installed here"
}

# page NAME FILE...: makes NAME.html, which must open without a problem at both widths, with so many charts at least.
page() {
  local name=$1
  shift
  "$OFFLOAD" report --html "$name.html" "$@"
  opens --width 390 --width 1280 "$name.html"
}

opens() { python3 "$ROOT/tests/lib/browser.py" "$@" | tee seen; }

# broken SENTENCE SED...: the page of a good report, changed, must be refused with the sentence.
broken() {
  local sentence=$1
  shift
  sed "$@" good.html >bad.html
  run -1 cmp -s good.html bad.html
  run -1 opens --width 390 --width 1280 bad.html
  [[ $output == *"$sentence"* ]] || {
    echo "not said: $sentence"
    echo "$output"
    return 1
  }
}

@test "the page of a run opens without errors or requests, its charts have sizes and no text is cut off, narrow and wide, light and dark" {
  needs_browser
  offloaded --steps 20
  assert_done cpu
  set -o pipefail
  page run report.json
  grep -qE '^# 390 wide: [4-9] charts, 1[0-9] sections, 0 scripts' seen
  grep -qE '^# 1280 wide: [4-9] charts, 1[0-9] sections, 0 scripts' seen
  opens --dark run.html
}

@test "pages of two ranks, of sixteen, of older reports, of ones that moved nothing and of hostile texts open as well" {
  needs_browser
  set -o pipefail
  page ranks "$REPORTS"/rank*.json
  grep -qE '^# 390 wide: [6-9] charts' seen
  for i in $(seq 0 15); do jq ".pid = 1000 + $i" "$REPORTS/rank0.json" >"$i.json"; done
  page many {0..15}.json
  for name in first observed killed hostile; do page "$name" "$REPORTS/$name.json"; done
}

@test "the page is one file: no script, nothing to fetch, and a policy that forbids both" {
  "$OFFLOAD" report --html page.html "$REPORTS"/*.json
  [ "$(grep -c '<svg' page.html)" -gt 5 ]
  run -1 grep -qiE '<(script|link|iframe|object|img|image|use|base|form)[ >]|@import|url\(|javascript:| on[a-z]+=["'\'']' page.html
  grep -qF "content=\"default-src 'none'; style-src 'unsafe-inline'\"" page.html
  # The hostile texts are there, harmless.
  grep -qF '&lt;script&gt;alert(1)&lt;/script&gt;' page.html
  python3 - <<'PY'
from html.parser import HTMLParser
class Page(HTMLParser):
    open_ = []
    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open_.append(tag)
    def handle_startendtag(self, tag, attributes):
        pass
    def handle_endtag(self, tag):
        assert self.open_ and self.open_.pop() == tag, f"</{tag}> closes something else"
    def handle_data(self, data):
        assert self.open_ or not data.strip()
page = Page()
page.feed(open("page.html", encoding="utf-8").read())
page.close()
assert not page.open_, page.open_
PY
}

@test "the browser's look at a page notices one broken on purpose" {
  needs_browser
  "$OFFLOAD" report --html good.html "$REPORTS/one.json"
  set -o pipefail
  opens good.html
  broken 'the browser logs: ' 's|</main>|<script>nothing()</script></main>|'
  sed -i.plain 's|<meta http-equiv[^>]*>||' good.html
  broken 'a script failed' 's|</main>|<script>nothing()</script></main>|'
  broken 'the page writes to the console' 's|</main>|<script>console.log("x")</script></main>|'
  broken 'the page asks for http://127.0.0.1:9/x.png' 's|</main>|<img src="http://127.0.0.1:9/x.png" alt="x"></main>|'
  broken 'a chart is 0 by 0' 's|</style>|svg{display:none!important}</style>|'
  broken 'a chart has nothing drawn in it' 's|<rect[^>]*/>||g; s|<path[^>]*>||g'
  broken 'text of a chart is beyond its picture' 's|<text x="[0-9.]*"|<text x="955"|'
  broken 'labels of a chart cover each other' 's|<text x="[0-9.]*" y="[0-9.]*"|<text x="300" y="40"|'
  broken 'text is cut off' 's|</style>|section{overflow-x:hidden}p{width:2000px;max-width:none}</style>|'
  broken '390 wide: the page is ' 's|</style>|main{min-width:700px}</style>|'
  broken 'the page has no title' 's|<title>[^<]*</title>|<title></title>|'
}

@test "without a browser the look at a page says which to install" {
  OFFLOAD_BROWSER=/nowhere run -3 python3 "$ROOT/tests/lib/browser.py" page.html
  [[ $output == *"apt-get install chromium-headless-shell"* ]]
}
