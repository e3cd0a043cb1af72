"""A working folder of the user's, changed in rounds: what ``ralph`` does on a worker."""

from actors.workspace.tools import folder_closed, folder_opened, folder_round

__all__ = ["folder_closed", "folder_opened", "folder_round"]
