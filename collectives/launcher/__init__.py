"""The launcher `sirtakirun`: starts the ranks of a job, labels their output, ends them together."""
