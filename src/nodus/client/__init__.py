"""The client: what a program needs to speak with a Nodus server. Imports core and httpx, nothing heavier."""
