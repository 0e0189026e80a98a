"""TrainingJobs on the server: parameters, compilation, models, the attempt's service, summaries."""
