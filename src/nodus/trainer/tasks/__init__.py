"""One module per task that a params.json can name, each with a ``run(spec, attempt)``."""
