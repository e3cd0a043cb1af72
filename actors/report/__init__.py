"""The report of a job: what happened in it, for a person who was not there; and the same as a trace of events.

One pass over the journal makes bounded figures of it (``fold``), a second one the stories of the goals that stand out
(``stories``); ``page`` writes both as one HTML page, ``perfetto`` writes every attempt for a trace viewer.
"""
