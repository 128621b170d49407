"""From a config to a plan: settings, automatic choices, advice, measurements, and the limits of this machine."""
