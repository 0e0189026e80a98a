"""The HTTP API: authenticate, decode strictly, call the store, render. No decisions about objects are taken here."""
