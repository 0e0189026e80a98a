"""Helpers for testing against Nodus: real pieces made small, and fakes of services that can't run here."""
