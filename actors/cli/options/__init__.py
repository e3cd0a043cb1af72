"""Options of the command line: declaration, parsing, job files, keys, errors."""
