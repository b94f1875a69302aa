"""Lifelong learning: tasks one after the other, with a small memory of those before."""
