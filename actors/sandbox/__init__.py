"""Sandbox for model-written code: no files, no network, no environment variables, no clock.

Three processes, each bounding the next one. The *worker* holds a few children (``child_pool``), each a Python process
with a hard memory limit, killed when it is silent too long. A *child* (``child``) drives the *interpreter*,
pydantic-monty: a subset of Python in a process of its own, under limits of time, memory and depth, killed after a grace
period where these limits do not act (one multiplication of huge numbers is one step). The child exists for the values
that code hands out: a list that names one text a million times is small in the interpreter and huge outside. The size
of a value is counted before anything copies it (``value_size``).

A call to the outside pauses the code, and its answer is handed in. Code is therefore deterministic: a piece is run
again from its first line with the answers so far. A paused interpreter would have to be kept with all of its memory.
"""
