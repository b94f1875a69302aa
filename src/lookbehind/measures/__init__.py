"""What is measured of a trained network."""
