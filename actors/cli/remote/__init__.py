"""Runs on a cluster from elsewhere: packages, submission, RayJob manifests."""
