# restic: a repository, two backups, a check of all data, a restore, pruning. Arguments: bucket URL, a file, a work folder.
set -euo pipefail
export RESTIC_REPOSITORY="s3:$1" RESTIC_PASSWORD=secret
rm -rf "$3" && mkdir -p "$3/data" && cp "$2" "$3/data/file" && echo text > "$3/data/small"
restic init -q
restic backup -q "$3/data"
echo more >> "$3/data/small"
restic backup -q "$3/data"
restic check --read-data -q
restic restore -q latest --target "$3/restored"
diff -r "$3/data" "$3/restored/$3/data"
restic forget -q --keep-last 1 --prune
restic check -q
