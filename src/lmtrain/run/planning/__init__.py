"""From a config to a plan: settings, automatic choices, advice, calibration, and the limits of this machine."""
