"""Report of a job for a reader who did not watch it, and the same data as a trace of events.

One pass over the journal yields figures of bounded size (``fold``), a second one the details of outstanding goals
(``stories``). ``page`` writes both as one HTML page; ``perfetto`` writes every attempt for a trace viewer.
"""
