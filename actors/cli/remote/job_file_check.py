"""Check of a job file by the code of ``cortex batch -f`` and ``cortex run -f``, without starting a job."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from actors.cli.jobs.settings import model_spec_of, named_folder, notify_of
from actors.cli.options.errors import print_error
from actors.cli.options.job_file import SOURCES, JobFile
from actors.cli.options.options import Options, blame, of_file
from actors.cli.options.registry import parser_of
from actors.cli.run.start import batch_order, checked, rows_source, run_order
from actors.common.errors import CommandError
from actors.jobs.sink_selection import refuse_form
from actors.jobs.spec import JobSpec
from actors.programs import loader
from actors.providers.registry import stand_in_keys
from actors.routing.model_spec import spread
from actors.routing.routes import ModelSpec, destination

_SOME_KEY = "the-cluster-has-it"
"""Placeholder key: routes and prices do not depend on the key."""
_ELSEWHERE = ("state", "cluster")
"""Options that describe this machine and not the cluster that the job goes to."""


def refuse_as_begun(found: JobFile, command: str) -> None:
    """Raise the errors that ``batch`` or ``run`` would raise for this file, in the same words.

    Checks that need the cluster are left out: files and programs missing on this machine, and credentials of a cloud.
    Raises ``CommandError``, or any other error that the command raises before it begins.
    """
    options, own = of_file(found, parser_of(command))
    options = msgspec.structs.replace(options, **{name: getattr(Options(), name) for name in _ELSEWHERE})
    try:
        notify_of(options)
        _refuse_order(command, options, own)
    except CommandError as error:
        raise CommandError(str(error) + blame(str(error), options.origins), error.code) from None


def _refuse_order(command: str, options: Options, own: dict[str, Any]) -> None:
    folder = named_folder(Options())  # not created: only its name is used
    refuse_form(own.get("output") or "")
    if command == "run":
        if _is_here(own["program"]):
            given = list(own.get("inputs") or ())
            _, order = run_order(
                own["program"], given, own.get("output") or "", list(own.get("param") or ()), options, folder
            )  # fmt: skip
            _refuse_routes(order)
        return
    _, order = batch_order(own["input"], own.get("output") or "", options, folder)
    if "://" not in order.input and Path(order.input).is_file():
        with contextlib.closing(rows_source(folder, order)) as source:
            checked(order, options, source)
    else:
        order.model_spec = model_spec_of(options, options.model)
    _refuse_routes(order)


def _is_here(where: str) -> bool:
    """Return True if the program can be loaded on this machine; its code or imports may exist in the image only."""
    if loader.is_ready(where) or (":" not in where and not where.endswith(SOURCES)):
        return True
    file = where.partition("@")[0].partition(":")[0]
    if file.endswith(SOURCES) and not Path(file).is_file():
        return False  # reported with the list of files
    if file.endswith(".toml"):
        return True
    return _is_imported(lambda: loader.find(where) if ":" in where else loader.programs_in(file))


def _is_imported(look: Any) -> bool:
    try:
        look()
    except loader.NoSuchProgram as error:
        if "cannot be imported" not in str(error):
            raise CommandError(str(error)) from None
        print_error(f"{error} on this machine: the cluster checks it again")
        return False
    return True


def _refuse_routes(order: JobSpec) -> None:
    """Raise ``SetupError`` for a model without a price under a cap, a transport that the model lacks, or invalid
    fallbacks."""
    spec = _without_key_files(spread(order.model_spec))
    named = (spec, *spec.further, *spec.roles.values())
    elsewhere = any(each.row.place or each.row.on_this_machine for each in named)  # only the cluster knows the account
    if spec.model and not elsewhere:
        destination(spec, order.limits, stand_in_keys(_SOME_KEY)).close()


def _without_key_files(spec: ModelSpec) -> ModelSpec:
    """Return the spec without key files, which are on the head node."""
    spec = spec.with_further(tuple(map(_without_key_files, spec.further)))
    return msgspec.structs.replace(
        spec, api_key_file="",
        roles={role: _without_key_files(each) for role, each in spec.roles.items()},
    )  # fmt: skip
