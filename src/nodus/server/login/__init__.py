"""Logging in: a person approves in a browser, a command line gets a key of its own.

Two ways lead there (a browser on the same machine with PKCE, a code on another device after RFC 8628), and both end in
:mod:`nodus.server.login.grants`, which makes the key when the command line comes for it. Who the person is, is shown by
:mod:`nodus.server.login.proofs`; a further proof (OIDC) is added there and nowhere else.
"""
