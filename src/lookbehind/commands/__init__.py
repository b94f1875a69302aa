"""The commands of the command line, a file each; made from the dataclasses that the Python API takes."""
