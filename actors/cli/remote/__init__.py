"""Runs on a cluster from another machine: packages, submission, RayJob manifests."""
