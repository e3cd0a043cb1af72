"""Simulated provider: a test instrument, and a rehearsal that costs nothing.

One *bounded reasoner* has two front ends. In process it is a model like any other (``SimulatedModel``); over HTTP it
speaks the provider's protocol (``actors.simulator.frontends.http_app``). The reasoner reads nothing but the request
body. This package imports nothing, so that parsing of settings (``actors.simulator.settings``) loads no reasoner.
"""
