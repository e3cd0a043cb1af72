"""The provider's API, as ``actors.model`` speaks it: credential, roads, errors, headers, streams."""
