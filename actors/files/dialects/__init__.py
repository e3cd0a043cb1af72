"""Encoding and dialect of an input file: given by the user, or detected before anything is paid."""
