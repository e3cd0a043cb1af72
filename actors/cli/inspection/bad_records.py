"""``results --bad``: the list of a job's unreadable records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from actors.cli.jobs.job_state import standing_of
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.cli.run.sinks import check_output
from actors.common.errors import CommandError
from actors.files.bad_records import SUFFIX, read_list
from actors.files.errors import SinkClosed, SinkFailed
from actors.files.sinks.jsonl_sink import FileSink
from actors.history.catalog import forgotten, last_terms
from actors.jobs.bad_record_list import place_of_list
from actors.jobs.sink_selection import is_table
from actors.jobs.summary import unreadable_text
from actors.journal.journal import StateFolder

LINES_AT_ONCE: Final = 1_000


def write_list(folder: StateFolder, job: str, output: str, options: Options) -> int:
    """Write the list of a job's bad records to standard output or a file. Return the exit code."""
    standing = standing_of(folder, job)
    terms = None if forgotten(folder, job) else last_terms(folder, job)
    places = terms.places if terms is not None else {}
    path = place_of_list(folder, job, places, places.get("output", ""))
    lines: Iterator[bytes] = iter(())
    if not path.is_file():
        path = folder.beside(job, SUFFIX)  # its copy
    if path.is_file():
        lines = read_list(path)
    elif unreadable_text(standing.facts):
        raise CommandError(f"the list is gone: repeat the command that began job {job}, which writes the list anew")
    if output != "-" and (is_table(output) or Path(output).resolve() == path):
        raise CommandError(f"-o {output}: the list is JSON Lines: name another file, which ends in .jsonl")
    sink, count = FileSink(output, overwrite=options.overwrite), 0
    check_output(sink, output, options.overwrite)
    try:
        sink.open(0, 0, False)
        while some := list(islice(lines, LINES_AT_ONCE)):
            sink.write(some)
            count += len(some)
        sink.flush()
    except SinkClosed:
        return COMPLETE
    except SinkFailed as error:
        raise CommandError(str(error), FAILED) from None
    finally:
        sink.close()
    print_error(f"{count:,} unreadable record{'s' * (count != 1)} of {job}")
    return COMPLETE
