"""Entry point of `sirtakirun` and `python -m sirtaki.launcher`."""
