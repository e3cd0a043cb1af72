"""Journal: encoding of turns and of K, replay, snapshots in pieces, dry run of a changed program."""
