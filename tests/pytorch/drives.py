"""Loop file systems for a file of cases, in a mount namespace of its process: they are gone with the last process that sees
them, however that ends. To be called at a file's top level, since the directories belong into its cases' `offload`."""
import ctypes
import os
import pathlib
import subprocess

NOT_HERE = "no loop file system may be made here"  # as tests/skips.txt has it
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def own_namespace():
    """Whether this process, and those that it starts, now mount for themselves alone."""
    library = ctypes.CDLL(None, use_errno=True)
    return library.unshare(CLONE_NEWNS) == 0 and library.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0


def mount(number, size):
    """(directories, ""), each with an ext4 of `size` bytes; the same directories in all processes of a harness. Or (directories,
    why there is nothing mounted on them)."""
    folder = pathlib.Path.cwd().parent / "drives"
    directories = [folder / str(i) for i in range(number)]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    if os.getuid() or not own_namespace():
        return directories, NOT_HERE
    for directory in directories:
        image = folder / f"{os.getpid()}.{directory.name}.image"
        with open(image, "wb") as file:
            file.truncate(size)
        try:
            for command in (["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0", image],
                            ["mount", "-n", "-o", "loop", image, directory]):
                subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True)
        except (OSError, subprocess.CalledProcessError):
            return directories, NOT_HERE
        finally:
            image.unlink()  # the loop device holds it
    return directories, ""
