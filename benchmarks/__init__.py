"""Measurements on public instances; see the modules. Not part of the installed package."""
