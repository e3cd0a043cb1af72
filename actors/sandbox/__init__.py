"""Model-written code, run where it has nothing: no files, no network, no environment, no clock.

Three processes, each the guard of the next. The *worker* holds a few children (``pool``), each a Python of its own with
a hard bound of memory, killed when it is silent too long. A *child* (``child``) drives the *interpreter*,
pydantic-monty: a subset of Python in a process of its own, under limits of time, memory and depth, killed after a grace
where these do not bite (one multiplication of huge numbers is one step to them). The child is there for what the code
hands out: a list that names one text a million times is small in there and huge once it is out.

What the code calls outside pauses it, and its answers are handed in. So a piece is deterministic, and is run again from
its first line with the answers there are: a paused interpreter would have to be kept with all that it holds.
"""
