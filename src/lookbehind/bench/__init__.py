"""How fast it is, as ratios of things measured in turn in one run: ``lookbehind bench``."""
