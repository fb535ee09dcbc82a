#!/bin/sh
# Installs what a build needs and is missing: system packages (apt.txt) and, where there is no CUDA toolkit, its
# compiler (pip.txt) into build/toolkit. Called by `make deps`, tests/run and integration/demo; works without make.
# One line and nothing else when all is there.
#
#   CUDA_HOME     the toolkit to look for first; default: /usr/local/cuda
#   DEPS_TIMEOUT  seconds that one download may take; default: 900
#   OS_RELEASE    file that names the distribution; default: /etc/os-release
set -eu
cd -- "$(dirname -- "$0")/.."
TIMEOUT=${DEPS_TIMEOUT:-900}
OS_RELEASE=${OS_RELEASE:-/etc/os-release}
PATH=$PATH:/usr/sbin:/sbin # the PATH of a Debian user has neither, where setcap and mkfs are
export PATH
TOOLKIT=build/toolkit
LOG=build/deps.log

fail() {
  printf 'deps: %s\n' "$@" >&2
  exit 1
}

case $TIMEOUT in
'' | *[!0-9]* | 0) fail "DEPS_TIMEOUT=$TIMEOUT is not a number of seconds; use for example DEPS_TIMEOUT=900" ;;
esac

# Runs a command into the log; on failure shows the end of it.
logged() {
  status=0
  timeout "$TIMEOUT" "$@" >>"$LOG" 2>&1 </dev/null || status=$?
  [ "$status" -ne 0 ] || return 0
  tail -n 5 "$LOG" >&2
  [ "$status" -ne 124 ] || printf 'deps: no end after %s s; DEPS_TIMEOUT allows more\n' "$TIMEOUT" >&2
  return "$status"
}

# ---- system packages ----

present() {
  case $1 in
  command) command -v "$2" >/dev/null 2>&1 ;;
  header) printf '#include <%s>\n' "$2" | gcc -E -x c - >/dev/null 2>&1 ;;
  # gcc prints the name alone when it finds no such file.
  library) [ "$(gcc -print-file-name="$2" 2>/dev/null || echo "$2")" != "$2" ] ;;
  shared) { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | grep -q "^[[:space:]]*$2 " ;;
  python) python3 -c 'import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))' "$2" 2>/dev/null ;;
  *) fail "deps/apt.txt: unknown probe '$1'; command, header, library, shared and python are known" ;;
  esac
}

# The distribution's name, "debian".
distribution() {
  sed -n 's/^ID=["'\'']\{0,1\}\([a-z0-9._-]*\).*/\1/p' "$OS_RELEASE" 2>/dev/null || true
}

missing_packages() {
  here=$(distribution)
  while read -r package probe argument only; do
    case $package in '' | '#'*) continue ;; esac
    [ -z "$only" ] || [ "$only" = "$here" ] || continue
    present "$probe" "$argument" || printf '%s ' "$package"
  done <deps/apt.txt
}

install_packages() {
  command -v apt-get >/dev/null 2>&1 ||
    fail "missing: $*" "there is no apt-get here; install these (or what they are called here) and run this again"
  if [ "$(id -u)" -eq 0 ]; then
    as_root=
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root=sudo
  else
    fail "missing: $*" "installing needs root: run \`apt-get install $*\` as root, then this again"
  fi
  echo "deps: installing $*"
  # The lists may be absent or old; a failing update alone is no reason to stop.
  # shellcheck disable=SC2086  # as_root is one word or none
  logged $as_root apt-get update || true
  # shellcheck disable=SC2086
  logged $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
    fail "installing failed: $*" "the whole output is in $LOG; without a network, install them by other means and run this again"
}

# ---- the CUDA toolkit ----

toolkit_present() {
  for home in "${CUDA_HOME-/usr/local/cuda}" "$TOOLKIT/cuda"; do
    [ -z "$home" ] || [ ! -x "$home/bin/nvcc" ] || return 0
  done
  return 1
}

# The packages bring one tree without what nvcc's linker expects: lib64 and the unversioned name.
assemble_toolkit() {
  home=$1/nvidia/cu13
  [ -x "$home/bin/nvcc" ] && [ -e "$home/lib/libcudart.so.13" ] && [ -e "$home/include/cuda.h" ] || return 1
  [ -e "$home/lib64" ] || ln -s lib "$home/lib64"
  ln -sf libcudart.so.13 "$home/lib/libcudart.so"
  ln -s packages/nvidia/cu13 "$TOOLKIT.new/cuda"
}

fetch_toolkit() {
  echo "deps: no CUDA toolkit${CUDA_HOME:+ in $CUDA_HOME}; fetching the CUDA 13.0 compiler into $TOOLKIT (about 110 MB)"
  rm -rf "$TOOLKIT.new"
  mkdir -p "$TOOLKIT.new"
  logged python3 -m pip install --disable-pip-version-check --no-input --no-deps --only-binary :all: \
    --timeout 60 --retries 3 --target "$TOOLKIT.new/packages" -r deps/pip.txt || {
    rm -rf "$TOOLKIT.new"
    fail "fetching the CUDA compiler failed; the whole output is in $LOG" \
      "run this again, or install a CUDA 13.0 toolkit and name it with CUDA_HOME=/path/to/cuda"
  }
  assemble_toolkit "$TOOLKIT.new/packages" ||
    fail "the fetched packages lack nvcc, cuda.h or libcudart.so.13 where deps/install.sh expects them (nvidia/cu13)" \
      "look at $TOOLKIT.new/packages, or install a CUDA 13.0 toolkit and name it with CUDA_HOME=/path/to/cuda"
  # Renamed at the end: an interrupted fetch must not look like a toolkit.
  rm -rf "$TOOLKIT"
  mv "$TOOLKIT.new" "$TOOLKIT"
}

mkdir -p build
: >"$LOG"
did=
packages=$(missing_packages)
if [ -n "$packages" ]; then
  # shellcheck disable=SC2086  # a list of packages
  install_packages $packages
  packages=$(missing_packages)
  [ -z "$packages" ] || fail "still missing after installing: $packages" "the whole output is in $LOG"
  did=1
fi
if ! toolkit_present; then
  fetch_toolkit
  did=1
fi
if [ -n "$did" ]; then
  echo 'deps: installed what was missing'
else
  echo 'deps: nothing is missing'
fi
