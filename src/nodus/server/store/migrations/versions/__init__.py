"""The revisions, in order; append-only."""
