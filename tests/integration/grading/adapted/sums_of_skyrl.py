"""A dataset made for SkyRL: each row names the environment that scores it."""

train_files = ["rows.parquet"]
