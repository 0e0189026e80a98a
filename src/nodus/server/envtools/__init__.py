"""Environments on this machine, without a server: what ``nodus env test`` and ``nodus env audit`` run.

``subjects`` finds what is meant (a directory, a file, an environment of the catalog, one of a server on this machine);
``building`` makes a package that can be graded of a directory; ``local`` grades with the service that a server has, in
the same sandboxes; ``checking`` and ``audit`` are the two programs, and ``attacks`` what the audit plays.
"""
