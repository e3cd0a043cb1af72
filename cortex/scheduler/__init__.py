"""Scheduler's state machine: claims, leases, pools, health, restarts, autoscaling."""
