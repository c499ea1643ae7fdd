"""Seconds and bytes of training steps."""
