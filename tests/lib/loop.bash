# Loop file systems: ext4 in files of a temporary directory, for tests of drives. `loop_unmount` belongs into the teardown of
# whoever calls `loop_mount`, since it must happen after failures too.
# shellcheck shell=bash

# loop_why_not: says why no loop file system can be made here (the reason that skips.txt lists); nothing when it can.
loop_why_not() {
  if [ "$(id -u)" -ne 0 ] || ! command -v mkfs.ext4 >/dev/null || ! losetup --find >/dev/null 2>&1; then
    echo "no loop file system may be made here"
  fi
}

# loop_mount NUMBER SIZE: makes and mounts NUMBER ext4 file systems of SIZE ("64M") under $BATS_TEST_TMPDIR/loop; their
# directories are in LOOP_DIRECTORIES. No blocks are reserved for root, so that df tells what a file can have.
loop_mount() {
  local i directory
  LOOP_DIRECTORIES=()
  for ((i = 0; i < $1; i++)); do
    directory=$BATS_TEST_TMPDIR/loop/$i
    mkdir -p "$directory"
    truncate -s "$2" "$directory.image"
    mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=0 "$directory.image" || return 1
    mount -o loop "$directory.image" "$directory" || return 1
    LOOP_DIRECTORIES+=("$directory")
  done
}

# loop_free DIRECTORY: blocks and inodes that are free there.
loop_free() { stat -f -c '%f %d' "$1"; }

# loop_unmount: unmounts all of them (mount -o loop lets go of its device with that) and removes their images.
loop_unmount() {
  local directory status=0
  for directory in "$BATS_TEST_TMPDIR"/loop/*/; do
    if mountpoint -q "$directory"; then
      umount "$directory" 2>/dev/null || umount -l "$directory" || status=1
    fi
  done
  rm -rf "$BATS_TEST_TMPDIR"/loop/*.image
  return "$status"
}
