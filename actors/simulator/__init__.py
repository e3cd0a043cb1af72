"""A simulated provider: a test instrument, and a rehearsal that costs nothing.

It has two faces over one *bounded reasoner*. In process it is a model like any other (`SimulatedModel`); over HTTP it
speaks the provider's own protocol (`actors.simulator.frontends.http_app`). The reasoner reads nothing but the request
body. Nothing is imported here: whoever reads what a user said of it (`actors.simulator.settings`) needs no reasoner.
"""
