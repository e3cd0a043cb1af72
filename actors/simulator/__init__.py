"""A simulated provider: a test instrument, and a rehearsal that costs nothing.

It has two faces over one *bounded reasoner*. In process it is a model like any other (`SimulatedModel`); over HTTP it
speaks the provider's own protocol (`actors.simulator.http_face`, imported apart so that the first face needs no HTTP
library). The reasoner reads nothing but the request body.
"""

from actors.simulator.inprocess import SimulatedModel
from actors.simulator.settings import SettingsError, SimulatorSettings, settings_from

__all__ = ["SettingsError", "SimulatedModel", "SimulatorSettings", "settings_from"]
