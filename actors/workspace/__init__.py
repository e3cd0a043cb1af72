"""Working folder of the user, changed in rounds: the tools of ``ralph`` on a worker."""

from actors.workspace.tools import folder_closed, folder_opened, folder_round

__all__ = ["folder_closed", "folder_opened", "folder_round"]
