"""Compiles a .cu of kernels/ against the headers of the environment's PyTorch into PTX. Called by build.mk.

The result is kept beside the environments, under a hash of everything that it is made from, so that other checkouts and
builds from nothing find it.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

FLAGS = ["-std=c++20", "-ptx", "-arch=compute_80", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DUSE_CUDA",
         "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_HALF2_OPERATORS__"]


def key(arguments, place):
    digest = hashlib.sha256()
    version = subprocess.check_output([arguments.nvcc, "--version"])
    shims = sorted(arguments.shims.rglob("*.h"))
    for part in [place.name.encode(), version, " ".join(FLAGS).encode(), arguments.source.read_bytes(),
                 *(shim.read_bytes() for shim in shims)]:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--environment", type=pathlib.Path, required=True)
    parser.add_argument("--shims", type=pathlib.Path, required=True, help="headers that a small toolkit lacks")
    arguments = parser.parse_args()
    place = arguments.environment.resolve()
    kept = place.parent / "kernels" / f"{arguments.source.stem}-{key(arguments, place)}.ptx"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        print(f"pytorch: compiling {arguments.source.name} for {place.name.rsplit('-', 1)[0]}", flush=True)
        include = next(place.glob("lib/python*/site-packages/torch/include"))
        kept.parent.mkdir(exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        command = [arguments.nvcc, *FLAGS, "-isystem", include, "-isystem", include / "torch/csrc/api/include",
                   "-isystem", arguments.shims, "-o", new, arguments.source]
        if subprocess.call(command):
            sys.exit(f"compile_kernels.py: {arguments.source} doesn't compile against the headers of {place.name}; "
                     "they may have changed in this release")
        new.rename(kept)
    shutil.copyfile(kept, arguments.out)


main()
