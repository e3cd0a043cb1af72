"""Policies: pure decision functions with small inputs. They import neither cortex nor actors, and know no K, Ray or
model.
"""

__all__: list[str] = []
OF_CORTEX = True
"""Marker of Cortex's own `policies` package. `cortex.package_guard` uses it to detect a foreign package of this
name."""
