"""The program that runs inside a training Job.

It reads ``params.json``, fetches its tasks and submits its completions over the attempt's unix socket, trains with TRL
and PEFT on transformers' Trainer, keeps resumable checkpoints under the state directory and writes its results under
the output directory. It has no network, no credentials and no answers, and never imports the server.

``parameters`` is the one declaration of the runtimes' parameters and imports no torch; the rest of the package does.
"""
