#!/bin/sh
# Runs a program on the simulated GPU: `make` fills in the list of switches and installs this beside the simulated
# driver and runtime, which it finds by its own location.
set -u

usage() {
  cat <<'EOF'
usage: run PROGRAM [ARGUMENTS...]

Runs a program that was linked with `nvcc -cudart shared` on a simulated GPU. The kernels are interpreted from the PTX
inside the program (build with -gencode arch=compute_90,code=[sm_90,compute_90]). Existing values of LD_LIBRARY_PATH
and LD_PRELOAD are kept.

A program whose runtime is found by DT_RUNPATH gets the simulated one; DT_RPATH goes before LD_LIBRARY_PATH: link such
a program with -Wl,--enable-new-dtags. A statically linked runtime (nvcc's default) can't be replaced when the program
is run: link with -cudart none and libcudart_static.a of this folder.

Switches, by environment variable [default]:
@SWITCHES@
EOF
}

fail() {
  printf 'run: %s\n' "$1" >&2
  exit "$2"
}

here=$(dirname -- "$(readlink -f -- "$0")")

case "${1-}" in
-h | --help)
  usage
  exit 0
  ;;
'') fail 'no program given; run --help explains' 2 ;;
-*) fail "unknown option $1; options go before the program, and the only one is --help" 2 ;;
esac

program=$(command -v -- "$1") || program=$1
if [ ! -e "$program" ]; then
  fail "$1: no such program" 127
elif [ ! -f "$program" ] || [ ! -x "$program" ]; then
  fail "$1 is not an executable program (chmod +x $1 if it should be)" 126
fi

for library in libcuda.so.1 libcudart.so.13; do
  [ -e "$here/$library" ] || fail "$here/$library is missing; build it with \`make\`" 1
done

# DT_RPATH can't be overruled here, so say what is going to happen. A real driver would be used or none found.
if command -v readelf >/dev/null 2>&1 &&
  readelf -d "$program" 2>/dev/null | grep -q '(RPATH)'; then
  printf 'run: %s has DT_RPATH, which goes before LD_LIBRARY_PATH: it may load another CUDA runtime than the simulated one. Link it with -Wl,--enable-new-dtags.\n' "$1" >&2
fi

# An older driver exports less: a library of its own, where there is one, goes first.
libraries=$here
case "${GPUSIM_DRIVER-}" in
'' | *[!0-9.]* | *.*.*) ;;
*.*)
  older=$here/driver_$((${GPUSIM_DRIVER%%.*} * 1000 + ${GPUSIM_DRIVER#*.} * 10))
  [ -d "$older" ] && libraries=$older:$here
  ;;
esac
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
# In a sanitizer build the sanitizer's runtime; it has to come first, also in a program built without it.
sanitizer='@SANITIZER@'
if [ -n "$sanitizer" ]; then
  LD_PRELOAD=$sanitizer${LD_PRELOAD:+:$LD_PRELOAD}
  export LD_PRELOAD
fi
exec "$@"
