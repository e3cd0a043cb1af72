"""Built-in programs, by the names used with ``cortex run`` and ``cortex batch``."""

READY = {
    "batch": "cortex.programs.batch:Batch",
    "chatloop": "cortex.programs.chatloop:chatloop",
    "convex": "cortex.programs.convex:Convex",
    "crystal": "cortex.programs.crystal:crystal",
    "embed": "cortex.programs.embed:Embed",
    "hanoi": "cortex.programs.hanoi:Hanoi",
    "notes": "cortex.programs.notes:Notes",
    "ralph": "cortex.programs.ralph:Ralph",
    "recovery": "cortex.programs.recovery:recovery",
    "rlm": "cortex.programs.rlm:rlm",
    "table": "cortex.programs.table:Table",
    "toolloop": "cortex.programs.toolloop:toolloop",
}
"""Name -> ``module:Class``. Names, not imports: a program is loaded when it is run."""
