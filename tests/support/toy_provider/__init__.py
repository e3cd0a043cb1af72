"""Complete made-up provider: one package and one row. Wire form, header syntax and errors differ from all real
providers.
"""
