"""Prometheus endpoint of a run, opened on request. The server's modules are imported only if the endpoint is
requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from actors.ports.runtime import Runtime

if TYPE_CHECKING:
    from actors.observability.metrics.scrape_server import ScrapeServer


class MetricsEndpoint:
    """Context manager of the scrape server. ``address``: HOST:PORT; empty: as the standard variables say, by default
    none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.address = ""
        self.where = ""
        """URL of the metrics page, once the server listens."""
        self._environ = environ
        self._scraped: ScrapeServer | None = None

    @property
    def is_open(self) -> bool:
        """Whether the server listens."""
        return self._scraped is not None

    async def __aenter__(self) -> MetricsEndpoint:
        """Start the server, if an address is configured. Raises ``ListenError``."""
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
        """Serve the metrics of this job, which runs on ``runtime``."""
        if self._scraped is not None:
            from actors.observability.metrics.scrape_server import asking

            self._scraped.serve(asking(runtime, job))


def _standard(environ: Mapping[str, str]) -> str:
    """Return the address in the standard variables: ``OTEL_METRICS_EXPORTER=prometheus``, by default localhost:9464;
    else empty."""
    if "prometheus" not in environ.get("OTEL_METRICS_EXPORTER", "").lower().split(","):
        return ""
    host = environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
    return f"{host}:{environ.get('OTEL_EXPORTER_PROMETHEUS_PORT') or 9464}"
