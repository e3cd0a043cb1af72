"""Where metrics of a run can be read, if anybody asked for that; nothing is imported for who did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.ports.runtime import Runtime

if TYPE_CHECKING:
    from actors.observability.metrics.scrape_server import ScrapeServer


class MetricsEndpoint:
    """As long as its block lasts. ``said``: HOST:PORT; empty: as the standard variables say, mostly nowhere."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.address = ""
        self.where = ""
        """Its address, once it is open."""
        self._environ = environ
        self._scraped: ScrapeServer | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody may read."""
        return self._scraped is not None

    async def __aenter__(self) -> MetricsEndpoint:
        """Raises ``ListenError``."""
        text = self.address or _standard(self._environ)
        if text:
            from actors.observability.base.settings import TelemetrySettings
            from actors.observability.metrics.scrape_server import ScrapeServer

            settings = TelemetrySettings.from_environ(self._environ)
            scraped = ScrapeServer(text, {**dict(settings.resource), "service.name": settings.service})
            self.where = await scraped.open()
            self._scraped = scraped
        return self

    async def __aexit__(self, *_: object) -> None:
        scraped, self._scraped = self._scraped, None
        if scraped is not None:
            await scraped.close()

    def serve(self, runtime: Runtime, job: str) -> None:
        """The job runs there."""
        if self._scraped is not None:
            from actors.observability.metrics.scrape_server import asking

            self._scraped.serve(asking(runtime, job))


def _standard(environ: Mapping[str, str]) -> str:
    """``OTEL_METRICS_EXPORTER=prometheus``, with the standard's own host and port."""
    if "prometheus" not in environ.get("OTEL_METRICS_EXPORTER", "").lower().split(","):
        return ""
    host = environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
    return f"{host}:{environ.get('OTEL_EXPORTER_PROMETHEUS_PORT') or 9464}"
