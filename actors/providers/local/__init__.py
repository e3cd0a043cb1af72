"""Provider of ``--model local``: a small model served by llama.cpp on this machine."""
