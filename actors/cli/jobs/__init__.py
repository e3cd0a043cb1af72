"""Jobs as the commands see them: settings, state, configuration, texts."""
