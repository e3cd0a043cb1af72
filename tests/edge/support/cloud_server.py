"""Cloud providers of the model, played by a scripted local server, and made-up credentials for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.providers.credentials.credential import CloudPlatform, Credential
from tests.edge.support.scripted_http_server import Answer, Asked, Script, Scripted, http, scripted
from tests.support.patience import PATIENCE_S

REGION = "eu-west-1"
PROJECT = "a-project"
KEYS = ("AKIAMADEUPACCESSKEY1", "made/up/secret+access/key/of/aws/0123456", "made-up-session-token-of-aws")
BEARER = "made-up-bearer-token-of-bedrock-0123456789"
FOUNDRY_KEY = "made-up-key-of-foundry-0123456789"
TOKEN = "ya29.made-up-token-of-google-0123456789"


def bedrock(url: str = "", **more: Any) -> Credential:
    """Return keys of AWS, or the credential given in their place."""
    access, secret, session = KEYS
    signing: dict[str, Any] = {"identity": access, "secrets": (("secret_key", secret), ("session_token", session))}
    if more.get("api_key"):
        signing = {}
    return Credential(base_url=url, platform=CloudPlatform(name="bedrock", region=REGION, **signing), **more)


def vertex(url: str = "") -> Credential:
    """Return a credential without keys: Google's credentials are looked up at the branch."""
    return Credential(
        base_url=f"{url}/v1" if url else "", platform=CloudPlatform(name="vertex", region=REGION, project=PROJECT)
    )


def foundry(url: str = "", **more: Any) -> Credential:
    """Return a key of Foundry."""
    platform = CloudPlatform(name="foundry", resource="" if url else "a-resource")
    return Credential(
        base_url=f"{url}/anthropic" if url else "", platform=platform, **({"api_key": FOUNDRY_KEY} | more)
    )


def service_account(folder: Path, url: str) -> Path:
    """Write a credentials file of Google whose tokens come from this server; return its path."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "service-account.json"
    file.write_text(
        json.dumps(
            {
                "type": "service_account", "project_id": PROJECT, "private_key_id": "1", "private_key": pem.decode(),
                "client_email": f"somebody@{PROJECT}.iam.gserviceaccount.com", "client_id": "1",
                "token_uri": f"{url}/token",
            }
        )
    )  # fmt: skip
    return file


def gives_token(asked: Asked) -> Answer | None:
    """Return the answer of Google's token server; None for another request."""
    if asked.target != "/token":
        return None
    return http({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})


def framed(events: Sequence[dict[str, Any]], error: tuple[str, str] | None = None) -> bytes:
    """Return events in AWS's frames (application/vnd.amazon.eventstream); ``error``: type and text of an exception at
    the end.
    """
    import base64

    parts = [
        _frame(
            {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"},
            json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}).encode(),
        )
        for event in events
    ]
    if error is not None:
        headers = {":exception-type": error[0], ":content-type": "application/json", ":message-type": "exception"}
        parts.append(_frame(headers, json.dumps({"message": error[1]}).encode()))
    return b"".join(parts)


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Return one frame: lengths, their checksum, headers, payload, checksum of all (AWS's format, of Smithy)."""
    from binascii import crc32

    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
        for name, value in headers.items()
    )
    prelude = (12 + len(head) + len(payload) + 4).to_bytes(4, "big") + len(head).to_bytes(4, "big")
    whole = prelude + crc32(prelude).to_bytes(4, "big") + head + payload
    return whole + crc32(whole).to_bytes(4, "big")


@contextlib.contextmanager
def served(script: Script, **place: Any) -> Iterator[Scripted]:
    """Run the scripted server in a separate thread, for commands with their own event loop."""
    loop = asyncio.new_event_loop()
    started: queue.SimpleQueue[tuple[Scripted, asyncio.Event]] = queue.SimpleQueue()

    async def serve() -> None:
        over = asyncio.Event()
        async with scripted(script, **place) as server:
            started.put((server, over))
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    server, over = started.get(timeout=PATIENCE_S)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)
        loop.close()
