"""The edge: clocks, files, HTTP, Ray, the command line. Async, thin; decisions are made elsewhere."""
