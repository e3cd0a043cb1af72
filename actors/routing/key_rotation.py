"""A key that is renewed in its file while a job runs, where the branches cannot read that file, or did so too early.

Whoever makes the calls reads the file first (``actors.providers.credentials.reload``), and then nothing pauses. Here
the driver reads it, for as long as the job waits because its key was refused, and arms all branches anew.
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
    """What a job is opened with now. ``heed`` is told each credential that is read, so that nothing shows it."""

    def __init__(self, terms: JobTerms, arming: ConnectionSpec, heed: Callable[[Credential], None]) -> None:
        self._on_credential = heed
        self.terms = terms
        self.connection = arming

    def read(self) -> bool:
        """Whether a file holds another key than the one in use; then ``terms`` and ``arming`` are those of the new one.
        A file that cannot be read at this moment, since it is being replaced, changes nothing."""
        armings = (self.connection, *self.connection.fallbacks)
        pairs = [self._renewed(*each) for each in zip(self.terms.routes, armings, strict=True)]
        routes, renewed = tuple(route for route, _ in pairs), tuple(arming for _, arming in pairs)
        if routes == self.terms.routes:
            return False
        self.terms = self.terms.with_routes(routes)
        self.connection = msgspec.structs.replace(renewed[0], fallbacks=renewed[1:])
        return True

    def _renewed(self, route: Route, arming: ConnectionSpec) -> tuple[Route, ConnectionSpec]:
        """The same route under the key in its file; one that no file of the user's opens stays as it is."""
        if arming.credential is None or route.credential != arming.credential.fingerprint:
            return route, arming
        credential = arming.credential.renewed()
        if credential is None:
            return route, arming
        self._on_credential(credential)
        name = (route.endpoint, credential.fingerprint, route.model)
        arming = msgspec.structs.replace(
            arming, credential=credential, route_name=route_name(*name), pool_name=pool_of(*name),
            prepared=RequestAuth(),  # that was by the old key
        )  # fmt: skip
        return msgspec.structs.replace(route, credential=credential.fingerprint), arming


def rotation(terms: JobTerms, arming: ConnectionSpec, heed: Callable[[Credential], None]) -> KeyRotation | None:
    """None where no key comes from a file."""
    files = (each.credential.key_file for each in (arming, *arming.fallbacks) if each.credential is not None)
    return KeyRotation(terms, arming, heed) if any(files) else None
