#!/usr/bin/env bats
# The loop file systems that tests of drives stand on (lib/loop.bash).
load ../lib/loop

teardown() { loop_unmount; }

@test "loop file systems are mounted, tell of each block taken, and leave no mount and no device" {
  reason=$(loop_why_not)
  [ -z "$reason" ] || skip "$reason"
  loop_mount 2 16M
  [ "${#LOOP_DIRECTORIES[@]}" -eq 2 ]
  for directory in "${LOOP_DIRECTORIES[@]}"; do
    [ "$(stat -f -c %T "$directory")" = ext2/ext3 ]
    before=$(loop_free "$directory")
    fallocate -l 1MiB "$directory/file"
    [ "$(loop_free "$directory")" != "$before" ]
    rm "$directory/file"
    [ "$(loop_free "$directory")" = "$before" ]
  done
  loop_unmount
  [ "$(grep -c "$BATS_TEST_TMPDIR" /proc/mounts)" = 0 ]
  [ -z "$(losetup --list --noheadings --output BACK-FILE | grep "$BATS_TEST_TMPDIR" || true)" ]
}
