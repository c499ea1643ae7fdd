"""Gradient rules, one file per operator family; every module here is loaded by the registry."""
