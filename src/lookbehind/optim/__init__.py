"""Sharpness-aware optimizers from small parts: ascent x descent x interpolation x passes x base optimizer."""
