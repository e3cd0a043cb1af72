"""What a collector receives of a job: over HTTP and gRPC, whole and in the right shape; never a key, nor what was said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.session import Order, Session
from cortex.programs.batch import Batch
from tests.collector import GrpcCollector, HttpCollector, Received, attributes, well_formed
