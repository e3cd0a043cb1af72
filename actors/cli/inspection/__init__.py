"""Commands that show jobs: status, show, report, export, diff, replay, top."""
