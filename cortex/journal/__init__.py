"""Journal codec, replay, snapshots, dry runs."""
