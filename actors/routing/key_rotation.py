"""Rotation of keys by the driver: a key is renewed in its file while a job runs.

Clients at the branches read the file first (``actors.providers.credentials.reload``), and then nothing pauses. Where
they cannot, or did so too early, the driver reads it for as long as the job waits because its key was refused, and
sends new connection specifications to all branches.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from actors.providers.credentials.credential import Credential, RequestAuth
from actors.providers.pools import pool_of
from actors.routing.model_factory import ConnectionSpec
from cortex.values.limits import JobTerms, Route
from policies.failures.route_choice import route_name


class KeyRotation:
    """Present terms and connection of a job. ``on_credential`` is called with each credential that is read, so that
    nothing shows it."""

    def __init__(
        self, terms: JobTerms, connection: ConnectionSpec, on_credential: Callable[[Credential], None]
    ) -> None:
        self._on_credential = on_credential
        self.terms = terms
        self.connection = connection

    def read(self) -> bool:
        """Read the files; return True if one holds another key than the one in use, with ``terms`` and ``connection``
        changed to it. A file that cannot be read at this moment, since it is being replaced, changes nothing."""
        connections = (self.connection, *self.connection.fallbacks)
        pairs = [self._renewed(*each) for each in zip(self.terms.routes, connections, strict=True)]
        routes, renewed = tuple(route for route, _ in pairs), tuple(connection for _, connection in pairs)
        if routes == self.terms.routes:
            return False
        self.terms = self.terms.with_routes(routes)
        self.connection = msgspec.structs.replace(renewed[0], fallbacks=renewed[1:])
        return True

    def _renewed(self, route: Route, connection: ConnectionSpec) -> tuple[Route, ConnectionSpec]:
        """Return route and connection under the key in its file, unchanged where the key comes from no file."""
        if connection.credential is None or route.credential != connection.credential.fingerprint:
            return route, connection
        credential = connection.credential.renewed()
        if credential is None:
            return route, connection
        self._on_credential(credential)
        name = (route.endpoint, credential.fingerprint, route.model)
        connection = msgspec.structs.replace(
            connection, credential=credential, route_name=route_name(*name), pool_name=pool_of(*name),
            prepared=RequestAuth(),  # the prepared requests hold the old key
        )  # fmt: skip
        return msgspec.structs.replace(route, credential=credential.fingerprint), connection


def rotation(
    terms: JobTerms, connection: ConnectionSpec, on_credential: Callable[[Credential], None]
) -> KeyRotation | None:
    """Return the rotation of a job's keys; None where no key comes from a file."""
    files = (each.credential.key_file for each in (connection, *connection.fallbacks) if each.credential is not None)
    return KeyRotation(terms, connection, on_credential) if any(files) else None
