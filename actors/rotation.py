"""A key that is renewed in its file while a job runs: read again when the provider refuses the one in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from actors.armoury import Arming
from actors.provider.credential import Credential, CredentialError, key_file, key_in
from cortex.limits import Route, Terms
from policies.route import pool_name, route_name


class Rotation:
    """What a job is opened with now. ``heed`` is told each credential that is read, so that nothing shows it."""

    def __init__(self, path: str, terms: Terms, arming: Arming, heed: Callable[[Credential], None]) -> None:
        self._path = path
        self._heed = heed
        self.terms = terms
        self.arming = arming

    def read(self) -> bool:
        """Whether the file holds another key than the one in use; then ``terms`` and ``arming`` are those of the new
        one. A file that cannot be read at this moment, since it is being replaced, changes nothing."""
        try:
            key = key_in(self._path)
        except CredentialError:
            return False
        armings = (self.arming, *self.arming.fallbacks)
        pairs = [self._renewed(*each, key) for each in zip(self.terms.routes, armings, strict=True)]
        routes, renewed = tuple(route for route, _ in pairs), tuple(arming for _, arming in pairs)
        if routes == self.terms.routes:
            return False
        self.terms = self.terms.with_routes(routes)
        self.arming = msgspec.structs.replace(renewed[0], fallbacks=renewed[1:])
        return True

    def _renewed(self, route: Route, arming: Arming, key: str) -> tuple[Route, Arming]:
        """The same route under this key; one that no key of the user's opens stays as it is."""
        if arming.credential is None or route.credential != arming.credential.fingerprint:
            return route, arming
        credential = msgspec.structs.replace(arming.credential, api_key=key)
        self._heed(credential)
        name = (route.endpoint, credential.fingerprint, route.model)
        arming = msgspec.structs.replace(
            arming, credential=credential, route_name=route_name(*name), pool_name=pool_name(*name)
        )
        return msgspec.structs.replace(route, credential=credential.fingerprint), arming


def rotation(
    environ: Mapping[str, str], terms: Terms, arming: Arming, heed: Callable[[Credential], None]
) -> Rotation | None:
    """None where the key does not come from a file."""
    path = key_file(environ)
    return Rotation(path, terms, arming, heed) if path else None
